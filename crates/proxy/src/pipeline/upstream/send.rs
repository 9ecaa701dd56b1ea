//! Sends a request to one of its endpoints, over a connection of the pool.

use super::{Forward, breaker};
use crate::pipeline::MAX_CHECKED_HEAD;
use crate::pipeline::pool::{
    CalleeKey, CheckIn, CheckedOutHttp1, CheckedOutHttp2, ConnectError, ConnectionKey, SendError, is_unasked,
};
use crate::pipeline::retry;
use crate::state::function::{EVENT, FunctionEntry};
use crate::state::instances::{InstanceProof, Lease};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header, request};
use hyper::body::Incoming;
use leno_http::body::{Body, BodyError, Replayable, ends_empty, says_empty};
use leno_http::failure::Failure;
use leno_http::head;
use leno_http::interim::InterimQueue;
use leno_http::wire::WireBody;
use leno_model::UpstreamLimits;
use leno_namespaces::Namespace;
use leno_telemetry::exchange::AttemptResult;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The server may just have closed a connection that was idle for longer than this. So a copy of a
/// repeatable request is kept, to be sent again.
const STALE_AFTER: Duration = Duration::from_millis(500);
/// Longest time to connect to an instance.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// The possible destinations of a request.
pub(super) struct Endpoints<'a> {
    /// The first destination.
    pub key: ConnectionKey,
    /// The destinations to try if connecting fails.
    pub others: VecDeque<SocketAddr>,
    /// Connects to an instance; `None`: the destination is a sidecar, which authenticates by TLS.
    pub lease: Option<&'a dyn InstanceProof>,
    /// Longest time to connect, including TLS.
    pub limit: Duration,
    /// The namespace that new connections count for.
    pub share: Option<&'a Arc<Namespace>>,
}

impl<'a> Endpoints<'a> {
    /// A leased instance.
    pub(super) fn one(key: ConnectionKey, lease: &'a Lease, entry: &'a FunctionEntry) -> Self {
        Self { key, others: VecDeque::new(), lease: Some(&*lease.guard), limit: CONNECT, share: entry.share() }
    }

    fn proof(&self) -> &'a dyn InstanceProof {
        self.lease.unwrap_or(&())
    }
}

