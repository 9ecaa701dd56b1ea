//! Input of the supervisor: specs and settings.

use crate::accounts::Accounts;
use crate::container::ContainerSpec;
use crate::volumes::{VolumeBounds, VolumeStore};
use backon::ExponentialBuilder;
use leno_files::{FileAccess, HostAccess};
use leno_model::FunctionId;
use leno_model::revision::{Revision, Template};
use leno_model::{AppProtocol, Command, FunctionConfig, Isolation, Run, Scale, StoredSecrets};
use leno_namespaces::Namespaces;
use std::sync::Arc;
use std::time::Duration;

/// One function, or one of its revisions, as the supervisor runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionSpec {
    /// Name of the function.
    pub id: FunctionId,
    /// Number of the revision; 0: revisions are not numbered.
    pub revision: u32,
    /// The kind of function: processes to start, external addresses, or a component, whose requests
    /// are only counted here.
    pub run: Run,
    /// For [`Run::Command`]: the instances are containers; `None`: they are processes of the machine.
    pub container: Option<Arc<ContainerSpec>>,
    /// The files that its document may name.
    pub files: FileAccess,
    /// The folders of the node that its volumes may be.
    pub host_access: HostAccess,
    /// Bounds of the volumes that its namespace has on this node.
    pub volumes: VolumeBounds,
    /// Protocol of the instances. Readiness probes over HTTP use it.
    pub protocol: AppProtocol,
    /// With [`AppProtocol::Chain`]: the memory that an instance has from its start to its end.
    pub chain: Option<ChainMemory>,
    /// Requests that one instance handles at a time; 0: no limit.
    pub concurrency: u32,
    /// How many requests may wait for an instance.
    pub queue: u32,
    /// Settings of the autoscaler.
    pub scale: Scale,
}

/// Memory of an instance of a chain. A change needs a new instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainMemory {
    /// The chain whose instances may read it.
    pub chain: String,
    /// For each direction, in bytes.
    pub bytes: u64,
    /// Whether the kernel is asked for large pages.
    pub large_pages: bool,
}

impl From<&FunctionConfig> for FunctionSpec {
    fn from(config: &FunctionConfig) -> Self {
        Self {
            id: config.id.clone(),
            revision: config.revisions.number,
            run: config.run.clone(),
            container: None,
            files: config.bounds.file_access(),
            host_access: config.bounds.host_access(),
            volumes: VolumeBounds { count: config.bounds.volumes(), bytes: config.bounds.volume_bytes() },
            protocol: config.protocol,
            chain: chain(config, config.protocol),
            concurrency: config.concurrency,
            queue: config.queue,
            scale: config.scale,
        }
    }
}

impl FunctionSpec {
    /// The specs of all revisions that get requests, the function configuration's own first.
    pub fn all(config: &FunctionConfig) -> Vec<Self> {
        let of = |Revision { number, template: Template { run, protocol, concurrency, scale } }| {
            let chain = chain(config, protocol);
            Self { revision: number, run, protocol, chain, concurrency, scale, ..Self::from(config) }
        };
        config.all_revisions().map(of).collect()
    }

    pub(crate) fn command(&self) -> Option<&Command> {
        match &self.run {
            Run::Command(command) => Some(command),
            Run::External(_) | Run::Wasm(_) | Run::Job(_) | Run::Egress(_) | Run::Pods(_) => None,
        }
    }

    /// Whether a running instance of `self` can serve as one of `other`. Scale, timeouts and
    /// concurrency are applied to running instances. Changes of other values, which a process gets
    /// at its start, need a new process.
    pub(crate) fn same_process(&self, other: &Self) -> bool {
        match (&self.run, &other.run) {
            (Run::Command(a), Run::Command(b)) => {
                a.argv == b.argv
                    && a.directory == b.directory
                    && a.env == b.env
                    && a.secrets == b.secrets
                    && a.resources == b.resources
                    && a.isolation == b.isolation
                    && a.read_only_paths == b.read_only_paths
                    && a.volumes == b.volumes
                    && a.persistent == b.persistent
                    && a.port == b.port
                    && self.container == other.container
                    && self.protocol == other.protocol
                    && self.chain == other.chain
            }
            (Run::External(_), Run::External(_)) | (Run::Wasm(_), Run::Wasm(_)) => true,
            _ => false,
        }
    }

    /// What other instances cannot have while one of its instances runs.
    pub(crate) fn exclusion(&self, jails: &JailSupport) -> Exclusion {
        let volume = self.command().and_then(Command::sole_volume).is_some();
        Exclusion { port: self.machine_port(jails), volume }
    }

