//! Bodies that a handler has not read.
//!
//! An answer before the end of the request makes HTTP/2 reset the stream, and clients may then miss
//! the answer. So the rest of the body is read first, if it is short.

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of a refused body that are read.
const REST: usize = 64 << 10;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers a request once the rest of its body has come.
pub(super) async fn read_rest(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let shared = Arc::new(Mutex::new(body));
    let response = next.run(Request::from_parts(head, Body::new(SharedBody(shared.clone())))).await;
    // The handler has dropped its end, unless its response streams the request back.
    if let Some(body) = Arc::into_inner(shared) {
        let body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
        let _ = timeout(PATIENCE, skip(body)).await;
    }
    response
}

async fn skip(mut body: Body) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await
        && bytes <= REST
    {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// The handler's end of a body.
struct SharedBody(Arc<Mutex<Body>>);

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}
