//! Ends streams so that their peers do not take the bytes for complete.

use leno_http::http2::Tunnel;
use socket2::SockRef;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A stream that can be ended at once, with a reset.
pub(crate) trait Reset {
    /// Has the stream end with a reset when it is dropped.
    fn reset(&mut self);
}

/// A connection to or from a pod, or one in a tunnel.
pub(crate) trait PodStream: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static> PodStream for S {}

/// Closes a connection at once, with a reset (RST).
pub(crate) fn reset(stream: &TcpStream) {
    // If it cannot be set, the connection is gone.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

impl Reset for TcpStream {
    fn reset(&mut self) {
        reset(self);
    }
}

impl Reset for Tunnel {
    fn reset(&mut self) {
        self.reset();
    }
}

/// A stream that is reset when it is dropped before all bytes were copied. After an ordinary end,
/// the peer would take its data for complete.
pub(crate) struct ResetUnlessDone<S: Reset> {
    pub stream: S,
    pub done: bool,
}

impl<S: Reset> Drop for ResetUnlessDone<S> {
    fn drop(&mut self) {
        if !self.done {
            self.stream.reset();
        }
    }
}
