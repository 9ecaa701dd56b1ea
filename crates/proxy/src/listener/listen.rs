//! The node's listening sockets. Each address is bound once. All worker threads accept from it,
//! each on a separate runtime.
//!
//! `SO_REUSEPORT` would spread connections over the workers. But then any process of the same
//! account could listen on the same port, and would get a share of the connections, with the
//! credentials that are sent on them.
//!
//! In a hot restart, the child inherits the sockets themselves, with the connections that wait in
//! their queues. Until the child reports that it serves, both processes have the sockets, and
//! neither closes any.

use super::Listener;
use super::certificates::PortCertificates;
use super::connection::OpenConnection;
use super::intercept::{self, InstanceListener, Interceptor};
use super::ports::{GatewayPorts, PortChange};
use crate::listener::{connection, descriptors};
use crate::pipeline::open::LAST_BYTES;
use crate::pipeline::worker::{Opener, Worker};
use crate::state::admission::{AdmissionError, Bounds, Holder};
use crate::state::node::Node;
use crate::state::routes::gateway::PortProtocol;
use leno_http::peer::TrafficDirection;
use leno_identity::TlsError;
use leno_model::MeshConfig;
use leno_runtime::random::Random;
use leno_runtime::schedule;
use leno_runtime::schedule::Class;
use socket2::{Domain, Protocol, Socket, Type};
use std::borrow::Borrow;
use std::future::pending;
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
/// How long to wait for connections to close when `accept` fails, usually for lack of file
/// descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the listener of a jail waits after it has refused a connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// How long the listeners of a pod that gets no new connections wait for those in their queues.
const LAST_CONNECTIONS: Duration = Duration::from_secs(1);

/// Minimum time between log messages about a failing `accept`.
const COMPLAINTS: Duration = Duration::from_secs(10);

/// Options of [`serve`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of worker threads; `None`: one per core.
    pub workers: Option<NonZeroUsize>,
    /// Maximum number of client connections, over all listeners of the node.
    /// `descriptors::for_clients` says how many the process can have.
    pub connections: usize,
    /// Whether the node has instances that call through the outbound listener. Those of Kubernetes have
    /// none, and pods in the node's network could reach it.
    pub outbound: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { workers: None, connections: descriptors::for_clients(descriptors::raise()), outbound: true }
    }
}

/// The addresses that a node listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The gateway's plain-text listener, if there is one.
    pub gateway_http: Option<SocketAddr>,
    /// The gateway's TLS listener, if there is one.
    pub gateway_https: Option<SocketAddr>,
    /// The outbound listener, for calls from this node's instances, if it has any.
    pub outbound: Option<SocketAddr>,
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
    /// A TLS configuration cannot be made from the gateway's certificate and key, or from the
    /// node's own identities.
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

/// The phases of the workers, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// They serve the jails of this node, and do not accept yet.
    Waiting,
    Serving,
    /// They accept no more, because the child of a hot restart does. Open connections go on.
    HandedOver,
    /// They accept no clients any more, and the connections of clients end. Instances can call as
    /// long as any client's connection is open.
    Draining,
    /// All connections end.
    Ending,
}

/// A node that is serving. If this is dropped, the node drains.
pub struct Handle {
    /// Where the node listens. A port that was configured as 0 is replaced by the assigned one.
    pub addresses: Addresses,
    /// Takes the sockets of jails, and links.
    pub interceptor: Interceptor,
    /// Opens the ports of Gateway documents.
    pub ports: GatewayPorts,
    phase: watch::Sender<Phase>,
    sockets: Vec<std::net::TcpListener>,
    /// Closes when no worker has a client's connection any more, once the node drains or the child
    /// of a hot restart has taken over.
    left: mpsc::Receiver<()>,
    /// Closes when the last worker has ended.
    ended: mpsc::Receiver<()>,
    node: Arc<Node>,
}

impl Handle {
    /// Accepts connections from now on.
    pub fn open(&self) {
        self.ports.drop_inherited();
        self.phase.send_replace(Phase::Serving);
    }

    /// Accepts connections when `ready` resolves, unless the node ends before. Until then,
    /// connections wait in the accept queues.
    pub fn open_when(&self, ready: impl Future<Output = ()> + Send + 'static) {
        let phase = self.phase.clone();
        tokio::spawn(async move {
            ready.await;
            phase.send_if_modified(|phase| {
                let waits = *phase == Phase::Waiting;
                *phase = (*phase).max(Phase::Serving);
                waits
            });
        });
    }

