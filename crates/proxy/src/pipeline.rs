//! The pipeline of one request, from its head to the head of its response.

pub(crate) mod authorize;
pub(crate) mod chain;
mod component;
pub(crate) mod exchange;
mod fault;
mod guard;
pub mod judge;
pub(crate) mod mirror;
pub(crate) mod open;
pub(crate) mod pool;
pub(crate) mod probe;
pub(crate) mod reply;
mod retry;
pub(crate) mod route;
pub(crate) mod upgrade;
mod upstream;
mod watch;
pub(crate) mod worker;

use exchange::{Exchange, Origin};
use guard::ExchangeGuard;
use http::{HeaderMap, Response, StatusCode, header, request, response};
use judge::{JudgeInput, Judgement, Permit, PermittedRequest, Refusal};
use leno_http::body::{Body, CloseReason, ClosedBy, grpc_status};
use leno_http::failure::Failure;
use leno_http::head;
use leno_model::FunctionId;
use leno_namespaces::Resource;
use leno_policy::spec::Protocol;
use leno_runtime::schedule;
use leno_telemetry::exchange::Stage;
use open::{GRACE, OpenRoute, Permission, Registration};
use route::{NotForwarded, Route, Upstream};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use tokio::time::Instant;
use upstream::{Reply, UpstreamGuard};

/// A larger head is refused before it is compared with the peer's SETTINGS_MAX_HEADER_LIST_SIZE.
pub(crate) const MAX_CHECKED_HEAD: u32 = 128 * 1024;

impl Exchange {
    /// Runs one exchange: route, judge, forward, judge the response, finish. The snapshot was
    /// pinned when the exchange began.
    /// `known`: the route of a copy, which is found already.
    pub(crate) async fn run(
        mut self,
        mut head: Box<request::Parts>,
        mut body: Body,
        known: Option<Box<Route>>,
    ) -> Response<Body> {
        let route = match self.route(&mut head, known) {
            Ok(route) => route,
            Err(NotForwarded::Failed(failure)) => return self.fail(failure),
            Err(NotForwarded::Answered(response)) => return self.answer(*response),
        };
        if let Some(port) = route.followed.as_ref().and_then(|followed| followed.external_port()) {
            self.port = port;
        }
        if let Some(followed) = &route.followed
            && followed.authorizers().next().is_some()
        {
            let asking = self.ask_of_route(&route, followed, &mut head, body.is_over());
            if let Err(refusal) = Box::pin(asking).await {
                return self.refuse(refusal);
            }
            body = body.without_trailers();
        }
        let copies = match &route.followed {
            Some(followed) => mirror::prepare(&self, followed, &head),
            None => Vec::new(),
        };
        let mut permitted = match self.permit(&route, head, &body).await {
            Ok(permitted) => permitted,
            Err(refusal) => return self.refuse(refusal),
        };
        let open = self.open(&route, &mut permitted);
        let injected = match &route.fault {
            None => Ok(Ok(())),
            Some(fault) => {
                let mut injected = Box::pin(self.inject(fault, permitted.permit()));
                poll_fn(|cx| open.poll_unless_closed(injected.as_mut(), cx)).await
            }
        };
        let forwarded = match injected {
            Ok(Ok(())) => {
                let body = if copies.is_empty() { body } else { mirror::start(&self, &route, copies, body) };
                let mut forwarded = pin!(upstream::forward(&self, &route, permitted, body));
                poll_fn(|cx| open.poll_unless_closed(forwarded.as_mut(), cx)).await
            }
            Ok(Err(failure)) => Ok((permitted.into_parts().1, Err(failure))),
            Err(closed) => Err(closed),
        };
        let (permit, reply) = match forwarded {
            Ok(forwarded) => forwarded,
            Err(closed) => return self.close(&closed),
        };
        let (mut head, body, guard) = self.received(reply);
        if let Err(refusal) = self.worker.judge.response(&permit, &mut head, &self.record) {
            return self.refuse(refusal);
        }
        if let Some(followed) = &route.followed
            && let Err(failure) = followed.respond(&mut head)
        {
            return self.fail(failure);
        }
        self.finish(Response::from_parts(head, body), (guard, permit, open))
    }

    /// Finds the route, and counts the exchange for the function and namespace on whose side it is.
    fn route(&self, head: &mut request::Parts, known: Option<Box<Route>>) -> Result<Route, NotForwarded> {
        let route = match known {
            Some(route) => *route,
            None => route::find(self, head).inspect_err(|failure| {
                if let NotForwarded::Failed(Failure::NoHttp(_)) = failure {
                    self.note_destination();
                }
            })?,
        };
        if let Some(target) = route.target_name() {
            self.record.routed(&target);
        }
        if !self.is_nested {
            schedule::charge(route.judge.class);
        }
        self.record.stage(Stage::Routed);
        self.occupy(&route)?;
        Ok(route)
    }

