//! Serves an HTTP/2 connection of a client.

use super::connection::{Connection, Serving, SilentEnd};
use super::refused_streams::{AcceptedStreams, Event, Reset, Resets, answer as answer_refused};
use super::stream::ClientStream;
use bytes::Bytes;
use h2::server::{Builder, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body::Body as _;
use leno_http::body::Body;
use leno_http::failure::Failure;
use leno_http::head::HeadError;
use leno_http::http2::{CONNECTION_WINDOW, KeepAlive, SEND_BUFFER, STREAM_WINDOW, Tunnel, Upgrading, pipe};
use leno_http::inflow::PeerSettings;
use leno_http::interim::InterimQueue;
use leno_http::wire::{HeadLimits, StreamBody, WireBody};
use leno_model::Limits;
use leno_policy::spec::Protocol;
use leno_runtime::clock;
use leno_runtime::schedule;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// Maximum number of streams that the peer resets before the proxy sees them: limits rapid reset
/// (CVE-2023-44487).
const RESET_STREAMS: usize = 50;
/// Maximum number of streams that the proxy resets because the peer broke a rule (CVE-2025-8671).
const FAULTY_STREAMS: usize = 100;
/// Longest time between PINGs, and how long their answers may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Takes the requests of a connection, and spawns a task that answers each.
pub(super) struct Http2<T> {
    connection: Rc<Connection>,
    state: State<T>,
    settings: Arc<PeerSettings>,
    limits: HeadLimits,
    resets: Resets,
    accepted: AcceptedStreams,
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
            .max_header_list_size(head_list_size(limits))
            .max_pending_accept_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(Some(FAULTY_STREAMS))
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .enable_connect_protocol();
        let (settings, resets) = (Arc::new(PeerSettings::default()), Resets::default());
        let stream = stream.http2(settings.clone(), resets.clone());
        Self {
            connection,
            state: State::Handshake(Box::new(builder.handshake(stream))),
            settings,
            limits: HeadLimits { fields: limits.headers, bytes: limits.head_bytes },
            resets,
            accepted: AcceptedStreams::default(),
            every: limits.idle_timeout.min(KEEP_ALIVE.0),
            is_leaving: false,
        }
    }

    /// The bytes to write before a reset. The library has refused a stream that has brought no
    /// request. Such a stream is recorded, and answered.
    fn before(&self, reset: Reset) -> Vec<u8> {
        let refused = match reset.code.into() {
            Reason::PROTOCOL_ERROR => HeadError::Http2Head.into(),
            Reason::REFUSED_STREAM => {
                Failure::Bound("the connection has more streams than limits.http2Streams".to_owned())
            }
            _ => return Vec::new(),
        };
        let Some(request_id) = self.record(reset.stream, &refused) else { return Vec::new() };
        match refused {
            Failure::Malformed(_) => answer_refused(reset.stream, &request_id, &refused.to_string()),
            // The code shows the client that it may send the request again.
            _ => Vec::new(),
        }
    }

    /// Records a stream that the library has refused; `None`: the stream has brought a request,
    /// which has a record.
    fn record(&self, stream: u32, refused: &Failure) -> Option<HeaderValue> {
        if !self.accepted.is_without(stream) {
            return None;
        }
        let request_id = self.connection.worker.request_id();
        let id = request_id.to_str().unwrap_or_default();
        drop(self.connection.record_unread(Protocol::Http2, refused, id));
        Some(request_id)
    }
}

/// Why the library has ended a connection, if the client is to blame. `in_head`: a large head had
/// not ended.
pub(super) fn broken(error: &h2::Error, in_head: bool) -> Option<Failure> {
    if !error.is_library() || !error.is_go_away() {
        return None;
    }
    Some(match error.reason()? {
        Reason::COMPRESSION_ERROR => HeadError::LargeHead.into(),
        Reason::ENHANCE_YOUR_CALM if in_head => HeadError::LargeHead.into(),
        Reason::ENHANCE_YOUR_CALM => HeadError::Http2Excess.into(),
        _ => HeadError::Http2Connection.into(),
    })
}

/// Maximum size of a head as HTTP/2 counts it, with 32 bytes more for each field. The library
/// refuses a larger head without a reason, so this is twice the limits of the mesh, which the proxy
/// checks itself.
fn head_list_size(limits: &Limits) -> u32 {
    limits.head_bytes.saturating_add(limits.headers.saturating_mul(32)).saturating_mul(2)
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
                    match serving.poll_accept(cx) {
                        Poll::Ready(Some(Ok((request, respond)))) => {
                            me.accepted.accept(respond.stream_id().as_u32());
                            let limits = (me.limits, me.settings.head());
                            schedule::spawn_part(answer(me.connection.clone(), request, respond, limits));
                        }
                        Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                        Poll::Ready(None) => return Poll::Ready(Ok(())),
                        Poll::Pending => match me.resets.next() {
                            Some(Event::Reset(reset)) => me.resets.decide(me.before(reset)),
                            Some(Event::Answered(stream)) => drop(me.record(stream, &HeadError::LargeHead.into())),
                            None => return Poll::Pending,
                        },
                    }
                }
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Serving for Http2<T> {
    type Error = h2::Error;

    fn shut_down(mut self: Pin<&mut Self>) {
        self.is_leaving = true;
        if let State::Serving(serving, _) = &mut self.state {
            serving.graceful_shutdown();
        }
    }
}

/// Answers the request of one stream.
async fn answer(
    connection: Rc<Connection>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    (limits, client_head): (HeadLimits, u32),
) {
    let (head, stream) = request.into_parts();
    let interim = Arc::new(InterimQueue::default());
    let (body, tunnel, upgrading) = if head.method == Method::CONNECT {
        let (sender, receiver) = oneshot::channel();
        (WireBody::Empty, Some((sender, stream)), Some(Upgrading::Stream(receiver)))
    } else {
        let expects = head.headers.contains_key(header::EXPECT).then(|| interim.clone());
        (WireBody::Stream(StreamBody::new(stream, &head.headers, expects, limits)), None, None)
    };
    let expects = head.headers.contains_key(header::EXPECT);
    let request = Request::from_parts(head, body);
    let mut handler = connection.handle(request, upgrading, (Some(interim.clone()), client_head));
    let response = poll_fn(|cx| {
        if expects {
            interim.register(cx.waker());
        }
        let polled = handler.as_mut().poll(cx);
        while let Some(interim) = interim.take() {
            // A stream that was reset takes no interim response, and its exchange ends below.
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
    if response.extensions().get::<SilentEnd>().is_some() {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
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
        // The task that waits for the tunnel may have gone.
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

/// Sets the content length, if it is known and not set yet.
fn set_length(headers: &mut HeaderMap, body: &Body) {
    if let Some(length) = body.size_hint().exact() {
        headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}
