//! Takes connections with tunnels to a pod (HBONE): HTTP/2 over mutual TLS, at one port of the pod's
//! address. Each stream is a CONNECT to a port of the pod, and is served like a connection in clear
//! text, with the client's certificate as its caller.

use super::connection::{OpenConnection, serve_tunnels};
use crate::l4::pods::PodClient;
use crate::pipeline::worker::Worker;
use crate::state::certificate::PeerCertificate;
use crate::state::pods::PodConnection;
use leno_http::inflow::Inflow;
use leno_http::peer::Peer;
use leno_identity::{SpiffeId, handshake_failure, peer_identity, tunnel_server_config};
use leno_runtime::schedule::{self, Class};
use leno_telemetry::flows::{Connection, ConnectionFailure};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum time that a handshake waits for the first certificate of the pod's account.
const FIRST_CERTIFICATE_WAIT: Duration = Duration::from_secs(1);

/// Serves a connection until it ends.
pub(super) async fn serve(worker: &Rc<Worker>, connection: PodConnection, stream: TcpStream, open: &OpenConnection) {
    schedule::charge(Class::of(&connection.pod.function().to_string()));
    let Some(identity) = &connection.identity else {
        return report(worker, &connection, "", "the control plane has not named the pod's account");
    };
    let longest = worker.snapshot().mesh.limits.head_timeout;
    let handshake = timeout(longest, shake_hands(worker, identity, stream));
    let Some(shaken) = open.unless_draining(handshake).await else { return };
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no TLS handshake within {longest:?}"));
    let stream = match shaken.unwrap_or_else(|_| Err(late())) {
        Ok(stream) => stream,
        Err(error) => {
            let reason = handshake_failure(&error).unwrap_or_else(|| error.to_string());
            return report(worker, &connection, "", &reason);
        }
    };
    let session = stream.get_ref().1;
    // Nodes and control planes are no workloads.
    let identity = peer_identity(session).filter(|id| !id.is_reserved()).map(|id| id.to_string().into());
    let peer = Peer { identity, address: connection.client };
    let client = PodClient { peer, caller: None, certificate: Some(PeerCertificate::of(session)) };
    serve_tunnels(worker, (&Rc::new(connection), &client), stream, open).await;
}

async fn shake_hands(
    worker: &Worker,
    identity: &Arc<str>,
    stream: TcpStream,
) -> io::Result<TlsStream<Inflow<TcpStream>>> {
    let identity: SpiffeId = identity.parse().map_err(io::Error::other)?;
    let svids = &worker.node.svids;
    // If none has come, the handshake ends with an alert.
    let _ = timeout(FIRST_CERTIFICATE_WAIT, svids.until_installed(&identity)).await;
    let config = tunnel_server_config(svids, &identity).map_err(io::Error::other)?;
    TlsAcceptor::from(config).accept(Inflow::in_turns(stream)).await
}

/// Reports a connection or a stream that opened no tunnel.
pub(super) fn report(worker: &Worker, connection: &PodConnection, identity: &str, reason: &str) {
    let reason = format!("no tunnel for {}: {reason}", connection.client);
    tracing::debug!(pod = &*connection.pod.name, reason, "a tunnel is refused");
    worker.node.telemetry.connection_flows.push(Connection {
        instance: identity,
        during: None,
        target: Some(&connection.pod.function()),
        address: connection.called,
        protocol: "tls",
        rule: "",
        outcome: Err(ConnectionFailure::Refused(&reason)),
        bytes: [0; 2],
        spliced: false,
        started: (SystemTime::now(), Instant::now()),
    });
}
