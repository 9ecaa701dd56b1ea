//! One instance, from start to end.

use crate::child::{Owner, ProcessResources};
use crate::container::{ContainerSpec, ImageState, RunnableContainer};
use crate::diagnosis::{End, View};
use crate::dialer::Dialer;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::Slot;
use crate::error::AcquireError;
use crate::host::LinkEnd;
use crate::instance_id::InstanceId;
use crate::listeners::{self, PlaceMismatch};
use crate::liveness::Probes;
use crate::ports::Port;
use crate::process::Program;
use crate::processes::NotTheInstance;
use crate::readiness;
use crate::status::{InstanceStatus, Isolation};
use crate::tree::ProcessTree;
use crate::volumes::{VolumeBounds, VolumeError, VolumeLease, VolumeRequest};
use leno_jail::WritableFolder;
use leno_model::{AppProtocol, Command, InstanceState, PersistentVolume, Readiness};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// The state that the function's task wants an instance in. It only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetState {
    Run,
    /// The instance is not needed any more. It gets no new request, and its requests may take as long as the drain timeout; then SIGTERM, and SIGKILL
    /// after the grace period.
    Drain,
    /// Like `Drain`, but the drain timeout is over.
    Stop,
    /// SIGKILL at once.
    Kill,
}

/// A report of an instance to its function's task.
#[derive(Debug)]
pub(crate) enum Report {
    /// The instance is ready. The function's task publishes it before it does anything else, and
    /// then replies. So it never stops an older instance too early, nor counts a serving instance
    /// as surplus.
    Ready(Arc<Slot>, oneshot::Sender<()>),
    /// The instance gets no requests any more, or never got any, although it should. Its end follows.
    Failed(InstanceId, Failure, Diagnosis),
    /// The last process of the instance has ended. This is the last report.
    Ended(InstanceId),
}

/// A sentence for those who may see the output of the instance.
pub(crate) type Diagnosis = String;

/// Why an instance does not serve although it should.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It never became ready.
    NeverReady(AcquireError),
    /// It was ready for some time and then ended, although the supervisor did not stop it.
    Crashed { status: String, ready_for: Duration },
    /// Another process was found on its port.
    PortTaken { reason: String },
    /// It was ready for some time, and then its link to the node ended.
    LinkEnded { reason: String, ready_for: Duration },
    /// It was ready for some time, and then did not serve any more.
    Lost { reason: String, ready_for: Duration },
}

/// The settings and resources with which one instance runs.
pub(crate) struct Instance {
    pub owner: Owner,
    pub command: Command,
    /// The container that runs in place of the command's program.
    pub container: Option<Arc<ContainerSpec>>,
    /// Bounds of its namespace's volumes.
    pub volumes: VolumeBounds,
    pub protocol: AppProtocol,
    pub dispatcher: Arc<Dispatcher>,
    pub target: watch::Receiver<TargetState>,
    /// The drain timeout, which may change.
    pub drain: watch::Receiver<Duration>,
    pub reports: mpsc::UnboundedSender<Report>,
}

impl Instance {
    /// Runs the instance from start to end.
    pub(crate) async fn live(mut self) {
        match self.begin().await {
            Ok(StartingProcess { tree, dialer, address, mut resources, port, volumes }) => {
                self.serve(tree, dialer, address, &mut resources).await;
                resources.end().await;
                drop((port, volumes));
            }
            Err(Some(error)) => self.failed(Failure::NeverReady(error), Diagnosis::new()),
            // It is not wanted any more.
            Err(None) => {}
        }
        self.owner.status_store.ended(self.owner.id);
        self.owner.host.ended(&self.owner.function, self.owner.id);
        self.report(Report::Ended(self.owner.id));
    }

    fn failed(&self, failure: Failure, diagnosis: Diagnosis) {
        self.report(Report::Failed(self.owner.id, failure, diagnosis));
    }

    /// Explains a failure by the output so far. `argv` is of an instance that was never ready.
    fn diagnose(&self, end: End, lacks: &[String], in_jail: bool, argv: &[String]) -> Diagnosis {
        let Command { directory, read_only_paths, .. } = &self.command;
        let view = View::of(in_jail, self.container.is_some(), directory, read_only_paths);
        self.owner.diagnose(end, lacks, (view, argv))
    }

