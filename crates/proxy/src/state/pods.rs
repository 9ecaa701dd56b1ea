//! The pods that this node serves, and the connections that it has opened for them.

use crate::state::end_notice::EndNotice;
use crate::state::instances::{Connect, ConnectError, InstanceProof, Lease};
use arc_swap::ArcSwap;
use leno_model::{FunctionId, Pod, PodMode, PodProbe, ProbeKind, TrustDomain};
use socket2::SockRef;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// The port of a pod's address at which the node takes tunnels to it (HBONE).
pub const TUNNELS: u16 = 15008;

/// The network of a pod, as the node reaches it.
pub trait PodNetwork: Send + Sync + 'static {
    /// Binds a socket of the pod for a connection to `destination`.
    fn bind_out(&self, destination: SocketAddr) -> Binding;

    /// Connects to the program that listens at `called` in the pod, from the client's address.
    fn connect_in(&self, called: SocketAddr, client: SocketAddr) -> Dial;

    /// Whether this address is one of the node's own, from which the kubelet sends its probes.
    fn is_of_node(&self, address: IpAddr) -> bool;
}

/// The future of [`PodNetwork::bind_out`].
pub type Binding = Pin<Box<dyn Future<Output = io::Result<BoundSocket>> + Send>>;

/// A socket of a pod that is not connected yet.
pub struct BoundSocket {
    /// Its address.
    pub local: SocketAddr,
    /// Connects it.
    pub dial: Dial,
    /// Has other processes of the node know whose connection it is, until this is dropped.
    pub known: Box<dyn Send>,
}

/// A connection that is being opened.
pub type Dial = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// A pod whose connections this node serves.
pub struct ServedPod {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The pod, as the control plane delivered it last.
    pod: ArcSwap<Pod>,
    network: Arc<dyn PodNetwork>,
    ended: AtomicBool,
    end: Notify,
    /// Open connections.
    open: Mutex<OpenConnections>,
    /// Notified when one of them closes.
    closed: Notify,
}

/// The open connections of a pod, each with the notice of its end.
#[derive(Default)]
struct OpenConnections {
    notices: BTreeMap<u64, Arc<EndNotice>>,
    next: u64,
    /// All of them have to end.
    are_ending: bool,
}

/// An open connection of a pod.
pub(crate) struct OpenPodConnection<'a> {
    pod: &'a ServedPod,
    number: u64,
    /// The notice of its end.
    pub notice: Arc<EndNotice>,
}

impl Drop for OpenPodConnection<'_> {
    fn drop(&mut self) {
        self.pod.connections().notices.remove(&self.number);
        self.pod.closed.notify_waiters();
    }
}

impl ServedPod {
    /// A pod whose connections arrive at listeners in its network.
    pub fn new(pod: Pod, network: Arc<dyn PodNetwork>) -> Arc<Self> {
        Arc::new(Self {
            name: format!("{}/{}", pod.namespace, pod.name).into(),
            pod: ArcSwap::from_pointee(pod),
            network,
            ended: AtomicBool::new(false),
            end: Notify::new(),
            open: Mutex::default(),
            closed: Notify::new(),
        })
    }

    /// Replaces the pod's settings. They count for new connections and requests.
    pub fn set(&self, pod: Pod) {
        self.pod.store(Arc::new(pod));
    }

