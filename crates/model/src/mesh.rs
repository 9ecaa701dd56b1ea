//! The configuration of the mesh that every node gets.

use crate::container::Images;
use crate::function::Engine;
use crate::spiffe::TrustDomain;
use leno_policy::spec::Cidr;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The configuration of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeshConfig {
    /// Trust domain of all identities.
    pub trust_domain: TrustDomain,
    /// Default engine; `None`: microvm where a guest runs, else wasm.
    pub engine: Option<Engine>,
    /// Calls between functions of one node also use TLS.
    pub mtls_same_node: bool,
    /// Lifetime of SVIDs. Nodes renew them at half of it.
    pub svid_lifetime: Duration,
    /// How long a stream between nodes can stay open after its SVIDs expire; `None`:
    /// [`STREAM_LIFETIME`].
    pub stream_lifetime: Option<Duration>,
    /// Plain-text gateway (HTTP/1.1 and h2c).
    pub gateway_http: Option<SocketAddr>,
    /// TLS gateway (ALPN h2, http/1.1).
    pub gateway_https: Option<GatewayTls>,
    /// Ports that Gateway documents may open, at the address of the gateway.
    pub gateway_ports: Vec<PortRange>,
    /// Port of HTTPS to which the gateway redirects plain requests; `None`: it serves them.
    pub https_redirect: Option<u16>,
    /// Proxies whose client address the gateway trusts.
    pub trusted_proxies: TrustedProxies,
    /// Connections to the gateway begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Outbound listener, for calls of instances.
    pub outbound: SocketAddr,
    /// Inbound listener, for mutual TLS from other nodes.
    pub inbound: SocketAddr,
    /// Listener for metrics, health and explanations.
    pub admin: AdminListener,
    /// The control plane's gRPC address.
    pub control: SocketAddr,
    /// Access log.
    pub access_log: AccessLogSink,
    /// Name servers for external names; empty: the machine's.
    pub name_servers: Vec<SocketAddr>,
    /// OTLP/HTTP endpoint for spans; `None`: no export.
    pub otlp: Option<String>,
    /// Operating system accounts of instances.
    pub accounts: Accounts,
    /// Image store and registries.
    pub images: Images,
    /// Redis with the counters of rate limits; `None`: nodes keep them.
    pub quotas: Option<RedisQuotas>,
    /// Limits.
    pub limits: Limits,
}

/// Default of [`MeshConfig::stream_lifetime`]: the validity of a node's own certificate.
pub const STREAM_LIFETIME: Duration = Duration::from_secs(86_400);

impl MeshConfig {
    /// How long a stream between nodes can stay open after its SVIDs expire.
    pub fn stream_lifetime(&self) -> Duration {
        self.stream_lifetime.unwrap_or(STREAM_LIFETIME)
    }

    /// The address at which gateways open the ports of Gateway documents; `None`: there is no
    /// gateway.
    pub fn gateway_ip(&self) -> Option<IpAddr> {
        let https = self.gateway_https.as_ref().map(|https| https.listen);
        self.gateway_http.or(https).map(|address| address.ip())
    }

    /// Whether Gateway documents may open a port.
    pub fn may_open(&self, port: u16) -> bool {
        self.gateway_ports.iter().any(|range| range.contains(port))
    }

    /// The document's fields in which `new` differs and that a node reads only at its start. A
    /// change of any other field takes effect at once.
    pub fn fixed_at_start(&self, new: &Self) -> Vec<&'static str> {
        let Self {
            trust_domain,
            engine,
            mtls_same_node: _,
            svid_lifetime: _,
            stream_lifetime: _,
            gateway_http,
            gateway_https,
            gateway_ports: _,
            https_redirect: _,
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
            // A node does not load unchanged functions again.
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

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl PortRange {
    /// Whether a port is in the range.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// The admin listener of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminListener {
    /// A Unix socket in the usual folder of the node's account.
    #[default]
    Usual,
    /// This Unix socket.
    Socket(PathBuf),
    /// This address. Clients must present the token in this file.
    Address(SocketAddr, PathBuf),
}

/// A Redis or Valkey server with the counters of rate limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisQuotas {
    /// `host:port`.
    pub address: String,
    /// Transport.
    pub transport: RedisTransport,
    /// User; `None`: the server's default user.
    pub username: Option<String>,
    /// File with the password; `None`: no password.
    pub password_file: Option<PathBuf>,
    /// Database number.
    pub database: u16,
    /// Prefix of all keys.
    pub prefix: String,
    /// Timeout of a query.
    pub timeout: Duration,
}

/// Transport of a Redis connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RedisTransport {
    /// TCP, on loopback.
    Plain,
    /// TLS.
    Tls {
        /// PEM file with trusted roots; `None`: the machine's.
        ca_file: Option<PathBuf>,
        /// The name that the server must prove.
        server_name: String,
    },
}

