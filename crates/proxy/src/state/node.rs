//! State that all workers of a node share.

use crate::state::addresses::Addresses;
use crate::state::admission::Admission;
use crate::state::channels::Channels;
use crate::state::credential::Credentials;
use crate::state::delays::Delays;
use crate::state::destinations::Destinations;
use crate::state::egress_guard::EgressGuard;
use crate::state::endpoints::Endpoints;
use crate::state::extension::Budget;
use crate::state::function::FunctionEntry;
use crate::state::instances::Instances;
use crate::state::kernel::Kernel;
use crate::state::links::Links;
use crate::state::machines::Machines;
use crate::state::pods::PodCallers;
use crate::state::policy_state::PolicyState;
use crate::state::removed_functions::RemovedFunctions;
use crate::state::snapshot::NodeSnapshot;
use crate::state::terminating::Terminating;
use arc_swap::{ArcSwap, ArcSwapOption};
use leno_identity::{ServerCertificates, StoredCertificates, SvidStore};
use leno_model::ChainLink;
use leno_model::FunctionId;
use leno_runtime::resolver::Resolver;
use leno_telemetry::Telemetry;
use leno_telemetry::stats::StatsByRevision;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// A node's shared state. A change of configuration stores another snapshot. In-flight requests
/// keep the snapshot that they began with.
pub struct Node {
    /// The current snapshot, by which requests are routed and judged.
    pub snapshot: ArcSwap<NodeSnapshot>,
    /// Functions that were removed and may still be at work.
    removed: ArcSwap<RemovedFunctions>,
    /// Finds and starts instances.
    pub instances: Arc<dyn Instances>,
    /// The remote nodes of functions.
    pub endpoints: Endpoints,
    /// Credentials of the instances that may use the outbound listener.
    pub credentials: Credentials,
    /// The meanings of addresses that pods of the node call.
    pub destinations: Destinations,
    /// The pods of the node's own connections.
    pub pod_callers: PodCallers,
    /// Shared-memory links of instances.
    pub links: Links,
    /// Channels between instances with links.
    pub channels: Channels,
    /// The addresses by which instances in jails call functions.
    pub addresses: Addresses,
    /// Resolves names outside of the mesh.
    pub(crate) resolver: Resolver,
    /// The addresses of the mesh's machines.
    pub machines: Arc<Machines>,
    /// Certificates of the gateway for clients that use TLS, if it does.
    pub gateway_certificates: ArcSwapOption<ServerCertificates>,
    /// Certificates of Gateway documents' listeners.
    pub listener_certificates: StoredCertificates,
    /// SVIDs of this node's functions.
    pub svids: Arc<SvidStore>,
    /// Limits and caches that programs see as state.
    pub policy_state: Arc<PolicyState>,
    /// Draining instances.
    pub terminating: Arc<Terminating>,
    /// Budget of the extensions' instances that wait for responses.
    pub extension_instances: Arc<Budget>,
    /// The client connections that are open, and their limits.
    pub admission: Arc<Admission>,
    /// Requests that faults delay.
    pub(crate) delays: Delays,
    /// Statistics by revision, for functions that have several.
    pub revision_stats: StatsByRevision,
    /// Metrics, access log, spans and recent records.
    pub telemetry: Telemetry,
    /// Previous snapshots, as long as an exchange holds them.
    past: Mutex<Vec<Weak<NodeSnapshot>>>,
    /// Previous snapshots for removed functions, as long as an exchange holds them.
    past_removed: Mutex<Vec<Weak<NodeSnapshot>>>,
    /// Notified when there is a new snapshot, when the requests of an instance must end, and when a
    /// node was revoked.
    changed: Notify,
    /// How often other nodes were revoked.
    revocations: AtomicU64,
    /// The kernel's part; set once, before jails are served.
    kernel: OnceLock<Arc<dyn Kernel>>,
    /// Address of the inbound listener; set by [`crate::serve`].
    inbound: OnceLock<SocketAddr>,
}

impl Node {
    /// Creates a node that does not serve yet.
    pub fn new(
        snapshot: NodeSnapshot,
        instances: Arc<dyn Instances>,
        svids: Arc<SvidStore>,
        telemetry: Telemetry,
    ) -> Arc<Self> {
        let resolver = Resolver::new(snapshot.mesh.name_servers.clone());
        Arc::new(Self {
            resolver,
            machines: Arc::default(),
            snapshot: ArcSwap::from_pointee(snapshot),
            removed: ArcSwap::default(),
            past: Mutex::default(),
            past_removed: Mutex::default(),
            changed: Notify::new(),
            revocations: AtomicU64::default(),
            kernel: OnceLock::new(),
            instances,
            endpoints: Endpoints::default(),
            credentials: Credentials::default(),
            destinations: Destinations::default(),
            pod_callers: PodCallers::default(),
            links: Links::default(),
            channels: Channels::default(),
            addresses: Addresses::default(),
            gateway_certificates: ArcSwapOption::empty(),
            listener_certificates: StoredCertificates::default(),
            svids,
            policy_state: PolicyState::new(),
            terminating: Arc::default(),
            extension_instances: Arc::default(),
            admission: Arc::default(),
            delays: Delays::default(),
            revision_stats: StatsByRevision::default(),
            telemetry,
            inbound: OnceLock::new(),
        })
    }

