//! The interface to everything external to an instance.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use std::future::Future;
use std::pin::Pin;

/// A body that an instance reads or writes, frame by frame.
pub type Body = UnsyncBoxBody<Bytes, StreamError>;

/// The reason why a body or a call broke off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StreamError(pub String);

/// A future of the response.
pub type Sending = Pin<Box<dyn Future<Output = Result<Response<Body>, StreamError>> + Send>>;

/// Receives an instance's outgoing calls: everything that leaves the instance goes through here.
pub trait Outbound: Send + 'static {
    /// Sends a request of the instance, whose URI has a scheme and an authority. Dropping the
    /// future cancels the call.
    fn send(&mut self, request: Request<Body>) -> Sending;
}
