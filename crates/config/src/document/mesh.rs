//! `kind: Mesh`.

use super::external::MeshEgress;
use super::image::Images;
use super::namespace_quota::NamespaceLimits;
use super::quotas::Quotas;
use super::value::{Address, AdminAddress, ApiVersion, Ports};
use crate::duration::Duration;
use leno_model::Isolation;
use leno_model::{STREAM_LIFETIME, TCP_KEEP_ALIVE};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Settings of all functions of a mesh. There is one Mesh document, or none: then every field has
/// its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mesh {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `Mesh`.
    pub kind: MeshKind,
    /// Name of the mesh.
    pub metadata: MeshMetadata,
    /// Its properties.
    #[serde(default)]
    pub spec: MeshSpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MeshKind {
    /// `Mesh`.
    Mesh,
}

/// A mesh has no namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeshMetadata {
    /// A DNS label: `a-z`, `0-9` and `-`, at most 63 characters.
    pub name: String,
}

/// Properties of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshSpec {
    /// Trust domain of all identities: function `name` in `namespace` is
    /// `spiffe://<trustDomain>/ns/<namespace>/sa/<name>`.
    pub trust_domain: String,
    /// Namespaces whose policies are audited, as if each said `mode: audit`.
    pub audit_namespaces: Vec<String>,
    /// How sidecars are isolated, unless a policy chooses for its functions.
    pub engine: EngineChoice,
    /// Mutual TLS between functions. It is always on; these are its details.
    pub mtls: Mtls,
    /// Where traffic from outside enters. Without this section: plain HTTP on `127.0.0.1:8080`. An
    /// empty section: nowhere.
    pub gateway: Gateway,
    /// Where the node listens for its own functions, other nodes and operators. Port 0: any free
    /// port.
    pub listeners: Listeners,
    /// Destination and format of access log lines. Which requests are logged is up to policies.
    pub access_log: MeshAccessLog,
    /// Where spans go. Which requests are traced is up to policies.
    pub tracing: MeshTracing,
    /// How the processes of functions and jobs are kept apart.
    pub instances: Instances,
    /// Images of containers.
    pub images: Images,
    /// Calls to the outside, of which External documents tell.
    pub egress: MeshEgress,
    /// Where the counters of rate limits are kept.
    pub quotas: Quotas,
    /// Bounds of each namespace that no NamespaceQuota document changes: [quotas](../quotas.md).
    pub namespaces: NamespaceLimits,
    /// Limits on what clients, functions and Externals may send.
    pub limits: MeshLimits,
}

impl Default for MeshSpec {
    fn default() -> Self {
        Self {
            trust_domain: "leno.local".to_owned(),
            audit_namespaces: Vec::new(),
            engine: EngineChoice::default(),
            mtls: Mtls::default(),
            gateway: Gateway { http: Some(local(8080)), ..Gateway::default() },
            listeners: Listeners::default(),
            access_log: MeshAccessLog::default(),
            tracing: MeshTracing::default(),
            instances: Instances::default(),
            images: Images::default(),
            egress: MeshEgress::default(),
            quotas: Quotas::default(),
            namespaces: NamespaceLimits::default(),
            limits: MeshLimits::default(),
        }
    }
}

/// How sidecars are isolated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// A micro-VM where a guest runs on this machine, otherwise WebAssembly.
    #[default]
    Auto,
    /// A micro-VM; a machine without one refuses to start.
    Microvm,
    /// WebAssembly.
    Wasm,
}

/// Mutual TLS between functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mtls {
    /// How a function reaches another one on its own node.
    pub same_node: SameNode,
    /// Lifetime of the functions' certificates, one minute at least. They are renewed at half of
    /// it.
    pub svid_lifetime: Duration,
    /// How long a stream, a WebSocket or a connection between nodes may go on, from its beginning,
    /// by the certificates that it began with, though they were renewed meanwhile; 90 days at most.
    /// In any case it may until they expire. Then the mesh ends it, and says so. Permissions are
    /// judged again all the time.
    pub stream_lifetime: Duration,
}

impl Default for Mtls {
    fn default() -> Self {
        let (svid_lifetime, stream_lifetime) = (Duration::from_secs(3600), Duration(STREAM_LIFETIME));
        Self { same_node: SameNode::default(), svid_lifetime, stream_lifetime }
    }
}

/// How a function reaches another one on its own node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SameNode {
    /// The runtime, which knows both identities, hands the request over itself.
    #[default]
    Direct,
    /// Through a TLS socket, as between nodes. The verdicts are the same.
    Always,
}

