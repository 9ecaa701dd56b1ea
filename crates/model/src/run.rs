//! How a function or job runs: processes, components, external addresses.

use crate::container::{Container, PersistentVolume, Volume};
use crate::egress::{Egress, EgressPort, EgressProtocol};
use crate::function_id::FunctionId;
use crate::pod::Pods;
use crate::secret::{Secret, SecretSource};
use crate::spiffe::{SpiffeId, TrustDomain};
use crate::stored_secret::StoredKey;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How a function or job runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Run {
    /// The node starts processes.
    Command(Command),
    /// Instances at these addresses, which the node does not start.
    External(Vec<SocketAddr>),
    /// The node runs a component, with a fresh instance for each request.
    Wasm(Wasm),
    /// A job: it runs to its end, and cannot be called.
    Job(Job),
    /// An external service.
    Egress(Egress),
    /// Pods of Kubernetes, which the node does not start.
    Pods(Pods),
}

impl Run {
    /// The stored secrets that it names.
    pub fn stored_keys(&self) -> Vec<&StoredKey> {
        let secrets = match self {
            Self::Command(command) => &command.secrets[..],
            Self::Job(job) => &job.process.secrets[..],
            Self::Wasm(wasm) => &wasm.secrets[..],
            Self::Egress(egress) => return egress.secret_sources().filter_map(SecretSource::stored).collect(),
            Self::External(_) | Self::Pods(_) => &[],
        };
        secrets.iter().filter_map(|secret| secret.from.stored()).collect()
    }

    /// The identity of a function that runs so: that of its pods' service account, or its own.
    pub fn identity(&self, trust_domain: &TrustDomain, id: &FunctionId) -> SpiffeId {
        let own = || SpiffeId::of_function(trust_domain, id);
        match self {
            Self::Pods(pods) => pods.identity(trust_domain, &id.namespace).unwrap_or_else(|_| own()),
            _ => own(),
        }
    }

    /// The only node that has its volumes; `None`: any node.
    pub fn node(&self) -> Option<&str> {
        let persistent = match self {
            Self::Command(command) => &command.persistent[..],
            Self::External(_) | Self::Wasm(_) | Self::Job(_) | Self::Egress(_) | Self::Pods(_) => &[],
        };
        let of_host = self.volumes().filter_map(|volume| volume.host.as_ref()?.node.as_deref());
        persistent.iter().filter_map(|volume| volume.node.as_deref()).chain(of_host).next()
    }

    /// The folders in memory, and of the node, that its program has.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        let (volumes, container) = match self {
            Self::Command(command) => (&command.volumes[..], command.container.as_ref()),
            Self::Job(job) => (&job.process.volumes[..], job.process.container.as_ref()),
            Self::External(_) | Self::Wasm(_) | Self::Egress(_) | Self::Pods(_) => (&[][..], None),
        };
        volumes.iter().chain(container.into_iter().flat_map(|container| &container.volumes))
    }

    /// Ports with protocols other than HTTP.
    pub fn other_ports(&self) -> Vec<Port> {
        let outside = |port: &EgressPort| {
            let protocol = match port.protocol {
                EgressProtocol::Tcp => PortProtocol::Tcp,
                EgressProtocol::Tls => PortProtocol::Tls,
                EgressProtocol::Http | EgressProtocol::Https => return None,
            };
            Some(Port { number: port.number, protocol, splice: false })
        };
        match self {
            Self::Command(command) => command.ports.clone(),
            Self::Egress(egress) => egress.ports.iter().filter_map(outside).collect(),
            Self::External(_) | Self::Wasm(_) | Self::Job(_) | Self::Pods(_) => Vec::new(),
        }
    }

    /// The component's module, and its address if nodes fetch it.
    pub fn module(&self) -> Option<(ModuleHash, Option<&ModuleUrl>)> {
        match self {
            Self::Wasm(wasm) => Some((wasm.module, wasm.url.as_ref())),
            Self::Command(_) | Self::External(_) | Self::Job(_) | Self::Egress(_) | Self::Pods(_) => None,
        }
    }

    /// The container, if there is one.
    pub fn container(&self) -> Option<&Container> {
        match self {
            Self::Command(command) => command.container.as_ref(),
            Self::Job(job) => job.process.container.as_ref(),
            Self::External(_) | Self::Wasm(_) | Self::Egress(_) | Self::Pods(_) => None,
        }
    }

    /// The container, to set its image's digest.
    pub fn container_mut(&mut self) -> Option<&mut Container> {
        match self {
            Self::Command(command) => command.container.as_mut(),
            Self::Job(job) => job.process.container.as_mut(),
            Self::External(_) | Self::Wasm(_) | Self::Egress(_) | Self::Pods(_) => None,
        }
    }
}