    /// Ends its listeners, after the connections that wait in their queues. Open connections go on.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.end.notify_waiters();
    }

    /// Waits until no connection is open.
    pub async fn drained(&self) {
        loop {
            let closed = self.closed.notified();
            if self.connections().notices.is_empty() {
                return;
            }
            closed.await;
        }
    }

    /// Has connections of HTTP end after their current exchanges. Others end with the program.
    pub fn end_connections(&self) {
        let mut open = self.connections();
        open.are_ending = true;
        open.notices.values().for_each(|notice| notice.give_to_all());
    }

    pub(crate) fn open(&self) -> OpenPodConnection<'_> {
        self.open_with(Arc::default())
    }

    /// An open connection that ends at this notice.
    pub(crate) fn open_with(&self, notice: Arc<EndNotice>) -> OpenPodConnection<'_> {
        let mut open = self.connections();
        let number = open.next;
        open.next += 1;
        open.notices.insert(number, notice.clone());
        if open.are_ending {
            notice.give_to_all();
        }
        OpenPodConnection { pod: self, number, notice }
    }

    fn connections(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its listeners have to end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until the listeners have to end.
    pub(crate) async fn ended(&self) {
        let end = self.end.notified();
        if !self.has_ended() {
            end.await;
        }
    }

    /// The function that the pod runs.
    pub(crate) fn function(&self) -> FunctionId {
        self.pod.load().function.clone()
    }

    /// The SPIFFE ID of its service account; `None`: it has none that the mesh knows.
    pub(crate) fn identity(&self, trust_domain: &TrustDomain) -> Option<Arc<str>> {
        self.pod.load().identity(trust_domain).map(|identity| (&identity).into())
    }

    /// The pod's namespace.
    pub(crate) fn namespace(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Whether the pod has this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.pod.load().addresses.contains(&address)
    }

    /// The pod's address of the same family as another one.
    pub(crate) fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.pod.load().addresses.iter().copied().find(|address| address.is_ipv4() == other.is_ipv4())
    }

    pub(crate) fn is_enforced(&self) -> bool {
        self.pod.load().mode == PodMode::Enforced
    }

    pub(crate) fn network(&self) -> &Arc<dyn PodNetwork> {
        &self.network
    }

    /// Whether connections to this port are tunnels to the pod. A container that declares the port
    /// keeps it.
    pub(crate) fn takes_tunnels_at(&self, port: u16) -> bool {
        port == TUNNELS && self.pod.load().ports.iter().all(|declared| declared.number != TUNNELS)
    }

    /// Whether the name of this port says that its clients speak first, and speak HTTP.
    pub(crate) fn names_http(&self, port: u16) -> bool {
        let pod = self.pod.load();
        let name = pod.ports.iter().find(|named| named.number == port).and_then(|named| named.name.as_deref());
        // Names of ports begin with their protocol, as in `http-metrics`.
        let protocol = name.and_then(|name| name.split('-').next());
        protocol.is_some_and(|protocol| ["http", "http2", "h2c", "grpc"].contains(&protocol))
    }

    fn has_probe(&self, is_it: impl Fn(&PodProbe) -> bool) -> bool {
        self.pod.load().probes.iter().any(is_it)
    }
}

impl fmt::Debug for ServedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedPod").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A connection to a pod.
#[derive(Debug)]
pub(crate) struct PodConnection {
    pub pod: Arc<ServedPod>,
    /// The SPIFFE ID of the pod, if it has one.
    pub identity: Option<Arc<str>>,
    /// Ends the client's connection.
    pub notice: Arc<EndNotice>,
    /// The address and port of the pod that the client called.
    pub called: SocketAddr,
    pub client: SocketAddr,
    /// The client is a program of the node's own network, such as the kubelet.
    pub is_from_node: bool,
    /// The number of its stream, if it comes in a tunnel. Other streams of the tunnel have the same
    /// client address.
    pub stream: Option<u64>,
    /// A connection to the program that was opened ahead.
    opened: Arc<OpenedAhead>,
}

/// A connection to a pod's program that waits for its first user.
#[derive(Debug, Default)]
struct OpenedAhead(Mutex<Option<TcpStream>>);

impl OpenedAhead {
    /// Takes the connection, unless the program has closed it.
    fn take(&self) -> Option<TcpStream> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let peeked = SockRef::from(&stream).peek(&mut [MaybeUninit::uninit()]);
        let is_open = match peeked {
            Ok(count) => count > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        is_open.then_some(stream)
    }
}

/// The path of the health check of gRPC.
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/Check";

impl PodConnection {
    /// A connection that a client has opened to the pod.
    pub(crate) fn new(
        pod: &Arc<ServedPod>,
        (identity, notice): (Option<Arc<str>>, Arc<EndNotice>),
        called: SocketAddr,
        client: SocketAddr,
    ) -> Self {
        let (pod, opened) = (pod.clone(), Arc::default());
        Self { pod, identity, notice, called, client, is_from_node: false, stream: None, opened }
    }

    /// A stream of this connection, which carries tunnels, to a port of the pod.
    pub(crate) fn tunnel(&self, called: SocketAddr, stream: u64) -> Self {
        let identity_and_notice = (self.identity.clone(), Arc::default());
        Self { stream: Some(stream), ..Self::new(&self.pod, identity_and_notice, called, self.client) }
    }

    /// Connects to the program ahead of the first use.
    pub(crate) async fn open(&self) -> io::Result<()> {
        let stream = self.connect().await?;
        *self.opened.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        Ok(())
    }

    /// Whether the kubelet may have sent this GET as a probe. `path`: with its query.
    pub(crate) fn is_http_probe(&self, path: &str) -> bool {
        let is_there = |probe: &PodProbe| {
            let probed = probe.path.as_deref().unwrap_or_default();
            probed == path || probed.is_empty() && path == "/" || path.strip_prefix('/') == Some(probed)
        };
        self.is_probe(ProbeKind::Http, is_there)
    }