/// Where traffic from outside enters. What becomes of header fields there: [header
/// fields](../headers.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Gateway {
    /// Address for plain HTTP/1.1 and HTTP/2 (by prior knowledge).
    pub http: Option<Address>,
    /// TLS, with HTTP/1.1 and HTTP/2 by ALPN.
    pub https: Option<GatewayHttps>,
    /// Ports that [Gateway documents](../routes.md) may open, each a port or a range:
    /// `[8443, 9000-9010]`. A listener opens its port at the IP address of `http`, or else of
    /// `https`. Without it: none; listeners can only use the ports of `http` and `https`.
    pub ports: Vec<Ports>,
    /// Proxies between clients and the gateway whose word on a client's address (`x-forwarded-for`)
    /// and scheme (`x-forwarded-proto`) is taken. Policies, rate limits, logs and functions then
    /// see the client. Without it, the peer of the connection is the client.
    pub trusted_proxies: Option<TrustedProxies>,
    /// Whether connections begin with a header of the PROXY protocol, version 1 or 2, before TLS.
    /// `required` needs `trustedProxies.addresses`; connections from elsewhere, and those without a
    /// sound header, are closed.
    pub proxy_protocol: ProxyProtocol,
}

/// Proxies between clients and the gateway: one of `addresses` and `hops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrustedProxies {
    /// Addresses or blocks of addresses (`10.0.0.0/8`) from which trusted proxies connect. The
    /// client is the last address in `x-forwarded-for` that is none of theirs.
    pub addresses: Vec<String>,
    /// How many proxies every request has passed, 1 to 100: the client is as many addresses from
    /// the end of `x-forwarded-for`. Only where the last of them is the only client that reaches
    /// the gateway: any other client could claim any address.
    pub hops: Option<u32>,
}

/// Whether connections begin with a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// None does; one that does is malformed.
    #[default]
    Off,
    /// All do.
    Required,
}

/// TLS at the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayHttps {
    /// Address.
    pub listen: Address,
    /// PEM file with the certificate chain, the server's own first. Relative to the document's
    /// folder. Nodes read it when they start, and again when it changes. Clients get this
    /// certificate if they ask for no name, or for one that no certificate of `certificates` has.
    pub certificate: PathBuf,
    /// PEM file with the private key. Relative to the document's folder. Read like `certificate`.
    pub key: PathBuf,
    /// Further certificates. A client gets the first one that has the name which it asks for (SNI).
    #[serde(default)]
    pub certificates: Vec<GatewayCertificate>,
    /// The gateway answers plain requests, which arrive at `gateway.http`, with a redirect to HTTPS
    /// (308). It serves those that came to a trusted proxy by HTTPS (`x-forwarded-proto`).
    #[serde(default)]
    pub redirect_http: bool,
    /// The port at which clients reach `listen`, for redirects. Without it: the port of `listen`.
    pub public_port: Option<u16>,
}

/// A certificate of the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayCertificate {
    /// PEM file with the certificate chain, the server's own first. Relative to the document's
    /// folder.
    pub certificate: PathBuf,
    /// PEM file with the private key. Relative to the document's folder.
    pub key: PathBuf,
}

/// How the processes of functions and jobs are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Instances {
    /// How those are kept apart that do not say otherwise themselves.
    pub isolation: Isolation,
    /// Under which accounts of the operating system they run where `isolation` is `process`. A jail
    /// has a separate account if the node is root, else the node's.
    pub accounts: AccountChoice,
    /// The first of the 10,000 user and group numbers of namespaces, where each has a separate
    /// account. No other account of the machine may be among them.
    pub first_id: u32,
}

impl Default for Instances {
    fn default() -> Self {
        // Above what distributions give to people and services, below what they give to containers.
        Self { isolation: Isolation::default(), accounts: AccountChoice::default(), first_id: 70_000 }
    }
}

/// Under which accounts of the operating system instances run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AccountChoice {
    /// `perNamespace` where the node runs as root, otherwise `node`.
    #[default]
    Auto,
    /// Each namespace has a separate account, which can read no file of the node or of another
    /// namespace, and has no groups. The programs and working directories have to be where such an
    /// account can reach them. A node that is not root refuses to start.
    PerNamespace,
    /// That of the node. Instances can read each other's memory and files, and if the node is root,
    /// everything.
    Node,
}

