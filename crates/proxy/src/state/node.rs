//! What all workers of a node share.

use crate::state::admission::Admission;
use crate::state::credential::Credentials;
use crate::state::extension::Budget;
use crate::state::instances::Instances;
use crate::state::ledger::Ledger;
use crate::state::snapshot::NodeSnapshot;
use crate::state::terminating::Terminating;
use crate::telemetry::Telemetry;
use crate::telemetry::stats::StatsByRevision;
use arc_swap::ArcSwap;
use leno_identity::SvidStore;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// A node's shared state. Configuration changes by storing another snapshot; requests under way keep the one they began with.
pub struct Node {
    /// What requests are judged and routed by.
    pub snapshot: ArcSwap<NodeSnapshot>,
    /// Earlier snapshots, the latest first, with functions that were removed since and may still be at work: what those call, and what is
    /// called of them, is judged by the snapshot that they were last in.
    pub former: ArcSwap<Vec<Arc<NodeSnapshot>>>,
    /// Finds and starts instances.
    pub instances: Arc<dyn Instances>,
    /// Who may use the outbound listener.
    pub credentials: Credentials,
    /// Identities of this node's functions.
    pub svids: Arc<SvidStore>,
    /// Counters and memories.
    pub ledger: Arc<Ledger>,
    /// Instances that are to end.
    pub terminating: Arc<Terminating>,
    /// Instances of extensions that are kept for responses.
    pub extension_instances: Arc<Budget>,
    /// Connections that clients have open.
    pub admission: Arc<Admission>,
    /// How the revisions of functions that have several do.
    pub revision_stats: StatsByRevision,
    /// Metrics, access log, spans and recent records.
    pub telemetry: Telemetry,
    /// Snapshots that were in force before, as far as somebody still holds them.
    past: Mutex<Vec<Weak<NodeSnapshot>>>,
    /// Told when there is another snapshot.
    changed: Notify,
    /// Where this node's inbound sidecars listen; set by [`crate::serve`].
    inbound: OnceLock<SocketAddr>,
}

impl Node {
    /// A node that does not serve yet.
    pub fn new(
        snapshot: NodeSnapshot,
        instances: Arc<dyn Instances>,
        svids: Arc<SvidStore>,
        telemetry: Telemetry,
    ) -> Arc<Self> {
        Arc::new(Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            former: ArcSwap::default(),
            past: Mutex::default(),
            changed: Notify::new(),
            instances,
            credentials: Credentials::default(),
            svids,
            ledger: Ledger::new(),
            terminating: Arc::default(),
            extension_instances: Arc::default(),
            admission: Arc::default(),
            revision_stats: StatsByRevision::default(),
            telemetry,
            inbound: OnceLock::new(),
        })
    }

    /// Puts another snapshot in force.
    pub fn publish(&self, snapshot: Arc<NodeSnapshot>) {
        let before = self.snapshot.swap(snapshot);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.retain(|snapshot| snapshot.strong_count() > 0);
        past.push(Arc::downgrade(&before));
        drop(past);
        self.changed.notify_waiters();
    }

    /// Whether nobody holds a snapshot that came before this one.
    pub fn is_oldest(&self, snapshot: &NodeSnapshot) -> bool {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.iter().filter_map(Weak::upgrade).all(|other| other.version >= snapshot.version)
    }

    /// Waits for the next snapshot after the one that is in force now.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Where this node's inbound sidecars listen; `None`: not yet.
    pub fn inbound(&self) -> Option<SocketAddr> {
        self.inbound.get().copied()
    }

    pub(crate) fn set_inbound(&self, address: SocketAddr) {
        // A node serves once; should it be asked again, the first address stays right for it.
        let _ = self.inbound.set(address);
    }
}
