//! Bodies stream: one frame at a time, pulled by whoever writes it to the next socket, never collected.
//!
//! A response's [`Body`] carries what has to live until its last byte is gone (the record, the slots, the lease of the instance, the upstream
//! connection) in its [`Tail`]s: one for each leg of the exchange.

mod gathered;

use crate::component::Foreign;
use crate::failure::Failure;
use crate::head;
use crate::io::{Activity, Busy};
use crate::judge::Ruling;
use crate::record::Record;
use crate::replay::Replay;
use crate::snapshot::FunctionEntry;
use crate::upload::{Progress, Upload};
use crate::upstream::Held;
use bytes::Bytes;
use gathered::Gathered;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use leno_sandbox::component::Broken;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// A message body on its way through the corridor.
#[derive(Debug, Default)]
pub struct Body {
    source: Source,
    /// Request bodies: where their bytes are counted.
    counters: [Option<Record>; 2],
    /// Request bodies: the connection that they come from.
    activity: Option<Arc<Activity>>,
    /// Request bodies: how far they have come.
    upload: Option<Upload>,
    /// Request bodies: the function that they go to, whose claims are not for trailers to say.
    function: Option<Arc<FunctionEntry>>,
    tail: Option<Box<Tail>>,
}

#[derive(Debug, Default)]
enum Source {
    #[default]
    Empty,
    Full(Bytes),
    Incoming(Gathered),
    Replay(Replay),
    /// From an instance that is run in the node.
    Foreign(Foreign),
    /// It broke off; the next look at it says so.
    Broken(BodyError),
}

/// What one leg of an exchange keeps until the response's last byte is gone. Dropping it is the end of the leg.
#[derive(Debug)]
pub struct Tail {
    /// Written when the last clone is dropped.
    pub record: Record,
    /// Holds the slots of the circuit breaker.
    pub ruling: Option<Ruling>,
    /// The instance and the connection that are busy with this request.
    pub held: Held,
    /// The exchange must be over by then, and how long it may take in all.
    pub deadline: Option<(Instant, Duration)>,
    /// The client's connection is busy with it.
    pub busy: Option<Busy>,
    timer: Option<Pin<Box<Sleep>>>,
    /// The leg behind this one, when it was handed over on the same node.
    next: Option<Box<Tail>>,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
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

impl Tail {
    /// The end of a leg that keeps nothing but its record yet.
    pub fn new(record: Record) -> Self {
        Self { record, ruling: None, held: Held::default(), deadline: None, busy: None, timer: None, next: None }
    }

    /// Each leg's record, this one first.
    pub fn each(&self, mut act: impl FnMut(&Record)) {
        let mut tail = Some(self);
        while let Some(leg) = tail {
            act(&leg.record);
            tail = leg.next.as_deref();
        }
    }
}

impl Body {
    /// No body at all.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A short body that is there already.
    pub fn full(bytes: Bytes) -> Self {
        Self::from_source(if bytes.is_empty() { Source::Empty } else { Source::Full(bytes) })
    }

    /// A request's body as it comes from the socket, counted in `record`.
    pub fn request(incoming: Incoming, record: &Record, activity: &Arc<Activity>) -> Self {
        let mut body = Self::from(incoming);
        if !body.is_over() {
            body.counters[0] = Some(record.clone());
            body.activity = Some(activity.clone());
            body.upload = Some(Upload::default());
        }
        body
    }

    /// Tells how far a request's body has come; `None`: it was all there from the beginning.
    pub fn upload(&self) -> Option<Upload> {
        match &self.source {
            Source::Replay(replay) => replay.upload(),
            _ => self.upload.clone(),
        }
    }

    /// A request's body on its way to an instance of this function.
    pub fn deliver(mut self, function: &Arc<FunctionEntry>) -> Self {
        if !self.is_over() {
            self.function = Some(function.clone());
        }
        self
    }

