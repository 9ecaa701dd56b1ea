//! What instances of a function run, and how many of them.

use crate::container::Container;
use crate::egress::{Egress, EgressPort, EgressProtocol};
use crate::secret::Secret;
use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How instances come to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Run {
    /// The node starts processes.
    Command(Command),
    /// Somebody else runs them, at these addresses.
    External(Vec<SocketAddr>),
    /// The node runs a component itself, a fresh instance for each request.
    Wasm(Wasm),
    /// It is no function but a job: it runs to its end, and nobody calls it.
    Job(Job),
    /// It is no function but something outside of the mesh.
    Egress(Egress),
}

impl Run {
    /// The ports at which something else than HTTP is served.
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
            Self::External(_) | Self::Wasm(_) | Self::Job(_) => Vec::new(),
        }
    }

    /// The module of a component, and its address if nodes fetch it.
    pub fn module(&self) -> Option<(ModuleHash, Option<&ModuleUrl>)> {
        match self {
            Self::Wasm(wasm) => Some((wasm.module, wasm.url.as_ref())),
            Self::Command(_) | Self::External(_) | Self::Job(_) | Self::Egress(_) => None,
        }
    }

    /// Its container, if it is one.
    pub fn container(&self) -> Option<&Container> {
        match self {
            Self::Command(command) => command.container.as_ref(),
            Self::Job(job) => job.process.container.as_ref(),
            Self::External(_) | Self::Wasm(_) | Self::Egress(_) => None,
        }
    }

    /// The same, to say which image it is.
    pub fn container_mut(&mut self) -> Option<&mut Container> {
        match self {
            Self::Command(command) => command.container.as_mut(),
            Self::Job(job) => job.process.container.as_mut(),
            Self::External(_) | Self::Wasm(_) | Self::Egress(_) => None,
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
    /// Messages in memory that the function shares with the node, by the SDK or its C ABI. A Chain document has to name the function.
    Chain,
}

/// A process that the node starts and that serves nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Program and arguments; of a container, nothing.
    pub argv: Vec<String>,
    /// Working directory; relative programs are looked up here.
    pub directory: PathBuf,
    /// Additional environment.
    pub env: BTreeMap<String, String>,
    /// What it needs to know and the configuration does not hold.
    pub secrets: Vec<Secret>,
    /// What it may use, with all that it starts.
    pub resources: Resources,
    /// How it is kept apart.
    pub isolation: Isolation,
    /// Files and folders that its room shows besides.
    pub read_only_paths: Vec<PathBuf>,
    /// The container that runs in place of the program; `None`: the program does.
    pub container: Option<Container>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A process that the node starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments; of a container, nothing.
    pub argv: Vec<String>,
    /// Working directory; relative programs are looked up here.
    pub directory: PathBuf,
    /// Additional environment. `PORT` is set by the node.
    pub env: BTreeMap<String, String>,
    /// What it needs to know and the configuration does not hold.
    pub secrets: Vec<Secret>,
    /// What one instance may use.
    pub resources: Resources,
    /// How an instance is kept apart.
    pub isolation: Isolation,
    /// Files and folders that its room shows besides.
    pub read_only_paths: Vec<PathBuf>,
    /// Fixed port; `None`: a free one for each instance.
    pub port: Option<u16>,
    /// Ports at which it serves something else than HTTP.
    pub ports: Vec<Port>,
    /// When an instance may get traffic.
    pub readiness: Readiness,
    /// How an instance that was ready is watched; `None`: as [`Liveness`] is by default.
    pub liveness: Option<Liveness>,
    /// Longest wait for readiness, by an instance and by the requests that wait for it.
    pub startup_timeout: Duration,
    /// The container that runs in place of the program; `None`: the program does.
    pub container: Option<Container>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A port at which a program serves something else than HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its number, in the instance's room.
    pub number: u16,
    /// What the first bytes are.
    pub protocol: PortProtocol,
    /// Whether the kernel may carry the bytes of its connections from room to room.
    pub splice: bool,
}

/// What connections to a port begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    /// Whatever the program speaks.
    #[default]
    Tcp,
    /// TLS that begins in the caller and ends in the function. Its client has to name the function (SNI); what is inside, nobody in between sees.
    Tls,
}

