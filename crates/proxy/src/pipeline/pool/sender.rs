//! Requests over an HTTP/2 connection to an upstream.

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{Method, Request, Response, header};
use http_body::Body as _;
use leno_http::body::Body;
use leno_http::http2::{Tunnel, TunnelHandle, pipe};
use leno_http::interim::Interim;
use leno_http::wire::{HeadLimits, StreamBody, WireBody};
use leno_runtime::schedule;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Sends requests on a connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    requests: SendRequest<Bytes>,
    /// The limits on the heads of responses.
    limits: HeadLimits,
    /// The connection takes no more requests.
    is_closed: Rc<Cell<bool>>,
}

/// Why a request got no response.
#[derive(Debug)]
pub(crate) struct SendError {
    pub error: h2::Error,
    /// Nothing was sent.
    pub is_unsent: bool,
}

impl Sender {
    pub(crate) fn new(requests: SendRequest<Bytes>, limits: HeadLimits) -> Self {
        Self { requests, limits, is_closed: Rc::default() }
    }

    /// Whether the connection takes no more requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// The connection takes no more requests.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    /// Set when the connection has ended. Holds no part of the connection.
    pub(crate) fn end(&self) -> Rc<Cell<bool>> {
        self.is_closed.clone()
    }

    /// Sends a request, and waits for its response. `pass_on` receives each interim response; its
    /// first error ends the request.
    pub(crate) async fn send<E>(
        &mut self,
        request: Request<Body>,
        pass_on: impl Fn(Interim) -> Result<(), E>,
    ) -> Result<Result<Response<WireBody>, SendError>, E> {
        let unsent = |error| SendError { error, is_unsent: true };
        if let Err(error) = poll_fn(|cx| self.requests.poll_ready(cx)).await {
            self.close();
            return Ok(Err(unsent(error)));
        }
        let (head, body) = request.into_parts();
        let mut head = Request::from_parts(head, ());
        let is_tunnel = head.method() == Method::CONNECT;
        set_length(&mut head, &body);
        let (response, to) = match self.requests.send_request(head, !is_tunnel && body.is_end_stream()) {
            Ok(sent) => sent,
            Err(error) => {
                self.close();
                return Ok(Err(unsent(error)));
            }
        };
        let mut upload = Upload::default();
        let to = if is_tunnel {
            Some(to)
        } else {
            if !body.is_end_stream() {
                upload.begin(body, to);
            }
            None
        };
        let response = answer(response, pass_on).await?;
        upload.keep();
        Ok(response
            .map(|response| received(response, to, self.limits))
            .map_err(|error| SendError { error, is_unsent: false }))
    }
}

/// Waits for the response, and passes on the interim ones.
async fn answer<E>(
    mut response: ResponseFuture,
    pass_on: impl Fn(Interim) -> Result<(), E>,
) -> Result<Result<Response<h2::RecvStream>, h2::Error>, E> {
    poll_fn(|cx| {
        while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
            if let Err(error) = pass_on(interim) {
                return Poll::Ready(Err(error));
            }
        }
        Pin::new(&mut response).poll(cx).map(Ok)
    })
    .await
}

/// The response with its body. If it accepts a CONNECT, its extensions contain the tunnel.
fn received(
    response: Response<h2::RecvStream>,
    tunnel: Option<SendStream<Bytes>>,
    limits: HeadLimits,
) -> Response<WireBody> {
    let (mut head, stream) = response.into_parts();
    match tunnel {
        Some(to) if head.status.is_success() => {
            head.extensions.insert(TunnelHandle::new(Tunnel::new(to, stream)));
            Response::from_parts(head, WireBody::Empty)
        }
        _ => {
            let body = StreamBody::new(stream, &head.headers, None, limits);
            Response::from_parts(head, WireBody::Stream(body))
        }
    }
}

/// Sets the content length, if it is known and not set yet.
fn set_length(request: &mut Request<()>, body: &Body) {
    let may_be_empty = !matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0 || !may_be_empty) {
        request.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}

/// The upload of a body by a separate task. It ends with a reset if this is dropped before the
/// response is there.
#[derive(Default)]
struct Upload(Option<Rc<Cancellation>>);

#[derive(Default)]
struct Cancellation {
    is_cancelled: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Upload {
    fn begin(&mut self, body: Body, to: SendStream<Bytes>) {
        let cancelled = Rc::new(Cancellation::default());
        self.0 = Some(cancelled.clone());
        schedule::spawn_part(async move {
            let mut pipe = pin!(pipe(body, to));
            let ended = poll_fn(|cx: &mut Context<'_>| {
                if cancelled.is_cancelled.get() {
                    return Poll::Ready(Err(Reason::CANCEL.into()));
                }
                cancelled.waker.set(Some(cx.waker().clone()));
                pipe.as_mut().poll(cx)
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "an upload broke off");
            }
        });
    }

    /// Lets the upload go on after this is dropped.
    fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(cancelled) = &self.0 {
            cancelled.is_cancelled.set(true);
            if let Some(waker) = cancelled.waker.take() {
                waker.wake();
            }
        }
    }
}
