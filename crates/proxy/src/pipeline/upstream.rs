//! Forwards a permitted request: chooses an endpoint, sends, and retries where the plan allows it
//! and a repetition is safe.

mod egress;
mod nodes;
mod report;
mod send;

pub(crate) use send::CONNECT;

use crate::pipeline::component::Running;
use crate::pipeline::exchange::{Exchange, Origin};
use crate::pipeline::judge::{Permit, PermittedRequest};
use crate::pipeline::pool::{CheckIn, ConnectionKey};
use crate::pipeline::route::followed::FollowedRoute;
use crate::pipeline::route::{Route, Upstream};
use crate::pipeline::{chain, component, retry, upgrade};
use crate::state::certificate::PeerCertificate;
use crate::state::component::{Component, ComponentError};
use crate::state::credential::HandlingGuard;
use crate::state::endpoints::UnderWay;
use crate::state::function::FunctionEntry;
use crate::state::in_flight::InFlight;
use crate::state::instances::Lease;
use crate::state::revisions::Revision;
use http::{HeaderMap, Request, Response, request};
use leno_http::body::{Body, Replayable};
use leno_http::failure::{Failure, Unavailable};
use leno_http::hop;
use leno_http::upload::Upload;
use leno_model::{AppProtocol, IN_NODE};
use leno_policy::spec::{Breaker, Protocol, Retry};
use leno_telemetry::exchange::{AttemptResult, Stage};
use report::PendingReport;
use send::Endpoints;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// When an exchange or an attempt must be over, and how long that is from its beginning.
type Deadline = (tokio::time::Instant, Duration);

/// Maximum number of instances to which a request tries in vain to connect.
const MAX_LOST: usize = 4;

/// How often to check whether the supervisor has learned that a function is no longer a component.
const REVISION_POLL: Duration = Duration::from_millis(1);

/// A response, and the resources that are held until its body ends.
#[derive(Debug)]
pub(super) struct Reply {
    pub response: Response<Body>,
    /// The instance and the connection that the response occupies.
    pub guard: UpstreamGuard,
}

/// The resources of an in-flight request. Dropping it releases all of them.
#[derive(Debug, Default)]
pub(super) struct UpstreamGuard {
    connection: Option<CheckIn>,
    _handling: Option<HandlingGuard>,
    lease: Option<Lease>,
    _running: Option<Running>,
    _under_way: Option<UnderWay>,
    /// The report to the outlier detection that waits for the trailers.
    pub unreported: RefCell<Option<Box<PendingReport>>>,
}

impl UpstreamGuard {
    /// The certificate of the callee's sidecar.
    pub(super) fn certificate(&self) -> Option<PeerCertificate> {
        self.connection.as_ref().and_then(CheckIn::certificate)
    }

    /// Notes that another part of the response has come.
    pub(super) fn heard(&self) {
        if let Some(lease) = &self.lease {
            lease.guard.heard();
        }
    }
}

/// A request that waits for its instance's response. If it waits in vain for as long as a request
/// to the function may take, this reports it to the supervisor.
struct Awaiting<'a> {
    lease: &'a Lease,
    since: tokio::time::Instant,
    /// `None`: the request may take any time, or the response has begun.
    limit: Option<Duration>,
}

impl Awaiting<'_> {
    fn answered(mut self) {
        self.limit = None;
        self.lease.guard.heard();
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        if self.limit.is_some_and(|limit| self.since.elapsed() >= limit) {
            self.lease.guard.timed_out(self.since);
        }
    }
}

