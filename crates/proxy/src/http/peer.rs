//! Who opened a connection, and where it came in.

use std::net::SocketAddr;
use std::sync::Arc;

/// The socket's other end, as established by the runtime; never by a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// SPIFFE ID in full: from mutual TLS, from a proxy credential, or handed over on the same node. `None`: outside the mesh.
    pub identity: Option<Arc<str>>,
    /// Address of the socket's other end.
    pub address: SocketAddr,
}

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrafficDirection {
    /// From outside the mesh.
    Gateway,
    /// From an instance of this node, to whatever it calls.
    Outbound,
    /// To a function of this node, from a caller's sidecar: over mutual TLS, or handed over on the same node.
    Inbound,
}
