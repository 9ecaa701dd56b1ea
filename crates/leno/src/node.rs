//! `leno node` and `leno gateway`: one node of a mesh whose control plane is another process.

use crate::allocator::Starting;
use crate::component_cache;
use crate::hot_restart::{self, ChildProcess, ChildStarter, NextContainer, Program, TransferredState};
use crate::signals::Stop;
use crate::{Guards, harden, jails, notify, pulls, quantity, random, telemetry};
use anyhow::{Context, Result, anyhow, bail, ensure};
use leno_agent::{BACKOFF, JoinOptions, PlatformJoin, enrol, follow, settings};
use leno_api::alerts::AlertHistory;
use leno_api::node::{self as admin, Address, Admin, Listener, PARENT_PID, ParentListener};
use leno_api::upgrade::Pending;
use leno_identity::Membership;
use leno_model::AdminListener;
use leno_node::{
    CaptureOptions, ChildLink, Engines, Join, Listeners, Parent, PodOptions, Pods, Running, whole_machine,
};
use leno_supervisor::{Settings, VolumeStore, end_orphans};
use leno_wire::{Capacity, JoinToken};
use rustix::process::{Resource, getrlimit};
use std::convert::Infallible;
use std::fs::DirBuilder;
use std::future::{Future, pending};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Threads of the supervisor and the admin listener, unless there are fewer cores. Requests have
/// separate workers.
const MANAGEMENT_THREADS: usize = 2;

/// How long a node of Kubernetes that ends without a successor waits for open requests: until the next
/// one starts, enforced pods are closed, and permissive ones are not judged.
const MAX_ABSENCE: Duration = Duration::from_secs(5);

/// The root of cgroup2, and where it is on a machine that also has cgroup v1.
const CGROUP: &str = "/sys/fs/cgroup";
const CGROUP_BESIDE_V1: &str = "/sys/fs/cgroup/unified";
/// The programs that capture pods outlive the node here.
const PINS: &str = "/sys/fs/bpf/leno";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// `host:port` of the control plane. The node uses one of several, separated by commas, and the
    /// next one when that is away.
    #[arg(long, value_name = "HOST:PORT", env = "LENO_CONTROL", value_delimiter = ',', required = true)]
    control: Vec<String>,
    /// File with a join token (`leno token join`), for the first start. The token is valid for one
    /// join.
    #[arg(long, value_name = "FILE", env = "LENO_JOIN_TOKEN_FILE")]
    join: Option<PathBuf>,
    /// The node is one of Kubernetes: it hosts the functions of its pods, and no other instances.
    #[arg(long, requires = "token_file")]
    kubernetes: bool,
    /// Release all pods and capture none, and remove the node's files at the end: the step before Leno
    /// is removed from the cluster.
    #[arg(long, requires = "kubernetes", hide = true)]
    release: bool,
    /// File with a credential of the platform, such as the token of a service account, with which
    /// the node joins at each start, in place of a join token. It is read again when the node has to
    /// join again.
    #[arg(long, value_name = "FILE", requires = "ca", conflicts_with = "join")]
    token_file: Option<PathBuf>,
    /// File with the roots of the mesh, in PEM, by which a node with --token-file verifies the control
    /// plane.
    #[arg(long, value_name = "FILE", requires = "token_file")]
    ca: Option<PathBuf>,
    /// Name of the node, with which it joins. Without it: the machine's host name.
    #[arg(long, value_name = "NAME", alias = "node-name")]
    name: Option<String>,
    /// Folder in which the node keeps its certificate and key, so that it needs no token when it
    /// starts again, and the volumes of functions.
    #[arg(long, value_name = "FOLDER", env = "LENO_STATE", default_value = "/var/lib/leno/node")]
    state: PathBuf,
    /// Root of the cgroup2 file system, below which the programs of pods are; default:
    /// `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` beside cgroup v1.
    #[arg(long, value_name = "FOLDER", requires = "kubernetes")]
    cgroup: Option<PathBuf>,
    /// Address at which other nodes reach this one, if it differs from the one from which it joins.
    /// The join token must allow it.
    #[arg(long, value_name = "IP")]
    advertise: Option<IpAddr>,
    /// Listener for other nodes, instead of the one in the Mesh document.
    #[arg(long, value_name = "IP:PORT", value_parser = listener)]
    inbound: Option<SocketAddr>,
    /// Listener for calls of instances without a jail, instead of the one in the Mesh document.
    #[arg(long, value_name = "IP:PORT")]
    outbound: Option<SocketAddr>,
    /// Listener for operators: `unix:PATH`, or an IP address and a port on loopback; instead of the
    /// one in the Mesh document.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<Address>,
    /// File with the token for an admin listener with IP.
    #[arg(long, value_name = "FILE")]
    admin_token: Option<PathBuf>,
    /// Processors that the node offers to instances: `0.5`, or a number of thousandths; default: all
    /// of the machine's.
    #[arg(long, value_name = "CPU", value_parser = quantity::cpu)]
    offer_cpu: Option<u64>,
    /// Memory that it offers: `512Mi`, or a number of bytes; default: all of the machine's.
    #[arg(long, value_name = "SIZE", value_parser = quantity::memory)]
    offer_memory: Option<u64>,
    /// Instances that it offers to run; default: 250. 0: none.
    #[arg(long, value_name = "N")]
    offer_instances: Option<u32>,
    /// Worker threads that carry requests; default: one per core.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// HTTP listener of the gateway, instead of the one in the Mesh document.
    #[arg(long, value_name = "IP:PORT")]
    gateway_http: Option<SocketAddr>,
    /// HTTPS listener of the gateway, instead of the one in the Mesh document.
    #[arg(long, value_name = "IP:PORT")]
    gateway_https: Option<SocketAddr>,
    #[command(flatten)]
    guards: Guards,
    /// Take over from the node at the other end of standard input, which has started this process
    /// (`leno upgrade`).
    #[arg(long, hide = true)]
    take_over: bool,
}

