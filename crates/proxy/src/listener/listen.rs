//! The node's listening sockets. Each address is bound once. All worker threads accept from it, each on a runtime of its own.
//!
//! `SO_REUSEPORT` would spread connections over the workers. But then any process of the same account could listen on the same port, and
//! would get a share of the connections, with the credentials that are sent on them.

use super::Listener;
use super::connection::OpenConnection;
use super::intercept::{self, Entrance, Interceptor};
use crate::corridor::worker::Worker;
use crate::http::peer::TrafficDirection;
use crate::listener::{connection, descriptors};
use crate::runtime::random::Random;
use crate::runtime::schedule;
use crate::runtime::schedule::Class;
use crate::state::admission::Bounds;
use crate::state::node::Node;
use leno_config::slice::MeshSlice;
use leno_identity::TlsError;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Length of each listener's accept queue.
const BACKLOG: i32 = 1024;
/// How long to wait for connections to close when `accept` fails, usually for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Log messages about a failing `accept` are at least this far apart.
const COMPLAINTS: Duration = Duration::from_secs(10);

/// Options of [`serve`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of worker threads; `None`: one per core.
    pub workers: Option<NonZeroUsize>,
    /// Maximum number of client connections, over all listeners of the node. [`descriptors::for_clients`] says how many the process can
    /// have.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { workers: None, connections: descriptors::for_clients(descriptors::raise()) }
    }
}

/// The addresses that a node listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gateway's plain-text listener, if there is one.
    pub gateway_http: Option<SocketAddr>,
    /// The gateway's TLS listener, if there is one.
    pub gateway_https: Option<SocketAddr>,
    /// The outbound listener, for calls from this node's instances.
    pub outbound: SocketAddr,
    /// The inbound listener, for requests from callers' sidecars over mutual TLS.
    pub inbound: SocketAddr,
}

/// Why a node cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The node cannot listen on an address.
    #[error("cannot listen on {address} ({what}): {cause}; {}", remedy(cause, *address))]
    Bind {
        /// The address that cannot be bound.
        address: SocketAddr,
        /// The listener's purpose, in words.
        what: &'static str,
        /// The operating system's error.
        cause: io::Error,
    },
    /// A TLS configuration cannot be made from the gateway's certificate and key, or from the node's own identities.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// A worker thread or its runtime cannot be started.
    #[error("a worker thread did not start: {0}")]
    Thread(io::Error),
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes")]
    NoRandomness,
}

fn remedy(cause: &io::Error, address: SocketAddr) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process has port {}: stop it, or configure another port", address.port())
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need the capability CAP_NET_BIND_SERVICE".to_owned(),
        io::ErrorKind::AddrNotAvailable => format!("{} is no address of this machine", address.ip()),
        _ => "check the address in the Mesh document".to_owned(),
    }
}

/// A node that is serving. If this is dropped, the node drains.
pub struct Handle {
    /// Where the node listens. A port that was configured as 0 is replaced by the assigned one.
    pub addresses: Addresses,
    /// Takes the sockets of rooms, and links.
    pub interceptor: Interceptor,
    draining: watch::Sender<bool>,
    /// Closes when the last worker has ended.
    ended: mpsc::Receiver<()>,
}

impl Handle {
    /// Stops accepting, lets in-flight exchanges end (at most for the mesh's drain timeout), and returns when all workers have ended.
    pub async fn drain(mut self) {
        self.draining.send_replace(true);
        while self.ended.recv().await.is_some() {}
    }
}

/// Binds all listeners of the node's mesh and starts its workers. Once this returns, connections are accepted.
pub fn serve(node: &Arc<Node>, options: Options) -> Result<Handle, ServeError> {
    let mesh = node.snapshot.load().mesh.clone();
    let workers = options.workers.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let (addresses, mut listeners) = bind(node, &mesh, workers)?;
    node.set_inbound(addresses.inbound);
    let (draining, drained) = watch::channel(false);
    let (alive, ended) = mpsc::channel(1);
    let mut intercepting = Vec::new();
    for number in 0..workers {
        let listeners = listeners.pop().unwrap_or_default();
        let random = Random::from_system().ok_or(ServeError::NoRandomness)?;
        let (node, drained, alive) = (node.clone(), drained.clone(), alive.clone());
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Thread)?;
        let (entrances, inbox) = mpsc::unbounded_channel();
        intercepting.push(entrances);
        let work = move || {
            runtime.block_on(schedule::run(work(node, random, listeners, inbox, options, drained)));
            // Connections that are still open have had the whole drain timeout.
            runtime.shutdown_background();
            drop(alive);
        };
        thread::Builder::new().name(format!("leno-worker-{number}")).spawn(work).map_err(ServeError::Thread)?;
    }
    Ok(Handle { addresses, interceptor: Interceptor::new(intercepting), draining, ended })
}

/// A bound listener that no worker's runtime has taken yet.
struct Bound {
    socket: std::net::TcpListener,
    address: SocketAddr,
    direction: TrafficDirection,
    tls: Option<Arc<ServerConfig>>,
}