    /// The listening sockets, for the child of a hot restart.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn sockets(&self) -> io::Result<Vec<std::net::TcpListener>> {
        let mut all: Vec<_> = self.sockets.iter().map(std::net::TcpListener::try_clone).collect::<io::Result<_>>()?;
        all.append(&mut self.ports.sockets()?);
        Ok(all)
    }

    /// Stops accepting, lets in-flight exchanges end (at most for the mesh's drain timeout), and
    /// returns when all workers have ended. Until the last client's connection has ended, instances
    /// can call.
    pub async fn drain(self) {
        self.end(Phase::Draining).await;
    }

    /// Ends like [`Handle::drain`], where the child of a hot restart now accepts from the sockets.
    /// Clients do not notice: idle connections stay until their next response, which announces that
    /// it is the last.
    pub async fn hand_over(self) {
        self.end(Phase::HandedOver).await;
    }

    async fn end(mut self, phase: Phase) {
        self.sockets.clear();
        self.ports.end();
        let limit = self.node.snapshot.load().mesh.limits.drain_timeout;
        self.phase.send_replace(phase);
        let left = async { while self.left.recv().await.is_some() {} };
        // The workers cut off the connections that are left then.
        let _ = tokio::time::timeout(limit, left).await;
        self.phase.send_replace(Phase::Ending);
        while self.ended.recv().await.is_some() {}
    }
}

/// Binds all listeners of the node's mesh and starts its workers. Once this returns, connections
/// are accepted.
pub fn serve(node: &Arc<Node>, options: Options) -> Result<Handle, ServeError> {
    let handle = take_over(node, options, Vec::new())?;
    handle.open();
    Ok(handle)
}

/// Like [`serve`], but accepts no connection before [`Handle::open`]. Listens on those of the
/// `inherited` sockets that are bound to the right address.
pub fn take_over(
    node: &Arc<Node>,
    options: Options,
    inherited: Vec<std::net::TcpListener>,
) -> Result<Handle, ServeError> {
    let mesh = node.snapshot.load().mesh.clone();
    let workers = options.workers.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let Listeners { addresses, sockets, mut of_workers, inherited } =
        bind(node, &mesh, (workers, options.outbound), inherited)?;
    node.set_inbound(addresses.inbound);
    let (phase, phases) = watch::channel(Phase::Waiting);
    let ((alive, ended), (busy, left)) = (mpsc::channel(1), mpsc::channel(1));
    let (mut intercepting, mut opening) = (Vec::new(), Vec::new());
    for number in 0..workers {
        let listeners = of_workers.pop().unwrap_or_default();
        let random = Random::from_system().ok_or(ServeError::NoRandomness)?;
        let (node, phases, alive, busy) = (node.clone(), phases.clone(), alive.clone(), busy.clone());
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Thread)?;
        let (sender, inbox) = mpsc::unbounded_channel();
        intercepting.push(sender);
        let (sender, changes) = mpsc::unbounded_channel();
        opening.push(sender);
        let work = move || {
            runtime.block_on(schedule::run(work(node, random, (listeners, changes), inbox, options, (phases, busy))));
            // Connections that are still open have had the whole drain timeout.
            runtime.shutdown_background();
            drop(alive);
        };
        thread::Builder::new().name(format!("leno-worker-{number}")).spawn(work).map_err(ServeError::Thread)?;
    }
    let fixed = addresses.gateway_http.into_iter().chain(addresses.gateway_https).collect();
    let ports = GatewayPorts::new(node, opening, fixed, inherited);
    let (interceptor, node) = (Interceptor::new(intercepting), node.clone());
    Ok(Handle { addresses, interceptor, ports, phase, sockets, left, ended, node })
}

/// All listeners of a node.
struct Listeners {
    addresses: Addresses,
    sockets: Vec<std::net::TcpListener>,
    of_workers: Vec<Vec<BoundListener>>,
    /// Sockets of the parent that the Mesh document does not name.
    inherited: Vec<std::net::TcpListener>,
}

/// A bound listener that no worker's runtime has taken yet.
pub(super) struct BoundListener {
    pub socket: std::net::TcpListener,
    pub address: SocketAddr,
    pub direction: TrafficDirection,
    pub tls: Option<Arc<ServerConfig>>,
    /// The protocol, if a Gateway document opens it.
    pub opened: Option<PortProtocol>,
}