impl Arguments {
    pub(crate) fn guards(&self) -> &Guards {
        &self.guards
    }

    fn listeners(&self, gateway: bool) -> Result<Listeners> {
        let admin = match (&self.admin, &self.admin_token) {
            (None, None) => None,
            (None, Some(_)) => bail!("--admin-token is for an IP address: say which with --admin"),
            (Some(Address::Socket(path)), None) => Some(AdminListener::Socket(path.clone())),
            (Some(Address::Socket(_)), Some(_)) => bail!("a Unix socket asks for no token; leave --admin-token out"),
            (Some(Address::Tcp(address)), Some(token)) => Some(AdminListener::Address(*address, token.clone())),
            (Some(Address::Tcp(address)), None) => {
                bail!("--admin {address} needs --admin-token FILE: whoever bears the token may ask")
            }
        };
        let (http, https) = (self.gateway_http, self.gateway_https);
        ensure!(gateway || (http, https) == (None, None), "only a gateway listens there; add --gateway");
        Ok(Listeners {
            inbound: self.inbound,
            outbound: self.outbound,
            admin,
            gateway_http: http,
            gateway_https: https,
            no_gateway: !gateway,
        })
    }

    /// The capacity that the node offers to instances; `None`: none.
    fn capacity(&self) -> Result<Option<Capacity>> {
        let all = whole_machine().context("what this machine offers is not known")?;
        let offer = Capacity {
            cpu_millis: self.offer_cpu.unwrap_or(all.cpu_millis),
            memory: self.offer_memory.unwrap_or(all.memory),
            instances: self.offer_instances.unwrap_or(all.instances),
        };
        Ok((offer.instances > 0 && !self.kubernetes).then_some(offer))
    }

    /// How the node joins with a credential of its platform; `None`: with a join token.
    fn platform_join(&self) -> Result<Option<PlatformJoin>> {
        let (Some(credential), Some(roots)) = (self.token_file.clone(), self.ca.clone()) else { return Ok(None) };
        Ok(Some(PlatformJoin { control: self.control.clone(), name: self.name()?, credential, roots }))
    }

    /// The parts of the machine for pods; `None`: the node captures none.
    fn pods(&self) -> Result<Option<PodOptions>> {
        if !self.kubernetes {
            return Ok(None);
        }
        let usual = [CGROUP, CGROUP_BESIDE_V1].map(PathBuf::from);
        let found = usual.into_iter().find(|folder| folder.join("cgroup.controllers").exists());
        let cgroup = self.cgroup.clone().or(found).unwrap_or_else(|| CGROUP.into());
        Ok(Some(PodOptions::of_machine(CaptureOptions { cgroup, pins: PINS.into() }, self.release)?))
    }