impl Forward<'_> {
    pub(super) async fn send_http1(
        &self,
        entry: &FunctionEntry,
        mut endpoints: Endpoints<'_>,
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<(Response<WireBody>, CheckIn), Failure> {
        let (pool, limits) = (&self.exchange.worker.pool, &self.exchange.snapshot.mesh.limits.upstream);
        head::into_http1(&mut head, body.is_over());
        if self.exchange.is_unshared {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut request = Request::from_parts(*head, body);
        loop {
            let repeatable = request.body().is_over() && retry::is_idempotent(request.method());
            let CheckedOutHttp1 { mut connection, idle } = match self.http1(entry, &mut endpoints, repeatable).await {
                Ok(connected) => connected,
                Err(failure) => return Err(self.keep_unsent(&endpoints, request, failure)),
            };
            let stale = idle.is_some_and(|idle| idle > STALE_AFTER);
            let spare = (stale && repeatable).then(|| Box::new(copy(&request)));
            connection.heads.begin();
            let sent = connection.sender.try_send_request(request);
            let sent = self.with_interim(connection.heads.interim(), sent).await?;
            let arrived = connection.heads.arrived();
            connection.heads.end();
            let mut error = match sent {
                Ok(response) if is_encoded(&response) => {
                    let cause = "the response has a transfer coding that is not understood".to_owned();
                    return Err(Failure::Reset { cause, refused: false });
                }
                Ok(response) => {
                    if let Some(pod) = self.exchange.pod.as_ref().filter(|_| is_last(&response)) {
                        // Its client hears it before it sends another request.
                        pod.notice.give(false);
                    }
                    return Ok((response.map(WireBody::from), pool.check_in_http1(connection, endpoints.key)));
                }
                Err(error) => error,
            };
            if error.error().is_parse_too_large() {
                return Err(head_beyond(arrived, limits));
            }
            if error.error().is_parse() {
                return Err(Failure::Protocol("its head is not one of HTTP/1.1 (RFC 9112)"));
            }
            if is_unasked(error.error()) {
                pool.distrust(&endpoints.key);
            }
            // The server may have closed the idle connection. If the request was not sent, or may
            // be sent twice, it goes out on another connection.
            request = match (error.take_message(), spare) {
                (Some(unsent), _) if idle.is_some() => unsent,
                (None, Some(spare)) if is_lost(error.error()) => *spare,
                (unsent, _) => return Err(broken(error.error(), unsent.is_some())),
            };
        }
    }

    /// Waits for a response, and passes on the interim responses that arrive meanwhile.
    async fn with_interim<T>(&self, arrived: &InterimQueue, response: impl Future<Output = T>) -> Result<T, Failure> {
        let mut response = pin!(response);
        poll_fn(|cx| {
            arrived.register(cx.waker());
            let polled = response.as_mut().poll(cx);
            while let Some(interim) = arrived.take() {
                if let Err(failure) = self.exchange.pass_on(interim) {
                    return Poll::Ready(Err(failure));
                }
            }
            polled.map(Ok)
        })
        .await
    }

    /// A connection for one request, within the circuit breaker's limit. Each worker may have one
    /// connection in any case, so that no worker starves while others hold idle connections.
    async fn http1(
        &self,
        entry: &FunctionEntry,
        endpoints: &mut Endpoints<'_>,
        repeatable: bool,
    ) -> Result<CheckedOutHttp1, Failure> {
        let (pool, target) = (&self.exchange.worker.pool, &self.permit.target);
        let breaker = breaker(entry);
        let mut pending = None;
        loop {
            if !self.exchange.is_unshared
                && let Some(idle) = pool.idle_http1(&endpoints.key, repeatable)
            {
                return Ok(idle);
            }
            let guard = target.acquire_connection(breaker.map(|breaker| breaker.max_connections));
            if guard.is_some() || pool.open_http1(&endpoints.key) == 0 {
                let guard = guard.or_else(|| target.acquire_connection(None));
                // Boxed because it is rare and large. Otherwise it would enlarge the future of
                // every exchange.
                let held = (endpoints.share, guard);
                let limits = (endpoints.limit, &self.exchange.snapshot.mesh.limits.upstream);
                let connect = pool.connect_http1(&endpoints.key, endpoints.proof(), held, limits);
                match Box::pin(connect).await {
                    Ok(connected) => return Ok(connected),
                    Err(error) => self.next_endpoint(Some(entry), endpoints, &error)?,
                }
                continue;
            }
            if pending.is_none() {
                pending =
                    Some(target.acquire_pending(breaker.map(|breaker| breaker.max_pending)).ok_or(Failure::Overflow)?);
            }
            let changed = pool.changed_http1(&endpoints.key);
            pool.make_space_http1(&endpoints.key, self.exchange.is_unshared);
            changed.await;
        }
    }

    pub(super) async fn send_http2(
        &self,
        entry: Option<&FunctionEntry>,
        endpoints: Endpoints<'_>,
        head: Box<request::Parts>,
        body: Body,
    ) -> Result<(Response<WireBody>, CheckIn), Failure> {
        let scheme = if self.exchange.scheme == "https" { Scheme::HTTPS } else { Scheme::HTTP };
        self.send_http2_as(&scheme, entry, endpoints, head, body).await
    }

    pub(super) async fn send_http2_as(
        &self,
        scheme: &Scheme,
        entry: Option<&FunctionEntry>,
        mut endpoints: Endpoints<'_>,
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<(Response<WireBody>, CheckIn), Failure> {
        let (worker, target) = (&self.exchange.worker, &self.permit.target);
        head::into_http2(&mut head, scheme)?;
        let breaker = entry.and_then(breaker);
        let is_egress = matches!(endpoints.key.callee, CalleeKey::Egress(_));
        let count = |is_first: bool| {
            let guard = target.acquire_connection(breaker.map(|breaker| breaker.max_connections));
            // Each worker may have one connection to an instance in any case.
            guard.map(Some).or_else(|| (is_first && !is_egress).then(|| target.acquire_connection(None)))
        };
        let limits = &self.exchange.snapshot.mesh.limits.upstream;
        let mut again = Repeatable::new(*head, body);
        let mut request = again.next().unwrap_or_default();
        loop {
            let Endpoints { key, lease, limit, share, .. } = &endpoints;
            let connection =
                worker.pool.http2(key, *lease, &worker.node.svids, (*share, count), (*limit, limits)).await;
            let CheckedOutHttp2 { mut sender, stream, reused } = match connection {
                Ok(connection) => connection,
                Err(error) => match self.next_endpoint(entry, &mut endpoints, &error) {
                    Ok(()) => continue,
                    Err(failure) => return Err(self.keep_unsent(&endpoints, request, failure)),
                },
            };
            check_request(&request, stream.head())?;
            let sent = sender.send(request, |interim| self.exchange.pass_on(interim)).await?;
            let SendError { error, is_unsent } = match sent {
                Ok(response) => {
                    let response = sound(response).await?;
                    check_response(response.headers(), limits)?;
                    return Ok((response, CheckIn::Http2(stream)));
                }
                Err(error) => error,
            };
            let next = if is_unsent && reused {
                again.next()
            } else if is_unprocessed(&error) {
                again.repeat()
            } else {
                None
            };
            request = next.ok_or_else(|| broken_stream(&error, is_unsent, Some(limits)))?;
            if !is_unsent {
                self.pause_before_repeat(&again, broken_stream(&error, false, None)).await;
            }
        }
    }

    /// Records that the server has not processed the request, and waits a moment before it is sent
    /// again.
    pub(super) async fn pause_before_repeat(&self, again: &Repeatable, failure: Failure) {
        self.exchange.record.attempt(self.endpoint.get(), AttemptResult::Failed(failure.flag()));
        let pause = self.exchange.worker.random.up_to(REPEAT_PAUSE_MICROS << again.repeats);
        tokio::time::sleep(Duration::from_micros(pause)).await;
    }

    /// Keeps a request of which nothing was sent for another instance, if the leased one may be
    /// lost.
    fn keep_unsent(&self, endpoints: &Endpoints<'_>, request: Request<Body>, failure: Failure) -> Failure {
        let is_suspect = endpoints.lease.is_some_and(InstanceProof::is_suspect);
        if is_suspect && matches!(failure, Failure::Connect { .. }) {
            self.unsent.replace(Some(Box::new(request)));
        }
        failure
    }

    /// Goes on with the next endpoint if there is one: nothing was sent yet.
    fn next_endpoint(
        &self,
        entry: Option<&FunctionEntry>,
        endpoints: &mut Endpoints<'_>,
        error: &ConnectError,
    ) -> Result<(), Failure> {
        match error {
            ConnectError::Full => return Err(Failure::Overflow),
            ConnectError::Bound(reason) => return Err(Failure::Bound(reason.clone())),
            _ => {}
        }
        let failure = self.unconnected(entry, endpoints.key.address, error);
        let Some(next) = endpoints.others.pop_front() else { return Err(failure) };
        self.exchange.record.attempt(self.endpoint.get(), AttemptResult::Failed(failure.flag()));
        self.report_unreachable(endpoints.key.address);
        endpoints.key.address = next;
        self.endpoint.set(Some(next));
        Ok(())
    }

    fn unconnected(&self, entry: Option<&FunctionEntry>, address: SocketAddr, error: &ConnectError) -> Failure {
        if let (ConnectError::Unproven(_), Some(entry)) = (error, entry) {
            if entry.may_log(EVENT) {
                tracing::error!(function = %entry.name, %address, %error, "no request is sent there");
            }
            self.exchange.record.metrics().unproven(&entry.name, "instance");
        }
        Failure::Connect { cause: format!("{address}: {error}") }
    }
}

/// Maximum number of times that a request is sent again after the server has reported that it did
/// not process it.
const MAX_REPEATS: u32 = 3;
/// Longest pause before the first repetition. It doubles with each repetition.
const REPEAT_PAUSE_MICROS: u64 = 5_000;

/// An HTTP/2 request that is sent again when the server reports that it did not process it (RFC
/// 9113, 8.7), whatever its method.
pub(super) struct Repeatable {
    head: request::Parts,
    body: Option<Replayable>,
    /// The request opens a tunnel, and cannot be repeated.
    is_tunnel: bool,
    repeats: u32,
}

impl Repeatable {
    pub(super) fn new(head: request::Parts, body: Body) -> Self {
        let is_tunnel = head.method == Method::CONNECT;
        let body = (!body.is_over()).then(|| Replayable::new(body));
        Self { head, body, is_tunnel, repeats: 0 }
    }

    /// The request, of which nothing was sent; `None`: its body is not there any more.
    pub(super) fn next(&self) -> Option<Request<Body>> {
        let body = self.body.as_ref().map_or_else(|| Some(Body::empty()), Replayable::another)?;
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        *request.version_mut() = self.head.version;
        *request.headers_mut() = self.head.headers.clone();
        if let Some(protocol) = self.head.extensions.get::<h2::ext::Protocol>() {
            request.extensions_mut().insert(protocol.clone());
        }
        Some(request)
    }

    /// The request once more; `None`: it opens a tunnel, or has been repeated often enough.
    pub(super) fn repeat(&mut self) -> Option<Request<Body>> {
        if self.is_tunnel || self.repeats == MAX_REPEATS {
            return None;
        }
        self.repeats += 1;
        self.next()
    }
}

/// Checks that the server accepts the head of a request. The server may refuse a larger one with a
/// reset that gives no reason.
fn check_request(request: &Request<Body>, most: u32) -> Result<(), Failure> {
    // A server that announces a limit below this does not apply it to all heads.
    let target = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let is_too_large = || target + head::size(request.headers()) + 32 * request.headers().len() > most as usize;
    if most < MAX_CHECKED_HEAD && is_too_large() { Err(Failure::RequestHead(most)) } else { Ok(()) }
}

/// The limit by which the HTTP/1.1 parser has refused a head. `arrived`: the number of bytes of the
/// head that have arrived.
fn head_beyond(arrived: usize, limits: &UpstreamLimits) -> Failure {
    let (head_bytes, headers) = (limits.head_bytes(), limits.headers());
    Failure::ResponseHead(match arrived >= head_bytes as usize {
        true => format!("it has more bytes than limits.headBytes allows ({head_bytes})"),
        false => format!("it has more fields than limits.headers allows ({headers})"),
    })
}

/// Checks a response's head against the limits of the mesh.
pub(super) fn check_response(headers: &HeaderMap, limits: &UpstreamLimits) -> Result<(), Failure> {
    let (fields, bytes) = (headers.len(), head::size(headers));
    let beyond = if fields > limits.headers() as usize {
        format!("it has {fields} fields, and limits.headers allows {}", limits.headers())
    } else if bytes > limits.head_bytes() as usize {
        format!("it has {bytes} bytes, and limits.headBytes allows {}", limits.head_bytes())
    } else {
        return Ok(());
    };
    Err(Failure::ResponseHead(beyond))
}

/// Checks a response that came over HTTP/2, as HTTP/1.1's parser does.
pub(super) async fn sound(mut response: Response<WireBody>) -> Result<Response<WireBody>, Failure> {
    if head::check_names(response.headers()).is_err() {
        return Err(Failure::Protocol("a field name is not a token"));
    }
    // The status of a gRPC call is in trailers, which must reach the caller.
    let waits = !head::is_grpc(response.headers()) && says_empty(response.body());
    if waits && !Box::pin(ends_empty(response.body_mut())).await {
        return Err(Failure::Protocol("it has content, and a Content-Length of 0"));
    }
    Ok(response)
}

/// Whether the response has a transfer coding besides chunked. Passed on without that coding, the
/// body would mean something else.
fn is_encoded(response: &Response<Incoming>) -> bool {
    response.headers().contains_key(header::TRANSFER_ENCODING) && !head::is_chunked(response.headers())
}

/// Whether the server closes the connection after this response.
fn is_last(response: &Response<Incoming>) -> bool {
    let options = response.headers().get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut options = options.flat_map(|value| value.split(',')).map(str::trim);
    match response.version() {
        Version::HTTP_10 => !options.any(|option| option.eq_ignore_ascii_case("keep-alive")),
        _ => options.any(|option| option.eq_ignore_ascii_case("close")),
    }
}

fn copy(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Whether the connection ended before there was a response.
fn is_lost(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    error.is_incomplete_message() || error.is_closed() || cause.is_some_and(|cause| cause.is::<std::io::Error>())
}

/// Whether the peer reports that it did not process the request: by REFUSED_STREAM, or by GOAWAY.
/// After GOAWAY, only streams fail that the peer did not process (RFC 9113, 6.8 and 8.7).
pub(super) fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// The failure if the HTTP/2 library has refused the server's response, probably because of the
/// limits on heads. The library does not give the reason.
fn refused_head(error: &h2::Error, limits: &UpstreamLimits) -> Option<Failure> {
    use h2::Reason;
    let is_head = match error.reason().filter(|_| error.is_library())? {
        Reason::PROTOCOL_ERROR => error.is_reset(),
        Reason::COMPRESSION_ERROR | Reason::ENHANCE_YOUR_CALM => error.is_go_away(),
        _ => false,
    };
    let (head_bytes, headers) = (limits.head_bytes(), limits.headers());
    let text = || {
        format!("it is malformed, or larger than limits.headBytes ({head_bytes}) and limits.headers ({headers}) allow")
    };
    is_head.then(|| Failure::ResponseHead(text()))
}

/// Turns the HTTP/2 library's error into a failure. `unsent`: no byte was sent.
pub(super) fn broken_stream(error: &h2::Error, unsent: bool, limits: Option<&UpstreamLimits>) -> Failure {
    let reset = || Failure::Reset { cause: error.to_string(), refused: unsent || is_unprocessed(error) };
    limits.and_then(|limits| refused_head(error, limits)).unwrap_or_else(reset)
}

/// Turns hyper's error into a failure. `unsent`: no byte was sent.
fn broken(error: &hyper::Error, unsent: bool) -> Failure {
    if error.is_user() && std::error::Error::source(error).is_some_and(|cause| cause.is::<BodyError>()) {
        // The request's body fails when its sender does.
        return Failure::ClientGone;
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Failure::Reset { cause: cause.to_string(), refused: unsent }
}
