//! Message bodies. The writer to the next socket pulls a body, one frame at a time. Bodies are
//! never collected.
//!
//! A response's [`Body`] holds a [`Guard`], which must live until the body's last byte is gone. The
//! body reports bytes, trailers and failures to the guard.

mod close_reason;
mod coalesced;
mod copied;
mod error;
mod instance;
mod peeked;
mod replay;
mod shared;

pub use close_reason::{CloseReason, ClosedBy};
pub use copied::CopyState;
pub use error::BodyError;
pub use instance::InstanceBody;
pub use replay::Replayable;
pub use shared::SharedBody;

use super::activity::{Activity, Busy};
use super::failure::{self, Failure};
use super::head;
use super::upload::{Progress, Upload};
use super::wire::WireBody;
use bytes::Bytes;
use coalesced::CoalescedBody;
use copied::{CopiedBody, CopyReader};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use peeked::PeekedBody;
use replay::Replay;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// The field with the status of a gRPC call.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// The field with the message of a gRPC status.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// A message body on its way through the proxy.
#[derive(Debug, Default)]
pub struct Body {
    source: Source,
    /// For request bodies: the counters of its bytes.
    meters: [Option<Rc<dyn Meter>>; 2],
    /// For request bodies: the connection from which they come.
    activity: Option<Arc<Activity>>,
    /// For request bodies: the progress of the upload.
    upload: Option<Upload>,
    /// For request bodies: fields that identify the caller, which trailers must not contain.
    identity_fields: Option<Arc<[Box<str>]>>,
    /// For request bodies: whether the fields of trailers are removed.
    drops_trailers: bool,
    guard: Option<Box<dyn Guard>>,
}

/// Counts the bytes of a request's body.
pub trait Meter: fmt::Debug {
    /// More bytes have arrived.
    fn request_bytes(&self, bytes: u64);
    /// Whether the exchange is closed, so that nothing more is passed on.
    fn is_closed(&self) -> bool;
    /// Wakes the task when the exchange is closed.
    fn wake_when_closed(&self, waker: &Waker);
}

/// Held until the last byte of a response is gone. Dropping the guard ends the exchange.
pub trait Guard: fmt::Debug {
    /// More request bytes have arrived, on a connection that has become a tunnel.
    fn request_bytes(&self, bytes: u64);
    /// More response bytes were sent.
    fn response_bytes(&self, bytes: u64);
    /// The trailers carry the status of the gRPC call.
    fn grpc_status(&self, status: u8);
    /// The response broke off.
    fn failure(&self, failure: &Failure);
    /// Why the exchange is closed, if it is.
    fn closed(&self) -> Option<&Rc<CloseReason>>;
    /// Wakes the task when the exchange is closed.
    fn wake_when_closed(&self, waker: &Waker);
    /// The response is sent on this connection.
    fn sent_on(&self, connection: &Arc<Activity>);
    /// Keeps the client's connection busy as long as the guard lives.
    fn occupy(&mut self, busy: Busy);
    /// Whether the response is that of a gRPC call.
    fn is_grpc(&self) -> bool;
    /// When the exchange must be over, and its whole timeout.
    fn deadline(&self) -> Option<(Instant, Duration)>;
    /// Returns the exchange's timeout if it has passed. Only called while the body has nothing to
    /// read.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Option<Duration>;
}

#[derive(Debug, Default)]
enum Source {
    #[default]
    Empty,
    Full(Bytes),
    Incoming(Box<CoalescedBody>),
    Replay(Replay),
    /// A body of which another reader gets a copy.
    Copied(Box<CopiedBody>),
    /// The copy.
    Copy(CopyReader),
    /// From a component's instance in this process.
    Instance(InstanceBody),
    /// In memory that functions share.
    Shared(SharedBody),
    /// A body whose first frame was read ahead.
    Peeked(Box<PeekedBody>),
    /// The body broke off. The next poll returns the error.
    Broken(BodyError),
}

impl Body {
    /// An empty body.
    #[inline]
    pub fn empty() -> Self {
        Self::default()
    }

    /// A short body that is complete already.
    #[inline]
    pub fn full(bytes: Bytes) -> Self {
        Self::from_source(if bytes.is_empty() { Source::Empty } else { Source::Full(bytes) })
    }

    /// The body of a request as it comes from the socket. `meter` counts its bytes.
    #[inline]
    pub fn request(incoming: WireBody, meter: Rc<dyn Meter>, activity: &Arc<Activity>) -> Self {
        let mut body = Self::from(incoming);
        if !body.is_over() {
            body.meters[0] = Some(meter);
            body.activity = Some(activity.clone());
            body.upload = Some(Upload::default());
        }
        body
    }

    /// The progress of a request body's upload; `None`: the body was complete from the beginning.
    #[inline]
    pub fn upload(&self) -> Option<Upload> {
        match &self.source {
            Source::Replay(replay) => replay.upload(),
            Source::Copied(copied) => copied.upload(),
            _ => self.upload.clone(),
        }
    }

