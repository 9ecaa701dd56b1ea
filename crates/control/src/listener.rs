//! The control plane's listener: TLS, and the identity of the peer.

use crate::places::{Places, source};
use leno_identity::{MembershipMark, SpiffeId, handshake_failure, peer_addresses, peer_identity};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at a time, and those of one source. Further ones of a source are closed.
const HANDSHAKES: usize = 512;
const HANDSHAKES_OF_SOURCE: usize = 128;
/// Connections without a certificate at a time, those of one source, and how long one may last:
/// enough to join. Connections of nodes are not counted here, so these cannot take a node's place.
const GUESTS: usize = 128;
const GUESTS_OF_SOURCE: usize = 16;
const VISIT: Duration = Duration::from_secs(30);
/// Connections of one node at a time, and of all of them. Of a node that has too many, the oldest
/// one ends.
const OF_NODE: usize = 16;
const OF_NODES: usize = 65_536;
/// Pause after an error of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);
/// Log messages about refused connections are at least this far apart.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A connection after its handshake.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    /// Resolves when the connection has to end; `None`: it has resolved.
    ends: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// The places of connections after their handshakes.
#[derive(Clone)]
struct Shares {
    /// By the certificate's name.
    nodes: Arc<Places<String>>,
    /// Of machines that have yet to join.
    guests: Arc<Places>,
}

/// The peer of a connection, as its certificate proves.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// `None`: it has presented no certificate, because it has yet to join.
    pub identity: Option<SpiffeId>,
    /// The membership of its certificate.
    pub membership: Option<MembershipMark>,
    /// The addresses that its certificate confirms.
    pub addresses: Arc<[IpAddr]>,
    /// Where the connection comes from.
    pub from: SocketAddr,
    /// The address of this machine at which it arrived.
    pub at: Option<IpAddr>,
}

impl Peer {
    /// Whether its certificate confirms this address.
    pub(crate) fn confirms(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|confirmed| confirmed.to_canonical() == address.to_canonical())
    }

    /// The addresses, for messages.
    pub(crate) fn confirmed(&self) -> String {
        let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
        if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") }
    }
}

/// Accepts connections, and runs their handshakes concurrently, until the stream is dropped.
pub(crate) fn accept(listener: TcpListener, config: Arc<ServerConfig>) -> ReceiverStream<io::Result<Connection>> {
    let (connections, accepted) = mpsc::channel(1);
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(config);
        let handshakes = Places::new(HANDSHAKES, HANDSHAKES_OF_SOURCE);
        let shares = Shares { nodes: Places::new(OF_NODES, OF_NODE), guests: Places::new(GUESTS, GUESTS_OF_SOURCE) };
        let refusals = Arc::new(Refusals::default());
        loop {
            let (stream, from) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "the control plane could not accept a connection");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
                () = connections.closed() => return,
            };
            let Some(place) = handshakes.take(source(from.ip())) else {
                refusals.tell(from, &"too many handshakes from there at a time");
                continue;
            };
            let (acceptor, connections, shares) = (acceptor.clone(), connections.clone(), shares.clone());
            let refusals = refusals.clone();
            let in_use = place.requests().begin();
            tokio::spawn(async move {
                let _in_use = in_use;
                let shaken = tokio::select! {
                    shaken = tokio::time::timeout(HANDSHAKE, handshake(acceptor, stream, from, shares)) => shaken,
                    () = place.ended() => return refusals.tell(from, &"many others began handshakes"),
                };
                match shaken {
                    Ok(Ok(connection)) => {
                        // This fails once the server has ended.
                        let _ = connections.send(Ok(connection)).await;
                    }
                    Ok(Err(error)) => refusals.tell(from, &error),
                    Err(_) => refusals.tell(from, &format_args!("the handshake took longer than {HANDSHAKE:?}")),
                }
                drop(place);
            });
        }
    });
    ReceiverStream::new(accepted)
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    from: SocketAddr,
    shares: Shares,
) -> io::Result<Connection> {
    // Messages are small and awaited. Waiting to fill a packet would cost a delayed
    // acknowledgement, 40 ms.
    stream.set_nodelay(true)?;
    let at = stream.local_addr().ok().map(|address| address.ip());
    let accepted = acceptor.accept(stream).await;
    let stream = accepted.map_err(|error| handshake_failure(&error).map_or(error, io::Error::other))?;
    let state = stream.get_ref().1;
    let (identity, membership) = (peer_identity(state), MembershipMark::of_peer(state));
    let peer = Peer { identity, membership, addresses: peer_addresses(state).into(), from, at };
    let ends: Pin<Box<dyn Future<Output = ()> + Send>> = match &peer.identity {
        Some(identity) => {
            let place = shares.nodes.take(identity.to_string());
            let place = place.ok_or_else(|| io::Error::other("too many connections of nodes"))?;
            Box::pin(async move { place.ended().await })
        }
        None => {
            let place = shares.guests.take(source(from.ip()));
            let place = place.ok_or_else(|| io::Error::other("too many connections without a certificate"))?;
            let in_use = place.requests().begin();
            Box::pin(async move {
                let _in_use = in_use;
                let _ = tokio::time::timeout(VISIT, place.ended()).await;
            })
        }
    };
    Ok(Connection { stream, peer, ends: Some(ends) })
}

/// Logs refused connections, but not each one, because any client can make as many as it likes.
#[derive(Default)]
struct Refusals(Mutex<Untold>);

#[derive(Default)]
struct Untold {
    last: Option<Instant>,
    /// Number of connections refused since then.
    count: u64,
}

impl Refusals {
    fn tell(&self, from: SocketAddr, reason: &dyn fmt::Display) {
        let mut untold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if untold.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            untold.count += 1;
            return;
        }
        let others = std::mem::take(&mut untold.count);
        untold.last = Some(Instant::now());
        drop(untold);
        tracing::warn!(%from, %reason, others, "a connection to the control plane was refused");
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ends.as_mut().is_none_or(|ends| ends.as_mut().poll(cx).is_ready()) {
            self.ends = None;
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        configs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, configs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