    /// Sending only fails if the supervisor is gone.
    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }

    /// Starts it, once its image is here. `None`: the instance is not wanted any more.
    async fn begin(&mut self) -> Result<StartingProcess, Option<AcquireError>> {
        let contained = match self.container.clone() {
            Some(container) => Some(self.image(&container).await?),
            None => None,
        };
        let volumes = self.volumes().await?;
        let started = self.start(contained.as_ref(), volumes).await;
        started.map_err(|error| Some(AcquireError::Start { reason: error.to_string() }))
    }

    /// Waits for the image, however long that takes: requests have their own time limits.
    async fn image(&mut self, container: &Arc<ContainerSpec>) -> Result<RunnableContainer, Option<AcquireError>> {
        if !matches!(container.state(), ImageState::Here(_)) {
            self.note(InstanceState::Pulling, None, SocketAddr::from((jail_address(self.owner.id), 0)));
        }
        tokio::select! {
            biased;
            contained = container.ready() => contained.map_err(|error| Some(AcquireError::Image { reason: error.to_string() })),
            () = at_least(&mut self.target, TargetState::Drain) => Err(None),
        }
    }

    /// Takes its persistent volumes, and waits for those that another instance has.
    async fn volumes(&mut self) -> Result<Vec<VolumeLease>, Option<AcquireError>> {
        let (mut leases, mut told) = (Vec::new(), false);
        for volume in self.command.persistent.clone() {
            loop {
                match self.open(&volume).await {
                    Ok(lease) => {
                        leases.push(lease);
                        break;
                    }
                    Err(VolumeError::InUse(name)) => {
                        if !std::mem::replace(&mut told, true) {
                            tracing::info!(function = %self.owner.function, "waits for the volume `{name}`, which another instance has");
                            self.note(
                                InstanceState::Starting,
                                None,
                                SocketAddr::from((jail_address(self.owner.id), 0)),
                            );
                        }
                        tokio::select! {
                            biased;
                            () = at_least(&mut self.target, TargetState::Drain) => return Err(None),
                            () = tokio::time::sleep(VOLUME_PAUSE) => {}
                        }
                    }
                    Err(error) => return Err(Some(AcquireError::Start { reason: error.to_string() })),
                }
            }
        }
        Ok(leases)
    }

    async fn open(&self, volume: &PersistentVolume) -> Result<VolumeLease, VolumeError> {
        let PersistentVolume { name, size, shared, .. } = volume.clone();
        let owner = if self.container.is_some() { 0 } else { leno_jail::USER };
        let (namespace, bounds) = (self.owner.function.namespace.clone(), self.volumes);
        let failed = |error| VolumeError::Io { name: volume.name.clone(), error };
        let Some(store) = self.owner.settings.volumes.clone() else {
            return Err(failed(std::io::Error::other("this node keeps no volumes")));
        };
        let opened = tokio::task::spawn_blocking(move || {
            let request = VolumeRequest { namespace: &namespace, name: &name, size, shared, owner, bounds };
            store.open(&request)
        });
        let lease = opened.await.map_err(|error| failed(std::io::Error::other(error)))??;
        if let Some(reason) = &lease.unbounded {
            let (function, name) = (&self.owner.function, &volume.name);
            tracing::warn!(%function, "the size of the volume `{name}` is not in force: {reason}");
        }
        Ok(lease)
    }

    async fn start(
        &mut self,
        contained: Option<&RunnableContainer>,
        volumes: Vec<VolumeLease>,
    ) -> std::io::Result<StartingProcess> {
        let port = if self.command.port.is_none() { Some(Port::take()?) } else { None };
        let number = port.as_ref().map(|port| port.number).or(self.command.port).unwrap_or_default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        let folders: Vec<WritableFolder> = volumes
            .iter()
            .zip(&self.command.persistent)
            .map(|(lease, volume)| WritableFolder { source: lease.data.clone(), path: volume.path.clone() })
            .collect();
        let program = Program { folders: &folders, ..Program::from(&self.command).contained(contained) };
        let given = vec![("PORT".to_owned(), number.to_string())];
        let child = self.owner.start(&program, given).await?;
        let address = match child.isolation {
            Isolation::Strict => SocketAddr::from((jail_address(self.owner.id), number)),
            Isolation::Process => address,
        };
        self.note(InstanceState::Starting, Some((child.tree.pid(), child.isolation)), address);
        let (tree, dialer, resources) = (child.tree, child.dialer, child.resources);
        Ok(StartingProcess { tree, dialer, address, resources, port, volumes })
    }

    fn note(&self, state: InstanceState, process: Option<(u32, Isolation)>, address: SocketAddr) {
        let mut record = self.owner.status_store.lock();
        let status = InstanceStatus {
            function: self.owner.function.clone(),
            id: self.owner.id,
            state,
            pid: process.map(|(pid, _)| pid),
            isolation: process.map(|(_, isolation)| isolation),
            address,
            restarts: record.restarts,
            since: SystemTime::now(),
            lost: None,
        };
        record.instances.insert(self.owner.id, status);
    }

    async fn serve(
        &mut self,
        tree: ProcessTree,
        dialer: Dialer,
        address: SocketAddr,
        resources: &mut ProcessResources,
    ) {
        let in_jail = matches!(tree, ProcessTree::Jail(_));
        let (link_end, probed) = match self.become_ready(&tree, &dialer, address).await {
            Start::Ready(end, probed) => (end, probed),
            Start::Cancelled => return self.finish(tree).await,
            Start::Exited => {
                let (status, end) = ended(tree, resources).await;
                let diagnosis = self.diagnose(end, resources.lacks(), in_jail, &self.command.argv);
                return self.failed(Failure::NeverReady(AcquireError::Exited { status }), diagnosis);
            }
            Start::Failed(error) => {
                let diagnosis = self.diagnose(End::Other, resources.lacks(), in_jail, &self.command.argv);
                self.failed(Failure::NeverReady(error), diagnosis);
                return self.finish(tree).await;
            }
        };
        let slot = Slot::new(&self.owner.function, self.owner.id, address, dialer);
        let probes = Probes {
            address: probed,
            readiness: &self.command.readiness,
            protocol: self.protocol,
            dialer: slot.dialer(),
            liveness: self.command.liveness(),
        };
        // Requests get the instance below, and what they observe counts from the first one on.
        if probes.can_lose() {
            slot.health.watch();
        }
        self.owner.status_store.set_state(self.owner.id, InstanceState::Ready);
        let (reply, published) = oneshot::channel();
        self.report(Report::Ready(Arc::clone(&slot), reply));
        let _ = published.await;
        let since = Instant::now();
        let broken = tokio::select! {
            biased;
            () = tree.exited() => None,
            () = at_least(&mut self.target, TargetState::Drain) => None,
            reason = slot.port_conflict() => Some(Failure::PortTaken { reason }),
            reason = probes.lost(&slot, &self.dispatcher) => Some(Failure::Lost { reason, ready_for: since.elapsed() }),
            reason = link_end => {
                // A program that ends closes its link first, and its exit status is more
                // informative.
                let ended = tokio::time::timeout(LINK_BEFORE_EXIT, tree.exited()).await.is_ok();
                (!ended).then(|| Failure::LinkEnded { reason, ready_for: since.elapsed() })
            }
        };
        self.dispatcher.start_drain(&slot);
        self.owner.host.draining(&self.owner.function, self.owner.id, address);
        if let Some(Failure::Lost { reason, ready_for }) = broken {
            self.owner.status_store.lose(&self.owner.function, self.owner.id, &reason);
            self.failed(Failure::Lost { reason, ready_for }, Diagnosis::new());
            return self.drain(tree, &slot).await;
        }
        if let Some(failure) = broken {
            self.failed(failure, Diagnosis::new());
            return self.finish(tree).await;
        }
        if *self.target.borrow() < TargetState::Drain {
            let ready_for = since.elapsed();
            let (status, end) = ended(tree, resources).await;
            let diagnosis = self.diagnose(end, resources.lacks(), in_jail, &[]);
            return self.failed(Failure::Crashed { status, ready_for }, diagnosis);
        }
        self.owner.status_store.set_state(self.owner.id, InstanceState::Draining);
        self.drain(tree, &slot).await;
    }

    /// Waits for in-flight requests, and then ends the instance.
    async fn drain(&mut self, tree: ProcessTree, slot: &Slot) {
        tokio::select! {
            () = slot.drained() => {}
            () = tree.exited() => {}
            () = drain_over(&mut self.target, &mut self.drain) => self.end_requests(slot, &tree).await,
        }
        self.finish(tree).await;
    }

    /// Has the host end in-flight requests, and waits until they are over.
    async fn end_requests(&mut self, slot: &Slot, tree: &ProcessTree) {
        self.owner.host.end_requests(&self.owner.function, self.owner.id, slot.address);
        tokio::select! {
            () = slot.drained() => {}
            () = tree.exited() => {}
            () = tokio::time::sleep(LAST_BYTES) => {}
            () = at_least(&mut self.target, TargetState::Kill) => {}
        }
    }

    async fn become_ready(&mut self, tree: &ProcessTree, dialer: &Dialer, address: SocketAddr) -> Start {
        let limit = self.command.startup_timeout;
        let mut reason = String::from("it was not asked yet");
        let note = |error: readiness::NotReady| reason = error.to_string();
        let (function, id, host) = (&self.owner.function, self.owner.id, &self.owner.host);
        let others = self.other_ports();
        let ready = async {
            if self.protocol != AppProtocol::Chain {
                let probed =
                    readiness::wait(address, &others, &self.command.readiness, self.protocol, dialer, note).await?;
                return Ok::<_, NotTheInstance>(Start::Ready(Box::pin(std::future::pending()), probed));
            }
            let socket = readiness::wait_for_link(address, dialer, note).await?;
            Ok(match host.link(function, id, socket).await {
                Ok(end) => Start::Ready(end, address),
                Err(reason) => Start::Failed(AcquireError::Start { reason: format!("its link: {reason}") }),
            })
        };
        let ready = tokio::select! {
            biased;
            () = tree.exited() => return Start::Exited,
            () = at_least(&mut self.target, TargetState::Drain) => return Start::Cancelled,
            ready = tokio::time::timeout(limit, ready) => ready,
        };
        match ready {
            Ok(Ok(start)) => start,
            Ok(Err(stranger)) => Start::Failed(AcquireError::PortTaken { reason: stranger.to_string() }),
            Err(_) => {
                let misplaced = match self.protocol {
                    AppProtocol::Chain => None,
                    _ => listeners::misplaced(tree, dialer, address.port()).await,
                };
                let reason = misplaced
                    .map_or(reason.clone(), |PlaceMismatch { place, fix }| format!("{place} ({reason}); {fix}"));
                Start::Failed(AcquireError::NotReady { limit, reason })
            }
        }
    }

    /// The ports at which a program may listen instead of the one for requests: a program with
    /// ports of other protocols, which was not told the port for requests, may have none for them.
    fn other_ports(&self) -> Vec<u16> {
        let Command { port, ports, readiness, .. } = &self.command;
        let any = port.is_none() && *readiness == Readiness::Tcp;
        ports.iter().filter(|_| any).map(|port| port.number).collect()
    }

    /// SIGTERM, then SIGKILL after the grace period.
    async fn finish(&mut self, tree: ProcessTree) {
        self.owner.status_store.set_state(self.owner.id, InstanceState::Stopping);
        let grace = if *self.target.borrow() < TargetState::Kill { self.command.grace } else { Duration::ZERO };
        tree.finish(grace, at_least(&mut self.target, TargetState::Kill)).await;
    }
}

