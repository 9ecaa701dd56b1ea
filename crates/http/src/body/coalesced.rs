//! Joins the small pieces of a body that have arrived into one frame.
//!
//! A streaming call may send thousands of one-byte messages, each in its own frame (RFC 9113, 6.1).
//! A frame that waits to be read costs much more memory than its payload, so the HTTP/2 library
//! ends connections that have too many. A reader that takes one frame in each turn is slower than
//! the sender.
//!
//! The last piece of an HTTP/2 message with a `Content-Length` is passed on only when the message
//! has ended. A message with more content is malformed (RFC 9113, 8.1.1), and must not look
//! complete.

use crate::wire::{WireBody, WireError};
use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Pieces below this many bytes are joined: a copy costs less than another turn.
const SMALL: usize = 256;
/// Bytes after which a joined piece is passed on.
const MOST: usize = 16 * 1024;

/// A body from a socket whose small pieces are joined.
#[derive(Debug)]
pub(super) struct CoalescedBody {
    incoming: WireBody,
    /// The frame after small pieces that could not be added to them.
    next: Option<Result<Frame<Bytes>, WireError>>,
    /// The last piece that the message may have, until it has ended.
    last: Option<Frame<Bytes>>,
}

impl CoalescedBody {
    /// Takes a body of which nothing was read yet.
    pub(super) fn new(incoming: WireBody) -> Self {
        Self { incoming, next: None, last: None }
    }

    /// Whether nothing is left to read.
    pub(super) fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.last.is_none() && self.incoming.is_end_stream()
    }

    /// Bounds on the bytes that are left.
    pub(super) fn size_hint(&self) -> SizeHint {
        let mut hint = self.incoming.size_hint();
        let next = self.next.as_ref().and_then(|next| next.as_ref().ok());
        for data in next.into_iter().chain(&self.last).filter_map(Frame::data_ref) {
            let waiting = data.len() as u64;
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + waiting);
            }
            hint.set_lower(hint.lower() + waiting);
        }
        hint
    }

    /// The next frame. Small data frames that have arrived are joined.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        loop {
            let next = ready!(self.poll_next(cx));
            let Some(last) = self.last.take() else {
                match next {
                    Some(Ok(frame)) if self.is_last(&frame) => {
                        self.last = Some(frame);
                        continue;
                    }
                    next => return Poll::Ready(next),
                }
            };
            return Poll::Ready(match next {
                None if self.incoming.is_end_stream() => Some(Ok(last)),
                Some(Ok(frame)) if frame.is_trailers() => {
                    self.next = Some(Ok(frame));
                    Some(Ok(last))
                }
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {
                    self.last = Some(last);
                    continue;
                }
                Some(Err(error)) => Some(Err(error)),
                // The body broke off, or is too long. The forwarded body is then shorter than
                // announced.
                None | Some(Ok(_)) => None,
            });
        }
    }

    /// Whether all bytes of the `Content-Length` are there, and the message has not ended well.
    fn is_last(&self, frame: &Frame<Bytes>) -> bool {
        let is_open = match &self.next {
            None => !self.incoming.is_end_stream(),
            Some(next) => next.is_err(),
        };
        frame.is_data() && is_open && self.incoming.size_hint().exact() == Some(0)
    }

    /// The next frame as it comes, joined.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
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
