//! Forwards a permitted request: chooses an endpoint, sends, and retries what the plan allows and what is safe to repeat.

use crate::corridor::component::Running;
use crate::corridor::exchange::{Exchange, Origin};
use crate::corridor::judge::{Permitted, Ruling};
use crate::corridor::pool::{CalleeKey, CheckIn, CheckedOutHttp1, CheckedOutHttp2, ConnectError, ConnectionKey};
use crate::corridor::route::Upstream;
use crate::corridor::{component, retry, upgrade};
use crate::http::body::{Body, BodyError, Replayable};
use crate::http::failure::{Failure, Unavailable};
use crate::http::head;
use crate::http::upload::Upload;
use crate::state::component::Component;
use crate::state::credential::{HandlingGuard, InFlight};
use crate::state::egress::{self, Outside};
use crate::state::function::FunctionEntry;
use crate::state::instances::{InstanceProof, Lease};
use crate::state::ledger::Attempt;
use crate::state::revisions::Revision;
use crate::telemetry::observed::{AttemptResult, Stage};
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, StatusCode, header, request};
use hyper::body::Incoming;
use leno_config::slice::{AppProtocol, Callee, EgressProtocol, IN_NODE};
use leno_policy::spec::{Breaker, Retry};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection that was idle for longer than this may just have been closed by its server. So a copy of a repeatable request is kept, to
/// be sent again.
const STALE_AFTER: Duration = Duration::from_millis(500);

/// When an exchange or an attempt is to be over, and how long that is from its beginning.
type Deadline = (tokio::time::Instant, Duration);

/// Longest time to connect to an instance or a sidecar, including TLS.
const CONNECT: Duration = Duration::from_secs(5);

/// How often to check whether the supervisor has learned that a function is no longer a component.
const REVISION_POLL: Duration = Duration::from_millis(1);

/// A response, and what must be held until its body ends.
#[derive(Debug)]
pub(super) struct Reply {
    pub response: Response<Body>,
    /// The instance and the connection that the response occupies.
    pub guard: UpstreamGuard,
}

/// What an in-flight request occupies. Dropping it releases everything.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "each is kept for what its drop does")]
pub(super) struct UpstreamGuard {
    connection: Option<CheckIn>,
    handling: Option<HandlingGuard>,
    lease: Option<Lease>,
    running: Option<Running>,
}

pub(super) struct Forward<'a> {
    pub exchange: &'a Exchange,
    pub upstream: &'a Upstream,
    pub ruling: &'a Ruling,
    /// The endpoint of the current attempt, once it is chosen.
    pub endpoint: Cell<Option<SocketAddr>>,
    /// How far the client's body has come. This tells whether the client or the upstream is to blame for a failure.
    upload: Option<Upload>,
}

/// Forwards a permitted request to its callee. Returns the ruling, which must be held until the exchange ends.
pub(super) async fn forward(
    exchange: &Exchange,
    upstream: &Upstream,
    permitted: Permitted,
    body: Body,
) -> (Ruling, Result<Reply, Failure>) {
    let (head, ruling) = permitted.into_parts();
    let forward = Forward { exchange, upstream, ruling: &ruling, endpoint: Cell::new(None), upload: body.upload() };
    let retries =
        ruling.terms().retry.as_ref().filter(|_| !exchange.upgrade && !matches!(exchange.origin, Origin::Inbound(_)));
    let deadline = exchange.deadline(&ruling);
    let result = match retries {
        Some(retry) => forward.with_retries(retry, head, body, deadline).await,
        None => forward.attempt_within(deadline, head, body, &[]).await,
    };
    if result.is_ok() {
        exchange.record.stage(Stage::Head);
    }
    (ruling, result)
}

