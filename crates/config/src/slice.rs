//! What leaves the configuration: a [`Slice`] is everything that one function's sidecars and its supervisor need, and nothing
//! else; a [`MeshSlice`] is what every node needs. Both are plain data; the control plane delivers them to nodes.

use crate::id::FunctionId;
use crate::revision::Revisions;
use aws_lc_rs::digest::{SHA256, digest};
use leno_policy::spec::{Cidr, KeyId, ProgramSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Everything one function's sidecars and its supervisor need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The function.
    pub id: FunctionId,
    /// Its SPIFFE ID.
    pub identity: String,
    /// Inbound program.
    pub inbound: ProgramSpec,
    /// Outbound program.
    pub outbound: ProgramSpec,
    /// Engine that a policy asks for; `None`: the mesh's.
    pub engine: Option<Engine>,
    /// Longest run of one sidecar.
    pub deadline: Duration,
    /// Protocol that the instances speak.
    pub protocol: AppProtocol,
    /// Verification keys that the programs name.
    pub keys: Vec<VerificationKey>,
    /// Key sets that the node fetches; its keys are added to `inbound.authentication[issuer].keys` and `keys`.
    pub jwks: Vec<JwksFetch>,
    /// How instances come to be.
    pub run: Run,
    /// Where the gateway lets outside traffic in.
    pub expose: Vec<Expose>,
    /// Whom it may call, and what it calls them.
    pub callees: Vec<Callee>,
    /// Requests that one instance handles at a time; 0: no limit.
    pub concurrency: u32,
    /// Requests that may wait for an instance on one node.
    pub queue: u32,
    /// How many instances there are, unless somebody else runs them.
    pub scale: Scale,
    /// User-written policies for calls to it, in order.
    pub inbound_extensions: Vec<Extension>,
    /// User-written policies for its own calls, in order.
    pub outbound_extensions: Vec<Extension>,
    /// Which of its revisions this is, and who else gets requests.
    pub revisions: Revisions,
}

impl Slice {
    /// All modules that it names, with the addresses of those that nodes fetch.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleHash, Option<&ModuleUrl>)> + Clone {
        let extensions = self.inbound_extensions.iter().chain(&self.outbound_extensions);
        let others = self.revisions.split.iter().flat_map(|split| &split.others).map(|other| &other.template.run);
        let components = std::iter::once(&self.run).chain(others).filter_map(Run::module);
        extensions.map(|extension| (extension.module, extension.url.as_ref())).chain(components)
    }
}

impl Run {
    /// The module of a component, and its address if nodes fetch it.
    pub fn module(&self) -> Option<(ModuleHash, Option<&ModuleUrl>)> {
        match self {
            Self::Wasm(wasm) => Some((wasm.module, wasm.url.as_ref())),
            Self::Command(_) | Self::External(_) | Self::Job(_) => None,
        }
    }
}

/// A user-written policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// `<policy>/extensions/<name>`.
    pub name: String,
    /// Its module, delivered by the control plane, or fetched.
    pub module: ModuleHash,
    /// Where the node fetches the module; `None`: the control plane delivers it.
    pub url: Option<ModuleUrl>,
    /// Whether it sees requests.
    pub request: bool,
    /// Whether it sees responses.
    pub response: bool,
    /// As written.
    pub configuration: Vec<u8>,
    /// Longest run.
    pub deadline: Duration,
    /// Most memory of an instance, in bytes.
    pub memory: u64,
    /// Whether a request goes on when its run fails.
    pub fail_open: bool,
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

/// A way to isolate sidecars that configuration may select. The inline engine is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// A micro-VM under KVM.
    Microvm,
    /// A WebAssembly instance.
    Wasm,
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
}

/// A public key, as raw bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationKey {
    /// Its name in programs.
    pub id: KeyId,
    /// The key.
    pub key: PublicKey,
}