/// Binds all addresses.
fn bind(
    node: &Arc<Node>,
    mesh: &MeshConfig,
    (workers, has_outbound): (usize, bool),
    mut inherited: Vec<std::net::TcpListener>,
) -> Result<Listeners, ServeError> {
    let inbound_tls = leno_identity::server_config(&node.svids)?;
    let mut of_workers: Vec<Vec<BoundListener>> = (0..workers).map(|_| Vec::new()).collect();
    let mut sockets = Vec::new();
    let mut bind_one = |what, address: SocketAddr, direction, tls: Option<Arc<ServerConfig>>| {
        let error = |cause| ServeError::Bind { address, what, cause };
        let is_there = |socket: &std::net::TcpListener| socket.local_addr().is_ok_and(|bound| bound == address);
        let socket = match inherited.iter().position(is_there) {
            Some(index) => inherited.swap_remove(index),
            None => listen(address).map_err(error)?,
        };
        let address = socket.local_addr().map_err(error)?;
        for listeners in &mut of_workers {
            let socket = socket.try_clone().map_err(error)?;
            listeners.push(BoundListener { socket, address, direction, tls: tls.clone(), opened: None });
        }
        sockets.push(socket);
        Ok::<_, ServeError>(address)
    };
    let gateway_http =
        mesh.gateway_http.map(|address| bind_one("gateway", address, TrafficDirection::Gateway, None)).transpose()?;
    let gateway_https = match &mesh.gateway_https {
        None => None,
        Some(tls) => {
            let certificates = leno_identity::ServerCertificates::read(tls.files())?;
            node.gateway_certificates.store(Some(certificates));
            let chosen = PortCertificates { node: node.clone(), port: tls.listen.port(), opened: false };
            let config = leno_identity::gateway_server_config(Arc::new(chosen))?;
            Some(bind_one("TLS gateway", tls.listen, TrafficDirection::Gateway, Some(config))?)
        }
    };
    node.machines.set_gateway(gateway_http.into_iter().chain(gateway_https));
    let outbound = has_outbound
        .then(|| bind_one("outbound sidecars", mesh.outbound, TrafficDirection::Outbound, None))
        .transpose()?;
    let inbound = bind_one("inbound sidecars", mesh.inbound, TrafficDirection::Inbound, Some(inbound_tls))?;
    let addresses = Addresses { gateway_http, gateway_https, outbound, inbound };
    Ok(Listeners { addresses, sockets, of_workers, inherited })
}

pub(super) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // A restarted node must not wait until the kernel has forgotten old connections.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Runs one worker, from its first connection to its last.
async fn work(
    node: Arc<Node>,
    random: Random,
    (listeners, mut changes): (Vec<BoundListener>, mpsc::UnboundedReceiver<PortChange>),
    instances: mpsc::UnboundedReceiver<InstanceListener>,
    options: Options,
    (mut phases, busy): (watch::Receiver<Phase>, mpsc::Sender<()>),
) {
    let worker = Worker::new(node, random);
    let idle = worker.clone();
    schedule::when_idle(move || idle.judge.tidy());
    let _watching = schedule::spawn_own(worker.clone().watch());
    let intercepting =
        schedule::spawn_own(intercept::serve(worker.clone(), instances, phases.clone(), options.connections));
    // Errors mean that the handle was dropped. The worker drains in that case, too.
    let _ = phases.wait_for(|phase| *phase >= Phase::Serving).await;
    let begin = |bound: BoundListener| {
        let socket = TcpListener::from_std(bound.socket)
            .inspect_err(|error| tracing::error!(address = %bound.address, %error, "a listener is lost"))
            .ok()?;
        let listener = Rc::new(Listener {
            worker: worker.clone(),
            direction: bound.direction,
            caller: None,
            pod: None,
            share: None,
            tls: bound.tls.map(TlsAcceptor::from),
            address: bound.address,
            opened: bound.opened,
            closed: Rc::default(),
        });
        Some((listener.clone(), schedule::spawn_own(accept(socket, listener, options.connections))))
    };
    let mut accepting: Vec<_> = listeners.into_iter().filter_map(begin).collect();
    let phase = loop {
        tokio::select! {
            phase = phases.wait_for(|phase| *phase >= Phase::HandedOver) => break phase.map_or(Phase::Ending, |phase| *phase),
            Some(change) = changes.recv() => match change {
                PortChange::Open(bound) => accepting.extend(begin(bound)),
                PortChange::Close(address) => {
                    accepting.iter().filter(|(listener, _)| listener.address == address).for_each(|(listener, _)| listener.closed.set(true));
                    accepting.retain(|(listener, _)| listener.address != address);
                    worker.connections.wake();
                }
            },
        }
    };
    let limit = worker.snapshot().mesh.limits.drain_timeout;
    let end = tokio::time::Instant::now() + limit;
    // Stops accepting.
    accepting.retain(|(listener, _)| phase == Phase::Draining && listener.direction == TrafficDirection::Outbound);
    match phase {
        Phase::HandedOver => worker.connections.hand_over(),
        _ => worker.connections.drain_clients(),
    }
    let left = async {
        worker.connections.without_clients().await;
        drop(busy);
        // Other workers may have clients for whose requests instances call here.
        pending::<()>().await;
    };
    tokio::select! {
        () = left => {}
        _ = phases.wait_for(|phase| *phase >= Phase::Ending) => {}
    }
    drop((accepting, intercepting));
    worker.connections.drain();
    if tokio::time::timeout_at(end, worker.connections.fewer_than(1)).await.is_ok() {
        return;
    }
    worker.end_all();
    if tokio::time::timeout(LAST_BYTES, worker.connections.fewer_than(1)).await.is_err() {
        tracing::warn!(connections = worker.connections.count(), "cutting off what did not end within {limit:?}");
    }
}

