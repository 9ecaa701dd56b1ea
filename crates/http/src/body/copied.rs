//! A request's body of which a copy goes to another back end.
//!
//! The copy never delays the request: it gets the frames that the request's own upstream reads, and
//! is cut off if its reader falls behind.

use super::{Body, BodyError};
use crate::upload::Upload;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Bytes of a body that may wait for the reader of a copy.
const COPY_BYTES: usize = 64 * 1024;

/// The body that is copied.
#[derive(Debug)]
pub(super) struct CopiedBody {
    source: Body,
    copy: Rc<RefCell<Copy>>,
}

/// The reader's end of a copy.
#[derive(Debug)]
pub(super) struct CopyReader(Rc<RefCell<Copy>>);

/// Tells whether a copy could follow its request.
#[derive(Debug)]
pub struct CopyState(Rc<RefCell<Copy>>);

#[derive(Debug, Default)]
struct Copy {
    waiting: VecDeque<Frame<Bytes>>,
    bytes: usize,
    end: CopyEnd,
    reader: Option<Waker>,
    /// The reader is gone.
    unread: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum CopyEnd {
    #[default]
    Open,
    /// The request's body is complete.
    Complete,
    /// The reader fell behind, or the request's body broke off.
    Cut,
}

impl Body {
    /// The same body, a copy of it, and the state of the copy.
    pub fn copied(self) -> (Self, Self, CopyState) {
        let copy = Rc::<RefCell<Copy>>::default();
        if self.is_over() {
            copy.borrow_mut().end = CopyEnd::Complete;
        }
        let (reader, state) = (CopyReader(copy.clone()), CopyState(copy.clone()));
        if self.is_over() {
            return (self, Self::empty(), state);
        }
        let copied = CopiedBody { source: self, copy };
        (
            Self::from_source(super::Source::Copied(Box::new(copied))),
            Self::from_source(super::Source::Copy(reader)),
            state,
        )
    }
}

impl CopyState {
    /// Whether the copy broke off before its end.
    pub fn is_cut(&self) -> bool {
        self.0.borrow().end == CopyEnd::Cut
    }
}

impl CopiedBody {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.source).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => self.copy.borrow_mut().push(frame),
            Poll::Ready(Some(Err(_))) => self.copy.borrow_mut().finish(CopyEnd::Cut),
            Poll::Ready(None) => self.copy.borrow_mut().finish(CopyEnd::Complete),
            Poll::Pending => {}
        }
        polled
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.source.is_over()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }

    pub(super) fn upload(&self) -> Option<Upload> {
        self.source.upload()
    }
}

impl Drop for CopiedBody {
    fn drop(&mut self) {
        // Some readers do not ask for the end of a body that says it is over.
        let end = if self.source.is_over() { CopyEnd::Complete } else { CopyEnd::Cut };
        self.copy.borrow_mut().finish(end);
    }
}

impl Copy {
    fn push(&mut self, frame: &Frame<Bytes>) {
        if self.unread || self.end != CopyEnd::Open {
            return;
        }
        let frame = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => {
                self.bytes += data.len();
                Frame::data(data.clone())
            }
            (_, Some(trailers)) => Frame::trailers(trailers.clone()),
            (None, None) => return,
        };
        if self.bytes > COPY_BYTES {
            return self.finish(CopyEnd::Cut);
        }
        self.waiting.push_back(frame);
        self.wake();
    }

    fn finish(&mut self, end: CopyEnd) {
        if self.end == CopyEnd::Open {
            if end == CopyEnd::Cut {
                self.waiting.clear();
            }
            self.end = end;
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl CopyReader {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut copy = self.0.borrow_mut();
        if let Some(frame) = copy.waiting.pop_front() {
            copy.bytes -= frame.data_ref().map_or(0, Bytes::len);
            return Poll::Ready(Some(Ok(frame)));
        }
        match copy.end {
            CopyEnd::Complete => Poll::Ready(None),
            CopyEnd::Cut => Poll::Ready(Some(Err(BodyError::CutCopy))),
            CopyEnd::Open => {
                copy.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let copy = self.0.borrow();
        copy.waiting.is_empty() && copy.end == CopyEnd::Complete
    }
}

impl Drop for CopyReader {
    fn drop(&mut self) {
        let mut copy = self.0.borrow_mut();
        copy.unread = true;
        copy.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::task::Waker;

    fn next(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_copy_has_all_that_its_request_has() {
        let (original, copy, state) = Body::full(Bytes::from_static(b"hello")).copied();
        assert_eq!(original.collect().await.unwrap().to_bytes(), "hello");
        assert_eq!(copy.collect().await.unwrap().to_bytes(), "hello");
        assert!(!state.is_cut());
        let (original, copy, state) = Body::empty().copied();
        assert!(original.is_over() && copy.is_over() && !state.is_cut());
    }

    #[test]
    fn a_copy_that_falls_behind_is_cut_and_its_request_goes_on() {
        let long = Bytes::from(vec![b'x'; COPY_BYTES + 1]);
        let (mut original, mut copy, state) = Body::full(long.clone()).copied();
        assert!(next(&mut copy).is_pending());
        let Poll::Ready(Some(Ok(frame))) = next(&mut original) else { panic!("the request goes on") };
        assert_eq!(frame.into_data().unwrap(), long);
        assert!(state.is_cut());
        assert!(matches!(next(&mut copy), Poll::Ready(Some(Err(_)))), "it does not look complete");
    }

    #[test]
    fn a_copy_ends_with_its_request_and_not_the_other_way_round() {
        let (original, mut copy, state) = Body::full(Bytes::from_static(b"hello")).copied();
        drop(original);
        assert!(state.is_cut() && matches!(next(&mut copy), Poll::Ready(Some(Err(_)))));
        let (mut original, copy, _) = Body::full(Bytes::from_static(b"hello")).copied();
        drop(copy);
        assert!(matches!(next(&mut original), Poll::Ready(Some(Ok(_)))));
    }
}
