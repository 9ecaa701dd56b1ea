//! Serves the connections of a pod that arrive at listeners in its network: those that its programs
//! open, and those that others open to it.

use super::Listener;
use super::connection::{self, OpenConnection};
use super::listen::{Phase, accept, accept_rest};
use super::tunnels;
use crate::l4::PodStream;
use crate::l4::opening::{self, Opening, Patience};
use crate::l4::pod_calls::connect_on;
use crate::l4::pods::{PodClient, PodTcp, copy_unjudged};
use crate::listener::stream::DetectedProtocol;
use crate::pipeline::worker::{Opener, Worker};
use crate::state::pods::{PodConnection, ServedPod, canonical};
use leno_http::peer::{Peer, TrafficDirection};
use leno_runtime::schedule::{self, Class};
use std::io;
use std::net;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The listeners of a pod, and the pod.
#[derive(Debug)]
pub struct PodListeners {
    /// The pod.
    pub pod: Arc<ServedPod>,
    /// Take the connections that its programs open. The local address of a connection is its
    /// destination.
    pub outbound: Vec<net::TcpListener>,
    /// Take the connections that others open to it. The local address of a connection is the called
    /// one.
    pub inbound: Vec<net::TcpListener>,
}

impl PodListeners {
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let clone = |listeners: &[net::TcpListener]| {
            listeners.iter().map(net::TcpListener::try_clone).collect::<io::Result<_>>()
        };
        Ok(Self { pod: self.pod.clone(), outbound: clone(&self.outbound)?, inbound: clone(&self.inbound)? })
    }
}

/// Serves the listeners until the pod or the node ends.
pub(super) fn spawn(worker: &Rc<Worker>, listeners: PodListeners, phases: &watch::Receiver<Phase>, most: usize) {
    let PodListeners { pod, outbound, inbound } = listeners;
    let outbound = outbound.into_iter().map(|socket| (TrafficDirection::Outbound, socket));
    for (direction, socket) in outbound.chain(inbound.into_iter().map(|socket| (TrafficDirection::Inbound, socket))) {
        let (socket, listener) = match begin(worker, &pod, direction, socket) {
            Ok(begun) => begun,
            Err(error) => {
                tracing::error!(pod = &*pod.name, ?direction, %error, "connections of a pod are not served");
                continue;
            }
        };
        let (pod, mut phases, mut later) = (pod.clone(), phases.clone(), phases.clone());
        // After a hot restart, the worker does not end before the listener has.
        let open = OpenConnection::new(worker, Opener::Pod);
        schedule::spawn_for(Class::of(&pod.function().to_string()), async move {
            let _open = open;
            tokio::select! {
                () = accept(&socket, listener.clone(), most) => {}
                () = pod.ended() => accept_rest(&socket, &listener, most).await,
                // The child of a hot restart gets new connections. Those that were in the queues
                // before are served here.
                _ = phases.wait_for(|phase| *phase == Phase::HandedOver) => accept_rest(&socket, &listener, most).await,
                _ = later.wait_for(|phase| *phase >= Phase::Ending) => {}
            }
        });
    }
}

fn begin(
    worker: &Rc<Worker>,
    pod: &Arc<ServedPod>,
    direction: TrafficDirection,
    socket: net::TcpListener,
) -> io::Result<(TcpListener, Rc<Listener>)> {
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    let listener = Rc::new(Listener {
        worker: worker.clone(),
        direction,
        caller: None,
        pod: Some(pod.clone()),
        share: Some(worker.node.telemetry.namespaces.of(&pod.function().namespace)),
        tls: None,
        address: socket.local_addr()?,
        opened: None,
        closed: Rc::default(),
    });
    Ok((socket, listener))
}

/// Serves a connection of a pod.
pub(super) async fn serve(
    listener: &Rc<Listener>,
    pod: &Arc<ServedPod>,
    stream: TcpStream,
    client: SocketAddr,
    open: OpenConnection,
) {
    let worker = &listener.worker;
    let opened = pod.open();
    if listener.direction == TrafficDirection::Outbound {
        let _busy = open.activity().begin();
        // The node cannot see whether the connection is in use, so a draining node ends it.
        let _ = open.unless_draining(connect_on(worker, pod, stream)).await;
        return;
    }
    let Ok(called) = stream.local_addr() else { return };
    let (called, client) = (canonical(called), canonical(client));
    let mesh = worker.snapshot().mesh.clone();
    let identity = pod.identity(&mesh.trust_domain);
    let mut connection = PodConnection::new(pod, (identity, opened.notice.clone()), called, client);
    if pod.takes_tunnels_at(called.port()) {
        return tunnels::serve(worker, connection, stream, &open).await;
    }
    let caller = worker.node.pod_callers.find(client);
    connection.is_from_node = caller.is_none() && pod.network().is_of_node(client.ip());
    let connection = Rc::new(connection);
    // Its function is a label's word. Its account proves who it is.
    let identity = caller.as_ref().and_then(|caller| caller.identity(&mesh.trust_domain));
    let peer = Peer { identity: identity.as_ref().map(Into::into), address: client };
    serve_inbound(worker, &connection, &PodClient { peer, caller, certificate: None }, stream, &open).await;
}

/// Serves a connection to a pod, which may be one in a tunnel.
pub(super) async fn serve_inbound(
    worker: &Rc<Worker>,
    connection: &Rc<PodConnection>,
    client: &PodClient,
    mut stream: impl PodStream,
    open: &OpenConnection,
) {
    let pod = &connection.pod;
    let limits = worker.snapshot().mesh.limits;
    let patience = match pod.names_http(connection.called.port()) {
        true => Patience { first: limits.idle_timeout, line: limits.head_timeout },
        false => Patience::short(limits.head_timeout),
    };
    let mut ahead = Vec::new();
    let begun = tokio::select! {
        begun = open.unless_draining(opening::read(&mut stream, &mut ahead, patience)) => begun,
        () = connection.notice.given_to_all() => None,
    };
    let Some(Ok(mut begun)) = begun else { return };
    let Some((_, entry)) = worker.snapshot_with(&pod.function()) else {
        // An enforced pod takes nothing that is not judged.
        if !pod.is_enforced() {
            copied(open, connection, stream, &ahead).await;
        }
        return;
    };
    let is_probe = match begun {
        Opening::Tls => connection.is_tls_probe(),
        Opening::Nothing => connection.is_tcp_probe(),
        _ => false,
    };
    if is_probe {
        return copied(open, connection, stream, &ahead).await;
    }
    if !matches!(begun, Opening::Http1 | Opening::Http2) {
        let _busy = open.activity().begin();
        let proxy = PodTcp::new(worker, connection, client);
        let Some(Some(late)) = open.unless_draining(proxy.run(stream, ahead, begun)).await else { return };
        (stream, ahead, begun) = (late.stream, late.ahead, late.opening);
    }
    schedule::charge(entry.class);
    let agreed = match begun {
        Opening::Http2 => DetectedProtocol::Http2,
        _ => DetectedProtocol::Http1,
    };
    connection::serve_pod(worker, (connection, client), (stream, ahead, agreed), open).await;
}

async fn copied(open: &OpenConnection, connection: &PodConnection, stream: impl PodStream, ahead: &[u8]) {
    let _busy = open.activity().begin();
    if let Some(Err(error)) = open.unless_draining(copy_unjudged(connection, stream, ahead)).await {
        tracing::debug!(pod = &*connection.pod.name, %error, "a connection to a pod has failed");
    }
}
