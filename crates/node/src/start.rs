//! Starts a node: engines, supervisor, proxy, and the reconciler that keeps them configured.

use crate::destinations::{ControlPlane, end_unused};
use crate::engines::Engines;
use crate::hot_restart::{
    self, ChildCounters, ChildLink, ChildNode, HotRestart, OfferError, Parent, ParentNode, Start, StateCheck,
    TakeoverError,
};
use crate::images::Images;
use crate::instances::{HostedFunctions, InstanceHost};
use crate::kernel::KernelParts;
use crate::listeners::Listeners;
use crate::loader::Loader;
use crate::omissions;
use crate::pods::{FaultReport, PodExchange, PodOptions, Pods};
use crate::questions::{Answerer, MAX_VIEWS, PendingView};
use crate::quotas;
use crate::reconciler::Reconciler;
use crate::warm::Warm;
use anyhow::{Context, Result};
use leno_agent::{Agent, BACKOFF, Identities, Options, PlatformJoin};
use leno_identity::{Membership, SpiffeId, SvidStore};
use leno_jail::Half;
use leno_model::{Locality, MeshConfig};
use leno_proxy::destinations::NodePlace;
use leno_proxy::modules::Modules;
use leno_proxy::{Addresses, Handle, Machines, Node, NodeSnapshot};
use leno_supervisor::{JailSupport, Settings, Supervisor};
use leno_telemetry::Telemetry;
use leno_wire::Capacity;
use std::collections::BTreeSet;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

/// The numbers of a process's instances begin with a multiple of this, so that they differ from
/// those of its parent.
const INSTANCES: u64 = 1000;

/// How long a node with a configuration waits for certificates before it accepts connections.
const MAX_CERTIFICATE_WAIT: Duration = Duration::from_secs(5);

/// A running node.
pub struct Running {
    /// The addresses of its listeners.
    pub addresses: Addresses,
    /// Becomes true when the first configuration of the control plane is in force, and stays true.
    pub configured: watch::Receiver<bool>,
    /// Becomes true when the configuration is in force and every identity is certified, and stays
    /// true.
    pub ready: watch::Receiver<bool>,
    /// The state that its workers share.
    pub node: Arc<Node>,
    /// The supervisor of its instances.
    pub supervisor: Supervisor,
    /// Its pods; `None`: it captures none.
    pub pods: Option<Pods>,
    views: Option<mpsc::Receiver<PendingView>>,
    proxy: Handle,
    as_parent: ParentNode,
    images: Arc<Images>,
    hot_restart: Option<HotRestart>,
}

/// The other parts that a parent passes to its child, and how long it waits for the child.
pub struct HotRestartOptions {
    /// Other descriptors, each with a name.
    pub others: Vec<(String, OwnedFd)>,
    /// The half of the IDs that this process's jails have.
    pub half: Half,
    /// Soft limit on descriptors with which the first process of the node was started.
    pub descriptors: Option<u64>,
    /// How long the child may take until it is ready.
    pub patience: Duration,
    /// Asked when the child is ready, while no job can start; `None`: the child gets no state in
    /// `others`.
    pub unchanged: Option<StateCheck>,
}

/// How a node joins the control plane.
pub struct Join {
    /// `host:port` of the control planes' gRPC listeners. They are tried in turn.
    pub control: Vec<String>,
    /// The node's identity.
    pub membership: Membership,
    /// How the node joins again when the control plane does not know it any more.
    pub rejoin: Option<PlatformJoin>,
    /// The address at which other nodes reach the inbound listener, if it differs from the bound
    /// address.
    pub advertised: Option<IpAddr>,
    /// Whether the node is a gateway.
    pub gateway: bool,
    /// Addresses of its listeners.
    pub listeners: Listeners,
    /// Where the node is: it prefers endpoints that are near. The same locality as the one with
    /// which it was admitted.
    pub locality: Locality,
    /// Accept an instance's credential from any process.
    pub any_caller: bool,
    /// The capacity that the node offers to instances; `None`: nothing, so the control plane's
    /// scheduler places nothing on it.
    pub capacity: Option<Capacity>,
    /// Settings of the supervisor.
    pub settings: Settings,
    /// The parent from which this process takes over.
    pub parent: Option<Parent>,
    /// The parts of the machine for pods of Kubernetes; `None`: the node captures none.
    pub pods: Option<PodOptions>,
    /// The control plane is in this process, which takes no configuration from its parent.
    pub own_control: bool,
}