    /// Whether the kubelet may have sent this gRPC call as a probe.
    pub(crate) fn is_grpc_probe(&self, path: &str) -> bool {
        path == GRPC_HEALTH && self.is_probe(ProbeKind::Grpc, |_| true)
    }

    /// Whether the kubelet may have opened this connection, which begins with TLS, for a probe.
    pub(crate) fn is_tls_probe(&self) -> bool {
        self.is_probe(ProbeKind::Https, |_| true)
    }

    /// Whether the kubelet may have opened this connection, on which nothing came, for a probe.
    pub(crate) fn is_tcp_probe(&self) -> bool {
        self.is_probe(ProbeKind::Tcp, |_| true)
    }

    fn is_probe(&self, kind: ProbeKind, is_it: impl Fn(&PodProbe) -> bool) -> bool {
        let port = self.called.port();
        self.is_from_node && self.pod.has_probe(|probe| probe.kind == kind && probe.port == port && is_it(probe))
    }

    /// Permission to send requests to this very pod and port.
    pub(crate) fn lease(&self) -> Lease {
        let (network, notice, opened) = (self.pod.network.clone(), self.notice.clone(), self.opened.clone());
        let guard = PodProof { network, notice, called: self.called, client: self.client, opened };
        Lease { address: self.called, instance: Some(self.pod.name.clone()), guard: Box::new(guard) }
    }

    /// Connects to the program.
    pub(crate) fn connect(&self) -> Dial {
        dial(&self.opened, &*self.pod.network, self.called, self.client)
    }
}

/// The connection that was opened ahead, or else another one.
fn dial(opened: &OpenedAhead, network: &dyn PodNetwork, called: SocketAddr, client: SocketAddr) -> Dial {
    match opened.take() {
        Some(stream) => Box::pin(async { Ok(stream) }),
        None => network.connect_in(called, client),
    }
}

/// Connects to a pod's program from the address of a client.
struct PodProof {
    network: Arc<dyn PodNetwork>,
    notice: Arc<EndNotice>,
    called: SocketAddr,
    client: SocketAddr,
    opened: Arc<OpenedAhead>,
}

impl InstanceProof for PodProof {
    fn end_notice(&self) -> Option<Arc<EndNotice>> {
        Some(self.notice.clone())
    }

    fn connect(&self, _: SocketAddr) -> Connect<'_> {
        let dial = dial(&self.opened, &*self.network, self.called, self.client);
        Box::pin(async { dial.await.map_err(ConnectError::Io) })
    }
}

/// Finds the pods for which another process of the node has opened connections.
pub type CallerSearch = Box<dyn Fn(SocketAddr) -> Option<Arc<Pod>> + Send + Sync>;

/// The connections that the node has opened for programs of its pods, by their local address. Such a
/// connection may lead to another pod of this node, which then knows its caller.
#[derive(Default)]
pub struct PodCallers {
    callers: Mutex<HashMap<SocketAddr, (u64, Arc<ServedPod>)>>,
    numbers: AtomicU64,
    others: OnceLock<CallerSearch>,
}

/// Keeps a connection in the table.
pub(crate) struct CallerEntry<'a> {
    table: &'a PodCallers,
    local: SocketAddr,
    number: u64,
}

impl PodCallers {
    /// Also searches the connections of another process of the node, such as the parent of a hot
    /// restart. It counts once.
    pub fn search_also(&self, others: CallerSearch) {
        let _ = self.others.set(others);
    }

    /// Enters a connection before it is opened. The entry stays until the result is dropped.
    pub(crate) fn enter(&self, local: SocketAddr, pod: &Arc<ServedPod>) -> CallerEntry<'_> {
        let (local, number) = (canonical(local), self.numbers.fetch_add(1, Ordering::Relaxed));
        self.lock().insert(local, (number, pod.clone()));
        CallerEntry { table: self, local, number }
    }

    /// The pod whose connection has this address; `None`: the node has not opened it.
    pub(crate) fn find(&self, client: SocketAddr) -> Option<Arc<Pod>> {
        let client = canonical(client);
        let own = self.lock().get(&client).map(|(_, pod)| pod.pod.load_full());
        own.or_else(|| self.others.get()?(client))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, (u64, Arc<ServedPod>)>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PodCallers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodCallers").field("open", &self.lock().len()).finish_non_exhaustive()
    }
}

impl Drop for CallerEntry<'_> {
    fn drop(&mut self) {
        let mut callers = self.table.lock();
        // Another connection may have the address by now.
        if callers.get(&self.local).is_some_and(|(number, _)| *number == self.number) {
            callers.remove(&self.local);
        }
    }
}

/// An IPv4 address in its own form.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
