//! One client connection: terminates TLS, identifies the peer, detects the protocol, and runs the
//! pipeline once per request.

mod caller;
mod drive;
mod open;
mod pod_tunnel;
mod protocol;
mod request;
mod tls;
mod tunnel;

pub(super) use drive::Serving;
pub(crate) use open::OpenConnection;
pub(super) use request::SilentEnd;

use crate::l4;
use crate::l4::pods::PodClient;
use crate::l4::{Path, PodStream};
use crate::listener::stream::{ClientStream, DetectedProtocol};
use crate::listener::{Listener, pods, proxy_protocol};
use crate::pipeline::pool::ConnectionKey;
use crate::pipeline::worker::Worker;
use crate::state::admission::Attribution;
use crate::state::certificate::PeerCertificate;
use crate::state::credential::Caller;
use crate::state::pods::PodConnection;
use crate::state::routes::gateway::PortProtocol;
use http::HeaderValue;
use leno_http::activity::Activity;
use leno_http::head::HeadError;
use leno_http::inflow::Inflow;
use leno_http::peer::{Peer, TrafficDirection};
use leno_model::FunctionId;
use leno_runtime::keepalive;
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tls::begins_with_tls;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tokio_rustls::server::TlsStream;
use zeroize::Zeroizing;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// How long an idle connection may take to end after GOAWAY.
const GRACEFUL_CLOSE: Duration = Duration::from_secs(2);

/// A client connection whose peer is known.
pub(crate) struct Connection {
    pub worker: Rc<Worker>,
    pub direction: TrafficDirection,
    pub peer: Peer,
    /// The peer's address as a header value, made on first use.
    client: OnceCell<HeaderValue>,
    /// `https` if the gateway has terminated TLS, else `http`.
    pub scheme: &'static str,
    /// The listener's port.
    pub port: u16,
    /// A Gateway document has opened the port.
    opened: bool,
    /// Outbound: the local address of the connection.
    accepted_at: Option<SocketAddr>,
    /// Inbound: the function that the TLS client named (SNI), with whose SVID the node answered.
    pub(super) function: Option<FunctionId>,
    /// Outbound: the instance that authenticated last, and the header value that it did so with.
    caller: RefCell<Option<(Proof, Arc<Caller>)>>,
    /// All requests come from one caller, which is known from the beginning: it opened the CONNECT
    /// tunnel in which the connection runs, or the connection comes from its jail.
    one_caller: bool,
    /// Inbound: the certificate of the caller's sidecar.
    certificate: Option<PeerCertificate>,
    /// Inbound: the connection of a pod, if it is one; else it comes from a caller's sidecar.
    pub(super) pod: Option<Rc<PodConnection>>,
    /// Whether it has carried a request.
    is_kept: Cell<bool>,
    /// Its requests open tunnels to the pod.
    carries_tunnels: bool,
    activity: Arc<Activity>,
    attribution: Option<Attribution>,
}

/// The header value with which an instance authenticated. Wiped when the connection has ended. A
/// copy, because the original is a slice of a read buffer.
type Proof = Rc<Zeroizing<Vec<u8>>>;

