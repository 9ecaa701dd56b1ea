//! The control plane's handle: publishes definitions, reports the status.

mod authority;
mod for_node;
mod nodes;
mod pods;
mod publishing;
mod reruns;
mod state_export;

pub use authority::{AuthorityStatus, RootStatus, RotateError, RotationPeers, RotationProgress};
pub(crate) use nodes::JoinProof;
pub use publishing::{PublishError, PublishSummary};
pub use reruns::RerunError;
pub use state_export::ImportError;

use crate::admission::Members;
use crate::asking::{AskError, Questions};
use crate::definitions::CompiledDefinitions;
use crate::error::DefinitionsError;
use crate::history::{Histories, History};
use crate::job::Outcome;
use crate::join_verifier::JoinVerifier;
use crate::node_share::Shares;
use crate::state::State;
use crate::status::{Counters, NodeEvent, PlacementEvent, RolloutEvent, Status};
use crate::store::{Store, StoreError};
use crate::trust::{Authorities, Trust, TrustError, UnknownAuthority};
use leno_identity::{
    Authority, KeyRequest, MembershipMark, RequestError, SignError, SpiffeId, SvidError, SvidStore, TrustBundle,
    TrustDomain,
};
use leno_model::Container;
use leno_model::revision::Template;
use leno_model::{FunctionId, revision};
use leno_wire::{Answer, JobReport, ListenerFault, Question};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Notify, Semaphore, watch};

/// How long certificates of nodes and of the control plane are valid. They are renewed at half of
/// it.
pub(crate) const NODE_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// The mark in the control plane's own certificate.
const NO_MEMBER: MembershipMark = MembershipMark([0; 8]);

/// A control plane. Clones share one state.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

/// A handle that does not keep its control plane alive.
pub(crate) struct WeakControl(Weak<Inner>);

struct Inner {
    state: Mutex<State>,
    /// The share of the state's time that each node has.
    shares: Shares,
    /// Changes under way that have the state for long. The threads that serve nodes do not wait for
    /// them: see [`Control::when_free`].
    long_changes: watch::Sender<usize>,
    members: Mutex<Members>,
    /// `None`: nodes join with tokens only.
    join_verifier: Mutex<Option<Arc<dyn JoinVerifier>>>,
    /// A permit for each credential that may be verified now.
    verifying: Semaphore,
    /// The authority that signs, and the roots. The holder of the store's lock changes it.
    trust: Mutex<Trust>,
    /// Whether nodes have been notified of `trust`.
    trust_in_force: AtomicBool,
    trust_domain: TrustDomain,
    /// The other control planes, during a rotation.
    rotation_peers: Mutex<RotationPeers>,
    asking: Questions,
    /// The control plane's own certificate, for its listener.
    svids: Arc<SvidStore>,
    identity: SpiffeId,
    /// Locked for a whole publication, so that two publications cannot interleave.
    store: Mutex<Store>,
    /// Notified when a rollout may have begun.
    rollouts: Arc<Notify>,
    options: Options,
    /// Times of the autoscaler are measured from here.
    begin: Instant,
}

/// Settings of a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a node's endpoints and functions stay after its stream ended. A node that
    /// reconnects in time causes no change. After a restart, the control plane waits twenty times
    /// as long for its earlier nodes, before it places their functions on other nodes.
    pub node_grace: Duration,
}

impl Default for Options {
    /// `node_grace` is 500 ms. A machine that is dead is withdrawn within three seconds, because
    /// its stream ends after 2.5 s without an answer.
    fn default() -> Self {
        Self { node_grace: Duration::from_millis(500) }
    }
}

/// Why a control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored definitions cannot be compiled.
    #[error("the stored definitions cannot be used: {0}")]
    Definitions(#[from] DefinitionsError),
    /// The authority does not belong to the mesh.
    #[error("{0}")]
    Authority(String),
    /// The control plane has no certificate.
    #[error("the control plane's own certificate cannot be made: {0}")]
    Certificate(String),
}

impl StartError {
    fn own(error: &dyn fmt::Display) -> Self {
        Self::Certificate(error.to_string())
    }
}

