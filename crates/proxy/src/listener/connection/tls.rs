//! The TLS handshake: the identity of the peer, and the function that it calls.

use super::{Connection, HANDSHAKE};
use crate::state::admission::AdmissionError;
use crate::state::certificate::PeerCertificate;
use leno_http::peer::TrafficDirection;
use leno_model::FunctionId;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

/// Maximum time that a handshake waits for the first certificate of a function. A certificate takes
/// some milliseconds; without the control plane, callers with another endpoint should go there.
const FIRST_CERTIFICATE_WAIT: Duration = Duration::from_secs(1);

impl Connection {
    /// Completes the handshake.
    ///
    /// Callers get this node as an endpoint of a function when its configuration is in force here.
    /// The function's certificate may be on its way then.
    pub(super) async fn shake_hands<IO>(&self, acceptor: &TlsAcceptor, stream: IO) -> io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        if self.direction != TrafficDirection::Inbound {
            return acceptor.accept(stream).await;
        }
        let handshake = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let function = handshake.client_hello().server_name().and_then(function_of);
        let identity = function.and_then(|id| self.worker.snapshot().functions.get(&id)?.identity.parse().ok());
        if let Some(identity) = identity {
            // If none has come, the handshake ends with an alert.
            let _ = timeout(FIRST_CERTIFICATE_WAIT, self.worker.node.svids.until_installed(&identity)).await;
        }
        handshake.into_stream(acceptor.config().clone()).await
    }

    /// Adds the identity of the TLS session's peer.
    pub(super) fn identified(mut self, session: &tokio_rustls::rustls::ServerConnection) -> Self {
        if self.direction == TrafficDirection::Inbound {
            let identity = leno_identity::peer_identity(session);
            self.certificate = Some(PeerCertificate::of(session));
            // Nodes and control planes call no function, even if a rule allows all identities of
            // the mesh.
            let is_caller = identity.as_ref().is_some_and(|id| !id.is_reserved() || id.is_gateway());
            self.peer.identity = identity.map(|id| id.to_string().into());
            self.function = session.server_name().filter(|_| is_caller).and_then(function_of);
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

/// The function that a client calls.
fn function_of(server_name: &str) -> Option<FunctionId> {
    let (namespace, name) = leno_identity::function_of_server_name(server_name)?;
    FunctionId::new(namespace, name).ok()
}

/// Whether the first byte begins a TLS handshake. A connection that ends before it counts as TLS.
pub(super) async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 0 || first[0] == HANDSHAKE)
}