/// Raw public keys, as JSON Web Keys carry them (RFC 7517, RFC 7518 section 6, RFC 8037).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PublicKey {
    /// Modulus and exponent, big-endian, without leading zeros.
    Rsa {
        /** Modulus. */
        n: Vec<u8>,
        /** Exponent. */
        e: Vec<u8>,
    },
    /// Uncompressed point `04 || x || y` on P-256.
    P256(Vec<u8>),
    /// Uncompressed point `04 || x || y` on P-384.
    P384(Vec<u8>),
    /// Uncompressed point `04 || x || y` on P-521.
    P521(Vec<u8>),
    /// 32 bytes.
    Ed25519(Vec<u8>),
}

/// A key set that the runtime fetches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JwksFetch {
    /// Index into `inbound.authentication`.
    pub issuer: usize,
    /// `http://` or `https://` address.
    pub url: String,
    /// PEM file with the roots to trust for `https`; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// How often to fetch again. An unknown `kid` fetches sooner, a failed fetch keeps the keys it had.
    pub refresh: Duration,
    /// Per fetch.
    pub timeout: Duration,
}

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

/// A process that the node starts and that serves nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory; relative programs are looked up here.
    pub directory: PathBuf,
    /// Additional environment.
    pub env: BTreeMap<String, String>,
    /// What it needs to know and the configuration does not hold.
    pub secrets: Vec<Secret>,
    /// What it may use, with all that it starts.
    pub resources: Resources,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
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

/// A process that the node starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory; relative programs are looked up here.
    pub directory: PathBuf,
    /// Additional environment. `PORT` is set by the node.
    pub env: BTreeMap<String, String>,
    /// What it needs to know and the configuration does not hold.
    pub secrets: Vec<Secret>,
    /// What one instance may use.
    pub resources: Resources,
    /// Fixed port; `None`: a free one for each instance.
    pub port: Option<u16>,
    /// When an instance may get traffic.
    pub readiness: Readiness,
    /// Longest wait for readiness, by an instance and by the requests that wait for it.
    pub startup_timeout: Duration,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
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

/// A secret of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Environment variable, or name of a file.
    pub name: String,
    /// The node's file that holds it.
    pub from: PathBuf,
    /// In the environment, or in a file of the instance.
    pub environment: bool,
}

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

/// When an instance may get traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Readiness {
    /// A TCP connection succeeds.
    Tcp,
    /// A GET of this path answers 2xx or 3xx (over the function's protocol).
    Http(String),
}

/// Where the gateway lets outside traffic in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expose {
    /// Host names without port: exact, `*.suffix`, or `*`.
    pub hosts: Vec<String>,
    /// Path prefix, by segments; `/`: everything.
    pub path: String,
}

/// Somebody that a function may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callee {
    /// The callee.
    pub id: FunctionId,
    /// The SPIFFE ID that it must present.
    pub identity: String,
    /// Host names (lower case, without port) by which the caller may name it: `name` (same namespace), `name.namespace`, `name.namespace.svc`, `name.namespace.svc.cluster.local`.
    pub hosts: Vec<String>,
}

/// What every node needs to know of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeshSlice {
    /// Trust domain of all identities.
    pub trust_domain: String,
    /// Engine for functions that do not choose; `None`: microvm where a guest runs, else wasm.
    pub engine: Option<Engine>,
    /// Calls between functions of one node go through a TLS socket too.
    pub mtls_same_node: bool,
    /// Lifetime of SVIDs; renewed at half of it.
    pub svid_lifetime: Duration,
    /// Plain-text gateway (HTTP/1.1 and h2c).
    pub gateway_http: Option<SocketAddr>,
    /// TLS gateway (ALPN h2, http/1.1).
    pub gateway_https: Option<GatewayTls>,
    /// Whose word the gateway takes for a client's address.
    pub trusted_proxies: TrustedProxies,
    /// Connections to the gateway begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// Outbound sidecars: instances send their calls here.
    pub outbound: SocketAddr,
    /// Inbound sidecars: mutual TLS from other nodes.
    pub inbound: SocketAddr,
    /// Metrics, health, explanations.
    pub admin: AdminListener,
    /// The control plane's gRPC address.
    pub control: SocketAddr,
    /// Access log.
    pub access_log: AccessLogSink,
    /// OTLP/HTTP endpoint for spans; `None`: no export.
    pub otlp: Option<String>,
    /// Under which accounts instances run.
    pub accounts: Accounts,
    /// Limits.
    pub limits: Limits,
}