/// Why the control plane could not certify itself or a node of its process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertifyError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Sign(#[from] SignError),
    #[error(transparent)]
    Svid(#[from] SvidError),
    #[error(transparent)]
    Authority(#[from] UnknownAuthority),
}

impl Control {
    /// Makes a control plane for the authority's trust domain, with the definitions in the store.
    /// Blocks on the store.
    pub fn new(authority: Authority, store: Store, options: Options) -> Result<Self, StartError> {
        Self::with_authorities(Authorities::in_memory(authority), store, options)
    }

    /// The same, with an authority that may be in a file. Continues a rotation.
    pub fn with_authorities(authorities: Authorities, store: Store, options: Options) -> Result<Self, StartError> {
        let trust = Trust::recall(authorities, &store).map_err(|error| match error {
            TrustError::Store(error) => StartError::Store(error),
            error => StartError::Authority(error.to_string()),
        })?;
        let bundle = trust.bundle().clone();
        let unknown = |error: UnknownAuthority| StartError::Authority(error.to_string());
        let (signer, own) = (trust.signer().map_err(unknown)?, trust.own_signer().map_err(unknown)?);
        let (definitions, mut histories) = (store.definitions()?, store.histories()?);
        let compiled = match &definitions {
            // Stored definitions of another trust domain are not for this mesh. The next
            // publication replaces them.
            Some(stored) if stored.mesh.trust_domain == *bundle.trust_domain() => {
                CompiledDefinitions::new(stored, &stored.modules, &histories, &bundle)?
            }
            Some(_) => {
                histories = Histories::default();
                store.forget_histories()?;
                CompiledDefinitions::nothing(&bundle)?
            }
            None => CompiledDefinitions::nothing(&bundle)?,
        };
        let mut state = State::new(compiled, histories);
        state.set_issuer(signer.key_id().as_bytes());
        state.recall(store.outcomes()?);
        let members = store.members()?;
        for (name, member) in members.all() {
            state.admit(name, member.admission.clone());
            state.limit(name, member.limits);
            state.locate(name, &member.addresses);
            state.cordon(name, member.cordon());
        }
        state.set_revoked(members.revocations.marks());
        state.await_nodes(members.all().map(|(name, _)| name.clone()));
        let state = Mutex::new(state);
        let store = Mutex::new(store);
        let identity = SpiffeId::control(bundle.trust_domain()).map_err(|error| StartError::own(&error))?;
        let (svids, trust_domain) = (SvidStore::new(bundle.as_ref().clone()), bundle.trust_domain().clone());
        certify(&own, &svids, &identity, &[], NO_MEMBER).map_err(|error| StartError::own(&error))?;
        Ok(Self(Arc::new(Inner {
            state,
            shares: Shares::default(),
            long_changes: watch::Sender::new(0),
            members: Mutex::new(members),
            join_verifier: Mutex::default(),
            verifying: Semaphore::new(nodes::MAX_VERIFYING),
            asking: Questions::default(),
            svids,
            identity,
            trust: Mutex::new(trust),
            trust_in_force: AtomicBool::new(true),
            trust_domain,
            rotation_peers: Mutex::default(),
            store,
            rollouts: Arc::default(),
            options,
            begin: Instant::now(),
        })))
    }

    /// The last events of nodes, oldest first.
    pub fn node_events(&self) -> Vec<NodeEvent> {
        self.state().node_events()
    }

    /// The last events of functions that lacked nodes, oldest first.
    pub fn placement_events(&self) -> Vec<PlacementEvent> {
        self.state().placement_events()
    }

    /// The last decisions on rollouts, oldest first.
    pub fn rollout_events(&self) -> Vec<RolloutEvent> {
        self.state().events()
    }

    /// Notified when a rollout may have begun.
    pub(crate) fn rollouts(&self) -> Arc<Notify> {
        self.0.rollouts.clone()
    }

    /// The root certificates of the trust domain: this authority's and, if the store has it, that
    /// of the previous process; during a rotation those of both authorities.
    pub fn bundle(&self) -> Arc<TrustBundle> {
        self.trust().bundle().clone()
    }

    /// The present functions, nodes, jobs and certificates. Jobs whose `ttl` has passed are left
    /// out.
    pub fn status(&self) -> Status {
        let mut status = self.state().status();
        let now = SystemTime::now();
        status.jobs.retain(|job| !job.is_past(now));
        status
    }

    /// The listeners of Gateway documents that connected gateways cannot serve, each with the name of
    /// the node.
    pub fn listener_faults(&self) -> Vec<(String, ListenerFault)> {
        self.state().listener_faults()
    }

    /// Whether definitions were published or stored. Without any, nodes would learn that no
    /// resource exists, and remove all of theirs.
    pub fn has_definitions(&self) -> bool {
        self.state().has_definitions()
    }

    /// The template of the latest revision of a function or job, as it was published, or of its
    /// latest revision with a declared name; `None`: it never was.
    pub fn latest(&self, id: &FunctionId, name: Option<&str>) -> Option<Template> {
        self.state().histories().0.get(id)?.latest_template(id, name)
    }

    /// The kept revisions that are containers, by name.
    pub fn containers(&self) -> Vec<(FunctionId, String, Container)> {
        let state = self.state();
        let of = |(id, history): (&FunctionId, &History)| {
            let named = |(number, container)| (id.clone(), revision::name(id, number), container);
            history.containers(id).map(named).collect::<Vec<_>>()
        };
        state.histories().0.iter().flat_map(of).collect()
    }

    /// Applies a node's report on a job. The end of a job is stored before it counts; from then on
    /// the job is not run again.
    pub(crate) async fn job(&self, node: &str, session: u64, id: &FunctionId, report: JobReport) {
        let Some(outcome) = self.state().job(node, session, id, report) else { return };
        let (control, id) = (self.clone(), id.clone());
        let stored = tokio::task::spawn_blocking(move || control.end_job(&id, outcome)).await;
        let stored = stored.map_err(|error| error.to_string());
        if let Err(error) = stored.and_then(|stored| stored.map_err(|error| error.to_string())) {
            tracing::error!(
                node,
                error,
                "the end of a job cannot be stored; it counts as running until its node says it again"
            );
        }
    }

    fn end_job(&self, id: &FunctionId, outcome: Outcome) -> Result<(), StoreError> {
        // Another publication may have started another run of the job meanwhile.
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state().awaits_end(id, &outcome) {
            store.save_outcome(id, &outcome)?;
            self.state().end_job(id, outcome);
        }
        Ok(())
    }

    /// The status that a node may read: its own, and that of the functions that it hosts.
    pub(crate) fn status_for(&self, node: &str) -> Status {
        self.state().status_for(node)
    }

    /// Divides rate limits anew, and lets the autoscaler decide on functions that have load.
    pub(crate) fn scale(&self) {
        let now = self.0.begin.elapsed();
        let mut state = self.state();
        state.lease(now);
        state.watch_acknowledgements(now);
        state.note_absences(now_ms());
        state.note_placement_problems(now_ms());
        state.note_certificates();
        state.rebalance(now_ms());
        if state.scales() {
            state.scale(now);
        }
    }

    /// The nodes that have a function's configuration in force: they may have records of its
    /// requests, and its instances.
    pub fn nodes_of(&self, id: &FunctionId) -> Vec<Arc<str>> {
        self.state().nodes_of(id)
    }

    /// All nodes; for callers of namespaces, the gateways and the nodes that host functions of
    /// these.
    pub fn nodes_with(&self, namespaces: &BTreeSet<String>) -> Vec<Arc<str>> {
        self.state().nodes_with(namespaces)
    }

    /// Queries a node, and waits for its answer.
    pub async fn ask(&self, node: &str, question: &Question, timeout: Duration) -> Result<Answer, AskError> {
        self.0.asking.ask(node, question, timeout).await
    }

    pub(crate) fn asking(&self) -> &Questions {
        &self.0.asking
    }

    /// Totals of the messages to and from an admitted node; `None`: no such node was admitted.
    pub fn counters(&self, node: &str) -> Option<Counters> {
        self.state().counters(node)
    }

    /// Whether an admitted node is connected and has answered all deliveries.
    pub fn is_up_to_date(&self, node: &str) -> bool {
        self.state().is_up_to_date(node)
    }

    /// The lock is held only briefly and never across an await. Nothing panics while holding it, so
    /// poisoning is ignored.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change that takes long where there are many functions.
    fn change_at_length<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        struct Ends<'a>(&'a watch::Sender<usize>);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|changes| *changes -= 1);
            }
        }
        self.0.long_changes.send_modify(|changes| *changes += 1);
        let _ends = Ends(&self.0.long_changes);
        change(&mut self.state())
    }

    /// Ends the wait for nodes of an earlier process to reconnect.
    pub(crate) fn stop_awaiting(&self) {
        self.change_at_length(State::stop_awaiting);
    }

    /// Waits until no change has the state for long. If the thread waited for the lock instead, it
    /// would answer no node's PINGs meanwhile, and all nodes would be taken for dead.
    pub(crate) async fn when_free(&self) {
        // The sender lives as long as this control plane.
        let _ = self.0.long_changes.subscribe().wait_for(|changes| *changes == 0).await;
    }

    /// Like [`Control::state`]; never locked together with it.
    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The authority that signs for nodes and functions.
    pub(crate) fn authority(&self) -> Result<Arc<Authority>, UnknownAuthority> {
        self.trust().signer()
    }

    /// The store with the control plane's own certificate, and its SPIFFE ID.
    pub(crate) fn own(&self) -> (&Arc<SvidStore>, &SpiffeId) {
        (&self.0.svids, &self.0.identity)
    }

    /// Renews the control plane's own certificate.
    pub(crate) fn renew(&self) -> Result<(), CertifyError> {
        let own = self.trust().own_signer()?;
        certify(&own, &self.0.svids, &self.0.identity, &[], NO_MEMBER)
    }

    pub(crate) fn options(&self) -> Options {
        self.0.options
    }

    pub(crate) fn downgrade(&self) -> WeakControl {
        WeakControl(Arc::downgrade(&self.0))
    }
}

impl WeakControl {
    pub(crate) fn upgrade(&self) -> Option<Control> {
        self.0.upgrade().map(Control)
    }
}

/// Makes the authority sign a certificate for an identity of this process, and puts it into the
/// store.
fn certify(
    authority: &Authority,
    svids: &SvidStore,
    identity: &SpiffeId,
    addresses: &[IpAddr],
    membership: MembershipMark,
) -> Result<(), CertifyError> {
    let request = KeyRequest::new(identity)?;
    let chain = authority.sign_node(request.csr(), identity, addresses, membership, NODE_LIFETIME)?;
    svids.install(request, chain)?;
    Ok(())
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({})", &self.0.trust_domain)
    }
}

#[cfg(test)]
mod tests;