/// Starts a node and joins the control plane. When this returns, the node's listeners are bound.
/// They accept connections once the first configuration is in force. `modules` may hold modules
/// that are compiled already. With a parent, the node accepts connections after
/// [`Running::take_over`].
pub async fn start(
    mesh: MeshConfig,
    workers: Option<NonZeroUsize>,
    engines: Arc<Engines>,
    modules: Arc<Modules>,
    join: Join,
) -> Result<Running> {
    let mesh = join.listeners.apply(mesh);
    let hosted = Arc::new(HostedFunctions::default());
    let host = InstanceHost::new(join.any_caller, join.settings.namespaces.clone());
    let has_jails = matches!(join.settings.jails, JailSupport::Available(_));
    let namespaces = join.settings.namespaces.clone();
    let secrets = join.settings.secrets.clone();
    let images = Images::new(mesh.images.clone(), &join.settings.jails, namespaces.clone());
    let supervisor = Supervisor::start(join.settings, host.clone());
    let svids = join.membership.svids().clone();
    let node_identity = join.membership.identity().clone();
    let gateway = join.gateway.then(|| SpiffeId::gateway(svids.bundle().trust_domain())).transpose()?;
    let own: BTreeSet<SpiffeId> = gateway.into_iter().chain([node_identity.clone()]).collect();
    let mut telemetry = Telemetry::start(&mesh).context("the access log or the span exporter cannot be started")?;
    telemetry.namespaces = namespaces.clone();
    tokio::spawn(omissions::report(namespaces));

    let redis = mesh.quotas.clone();
    let node = Node::new(NodeSnapshot::new(mesh), hosted.clone(), svids.clone(), telemetry);
    images.set_guard(node.egress_guard());
    if let Some(redis) = redis {
        quotas::start(redis, &node.policy_state.limits)?;
    }
    let here =
        NodePlace { node: node_identity.node_name().unwrap_or_default().to_owned(), zone: join.locality.zone.clone() };
    node.endpoints.set_locality(join.locality);
    let options = leno_proxy::Options { workers, outbound: join.pods.is_none(), ..leno_proxy::Options::default() };
    tracing::info!("connections: {} at most, by the limit on file descriptors", options.connections);
    // Each connection to the node may need one to an upstream.
    node.telemetry.namespaces.limit_connections(2 * options.connections as u64);
    let (callers, any_caller, warm) = (host.callers().clone(), join.any_caller, Warm::default());
    let to_be: Arc<OnceLock<Agent>> = Arc::default();
    let (hot_restart, listeners, parent) = match join.parent {
        None => (None, Vec::new(), None),
        Some(parent) => {
            node.credentials.number_from(parent.first_instance());
            let (callers, warm) = (callers.clone(), warm.clone());
            let child = ChildNode { node: node.clone(), callers, any_caller, warm, agent: to_be.clone() };
            let (mut hot_restart, listeners, parent) = parent.join(child)?;
            let parent = if join.own_control {
                hot_restart.ignore_updates(parent);
                None
            } else {
                Some(parent)
            };
            (Some(hot_restart), listeners, parent)
        }
    };
    let proxy = leno_proxy::take_over(&node, options, listeners)?;
    let addresses = proxy.addresses;
    let kernel = KernelParts::new(&node, supervisor.control_group().map(Path::to_owned), has_jails);
    host.attach(&node, addresses.outbound, proxy.interceptor.clone(), kernel.clone());

    let inbound = advertised(addresses.inbound, join.advertised);
    let Join { control, membership, rejoin, .. } = join;
    // A control plane without pods would end the capture of all.
    let oldest = if join.pods.is_some() { leno_wire::PODS } else { 1 };
    let options = Options { control, membership, inbound, backoff: BACKOFF, rejoin, oldest };
    let (agent, updates) = leno_agent::join_after(options, parent)?;
    if hot_restart.is_some() {
        // It is set once.
        let _ = to_be.set(agent.clone());
    }
    if join.pods.is_some() {
        node.destinations.begin(here, Box::new(ControlPlane(agent.clone())));
        tokio::spawn(end_unused(node.clone()));
    }
    let questions = agent.questions();
    tokio::spawn(follow_machines(agent.machines(), node.machines.clone()));
    tokio::spawn(follow_revocations(agent.revocations(), node.clone()));
    let (jobs, jobs_may_start) = watch::channel(hot_restart.is_none());
    let reporting = agent.clone();
    let report: FaultReport = Box::new(move |uid, fault| reporting.report_pod(uid, fault));
    let pods = join.pods.map(|options| {
        let exchange = PodExchange { report, unenrolled: agent.unenrolled() };
        Pods::start(options, exchange, &node, proxy.interceptor.clone(), jobs_may_start.clone())
    });
    let (wanted, wanted_by) = watch::channel(own.clone());
    let (applied, is_applied) = watch::channel(false);
    let identities = Identities::new(agent.clone(), svids.clone());
    let passes = identities.passes();
    identities.start(wanted_by.clone())?;
    let as_parent = ParentNode {
        agent: agent.clone(),
        node: node.clone(),
        supervisor: supervisor.clone(),
        callers,
        any_caller,
        jobs,
    };
    let reconciler = Reconciler {
        agent,
        node: node.clone(),
        loader: Loader {
            engines: engines.clone(),
            modules,
            call_tables: Default::default(),
            node: node.clone(),
            kernel,
            secrets,
        },
        supervisor: supervisor.clone(),
        pods: pods.clone(),
        hosted,
        images: images.clone(),
        capacity: join.capacity,
        without_jails: !has_jails,
        wanted,
        own,
        gateway: join.gateway,
        listeners: join.listeners,
        applied,
        jobs: jobs_may_start,
        warm,
        ports: proxy.ports.clone(),
    };
    let (views_asked, views) = mpsc::channel(MAX_VIEWS);
    let answerer = Answerer { engines, node: node.clone(), supervisor: supervisor.clone(), views: views_asked };
    questions.map(|questions| tokio::spawn(answerer.run(questions)));
    tokio::spawn(reconciler.run(updates));

    let (is_now_ready, is_ready) = watch::channel(false);
    tokio::spawn(watch_readiness(is_applied.clone(), wanted_by, (svids, passes), is_now_ready));
    if hot_restart.is_none() {
        proxy.open_when(can_answer(is_applied.clone(), is_ready.clone()));
    }
    Ok(Running {
        addresses,
        configured: is_applied,
        ready: is_ready,
        node,
        supervisor,
        pods,
        views: Some(views),
        proxy,
        as_parent,
        images,
        hot_restart,
    })
}

