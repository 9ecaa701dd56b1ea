//! Connections for raw bytes.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longest wait of a test; reaching it is a failure.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Raw(pub TcpStream);

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The peer may have closed already; its previous answer shows the reason.
        let _ = self.0.write_all(bytes.as_ref()).await;
    }

    /// Everything up to the end of the connection.
    pub(crate) async fn rest(mut self) -> String {
        let mut all = Vec::new();
        let read = async {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = self.0.read(&mut piece).await {
                all.extend_from_slice(&piece[..count]);
            }
        };
        timeout(TIMEOUT, read).await.expect("the connection was not closed");
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Up to and including `end`.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        let read = async {
            while !all.ends_with(end.as_bytes()) {
                match self.0.read_u8().await {
                    Ok(byte) => all.push(byte),
                    Err(_) => panic!("closed after {:?}", String::from_utf8_lossy(&all)),
                }
            }
        };
        timeout(TIMEOUT, read).await.expect("nothing more came");
        String::from_utf8(all).unwrap()
    }

    /// Reads the body of an answer from the echo function, after its head was read.
    pub(crate) async fn rest_of_body(&mut self) {
        self.until("\n\n").await;
    }

    pub(crate) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }
}

/// A server that speaks first, and then returns all bytes.
pub(crate) async fn greeting_server() -> SocketAddr {
    server(|mut raw: Raw| async move {
        raw.send("220 ready\r\n").await;
        let mut piece = [0; 64];
        while let Ok(count @ 1..) = raw.0.read(&mut piece).await {
            raw.send(&piece[..count]).await;
        }
    })
    .await
}

/// Accepts connections, and passes each to `serve`. The connection is closed when `serve` returns.
pub(crate) async fn server<F, R>(serve: F) -> SocketAddr
where
    F: Fn(Raw) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(Raw(stream)));
        }
    });
    address
}

/// Sends bytes, and reads all that comes back.
pub(crate) async fn exchange(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let mut raw = Raw::connect(address).await;
    raw.send(bytes).await;
    raw.rest().await
}

/// The status in an answer's first line.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status in {answer:?}"))
}
