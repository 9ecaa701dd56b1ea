//! Bodies on their way into an instance and out of it. Both sides are on one thread: frames change hands, nothing is copied.

use crate::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use leno_sandbox::component::{self, Broken};
use send_wrapper::SendWrapper;
use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A body that an instance writes.
pub struct Foreign {
    body: Pin<Box<dyn http_body::Body<Data = Bytes, Error = Broken>>>,
    /// Whether it was read to its end.
    over: Rc<Cell<bool>>,
}

impl Foreign {
    /// `over` becomes true when its last frame was taken.
    pub fn new(body: impl http_body::Body<Data = Bytes, Error = Broken> + 'static, over: Rc<Cell<bool>>) -> Self {
        Self { body: Box::pin(body), over }
    }

    /// The next frame.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = self.body.as_mut().poll_frame(cx);
        if let Poll::Ready(None) = frame {
            self.over.set(true);
        }
        frame
    }

    /// Whether there is nothing more to read, as far as it is known.
    pub fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// How long it is, as far as it is known.
    pub fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Foreign")
    }
}

/// A body of the corridor, for an instance to read.
pub(super) fn lend(body: Body) -> component::Body {
    Lent(SendWrapper::new(body)).boxed_unsync()
}

/// The engine wants what moves between threads; this never does, and says so with a panic if it should.
struct Lent(SendWrapper<Body>);

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Pin::new(&mut *self.0).poll_frame(cx).map_err(|error| Broken(error.to_string()))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
