//! Keeps a node's identities certified: the first certificate as soon as an identity is wanted, a new one at half of the
//! lifetime, and again and again while the control plane is away.

use super::BACKOFF;
use super::agent::Agent;
use backon::BackoffBuilder;
use leno_identity::{SpiffeId, SvidStore};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Requests under way at a time.
const CONCURRENCY: usize = 16;
/// Of the thread that makes keys: a tenth of the weight of others, which is enough to get on when they leave no time at all.
const NICE: i32 = 10;
/// Wall clocks jump, so nobody sleeps for long by one.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Certifies what the node hosts, in an [`SvidStore`].
#[derive(Clone, Debug)]
pub struct Identities {
    agent: Agent,
    store: Arc<SvidStore>,
}

/// What one pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Identities with a new certificate.
    pub renewed: BTreeSet<SpiffeId>,
    /// Those without, and why. They go on with the certificate that they had, while it lasts.
    pub failed: Vec<(SpiffeId, String)>,
}

impl Identities {
    /// For certificates that `agent` has signed and `store` holds.
    pub fn new(agent: Agent, store: Arc<SvidStore>) -> Self {
        Self { agent, store }
    }

    /// Does [`Identities::keep`] on a thread of its own, which gives way to all others: keys and certificates are a good part of what a new
    /// function costs, and its first request mostly needs none.
    pub fn start(self, wanted: watch::Receiver<BTreeSet<SpiffeId>>) -> io::Result<JoinHandle<()>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("leno-keys".to_owned()).spawn(move || {
            // Without it, this thread is merely no better than others.
            if let Err(error) = rustix::process::setpriority_process(None, NICE) {
                tracing::debug!(%error, "the thread that makes keys has the priority of all others");
            }
            runtime.block_on(self.keep(wanted));
        })
    }

    /// Keeps what is wanted certified until the sender of `wanted` is dropped. Sending the same set again makes it look at once,
    /// as is wanted after a change of the trust bundle.
    pub async fn keep(self, mut wanted: watch::Receiver<BTreeSet<SpiffeId>>) {
        let mut pauses = BACKOFF.build();
        loop {
            let now_wanted = wanted.borrow_and_update().clone();
            let renewal = self.pass(&now_wanted).await;
            for (identity, reason) in &renewal.failed {
                tracing::warn!(%identity, reason, "an identity was not certified");
            }
            let sleep = if renewal.failed.is_empty() {
                pauses = BACKOFF.build();
                self.until_next()
            } else {
                pauses.next().unwrap_or(LONGEST_SLEEP)
            };
            tokio::select! {
                () = tokio::time::sleep(sleep) => (),
                changed = wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Certifies what is wanted and has no certificate or one past half of its lifetime; drops what is not wanted.
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
                Ok((id, Err(reason))) => renewal.failed.push((id, reason)),
                // Only a runtime that is going down ends such a task.
                Err(_) => return renewal,
            }
        }
    }

    async fn renew(self, id: SpiffeId) -> (SpiffeId, Result<(), String>) {
        let signed = self.store.renew(&id, |csr| self.agent.sign(&id, csr)).await;
        let outcome = signed.map(drop).map_err(|error| error.to_string());
        (id, outcome)
    }

    fn until_next(&self) -> Duration {
        let next = self.store.next_renewal().zip(self.store.now());
        let seconds = next.map_or(u64::MAX, |(next, now)| next.as_secs().saturating_sub(now.as_secs()));
        Duration::from_secs(seconds.max(1)).min(LONGEST_SLEEP)
    }
}
