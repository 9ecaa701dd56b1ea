//! Bodies stream: one frame at a time, pulled by whoever writes it to the next socket, never collected.
//!
//! A response's [`Body`] keeps what has to live until its last byte is gone, as its [`Guard`], and tells it what passes.

mod gathered;
mod instance;
mod replay;

pub(crate) use instance::InstanceBody;
pub(crate) use replay::Replayable;

use super::activity::{Activity, Busy};
use super::failure::Failure;
use super::head;
use super::upload::{Progress, Upload};
use bytes::Bytes;
use gathered::Gathered;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use leno_sandbox::component::Broken;
use replay::Replay;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// A message body on its way through the corridor.
#[derive(Debug, Default)]
pub(crate) struct Body {
    source: Source,
    /// Request bodies: where their bytes are counted.
    meters: [Option<Rc<dyn Meter>>; 2],
    /// Request bodies: the connection that they come from.
    activity: Option<Arc<Activity>>,
    /// Request bodies: how far they have come.
    upload: Option<Upload>,
    /// Request bodies: fields that say who the caller is, which are not for trailers to say.
    identity_fields: Option<Arc<[Box<str>]>>,
    guard: Option<Box<dyn Guard>>,
}

/// Counts a request's body.
pub trait Meter: fmt::Debug {
    /// More of it came.
    fn request_bytes(&self, bytes: u64);
}

/// What an exchange keeps until the last byte of its response is gone. Dropping it is the end of the exchange.
pub(crate) trait Guard: fmt::Debug {
    /// More of the request came, on a connection that has become a tunnel.
    fn request_bytes(&self, bytes: u64);
    /// More of the response went.
    fn response_bytes(&self, bytes: u64);
    /// The trailers say how the gRPC call ended.
    fn grpc_status(&self, status: u8);
    /// The response broke off.
    fn failure(&self, failure: &Failure);
    /// The client's connection is busy as long as the guard lives.
    fn occupy(&mut self, busy: Busy);
    /// When the exchange must be over, and how long it may take in all.
    fn deadline(&self) -> Option<(Instant, Duration)>;
    /// `Some`: the time is over. Asked only by bodies that let somebody wait.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Option<Duration>;
}

#[derive(Debug, Default)]
enum Source {
    #[default]
    Empty,
    Full(Bytes),
    Incoming(Gathered),
    Replay(Replay),
    /// From an instance that is run in the node.
    Instance(InstanceBody),
    /// It broke off; the next look at it says so.
    Broken(BodyError),
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The sender did.
    #[error("the sender broke off: {0}")]
    Sender(#[from] hyper::Error),
    /// The instance that wrote it did.
    #[error(transparent)]
    Instance(#[from] Broken),
    /// The time for the exchange passed.
    #[error("the time for the exchange, {0:?}, is over")]
    Timeout(Duration),
    /// Another try has taken over.
    #[error("another try has taken over")]
    Superseded,
}

impl Body {
    /// No body at all.
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    /// A short body that is there already.
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self::from_source(if bytes.is_empty() { Source::Empty } else { Source::Full(bytes) })
    }

    /// A request's body as it comes from the socket, counted by `meter`.
    pub(crate) fn request(incoming: Incoming, meter: Rc<dyn Meter>, activity: &Arc<Activity>) -> Self {
        let mut body = Self::from(incoming);
        if !body.is_over() {
            body.meters[0] = Some(meter);
            body.activity = Some(activity.clone());
            body.upload = Some(Upload::default());
        }
        body
    }

    /// Tells how far a request's body has come; `None`: it was all there from the beginning.
    pub(crate) fn upload(&self) -> Option<Upload> {
        match &self.source {
            Source::Replay(replay) => replay.upload(),
            _ => self.upload.clone(),
        }
    }

    /// A request's body on its way to an instance. Its trailers lose these fields, and all that are reserved.
    pub(crate) fn deliver(mut self, identity_fields: &Arc<[Box<str>]>) -> Self {
        if !self.is_over() {
            self.identity_fields = Some(identity_fields.clone());
        }
        self
    }

    /// Counts a request's body here too, besides the exchange before, if it was handed over on the same node.
    pub(crate) fn count_in(mut self, meter: Rc<dyn Meter>) -> Self {
        if !self.is_over() {
            let place = usize::from(self.meters[0].is_some());
            self.meters[place] = Some(meter);
        }
        self
    }

    /// One try's view of a body that can be sent again.
    pub(crate) fn replay(replay: Replay) -> Self {
        Self::from_source(Source::Replay(replay))
    }

    /// Keeps this until the body's end.
    pub(crate) fn keep(mut self, guard: Box<dyn Guard>) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Takes what is kept until the body's end.
    pub(crate) fn take_guard(&mut self) -> Option<Box<dyn Guard>> {
        self.guard.take()
    }

    /// The client's connection is busy until the body's end.
    pub(crate) fn occupy(&mut self, busy: Busy) {
        if let Some(guard) = &mut self.guard {
            guard.occupy(busy);
        }
    }

    /// Takes what is kept, leaving a body that nobody waits for: the connection has become something else.
    pub(crate) fn detach(&mut self) -> Option<Box<dyn Guard>> {
        self.source = Source::Empty;
        self.guard.take()
    }

    /// Whether there is nothing (more) to read.
    pub(crate) fn is_over(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(_) => false,
            Source::Incoming(incoming) => incoming.is_end_stream(),
            Source::Replay(replay) => replay.is_end_stream(),
            Source::Instance(instance) => instance.is_end_stream(),
            Source::Broken(_) => false,
        }
    }

    fn from_source(source: Source) -> Self {
        Self { source, meters: [None, None], activity: None, upload: None, identity_fields: None, guard: None }
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.source {
            Source::Empty => Poll::Ready(None),
            Source::Full(_) | Source::Broken(_) => match std::mem::take(&mut self.source) {
                Source::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Source::Broken(error) => Poll::Ready(Some(Err(error))),
                _ => Poll::Ready(None),
            },
            Source::Incoming(incoming) => incoming.poll_frame(cx).map_err(BodyError::from),
            Source::Replay(replay) => replay.poll_frame(cx),
            Source::Instance(instance) => instance.poll_frame(cx).map_err(BodyError::from),
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

    /// A response broke off. Whoever writes it gets a turn to send what it has (the head, at least) before it learns that there
    /// is no more: hyper ends a connection at once, and a client that saw nothing at all could not tell what happened.
    fn break_off(
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

    fn fail(&mut self, failure: &Failure) {
        if let Some(guard) = self.guard.take() {
            guard.failure(failure);
        }
    }
}

impl From<Incoming> for Body {
    fn from(incoming: Incoming) -> Self {
        Self::from_source(if incoming.is_end_stream() {
            Source::Empty
        } else {
            Source::Incoming(Gathered::new(incoming))
        })
    }
}

impl From<InstanceBody> for Body {
    fn from(instance: InstanceBody) -> Self {
        Self::from_source(if instance.is_end_stream() { Source::Empty } else { Source::Instance(instance) })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
            Poll::Pending => match self.guard.as_mut().and_then(|guard| guard.poll_deadline(cx)) {
                Some(limit) => self.break_off(&Failure::Timeout(limit), BodyError::Timeout(limit), cx),
                None => Poll::Pending,
            },
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
            Source::Instance(instance) => instance.size_hint(),
            Source::Broken(_) => SizeHint::default(),
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

/// The gRPC status that these headers or trailers carry.
pub(crate) fn grpc_status(headers: &HeaderMap) -> Option<u8> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}