pub(super) struct Forward<'a> {
    pub exchange: &'a Exchange,
    pub upstream: &'a Upstream,
    /// The rule of a route that the request follows; `None`: it follows none.
    pub followed: Option<&'a FollowedRoute>,
    pub permit: &'a Permit,
    /// The endpoint of the current attempt, once it is chosen.
    pub endpoint: Cell<Option<SocketAddr>>,
    /// When the current attempt must be over.
    deadline: Cell<Option<Deadline>>,
    /// Attempts that are over.
    attempts: Cell<u8>,
    /// An attempt went to the callee's judge on this node.
    tried_here: Cell<bool>,
    /// The request, if nothing of it was sent because there was no connection to the leased
    /// instance.
    unsent: RefCell<Option<Box<Request<Body>>>>,
    /// Progress of the client's body. It shows whether the client or the upstream is to blame for a
    /// failure.
    upload: Option<Upload>,
}

/// Forwards a permitted request to its callee. Returns the permit, which must be held until the
/// exchange ends.
pub(super) async fn forward(
    exchange: &Exchange,
    route: &Route,
    permitted: PermittedRequest,
    body: Body,
) -> (Permit, Result<Reply, Failure>) {
    let (head, permit) = permitted.into_parts();
    let forward = Forward {
        exchange,
        upstream: &route.upstream,
        followed: route.followed.as_deref(),
        permit: &permit,
        endpoint: Cell::default(),
        deadline: Cell::default(),
        attempts: Cell::default(),
        tried_here: Cell::default(),
        unsent: RefCell::default(),
        upload: body.upload(),
    };
    // A request that is a retry, or that is made for one, is tried once. Otherwise each function of
    // a call chain would multiply the requests of the one before.
    let may_retry = !exchange.upgrade
        && !exchange.connects
        && !exchange.is_retry
        && !exchange.is_copy()
        && !matches!(exchange.origin, Origin::Inbound(_));
    let retries = permit.terms().retry.as_ref().filter(|_| may_retry);
    let deadline = exchange.deadline(&permit);
    let result = match retries {
        // Boxed because it is large. Otherwise it would enlarge the future of each exchange.
        Some(retry) => Box::pin(forward.with_retries(retry, head, body, deadline)).await,
        None => forward.attempt_within(deadline, head, body, &[]).await,
    };
    if result.is_ok() {
        exchange.record.stage(Stage::Head);
    }
    (permit, result)
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
        self.deadline.set(deadline);
        // Pinned here, because a timeout that owns it would move it about, and it is large.
        let attempt = pin!(self.attempt(head, body, avoid));
        let result = match deadline {
            Some((at, limit)) => tokio::time::timeout_at(at, attempt).await.unwrap_or(Err(Failure::Timeout(limit))),
            None => attempt.await,
        };
        self.attempts.set(self.attempts.get().saturating_add(1));
        self.note(result)
    }

    /// Makes one attempt. Dropping the future at any time releases the resources of the attempt.
    pub(super) async fn attempt(
        &self,
        mut head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        self.endpoint.set(None);
        self.shorten_grpc_timeout(&mut head.headers);
        let mut reply = match self.upstream {
            Upstream::Instance(entry) => {
                let revision = self.revision(entry, &head.headers)?;
                self.exchange.record.revision(&revision.label);
                match &revision.component {
                    Some(component) => self.to_component(entry, (revision, component), head, body).await?,
                    None => self.to_instance(entry, revision, head, body, avoid).await?,
                }
            }
            Upstream::Egress(entry, external) => self.to_egress(entry, external, head, body, avoid).await?,
            Upstream::LocalDelivery(callee) => self.deliver_locally(callee, head, body).await,
            Upstream::Remote(callee) => self.to_nodes(callee, head, body, avoid).await?,
            Upstream::NotACallee => return Err(Unavailable::Unknown.into()),
        };
        upgrade::check(self.exchange, &mut reply.response)?;
        Ok(reply)
    }

    /// The facts about the request's route that the callee's sidecar must know; `None`: nothing.
    fn hop_terms(&self) -> Option<hop::RouteTerms> {
        let of_copy = || self.exchange.hop_terms.as_deref().filter(|terms| terms.is_copy).cloned();
        self.followed.and_then(FollowedRoute::hop_terms).or_else(of_copy)
    }

    /// The revision that gets the request: the one that a route names, or else the one that the
    /// function picks.
    fn revision<'r>(&self, entry: &'r FunctionEntry, headers: &HeaderMap) -> Result<&'r Arc<Revision>, Failure> {
        let told = self.exchange.hop_terms.as_ref().and_then(|terms| terms.revision.as_deref());
        match self.followed.and_then(FollowedRoute::revision).or(told) {
            None => Ok(entry.revisions.pick(headers, &self.exchange.request_id)),
            Some(name) => entry
                .revisions
                .named(name)
                .ok_or_else(|| Failure::Route(format!("{} has no revision {name} that takes requests", entry.name))),
        }
    }

    /// Sets a gRPC client's timeout to the time that remains until its deadline or the exchange's,
    /// whichever is earlier.
    fn shorten_grpc_timeout(&self, headers: &mut HeaderMap) {
        if self.exchange.protocol == Protocol::Grpc
            && hop::grpc_timeout(headers).is_some()
            && let Some((at, _)) = self.deadline.get()
            && let Some(left) = hop::grpc_timeout_value(at.saturating_duration_since(tokio::time::Instant::now()))
        {
            headers.insert(hop::GRPC_TIMEOUT, left);
        }
    }

    /// Whether this attempt is a retry, or is made for a request that is one.
    fn is_retry(&self) -> bool {
        self.exchange.is_retry || self.attempts.get() > 0
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
            let mut result = self.attempt_within(limit, head_again, body_again, &tried).await;
            drop(budget.take());
            let early = if last || !repeatable { None } else { self.early_grpc_status(retry, &mut result).await };
            let again = !last
                && retry::is_worth_it(retry, outcome(&result, early), repeatable)
                && body.as_ref().is_none_or(Replayable::is_possible)
                && deadline.is_none_or(|(at, _)| tokio::time::Instant::now() < at);
            if !again {
                return result;
            }
            budget = self.permit.target.acquire_retry(retry.budget_percent, retry.budget_min);
            if budget.is_none() {
                return result;
            }
            tried.extend(self.endpoint.get());
            let shortest = self.followed.map(FollowedRoute::shortest_pause).unwrap_or_default();
            let pause = shortest + retry::pause(retry, attempt, |max| self.exchange.worker.random.up_to(max));
            if deadline.is_some_and(|(at, _)| tokio::time::Instant::now() + pause >= at) {
                return result;
            }
            if let Ok(mut reply) = result {
                // Dropping the detached guard ends the response as answered, not as broken off.
                let detached = reply.response.body_mut().detach();
                if let (Some(guard), Some(status)) = (detached, early) {
                    guard.grpc_status(status);
                }
            }
            tokio::time::sleep(pause).await;
        }
        // Only one case gets here: the body stopped being repeatable between two checks.
        Err(Failure::ClientGone)
    }

    /// Records how an attempt ended, and reports it to the outlier detection.
    pub(super) fn note(&self, mut result: Result<Reply, Failure>) -> Result<Reply, Failure> {
        if let (Err(failure), Some(upload)) = (&mut result, &self.upload) {
            upload.attribute(failure);
        }
        let outcome = match &result {
            Ok(reply) => AttemptResult::Status(reply.response.status().as_u16()),
            Err(failure) => AttemptResult::Failed(failure.flag()),
        };
        self.exchange.record.attempt(self.endpoint.get(), outcome);
        self.report(&mut result);
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
        let protocol = self.protocol(revision);
        if exchange.upgrade && protocol != AppProtocol::Http1 {
            return Err(Failure::Protocol("it speaks HTTP/2, over which no WebSocket is opened to an instance"));
        }
        let mut lease = self.lease(entry, revision, avoid).await?;
        let mut body = body.deliver(&entry.identity_fields);
        exchange.finalize_request(&mut head.headers, entry);
        let mut lost = Vec::new();
        loop {
            let failure = match self.send_to(entry, protocol, lease, (head, body)).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let Some(unsent) = self.unsent.take() else { return Err(failure) };
            lost.extend(self.endpoint.get());
            if lost.len() >= MAX_LOST {
                return Err(failure);
            }
            exchange.record.attempt(self.endpoint.get(), AttemptResult::Failed(failure.flag()));
            let parts = unsent.into_parts();
            (head, body) = (Box::new(parts.0), parts.1);
            lease = self.lease(entry, revision, &[avoid, &lost].concat()).await?;
        }
    }

    /// Sends the request to the leased instance.
    async fn send_to(
        &self,
        entry: &Arc<FunctionEntry>,
        protocol: AppProtocol,
        lease: Lease,
        (head, body): (Box<request::Parts>, Body),
    ) -> Result<Reply, Failure> {
        let exchange = self.exchange;
        self.endpoint.set(Some(lease.address));
        exchange.record.handled_by(lease.address);
        exchange.record.stage(Stage::Upstream);
        let trace = self.permit.trace.as_ref();
        let in_flight = InFlight::new(&exchange.request_id, trace.map(|trace| trace.context), &head.headers);
        let in_flight = Arc::new(in_flight.retried(exchange.is_retry));
        let instance = lease.instance.as_deref();
        let awaiting = Awaiting { lease: &lease, since: tokio::time::Instant::now(), limit: self.longest() };
        let handling =
            instance.and_then(|instance| exchange.worker.node.credentials.handle(instance, in_flight.clone()));
        let key = self.key(&lease);
        let (response, connection) = match protocol {
            AppProtocol::Http1 => {
                let (response, connection) =
                    self.send_http1(entry, Endpoints::one(key, &lease, entry), head, body).await?;
                (response.map(Body::from), Some(connection))
            }
            AppProtocol::H2c | AppProtocol::Grpc => {
                let (response, connection) =
                    self.send_http2(Some(entry), Endpoints::one(key, &lease, entry), head, body).await?;
                (response.map(Body::from), Some(connection))
            }
            AppProtocol::Chain => {
                let link = instance.and_then(|instance| exchange.worker.node.links.get(instance));
                let link = link.ok_or(Failure::Connect { cause: "the instance's link has ended".to_owned() })?;
                (chain::deliver(exchange, entry, &link, in_flight, (head, body)).await?, None)
            }
        };
        awaiting.answered();
        let guard = UpstreamGuard { connection, _handling: handling, lease: Some(lease), ..UpstreamGuard::default() };
        Ok(Reply { response, guard })
    }

    /// The silence after which an instance has used all the time that a request may take. It is a
    /// bit shorter than the timeout, because the request may have waited for the instance before.
    fn longest(&self) -> Option<Duration> {
        let limit = Duration::from_millis(self.permit.terms().timeout_ms);
        (!limit.is_zero()).then(|| limit.mul_f64(0.9))
    }

    /// Runs the request in a component instance on this thread, once the function has capacity for
    /// one more.
    async fn to_component(
        &self,
        entry: &Arc<FunctionEntry>,
        (revision, component): (&Revision, &Component),
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<Reply, Failure> {
        let exchange = self.exchange;
        let failed = |error: &ComponentError| Unavailable::Failed { reason: error.to_string(), retry_after: None };
        let program = component.program.as_ref().map_err(failed)?;
        let lease = self.lease(entry, revision, &[]).await?;
        let body = body.deliver(&entry.identity_fields);
        exchange.record.stage(Stage::Upstream);
        exchange.finalize_request(&mut head.headers, entry);
        let trace = self.permit.trace.as_ref().map(|trace| trace.context);
        let (response, running) =
            component::start(exchange, entry, (program, component.grace), lease, trace, (head, body)).await?;
        Ok(Reply { response, guard: UpstreamGuard { _running: Some(running), ..UpstreamGuard::default() } })
    }

    /// The protocol of an instance. A pod gets a request in the protocol in which it came, and each
    /// WebSocket over HTTP/1.1.
    fn protocol(&self, revision: &Revision) -> AppProtocol {
        match (&self.exchange.pod, self.exchange.protocol) {
            (None, _) => revision.protocol,
            (Some(_), Protocol::Http1 | Protocol::WebSocket) => AppProtocol::Http1,
            (Some(_), Protocol::Http2 | Protocol::Grpc) => AppProtocol::H2c,
        }
    }

    fn key(&self, lease: &Lease) -> ConnectionKey {
        self.exchange.pod.as_ref().map_or_else(|| ConnectionKey::instance(lease.address), |pod| ConnectionKey::pod(pod))
    }

    /// Leases an instance that is not ejected. Waits for one if it must and if the circuit breaker
    /// allows it.
    async fn lease(&self, entry: &FunctionEntry, revision: &Revision, avoid: &[SocketAddr]) -> Result<Lease, Failure> {
        if let Some(pod) = &self.exchange.pod {
            return Ok(pod.lease());
        }
        let (instances, target) = (&self.exchange.worker.node.instances, &self.permit.target);
        let function = &entry.config.id;
        let mut avoid = Cow::Borrowed(avoid);
        let mut pending = None;
        loop {
            let lease = match instances.try_acquire(function, revision.label.number, &avoid) {
                Some(lease) => lease,
                None if self.exchange.is_copy() => return Err(Unavailable::Unknown.into()),
                // All usable instances are busy, or none is running yet.
                None => {
                    if pending.is_none() {
                        let most = breaker(entry).map(|breaker| breaker.max_pending);
                        pending = Some(target.acquire_pending(most).ok_or(Failure::Overflow)?);
                    }
                    let deadline = self.exchange.deadline(self.permit).map(|(at, _)| at);
                    instances.acquire(function, revision.label.number, &avoid, deadline).await?
                }
            };
            if lease.address == IN_NODE && revision.component.is_none() {
                // The function was a component until just now. The supervisor is about to learn
                // that it is not.
                drop(lease);
                tokio::time::sleep(REVISION_POLL).await;
                continue;
            }
            if !target.ejected(lease.address, Instant::now()) {
                return Ok(lease);
            }
            // The lease has an avoided address only if there is no other.
            if avoid.contains(&lease.address) {
                return Err(Failure::Ejected);
            }
            avoid.to_mut().push(lease.address);
        }
    }

    /// Delivers the request locally: to the callee's inbound judge, on this thread.
    async fn deliver_locally(&self, callee: &Arc<FunctionEntry>, head: Box<request::Parts>, body: Body) -> Reply {
        let terms = self.hop_terms();
        let exchange = self.exchange.for_local_delivery(callee, &self.permit.entry, &head, self.is_retry(), terms);
        self.exchange.record.stage(Stage::Upstream);
        let body = body.count_in(exchange.record.meter());
        // Caller and callee may be in one chain. Their bodies stay in its shared memory only if the
        // chain permits it.
        let chain = self.permit.entry.config.chain.as_ref();
        let share = chain.is_some_and(|chain| chain.to.contains(&callee.config.id));
        let body = if share { body } else { body.private() };
        // The pipeline calls itself here. Without a box, its future would have no finite size.
        let response = Box::pin(exchange.run(head, body, None)).await;
        let response = if share { response } else { response.map(Body::private) };
        Reply { response, guard: UpstreamGuard::default() }
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

/// The outcome of an attempt, for the retry decision.
fn outcome(result: &Result<Reply, Failure>, grpc: Option<u8>) -> retry::Outcome<'_> {
    match result {
        Ok(reply) => match reply.failure() {
            Some(failure) => Err(failure),
            None => Ok((reply.response.status().as_u16(), grpc)),
        },
        Err(failure) => Err(failure),
    }
}

pub(super) fn copy_head(head: &request::Parts) -> Box<request::Parts> {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method = head.method.clone();
    copy.uri = head.uri.clone();
    copy.version = head.version;
    copy.headers = head.headers.clone();
    Box::new(copy)
}