impl MeshSlice {
    /// The fields of the document that a node reads once, when it starts, and in which `new` differs. All others take effect as they change.
    pub fn fixed_at_start(&self, new: &Self) -> Vec<&'static str> {
        let Self {
            trust_domain,
            engine,
            mtls_same_node: _,
            svid_lifetime: _,
            gateway_http,
            gateway_https,
            trusted_proxies: _,
            proxy_protocol: _,
            outbound,
            inbound,
            admin,
            control,
            access_log,
            otlp,
            accounts,
            limits: _,
        } = self;
        let differing = [
            ("spec.trustDomain", *trust_domain != new.trust_domain),
            // Functions that do not change are not loaded again.
            ("spec.engine", *engine != new.engine),
            ("spec.gateway.http", *gateway_http != new.gateway_http),
            ("spec.gateway.https", *gateway_https != new.gateway_https),
            ("spec.listeners.outbound", *outbound != new.outbound),
            ("spec.listeners.inbound", *inbound != new.inbound),
            ("spec.listeners.admin", *admin != new.admin),
            ("spec.listeners.control", *control != new.control),
            ("spec.accessLog", *access_log != new.access_log),
            ("spec.tracing.otlp", *otlp != new.otlp),
            ("spec.instances", *accounts != new.accounts),
        ];
        differing.into_iter().filter_map(|(field, differs)| differs.then_some(field)).collect()
    }
}

/// Where operators ask a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminListener {
    /// At a Unix socket where its account has such things.
    #[default]
    Usual,
    /// At this Unix socket.
    Socket(PathBuf),
    /// At this address, by who bears the token in this file.
    Address(SocketAddr, PathBuf),
}

/// Proxies between clients and the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrustedProxies {
    /// None: whoever connects is the client.
    #[default]
    None,
    /// Whoever connects from one of these.
    Addresses(Vec<Cidr>),
    /// So many, one or more, that every request has passed.
    Hops(u32),
}

/// Under which accounts of the operating system instances run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accounts {
    /// Each namespace has one of its own from this number on; `required`: also where the node is not root, which then refuses.
    PerNamespace {
        /// The first of their numbers.
        first: u32,
        /// A node that cannot do that does not start.
        required: bool,
    },
    /// That of the node.
    Node,
}

/// TLS of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayTls {
    /// Address.
    pub listen: SocketAddr,
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM key.
    pub key: PathBuf,
}

/// Access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogSink {
    /// JSON or text.
    pub json: bool,
    /// `None`: standard output.
    pub file: Option<PathBuf>,
}

/// Limits on what peers may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a request head.
    pub head_bytes: u32,
    /// Header fields of a request.
    pub headers: u32,
    /// From the first byte of a head to its last.
    pub head_timeout: Duration,
    /// A connection without a request.
    pub idle_timeout: Duration,
    /// An exchange, unless its function says otherwise.
    pub request_timeout: Duration,
    /// Concurrent streams of one HTTP/2 connection.
    pub h2_streams: u32,
    /// Between SIGTERM and the end of the last exchange.
    pub drain_timeout: Duration,
    /// Connections at the gateway, from instances, and from other nodes: each.
    pub connections: u32,
    /// Connections at the gateway from one address; 0: any number.
    pub connections_per_address: u32,
    /// Instances of extensions that are kept for responses.
    pub extension_instances: ExtensionInstances,
}

/// How many instances of extensions may be kept for responses at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionInstances {
    /// By the requests of one function or job.
    pub per_function: u32,
    /// By all of one namespace.
    pub per_namespace: u32,
}
