//! Passes connections on, and counts the bytes that their clients get.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;

/// Stands between clients and a server.
pub(crate) struct Relay {
    pub address: SocketAddr,
    received: Arc<AtomicU64>,
    cut: Arc<Notify>,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr) -> anyhow::Result<Self> {
        Self::start_from(Ipv4Addr::UNSPECIFIED.into(), to)
    }

    /// The server sees connections from `from`.
    pub(crate) fn start_from(from: IpAddr, to: SocketAddr) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let (address, listener) = (listener.local_addr()?, TcpListener::from_std(listener)?);
        let (received, cut) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        tokio::spawn(serve(listener, (from, to), received.clone(), cut.clone()));
        Ok(Self { address, received, cut })
    }

    /// Bytes that clients got so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Ends all present connections.
    pub(crate) fn cut(&self) {
        self.cut.notify_waiters();
    }
}

async fn serve(listener: TcpListener, (from, to): (IpAddr, SocketAddr), received: Arc<AtomicU64>, cut: Arc<Notify>) {
    while let Ok((client, _)) = listener.accept().await {
        // If the server is gone, the client's connection ends.
        let Ok(server) = connect(from, to).await else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (received, cut) = (received.clone(), cut.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = pass(client, server, &received) => {}
                () = cut.notified() => {}
            }
        });
    }
}

async fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

async fn pass(client: TcpStream, server: TcpStream, received: &AtomicU64) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let sent = async move { copy(&mut from_client, &mut to_server).await };
    let answers = async move {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = from_server.read(&mut buffer).await.unwrap_or(0);
            received.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 || to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::join!(sent, answers);
}
