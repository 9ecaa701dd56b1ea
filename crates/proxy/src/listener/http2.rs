//! Serves an HTTP/2 connection of a client.

use super::connection::{Connection, Serving};
use super::stream::ClientStream;
use crate::http::body::Body;
use crate::http::http2::{CONNECTION_WINDOW, KeepAlive, SEND_BUFFER, STREAM_WINDOW, Tunnel, Upgrading, pipe};
use crate::http::interim::InterimQueue;
use crate::http::wire::{StreamBody, WireBody};
use crate::runtime::clock;
use crate::runtime::schedule;
use bytes::Bytes;
use h2::server::{Builder, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, header};
use http_body::Body as _;
use leno_config::slice::Limits;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// Maximum number of streams that the peer reset before we saw them: limits rapid reset (CVE-2023-44487).
const RESET_STREAMS: usize = 50;
/// Maximum number of streams that we reset because the peer broke a rule (CVE-2025-8671).
const FAULTY_STREAMS: usize = 100;
/// Longest time between PINGs, and how long their answers may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Takes the requests of a connection, and has each answered by a task.
pub(super) struct Http2<T> {
    connection: Rc<Connection>,
    state: State<T>,
    every: Duration,
    is_leaving: bool,
}

enum State<T> {
    Handshake(Box<Handshake<ClientStream<T>, Bytes>>),
    Serving(Box<h2::server::Connection<ClientStream<T>, Bytes>>, Option<KeepAlive>),
}

impl<T: AsyncRead + AsyncWrite + Unpin> Http2<T> {
    pub(super) fn new(connection: Rc<Connection>, stream: ClientStream<T>, limits: &Limits) -> Self {
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(limits.h2_streams)
            .max_header_list_size(limits.head_bytes)
            .max_pending_accept_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(Some(FAULTY_STREAMS))
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .enable_connect_protocol();
        let state = State::Handshake(Box::new(builder.handshake(stream)));
        Self { connection, state, every: limits.idle_timeout.min(KEEP_ALIVE.0), is_leaving: false }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for Http2<T> {
    type Output = Result<(), h2::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let me = &mut *self;
            match &mut me.state {
                State::Handshake(handshake) => {
                    let mut serving = ready!(Pin::new(&mut **handshake).poll(cx))?;
                    if me.is_leaving {
                        serving.graceful_shutdown();
                    }
                    let ping = serving.ping_pong().map(|ping| KeepAlive::new(ping, me.every, KEEP_ALIVE.1));
                    me.state = State::Serving(Box::new(serving), ping);
                }
                State::Serving(serving, keep_alive) => {
                    if let Some(keep_alive) = keep_alive
                        && keep_alive.poll(|| true, cx).is_ready()
                    {
                        serving.abrupt_shutdown(Reason::NO_ERROR);
                    }
                    match ready!(serving.poll_accept(cx)) {
                        Some(Ok((request, respond))) => {
                            schedule::spawn_part(answer(me.connection.clone(), request, respond));
                        }
                        Some(Err(error)) => return Poll::Ready(Err(error)),
                        None => return Poll::Ready(Ok(())),
                    }
                }
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Serving for Http2<T> {
    type Broken = h2::Error;

    fn shut_down(mut self: Pin<&mut Self>) {
        self.is_leaving = true;
        if let State::Serving(serving, _) = &mut self.state {
            serving.graceful_shutdown();
        }
    }
}

/// Answers the request of one stream.
async fn answer(connection: Rc<Connection>, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (head, stream) = request.into_parts();
    let interim = Arc::new(InterimQueue::default());
    let (body, tunnel, upgrading) = if head.method == Method::CONNECT {
        let (sender, receiver) = oneshot::channel();
        (WireBody::Empty, Some((sender, stream)), Some(Upgrading::Stream(receiver)))
    } else {
        let expects = head.headers.contains_key(header::EXPECT).then(|| interim.clone());
        (WireBody::Stream(StreamBody::new(stream, &head.headers, expects)), None, None)
    };
    let expects = head.headers.contains_key(header::EXPECT);
    let mut handler = connection.handle(Request::from_parts(head, body), upgrading, Some(interim.clone()));
    let response = poll_fn(|cx| {
        if expects {
            interim.register(cx.waker());
        }
        let polled = handler.as_mut().poll(cx);
        while let Some(interim) = interim.take() {
            // A stream that was reset takes none, and its exchange ends below.
            let _ = respond.send_informational(interim);
        }
        match polled {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            // The client has reset the stream, or the connection has ended.
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        }
    });
    let Some(response) = response.await else { return };
    drop(handler);
    if let Err(error) = send(response, respond, tunnel).await {
        tracing::debug!(%error, "a stream broke off");
    }
}

/// Sends a response.
async fn send(
    response: Response<Body>,
    mut respond: SendResponse<Bytes>,
    tunnel: Option<(oneshot::Sender<Tunnel>, RecvStream)>,
) -> Result<(), h2::Error> {
    let (head, body) = response.into_parts();
    let mut response = Response::from_parts(head, ());
    let is_success = response.status().is_success();
    let headers = response.headers_mut();
    headers.entry(header::DATE).or_insert_with(clock::http_date);
    if let Some((sender, stream)) = tunnel.filter(|_| is_success) {
        headers.remove(header::CONTENT_LENGTH);
        let to = respond.send_response(response, false)?;
        // Who waits for it may have gone.
        let _ = sender.send(Tunnel::new(to, stream));
        return Ok(());
    }
    if body.is_end_stream() {
        return respond.send_response(response, true).map(drop);
    }
    set_length(headers, &body);
    let to = respond.send_response(response, false)?;
    pipe(body, to).await
}

/// Says how long the body is, if that is known and not said yet.
fn set_length(headers: &mut HeaderMap, body: &Body) {
    if let Some(length) = body.size_hint().exact() {
        headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}
