//! Instances that prove their identity with a credential when they call through the outbound
//! listener. While two processes of a node accept connections on it, each knows the instances of
//! the other.

use leno_model::FunctionId;
use leno_proxy::credential::{Credentials, NewCredential, OpenerCheck};
use leno_supervisor::Processes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// A change of instances that one process announces to the other.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Announcement {
    /// An instance may call.
    Started(Caller),
    /// The instance of this name has ended.
    Ended(String),
}

/// An instance of another process of the node. It cannot be printed: it holds a secret.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Caller {
    function: String,
    instance: String,
    user: String,
    secret: String,
    /// ID and start time of its first process, and the member list of its control group, as
    /// [`Processes::tell`] returns them.
    process: u32,
    started: u64,
    group: Option<PathBuf>,
}

/// The instances of this process and of the other one.
#[derive(Default)]
pub(crate) struct Callers(Mutex<State>);

#[derive(Default)]
struct State {
    own: HashMap<Arc<str>, (FunctionId, Arc<Processes>)>,
    /// Receives each instance that starts or ends; `None`: there is no other process.
    other: Option<mpsc::UnboundedSender<Announcement>>,
    /// Names of the other process's instances.
    adopted: BTreeSet<String>,
}

impl Callers {
    /// Adds an instance that has started.
    pub(crate) fn started(
        &self,
        credentials: &Credentials,
        function: &FunctionId,
        instance: &Arc<str>,
        processes: &Arc<Processes>,
    ) {
        let mut state = self.state();
        if let (Some(other), Some(caller)) = (&state.other, describe(credentials, function, instance, processes)) {
            let _ = other.send(Announcement::Started(caller));
        }
        state.own.insert(instance.clone(), (function.clone(), processes.clone()));
    }

    pub(crate) fn ended(&self, instance: &str) {
        let mut state = self.state();
        if let (Some(_), Some(other)) = (state.own.remove(instance), &state.other) {
            let _ = other.send(Announcement::Ended(instance.to_owned()));
        }
    }

    /// Announces all instances to another process, and each that starts or ends from now on.
    pub(crate) fn announce(&self, credentials: &Credentials) -> mpsc::UnboundedReceiver<Announcement> {
        let (other, announcements) = mpsc::unbounded_channel();
        let mut state = self.state();
        for (instance, (function, processes)) in &state.own {
            if let Some(caller) = describe(credentials, function, instance, processes) {
                let _ = other.send(Announcement::Started(caller));
            }
        }
        state.other = Some(other);
        announcements
    }

    /// Takes in an announcement of the other process. With `any_caller`, its instances' credentials
    /// are accepted from any process.
    pub(crate) fn hear(&self, credentials: &Credentials, announcement: Announcement, any_caller: bool) {
        let mut state = self.state();
        match announcement {
            Announcement::Started(caller) => {
                let Caller { function, instance, user, secret, process, started, group } = caller;
                let Ok(function) = function.parse::<FunctionId>() else { return };
                let processes = Processes::told(process, started, group);
                let opened: OpenerCheck = if any_caller {
                    Box::new(|_, _| Ok(()))
                } else {
                    Box::new(move |near, far| {
                        let verified = processes.verify_opened(near, far);
                        verified.map_err(|error| leno_proxy::instances::Unproven(error.to_string()))
                    })
                };
                if credentials.adopt(&function, &instance, NewCredential { user, secret }, opened) {
                    state.adopted.insert(instance);
                } else {
                    tracing::warn!(
                        instance,
                        "two instances have this name; this process refuses the other one's calls"
                    );
                }
            }
            Announcement::Ended(instance) => {
                if state.adopted.remove(&instance) {
                    credentials.revoke(&instance);
                }
            }
        }
    }

    /// Removes the instances of the other process, which has ended.
    pub(crate) fn part(&self, credentials: &Credentials) {
        let mut state = self.state();
        state.other = None;
        std::mem::take(&mut state.adopted).iter().for_each(|instance| credentials.revoke(instance));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None`: the instance has no credential any more.
fn describe(credentials: &Credentials, function: &FunctionId, instance: &str, processes: &Processes) -> Option<Caller> {
    let NewCredential { user, secret } = credentials.minted(instance)?;
    let (process, started, group) = processes.tell();
    let (function, instance) = (function.to_string(), instance.to_owned());
    Some(Caller { function, instance, user, secret, process, started, group })
}
