//! Bodies as they come from a connection: from hyper for HTTP/1.1, and from an HTTP/2 stream.

use crate::head;
use crate::interim::{Interim, InterimQueue};
use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::{HeaderMap, StatusCode, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A body from a connection.
#[derive(Debug)]
pub enum WireBody {
    /// An empty body.
    Empty,
    /// Of HTTP/1.1, or of hyper's HTTP/2 client.
    Hyper(Incoming),
    /// Of an HTTP/2 stream.
    Stream(StreamBody),
}

/// Why a body from a connection broke off.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// hyper's reason.
    #[error("{0}")]
    Hyper(#[source] hyper::Error),
    /// The HTTP/2 library's reason.
    #[error("{0}")]
    Stream(#[source] h2::Error),
    /// The trailers are beyond a limit of the mesh.
    #[error("its trailers have {0} fields and {1} bytes, and the limits allow {2} and {3}")]
    Trailers(usize, usize, u32, u32),
}

/// Limits of the mesh on the head and the trailers of a message.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Limit on the number of fields.
    pub fields: u32,
    /// Limit on the bytes of all fields.
    pub bytes: u32,
}

impl HeadLimits {
    fn check(self, trailers: HeaderMap) -> Result<Frame<Bytes>, WireError> {
        let (fields, bytes) = (trailers.len(), head::size(&trailers));
        match fields > self.fields as usize || bytes > self.bytes as usize {
            true => Err(WireError::Trailers(fields, bytes, self.fields, self.bytes)),
            false => Ok(Frame::trailers(trailers)),
        }
    }
}

impl WireError {
    /// The HTTP/2 library's reason, if the body came over HTTP/2.
    pub fn http2(&self) -> Option<&h2::Error> {
        match self {
            Self::Hyper(error) => std::error::Error::source(error)?.downcast_ref(),
            Self::Stream(error) => Some(error),
            Self::Trailers(..) => None,
        }
    }
}

/// The body of a message of an HTTP/2 stream.
#[derive(Debug)]
pub struct StreamBody {
    stream: RecvStream,
    /// The rest of the `Content-Length`.
    length: Option<u64>,
    is_data_done: bool,
    /// The client waits for `100 Continue` before it sends the body.
    expects: Option<Arc<InterimQueue>>,
    /// The limits on its trailers.
    limits: HeadLimits,
}

impl StreamBody {
    /// The body of a message with these fields. With `expects`, the first read sends `100
    /// Continue`.
    pub fn new(
        stream: RecvStream,
        headers: &HeaderMap,
        expects: Option<Arc<InterimQueue>>,
        limits: HeadLimits,
    ) -> Self {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let length = if stream.is_end_stream() { Some(0) } else { length };
        let expects = expects.filter(|_| !stream.is_end_stream());
        Self { stream, length, is_data_done: false, expects, limits }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        if !self.is_data_done {
            let polled = self.stream.poll_data(cx);
            if let Some(expects) = self.expects.take()
                && polled.is_pending()
            {
                let mut go_on = Interim::default();
                *go_on.status_mut() = StatusCode::CONTINUE;
                expects.push(go_on);
            }
            match ready!(polled) {
                Some(Ok(data)) => {
                    // It fails only if more is released than has arrived.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.length = self.length.map(|length| length.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(unless_early(error)),
                None => self.is_data_done = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| self.limits.check(trailers)),
            Err(error) => unless_early(error),
        })
    }
}

/// After a complete response, NO_ERROR says that the rest of the request is not wanted (RFC 9113,
/// 8.1). Anything else breaks the body off.
fn unless_early(error: h2::Error) -> Option<Result<Frame<Bytes>, WireError>> {
    let is_early = error.is_reset() && error.reason() == Some(Reason::NO_ERROR);
    (!is_early).then_some(Err(WireError::Stream(error)))
}

impl http_body::Body for WireBody {
    type Data = Bytes;
    type Error = WireError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Hyper(incoming) => Pin::new(incoming).poll_frame(cx).map_err(WireError::Hyper),
            Self::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Hyper(incoming) => incoming.is_end_stream(),
            Self::Stream(stream) => stream.stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Hyper(incoming) => incoming.size_hint(),
            Self::Stream(stream) => stream.length.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl From<Incoming> for WireBody {
    fn from(incoming: Incoming) -> Self {
        Self::Hyper(incoming)
    }
}