/// Protocol that a function's instances speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AppProtocol {
    /// HTTP/1.1, with WebSocket upgrades.
    #[default]
    Http1,
    /// HTTP/2 without TLS, by prior knowledge.
    H2c,
    /// gRPC over HTTP/2 without TLS.
    Grpc,
    /// Messages in memory that the function shares with the node, by the SDK or its C ABI. A Chain
    /// document has to name the function.
    Chain,
}

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Program and arguments; empty with a container.
    pub argv: Vec<String>,
    /// Working directory. A relative program path starts here.
    pub directory: PathBuf,
    /// Additional environment.
    pub env: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Vec<Secret>,
    /// Resource limits of the process and its children.
    pub resources: Resources,
    /// Isolation.
    pub isolation: Isolation,
    /// Additional files and folders in the jail.
    pub read_only_paths: Vec<PathBuf>,
    /// Folders in memory. A container has its own list.
    pub volumes: Vec<Volume>,
    /// The container that runs in place of the program; `None`: the program runs.
    pub container: Option<Container>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// The processes of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments; empty with a container.
    pub argv: Vec<String>,
    /// Working directory. A relative program path starts here.
    pub directory: PathBuf,
    /// Additional environment. The node sets `PORT`.
    pub env: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Vec<Secret>,
    /// Resource limits of an instance.
    pub resources: Resources,
    /// Isolation of an instance.
    pub isolation: Isolation,
    /// Additional files and folders in the jail.
    pub read_only_paths: Vec<PathBuf>,
    /// Folders in memory. A container has its own list.
    pub volumes: Vec<Volume>,
    /// Folders that outlive instances, also of a container.
    pub persistent: Vec<PersistentVolume>,
    /// Fixed port; `None`: a free port for each instance.
    pub port: Option<u16>,
    /// Ports with protocols other than HTTP.
    pub ports: Vec<Port>,
    /// Readiness probe.
    pub readiness: Readiness,
    /// Liveness probe; `None`: the default of [`Liveness`].
    pub liveness: Option<Liveness>,
    /// How long an instance, and requests that wait for it, wait for readiness.
    pub startup_timeout: Duration,
    /// The container that runs in place of the program; `None`: the program runs.
    pub container: Option<Container>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A port with a protocol other than HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Number, in the instance's network namespace.
    pub number: u16,
    /// Protocol.
    pub protocol: PortProtocol,
    /// The kernel may splice its connections between jails.
    pub splice: bool,
}

/// What connections to a port begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    /// Any protocol.
    #[default]
    Tcp,
    /// TLS that begins in the caller and ends in the function. Its client has to name the function
    /// (SNI); nodes do not see its content.
    Tls,
}

/// How the processes of an instance are kept apart from the node and from other instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// `strict` where the node can make jails, else `process`.
    #[default]
    Auto,
    /// In a separate jail: namespaces for users, network, files, processes, IPC and host name; no
    /// capability; a list of system calls; a read-only view of `/usr`, the working directory and
    /// `readOnlyPaths`. It is reached, and reaches others, through the mesh only. Where the node
    /// cannot make jails, it is not started.
    Strict,
    /// A process of the machine like any other. It can be reached, and can reach anything, past the
    /// mesh; its account's other processes can read its memory and its environment, and the
    /// credential in it. It sends its calls through the proxy in `HTTP_PROXY`.
    Process,
}

impl Isolation {
    /// Whether this isolation is weaker: `process` is the weakest, `strict` the strongest.
    pub fn is_weaker_than(self, other: Self) -> bool {
        let strength = |isolation| match isolation {
            Self::Process => 0,
            Self::Auto => 1,
            Self::Strict => 2,
        };
        strength(self) < strength(other)
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Strict => "strict",
            Self::Process => "process",
        })
    }
}

/// A readiness probe. A ready instance gets traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// A TCP connection succeeds.
    Tcp,
    /// A GET of this path answers 2xx or 3xx (over the function's protocol).
    Http(String),
}

/// A liveness probe of an instance that was ready. It probes as [`Readiness`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Liveness {
    /// Interval of probes; 0: none.
    pub interval: Duration,
    /// Consecutive failures after which the instance is lost.
    pub failures: u32,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), failures: 3 }
    }
}

