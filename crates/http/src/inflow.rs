//! Limits the work that a peer can cause without sending a message, by endless interim responses or
//! by control frames without progress. After each read, other tasks have a turn.

mod early;
mod frames;

pub use frames::{Frames, PeerSettings};

use crate::interim::{Interim, InterimQueue, is_passed_on};
use early::EarlyEnd;
use http::{HeaderName, HeaderValue, StatusCode};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a connection reads before it yields. They may hold thousands of small frames or
/// interim responses.
pub const TURN: usize = 32 * 1024;
/// Bytes of all heads that answer one HTTP/1.1 request. The last of them may have half.
const HEADS: usize = 2 * super::http2::UPSTREAM_BUFFER;

/// A stream whose peer is bounded.
#[derive(Debug)]
pub struct Inflow<T> {
    stream: T,
    /// Bytes read in this turn.
    turn: usize,
    bound: InflowLimit,
}

#[derive(Debug)]
enum InflowLimit {
    Turns,
    /// Holds the beginning of an interim response.
    Heads(Arc<HeadBudget>, Vec<u8>, EarlyEnd),
    Frames(Frames),
}

impl<T> Inflow<T> {
    /// Reads at most [`TURN`] bytes at once.
    pub fn in_turns(stream: T) -> Self {
        Self { stream, turn: 0, bound: InflowLimit::Turns }
    }

    /// Besides, reads no more heads than the budget has.
    pub fn heads(stream: T, budget: Arc<HeadBudget>) -> Self {
        Self { stream, turn: 0, bound: InflowLimit::Heads(budget, Vec::new(), EarlyEnd::default()) }
    }

    /// Besides, holds the HTTP/2 frames of a server to [`Frames`], and keeps its SETTINGS.
    pub fn frames(stream: T, settings: Arc<PeerSettings>) -> Self {
        Self { stream, turn: 0, bound: InflowLimit::Frames(Frames::of_server(settings)) }
    }
}

/// Bytes that may arrive on an HTTP/1.1 connection until the response to its request has begun, and
/// the interim responses among them.
#[derive(Debug)]
pub struct HeadBudget {
    left: AtomicUsize,
    /// The next bytes may be an interim response.
    looks: AtomicBool,
    interim: InterimQueue,
}

impl Default for HeadBudget {
    fn default() -> Self {
        Self { left: AtomicUsize::new(usize::MAX), looks: AtomicBool::new(false), interim: InterimQueue::default() }
    }
}

impl HeadBudget {
    /// A request is sent.
    #[inline]
    pub fn begin(&self) {
        self.interim.clear();
        self.looks.store(true, Ordering::Relaxed);
        self.left.store(HEADS, Ordering::Relaxed);
    }

    /// The response has begun: its body is bounded by other means.
    #[inline]
    pub fn end(&self) {
        self.left.store(usize::MAX, Ordering::Relaxed);
    }

    /// Interim responses that have arrived.
    #[inline]
    pub fn interim(&self) -> &InterimQueue {
        &self.interim
    }

    /// Bytes that have arrived since the request was sent.
    #[inline]
    pub fn arrived(&self) -> usize {
        HEADS.saturating_sub(self.left())
    }

    /// Whether a response has begun, or a part of its head has arrived.
    fn has_answer(&self) -> bool {
        self.left() != HEADS
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn spend(&self, bytes: usize) {
        let left = self.left();
        if left != usize::MAX {
            self.left.store(left.saturating_sub(bytes), Ordering::Relaxed);
        }
    }

    /// Finds interim responses in arrived bytes; `begun` holds the beginning of one. hyper reads
    /// the same bytes by the same parser, and drops them.
    fn look(&self, begun: &mut Vec<u8>, bytes: &[u8]) {
        if begun.is_empty() && !may_be_interim(bytes) {
            return self.looks.store(false, Ordering::Relaxed);
        }
        begun.extend_from_slice(bytes);
        while may_be_interim(begun) {
            let mut fields = [httparse::EMPTY_HEADER; MAX_INTERIM_FIELDS];
            let mut head = httparse::Response::new(&mut fields);
            let Ok(parsed) = head.parse(begun) else { break };
            let httparse::Status::Complete(length) = parsed else { return };
            if let Some(interim) = interim(&head) {
                self.interim.push(interim);
            }
            begun.drain(..length);
        }
        if begun.len() >= STATUS {
            self.looks.store(false, Ordering::Relaxed);
            *begun = Vec::new();
        }
    }
}

/// Fields of an interim response. One with more is not passed on.
const MAX_INTERIM_FIELDS: usize = 64;
/// Bytes of a head up to the first digit of its status.
const STATUS: usize = "HTTP/1.1 1".len();

fn may_be_interim(bytes: &[u8]) -> bool {
    bytes.get(STATUS - 1).is_none_or(|digit| *digit == b'1')
}

/// An interim response that is passed on.
fn interim(head: &httparse::Response<'_, '_>) -> Option<Interim> {
    let status = StatusCode::from_u16(head.code?).ok().filter(|status| is_passed_on(*status))?;
    let mut interim = Interim::default();
    *interim.status_mut() = status;
    for field in &*head.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        interim.headers_mut().append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some(interim)
}

impl<T: AsyncRead + Unpin> AsyncRead for Inflow<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let InflowLimit::Heads(budget, ..) = &self.bound
            && budget.left() == 0
        {
            let error = format!("more than {HEADS} bytes of interim responses, and no response");
            return Poll::Ready(Err(io::Error::other(error)));
        }
        if self.turn >= TURN {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let room = into.remaining();
        let mut polled = Pin::new(&mut self.stream).poll_read(cx, into);
        if polled.is_pending() {
            self.turn = 0;
        }
        if let InflowLimit::Heads(budget, _, end) = &mut self.bound
            && into.filled().len() == before
            && room > 0
        {
            polled = end.read_nothing(polled, budget.has_answer(), cx);
        }
        ready!(polled)?;
        let bytes = &into.filled()[before..];
        self.turn += bytes.len();
        Poll::Ready(match &mut self.bound {
            InflowLimit::Turns => Ok(()),
            InflowLimit::Heads(budget, begun, _) => {
                budget.spend(bytes.len());
                if budget.looks.load(Ordering::Relaxed) {
                    budget.look(begun, bytes);
                }
                Ok(())
            }
            InflowLimit::Frames(frames) => frames.watch(bytes),
        })
    }
}

impl<T: AsyncWrite + Unpin> Inflow<T> {
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let InflowLimit::Heads(_, _, end) = &mut self.bound
            && let Some(polled) = end.before_write(cx)
        {
            return polled;
        }
        let polled = write(Pin::new(&mut self.stream), cx);
        match &mut self.bound {
            InflowLimit::Turns => polled,
            InflowLimit::Heads(_, _, end) => end.written(polled, cx),
            InflowLimit::Frames(frames) => {
                if let Poll::Ready(Ok(count)) = polled {
                    frames.sent(count);
                }
                polled
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Inflow<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
