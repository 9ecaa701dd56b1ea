//! HTTP/2 over the `h2` library, and the limits on buffered bytes in each direction.

mod keep_alive;
mod pipe;
mod tunnel;

pub use keep_alive::KeepAlive;
pub use pipe::pipe;
pub use tunnel::{Bidirectional, Tunnel, TunnelHandle, Upgrading};

/// HTTP/2 flow-control window of a client's stream, in bytes. It limits how much of an upload a
/// slow function makes the proxy buffer.
pub const STREAM_WINDOW: u32 = 128 * 1024;
/// HTTP/2 flow-control window of an upstream's stream, in bytes. It limits how much of a download a
/// slow client makes the proxy buffer; together with [`SEND_BUFFER`] that is 128 KiB. Upstreams are
/// near, so a small window suffices.
pub const UPSTREAM_WINDOW: u32 = 64 * 1024;
/// HTTP/2 flow-control window of a connection, in bytes. A stream's window is smaller, so that slow
/// streams do not stop the others. The HTTP/2 library grants half of this window to the overhead of
/// unread small frames: some 16,000 frames.
pub const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of a stream that may wait to be written.
pub const SEND_BUFFER: usize = 64 * 1024;
/// Read buffer of an HTTP/1.1 upstream, in bytes. It also limits the head of a response.
pub const UPSTREAM_BUFFER: usize = 48 * 1024;