    fn name(&self) -> Result<String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let name = rustix::system::uname();
        let name = name.nodename().to_str().context("the host name is not text; give the node a --name")?;
        Ok(name.to_ascii_lowercase())
    }
}

/// Runs until a signal ends it.
pub(crate) fn run(arguments: &Arguments, gateway: bool) -> Result<ExitCode> {
    let starting = Starting::begin();
    random::gather();
    telemetry::start();
    let program = Program::of_this_process()?;
    let parent = match arguments.kubernetes {
        true => hot_restart::running(Path::new(hot_restart::SOCKET))?,
        false => arguments.take_over.then(hot_restart::parent).transpose()?,
    };
    let workers = arguments.workers.map(|count| NonZeroUsize::new(count).context("--workers must be at least 1"));
    let workers = workers.transpose()?;
    let listeners = arguments.listeners(gateway)?;
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(MANAGEMENT_THREADS.min(cores))
        .thread_name("leno-manage")
        .enable_all()
        .build()?;
    let code = runtime.block_on(node(arguments, gateway, (workers, listeners), program, parent, starting))?;
    // The remaining tasks need not complete.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code)
}

async fn node(
    arguments: &Arguments,
    gateway: bool,
    (workers, listeners): (Option<NonZeroUsize>, Listeners),
    program: Program,
    mut parent: Option<Parent>,
    starting: Starting,
) -> Result<ExitCode> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut ended = std::pin::pin!(async {
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
    });
    // Jails are made while the control plane answers.
    let half = parent.as_ref().map(Parent::half).unwrap_or_default();
    let jails = tokio::spawn(jails::open(half));
    let Some(membership) = or(ended.as_mut(), membership(arguments)).await else { return Ok(ExitCode::SUCCESS) };
    let membership = membership?;
    let settings = settings(&arguments.control, &membership, BACKOFF);
    // The authority may change while this process starts. Then the control plane accepts only the
    // newest certificate of the parent process.
    let mesh = async {
        match parent.is_some() {
            true => tokio::select! { mesh = settings => mesh, never = follow(&membership, true) => match never {} },
            false => settings.await,
        }
    };
    let Some(mesh) = or(ended.as_mut(), mesh).await else { return Ok(ExitCode::SUCCESS) };
    let (mesh, locality) = mesh?;
    let mesh = listeners.apply(mesh);
    if gateway && mesh.gateway_http.is_none() && mesh.gateway_https.is_none() {
        bail!("a gateway listens nowhere: set spec.gateway in the Mesh document, or --gateway-http");
    }
    let engines = Arc::new(Engines::default());
    tracing::info!("sandbox engine: {}", engines.describe(mesh.engine)?);

    let descriptors = match &parent {
        Some(parent) => parent.descriptors(),
        // The limit before the node raises it for itself: programs that use select(2) must not get
        // descriptors above 1023.
        None => getrlimit(Resource::Nofile).current,
    };
    let first_instance = parent.as_ref().map_or(1, Parent::first_instance);
    let inherited = parent.as_mut().map(|parent| ParentListener::from_descriptors(|name| parent.take(name)));
    let settings = Settings {
        cgroups: true,
        adopt_orphans: true,
        accounts: harden::accounts(mesh.accounts, arguments.guards.node_account)?,
        jails: jails.await?,
        first_instance,
        descriptors,
        volumes: Some(VolumeStore::new(&arguments.state.join("volumes"))),
        ..Settings::default()
    };
    let following = parent.is_some().then(|| membership.clone());
    let join = Join {
        control: arguments.control.clone(),
        membership,
        rejoin: arguments.platform_join()?,
        advertised: arguments.advertise,
        gateway,
        listeners,
        locality,
        capacity: arguments.capacity()?,
        any_caller: arguments.guards.any_caller,
        settings,
        parent,
        pods: arguments.pods().context("the pods of this machine cannot be captured")?,
        own_control: false,
    };
    let admin_listener = Listener::open(&mesh.admin, inherited.unwrap_or_default()).await?;
    let (admin, leaves_file) = (admin_listener.address()?, admin_listener.leaves_file());
    let (sole, alone) = watch::channel(false);
    let next = arguments.kubernetes.then(|| alone.clone());
    let mut starter = ChildStarter { program, admin: admin_listener.descriptors()?, half, descriptors, alone };
    let mut running = leno_node::start(mesh, workers, engines, Arc::new(component_cache::modules()), join).await?;
    let take_over = async {
        match following {
            Some(membership) => {
                tokio::select! { taken = running.take_over() => taken, never = follow(&membership, false) => match never {} }
            }
            None => running.take_over().await,
        }
    };
    match or(ended.as_mut(), take_over).await {
        Some(Ok(gone)) => {
            let pods = running.pods.clone();
            drop(tokio::spawn(async move {
                gone.await;
                pods.iter().for_each(Pods::set_alone);
                PARENT_PID.store(0, Ordering::Relaxed);
                sole.send_replace(true);
            }));
        }
        Some(Err(reason)) => {
            running.stop().await?;
            bail!("{reason}");
        }
        None => {
            running.stop().await?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    leaves_file.store(false, Ordering::Relaxed);
    let (upgrades, mut requests) = mpsc::channel(1);
    let told = Admin {
        node: running.node.clone(),
        supervisor: running.supervisor.clone(),
        control: None,
        changes: None,
        routes: None,
        configured: running.configured.clone(),
        ready: running.ready.clone(),
        pods: running.pods.clone(),
        store_fault: watch::channel(None).1,
        upgrades,
        alerts: AlertHistory::default(),
    };
    let told = Arc::new(told);
    if let Some(views) = running.take_views() {
        tokio::spawn(told.clone().answer_views(views));
    }
    let answering = admin::serve(told, admin_listener);
    tokio::spawn(pulls::show(running.supervisor.clone()));
    let addresses = running.addresses;
    for (scheme, address) in [("http", addresses.gateway_http), ("https", addresses.gateway_https)] {
        if let Some(address) = address {
            tracing::info!("gateway   {scheme}://{address}");
        }
    }
    let outbound = addresses.outbound.map(|address| format!("outbound {address}, ")).unwrap_or_default();
    tracing::info!("sidecars  {outbound}inbound {}", addresses.inbound);
    tracing::info!("admin     {admin}");
    let mut is_ready = running.ready.clone();
    let ready = async { is_ready.wait_for(|ready| *ready).await.is_ok() };
    if or(ended.as_mut(), ready).await == Some(true) {
        tracing::info!("ready");
        if !arguments.take_over {
            notify::send("READY=1");
        }
        tokio::spawn(starting.give_back());
        if let Some(alone) = next {
            let next = NextContainer::open(Path::new(hot_restart::SOCKET), (half, descriptors), alone)?;
            let (link, is_to_end) = {
                let (mut under_way, refusing) = (next.under_way(), refuse_upgrades(&mut requests));
                let mut replaced = std::pin::pin!(async {
                    tokio::select! { link = next.offer(&running) => link, never = refusing => match never {} }
                });
                match or(ended.as_mut(), replaced.as_mut()).await {
                    // The old pod of an update may be ended before the new one has taken over.
                    None => (or(async { drop(under_way.wait_for(|it| !it).await) }, replaced.as_mut()).await, true),
                    link => (link, false),
                }
            };
            if let Some(link) = link {
                tracing::info!("draining: the node of another container has the node, requests under way may end");
                tokio::join!(answering.end(), running.drain_as_parent(link)).1?;
                if !is_to_end {
                    // The kubelet would start the container again.
                    ended.await;
                }
                return Ok(ExitCode::SUCCESS);
            }
        } else if let Some((link, child)) = or(ended.as_mut(), upgraded(&mut starter, &running, &mut requests)).await {
            leaves_file.store(true, Ordering::Relaxed);
            tracing::info!("draining: child process {} has the node, requests under way may end", child.pid());
            tokio::join!(answering.end(), running.drain_as_parent(link)).1?;
            return Ok(ExitCode::SUCCESS);
        }
        // Processes of a child that failed to take over.
        end_orphans().await;
    }
    tracing::info!("ending: no new connections, requests under way may end; another signal ends them");
    let mut stop = Stop::new()?;
    let hurry = async {
        match arguments.kubernetes {
            true => drop(timeout(MAX_ABSENCE, stop.asked()).await),
            false => stop.asked().await,
        }
    };
    // Without its pins, an enforced pod that is not released would be open.
    let is_released = running.pods.as_ref().is_some_and(Pods::is_ready);
    running.stop_unless(hurry).await?;
    match (arguments.release, is_released) {
        (true, true) => leno_node::remove_files(Path::new(PINS))?,
        (true, false) => tracing::warn!("not all pods are released, so the pins and lists stay on this machine"),
        (false, _) => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Carries out requests for an upgrade. Returns when another process has the node.
async fn upgraded(
    starter: &mut ChildStarter,
    running: &Running,
    requests: &mut mpsc::Receiver<Pending>,
) -> (ChildLink, ChildProcess) {
    loop {
        let Some(Pending { request, answer }) = requests.recv().await else { return pending().await };
        match starter.upgrade(running, &request, TransferredState::default()).await {
            Ok((link, child)) => {
                let _ = answer.send(Ok(format!("process {} has taken over", child.pid())));
                return (link, child);
            }
            Err(reason) => {
                tracing::error!("hot restart: {reason}; this process goes on");
                let _ = answer.send(Err(reason));
            }
        }
    }
}

/// An address with its port. Brackets around an IPv6 address may be missing, as where a manifest of
/// Kubernetes adds a port to the address of the node.
fn listener(text: &str) -> Result<SocketAddr, String> {
    let bare = || text.rsplit_once(':').and_then(|(ip, port)| Some((ip.parse::<IpAddr>().ok()?, port.parse().ok()?)));
    let address = text.parse().ok().or_else(|| bare().map(SocketAddr::from));
    address.ok_or_else(|| "expected an IP address and a port, such as 10.0.0.1:15006 or [fd00::1]:15006".to_owned())
}

/// Refuses requests for an upgrade: the child would end with this container.
async fn refuse_upgrades(requests: &mut mpsc::Receiver<Pending>) -> Infallible {
    loop {
        let Some(Pending { answer, .. }) = requests.recv().await else { return pending().await };
        let _ = answer.send(Err(anyhow!("it is a node of Kubernetes; change the image of its DaemonSet instead")));
    }
}

/// Waits for `future`; `None`: a signal came first.
async fn or<T>(ended: impl Future<Output = ()>, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = future => Some(done),
        () = ended => None,
    }
}

/// The node's identity: the stored one, or else a new one, by the join token. One that a credential of
/// the platform proves is new at each start, and not stored.
async fn membership(arguments: &Arguments) -> Result<Membership> {
    if let Some(join) = arguments.platform_join()? {
        let membership = join.enrol(BACKOFF).await?;
        tracing::info!("joined as {}", membership.identity());
        return Ok(membership);
    }
    let folder = &arguments.state;
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let kept = match (Membership::restore(folder), &arguments.join) {
        (Ok(kept), _) => kept,
        (Err(error), Some(_)) => {
            tracing::warn!(%error, "the kept identity cannot be used; joining anew");
            None
        }
        (Err(error), None) => {
            return Err(error).context("the kept identity cannot be used; to join anew, give a --join token");
        }
    };
    if let Some(membership) = kept {
        tracing::info!("this node is {}", membership.identity());
        return Ok(membership);
    }
    let Some(path) = &arguments.join else {
        bail!("this node has no identity in {} yet: give it a --join token (`leno token join`)", folder.display());
    };
    let token = token(path)?;
    let (control, name) = (arguments.control.clone(), arguments.name()?);
    let options = JoinOptions { control, token, name, address: arguments.advertise };
    let membership = enrol(&options, BACKOFF).await?;
    membership.save(folder)?;
    tracing::info!("joined as {}", membership.identity());
    Ok(membership)
}

fn token(path: &Path) -> Result<JoinToken> {
    let text = std::fs::read_to_string(path).with_context(|| format!("the join token: {}", path.display()))?;
    text.parse().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::listener;

    #[test]
    fn brackets_of_a_listener_may_be_missing() {
        for (text, address) in [
            ("10.77.0.12:15006", "10.77.0.12:15006"),
            ("[fd77::12]:15006", "[fd77::12]:15006"),
            ("fd77::12:15006", "[fd77::12]:15006"),
        ] {
            assert_eq!(listener(text).unwrap().to_string(), address);
        }
        for text in ["fd77::12", "10.77.0.12", ":15006", "node:15006", "10.77.0.12:70000"] {
            assert!(listener(text).is_err(), "{text}");
        }
    }
}