    /// Judges the request, calls its authorizers, and shows it to its extensions.
    async fn permit(&self, route: &Route, head: Box<request::Parts>, body: &Body) -> Result<PermittedRequest, Refusal> {
        let judged = self.worker.judge.request(self.ask(route, body), head, &self.record).await;
        let mut permitted = judged.permitted().inspect_err(|_| {
            if matches!(route.upstream, Upstream::NotACallee | Upstream::Egress(..)) {
                self.note_destination();
            }
        })?;
        if permitted.has_asks() {
            permitted = Box::pin(self.authorize(permitted, body.is_over())).await.permitted()?;
        }
        match (&route.followed, &self.hop_terms) {
            (Some(followed), _) => permitted.follow(|of_policies| followed.terms(of_policies)),
            (None, Some(terms)) if terms.is_limited_by_caller => permitted.limit(0),
            (None, Some(terms)) if terms.is_copy && permitted.is_unlimited() => permitted.limit(mirror::LONGEST_MS),
            (None, _) => {}
        }
        if permitted.has_extensions() {
            permitted = Box::pin(self.extend(self.ask(route, body), permitted)).await.permitted()?;
        }
        Ok(permitted)
    }

    /// The response of the upstream, or the one in its place. Notes a failure.
    fn received(&self, reply: Result<Reply, Failure>) -> (response::Parts, Body, UpstreamGuard) {
        match reply {
            Ok(Reply { response, guard }) => {
                if let Some(failure) = response.extensions().get() {
                    self.record.failure(failure);
                }
                let (head, body) = response.into_parts();
                (head, body, guard)
            }
            Err(failure) => {
                self.record.failure(&failure);
                let (head, body) = reply::failed(&failure, self).into_parts();
                (head, body, UpstreamGuard::default())
            }
        }
    }

    /// Counts the exchange for the namespace on whose side it is: the caller's for a call of an
    /// instance, else the callee's.
    fn occupy(&self, route: &Route) -> Result<(), Failure> {
        let Some(share) = self.origin.entry().unwrap_or(&route.judge).share() else { return Ok(()) };
        let permit = share.take(Resource::OpenRequests);
        self.record.occupy(share, permit).ok_or_else(|| Failure::Bound(share.refusal(Resource::OpenRequests)))
    }

    fn ask<'a>(&'a self, route: &'a Route, body: &Body) -> JudgeInput<'a> {
        let target = route.target();
        JudgeInput {
            entry: &route.judge,
            direction: self.origin.direction(),
            peer: &self.peer,
            target,
            protocol: self.protocol,
            scheme: self.scheme,
            port: self.port,
            parent: self.parent.as_deref(),
            endpoints: match (&route.upstream, target) {
                (Upstream::Egress(_, external), _) => external.known(),
                (Upstream::Remote(callee), _) => {
                    let known = self.worker.node.endpoints.of(&callee.id).map_or(0, |known| known.len());
                    known + self.worker.node.instances.count(&callee.id)
                }
                (_, Some(target)) => self.worker.node.instances.count(target),
                (_, None) => 0,
            },
            bodiless: body.is_over(),
        }
    }

    /// Shows the permitted request to the function's extensions. First reserves instances for those
    /// that also see the response; this may wait.
    async fn extend(&self, ask: JudgeInput<'_>, permitted: PermittedRequest) -> Judgement {
        let most = self.snapshot.mesh.limits.extension_instances;
        let share = match permitted.response_extensions() {
            0 => Ok(None),
            count => self.worker.node.extension_instances.take(&ask.entry.config.id, count, most).await.map(Some),
        };
        self.worker.judge.extend(ask, permitted, share, &self.record)
    }

    /// Notes the refused destination of a function, for `leno suggest egress`.
    fn note_destination(&self) {
        let from_identity = || FunctionId::of_identity(self.peer.identity.as_deref()?);
        let (caller, callee) = match &self.origin {
            Origin::Outbound(caller, _) => (Some(caller.config.id.clone()), None),
            Origin::Inbound(entry) if entry.external.is_some() => (from_identity(), Some(&entry.config.id)),
            Origin::Inbound(_) | Origin::Gateway => return,
        };
        let Some(caller) = caller else { return };
        self.record.note(|observed| {
            let line = &observed.request_line;
            let (host, _) = head::split_authority(line.authority());
            let destinations = &self.worker.node.telemetry.destinations;
            destinations.request(&caller, callee, (host, self.port), (line.method(), line.path()));
        });
    }

