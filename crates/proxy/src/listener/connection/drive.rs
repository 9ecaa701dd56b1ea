//! Drives a connection: its timeouts, the drain of its node, and the end of its certificate.

use super::open::OpenConnection;
use super::{Connection, GRACEFUL_CLOSE};
use crate::pipeline::open::LAST_BYTES;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use leno_http::activity::{TimeoutCheck, Timeouts};
use leno_http::body::Body;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// A connection of HTTP/1.1 or HTTP/2.
pub(in crate::listener) trait Serving: Future<Output = Result<(), Self::Error>> {
    /// Why a connection has ended.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Shuts down gracefully: takes no further request, and ends when the in-flight ones are
    /// answered.
    fn shut_down(self: Pin<&mut Self>);
}

impl<T, S> Serving for http1::UpgradeableConnection<T, S>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Error = hyper::Error;

    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Drives a connection, and ends it when its peer is too slow or the node is draining. There is one
/// timer per connection, which sleeps as long as nothing can be due. So an exchange needs no timer
/// here.
pub(super) struct Drive<'a, S> {
    serving: Pin<&'a mut S>,
    connection: &'a Connection,
    open: &'a OpenConnection,
    /// Bytes that arrive between exchanges are the beginning of a request head (HTTP/1.1).
    head: bool,
    timer: Option<Pin<Box<Sleep>>>,
    /// The connection is shutting down, and is cut off at this time.
    cut_off_at: Option<Instant>,
    /// It is shutting down because its peer's node was revoked.
    revoked: bool,
    registered: bool,
}

impl<S: Serving> Future for Drive<'_, S> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.registered {
            self.registered = true;
            self.open.wake_to_drain(cx);
            self.connection.pod.iter().for_each(|pod| pod.notice.set_waker(cx.waker()));
        }
        let connection = self.connection;
        let is_http2 = !self.head;
        if connection.pod.as_ref().is_some_and(|pod| pod.notice.is_given(is_http2)) && self.cut_off_at.is_none() {
            // An idle connection ends at once, when its last bytes are sent.
            self.drain();
        }
        if self.open.is_draining() && self.cut_off_at.is_none() {
            if self.head && !connection.activity.is_busy() {
                return Poll::Ready(Ok(()));
            }
            self.drain();
        }
        // An HTTP/1.1 connection that is idle stays: its client may just be sending a request. The
        // response then announces the end.
        if !self.head && connection.is_leaving() && self.cut_off_at.is_none() {
            self.drain();
        }
        if !self.revoked && connection.is_revoked() {
            self.revoked = true;
            // Open exchanges have a moment to send their last bytes.
            self.shut_down(LAST_BYTES);
        }
        if let Poll::Ready(result) = self.serving.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(io::Error::other));
        }
        if self.head && connection.activity.is_cut_off() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        loop {
            let now = match &mut self.timer {
                None => Instant::now(),
                Some(timer) => {
                    ready!(timer.as_mut().poll(cx));
                    Instant::now()
                }
            };
            let until = match (connection.check_timeouts(self.head, now), self.cut_off_at) {
                (_, Some(end)) if end <= now => return Poll::Ready(Ok(())),
                (_, Some(end)) => end,
                (TimeoutCheck::Until(until), None) => until,
                (TimeoutCheck::Stuck, None) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                (TimeoutCheck::Idle, None) => self.shut_down(GRACEFUL_CLOSE),
                (TimeoutCheck::Expired, None) => self.renew(),
            };
            match &mut self.timer {
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(until.into()))),
                Some(timer) => timer.as_mut().reset(until.into()),
            }
            if self.cut_off_at.is_some()
                && let Poll::Ready(result) = self.serving.as_mut().poll(cx)
            {
                return Poll::Ready(result.map_err(io::Error::other));
            }
        }
    }
}

impl<'a, S: Serving> Drive<'a, S> {
    pub(super) fn new(
        serving: Pin<&'a mut S>,
        connection: &'a Connection,
        open: &'a OpenConnection,
        head: bool,
    ) -> Self {
        Self { serving, connection, open, head, timer: None, cut_off_at: None, revoked: false, registered: false }
    }

    /// Ends the connection with its last exchange. Exchanges that the drain timeout ends have a
    /// moment more for their last bytes.
    fn drain(&mut self) -> Instant {
        let limit = self.connection.worker.snapshot().mesh.limits.drain_timeout;
        self.shut_down(limit.saturating_add(LAST_BYTES))
    }

    /// Has the peer open another connection with its new certificate. Open exchanges continue up to
    /// their own limits.
    fn renew(&mut self) -> Instant {
        let mesh = &self.connection.worker.snapshot().mesh;
        self.shut_down(mesh.stream_lifetime().saturating_add(mesh.limits.drain_timeout).saturating_add(LAST_BYTES))
    }

    fn shut_down(&mut self, within: Duration) -> Instant {
        self.serving.as_mut().shut_down();
        let end = Instant::now() + within;
        self.cut_off_at = Some(end);
        // `poll` arms a new timer for `end`.
        self.timer = None;
        end
    }
}

impl Connection {
    /// Whether the node of the caller's sidecar was revoked.
    fn is_revoked(&self) -> bool {
        self.certificate.is_some_and(|certificate| certificate.is_revoked(&self.worker.node.svids))
    }

    pub(super) fn check_timeouts(&self, head: bool, now: Instant) -> TimeoutCheck {
        let snapshot = self.worker.snapshot();
        let limits = &snapshot.mesh.limits;
        let head = head.then_some(limits.head_timeout);
        let timeouts = Timeouts { head, idle: limits.idle_timeout, exchange: snapshot.longest_exchange };
        let expires = self.certificate.and_then(|certificate| certificate.expires);
        match (self.activity.check_timeouts(&timeouts, now), expires) {
            (TimeoutCheck::Until(_) | TimeoutCheck::Idle, Some(end)) if end <= now => TimeoutCheck::Expired,
            (TimeoutCheck::Until(until), Some(end)) => TimeoutCheck::Until(until.min(end)),
            (verdict, _) => verdict,
        }
    }
}