impl Command {
    /// A persistent volume that one instance may have at a time.
    pub fn sole_volume(&self) -> Option<&PersistentVolume> {
        self.persistent.iter().find(|volume| !volume.shared)
    }

    /// The liveness probe.
    pub fn liveness(&self) -> Liveness {
        self.liveness.unwrap_or_default()
    }
}

/// Resource limits; 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Bytes of memory.
    pub memory: u64,
    /// Thousandths of a core.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub pids: u32,
}

impl Resources {
    /// Whether there is any limit.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// A command that runs to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The process.
    pub process: Process,
    /// Concurrent processes, at least 1.
    pub parallelism: u32,
    /// Processes that must succeed, at least 1.
    pub completions: u32,
    /// Failed processes that the node may retry.
    pub backoff_limit: u32,
    /// Longest time from the job's start to its end, with all retries; `None`: no limit.
    pub active_deadline: Option<Duration>,
    /// How long listings show the job after its end; `None`: while it is defined.
    pub ttl: Option<Duration>,
    /// How many times it was run again by hand. Each one is another run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reruns: u32,
}

impl Job {
    /// The number of the run, from 1.
    pub fn attempt(&self) -> u32 {
        self.reruns.saturating_add(1)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A WASI HTTP component that the node runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wasm {
    /// The component.
    pub module: ModuleHash,
    /// The address from which the node fetches it; `None`: the control plane delivers it.
    pub url: Option<ModuleUrl>,
    /// Most memory of an instance, in bytes.
    pub memory: u64,
    /// The whole environment, without the secrets.
    pub env: BTreeMap<String, String>,
    /// Secrets for the environment.
    pub secrets: Vec<Secret>,
    /// How long an instance can run after the last byte of its response.
    pub grace: Duration,
}

/// The address of instances that run in the node, and have none.
pub const IN_NODE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// The number of a function's instances: the settings of Knative's autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Instances without traffic.
    pub min: u32,
    /// Most instances.
    pub max: u32,
    /// Instances at first.
    pub initial: u32,
    /// Fewest instances while there is load, at least 1.
    pub activation: u32,
    /// Unit of load.
    pub metric: Metric,
    /// Target load of one instance, in the metric's unit.
    pub per_instance: f64,
    /// Share of that load to aim at, in `(0, 1]`.
    pub utilization: f64,
    /// Stable window.
    pub window: Duration,
    /// Panic window, no longer than the stable one.
    pub panic_window: Duration,
    /// The load, as a multiple of the ready instances, at which panic mode begins.
    pub panic_threshold: f64,
    /// How long the load must have needed fewer instances before some stop.
    pub scale_down_delay: Duration,
    /// How long the last instance stays without load.
    pub last_instance: Duration,
    /// Most growth in one step, as a factor of the ready instances; above 1.
    pub up_rate: f64,
    /// Most shrinking in one step, as a divisor of the ready instances; above 1.
    pub down_rate: f64,
}

impl Default for Scale {
    /// Knative's defaults, except that no instance starts before the first request.
    fn default() -> Self {
        Self {
            min: 0,
            max: u32::MAX,
            initial: 0,
            activation: 1,
            metric: Metric::Concurrency,
            per_instance: 100.0,
            utilization: 0.7,
            window: Duration::from_secs(60),
            panic_window: Duration::from_secs(6),
            panic_threshold: 2.0,
            scale_down_delay: Duration::ZERO,
            last_instance: Duration::from_secs(30),
            up_rate: 1000.0,
            down_rate: 2.0,
        }
    }
}

/// Unit of a function's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Requests at a time, those that wait for an instance included.
    #[default]
    Concurrency,
    /// Requests a second.
    Rps,
}

/// The address of a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModuleUrl {
    /// `http://` or `https://` address.
    pub url: String,
    /// PEM file with trusted roots for `https`; `None`: `ca`, or else the system's.
    pub ca_file: Option<PathBuf>,
    /// Trusted roots for `https`, in PEM; empty: those of the file, or else the system's.
    pub ca: String,
}

/// SHA-256 of a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleHash([u8; 32]);

/// A text is not a SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits")]
pub struct BadHash;

impl From<[u8; 32]> for ModuleHash {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl FromStr for ModuleHash {
    type Err = BadHash;

    fn from_str(text: &str) -> Result<Self, BadHash> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadHash);
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| BadHash)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| BadHash)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ModuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ModuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