/// Where the node listens besides the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Listeners {
    /// Functions send their calls here (`HTTP_PROXY`).
    pub outbound: Address,
    /// Other nodes send calls to this node's functions here, with mutual TLS.
    pub inbound: Address,
    /// Metrics, health and explanations, for operators: `unix:PATH`, relative to the document's
    /// folder, or a loopback address with a port, which needs `adminToken`. The socket is the
    /// account's own (mode 0600), and only it and root are answered. Without this field it is
    /// `/run/leno/admin.sock` for root; for other accounts `leno/admin.sock` in `$XDG_RUNTIME_DIR`,
    /// or without that variable in `/tmp/leno-<user number>`.
    pub admin: Option<AdminAddress>,
    /// File with the token that requests to the admin address have to bear
    /// (`authorization: Bearer …`), but for `/healthz` and `/readyz`: 16 characters or more,
    /// readable for no other account. Relative to the document's folder.
    pub admin_token: Option<PathBuf>,
    /// The control plane.
    pub control: Address,
}

impl Default for Listeners {
    fn default() -> Self {
        Self { outbound: local(15001), inbound: local(15006), admin: None, admin_token: None, control: local(15010) }
    }
}

fn local(port: u16) -> Address {
    Address(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// Destination and format of access log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeshAccessLog {
    /// Format of a line.
    pub format: AccessLogFormat,
    /// File to append to, relative to the document's folder. Without it: standard output.
    pub file: Option<PathBuf>,
}

/// What an access log line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Where spans go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeshTracing {
    /// Address of an OTLP/HTTP collector: `http://127.0.0.1:4318`. Without it spans are not
    /// exported.
    pub otlp: Option<String>,
}

/// Limits on what clients and functions may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshLimits {
    /// Bytes of the head of a request or a response, 1024 to 49152. Without it: 32768 of a request,
    /// 49152 of a response. A request beyond it gets 431; for a response beyond it the client gets
    /// 502.
    pub head_bytes: Option<u32>,
    /// Header fields of a request or a response, 1 to 1000. Without it: 100 of a request, 256 of a
    /// response.
    pub headers: Option<u32>,
    /// From the first byte of a request head to its last.
    pub head_timeout: Duration,
    /// A connection on which nothing is asked.
    pub idle_timeout: Duration,
    /// A whole exchange, unless its function says otherwise. `0s`: no limit.
    pub request_timeout: Duration,
    /// Concurrent streams of one HTTP/2 connection.
    pub http2_streams: u32,
    /// Time between PINGs over HTTP/2 to a function or an External while a request is open, 1s to
    /// 1d. Without it: 5m. gRPC servers allow one in five minutes unless they are configured
    /// otherwise, and end the connection after more. After such an end the node waits twice as long
    /// for that address, up to five minutes.
    pub upstream_keep_alive: Option<Duration>,
    /// How long a TCP connection to or from another machine may be silent before the kernel asks
    /// whether the machine is still there, 1s to 1h. It asks six times, a sixth of this apart (at
    /// least 1s). A machine that acknowledges nothing until then has vanished: the connection ends.
    /// So does one whose other end takes no data for as long.
    pub tcp_keep_alive: Duration,
    /// How long requests, streams, WebSockets and connections that are under way may go on when
    /// what serves them ends: an instance that a change, a rollout or the autoscaler replaces or
    /// ends, a removed function, a node that stops, the old process of an upgrade. Then the mesh
    /// ends them, and says so: gRPC status UNAVAILABLE, WebSocket code 1012. `0s`: at once.
    pub drain_timeout: Duration,
    /// Connections that clients may have open at the gateway, as many from the instances of the
    /// node, and as many from other nodes. Beyond that, the oldest one that asks nothing is closed
    /// for a new one. All together get no more than half of the file descriptors that the process
    /// may have; `leno up` raises its limit to the hard limit (`ulimit -Hn`) when it starts.
    pub connections: u32,
    /// Connections at the gateway from one IPv4 address, or from one IPv6 network (/64). Behind a
    /// load balancer that connects from a few addresses set `0`: any number.
    pub connections_per_address: u32,
    /// Instances of extensions that see responses, and so are kept while a function answers: of the
    /// extensions of one function or job, 1 to 1000. A request that finds none left waits for a
    /// second, and is then refused with 503.
    pub extension_instances_per_function: u32,
    /// The same, of all functions and jobs of one namespace, 1 to 1000. A node has 1000; while none
    /// is left, the next goes to each namespace in turn.
    pub extension_instances_per_namespace: u32,
}

impl Default for MeshLimits {
    fn default() -> Self {
        Self {
            head_bytes: None,
            headers: None,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(30),
            http2_streams: 100,
            upstream_keep_alive: None,
            tcp_keep_alive: Duration(TCP_KEEP_ALIVE),
            drain_timeout: Duration::from_secs(60),
            connections: 16_384,
            connections_per_address: 1024,
            extension_instances_per_function: 100,
            extension_instances_per_namespace: 250,
        }
    }
}
