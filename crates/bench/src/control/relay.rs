//! Counts the bytes that a node gets, as they are on its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

/// Stands between a node and the control plane.
pub(super) struct Relay {
    pub address: SocketAddr,
    received: Arc<AtomicU64>,
}

impl Relay {
    pub(super) fn start(to: SocketAddr) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let (address, listener) = (listener.local_addr()?, TcpListener::from_std(listener)?);
        let received = Arc::new(AtomicU64::new(0));
        tokio::spawn(serve(listener, to, received.clone()));
        Ok(Self { address, received })
    }

    /// Bytes that the node got so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

async fn serve(listener: TcpListener, to: SocketAddr, received: Arc<AtomicU64>) {
    while let Ok((node, _)) = listener.accept().await {
        // If the control plane is gone, the node's connection ends.
        let Ok(control) = TcpStream::connect(to).await else { continue };
        let _ = (node.set_nodelay(true), control.set_nodelay(true));
        let ((mut from_node, mut to_node), (mut from_control, mut to_control)) =
            (node.into_split(), control.into_split());
        let received = received.clone();
        tokio::spawn(async move { copy(&mut from_node, &mut to_control).await });
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            loop {
                let count = from_control.read(&mut buffer).await.unwrap_or(0);
                received.fetch_add(count as u64, Ordering::Relaxed);
                if count == 0 || to_node.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        });
    }
}
