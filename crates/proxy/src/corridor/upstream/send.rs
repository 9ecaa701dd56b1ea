//! Sends a request to one of its endpoints, over a connection of the pool.

use super::{Forward, breaker};
use crate::corridor::pool::{
    CalleeKey, CheckIn, CheckedOutHttp1, CheckedOutHttp2, ConnectError, ConnectionKey, is_unasked,
};
use crate::corridor::retry;
use crate::http::body::{Body, BodyError, ends_empty, says_empty};
use crate::http::failure::Failure;
use crate::http::head;
use crate::state::function::{EVENT, FunctionEntry};
use crate::state::instances::{InstanceProof, Lease};
use crate::state::ledger::Attempt;
use crate::telemetry::observed::AttemptResult;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, header, request};
use hyper::body::Incoming;
use leno_namespaces::Namespace;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A connection that was idle for longer than this may just have been closed by its server. So a copy of a repeatable request is kept, to
/// be sent again.
const STALE_AFTER: Duration = Duration::from_millis(500);
/// Longest time to connect to an instance.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// Where a request may go.
pub(super) struct Endpoints<'a> {
    /// Where it goes.
    pub key: ConnectionKey,
    /// Where it goes if there is no connection.
    pub others: VecDeque<SocketAddr>,
    /// Connects, unless it is a sidecar, which authenticates by TLS.
    pub lease: Option<&'a dyn InstanceProof>,
    /// Longest time to connect, including TLS.
    pub limit: Duration,
    /// The namespace that new connections count for.
    pub share: Option<&'a Arc<Namespace>>,
}

impl<'a> Endpoints<'a> {
    /// A leased instance.
    pub(super) fn one(lease: &'a Lease, entry: &'a FunctionEntry) -> Self {
        let key = ConnectionKey::instance(lease.address);
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
    ) -> Result<(Response<Incoming>, CheckIn), Failure> {
        let pool = &self.exchange.worker.pool;
        head::into_http1(&mut head, body.is_over());
        if self.exchange.is_unshared {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let mut request = Request::from_parts(*head, body);
        loop {
            let repeatable = request.body().is_over() && retry::is_idempotent(request.method());
            let CheckedOutHttp1 { mut connection, idle } = self.http1(entry, &mut endpoints, repeatable).await?;
            let stale = idle.is_some_and(|idle| idle > STALE_AFTER);
            let spare = (stale && repeatable).then(|| Box::new(copy(&request)));
            connection.heads.begin();
            let sent = connection.sender.try_send_request(request).await;
            connection.heads.end();
            let mut error = match sent {
                Ok(response) if is_encoded(&response) => {
                    let cause = "the response has a transfer coding that is not understood".to_owned();
                    return Err(Failure::Reset { cause, refused: false });
                }
                Ok(response) => return Ok((response, pool.check_in_http1(connection, endpoints.key))),
                Err(error) => error,
            };
            if is_unasked(error.error()) {
                pool.distrust(&endpoints.key);
            }
            // The server may have closed the idle connection. A request that was not sent, or may be sent twice, goes out on another
            // connection.
            request = match (error.take_message(), spare) {
                (Some(unsent), _) if idle.is_some() => unsent,
                (None, Some(spare)) if is_lost(error.error()) => *spare,
                (unsent, _) => return Err(broken(error.into_error(), unsent.is_some())),
            };
        }
    }

    /// A connection for one request, within the circuit breaker's limit. Each worker may have one in any case, so that no worker starves
    /// while others hold idle connections.
    async fn http1(
        &self,
        entry: &FunctionEntry,
        endpoints: &mut Endpoints<'_>,
        repeatable: bool,
    ) -> Result<CheckedOutHttp1, Failure> {
        let (pool, target) = (&self.exchange.worker.pool, &self.ruling.target);
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
                // Boxed because it is rare and large. Otherwise every exchange's future would have to hold room for it.
                let held = (endpoints.share, guard);
                let connect = pool.connect_http1(&endpoints.key, endpoints.proof(), held, endpoints.limit);
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
            pool.make_room_http1(&endpoints.key, self.exchange.is_unshared);
            changed.await;
        }
    }

    pub(super) async fn send_http2(
        &self,
        entry: Option<&FunctionEntry>,
        endpoints: Endpoints<'_>,
        head: Box<request::Parts>,
        body: Body,
    ) -> Result<(Response<Incoming>, CheckIn), Failure> {
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
    ) -> Result<(Response<Incoming>, CheckIn), Failure> {
        let (worker, target) = (&self.exchange.worker, &self.ruling.target);
        head::into_http2(&mut head, scheme)?;
        let breaker = entry.and_then(breaker);
        let inside = !matches!(endpoints.key.callee, CalleeKey::Outside(_));
        let guard = || {
            let guard = target.acquire_connection(breaker.map(|breaker| breaker.max_connections));
            // Each worker may have one in any case.
            guard.or_else(|| if inside { target.acquire_connection(None) } else { None })
        };
        let mut request = Request::from_parts(*head, body);
        loop {
            let Endpoints { key, lease, limit, share, .. } = &endpoints;
            let connection = worker.pool.http2(key, *lease, &worker.node.svids, (*share, guard), *limit).await;
            let CheckedOutHttp2 { mut sender, stream, reused } = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    self.next_endpoint(entry, &mut endpoints, &error)?;
                    continue;
                }
            };
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok((sound(response).await?, CheckIn::Http2(stream))),
                Err(error) => error,
            };
            request = match error.take_message() {
                Some(unsent) if reused => unsent,
                unsent => return Err(broken(error.into_error(), unsent.is_some())),
            };
        }
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
        self.report(endpoints.key.address, Attempt::LocalFailure);
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

/// Checks a response that came over HTTP/2, as HTTP/1.1's parser does.
pub(super) async fn sound(mut response: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
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

/// Whether the response has a transfer coding besides chunked. Passed on without that coding, the body would mean something else.
fn is_encoded(response: &Response<Incoming>) -> bool {
    response.headers().contains_key(header::TRANSFER_ENCODING) && !head::is_chunked(response.headers())
}

pub(super) fn copy(request: &Request<Body>) -> Request<Body> {
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

/// Whether the peer has ended the connection and says that it did not process the request (RFC 9113, 6.8).
pub(super) fn is_left(error: &hyper::Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.downcast_ref::<h2::Error>().is_some_and(|error| error.is_go_away() && error.is_remote()) {
            return true;
        }
        source = error.source();
    }
    false
}

/// Turns hyper's error into a failure. `unsent`: no byte was sent.
pub(super) fn broken(error: hyper::Error, unsent: bool) -> Failure {
    if error.is_user() && std::error::Error::source(&error).is_some_and(|cause| cause.is::<BodyError>()) {
        // The request's body fails when its sender does.
        return Failure::ClientGone;
    }
    let mut source: Option<&dyn std::error::Error> = Some(&error);
    let mut refused = unsent;
    let mut cause = error.to_string();
    while let Some(error) = source {
        cause = error.to_string();
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            // After GOAWAY, only streams that the peer did not process fail with it (RFC 9113, 6.8).
            refused |= error.reason() == Some(h2::Reason::REFUSED_STREAM) || (error.is_go_away() && error.is_remote());
        }
        source = error.source();
    }
    Failure::Reset { cause, refused }
}