    /// Answers with a refusal. The record says which rule refused; the response does not.
    fn refuse(self, refusal: Refusal) -> Response<Body> {
        self.answer(reply::denied(refusal, &self))
    }

    /// Puts the permitted exchange among the open ones.
    fn open(&self, route: &Route, permitted: &mut PermittedRequest) -> Registration {
        let caller = match &self.origin {
            Origin::Outbound(_, caller) => caller.clone(),
            Origin::Gateway | Origin::Inbound(_) => None,
        };
        let permission = Permission {
            asked: permitted.take_asked(),
            direction: self.origin.direction(),
            peer: self.peer.clone(),
            caller,
            from_gateway: self.via_gateway || matches!(self.origin, Origin::Gateway),
            route: route.followed.as_ref().map(|followed| OpenRoute {
                followed: followed.clone(),
                tables: self.snapshot.gateway_routes.clone().into(),
            }),
            target: route.target_name().unwrap_or_else(|| route.judge.name.clone()),
            protocol: self.protocol,
            port: self.port,
            certificate: self.certificate,
            started: self.started,
        };
        let ends = permitted.until_ms().and_then(|until| watch::instant(until, self.record.started()));
        let is_old = !Rc::ptr_eq(&self.snapshot, &self.worker.snapshot());
        let changed = is_old.then(|| Instant::now() + GRACE);
        // Only an older snapshot can have permitted a call to a removed function.
        let removed = if is_old { self.worker.removed_until(&route.judge) } else { None };
        let again = [changed, removed].into_iter().flatten().min();
        let until = (ends, self.snapshot.mesh.stream_lifetime());
        self.worker.open.register(permission, route.judge.clone(), self.record.clone(), until, again)
    }

    /// Answers a request that was closed before there was a response.
    fn close(self, closed: &CloseReason) -> Response<Body> {
        if closed.by != ClosedBy::Policy {
            return self.fail(closed.failure());
        }
        self.record.failure(&closed.failure());
        self.refuse(Refusal { status: closed.status, headers: HeaderMap::new(), own: None })
    }

    /// Answers a request that has no upstream response.
    pub(crate) fn fail(self, failure: Failure) -> Response<Body> {
        self.record.failure(&failure);
        self.answer(reply::failed(&failure, &self))
    }

    fn answer(&self, response: Response<Body>) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        self.record.status(head.status.as_u16());
        self.note_grpc_status(&head.headers);
        head::sanitize_response(&mut head, &self.request_id, false);
        Response::from_parts(head, ExchangeGuard::new(self.record.clone()).keep_with(body))
    }

    /// A gRPC call that ends with its response head carries its status there.
    fn note_grpc_status(&self, headers: &HeaderMap) {
        if self.protocol == Protocol::Grpc
            && let Some(status) = grpc_status(headers)
        {
            self.record.grpc_status(status);
        }
    }

    /// Cleans the response head, and attaches the guards that live until the body ends.
    fn finish(
        self,
        response: Response<Body>,
        (upstream, permit, open): (UpstreamGuard, Permit, Registration),
    ) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        let upgraded = head.status == StatusCode::SWITCHING_PROTOCOLS;
        let other = head.headers.remove(header::UPGRADE).filter(|_| self.protocol != Protocol::WebSocket);
        head::sanitize_response(&mut head, &self.request_id, upgraded);
        if let Some(protocol) = other.filter(|_| upgraded) {
            head::set_upgrade(&mut head.headers, protocol);
        }
        let upgraded = upgraded || upgrade::begins_tunnel(&head.extensions);
        // Few clients announce a limit, and most of these limits exceed any head.
        if self.client_head < MAX_CHECKED_HEAD && head::list_size(&head.headers) > self.client_head as usize {
            let most = self.client_head;
            return self.fail(Failure::ResponseHead(format!(
                "the client takes response heads of {most} bytes at most (SETTINGS_MAX_HEADER_LIST_SIZE)"
            )));
        }
        self.record.status(head.status.as_u16());
        self.note_grpc_status(&head.headers);
        if upgraded {
            self.record.upgraded();
        } else if body.is_over() {
            return Response::from_parts(head, body);
        }
        let is_grpc = self.protocol == Protocol::Grpc && head::is_grpc(&head.headers);
        let deadline = if upgraded { None } else { self.deadline(&permit) };
        open.set_callee(upstream.certificate(), self.snapshot.mesh.stream_lifetime());
        let mut guard = ExchangeGuard::new(self.record);
        (guard.upstream, guard.permit, guard.open, guard.deadline) = (upstream, Some(permit), Some(open), deadline);
        guard.is_grpc = is_grpc;
        Response::from_parts(head, guard.keep_with(body))
    }
}