    /// The body of a request on its way to an instance. These fields, and all reserved ones, are
    /// removed from its trailers.
    #[inline]
    pub fn deliver(mut self, identity_fields: &Arc<[Box<str>]>) -> Self {
        if !self.is_over() {
            self.identity_fields = Some(identity_fields.clone());
        }
        self
    }

    /// The body of a request whose header fields an authorizer has set. It has no fields in trailers,
    /// which a server could take for those.
    pub fn without_trailers(mut self) -> Self {
        self.drops_trailers = true;
        self
    }

    /// Adds a meter to the body of a request. After a local delivery, the caller's exchange already
    /// has a meter.
    #[inline]
    pub fn count_in(mut self, meter: Rc<dyn Meter>) -> Self {
        if !self.is_over() {
            let place = usize::from(self.meters[0].is_some());
            self.meters[place] = Some(meter);
        }
        self
    }

    /// The place of the body, if it is in memory that functions share and no part of it was copied.
    #[inline]
    pub fn shared(&self) -> Option<&leno_shm::Body> {
        match &self.source {
            Source::Shared(shared) => shared.whole(),
            _ => None,
        }
    }

    /// The same body, of which each reader gets a copy from now on.
    #[inline]
    pub fn private(mut self) -> Self {
        if let Source::Shared(shared) = &mut self.source {
            shared.keep_private();
        }
        self
    }

    /// A second view of a body in memory that functions share. The meters count it once.
    fn again(&mut self) -> Option<Self> {
        let Source::Shared(shared) = &self.source else { return None };
        let mut again = Self::from(shared.clone());
        again.meters = std::mem::take(&mut self.meters);
        Some(again)
    }

    /// Counts the whole body as passed on, because its reader reads it in place. Returns the guard,
    /// which must live until the reader is done.
    pub fn passed_on(mut self, shared: &leno_shm::Body) -> Option<Box<dyn Guard>> {
        for meter in self.meters.iter().flatten() {
            meter.request_bytes(shared.len());
        }
        if let Some(guard) = &self.guard {
            guard.response_bytes(shared.len());
        }
        self.detach()
    }

    /// One attempt's view of a body that can be sent again.
    fn replay(replay: Replay) -> Self {
        Self::from_source(Source::Replay(replay))
    }

    /// Holds the guard until the body's end.
    #[inline]
    pub fn keep(mut self, guard: Box<dyn Guard>) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Takes the guard out.
    #[inline]
    pub fn take_guard(&mut self) -> Option<Box<dyn Guard>> {
        self.guard.take()
    }

    /// Keeps the client's connection busy until the body's end.
    #[inline]
    pub fn occupy(&mut self, busy: Busy) {
        if let Some(guard) = &mut self.guard {
            guard.occupy(busy);
        }
    }

    /// Takes the guard out of a body that is no longer read, because the connection was upgraded.
    #[inline]
    pub fn detach(&mut self) -> Option<Box<dyn Guard>> {
        self.source = Source::Empty;
        self.guard.take()
    }

    /// Whether nothing is left to read.
    #[inline]
    pub fn is_over(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(_) => false,
            Source::Incoming(incoming) => incoming.is_end_stream(),
            Source::Replay(replay) => replay.is_end_stream(),
            Source::Copied(copied) => copied.is_end_stream(),
            Source::Copy(copy) => copy.is_end_stream(),
            Source::Instance(instance) => instance.is_end_stream(),
            Source::Shared(shared) => shared.left() == 0,
            Source::Peeked(_) | Source::Broken(_) => false,
        }
    }

    fn from_source(source: Source) -> Self {
        Self {
            source,
            meters: [None, None],
            activity: None,
            upload: None,
            identity_fields: None,
            drops_trailers: false,
            guard: None,
        }
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.source {
            Source::Empty => Poll::Ready(None),
            Source::Full(_) | Source::Peeked(_) | Source::Broken(_) => match std::mem::take(&mut self.source) {
                Source::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Source::Peeked(peeked) => {
                    self.source = peeked.rest;
                    Poll::Ready(Some(Ok(peeked.first)))
                }
                Source::Broken(error) => Poll::Ready(Some(Err(error))),
                _ => Poll::Ready(None),
            },
            Source::Incoming(incoming) => incoming.poll_frame(cx).map_err(BodyError::from),
            Source::Replay(replay) => replay.poll_frame(cx),
            Source::Copied(copied) => copied.poll_frame(cx),
            Source::Copy(copy) => copy.poll_frame(cx),
            Source::Instance(instance) => instance.poll_frame(cx).map_err(BodyError::from),
            Source::Shared(shared) => Poll::Ready(shared.next_frame().map(Ok)),
        }
    }

    fn count(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            let bytes = data.len() as u64;
            for meter in self.meters.iter().flatten() {
                meter.request_bytes(bytes);
            }
            if let Some(guard) = &self.guard {
                guard.response_bytes(bytes);
            }
        } else if let (Some(trailers), Some(guard)) = (frame.trailers_ref(), &self.guard)
            && let Some(status) = grpc_status(trailers)
        {
            guard.grpc_status(status);
        }
    }

    /// Breaks a response off: a gRPC call with its status, unless the upstream has reset it.
    fn break_off(
        &mut self,
        failure: &Failure,
        error: BodyError,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match error.grpc() {
            Some(end) if self.guard.as_ref().is_some_and(|guard| guard.is_grpc()) => self.end_call(failure, end),
            _ => self.cut(failure, error, cx),
        }
    }

    /// Cuts a response. Its writer gets a turn to send the part that it holds (at least the head)
    /// before it sees the error. Otherwise hyper would end the connection at once, and the client
    /// would not even see the status.
    fn cut(
        &mut self,
        failure: &Failure,
        error: BodyError,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.source = Source::Broken(error);
        self.fail(failure);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ends a response whose exchange is closed: a gRPC call with its status, any other response so
    /// that it does not look complete.
    fn close(&mut self, closed: &CloseReason, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !closed.grpc {
            return self.cut(&closed.failure(), BodyError::closed(), cx);
        }
        self.end_call(&closed.failure(), (failure::grpc_status(closed.status), closed.by.message()))
    }

    /// Ends a gRPC call with trailers.
    fn end_call(
        &mut self,
        failure: &Failure,
        (status, message): (u8, &'static str),
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.source = Source::Empty;
        if let Some(guard) = self.guard.take() {
            guard.failure(failure);
            guard.grpc_status(status);
        }
        let status = HeaderValue::from(u16::from(status));
        let trailers = [(GRPC_STATUS, status), (GRPC_MESSAGE, HeaderValue::from_static(message))];
        Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::from_iter(trailers)))))
    }

    fn fail(&mut self, failure: &Failure) {
        if let Some(guard) = self.guard.take() {
            guard.failure(failure);
        }
    }
}

