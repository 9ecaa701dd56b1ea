//! An HTTP/2 server that reads and writes single frames.

use crate::raw::{self, Raw};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `:status: 200`, and nothing else.
pub(crate) const OK: &[u8] = &[0x88];

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The server's end of a connection.
pub(crate) struct Connection(pub Raw);

impl Connection {
    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let stream = stream.to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, stream[0], stream[1], stream[2], stream[3]];
        // The peer may have closed already.
        let _ = self.0.0.write_all(&[&head, payload].concat()).await;
    }

    /// One entry of SETTINGS.
    pub(crate) async fn set(&mut self, name: u16, value: u32) {
        let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
        self.send(SETTINGS, 0, 0, &payload).await;
    }

    /// The next frame; `None`: the peer has closed the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.0.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.0.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Receives the next request to its end. Returns its stream and body. Acknowledges SETTINGS
    /// meanwhile.
    pub(crate) async fn request(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut body = Vec::new();
        loop {
            let frame = self.next().await?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]).await,
                DATA => body.extend(frame.payload),
                _ => {}
            }
            if frame.kind <= HEADERS && frame.flags & END_STREAM != 0 {
                return Some((frame.stream, body));
            }
        }
    }

    pub(crate) async fn answer(&mut self, stream: u32) {
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, OK).await;
    }
}

/// Passes each connection and its number to `serve`, once the preface has arrived. Counts the
/// connections.
pub(crate) async fn server<F, R>(serve: F) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Fn(Connection, usize) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let address = raw::server(move |mut raw: Raw| {
        let (serve, number) = (serve.clone(), counted.fetch_add(1, Ordering::SeqCst));
        async move {
            let mut preface = [0; 24];
            if raw.0.read_exact(&mut preface).await.is_ok() {
                serve(Connection(raw), number).await;
            }
        }
    })
    .await;
    (address, count)
}