/// The end of a program, in words, once its last lines of output are there.
async fn ended(tree: ProcessTree, resources: &mut ProcessResources) -> (String, End) {
    let status = tree.end().await;
    let end = if status.as_ref().is_ok_and(ExitStatus::success) { End::Success } else { End::Other };
    let status = resources.describe(status);
    resources.last_lines().await;
    (status, end)
}

/// If a program ends within this time after its link, its exit status is the reason.
const LINK_BEFORE_EXIT: Duration = Duration::from_millis(500);

/// Pause between two attempts to take a volume that another instance has.
const VOLUME_PAUSE: Duration = Duration::from_millis(100);

/// How long the host may take to end the requests of an instance whose drain timeout is over.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// The address that identifies an instance in a jail where addresses tell instances apart, because
/// several jails may use the same port. It is one of 127.64.0.0/10, from which external addresses
/// are excluded, and leads nowhere. The instance itself listens on 127.0.0.1.
fn jail_address(id: InstanceId) -> Ipv4Addr {
    const FIRST: u32 = 0x7f40_0000;
    const COUNT: u64 = 1 << 22;
    Ipv4Addr::from(FIRST | u32::try_from(id.number % COUNT).unwrap_or_default())
}

/// A process that is not ready yet.
struct StartingProcess {
    tree: ProcessTree,
    dialer: Dialer,
    address: SocketAddr,
    resources: ProcessResources,
    /// Reserved for the instance until it has ended; `None`: the function has a fixed port.
    port: Option<Port>,
    /// Its persistent volumes, until it has ended.
    volumes: Vec<VolumeLease>,
}

