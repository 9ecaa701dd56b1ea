//! The TLS handshake: the identity of the peer, and the function that it calls.

use super::{Connection, HANDSHAKE};
use crate::state::admission::AdmissionError;
use crate::state::certificate::PeerCertificate;
use leno_http::peer::TrafficDirection;
use leno_model::FunctionId;
use std::io;
use tokio::net::TcpStream;

impl Connection {
    /// Adds the identity of the TLS session's peer.
    pub(super) fn identified(mut self, session: &tokio_rustls::rustls::ServerConnection) -> Self {
        if self.direction == TrafficDirection::Inbound {
            let identity = leno_identity::peer_identity(session);
            self.certificate = Some(PeerCertificate::of(session));
            // Nodes and control planes call no function, even if a rule allows all identities of
            // the mesh.
            let is_caller = identity.as_ref().is_some_and(|id| !id.is_reserved() || id.is_gateway());
            self.peer.identity = identity.map(|id| id.to_string().into());
            let function = session.server_name().filter(|_| is_caller);
            let function = function.and_then(leno_identity::function_of_server_name);
            self.function = function.and_then(|(namespace, name)| FunctionId::new(namespace, name).ok());
        }
        self
    }

    /// Counts a connection of another node's sidecar for the namespace of its function.
    pub(super) fn count_for_caller(&self) -> Result<(), AdmissionError> {
        let identity = self.peer.identity.as_deref().filter(|_| self.direction == TrafficDirection::Inbound);
        let function = identity.and_then(FunctionId::of_identity);
        // The gateway calls for clients, which belong to no namespace.
        let is_gateway = identity.is_some_and(|identity| *identity == *self.worker.snapshot().gateway);
        match (function.filter(|_| !is_gateway), &self.attribution) {
            (Some(function), Some(attribution)) => {
                let namespace = self.worker.node.telemetry.namespaces.of(&function.namespace);
                attribution.set(&function.to_string(), &namespace)
            }
            _ => Ok(()),
        }
    }
}

/// Whether the first byte begins a TLS handshake. A connection that ends before it counts as TLS.
pub(super) async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 0 || first[0] == HANDSHAKE)
}
