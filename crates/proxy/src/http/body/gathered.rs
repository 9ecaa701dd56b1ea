//! Bodies that come in many small pieces: the pieces that have arrived are passed on as one.
//!
//! A streaming call may send thousands of one-byte messages, each in its own frame (RFC 9113, 6.1). A frame that waits to be read costs much more
//! memory than its payload, so the HTTP/2 library ends connections that have too many. A reader that takes them one by one, each in a turn of its
//! own, is slower than their sender.

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Pieces below this many bytes are joined: a copy costs less than another turn.
const SMALL: usize = 256;
/// Bytes after which a joined piece is passed on.
const MOST: usize = 16 * 1024;

/// A body from a socket whose small pieces are joined.
#[derive(Debug)]
pub(super) struct Gathered {
    incoming: Incoming,
    /// What followed small pieces and could not be added to them.
    next: Option<Result<Frame<Bytes>, hyper::Error>>,
}

impl Gathered {
    /// Takes a body of which nothing was read yet.
    pub(super) fn new(incoming: Incoming) -> Self {
        Self { incoming, next: None }
    }

    /// Whether nothing is left to read.
    pub(super) fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.incoming.is_end_stream()
    }

    /// Bounds on the bytes that are left.
    pub(super) fn size_hint(&self) -> SizeHint {
        let mut hint = self.incoming.size_hint();
        if let Some(Ok(frame)) = &self.next
            && let Some(data) = frame.data_ref()
        {
            let waiting = data.len() as u64;
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + waiting);
            }
            hint.set_lower(hint.lower() + waiting);
        }
        hint
    }

    /// The next frame. Small data frames that have arrived are joined.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(next));
        }
        let first = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        let Some(Ok(first)) = first else { return Poll::Ready(first) };
        let data = match first.into_data() {
            Ok(data) => data,
            Err(other) => return Poll::Ready(Some(Ok(other))),
        };
        if data.len() >= SMALL || self.incoming.is_end_stream() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let mut gathered = BytesMut::new();
        while gathered.len() < MOST {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(more) if more.len() < SMALL => {
                        if gathered.is_empty() {
                            gathered.reserve(4 * SMALL);
                            gathered.extend_from_slice(&data);
                        }
                        gathered.extend_from_slice(&more);
                    }
                    Ok(large) => {
                        self.next = Some(Ok(Frame::data(large)));
                        break;
                    }
                    Err(other) => {
                        self.next = Some(Ok(other));
                        break;
                    }
                },
                Poll::Ready(Some(Err(error))) => {
                    self.next = Some(Err(error));
                    break;
                }
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        let data = if gathered.is_empty() { data } else { gathered.freeze() };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}
