use crate::listeners::transparent;
use crate::network::PodNetwork;
use crate::routes::Routes;
use crate::settings::port_range;
use crate::visitors::Visitors;
use leno_ebpf::{KnownCaller, Network, POD_MARK, Pods};
use leno_model::PodUid;
use socket2::SockAddr;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::net::{TcpSocket, TcpStream};

/// Ports of the agent's sockets that have a client's address. A client's own ports are others as a
/// rule, such as Linux's 32768 to 60999. If both used the same port at the same time, the kernel
/// could not tell their packets apart.
const FIRST_PORT: u16 = 10240;
const PORTS: u16 = 32768 - FIRST_PORT;
/// The first port of the range that Linux has by default, and the number of its ports.
const USUAL_PORTS: (u16, u16) = (32768, 28232);
/// Ports that are tried before a connection fails.
const TRIES: u16 = 64;

/// A socket of a pod that is not connected yet.
#[derive(Debug)]
pub struct BoundSocket {
    /// The socket.
    pub socket: TcpSocket,
    /// Its address.
    pub local: SocketAddr,
    /// The address to connect it to.
    pub destination: SocketAddr,
    /// Other agents of the node know whose connection it is, as long as this exists.
    pub known: KnownCaller,
}

/// Opens connections in a pod's network, from any thread and any runtime.
#[derive(Clone, Debug)]
pub struct PodDialer {
    visitors: Visitors,
    pods: Arc<Pods>,
    uid: PodUid,
    network: PodNetwork,
    cookie: Network,
    /// That of this process's listeners in the network.
    generation: u8,
    next_port: Arc<AtomicU16>,
    out_ports: Arc<OutPorts>,
}

impl PodDialer {
    pub(crate) fn new(
        (visitors, pods): (Visitors, Arc<Pods>),
        (uid, network): (PodUid, PodNetwork),
        (cookie, generation): (Network, u8),
    ) -> Self {
        let (next_port, out_ports) = Default::default();
        Self { visitors, pods, uid, network, cookie, generation, next_port, out_ports }
    }

    /// Connects to a destination outside of the pod, with the pod's address.
    ///
    /// # Errors
    /// The destination is the pod itself, or the connection fails.
    pub async fn connect_out(&self, destination: SocketAddr) -> io::Result<TcpStream> {
        let bound = self.bind_out(destination).await?;
        bound.socket.connect(bound.destination).await
    }

    /// The first step of the same. The address of the connection is known before anything is sent: a
    /// peer on this machine accepts the connection before the kernel returns from connecting it.
    ///
    /// # Errors
    /// The destination is the pod itself, no route leads there, or the pod has no free port.
    pub async fn bind_out(&self, destination: SocketAddr) -> io::Result<BoundSocket> {
        let destination = canonical(destination);
        if self.is_own(destination.ip())? {
            let text = format!("{destination} is the pod itself, whose connections to itself are not captured");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let (pods, ports) = (self.pods.clone(), self.out_ports.clone());
        let socket = self.inside(move || outgoing(&pods, destination, &ports)).await?;
        let local = socket.local_addr()?;
        let pod = (self.uid.as_str(), self.cookie);
        let known = self.pods.add_caller(local, pod, self.generation).map_err(io::Error::other)?;
        Ok(BoundSocket { socket, local, destination, known })
    }

    /// Connects to a program of the pod at one of the pod's addresses. The program sees the client's
    /// address, with another port. It sees its own address instead of a link-local client's, which
    /// only the client's interface leads to.
    ///
    /// # Errors
    /// The address is not the pod's, no program listens there (`ConnectionRefused`), or the
    /// connection fails.
    pub async fn connect_in(&self, program: SocketAddr, client: SocketAddr) -> io::Result<TcpStream> {
        let (program, client) = (canonical(program), canonical(client));
        if !self.is_own(program.ip())? {
            // It may be a new one. Otherwise the connection would arrive at the agent again.
            let (pods, cookie) = (self.pods.clone(), self.cookie);
            self.inside(move || learn_addresses(&pods, cookie)).await?;
            if !self.is_own(program.ip())? {
                let text = format!("{program} is no address of the pod");
                return Err(io::Error::new(ErrorKind::AddrNotAvailable, text));
            }
        }
        let is_ipv6 = program.is_ipv6();
        let address = match client.ip() {
            IpAddr::V6(address) if address.is_unicast_link_local() => None,
            address if address.is_ipv6() != is_ipv6 => None,
            address => Some(address),
        };
        let mut failed = io::Error::from(ErrorKind::AddrNotAvailable);
        for _ in 0..TRIES {
            let port = FIRST_PORT + self.next_port.fetch_add(1, Ordering::Relaxed) % PORTS;
            if port == client.port() {
                continue;
            }
            let pods = self.pods.clone();
            let connected = match self.inside(move || ingoing(&pods, address, port, is_ipv6)).await {
                Ok(socket) => socket.connect(program).await,
                Err(error) => Err(error),
            };
            match connected {
                // Another connection has this port.
                Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {
                    failed = error
                }
                connected => return connected,
            }
        }
        Err(failed)
    }

    fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        let is_local = address.is_loopback() || address.is_unspecified();
        Ok(is_local || self.pods.has_address(self.cookie, address).map_err(io::Error::other)?)
    }