impl Forward<'_> {
    /// Makes one attempt, ends it at `deadline`, and notes how it ended.
    async fn attempt_within(
        &self,
        deadline: Option<Deadline>,
        head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        // Pinned here, because a timeout that owns it would move it about, and it is large.
        let attempt = pin!(self.attempt(head, body, avoid));
        let result = match deadline {
            Some((at, limit)) => tokio::time::timeout_at(at, attempt).await.unwrap_or(Err(Failure::Timeout(limit))),
            None => attempt.await,
        };
        self.note(result)
    }

    /// Makes one attempt. It may be dropped at any time, and then releases what it occupies.
    pub(super) async fn attempt(
        &self,
        head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        self.endpoint.set(None);
        let mut reply = match self.upstream {
            Upstream::Instance(entry) => {
                let revision = entry.revisions.pick(&head.headers, &self.exchange.request_id);
                self.exchange.record.revision(&revision.label);
                match &revision.component {
                    Some(component) => self.to_component(entry, (revision, component), head, body).await?,
                    None => self.to_instance(entry, revision, head, body, avoid).await?,
                }
            }
            Upstream::Outside(entry, outside) => self.to_outside(entry, outside, head, body, avoid).await?,
            Upstream::HandOver(callee) => self.hand_over(callee, head, body).await,
            Upstream::Tls(callee, address) => self.by_tls(callee, *address, head, body).await?,
            Upstream::Unreachable(_) | Upstream::NotACallee => return Err(Unavailable::Unknown.into()),
        };
        upgrade::check(self.exchange.upgrade, &mut reply.response)?;
        Ok(reply)
    }

    /// Makes as many attempts as `retry` allows, all together within `deadline`.
    async fn with_retries(
        &self,
        retry: &Retry,
        head: Box<request::Parts>,
        body: Body,
        deadline: Option<Deadline>,
    ) -> Result<Reply, Failure> {
        let repeatable = retry.non_idempotent || retry::is_idempotent(&head.method);
        let mut head = Some(head);
        let body = (!body.is_over()).then(|| Replayable::new(body));
        let mut tried: Vec<SocketAddr> = Vec::new();
        let mut budget = None;
        for attempt in 0..=retry.attempts {
            let last = attempt == retry.attempts;
            let head_again = if last { head.take() } else { head.as_deref().map(copy_head) };
            let body_again = body.as_ref().map_or(Some(Body::empty()), Replayable::another);
            let (Some(head_again), Some(body_again)) = (head_again, body_again) else { break };
            let limit = retry::attempt_deadline(retry, deadline);
            let result = self.attempt_within(limit, head_again, body_again, &tried).await;
            drop(budget.take());
            let again = !last
                && retry::is_worth_it(retry, outcome(&result), repeatable)
                && body.as_ref().is_none_or(Replayable::is_possible)
                && deadline.is_none_or(|(at, _)| tokio::time::Instant::now() < at);
            if !again {
                return result;
            }
            budget = self.ruling.target.acquire_retry(retry.budget_percent, retry.budget_min);
            if budget.is_none() {
                return result;
            }
            tried.extend(self.endpoint.get());
            let pause = retry::pause(retry, attempt, |max| self.exchange.worker.random.up_to(max));
            if deadline.is_some_and(|(at, _)| tokio::time::Instant::now() + pause >= at) {
                return result;
            }
            if let Ok(mut reply) = result {
                // Dropping the detached guard ends the response as answered, not as broken off.
                drop(reply.response.body_mut().detach());
            }
            tokio::time::sleep(pause).await;
        }
        // Only one case gets here: the body stopped being repeatable between two checks.
        Err(Failure::ClientGone)
    }

    /// Records how an attempt ended, and tells the outlier detection.
    pub(super) fn note(&self, mut result: Result<Reply, Failure>) -> Result<Reply, Failure> {
        if let (Err(failure), Some(upload)) = (&mut result, &self.upload) {
            upload.attribute(failure);
        }
        let outcome = match &result {
            Ok(reply) => AttemptResult::Status(reply.response.status().as_u16()),
            Err(failure) => AttemptResult::Failed(failure.flag()),
        };
        self.exchange.record.attempt(self.endpoint.get(), outcome);
        if let (Upstream::Instance(entry) | Upstream::Outside(entry, _), Some(endpoint)) =
            (self.upstream, self.endpoint.get())
            && let Some(outlier) = breaker(entry).and_then(|breaker| breaker.outlier)
        {
            let attempt = match &result {
                Ok(reply) => Some(Attempt::Status(reply.response.status().as_u16())),
                Err(Failure::ClientGone | Failure::SlowClient(_) | Failure::Overflow) => None,
                Err(_) => Some(Attempt::LocalFailure),
            };
            let endpoints = match self.upstream {
                Upstream::Outside(_, outside) => outside.known(),
                _ => self.exchange.worker.node.instances.count(&entry.slice.id),
            };
            if let Some(attempt) = attempt
                && self.ruling.target.report(endpoint, attempt, &outlier, endpoints, Instant::now())
            {
                self.exchange.record.metrics().ejection(&entry.name);
            }
        }
        result
    }

    async fn to_instance(
        &self,
        entry: &Arc<FunctionEntry>,
        revision: &Revision,
        mut head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        let exchange = self.exchange;
        if exchange.upgrade && revision.protocol != AppProtocol::Http1 {
            return Err(Failure::Protocol("it speaks HTTP/2, over which no WebSocket is opened to an instance"));
        }
        let lease = self.lease(entry, revision, avoid).await?;
        let body = body.deliver(&entry.identity_fields);
        self.endpoint.set(Some(lease.address));
        exchange.record.stage(Stage::Upstream);
        exchange.finalize_request(&mut head.headers, entry);
        let trace = self.ruling.trace.as_ref();
        let handling = lease.instance.as_deref().and_then(|instance| {
            let in_flight = InFlight::new(&exchange.request_id, trace.map(|trace| trace.context), &head.headers);
            exchange.worker.node.credentials.handle(instance, in_flight)
        });
        let (response, connection) = match revision.protocol {
            AppProtocol::Http1 => self.send_http1(entry, Endpoints::one(&lease), head, body).await?,
            AppProtocol::H2c | AppProtocol::Grpc => {
                self.send_http2(Some(entry), Endpoints::one(&lease), head, body).await?
            }
        };
        let guard = UpstreamGuard { connection: Some(connection), handling, lease: Some(lease), running: None };
        Ok(Reply { response: response.map(Body::from), guard })
    }

    /// Runs the request in a component instance on this thread, once there is room for one more.
    async fn to_component(
        &self,
        entry: &Arc<FunctionEntry>,
        (revision, component): (&Revision, &Component),
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<Reply, Failure> {
        let exchange = self.exchange;
        let failed = |reason: &String| Unavailable::Failed { reason: reason.clone(), retry_after: None };
        let program = component.program.as_ref().map_err(failed)?;
        let lease = self.lease(entry, revision, &[]).await?;
        let body = body.deliver(&entry.identity_fields);
        exchange.record.stage(Stage::Upstream);
        exchange.finalize_request(&mut head.headers, entry);
        let trace = self.ruling.trace.as_ref().map(|trace| trace.context);
        let (response, running) =
            component::start(exchange, entry, (program, component.grace), lease, trace, (head, body)).await?;
        Ok(Reply { response, guard: UpstreamGuard { running: Some(running), ..UpstreamGuard::default() } })
    }

    /// Leases an instance that is not ejected. Waits for one if it must and if the circuit breaker allows it.
    async fn lease(&self, entry: &FunctionEntry, revision: &Revision, avoid: &[SocketAddr]) -> Result<Lease, Failure> {
        let (instances, target) = (&self.exchange.worker.node.instances, &self.ruling.target);
        let function = &entry.slice.id;
        let mut avoid = Cow::Borrowed(avoid);
        let mut pending = None;
        loop {
            let lease = match instances.try_acquire(function, revision.label.number, &avoid) {
                Some(lease) => lease,
                // All usable instances are busy, or none is running yet.
                None => {
                    if pending.is_none() {
                        let most = breaker(entry).map(|breaker| breaker.max_pending);
                        pending = Some(target.acquire_pending(most).ok_or(Failure::Overflow)?);
                    }
                    let deadline = self.exchange.deadline(self.ruling).map(|(at, _)| at);
                    instances.acquire(function, revision.label.number, &avoid, deadline).await?
                }
            };
            if lease.address == IN_NODE && revision.component.is_none() {
                // The function was a component until just now. The supervisor is about to learn that it is not.
                drop(lease);
                tokio::time::sleep(REVISION_POLL).await;
                continue;
            }
            if !target.ejected(lease.address, Instant::now()) {
                return Ok(lease);
            }
            // An address to be avoided is given only if there is no other.
            if avoid.contains(&lease.address) {
                return Err(Failure::Ejected);
            }
            avoid.to_mut().push(lease.address);
        }
    }

    /// Sends the request to something outside of the mesh.
    async fn to_outside(
        &self,
        entry: &FunctionEntry,
        outside: &Outside,
        mut head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        let exchange = self.exchange;
        let port = outside.egress.http_port(exchange.port).ok_or(Failure::NoHttp(exchange.port))?;
        if exchange.upgrade && port.http2 {
            return Err(Failure::Protocol("it speaks HTTP/2, over which no WebSocket is opened to the outside"));
        }
        let host = head::host(&head);
        let found = outside.addresses(&exchange.worker.node.resolver, &host).await?;
        let mut addresses: VecDeque<_> = found.iter().map(|ip| SocketAddr::new(*ip, port.number)).collect();
        let (target, now) = (&self.ruling.target, Instant::now());
        addresses.retain(|address| !target.ejected(*address, now));
        // Those that were tried last.
        addresses.make_contiguous().sort_by_key(|address| avoid.contains(address));
        let address = addresses.pop_front().ok_or(Failure::Ejected)?;
        let tls = port.protocol == EgressProtocol::Https;
        let key = outside.key(&host, tls, port.http2).await?;
        let credentials = outside.credentials().await?;
        self.endpoint.set(Some(address));
        exchange.record.stage(Stage::Upstream);
        let authority = egress::authority(&host, port);
        head::leave_mesh(&mut head, &authority, outside.egress.trace_context);
        for (name, value) in credentials {
            head.headers.insert(name, value);
        }
        let key = ConnectionKey { address, callee: CalleeKey::Outside(key) };
        let limit = outside.egress.connect_timeout;
        let endpoints = Endpoints { key, others: addresses, lease: Some(&()), limit };
        let (response, connection) = if port.http2 {
            let scheme = if tls { Scheme::HTTPS } else { Scheme::HTTP };
            self.send_http2_as(&scheme, Some(entry), endpoints, head, body.deliver(&entry.identity_fields)).await?
        } else {
            self.send_http1(entry, endpoints, head, body.deliver(&entry.identity_fields)).await?
        };
        let guard = UpstreamGuard { connection: Some(connection), ..UpstreamGuard::default() };
        Ok(Reply { response: response.map(Body::from), guard })
    }

    async fn send_http1(
        &self,
        entry: &FunctionEntry,
        mut endpoints: Endpoints<'_>,
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<(Response<Incoming>, CheckIn), Failure> {
        let pool = &self.exchange.worker.pool;
        head::into_http1(&mut head, body.is_over());
        let mut request = Request::from_parts(*head, body);
        loop {
            let repeatable = request.body().is_over() && retry::is_idempotent(request.method());
            let CheckedOutHttp1 { mut connection, idle } = self.http1(entry, &mut endpoints, repeatable).await?;
            let stale = idle.is_some_and(|idle| idle > STALE_AFTER);
            let spare = (stale && repeatable).then(|| Box::new(copy(&request)));
            let mut error = match connection.sender.try_send_request(request).await {
                Ok(response) if is_encoded(&response) => {
                    let cause = "the response has a transfer coding that is not understood".to_owned();
                    return Err(Failure::Reset { cause, refused: false });
                }
                Ok(response) => return Ok((response, pool.check_in_http1(connection, endpoints.key))),
                Err(error) => error,
            };
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
            if let Some(idle) = pool.idle_http1(&endpoints.key, repeatable) {
                return Ok(idle);
            }
            let guard = target.acquire_connection(breaker.map(|breaker| breaker.max_connections));
            if guard.is_some() || pool.open_http1(&endpoints.key) == 0 {
                let guard = guard.or_else(|| target.acquire_connection(None));
                // Boxed because it is rare and large. Otherwise every exchange's future would have to hold room for it.
                let connect = pool.connect_http1(&endpoints.key, endpoints.proof(), guard, endpoints.limit);
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
            pool.changed_http1(&endpoints.key).await;
        }
    }

    async fn send_http2(
        &self,
        entry: Option<&FunctionEntry>,
        endpoints: Endpoints<'_>,
        head: Box<request::Parts>,
        body: Body,
    ) -> Result<(Response<Incoming>, CheckIn), Failure> {
        let scheme = if self.exchange.scheme == "https" { Scheme::HTTPS } else { Scheme::HTTP };
        self.send_http2_as(&scheme, entry, endpoints, head, body).await
    }

    async fn send_http2_as(
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
        let guard = || {
            target
                .acquire_connection(breaker.map(|breaker| breaker.max_connections))
                .or_else(|| target.acquire_connection(None))
        };
        let mut request = Request::from_parts(*head, body);
        loop {
            let Endpoints { key, lease, limit, .. } = &endpoints;
            let connection = worker.pool.http2(key, *lease, &worker.node.svids, guard, *limit).await;
            let CheckedOutHttp2 { mut sender, stream, reused } = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    self.next_endpoint(entry, &mut endpoints, &error)?;
                    continue;
                }
            };
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, CheckIn::Http2(stream))),
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
        let failure = self.unconnected(entry, endpoints.key.address, error);
        let Some(next) = endpoints.others.pop_front() else { return Err(failure) };
        self.exchange.record.attempt(self.endpoint.get(), AttemptResult::Failed(failure.flag()));
        endpoints.key.address = next;
        self.endpoint.set(Some(next));
        Ok(())
    }

    fn unconnected(&self, entry: Option<&FunctionEntry>, address: SocketAddr, error: &ConnectError) -> Failure {
        if let (ConnectError::Unproven(_), Some(entry)) = (error, entry) {
            tracing::error!(function = %entry.name, %address, %error, "no request is sent there");
            self.exchange.record.metrics().unproven(&entry.name, "instance");
        }
        Failure::Connect { cause: format!("{address}: {error}") }
    }

    /// Hands the request to the callee's inbound judge, on this thread.
    async fn hand_over(&self, callee: &Arc<FunctionEntry>, head: Box<request::Parts>, body: Body) -> Reply {
        let exchange = self.exchange.hand_over(callee, &self.ruling.entry, &head);
        self.exchange.record.stage(Stage::Upstream);
        let body = body.count_in(exchange.record.meter());
        // The corridor calls itself here. Without a box, its future would have no finite size.
        let response = Box::pin(exchange.run(head, body)).await;
        Reply { response, guard: UpstreamGuard::default() }
    }

    /// Sends the request to the callee's inbound sidecar over mutual TLS.
    async fn by_tls(
        &self,
        callee: &Callee,
        address: SocketAddr,
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<Reply, Failure> {
        self.endpoint.set(Some(address));
        self.exchange.record.stage(Stage::Upstream);
        let identities = (self.ruling.entry.identity.clone(), callee.identity.as_str().into());
        let protocol = HeaderValue::from_static(head::protocol_name(self.exchange.protocol));
        head.headers.insert(head::HOP_PROTOCOL, protocol);
        if self.exchange.upgrade {
            head::into_extended_connect(&mut head);
        }
        let key = ConnectionKey { address, callee: CalleeKey::Sidecar(identities) };
        let endpoints = Endpoints { key, others: VecDeque::new(), lease: None, limit: CONNECT };
        let (mut response, connection) = self.send_http2(None, endpoints, head, body).await?;
        if self.exchange.upgrade && response.status() == StatusCode::OK {
            upgrade::switch(&mut response)?;
        }
        if let Some(failure) = response.headers().get(head::HOP_FAILURE).and_then(Failure::from_label) {
            response.extensions_mut().insert(failure);
        }
        let guard = UpstreamGuard { connection: Some(connection), ..UpstreamGuard::default() };
        Ok(Reply { response: response.map(Body::from), guard })
    }
}

