//! The peer of a connection, and the direction of a request.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// The other end of a connection. The runtime establishes its identity, never a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Full SPIFFE ID, from mutual TLS, from a proxy credential, or of a local delivery; `None`:
    /// the peer is outside the mesh.
    pub identity: Option<Arc<str>>,
    /// Address of the peer's socket, or of the client that a trusted proxy names to the gateway.
    /// The port is 0 if `x-forwarded-for` names the client.
    pub address: SocketAddr,
}

/// The direction of a request, as its node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TrafficDirection {
    /// From outside the mesh, through the gateway.
    Gateway,
    /// From an instance of this node to a callee.
    Outbound,
    /// To a function of this node, from a caller's sidecar: over mutual TLS, or by local delivery.
    Inbound,
}
