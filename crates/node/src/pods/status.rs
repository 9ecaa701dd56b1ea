//! The pods of a node, as operators see them.

use super::{Entry, Place, Pods};
use leno_model::{FunctionId, PodMode, PodUid};
use serde::Serialize;
use std::net::IpAddr;
use std::time::SystemTime;

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodState {
    /// Its connections pass the node.
    Captured,
    /// The node has not captured it yet.
    Waits,
    /// The node could not capture it, and tries again.
    Fails,
    /// The node does not capture it.
    Refused,
}

impl PodState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Captured, Self::Waits, Self::Fails, Self::Refused];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Waits => "waits",
            Self::Fails => "fails",
            Self::Refused => "refused",
        }
    }
}

/// A pod, for operators.
#[derive(Clone, Debug, Serialize)]
pub struct PodStatus {
    /// `namespace/name`.
    pub pod: String,
    /// The function that it runs.
    #[serde(serialize_with = "as_text")]
    pub function: FunctionId,
    /// Its mode.
    pub mode: PodMode,
    /// Its state.
    pub state: PodState,
    /// Why it is not captured; `None`: it is, or nothing was tried yet.
    pub reason: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its UID.
    pub uid: PodUid,
    /// When it was captured or released last, in seconds since 1970; `None`: never.
    pub since: Option<f64>,
    /// Packets and sockets that the kernel has refused, by reason.
    #[serde(skip)]
    pub dropped: Vec<(&'static str, u64)>,
}

fn as_text<S: serde::Serializer>(function: &FunctionId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(function)
}

impl Pods {
    /// Whether the CNI plug-in's list of enforced namespaces is the latest one.
    pub fn is_list_current(&self) -> bool {
        self.inner.enforced.is_current()
    }

    /// The pods of this node that are to be captured, and those that it refuses, by name.
    pub fn status(&self) -> Vec<PodStatus> {
        let table = self.inner.table();
        let refused = table.refused.values().map(|pod| PodStatus {
            pod: format!("{}/{}", pod.namespace, pod.name),
            function: pod.function.clone(),
            mode: pod.mode,
            state: PodState::Refused,
            reason: pod.refused.as_ref().map(ToString::to_string),
            addresses: pod.addresses.clone(),
            uid: pod.uid.clone(),
            since: None,
            dropped: Vec::new(),
        });
        let mut all: Vec<_> = table.pods.values().map(Entry::status).chain(refused).collect();
        all.sort_by(|one, other| one.pod.cmp(&other.pod));
        all
    }
}

impl Entry {
    fn status(&self) -> PodStatus {
        let (wanted, status) = (self.wanted.borrow(), self.status.borrow());
        let pod = &wanted.pod;
        let state = match (&status.captured, &status.problem) {
            (Some(_), None) => PodState::Captured,
            (None, None) => PodState::Waits,
            (None, Some(_)) if status.is_expected => PodState::Waits,
            (_, Some(_)) => PodState::Fails,
        };
        let reason = match (&status.problem, &wanted.place) {
            (None, Place::Gone) => Some("the runtime has removed its network".to_owned()),
            (problem, _) => problem.clone(),
        };
        let since = status.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        PodStatus {
            pod: format!("{}/{}", pod.namespace, pod.name),
            function: pod.function.clone(),
            mode: pod.mode,
            state,
            reason,
            addresses: pod.addresses.clone(),
            uid: pod.uid.clone(),
            since: status.captured.is_some().then_some(since.as_secs_f64()),
            dropped: status.captured.as_ref().map(|captured| captured.refused()).unwrap_or_default(),
        }
    }
}