/// Where a request may go.
struct Endpoints<'a> {
    /// Where it goes.
    key: ConnectionKey,
    /// Where it goes if there is no connection.
    others: VecDeque<SocketAddr>,
    /// Connects, unless it is a sidecar, which authenticates by TLS.
    lease: Option<&'a dyn InstanceProof>,
    /// Longest time to connect, including TLS.
    limit: Duration,
}

impl<'a> Endpoints<'a> {
    /// A leased instance.
    fn one(lease: &'a Lease) -> Self {
        let key = ConnectionKey::instance(lease.address);
        Self { key, others: VecDeque::new(), lease: Some(&*lease.guard), limit: CONNECT }
    }

    fn proof(&self) -> &'a dyn InstanceProof {
        self.lease.unwrap_or(&())
    }
}

impl Reply {
    /// The failure that the callee's sidecar reported instead of an instance's response, if it did.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.response.extensions().get()
    }
}

/// The circuit breaker towards this function's instances. It is the same for all callers.
fn breaker(entry: &FunctionEntry) -> Option<&Breaker> {
    entry.inbound.spec.targets.first()?.breaker.as_ref()
}

/// Whether the response has a transfer coding besides chunked. Passed on without that coding, the body would mean something else.
fn is_encoded(response: &Response<Incoming>) -> bool {
    response.headers().contains_key(header::TRANSFER_ENCODING) && !head::is_chunked(response.headers())
}

/// What the retry decision needs to know about an attempt.
fn outcome(result: &Result<Reply, Failure>) -> retry::Outcome<'_> {
    match result {
        Ok(reply) => match reply.failure() {
            Some(failure) => Err(failure),
            None => Ok((reply.response.status(), reply.response.headers())),
        },
        Err(failure) => Err(failure),
    }
}

fn copy_head(head: &request::Parts) -> Box<request::Parts> {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method = head.method.clone();
    copy.uri = head.uri.clone();
    copy.version = head.version;
    copy.headers = head.headers.clone();
    Box::new(copy)
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

/// Turns hyper's error into a failure. `unsent`: no byte was sent.
fn broken(error: hyper::Error, unsent: bool) -> Failure {
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
