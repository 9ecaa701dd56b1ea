//! Request bodies that can be sent again.
//!
//! A body is recorded up to a limit while it streams through. A longer body continues to stream,
//! but cannot be sent again.

use crate::body::{Body, BodyError};
use crate::upload::{Progress, Upload};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Bytes of a request's body that are kept for another attempt.
pub(super) const REPLAY_BYTES: usize = 64 * 1024;

/// The body of a request for several attempts, one after the other.
#[derive(Clone, Debug)]
pub struct Replayable(Rc<RefCell<Recording>>);

/// One attempt's view of the body: the recording first, then the frames that still arrive.
#[derive(Debug)]
pub(super) struct Replay {
    recording: Rc<RefCell<Recording>>,
    /// Number of the attempt. When a later one has begun, this one gets nothing more.
    generation: u32,
    /// Chunks of the recording that this attempt has read.
    passed: usize,
    trailers_passed: bool,
}

#[derive(Debug)]
struct Recording {
    source: Body,
    chunks: Vec<Bytes>,
    size: usize,
    trailers: Option<HeaderMap>,
    /// The source has ended.
    complete: bool,
    /// The recording is incomplete: it grew too long, or the source broke off.
    spoiled: bool,
    generation: u32,
}

impl Replayable {
    /// A body for several attempts. Only an attempt reads it.
    #[inline]
    pub fn new(source: Body) -> Self {
        let complete = source.is_over();
        Self(Rc::new(RefCell::new(Recording {
            source,
            chunks: Vec::new(),
            size: 0,
            trailers: None,
            complete,
            spoiled: false,
            generation: 0,
        })))
    }

    /// The body for another attempt, from its beginning. Earlier attempts end. `None`: the
    /// beginning is no longer recorded.
    pub fn another(&self) -> Option<Body> {
        let mut recording = self.0.borrow_mut();
        if recording.spoiled {
            return None;
        }
        if let Some(again) = recording.source.again() {
            return Some(again);
        }
        recording.generation += 1;
        if let Some(upload) = recording.source.upload() {
            // The attempt begins with the recording, so it does not wait for the client.
            upload.note(Progress::Upstream);
        }
        let generation = recording.generation;
        Some(Body::replay(Replay { recording: self.0.clone(), generation, passed: 0, trailers_passed: false }))
    }

    /// Whether [`Replayable::another`] would return a body.
    #[inline]
    pub fn is_possible(&self) -> bool {
        !self.0.borrow().spoiled
    }
}

impl Replay {
    /// The next frame for this attempt.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut recording = self.recording.borrow_mut();
        if recording.generation != self.generation {
            return Poll::Ready(Some(Err(BodyError::Superseded)));
        }
        if let Some(chunk) = recording.chunks.get(self.passed) {
            self.passed += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
        }
        if recording.complete {
            let trailers =
                if std::mem::replace(&mut self.trailers_passed, true) { None } else { recording.trailers.clone() };
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let polled = Pin::new(&mut recording.source).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => self.passed += recording.record(frame),
            Poll::Ready(Some(Err(_))) => recording.spoiled = true,
            Poll::Ready(None) => recording.complete = true,
            Poll::Pending => {}
        }
        if recording.trailers.is_some() {
            self.trailers_passed = true;
        }
        polled
    }

    /// The progress of the client's upload.
    pub(super) fn upload(&self) -> Option<Upload> {
        self.recording.borrow().source.upload()
    }

    /// Whether this attempt has read everything.
    pub(super) fn is_end_stream(&self) -> bool {
        let recording = self.recording.borrow();
        let all_passed =
            self.passed >= recording.chunks.len() && (self.trailers_passed || recording.trailers.is_none());
        all_passed && (recording.complete || recording.source.is_over())
    }

    /// Bounds on the bytes that are left for this attempt.
    pub(super) fn size_hint(&self) -> SizeHint {
        let recording = self.recording.borrow();
        let recorded: usize = recording.chunks.iter().skip(self.passed).map(Bytes::len).sum();
        match recording.source.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(recorded as u64 + rest),
            None => SizeHint::default(),
        }
    }
}

impl Recording {
    /// Keeps a frame for later attempts. Returns by how many chunks the recording grew.
    fn record(&mut self, frame: &Frame<Bytes>) -> usize {
        if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
            self.complete = true;
        }
        let Some(data) = frame.data_ref() else { return 0 };
        self.size += data.len();
        if self.spoiled || self.size > REPLAY_BYTES {
            self.spoiled = true;
            // This attempt has read them all, and there will be no other.
            self.chunks = Vec::new();
            return 0;
        }
        self.chunks.push(data.clone());
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn collect(body: &mut Body) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        all
    }

    #[tokio::test]
    async fn each_try_gets_all_of_it() {
        let body = Replayable::new(Body::full(Bytes::from_static(b"hello")));
        let mut first = body.another().unwrap();
        assert_eq!(first.size_hint().exact(), Some(5));
        assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
        let mut second = body.another().unwrap();
        assert!(matches!(first.frame().await, Some(Err(BodyError::Superseded))));
        assert_eq!(second.size_hint().exact(), Some(5));
        assert_eq!(collect(&mut second).await, b"hello");
        assert!(second.is_over());
        assert_eq!(collect(&mut body.another().unwrap()).await, b"hello");
    }

    #[tokio::test]
    async fn a_long_body_streams_once() {
        let long = Bytes::from(vec![7; REPLAY_BYTES + 1]);
        let body = Replayable::new(Body::full(long.clone()));
        let mut first = body.another().unwrap();
        assert_eq!(collect(&mut first).await, long);
        assert!(!body.is_possible());
        assert!(body.another().is_none());
    }

    #[tokio::test]
    async fn an_empty_body_is_over_each_time() {
        let body = Replayable::new(Body::empty());
        for _ in 0..2 {
            let mut again = body.another().unwrap();
            assert!(again.is_over());
            assert!(again.frame().await.is_none());
        }
    }
}