    /// The guard of fetches whose URLs are in documents.
    pub fn egress_guard(&self) -> EgressGuard {
        EgressGuard::with_resolver(self.resolver.clone(), self.machines.clone())
    }

    /// Makes `snapshot` the current one.
    pub fn publish(&self, snapshot: Arc<NodeSnapshot>) {
        // An exchange that does not find a function in the new snapshot finds it among the removed
        // ones.
        self.store_removed(self.removed.load().beside(&snapshot));
        let before = self.snapshot.swap(snapshot);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.retain(|snapshot| snapshot.strong_count() > 0);
        past.push(Arc::downgrade(&before));
        drop(past);
        self.notify();
    }

    /// Replaces the functions that were removed and may still be at work.
    pub fn set_removed(&self, removed: RemovedFunctions) {
        self.store_removed(removed.beside(&self.snapshot.load()));
        self.notify();
    }

    fn store_removed(&self, removed: RemovedFunctions) {
        let before = self.removed.swap(Arc::new(removed));
        let mut past = self.past_removed.lock().unwrap_or_else(PoisonError::into_inner);
        past.retain(|snapshot| snapshot.strong_count() > 0);
        past.extend(before.snapshot().map(Arc::downgrade));
    }

    /// Makes the kernel and all workers follow a change.
    fn notify(&self) {
        if let Some(kernel) = self.kernel() {
            kernel.follow();
        }
        self.changed.notify_waiters();
    }

    /// Ends the remaining requests of a draining instance, because its drain timeout is over.
    pub fn end_requests(&self, instance: &str) {
        self.terminating.set_overdue(instance);
        self.changed.notify_waiters();
    }

    /// Ends connections and requests with nodes that were revoked according to [`Node::svids`].
    pub fn end_revoked(&self) {
        self.revocations.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    /// When the node closes the exchanges of a removed function. `None`: the function was not
    /// removed, or its time is over.
    pub(crate) fn removed_until(&self, function: &FunctionId) -> Option<Instant> {
        if self.snapshot.load().functions.get(function).is_some() { None } else { self.removed.load().until(function) }
    }

    /// The chain of a function; for a removed function, its last one.
    pub fn chain_of(&self, function: &FunctionId) -> Option<ChainLink> {
        self.snapshot_with(function)?.1.config.chain.clone()
    }

    /// From now on, the kernel follows each snapshot.
    pub fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        // A node has one kernel part. A second call changes nothing.
        let _ = self.kernel.set(kernel);
    }

    /// The kernel's part, if there is one.
    pub(crate) fn kernel(&self) -> Option<&dyn Kernel> {
        self.kernel.get().map(|kernel| &**kernel)
    }

    /// The snapshot that judges calls from or to `function`, and the function's entry there. This
    /// is the current snapshot; for a removed function that may still be at work, it is the current
    /// one with all such functions added.
    pub(crate) fn snapshot_with(&self, function: &FunctionId) -> Option<(Arc<NodeSnapshot>, Arc<FunctionEntry>)> {
        let present = self.snapshot.load_full();
        if let Some(entry) = present.functions.get(function).cloned() {
            return Some((present, entry));
        }
        self.removed.load().find(function)
    }

    /// Whether no exchange holds this snapshot, an older one, or one with removed functions. The
    /// caller holds the snapshot once.
    pub fn is_unseen(&self, snapshot: &Arc<NodeSnapshot>) -> bool {
        let is_held = |past: &Mutex<Vec<Weak<NodeSnapshot>>>, than: u64| {
            let past = past.lock().unwrap_or_else(PoisonError::into_inner);
            past.iter().filter_map(Weak::upgrade).any(|other| other.version < than)
        };
        Arc::strong_count(snapshot) <= 1
            && self.removed.load().snapshot().is_none_or(|present| Arc::strong_count(present) <= 1)
            && !is_held(&self.past, snapshot.version)
            && !is_held(&self.past_removed, u64::MAX)
    }

    /// Waits for the snapshot after the current one, or until the requests of an instance must end,
    /// or a node is revoked.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Address of the inbound listener; `None`: the node does not serve yet.
    pub fn inbound(&self) -> Option<SocketAddr> {
        self.inbound.get().copied()
    }

    pub(crate) fn set_inbound(&self, address: SocketAddr) {
        // A node serves once. If it is asked again, the first address stays.
        let _ = self.inbound.set(address);
    }
}
