//! Checked routes of connections without HTTP requests: what TLSRoute and TCPRoute documents become.

use crate::function_id::FunctionId;
use serde::{Deserialize, Serialize};

/// A listener of a Gateway document for the protocol TLS or TCP. Gateways open its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamListener {
    /// `namespace/gateway/listener`.
    pub name: String,
    /// The port.
    pub port: u16,
    /// Connections begin with TLS, whose server name chooses the route; `None`: they are plain TCP.
    pub tls: Option<StreamTls>,
    /// The server names that it serves: exact, or `*.suffix`; `None`: all that no other listener of
    /// the port serves.
    pub host: Option<String>,
    /// With [`StreamTls::Terminate`]: the StoredSecrets of its certificates, each `namespace/name`;
    /// empty: its certificates are those of the Mesh document.
    pub certificates: Vec<String>,
    /// The attached routes, sorted by name.
    pub routes: Vec<StreamRoute>,
}

/// Where TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamTls {
    /// At the back end, which gets the bytes as they come.
    Passthrough,
    /// At the gateway.
    Terminate,
}

/// A route of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRoute {
    /// `namespace/name`.
    pub name: String,
    /// The server names that both the listener and the route serve: exact, `*.suffix`, or `*`.
    pub hosts: Vec<String>,
    /// Where connections go.
    pub backends: Vec<StreamBackend>,
}

/// A share of a route's connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamBackend {
    /// The function or External; `None`: connections are closed.
    pub target: Option<FunctionId>,
    /// Its port.
    pub port: u16,
    /// The port takes TLS.
    pub tls: bool,
    /// The name or address of an External, unless the client's server name is one of its names; empty:
    /// it is a function.
    pub host: String,
    /// The share of connections, in relation to the sum.
    pub weight: u32,
}
