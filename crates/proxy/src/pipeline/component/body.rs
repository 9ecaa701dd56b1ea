//! Passes bodies into an instance and out of it. Both sides are on one thread, so frames are moved,
//! not copied.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use leno_http::body::Body;
use leno_sandbox::component::{self, StreamError};
use send_wrapper::SendWrapper;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Turns a body of the pipeline into one that an instance can read.
pub(super) fn lend(body: Body) -> component::Body {
    InstanceInput(SendWrapper::new(body)).boxed_unsync()
}

/// The engine requires `Send`. This value never leaves its thread; if it did, the wrapper would
/// panic.
struct InstanceInput(SendWrapper<Body>);

impl http_body::Body for InstanceInput {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        Pin::new(&mut *self.0).poll_frame(cx).map_err(|error| StreamError(error.to_string()))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