impl From<WireBody> for Body {
    fn from(incoming: WireBody) -> Self {
        Self::from_source(if incoming.is_end_stream() {
            Source::Empty
        } else {
            Source::Incoming(Box::new(CoalescedBody::new(incoming)))
        })
    }
}

impl From<InstanceBody> for Body {
    fn from(instance: InstanceBody) -> Self {
        Self::from_source(if instance.is_end_stream() { Source::Empty } else { Source::Instance(instance) })
    }
}

impl From<SharedBody> for Body {
    fn from(shared: SharedBody) -> Self {
        Self::from_source(if shared.left() == 0 { Source::Empty } else { Source::Shared(shared) })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(closed) = self.guard.as_ref().and_then(|guard| guard.closed().cloned()) {
            return self.close(&closed, cx);
        }
        if self.meters.iter().flatten().any(|meter| meter.is_closed()) {
            self.source = Source::Empty;
            return Poll::Ready(Some(Err(BodyError::closed())));
        }
        let polled = self.poll_source(cx);
        if let Some(upload) = &self.upload {
            upload.note(match &polled {
                Poll::Ready(Some(Err(_))) => Progress::Broken,
                Poll::Ready(_) => Progress::Upstream,
                Poll::Pending => Progress::Client,
            });
        }
        match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    let claims = self.identity_fields.iter().flat_map(|fields| fields.iter()).map(|field| &**field);
                    head::clean_trailers(trailers, claims);
                    if self.drops_trailers {
                        trailers.clear();
                    }
                }
                self.count(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) if self.guard.is_some() => {
                self.break_off(&Failure::BrokenBody(error.to_string()), error, cx)
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => {
                self.source = Source::Empty;
                self.guard = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                for meter in self.meters.iter().flatten() {
                    meter.wake_when_closed(cx.waker());
                }
                let Some(guard) = &mut self.guard else { return Poll::Pending };
                guard.wake_when_closed(cx.waker());
                match guard.poll_deadline(cx) {
                    Some(limit) => self.break_off(&Failure::Timeout(limit), BodyError::Timeout(limit), cx),
                    None => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Empty => SizeHint::with_exact(0),
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Incoming(incoming) => incoming.size_hint(),
            Source::Replay(replay) => replay.size_hint(),
            Source::Copied(copied) => copied.size_hint(),
            Source::Instance(instance) => instance.size_hint(),
            Source::Shared(shared) => shared.size_hint(),
            Source::Peeked(_) | Source::Broken(_) | Source::Copy(_) => SizeHint::default(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if (self.guard.is_none() && self.activity.is_none()) || self.is_over() {
            return;
        }
        if let Some(activity) = &self.activity {
            activity.leave_unread();
        }
        self.fail(&Failure::ClientGone);
    }
}

/// Whether an HTTP/2 message announces no content, and has not ended. If content follows, it is
/// malformed (RFC 9113, 8.1.1), and must not have been passed on.
#[inline]
pub fn says_empty(body: &WireBody) -> bool {
    !body.is_end_stream() && body.size_hint().exact() == Some(0)
}

/// Waits for the end of such a message. `false`: it has content, or broke off.
pub async fn ends_empty(body: &mut WireBody) -> bool {
    while let Some(Ok(frame)) = body.frame().await {
        if frame.data_ref().is_some_and(|data| !data.is_empty()) {
            return false;
        }
    }
    body.is_end_stream()
}

/// The gRPC status in these headers or trailers.
#[inline]
pub fn grpc_status(headers: &HeaderMap) -> Option<u8> {
    headers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()
}
