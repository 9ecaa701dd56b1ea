//! How much of a message a connection holds back, in either direction.

/// HTTP/2 flow-control window of a client's stream: what one slow function can make us hold of an upload.
pub(crate) const STREAM_WINDOW: u32 = 128 * 1024;
/// HTTP/2 flow-control window of a stream to an upstream: what one slow reader can make us hold of a download. Together with
/// [`SEND_BUFFER`] 128 KiB. Upstreams are near: what is under way to them fits into less.
pub(crate) const UPSTREAM_WINDOW: u32 = 64 * 1024;
/// HTTP/2 flow-control window of a connection: that of its streams is the smaller one, so that slow ones do not stop the others. Half of it
/// is what the HTTP/2 library grants to the overhead of small frames that nobody has taken yet: some 16,000.
pub(crate) const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of a stream that wait to be written.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;
/// Bytes that are read at once from an HTTP/1.1 upstream, and the longest head of a response.
pub(crate) const UPSTREAM_BUFFER: usize = 48 * 1024;