/// Updates the addresses of the mesh's machines in the node, until it ends.
async fn follow_machines(mut told: watch::Receiver<Vec<IpAddr>>, machines: Arc<Machines>) {
    loop {
        machines.set_others(told.borrow_and_update().iter().copied());
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// Ends open exchanges with nodes that are revoked.
async fn follow_revocations(mut revocations: watch::Receiver<()>, node: Arc<Node>) {
    while revocations.changed().await.is_ok() {
        tracing::info!("nodes were revoked; what is open with them ends");
        node.end_revoked();
    }
}

/// The address at which other nodes reach the inbound listener; `None`: it is bound to all
/// addresses, and the configuration names none of them.
fn advertised(bound: SocketAddr, address: Option<IpAddr>) -> Option<SocketAddr> {
    let address = address.unwrap_or(bound.ip());
    (!address.is_unspecified()).then(|| SocketAddr::new(address, bound.port()))
}

/// Sets `ready` when functions are in force and each identity has a certificate. It stays true:
/// later updates are changes, not part of the start.
async fn watch_readiness(
    mut applied: watch::Receiver<bool>,
    wanted: watch::Receiver<BTreeSet<SpiffeId>>,
    (svids, mut passes): (Arc<SvidStore>, watch::Receiver<()>),
    ready: watch::Sender<bool>,
) {
    if applied.wait_for(|applied| *applied).await.is_err() {
        return;
    }
    loop {
        let all = wanted.borrow().iter().all(|id| svids.current(id).is_some());
        if all {
            ready.send_replace(true);
            return;
        }
        tokio::select! {
            Ok(()) = passes.changed() => {}
            // The identities of removed functions are not wanted any more, which needs no pass.
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
}

/// Resolves when the node can answer: its first configuration is in force, and its identities are
/// certified. An identity that cannot be certified must not keep the node from serving other
/// functions.
async fn can_answer(mut configured: watch::Receiver<bool>, mut ready: watch::Receiver<bool>) {
    if configured.wait_for(|configured| *configured).await.is_err() {
        // The node ends.
        return std::future::pending().await;
    }
    let _ = timeout(MAX_CERTIFICATE_WAIT, ready.wait_for(|ready| *ready)).await;
}

impl Running {
    /// Questions of the control plane about views, for the process that has them. `None`: they were
    /// taken.
    pub fn take_views(&mut self) -> Option<mpsc::Receiver<PendingView>> {
        self.views.take()
    }

    /// Takes over from the parent: waits until this process is ready and owns the node, and accepts
    /// connections from then on. The error gives the reason; then the parent continues, and this
    /// process has to end. Returns a future that resolves when the parent has ended. Without a
    /// parent, it resolves at once.
    pub async fn take_over(&mut self) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>, TakeoverError> {
        let Some(mut hot_restart) = self.hot_restart.take() else { return Ok(Box::pin(ready(()))) };
        if let Err(reason) = hot_restart.take_over(self.ready.clone(), &self.supervisor).await {
            hot_restart.fail(&reason).await;
            return Err(reason);
        }
        self.proxy.open();
        self.as_parent.jobs.send_replace(true);
        Ok(Box::pin(hot_restart.serving()))
    }

    /// Why this process cannot begin a hot restart now; `None`: it can.
    pub fn obstacle(&self) -> Option<String> {
        let images = || "it has containers, whose images only one process can keep; start it again instead".to_owned();
        self.as_parent.obstacle().or_else(|| self.images.are_used().then(images))
    }

    /// Transfers the node to a child that was started with the other end of `socket`. The error
    /// gives the reason of a failure; then this process continues as before. Otherwise
    /// [`Running::drain_as_parent`] comes next. Dropping the result instead is a failure too.
    pub async fn offer(&self, socket: UnixStream, options: HotRestartOptions) -> Result<ChildLink, OfferError> {
        let HotRestartOptions { mut others, half, descriptors, patience, unchanged } = options;
        let (counting, theirs) = UnixStream::pair().map_err(OfferError::Socket)?;
        others.push((hot_restart::SOCKET.to_owned(), theirs.into()));
        let (updates, theirs) = UnixStream::pair().map_err(OfferError::Socket)?;
        others.push((hot_restart::UPDATES.to_owned(), theirs.into()));
        let until = Instant::now() + patience;
        let sockets = self.proxy.sockets().map_err(OfferError::Socket)?;
        let start = Start {
            version: hot_restart::VERSION,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            listeners: sockets.len(),
            others: others.iter().map(|(name, _)| name.clone()).collect(),
            first_instance: (self.supervisor.next_instance() / INSTANCES + 1) * INSTANCES,
            second_half: half.other() == Half::Second,
            descriptors,
            patience_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        };
        let passed: Vec<BorrowedFd<'_>> =
            sockets.iter().map(AsFd::as_fd).chain(others.iter().map(|(_, other)| other.as_fd())).collect();
        hot_restart::begin(&socket, start, &passed).map_err(OfferError::Socket)?;
        drop(passed);
        drop(others);
        let counting = ChildCounters::at(counting).map_err(OfferError::Socket)?;
        hot_restart::offer(&self.as_parent, (socket, updates), counting, (until, unchanged)).await
    }

    /// Waits for in-flight exchanges, stops the instances, and returns when all records are
    /// written.
    pub async fn drain_as_parent(self, child: ChildLink) -> Result<()> {
        let grace = self.longest_grace();
        let following = tokio::spawn(child.run());
        if let Some(pods) = &self.pods {
            pods.handed_over().await;
        }
        self.proxy.hand_over().await;
        self.supervisor.shutdown(grace).await;
        following.abort();
        let node = self.node;
        omissions::log(&node.telemetry.namespaces);
        tokio::task::spawn_blocking(move || node.telemetry.flush()).await?;
        Ok(())
    }

    /// Stops the node. It accepts no new connections, waits for in-flight exchanges, stops the
    /// instances, and writes all records.
    pub async fn stop(self) -> Result<()> {
        self.stop_unless(std::future::pending()).await
    }

    /// The same, but stops waiting for in-flight exchanges when `hurry` resolves.
    pub async fn stop_unless(self, hurry: impl Future<Output = ()>) -> Result<()> {
        if let Some(pods) = &self.pods {
            self.as_parent.jobs.send_replace(false);
            pods.leave().await;
        }
        let grace = self.longest_grace();
        tokio::select! {
            () = self.proxy.drain() => {}
            () = hurry => {}
        }
        self.supervisor.shutdown(grace).await;
        let node = self.node;
        omissions::log(&node.telemetry.namespaces);
        tokio::task::spawn_blocking(move || node.telemetry.flush()).await?;
        Ok(())
    }

    fn longest_grace(&self) -> Duration {
        let snapshot = self.node.snapshot.load();
        let revisions = snapshot.functions.values().flat_map(|entry| entry.config.all_revisions());
        let graces = revisions.map(|revision| match revision.template.run {
            leno_model::Run::Command(command) => command.grace,
            leno_model::Run::Wasm(wasm) => wasm.grace,
            leno_model::Run::Job(job) => job.process.grace,
            leno_model::Run::External(_) | leno_model::Run::Egress(_) | leno_model::Run::Pods(_) => Duration::ZERO,
        });
        graces.max().unwrap_or_default() + Duration::from_secs(5)
    }
}
