//! Names of the functions and nodes of a test's mesh.

use leno_identity::SpiffeId;
use leno_model::FunctionId;
use std::net::SocketAddr;

pub(crate) const TRUST_DOMAIN: &str = "test.example";

pub(crate) fn id(name: &str) -> FunctionId {
    FunctionId::new("shop", name).unwrap()
}

pub(crate) fn spiffe(name: &str) -> SpiffeId {
    format!("spiffe://{TRUST_DOMAIN}/ns/shop/sa/{name}").parse().unwrap()
}

pub(crate) fn gateway_identity() -> String {
    format!("spiffe://{TRUST_DOMAIN}/ns/leno-system/sa/gateway")
}

/// The name of the node with this inbound listener.
pub(crate) fn node_name(inbound: SocketAddr) -> String {
    format!("node-{}", inbound.port())
}