/// Trusted proxies between clients and the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrustedProxies {
    /// None: the peer of a connection is the client.
    #[default]
    None,
    /// Peers with one of these addresses.
    Addresses(Vec<Cidr>),
    /// The number of proxies, at least one, that every request passes.
    Hops(u32),
}

/// Operating system accounts of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Accounts {
    /// Each namespace has its own account.
    PerNamespace {
        /// The lowest user ID.
        first: u32,
        /// A node without the permission to do so (not root) does not start.
        required: bool,
    },
    /// The node's account.
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
    /// Certificates for clients that ask for one of their names.
    pub further: Vec<CertificateFiles>,
}

impl GatewayTls {
    /// The files of all certificates, the default one first.
    pub fn files(&self) -> impl Iterator<Item = CertificateFiles> + '_ {
        let first = CertificateFiles { certificate: self.certificate.clone(), key: self.key.clone() };
        std::iter::once(first).chain(self.further.iter().cloned())
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFiles {
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM key.
    pub key: PathBuf,
}

/// Access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogSink {
    /// JSON; otherwise text.
    pub json: bool,
    /// File; `None`: standard output.
    pub file: Option<PathBuf>,
}

/// Limits of connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a request head.
    pub head_bytes: u32,
    /// Header fields of a request.
    pub headers: u32,
    /// Time from the first byte of a head to its last.
    pub head_timeout: Duration,
    /// Time of a connection without a request.
    pub idle_timeout: Duration,
    /// Default timeout of an exchange.
    pub request_timeout: Duration,
    /// Concurrent streams of one HTTP/2 connection.
    pub h2_streams: u32,
    /// Limits of connections to functions and Externals.
    #[serde(default, skip_serializing_if = "UpstreamLimits::is_usual")]
    pub upstream: UpstreamLimits,
    /// How long exchanges can continue after their instance or node has begun to stop.
    pub drain_timeout: Duration,
    /// Connections of each listener: gateway, outbound, inbound.
    pub connections: u32,
    /// Gateway connections from one address; 0: no limit.
    pub connections_per_address: u32,
    /// Extension instances kept for responses.
    pub extension_instances: ExtensionInstances,
}

/// Default of [`UpstreamLimits::tcp_keep_alive`].
pub const TCP_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Limits of connections to functions and Externals. 0 is the default: older releases do not write
/// these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamLimits {
    /// Bytes of a response head.
    pub head_bytes: u32,
    /// Header fields of a response.
    pub headers: u32,
    /// Interval of PINGs while the peer is silent.
    pub keep_alive: Duration,
    /// Idle time of a TCP connection before the kernel probes the peer.
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

    /// Interval of PINGs while the peer is silent.
    pub fn keep_alive(&self) -> Duration {
        if self.keep_alive.is_zero() { Duration::from_secs(300) } else { self.keep_alive }
    }

    /// Idle time of a TCP connection before the kernel probes the peer.
    pub fn tcp_keep_alive(&self) -> Duration {
        if self.tcp_keep_alive.is_zero() { TCP_KEEP_ALIVE } else { self.tcp_keep_alive }
    }

    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits of extension instances kept for responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionInstances {
    /// For one function or job.
    pub per_function: u32,
    /// For one namespace.
    pub per_namespace: u32,
}
