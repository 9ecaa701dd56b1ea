//! Connections of the node to a jail's program.

use super::state::JailState;
use crate::wire::Order;
use rustix::net::SocketAddrUnix;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::TcpSocket;

/// Connects to a jail's program, from any thread and any runtime.
#[derive(Clone, Debug)]
pub struct JailDialer {
    shared: Arc<JailState>,
}

impl JailDialer {
    pub(crate) fn new(shared: Arc<JailState>) -> Self {
        Self { shared }
    }

    /// Waits until the program calls `listen`, or has called it since this was last called. At that
    /// moment the kernel has yet to make the call. One task may wait. Programs that listen very often are
    /// not heard any more.
    pub async fn listens(&self) {
        self.shared.listens.notified().await;
    }

    /// Connects to a port of the jail's loopback interface. Only processes of the jail can listen
    /// there, so nothing has to be verified.
    ///
    /// `localhost` is 127.0.0.1 and `::1`, and programs differ in which of them they listen on. The
    /// node tries the other one when one refuses, and begins with the one that has answered last.
    pub async fn connect(&self, port: u16) -> io::Result<tokio::net::TcpStream> {
        let at_ipv6 = self.shared.at_ipv6.load(Ordering::Relaxed);
        let refused = match self.connect_at(at_ipv6, port).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => error,
            connected => return connected,
        };
        // The error at the first address counts, also where there is no IPv6.
        let stream = self.connect_at(!at_ipv6, port).await.map_err(|_| refused)?;
        self.shared.at_ipv6.store(!at_ipv6, Ordering::Relaxed);
        Ok(stream)
    }

    async fn connect_at(&self, at_ipv6: bool, port: u16) -> io::Result<tokio::net::TcpStream> {
        self.check(port)?;
        if !at_ipv6 {
            return self.socket(port).await?.connect((Ipv4Addr::LOCALHOST, port).into()).await;
        }
        let socket = self.shared.rare_socket(&Order::Ipv6Socket).await?;
        TcpSocket::from_std_stream(TcpStream::from(socket)).connect((Ipv6Addr::LOCALHOST, port).into()).await
    }

    /// Like [`JailDialer::connect`], but first calls `prepare` with the socket that will connect and
    /// its address, and holds the result until the connection is established. If the program
    /// listens at `::1` only, another socket connects.
    pub async fn connect_prepared<T>(
        &self,
        port: u16,
        prepare: impl FnOnce(BorrowedFd<'_>, SocketAddr) -> T,
    ) -> io::Result<tokio::net::TcpStream> {
        // After a connection ends, its port is blocked for a minute. Another local address has free
        // ports.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % (1 << 16);
        let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + number);
        let socket = self.socket(port).await?;
        socket.bind((from, 0).into())?;
        let held = prepare(socket.as_fd(), socket.local_addr()?);
        match socket.connect((Ipv4Addr::LOCALHOST, port).into()).await {
            Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                drop(held);
                self.connect_at(true, port).await.map_err(|_| refused)
            }
            connected => connected,
        }
    }

    /// Connects to a Unix socket (`SOCK_SEQPACKET`) at which a process of the jail listens. The
    /// name is an abstract one of the jail's network, where only processes of the jail can listen.
    /// The socket does not block.
    ///
    /// # Errors
    /// No process listens there (`ConnectionRefused`), or the jail has ended.
    pub async fn connect_unix(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let socket = self.shared.rare_socket(&Order::UnixSocket).await?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(socket)
    }

    async fn socket(&self, port: u16) -> io::Result<TcpSocket> {
        self.check(port)?;
        Ok(TcpSocket::from_std_stream(TcpStream::from(self.shared.socket().await?)))
    }

    /// Fails for the port of the node's own listener.
    fn check(&self, port: u16) -> io::Result<()> {
        if port == self.shared.node_port {
            let text = format!("port {port} is the node's in this jail");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }
}