/// The outcome of a start.
enum Start {
    /// Holds a future that resolves when the instance's link has ended, so that the instance is of
    /// no use; and the address that was found ready.
    Ready(LinkEnd, SocketAddr),
    /// The instance is not wanted any more.
    Cancelled,
    Exited,
    /// The instance was not ready in time, or another process listens on its port.
    Failed(AcquireError),
}

/// Resolves when an instance that begins to drain now has used up the drain timeout, or has the
/// target [`TargetState::Stop`].
async fn drain_over(target: &mut watch::Receiver<TargetState>, drain: &mut watch::Receiver<Duration>) {
    let begin = Instant::now();
    let expired = async {
        loop {
            let limit = *drain.borrow_and_update();
            tokio::select! {
                () = sleep_until(begin.checked_add(limit)) => return,
                changed = drain.changed() => if changed.is_err() { return },
            }
        }
    };
    tokio::select! {
        () = expired => {}
        () = at_least(target, TargetState::Stop) => {}
    }
}

/// Sleeps until `time`. Without one, sleeps for ever.
pub(crate) async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Resolves when the target is `least` or comes after it. If the function's task is gone, that counts as [`TargetState::Kill`].
pub(crate) async fn at_least(target: &mut watch::Receiver<TargetState>, least: TargetState) {
    let _ = target.wait_for(|target| *target >= least).await;
}
