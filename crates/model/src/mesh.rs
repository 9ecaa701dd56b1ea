//! The configuration of the mesh that every node gets.

use crate::container::Images;
use crate::function::Engine;
use leno_policy::spec::Cidr;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What every node needs to know of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeshConfig {
    /// Trust domain of all identities.
    pub trust_domain: String,
    /// Engine for functions that do not choose; `None`: microvm where a guest runs, else wasm.
    pub engine: Option<Engine>,
    /// Calls between functions of one node go through a TLS socket too.
    pub mtls_same_node: bool,
    /// Lifetime of SVIDs; renewed at half of it.
    pub svid_lifetime: Duration,
    /// How long a stream between nodes may go on by the SVIDs that it began with; `None`: [`STREAM_LIFETIME`].
    pub stream_lifetime: Option<Duration>,
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
    /// Name servers for names outside of the mesh; empty: the machine's.
    pub name_servers: Vec<SocketAddr>,
    /// OTLP/HTTP endpoint for spans; `None`: no export.
    pub otlp: Option<String>,
    /// Under which accounts instances run.
    pub accounts: Accounts,
    /// Images of containers.
    pub images: Images,
    /// The Redis that keeps the counters of rate limits; `None`: nodes do.
    pub quotas: Option<RedisQuotas>,
    /// Limits.
    pub limits: Limits,
}

/// How long a stream between nodes may go on by the SVIDs that it began with, unless the mesh says otherwise: as long as a node's own certificate is valid.
pub const STREAM_LIFETIME: Duration = Duration::from_secs(86_400);

impl MeshConfig {
    /// How long a stream between nodes may go on by the SVIDs that it began with.
    pub fn stream_lifetime(&self) -> Duration {
        self.stream_lifetime.unwrap_or(STREAM_LIFETIME)
    }

    /// The fields of the document that a node reads once, when it starts, and in which `new` differs. All others take effect as they change.
    pub fn fixed_at_start(&self, new: &Self) -> Vec<&'static str> {
        let Self {
            trust_domain,
            engine,
            mtls_same_node: _,
            svid_lifetime: _,
            stream_lifetime: _,
            gateway_http,
            gateway_https,
            trusted_proxies: _,
            proxy_protocol: _,
            outbound,
            inbound,
            admin,
            control,
            access_log,
            name_servers,
            otlp,
            accounts,
            images,
            quotas,
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
            ("spec.egress.nameServers", *name_servers != new.name_servers),
            ("spec.tracing.otlp", *otlp != new.otlp),
            ("spec.instances", *accounts != new.accounts),
            ("spec.images", *images != new.images),
            ("spec.quotas", *quotas != new.quotas),
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

/// A Redis or Valkey server that keeps the counters of rate limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisQuotas {
    /// `host:port`.
    pub address: String,
    /// What is under the protocol.
    pub transport: RedisTransport,
    /// `None`: its default user.
    pub username: Option<String>,
    /// File with the password; `None`: it asks for none.
    pub password_file: Option<PathBuf>,
    /// Number of the database.
    pub database: u16,
    /// What the names of keys begin with.
    pub prefix: String,
    /// How long a request waits for an answer.
    pub timeout: Duration,
}

/// What is under the protocol of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedisTransport {
    /// TCP, on loopback.
    Plain,
    /// TLS.
    Tls {
        /// PEM file with authorities; `None`: the machine's.
        ca_file: Option<PathBuf>,
        /// The name that it must prove.
        server_name: String,
    },
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
    /// Limits on what functions and Externals may send, and on silent machines.
    #[serde(default, skip_serializing_if = "UpstreamLimits::is_usual")]
    pub upstream: UpstreamLimits,
    /// How long exchanges may go on when the instance or the node that serves them ends.
    pub drain_timeout: Duration,
    /// Connections at the gateway, from instances, and from other nodes: each.
    pub connections: u32,
    /// Connections at the gateway from one address; 0: any number.
    pub connections_per_address: u32,
    /// Instances of extensions that are kept for responses.
    pub extension_instances: ExtensionInstances,
}

/// The usual time before the kernel asks whether a silent machine is there.
pub const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Limits on what functions and Externals may send, and on silent machines. 0 stands for the usual value: older releases do not write these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamLimits {
    /// Bytes of a response head.
    pub head_bytes: u32,
    /// Header fields of a response.
    pub headers: u32,
    /// Time between PINGs while nothing arrives.
    pub keep_alive: Duration,
    /// How long a TCP connection may be silent before the kernel asks whether the other machine is there.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub tcp_keep_alive: Duration,
}

impl UpstreamLimits {
    /// Bytes of a response head.
    pub fn head_bytes(&self) -> u32 {
        if self.head_bytes == 0 { 49_152 } else { self.head_bytes }
    }

    /// Header fields of a response.
    pub fn headers(&self) -> u32 {
        if self.headers == 0 { 256 } else { self.headers }
    }

    /// Time between PINGs while nothing arrives.
    pub fn keep_alive(&self) -> Duration {
        if self.keep_alive.is_zero() { Duration::from_secs(300) } else { self.keep_alive }
    }

    /// How long a TCP connection may be silent before the kernel asks whether the other machine is there.
    pub fn tcp_keep_alive(&self) -> Duration {
        if self.tcp_keep_alive.is_zero() { TCP_KEEP_ALIVE } else { self.tcp_keep_alive }
    }

    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// How many instances of extensions may be kept for responses at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionInstances {
    /// By the requests of one function or job.
    pub per_function: u32,
    /// By all of one namespace.
    pub per_namespace: u32,
}
