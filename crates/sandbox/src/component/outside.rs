//! The world outside of an instance.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use std::future::Future;
use std::pin::Pin;

/// A body that an instance reads or writes, frame by frame.
pub type Body = UnsyncBoxBody<Bytes, Broken>;

/// A body, or a call, broke off; why, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// The wait for a response.
pub type Sending = Pin<Box<dyn Future<Output = Result<Response<Body>, Broken>> + Send>>;

/// Whom an instance calls: everything that leaves it goes through here.
pub trait Outside: Send + 'static {
    /// Sends a request of the instance, whose URI has a scheme and an authority. Who drops the future gives up.
    fn send(&mut self, request: Request<Body>) -> Sending;
}