/// How the processes of an instance are kept apart from the node and from other instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// `strict` where the node can make rooms, else `process`.
    #[default]
    Auto,
    /// In a room of its own: namespaces for users, network, files, processes, IPC and host name; no capability; a list of system calls; a
    /// read-only view of `/usr`, the working directory and `readOnlyPaths`. It is reached, and reaches others, through the mesh only. Where the node
    /// cannot make rooms, it is not started.
    Strict,
    /// A process of the machine like any other. It can be reached, and can reach anything, past the mesh; its account's other processes can read
    /// its memory and its environment, and the credential in it. It sends its calls through the proxy in `HTTP_PROXY`.
    Process,
}

impl Isolation {
    /// Whether instances are kept apart by less: `process` is the weakest, `strict` the strongest.
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

/// When an instance may get traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// A TCP connection succeeds.
    Tcp,
    /// A GET of this path answers 2xx or 3xx (over the function's protocol).
    Http(String),
}

/// How an instance that was ready is watched. The probes are those of its readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Liveness {
    /// Between probes; 0: it is not watched.
    pub interval: Duration,
    /// Failures in a row that make it lost.
    pub failures: u32,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), failures: 3 }
    }
}

impl Command {
    /// How an instance that was ready is watched.
    pub fn liveness(&self) -> Liveness {
        self.liveness.unwrap_or_default()
    }
}

/// What one instance may use; 0: as much as it gets.
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
    /// What is started.
    pub process: Process,
    /// So many run at a time, at least 1.
    pub parallelism: u32,
    /// So many must succeed, at least 1.
    pub completions: u32,
    /// So many may fail and be tried again.
    pub backoff_limit: u32,
    /// Longest time from its start to its end, all tries together; `None`: no limit.
    pub active_deadline: Option<Duration>,
    /// How long it is listed after its end; `None`: as long as it is defined.
    pub ttl: Option<Duration>,
}

/// A WASI HTTP component that the node runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wasm {
    /// The component, delivered by the control plane, or fetched.
    pub module: ModuleHash,
    /// Where the node fetches it; `None`: the control plane delivers it.
    pub url: Option<ModuleUrl>,
    /// Most memory of an instance, in bytes.
    pub memory: u64,
    /// All of its environment but the secrets.
    pub env: BTreeMap<String, String>,
    /// Secrets, all for the environment.
    pub secrets: Vec<Secret>,
    /// What an instance may still do after its answer's last byte.
    pub grace: Duration,
}

/// Stands for the address of what has none, because it is run in the node.
pub const IN_NODE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// How many instances a function has: the settings of Knative's autoscaler, checked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Instances kept running without traffic.
    pub min: u32,
    /// Instances at most.
    pub max: u32,
    /// Instances to begin with.
    pub initial: u32,
    /// Instances at least as long as there is any load, at least 1.
    pub activation: u32,
    /// What the load is counted in.
    pub metric: Metric,
    /// Load that is right for one instance, in the metric's unit.
    pub per_instance: f64,
    /// Share of that load to aim at, in `(0, 1]`.
    pub utilization: f64,
    /// Stable window.
    pub window: Duration,
    /// Panic window, no longer than the stable one.
    pub panic_window: Duration,
    /// Panic begins when the load asks for this multiple of the ready instances.
    pub panic_threshold: f64,
    /// For how long fewer instances must have been enough.
    pub scale_down_delay: Duration,
    /// How long the last instance stays when there is no load any more.
    pub last_instance: Duration,
    /// The ready instances may be multiplied by this in one step; above 1.
    pub up_rate: f64,
    /// The ready instances may be divided by this in one step; above 1.
    pub down_rate: f64,
}

impl Default for Scale {
    /// Knative's defaults, but that nothing is started before the first request.
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

/// What a function's load is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Requests at a time, those that wait for an instance included.
    #[default]
    Concurrency,
    /// Requests a second.
    Rps,
}

/// Where a module is fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModuleUrl {
    /// `http://` or `https://` address.
    pub url: String,
    /// PEM file with the roots to trust for `https`; `None`: the system's.
    pub ca_file: Option<PathBuf>,
}

/// SHA-256 of a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleHash([u8; 32]);

/// A text that is no SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits")]
pub struct BadHash;

impl ModuleHash {
    /// Of this module.
    pub fn of(module: &[u8]) -> Self {
        let hash = digest(&SHA256, module);
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
        Self(bytes)
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
