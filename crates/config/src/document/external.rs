//! `kind: External`.

use super::paths::Paths;
use super::value::{Address, ApiVersion, Metadata};
use crate::duration::Duration;
use leno_model::{EgressProtocol, SecretSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A service outside the mesh that functions may call: an API, a database. A function calls it by
/// its host if the function's `callees` name this document, and if a policy for this document
/// allows the call. Every other address and name outside is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct External {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `External`.
    pub kind: ExternalKind,
    /// Its name. It shares its names with functions and jobs. Policies name it in `functions`; a
    /// `selector` does not select it.
    pub metadata: Metadata,
    /// Where it is, and how it is called.
    pub spec: ExternalSpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExternalKind {
    /// `External`.
    External,
}

/// Where something outside of the mesh is, and how it is called. It has `hosts`, `addresses`, or
/// both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExternalSpec {
    /// Its names: `api.example.com`, or `*.example.com` for each name with one label more. The node
    /// looks them up when it connects.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Addresses and blocks of addresses by which functions may call it instead: `192.0.2.7`,
    /// `198.51.100.0/24`. A block admits none of the addresses that are special, such as private
    /// ones, unless all of it is.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Addresses that its names may have. Without it: all but special ones, which are those of
    /// private networks, loopback, link-local, metadata services, the mesh and its machines, and
    /// the like. Special ones are admitted by a block that has no others, such as `10.0.0.0/8`.
    #[serde(default)]
    pub resolves_to: Vec<String>,
    /// Its ports.
    pub ports: Vec<ExternalPort>,
    /// TLS at its ports with `protocol: https`.
    #[serde(default)]
    pub tls: Option<ExternalTls>,
    /// Header fields that the node adds to each request, so that functions need not know them. Only
    /// with `https`.
    #[serde(default)]
    pub credentials: Vec<ExternalCredential>,
    /// Time limits.
    #[serde(default)]
    pub timeouts: ExternalTimeouts,
    /// How paths of requests arrive.
    #[serde(default)]
    pub paths: Paths,
    /// Whether `traceparent`, `tracestate` and `x-request-id` go out with requests. What else the
    /// mesh adds to requests stays inside in any case.
    #[serde(default)]
    pub trace_context: bool,
}

/// A port of something outside of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExternalPort {
    /// Its number. Functions name it in their calls, but for the port with `https`, which they
    /// reach by `http://HOST/` too.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Protocol, which determines the part of a call that the mesh sees.
    pub protocol: EgressProtocol,
    /// It speaks HTTP/2: with `http` by prior knowledge, with `https` by ALPN. gRPC needs it.
    #[serde(default)]
    pub http2: bool,
}

/// TLS towards something outside of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExternalTls {
    /// PEM file with the root certificates to trust, or `{secret: NAME, key: KEY}` of a StoredSecret.
    /// Without it: the system's. Relative to the document's folder.
    pub ca_file: Option<SecretSource>,
    /// PEM file with the node's certificate chain for it, its own first, or a key of a StoredSecret.
    /// Relative to the document's folder.
    pub certificate: Option<SecretSource>,
    /// PEM file with the private key of `certificate`, or a key of a StoredSecret. Relative to the
    /// document's folder.
    pub key: Option<SecretSource>,
    /// The name that it must prove, and that the node sends (SNI). Without it: the host that was
    /// called.
    pub server_name: Option<String>,
}

/// A header field that the node adds. It replaces the function's field of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExternalCredential {
    /// Name of the field.
    #[serde(default = "authorization")]
    #[schemars(extend("default" = "authorization"))]
    pub header: String,
    /// What stands before the secret, such as `Bearer`. Without it: nothing.
    #[serde(default)]
    pub scheme: Option<String>,
    /// The user of HTTP's basic authentication (RFC 7617), whose password the secret is.
    #[serde(default)]
    pub username: Option<String>,
    /// Where the secret comes from: a file of the node, relative to the document's folder, or
    /// `{secret: NAME, key: KEY}` of a StoredSecret. A change takes effect within two seconds.
    pub from: SecretSource,
}

fn authorization() -> String {
    "authorization".to_owned()
}

/// Time limits of something outside of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExternalTimeouts {
    /// A whole exchange, all tries together. `0s`: no limit. Without it: the mesh's
    /// `limits.requestTimeout`.
    pub request: Option<Duration>,
    /// To look its name up, and to connect, with TLS: each.
    pub connect: Duration,
}

impl Default for ExternalTimeouts {
    fn default() -> Self {
        Self { request: None, connect: Duration::from_secs(5) }
    }
}

/// Calls to the outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshEgress {
    /// Name servers that nodes ask for the names of External documents, over UDP, and TCP for long
    /// answers. Without it: those of the machine.
    pub name_servers: Vec<Address>,
    /// Which nodes connect to what External documents describe. No document of theirs can say
    /// otherwise.
    pub nodes: EgressNodes,
}

/// Which nodes connect to what is outside of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EgressNodes {
    /// The one of the function that calls.
    #[default]
    Caller,
    /// Those that joined with `leno token join --egress`, and no others. Only they get the
    /// documents' rules and need their files, look names up, and judge the calls. Without any such
    /// node, calls to the outside fail.
    Egress,
}
