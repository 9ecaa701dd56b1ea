//! Byte streams over an HTTP/2 stream (RFC 9113, 8.5), or over a connection or stream after a
//! switch of protocols.

use super::pipe::poll_capacity;
use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream, SendStream};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// The source of a byte stream.
#[derive(Debug)]
pub enum Upgrading {
    /// A connection of HTTP/1.1, or a stream of hyper's HTTP/2 client.
    Hyper(OnUpgrade),
    /// A stream of HTTP/2, once the response to its CONNECT was sent.
    Stream(oneshot::Receiver<Tunnel>),
    /// A stream of HTTP/2 whose response has arrived.
    Ready(TunnelHandle),
}

/// A stream of bytes.
pub trait Bidirectional: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bidirectional for T {}

impl Upgrading {
    /// Waits for the stream of HTTP/2 behind a CONNECT.
    ///
    /// # Errors
    /// The stream is gone, or is none of HTTP/2.
    pub async fn tunnel(self) -> io::Result<Tunnel> {
        match self {
            Self::Ready(handle) => handle.take(),
            Self::Stream(stream) => stream.await.map_err(io::Error::other),
            Self::Hyper(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits until the protocol was switched.
    pub async fn done(self) -> io::Result<Box<dyn Bidirectional>> {
        match self {
            Self::Hyper(upgrade) => Ok(Box::new(TokioIo::new(upgrade.await.map_err(io::Error::other)?))),
            Self::Ready(handle) => Ok(Box::new(handle.take()?)),
            Self::Stream(stream) => Ok(Box::new(stream.await.map_err(io::Error::other)?)),
        }
    }
}

/// The bytes of an HTTP/2 stream.
#[derive(Debug)]
pub struct Tunnel {
    send: SendStream<Bytes>,
    receive: RecvStream,
    /// Bytes that have arrived and were not read yet.
    ahead: Bytes,
    /// A stream that its peer cancels is broken, and has not ended.
    is_strict: bool,
}

/// A tunnel among the extensions of a response, which have to be clones. The first one gets it.
#[derive(Clone, Debug)]
pub struct TunnelHandle(Arc<Mutex<Option<Tunnel>>>);

impl TunnelHandle {
    /// A handle to this tunnel.
    pub fn new(tunnel: Tunnel) -> Self {
        Self(Arc::new(Mutex::new(Some(tunnel))))
    }

    fn take(&self) -> io::Result<Tunnel> {
        let tunnel = self.0.lock().ok().and_then(|mut tunnel| tunnel.take());
        tunnel.ok_or_else(|| io::Error::other("the tunnel was taken already"))
    }
}

/// Bytes that are written in one piece.
const PIECE: usize = 16 * 1024;

impl Tunnel {
    /// A tunnel over the two directions of a stream.
    pub fn new(send: SendStream<Bytes>, receive: RecvStream) -> Self {
        Self { send, receive, ahead: Bytes::new(), is_strict: false }
    }

    /// Takes a stream that its peer cancels for a broken one. The bytes of such a tunnel do not
    /// mark their end.
    #[must_use]
    pub fn strict(self) -> Self {
        Self { is_strict: true, ..self }
    }

    /// Resets the stream, as a proxy does when the other connection breaks off (RFC 9113, 8.5).
    pub fn reset(&mut self) {
        self.send.send_reset(Reason::CONNECT_ERROR);
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.ahead.is_empty() {
            match ready!(self.receive.poll_data(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(data)) => self.ahead = data,
                Some(Err(error)) => {
                    return Poll::Ready(match error.reason() {
                        Some(Reason::NO_ERROR) => Ok(()),
                        Some(Reason::CANCEL) if !self.is_strict => Ok(()),
                        Some(Reason::STREAM_CLOSED) => Err(io::Error::new(io::ErrorKind::BrokenPipe, error)),
                        _ => Err(io::Error::other(error)),
                    });
                }
            }
        }
        let count = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..count]);
        self.ahead.advance(count);
        // It fails only if more is released than has arrived.
        let _ = self.receive.flow_control().release_capacity(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.send.reserve_capacity(bytes.len().min(PIECE));
        ready!(poll_capacity(&mut self.send, cx)).map_err(broken)?;
        let count = self.send.capacity().min(bytes.len());
        self.send.send_data(Bytes::copy_from_slice(&bytes[..count]), false).map_err(broken)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A second one, or one after a reset, has nothing to end.
        let _ = self.send.send_data(Bytes::new(), true);
        Poll::Ready(Ok(()))
    }
}

fn broken(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}
