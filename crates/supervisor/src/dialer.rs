//! Connections to an instance, and the proof that they lead there.

use crate::processes::{NotTheInstance, Processes};
use leno_jail::JailDialer;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use tokio::net::TcpStream;

/// The way to an instance.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    /// By its address. Nothing is known about the process there.
    Address,
    /// By its address. Any process may listen there, so each connection is checked.
    Process(Arc<Processes>),
    /// Through a socket of its jail's network, where no other process can listen.
    Jail(JailDialer),
}

/// Why there is no connection to an instance.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process accepts the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A connection was made, but it is not known to lead to the instance. Nothing was sent.
    #[error("{0}")]
    Unproven(#[from] NotTheInstance),
}

/// Whether a connection failed because of the instance, and not because the node lacks something.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
}

impl Dialer {
    /// Connects to the instance that listens at `address`. Once this returns, the other end is the instance.
    ///
    /// Connections are checked after they are made. If they were checked before, another process could take the port in between.
    pub(crate) async fn connect(&self, address: SocketAddr) -> Result<TcpStream, ConnectError> {
        let stream = self.open(address).await?;
        self.prove(&stream).await?;
        Ok(stream)
    }

    async fn open(&self, address: SocketAddr) -> io::Result<TcpStream> {
        match self {
            Self::Address | Self::Process(_) => TcpStream::connect(address).await,
            Self::Jail(dialer) => dialer.connect(address.port()).await,
        }
    }

    /// Connects to another port of the instance than the one for requests. Only an instance in a
    /// jail has other ports. First calls `prepare` with the socket that will connect and its
    /// address, and holds the result until the connection is established.
    pub(crate) async fn connect_to<T>(
        &self,
        port: u16,
        prepare: impl FnOnce(BorrowedFd<'_>, SocketAddr) -> T,
    ) -> io::Result<TcpStream> {
        match self {
            Self::Jail(dialer) => dialer.connect_prepared(port, prepare).await,
            Self::Address | Self::Process(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "only instances in jails have such ports"))
            }
        }
    }

    /// Connects to the Unix socket (`SOCK_SEQPACKET`) at which the instance listens for the node, by an abstract name. Once this returns, the other end
    /// is the instance. The socket does not block.
    ///
    /// # Errors
    /// No process listens there yet, or a process that is not the instance's.
    pub(crate) async fn link(&self, name: &str) -> Result<OwnedFd, ConnectError> {
        match self {
            Self::Jail(dialer) => Ok(dialer.connect_unix(name.as_bytes()).await?),
            Self::Process(processes) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket =
                    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(io::Error::from)?;
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(io::Error::from)?;
                rustix::net::connect(&socket, &address).map_err(io::Error::from)?;
                // 0 is a process that cannot be seen from here, for which rustix has no value.
                let listener = getsockopt(&socket, PeerCredentials).map_err(io::Error::from)?.pid();
                processes.verify_listener(u32::try_from(listener).unwrap_or_default())?;
                Ok(socket)
            }
            Self::Address => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "only instances that the node started have a link")
                    .into())
            }
        }
    }

    /// Whether [`Dialer::listens`] ever returns.
    pub(crate) fn hears(&self) -> bool {
        matches!(self, Self::Jail(_))
    }

    /// Waits until the instance calls `listen`, which it may do for another port than the expected one.
    pub(crate) async fn listens(&self) {
        match self {
            Self::Jail(dialer) => dialer.listens().await,
            Self::Address | Self::Process(_) => std::future::pending().await,
        }
    }

    /// Checks that a connection leads to the instance. Call it before anything is sent.
    pub(crate) async fn prove(&self, stream: &TcpStream) -> Result<(), ConnectError> {
        match self {
            Self::Address | Self::Jail(_) => Ok(()),
            Self::Process(processes) => Ok(processes.prove_accepted(stream.local_addr()?, stream.peer_addr()?).await?),
        }
    }

    /// Connects to an instance that may not be ready. Before anything is sent, the connection has to be proven.
    ///
    /// # Errors
    /// Fails also if another process than the instance's listens there.
    pub(crate) async fn knock(&self, address: SocketAddr) -> Result<TcpStream, ConnectError> {
        let stream = self.open(address).await?;
        // A connection to a port without a listener can connect to itself, if its own port happens
        // to be the same.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens").into());
        }
        if let Self::Process(processes) = self {
            processes.verify_listeners(address)?;
        }
        Ok(stream)
    }
}
