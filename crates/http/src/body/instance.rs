//! Bodies that come from a component's instance in this process.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The error of a body that a component's instance broke off. Holds the cause, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InstanceError(String);

/// A body that an instance writes.
pub struct InstanceBody {
    body: Pin<Box<dyn http_body::Body<Data = Bytes, Error = InstanceError>>>,
    /// Whether the body was read to its end.
    over: Rc<Cell<bool>>,
}

impl InstanceBody {
    /// `over` becomes true when the last frame was taken.
    pub fn new<E: fmt::Display>(
        body: impl http_body::Body<Data = Bytes, Error = E> + 'static,
        over: Rc<Cell<bool>>,
    ) -> Self {
        Self { body: Box::pin(body.map_err(|error| InstanceError(error.to_string()))), over }
    }

    /// The next frame that the instance writes.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, InstanceError>>> {
        let frame = self.body.as_mut().poll_frame(cx);
        if let Poll::Ready(None) = frame {
            self.over.set(true);
        }
        frame
    }

    /// Whether nothing is left to read, as far as that is known.
    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Bounds on the bytes that are left, as far as they are known.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for InstanceBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InstanceBody")
    }
}