    /// Does a job in the pod's network.
    async fn inside<T: Send + 'static>(&self, job: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        self.visitors.visit(&self.network, job).await
    }
}

/// Ports of the agent's sockets for connections out of the pod. They are used one after the other: the
/// node's network may still know an earlier connection with the same port, and would give this one
/// another port, by which the callee would not know its caller.
#[derive(Debug)]
struct OutPorts {
    next: AtomicU32,
    /// The first one and their number, read in the pod's network.
    range: OnceLock<(u16, u16)>,
}

impl Default for OutPorts {
    fn default() -> Self {
        // Another agent may have had the first ports a moment ago.
        let random = RandomState::new().build_hasher().finish() as u32;
        Self { next: AtomicU32::new(random), range: OnceLock::new() }
    }
}

impl OutPorts {
    fn next(&self) -> u16 {
        let (first, count) = *self.range.get_or_init(|| port_range().unwrap_or(USUAL_PORTS));
        first + (self.next.fetch_add(1, Ordering::Relaxed) % u32::from(count)) as u16
    }
}

/// A socket for a connection out of the pod. The kernel lets it out.
fn outgoing(pods: &Pods, destination: SocketAddr, ports: &OutPorts) -> io::Result<TcpSocket> {
    let socket = if destination.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    pods.add_socket(socket.as_fd()).map_err(io::Error::other)?;
    let mut source = source(destination)?;
    for _ in 0..TRIES {
        source.set_port(ports.next());
        match socket.bind(source) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.map(|()| socket),
        }
    }
    // The kernel finds one, if there is any.
    source.set_port(0);
    socket.bind(source).map(|()| socket)
}

/// The pod's address on the way to a destination, with any port. Nothing is sent.
fn source(destination: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = if destination.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let routed = UdpSocket::bind((any, 0))?;
    routed.connect(destination)?;
    let mut source = routed.local_addr()?;
    source.set_port(0);
    Ok(source)
}

/// A socket for a connection to a program, with a client's address. The mark leads it, and the
/// program's answers, back into the pod.
fn ingoing(pods: &Pods, client: Option<IpAddr>, port: u16, is_ipv6: bool) -> io::Result<TcpSocket> {
    let socket = transparent(is_ipv6)?;
    socket.set_mark(POD_MARK)?;
    pods.add_socket(socket.as_fd()).map_err(io::Error::other)?;
    if let Some(client) = client {
        // Connections to several ports of the pod may have the same port here.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(SocketAddr::new(client, port)))?;
    }
    Ok(TcpSocket::from_std_stream(socket.into()))
}

fn learn_addresses(pods: &Pods, cookie: Network) -> io::Result<()> {
    let addresses = Routes::open().and_then(|routes| routes.addresses()).map_err(io::Error::other)?;
    pods.add_addresses(cookie, &addresses).map_err(io::Error::other)
}

/// The form of an IPv4 address that an IPv6 socket has.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        // It keeps its scope.
        IpAddr::V6(_) => address,
    }
}