    /// The fixed port, if its instances have no networks of their own: then only one instance of
    /// the machine can have it.
    fn machine_port(&self, jails: &JailSupport) -> Option<u16> {
        let command = self.command()?;
        let has_jail = self.container.is_some()
            || command.isolation != Isolation::Process && matches!(jails, JailSupport::Available(_));
        command.port.filter(|_| !has_jail)
    }

    /// The longest time that a request waits for an instance.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.command().map_or(EXTERNAL_WAIT, |command| command.startup_timeout.saturating_add(WAIT_MARGIN))
    }
}

/// What one instance of a function at a time can have on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exclusion {
    /// A fixed port of the machine.
    pub port: Option<u16>,
    /// A volume that is not shared.
    pub volume: bool,
}

impl Exclusion {
    pub(crate) fn is_any(self) -> bool {
        self.port.is_some() || self.volume
    }

    /// Whether the two cannot run at a time.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        self.port.is_some() && self.port == other.port || self.volume && other.volume
    }
}

fn chain(config: &FunctionConfig, protocol: AppProtocol) -> Option<ChainMemory> {
    let chain = config.chain.as_ref().filter(|_| protocol == AppProtocol::Chain)?;
    Some(ChainMemory { chain: chain.chain.clone(), bytes: chain.memory, large_pages: chain.large_pages })
}

/// External instances and components are not started, so a request only waits while they are busy.
const EXTERNAL_WAIT: Duration = Duration::from_secs(10);

/// An instance's start fails this long before waiting requests give up, so that their error can
/// give the reason.
const WAIT_MARGIN: Duration = Duration::from_millis(100);

/// Longest pause between two starts, before jitter.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The isolation of instances whose `isolation` is not `process`.
#[derive(Clone, Debug)]
pub enum JailSupport {
    /// In jails.
    Available(leno_jail::Jails),
    /// There are no jails here, for this reason. Instances that require one are not started.
    Unavailable(String),
}

/// The settings of a supervisor, for all functions.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pauses between starts after failures.
    pub backoff: ExponentialBuilder,
    /// An instance that was ready for this long has recovered: its next failure counts as the first one.
    pub recovered_after: Duration,
    /// Longest pause between starts through which requests still wait. A longer pause refuses them ([`crate::AcquireError::Backoff`]).
    pub max_backoff_wait: Duration,
    /// How many requests of all functions together may wait for instances on this node.
    pub buffer: usize,
    /// Whether this process moves into its own control group, so that instances can have limits,
    /// and the next node can end the instances that this one leaves behind.
    pub cgroups: bool,
    /// Whether processes that lose their parents become children of this process, which ends them with their instance. Then all children of this
    /// process must be instances.
    pub adopt_orphans: bool,
    /// The accounts under which instances run.
    pub accounts: Accounts,
    /// The jails of this node.
    pub jails: JailSupport,
    /// Number of the first instance. Another process of this node may have instances with lower ones.
    pub first_instance: u64,
    /// Soft limit of instances on file descriptors; `None`: the node's own, which the node may have raised for its connections.
    pub descriptors: Option<u64>,
    /// The drain timeout until [`crate::Supervisor::set_drain_timeout`] changes it: how long the requests of an instance that is not needed any more may
    /// go on before SIGTERM.
    pub drain: Duration,
    /// Bytes of output that are kept of each instance.
    pub kept_output: usize,
    /// Longest line of output, in bytes. A longer line is cut and marked.
    pub line_bytes: usize,
    /// The bounds of namespaces on this node.
    pub namespaces: Arc<Namespaces>,
    /// The stored secrets that the control plane has delivered.
    pub secrets: StoredSecrets,
    /// The persistent volumes; `None`: this node keeps none.
    pub volumes: Option<VolumeStore>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Jitter adds up to the same time again, so that functions that failed together do not come back together.
            backoff: ExponentialBuilder::new()
                .with_min_delay(Duration::from_millis(50))
                .with_max_delay(LONGEST_PAUSE)
                .with_factor(2.0)
                .with_jitter()
                .without_max_times(),
            recovered_after: Duration::from_secs(10),
            max_backoff_wait: Duration::from_secs(1),
            buffer: 16_384,
            cgroups: false,
            adopt_orphans: false,
            accounts: Accounts::node(),
            jails: JailSupport::Unavailable("nobody asked for any".to_owned()),
            first_instance: 1,
            descriptors: None,
            drain: Duration::from_secs(60),
            kept_output: 64 << 10,
            line_bytes: 8192,
            namespaces: Arc::default(),
            secrets: StoredSecrets::default(),
            volumes: None,
        }
    }
}
