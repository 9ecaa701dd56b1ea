//! HTTP/2 over the `h2` library, and how much of a message a connection buffers, in each direction.

mod keep_alive;
mod pipe;
mod tunnel;

pub(crate) use keep_alive::KeepAlive;
pub(crate) use pipe::pipe;
pub(crate) use tunnel::{Bidirectional, Tunnel, TunnelHandle, Upgrading};

/// HTTP/2 flow-control window of a client's stream, in bytes. It limits how much of an upload a slow function makes the proxy buffer.
pub(crate) const STREAM_WINDOW: u32 = 128 * 1024;
/// HTTP/2 flow-control window of an upstream's stream, in bytes. It limits how much of a download a slow client makes the proxy buffer; together with
/// [`SEND_BUFFER`] that is 128 KiB. Upstreams are near, so what is in flight to them fits into less.
pub(crate) const UPSTREAM_WINDOW: u32 = 64 * 1024;
/// HTTP/2 flow-control window of a connection, in bytes. A stream's window is smaller, so that slow streams do not stop the others. The HTTP/2
/// library grants half of this window to the overhead of small frames that nobody has read yet: some 16,000 frames.
pub(crate) const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of a stream that may wait to be written.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
/// Read buffer of an HTTP/1.1 upstream, in bytes. It also limits the head of a response.
pub(crate) const UPSTREAM_BUFFER: usize = 48 * 1024;