/// Accepts the connections of a socket that is to get no new ones, for a while, and then those that
/// its queue still has.
pub(super) async fn accept_rest(socket: &TcpListener, listener: &Rc<Listener>, most: usize) {
    let until = tokio::time::Instant::now() + LAST_CONNECTIONS;
    // After that time, a connection that is there still comes before the timeout.
    while let Ok(accepted) = tokio::time::timeout_at(until, socket.accept()).await {
        match accepted {
            // It counts a refusal itself.
            Ok((stream, address)) => drop(admit(listener, stream, address, most)),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => return,
        }
    }
}

/// Accepts connections, and spawns a task for each one that is admitted.
pub(super) async fn accept(socket: impl Borrow<TcpListener>, listener: Rc<Listener>, most: usize) {
    let (socket, mut complained) = (socket.borrow(), None::<Instant>);
    loop {
        match socket.accept().await {
            Ok((stream, address)) => {
                if let (Err(refused), Some(_)) = (admit(&listener, stream, address, most), &listener.caller) {
                    listener.refuse(refused);
                    // Further connections from the jail wait a moment longer, so that accepting and
                    // refusing them does not use up the worker's time.
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
                // Yield after each connection. Even in a flood, the worker must close the
                // connections that were shed for new ones. And when a burst has woken several
                // workers, the first one must leave some of it to the others.
                schedule::give_way().await;
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if complained.is_none_or(|last| last.elapsed() > COMPLAINTS) {
                    tracing::error!(address = %listener.address, %error, "cannot accept connections; they wait");
                    complained = Some(Instant::now());
                }
                listener.worker.node.admission.shed(listener.direction, listener.share.as_deref());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn admit(listener: &Rc<Listener>, stream: TcpStream, address: SocketAddr, most: usize) -> Result<(), AdmissionError> {
    let limits = listener.worker.snapshot().mesh.limits;
    let per_address = match (listener.direction, limits.connections_per_address) {
        // All instances of the node share one address, and callers' nodes authenticate themselves.
        (TrafficDirection::Outbound | TrafficDirection::Inbound, _) | (_, 0) => usize::MAX,
        (TrafficDirection::Gateway, number) => number as usize,
    };
    let bounds = Bounds { address: per_address, direction: limits.connections as usize, node: most };
    let opener = match (listener.direction, &listener.pod) {
        (TrafficDirection::Outbound, Some(_)) => Opener::Pod,
        (direction, _) => direction.into(),
    };
    let mut open = OpenConnection::new(&listener.worker, opener);
    open.follow(&listener.closed);
    let instance = listener.caller.as_ref().map(|caller| &caller.instance);
    let holder = match (instance.or(listener.pod.as_ref().map(|pod| &pod.name)), &listener.share) {
        (Some(instance), Some(share)) => Holder::Instance(instance, share),
        _ => Holder::Address(address.ip()),
    };
    let admission = &listener.worker.node.admission;
    let admitted = admission.admit(listener.direction, holder, open.activity(), bounds)?;
    open.set_attribution(admitted.attribution());
    let connection = connection::serve(listener.clone(), stream, address, open);
    schedule::spawn_for(Class::UNATTRIBUTED, admitted.serve(connection));
    Ok(())
}

/// Whether the error is about one connection, which ended before it was accepted. The listener is
/// fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
