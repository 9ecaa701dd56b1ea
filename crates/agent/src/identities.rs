//! Renewal of the certificates of a node's identities. A new identity gets its first certificate at
//! once, and each certificate is renewed at half of its lifetime. Requests are retried while the
//! control plane is away.

use crate::BACKOFF;
use crate::agent::Agent;
use crate::signing::SignFailure;
use backon::BackoffBuilder;
use leno_identity::{RenewError, SpiffeId, SvidStore};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Maximum number of signing requests in flight.
const CONCURRENCY: usize = 16;
/// Nice value of the thread that generates keys. The thread gets a tenth of the weight of others,
/// which is enough to progress when they use all processors.
const NICE: i32 = 10;
/// Maximum time between two reads of the clock, because wall clocks jump.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Certifies the identities that a node hosts and keeps the certificates in an [`SvidStore`].
#[derive(Clone, Debug)]
pub struct Identities {
    agent: Agent,
    store: Arc<SvidStore>,
    passes: watch::Sender<()>,
}

/// The outcome of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Identities that got a new certificate.
    pub renewed: BTreeSet<SpiffeId>,
    /// Identities without a new certificate, and why. They keep their last certificate while it is
    /// valid.
    pub failed: Vec<(SpiffeId, String)>,
}

impl Identities {
    /// `agent` has certificates signed, and `store` holds them.
    pub fn new(agent: Agent, store: Arc<SvidStore>) -> Self {
        Self { agent, store, passes: watch::Sender::default() }
    }

    /// Changes after each pass.
    pub fn passes(&self) -> watch::Receiver<()> {
        self.passes.subscribe()
    }

    /// Runs [`Identities::keep`] on a separate thread with low priority. Keys and certificates are
    /// a good part of the cost of a new function, and its first request usually needs none.
    pub fn start(self, wanted: watch::Receiver<BTreeSet<SpiffeId>>) -> io::Result<JoinHandle<()>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("leno-keys".to_owned()).spawn(move || {
            // If this fails, the thread keeps normal priority.
            if let Err(error) = rustix::process::setpriority_process(None, NICE) {
                tracing::debug!(%error, "the thread that makes keys has the priority of all others");
            }
            runtime.block_on(self.keep(wanted));
        })
    }

    /// Keeps the wanted identities certified until the sender of `wanted` is dropped. Sending the
    /// same set again triggers a pass at once, for example after a change of the trust bundle.
    pub async fn keep(self, mut wanted: watch::Receiver<BTreeSet<SpiffeId>>) {
        let mut pauses = BACKOFF.build();
        loop {
            let now_wanted = wanted.borrow_and_update().clone();
            let renewal = self.pass(&now_wanted).await;
            self.passes.send_replace(());
            renewal.failed.iter().for_each(|(identity, reason)| self.warn(identity, reason));
            self.agent.certified(&self.store);
            let sleep = if renewal.failed.is_empty() {
                pauses = BACKOFF.build();
                self.until_next()
            } else {
                pauses.next().unwrap_or(LONGEST_SLEEP)
            };
            tokio::select! {
                () = tokio::time::sleep(sleep) => (),
                () = self.agent.renewal_wanted() => (),
                changed = wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Logs a failure: a warning while more than a quarter of the lifetime is left, then an error
    /// for an operator.
    fn warn(&self, identity: &SpiffeId, reason: &str) {
        let Some((svid, now)) = self.store.current(identity).zip(self.store.now()) else {
            tracing::warn!(%identity, reason, "an identity was not certified, and has no certificate");
            return;
        };
        let left = svid.not_after().as_secs().saturating_sub(now.as_secs());
        let since_due = now.as_secs().saturating_sub(svid.renew_at().as_secs());
        let expires_in = Duration::from_secs(left);
        if left < since_due {
            tracing::error!(%identity, reason, ?expires_in, "a certificate is not renewed, and expires soon");
        } else {
            tracing::warn!(%identity, reason, ?expires_in, "a certificate was not renewed; it is tried again");
        }
    }

    /// Certifies each wanted identity that has no certificate, or one past half of its lifetime.
    /// Drops the certificates of all other identities.
    pub async fn pass(&self, wanted: &BTreeSet<SpiffeId>) -> Renewal {
        let held: BTreeSet<_> = self.store.all().iter().map(|svid| svid.id().clone()).collect();
        held.difference(wanted).for_each(|id| self.store.remove(id));
        let mut due: VecDeque<_> = wanted.difference(&held).cloned().collect();
        let to_renew = self.store.now().map(|now| self.store.renew_due(now)).unwrap_or_default();
        due.extend(to_renew.into_iter().filter(|id| wanted.contains(id)));

        let mut renewal = Renewal::default();
        let mut requests = JoinSet::new();
        loop {
            while requests.len() < CONCURRENCY
                && let Some(id) = due.pop_front()
            {
                requests.spawn(self.clone().renew(id));
            }
            let Some(done) = requests.join_next().await else { return renewal };
            match done {
                Ok((id, Ok(()))) => {
                    renewal.renewed.insert(id);
                }
                Ok((id, Err(error))) => renewal.failed.push((id, error.to_string())),
                // Only a runtime that shuts down ends such a task.
                Err(_) => return renewal,
            }
        }
    }

    async fn renew(self, id: SpiffeId) -> (SpiffeId, Result<(), RenewError<SignFailure>>) {
        let signed = self.store.renew(&id, |csr| self.agent.sign(&id, csr)).await;
        (id, signed.map(drop))
    }

    fn until_next(&self) -> Duration {
        let next = self.store.next_renewal().zip(self.store.now());
        let seconds = next.map_or(u64::MAX, |(next, now)| next.as_secs().saturating_sub(now.as_secs()));
        Duration::from_secs(seconds.max(1)).min(LONGEST_SLEEP)
    }
}