/// Binds all addresses. Returns them, and the listeners of each worker.
fn bind(node: &Node, mesh: &MeshSlice, workers: usize) -> Result<(Addresses, Vec<Vec<Bound>>), ServeError> {
    let inbound_tls = leno_identity::server_config(&node.svids)?;
    let mut listeners: Vec<Vec<Bound>> = (0..workers).map(|_| Vec::new()).collect();
    let mut bind_one = |what, address: SocketAddr, direction, tls: Option<Arc<ServerConfig>>| {
        let error = |cause| ServeError::Bind { address, what, cause };
        let socket = listen(address).map_err(error)?;
        let address = socket.local_addr().map_err(error)?;
        for listeners in &mut listeners {
            let socket = socket.try_clone().map_err(error)?;
            listeners.push(Bound { socket, address, direction, tls: tls.clone() });
        }
        Ok::<_, ServeError>(address)
    };
    let gateway_http =
        mesh.gateway_http.map(|address| bind_one("gateway", address, TrafficDirection::Gateway, None)).transpose()?;
    let gateway_https = match &mesh.gateway_https {
        None => None,
        Some(tls) => {
            let config = leno_identity::gateway_server_config(&tls.certificate, &tls.key)?;
            Some(bind_one("TLS gateway", tls.listen, TrafficDirection::Gateway, Some(config))?)
        }
    };
    let outbound = bind_one("outbound sidecars", mesh.outbound, TrafficDirection::Outbound, None)?;
    let inbound = bind_one("inbound sidecars", mesh.inbound, TrafficDirection::Inbound, Some(inbound_tls))?;
    Ok((Addresses { gateway_http, gateway_https, outbound, inbound }, listeners))
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // A restarted node must not wait until the kernel has forgotten old connections.
    socket.set_reuse_address(true)?;
    // Accepted connections inherit keepalive. It detects a vanished peer even on a connection that may stay silent for long.
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20)),
    )?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Runs one worker, from its first connection to its last.
async fn work(
    node: Arc<Node>,
    random: Random,
    listeners: Vec<Bound>,
    entrances: mpsc::UnboundedReceiver<Entrance>,
    options: Options,
    mut drained: watch::Receiver<bool>,
) {
    let worker = Worker::new(node, random);
    let idle = worker.clone();
    schedule::when_idle(move || idle.judge.tidy());
    let _watching = schedule::spawn_own(worker.clone().watch());
    let accepting: Vec<_> = listeners
        .into_iter()
        .filter_map(|bound| {
            let socket = TcpListener::from_std(bound.socket)
                .inspect_err(|error| tracing::error!(address = %bound.address, %error, "a listener is lost"))
                .ok()?;
            let listener = Rc::new(Listener {
                worker: worker.clone(),
                direction: bound.direction,
                caller: None,
                tls: bound.tls.map(TlsAcceptor::from),
                address: bound.address,
            });
            schedule::spawn_own(accept(socket, listener, options.connections))
        })
        .collect();
    let intercepting =
        schedule::spawn_own(intercept::serve(worker.clone(), entrances, drained.clone(), options.connections));
    // An error means that the handle was dropped without draining. The worker drains in that case, too.
    let _ = drained.wait_for(|draining| *draining).await;
    // Stops accepting.
    drop((accepting, intercepting));
    worker.connections.drain();
    let limit = worker.snapshot().mesh.limits.drain_timeout;
    if tokio::time::timeout(limit, worker.connections.fewer_than(1)).await.is_err() {
        tracing::warn!(connections = worker.connections.count(), "cutting off what did not end within {limit:?}");
    }
}

/// Accepts connections, and spawns a task for each one that is admitted.
pub(super) async fn accept(socket: TcpListener, listener: Rc<Listener>, most: usize) {
    let mut complained: Option<Instant> = None;
    loop {
        match socket.accept().await {
            Ok((stream, address)) => {
                admit(&listener, stream, address, most);
                // Yield after each connection. Even in a flood, the worker must close the connections that made room for new ones. And when
                // a burst has woken several workers, the first one must leave some of it to the others.
                schedule::give_way().await;
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if complained.is_none_or(|last| last.elapsed() > COMPLAINTS) {
                    tracing::error!(address = %listener.address, %error, "cannot accept connections; they wait");
                    complained = Some(Instant::now());
                }
                listener.worker.node.admission.shed();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn admit(listener: &Rc<Listener>, stream: TcpStream, address: SocketAddr, most: usize) {
    let limits = listener.worker.snapshot().mesh.limits;
    let per_address = match (listener.direction, limits.connections_per_address) {
        // All instances of the node share one address, and callers' nodes authenticate themselves.
        (TrafficDirection::Outbound | TrafficDirection::Inbound, _) | (_, 0) => usize::MAX,
        (TrafficDirection::Gateway, number) => number as usize,
    };
    let bounds = Bounds { address: per_address, direction: limits.connections as usize, node: most };
    let open = OpenConnection::new(&listener.worker);
    let admission = &listener.worker.node.admission;
    if let Some(admitted) = admission.admit(listener.direction, address.ip(), open.activity(), bounds) {
        let connection = connection::serve(listener.clone(), stream, address, open);
        schedule::spawn_for(Class::STRANGERS, admitted.serve(connection));
    }
}

/// Whether the error is about one connection, which ended before it was accepted. The listener is fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