pub(crate) async fn serve(listener: Rc<Listener>, mut stream: TcpStream, address: SocketAddr, open: OpenConnection) {
    let worker = listener.worker.clone();
    // Without TCP_NODELAY, small responses wait for acknowledgements. If it cannot be set, the
    // connection is already gone.
    let _ = stream.set_nodelay(true);
    let (limit, silence) = {
        let limits = &worker.snapshot().mesh.limits;
        (limits.head_timeout, limits.upstream.tcp_keep_alive())
    };
    if listener.caller.is_none() {
        // A client that vanishes must be noticed on a connection that may be silent for long, too.
        // If that cannot be set, it is already gone.
        let _ = keepalive::enable(&stream, address, silence);
    }
    if let Some(pod) = &listener.pod {
        return Box::pin(pods::serve(&listener, pod, stream, address, open)).await;
    }
    let address = match open.unless_draining(proxy_protocol::client(&listener, &mut stream, address)).await {
        Some(Ok(address)) => address,
        Some(Err(refused)) => {
            if let Some(label) = refused.label() {
                worker.recorder.metrics().proxy_protocol_refusal(label);
            }
            tracing::debug!(%address, direction = ?listener.direction, %refused, "connection closed");
            return;
        }
        None => return,
    };
    if listener.opened == Some(PortProtocol::Stream) {
        let acceptor = listener.tls.clone();
        let stream_to = l4::gateway::GatewayStream::new(&worker, listener.address.port(), address, acceptor);
        // The node cannot see whether the connection is in use, so a draining node ends it.
        let _ = open.unless_draining(stream_to.run(stream, open.activity())).await;
        return;
    }
    let accepted_at = (listener.direction == TrafficDirection::Outbound).then(|| stream.local_addr().ok()).flatten();
    if let (Some(caller), Some(called)) = (&listener.caller, accepted_at) {
        match l4::find(&worker, caller, called) {
            Path::Requests => {}
            Path::Port(proxy) => {
                // The node cannot see whether the connection is in use, so a draining node ends it.
                let _ = open.unless_draining(proxy.run(stream, open.activity())).await;
                return;
            }
            Path::Nowhere => return l4::reset(&stream),
        }
    }
    let connection = Connection {
        worker,
        direction: listener.direction,
        peer: Peer { identity: None, address },
        client: OnceCell::new(),
        scheme: if listener.tls.is_some() && listener.direction == TrafficDirection::Gateway {
            "https"
        } else {
            "http"
        },
        port: listener.address.port(),
        opened: listener.opened.is_some(),
        accepted_at,
        function: None,
        caller: RefCell::new(listener.caller.clone().map(|caller| (Proof::default(), caller))),
        one_caller: listener.caller.is_some(),
        certificate: None,
        pod: None,
        is_kept: Cell::default(),
        carries_tunnels: false,
        activity: open.activity().clone(),
        attribution: open.attribution().clone(),
    };
    let until = Instant::now() + limit;
    let result = match &listener.tls {
        None => connection.serve_http(stream, None, &open).await,
        Some(_) if matches!(timeout_at(until.into(), begins_with_tls(&stream)).await, Ok(Ok(false))) => {
            let stream = ClientStream::new(stream, open.activity().clone());
            Box::pin(connection.refuse_head(stream, HeadError::NoTls.into(), &[])).await;
            Ok(())
        }
        Some(acceptor) => {
            match timeout_at(until.into(), connection.shake_hands(acceptor, Inflow::in_turns(stream))).await {
                Ok(Ok(stream)) => {
                    let session = stream.get_ref().1;
                    let agreed = session
                        .alpn_protocol()
                        .map(|name| if name == b"h2" { DetectedProtocol::Http2 } else { DetectedProtocol::Http1 });
                    let connection = connection.identified(session);
                    match connection.count_for_caller() {
                        Ok(()) => connection.serve_http(stream, agreed, &open).await,
                        Err(refused) => Err(io::Error::other(refused.reason())),
                    }
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%address, direction = ?listener.direction, %error, "connection ended");
    }
}

/// Serves the HTTP of a connection to a pod. `ahead`: bytes that were read already.
pub(super) async fn serve_pod(
    worker: &Rc<Worker>,
    (pod, client): (&Rc<PodConnection>, &PodClient),
    (stream, ahead, detected): (impl PodStream, Vec<u8>, DetectedProtocol),
    open: &OpenConnection,
) {
    let stream = ClientStream::begun(stream, ahead, open.activity().clone());
    let connection = Connection::of_pod(worker, pod, client, open);
    if let Err(error) = connection.serve_detected(stream, detected, open).await {
        tracing::debug!(pod = &*pod.pod.name, %error, "connection ended");
    }
    // No other client may use its connections to the program.
    worker.pool.forget(&ConnectionKey::pod(pod));
}

/// Serves the tunnels of a connection to a pod.
pub(super) async fn serve_tunnels(
    worker: &Rc<Worker>,
    (pod, client): (&Rc<PodConnection>, &PodClient),
    stream: TlsStream<Inflow<TcpStream>>,
    open: &OpenConnection,
) {
    let connection = Connection { carries_tunnels: true, ..Connection::of_pod(worker, pod, client, open) };
    if let Err(error) = connection.serve_http(stream, Some(DetectedProtocol::Http2), open).await {
        tracing::debug!(pod = &*pod.pod.name, %error, "a connection with tunnels ended");
    }
}

impl Connection {
    fn of_pod(worker: &Rc<Worker>, pod: &Rc<PodConnection>, client: &PodClient, open: &OpenConnection) -> Self {
        Self {
            worker: worker.clone(),
            direction: TrafficDirection::Inbound,
            peer: client.peer.clone(),
            client: OnceCell::new(),
            scheme: "http",
            port: pod.called.port(),
            opened: false,
            accepted_at: None,
            function: None,
            caller: RefCell::default(),
            one_caller: false,
            certificate: client.certificate,
            pod: Some(pod.clone()),
            is_kept: Cell::default(),
            carries_tunnels: false,
            activity: open.activity().clone(),
            attribution: open.attribution().clone(),
        }
    }
}
