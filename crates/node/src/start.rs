//! Starts a node: engines, supervisor, corridor, and the reconciler that keeps them configured.

use crate::engines::Engines;
use crate::images::Images;
use crate::instances::{Hosted, InstanceHost};
use crate::kernel::KernelPolicy;
use crate::listeners::Listeners;
use crate::loader::Loader;
use crate::questions::Answerer;
use crate::quotas;
use crate::reconciler::Reconciler;
use anyhow::{Context, Result};
use leno_config::{Locality, MeshSlice};
use leno_control::node::{BACKOFF, Identities, Options};
use leno_control::{Capacity, Membership};
use leno_function::{Rooms, Settings, Supervisor};
use leno_identity::{SpiffeId, SvidStore};
use leno_proxy::Telemetry;
use leno_proxy::modules::Modules;
use leno_proxy::{Addresses, Handle, Node, NodeSnapshot};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A running node.
pub struct Running {
    /// The addresses of its listeners.
    pub addresses: Addresses,
    /// Becomes true when the configuration is in force and every identity is certified, and stays true.
    pub ready: watch::Receiver<bool>,
    /// The state that its workers share.
    pub node: Arc<Node>,
    /// The supervisor of its instances.
    pub supervisor: Supervisor,
    corridor: Handle,
}

/// How a node joins the control plane.
pub struct Join {
    /// `host:port` of the control planes' gRPC listeners. They are tried in turn.
    pub control: Vec<String>,
    /// The node's identity.
    pub membership: Membership,
    /// Where other nodes reach the inbound listener, if not at the address that it is bound to.
    pub advertised: Option<IpAddr>,
    /// Whether the node is a gateway.
    pub gateway: bool,
    /// Where it listens.
    pub listeners: Listeners,
    /// Where the node is: it prefers endpoints that are near. The same as what it was admitted with.
    pub locality: Locality,
    /// Accept an instance's credential from any process.
    pub any_caller: bool,
    /// What the node offers to instances; `None`: nothing, so the control plane's scheduler places nothing on it.
    pub capacity: Option<Capacity>,
    /// Settings of the supervisor.
    pub settings: Settings,
}

/// Starts a node and joins the control plane. The node serves when this returns, and denies everything until its functions are in force. `modules`
/// may hold modules that are compiled already.
pub async fn start(
    mesh: MeshSlice,
    workers: Option<NonZeroUsize>,
    engines: Arc<Engines>,
    modules: Arc<Modules>,
    join: Join,
) -> Result<Running> {
    let mesh = join.listeners.apply(mesh);
    let hosted = Arc::new(Hosted::default());
    let host = InstanceHost::new(join.any_caller);
    let rooms = matches!(join.settings.rooms, Rooms::Open(_));
    let images = Images::new(mesh.images.clone(), &join.settings.rooms);
    let supervisor = Supervisor::start(join.settings, host.clone());
    let svids = join.membership.svids().clone();
    let node_identity = join.membership.identity().clone();
    let gateway = join.gateway.then(|| SpiffeId::gateway(svids.bundle().trust_domain())).transpose()?;
    let own: BTreeSet<SpiffeId> = gateway.into_iter().chain([node_identity]).collect();
    let telemetry = Telemetry::start(&mesh).context("the access log or the span exporter cannot be started")?;

    let redis = mesh.quotas.clone();
    let node = Node::new(NodeSnapshot::new(mesh), hosted.clone(), svids.clone(), telemetry);
    if let Some(redis) = redis {
        quotas::start(redis, &node.ledger)?;
    }
    node.endpoints.set_locality(join.locality);
    let options = leno_proxy::Options { workers, ..leno_proxy::Options::default() };
    tracing::info!("connections: {} at most, by the limit on file descriptors", options.connections);
    let corridor = leno_proxy::serve(&node, options)?;
    let addresses = corridor.addresses;
    let kernel = if rooms { KernelPolicy::open(supervisor.control_group()) } else { None };
    if let Some(kernel) = &kernel {
        node.set_kernel(kernel.clone());
        kernel.watch(Arc::downgrade(&node))?;
    }
    host.attach(&node, addresses.outbound, corridor.interceptor.clone(), kernel);

    let inbound = advertised(addresses.inbound, join.advertised);
    let options = Options { control: join.control, membership: join.membership, inbound, backoff: BACKOFF };
    let (agent, updates) = leno_control::node::join(options)?;
    let questions = agent.questions();
    let (wanted, wanted_by) = watch::channel(own.clone());
    let (applied, is_applied) = watch::channel(false);
    Identities::new(agent.clone(), svids.clone()).start(wanted_by.clone())?;
    let reconciler = Reconciler {
        agent,
        node: node.clone(),
        loader: Loader { engines: engines.clone(), modules, node: node.clone() },
        supervisor: supervisor.clone(),
        hosted,
        images,
        capacity: join.capacity,
        wanted,
        own,
        gateway: join.gateway,
        listeners: join.listeners,
        applied,
    };
    let answerer = Answerer { engines, node: node.clone(), supervisor: supervisor.clone() };
    questions.map(|questions| tokio::spawn(answerer.run(questions)));
    tokio::spawn(reconciler.run(updates));

    let (ready, is_ready) = watch::channel(false);
    tokio::spawn(watch_readiness(is_applied, wanted_by, svids, ready));
    Ok(Running { addresses, ready: is_ready, node, supervisor, corridor })
}

/// Where other nodes reach the inbound listener; `None`: it is bound to all addresses, and nobody has said which one of them.
fn advertised(bound: SocketAddr, address: Option<IpAddr>) -> Option<SocketAddr> {
    let address = address.unwrap_or(bound.ip());
    (!address.is_unspecified()).then(|| SocketAddr::new(address, bound.port()))
}

/// Sets `ready` when functions are in force and each identity has a certificate. It stays true: what comes later is a change, not a start.
async fn watch_readiness(
    mut applied: watch::Receiver<bool>,
    wanted: watch::Receiver<BTreeSet<SpiffeId>>,
    svids: Arc<SvidStore>,
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
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Running {
    /// Stops the node. It accepts no new connections, in-flight exchanges end, then the instances are stopped, and everything recorded is written.
    pub async fn stop(self) -> Result<()> {
        let grace = self.longest_grace();
        self.corridor.drain().await;
        self.supervisor.shutdown(grace).await;
        let node = self.node;
        tokio::task::spawn_blocking(move || node.telemetry.flush()).await?;
        Ok(())
    }

    fn longest_grace(&self) -> Duration {
        let snapshot = self.node.snapshot.load();
        let revisions = snapshot.functions.values().flat_map(|entry| entry.slice.all_revisions());
        let graces = revisions.map(|revision| match revision.template.run {
            leno_config::slice::Run::Command(command) => command.grace,
            leno_config::slice::Run::Wasm(wasm) => wasm.grace,
            leno_config::slice::Run::Job(job) => job.process.grace,
            leno_config::slice::Run::External(_) | leno_config::slice::Run::Egress(_) => Duration::ZERO,
        });
        graces.max().unwrap_or_default() + Duration::from_secs(5)
    }
}