    /// Counts a request's body in `record` too, besides the leg before, if it was handed over on the same node.
    pub fn count_in(mut self, record: &Record) -> Self {
        if !self.is_over() {
            let place = usize::from(self.counters[0].is_some());
            self.counters[place] = Some(record.clone());
        }
        self
    }

    /// One try's view of a body that can be sent again.
    pub fn replay(replay: Replay) -> Self {
        Self::from_source(Source::Replay(replay))
    }

    /// Adds what this leg keeps until the body's end.
    pub fn keep(mut self, mut tail: Tail) -> Self {
        tail.next = self.tail.take();
        if let Some(next) = &tail.next {
            tail.deadline = [tail.deadline, next.deadline].into_iter().flatten().min();
        }
        self.tail = Some(Box::new(tail));
        self
    }

    /// What the outermost leg keeps.
    pub fn tail_mut(&mut self) -> Option<&mut Tail> {
        self.tail.as_deref_mut()
    }

    /// Takes what all legs keep, leaving a body that nobody waits for: the connection has become something else.
    pub fn detach(&mut self) -> Option<Box<Tail>> {
        self.source = Source::Empty;
        self.tail.take()
    }

    /// Whether there is nothing (more) to read.
    pub fn is_over(&self) -> bool {
        match &self.source {
            Source::Empty => true,
            Source::Full(_) => false,
            Source::Incoming(incoming) => incoming.is_end_stream(),
            Source::Replay(replay) => replay.is_end_stream(),
            Source::Foreign(foreign) => foreign.is_end_stream(),
            Source::Broken(_) => false,
        }
    }

    fn from_source(source: Source) -> Self {
        Self { source, counters: [None, None], activity: None, upload: None, function: None, tail: None }
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
            Source::Foreign(foreign) => foreign.poll_frame(cx).map_err(BodyError::from),
        }
    }

    fn count(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            let bytes = data.len() as u64;
            for record in self.counters.iter().flatten() {
                record.request_bytes(bytes);
            }
            if let Some(tail) = &self.tail {
                tail.each(|record| record.response_bytes(bytes));
            }
        } else if let (Some(trailers), Some(tail)) = (frame.trailers_ref(), &self.tail)
            && let Some(status) = grpc_status(trailers)
        {
            tail.each(|record| record.grpc_status(status));
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
        if let Some(tail) = self.tail.take() {
            tail.each(|record| record.failure(failure));
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

impl From<Foreign> for Body {
    fn from(foreign: Foreign) -> Self {
        Self::from_source(if foreign.is_end_stream() { Source::Empty } else { Source::Foreign(foreign) })
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
                    let issuers = self.function.iter().flat_map(|function| &function.slice.inbound.authentication);
                    let claims =
                        issuers.flat_map(|issuer| &issuer.claims_to_headers).map(|(_, header)| header.as_str());
                    head::clean_trailers(trailers, claims);
                }
                self.count(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) if self.tail.is_some() => {
                self.break_off(&Failure::BrokenBody(error.to_string()), error, cx)
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => {
                self.source = Source::Empty;
                self.tail = None;
                Poll::Ready(None)
            }
            Poll::Pending => match self.tail.as_mut().and_then(|tail| tail.poll_deadline(cx)) {
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
            Source::Foreign(foreign) => foreign.size_hint(),
            Source::Broken(_) => SizeHint::default(),
        }
    }
}

impl Tail {
    /// `Some`: the time is over. The timer is made only for bodies that let somebody wait.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Option<Duration> {
        let (at, limit) = self.deadline?;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        timer.as_mut().poll(cx).is_ready().then_some(limit)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if (self.tail.is_none() && self.activity.is_none()) || self.is_over() {
            return;
        }
        if let Some(activity) = &self.activity {
            activity.leave_unread();
        }
        self.fail(&Failure::ClientGone);
    }
}

/// The gRPC status that these headers or trailers carry.
pub fn grpc_status(headers: &HeaderMap) -> Option<u8> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}
