//! A request that follows a rule of a route: the back end, and the changes of request and response.

use super::{NotForwarded, Route};
use crate::pipeline::exchange::Exchange;
use crate::pipeline::judge::RequestSnapshot;
use crate::pipeline::reply;
use crate::state::routes::rules::{MatchedRule, Rule};
use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Response, Uri, header, request, response};
use leno_http::body::Body;
use leno_http::failure::Failure;
use leno_http::head::{self, HeadError};
use leno_http::hop;
use leno_model::{Backend, BackendTarget, Mirror, Rewrite, RouteFilter, RouteRetry};
use leno_policy::path::{Ambiguous, Readings};
use leno_policy::spec::{Retry, RetryOn, Target};
use leno_routing::cors;
use leno_routing::{BadRewrite, RequestOrigin};
use leno_telemetry::exchange::RouteRecord;
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

/// The base of pauses between attempts, if neither the rule nor a policy says one.
const PAUSE: u64 = 25;
/// The retries that a function may always have, and the part of its requests that they may be.
const BUDGET: (u8, u32) = (20, 3);

/// The rule that a request follows.
#[derive(Debug)]
pub(crate) struct FollowedRoute {
    pub matched: MatchedRule,
    /// Index of the back end among those of the rule.
    backend: usize,
    /// The head as it came, and the port that was asked for.
    pub asked: RequestSnapshot,
    pub port: u16,
    /// The path as it came, normalised; `None`: it is ambiguous, and goes on as it came.
    path: Option<Box<str>>,
    /// The field by which a browser says which page asks, if the rule shares resources with other
    /// origins.
    origin: HeaderMap,
}

/// Chooses the back end of a request that follows a rule. The function tells whether a request with
/// another reading of its path finds the rule too.
pub(super) fn follow(
    exchange: &Exchange,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
    (matched, is_unanimous): (&MatchedRule, &dyn Fn(&str) -> bool),
) -> Result<Route, NotForwarded> {
    let rule = &matched.rule;
    exchange.record.followed(RouteRecord::new(rule.route.clone(), rule.name.clone(), matched.words().clone()));
    if let Some(answer) = answer(exchange, head, path, matched)? {
        return Err(NotForwarded::Answered(Box::new(answer)));
    }
    let nowhere = |reason: &str| Failure::Route(reason.to_owned());
    let backends = &rule.spec.backends;
    if backends.is_empty() {
        return Err(nowhere("its rule has no back ends").into());
    }
    let chosen = leno_routing::pick(backends, exchange.worker.random.next());
    let chosen = chosen.ok_or_else(|| nowhere("each back end of its rule has the weight 0"))?;
    let index = backends.iter().position(|backend| std::ptr::eq(backend, chosen)).unwrap_or_default();
    if let BackendTarget::Invalid(reason) = &chosen.target {
        return Err(nowhere(reason).into());
    }
    exchange.record.backend(rule.backend_name(index).cloned());
    let id = chosen.target.function().ok_or_else(|| nowhere("its back end is no function"))?;
    let (judge, upstream) = super::reach(exchange, id)?;
    let followed = FollowedRoute {
        matched: matched.clone(),
        backend: index,
        asked: RequestSnapshot::copy(head),
        port: exchange.port,
        path: path.as_ref().ok().map(|path| (&**path).into()),
        origin: origin(rule, head),
    };
    let mut route = Route { judge, upstream, followed: None };
    let sends_as_received = route.sends_as_received();
    if path.is_err() || sends_as_received {
        let reason = path.as_ref().err().copied().unwrap_or(Ambiguous::AnotherReading);
        let refused = |ambiguous: Ambiguous| Failure::from(HeadError::Path(ambiguous.words()));
        let readings = Readings::as_received(head.uri.path()).map_err(refused)?;
        if !sends_as_received || !readings.iter().all(is_unanimous) {
            return Err(refused(reason).into());
        }
    }
    route.followed = Some(Rc::new(followed));
    Ok(route)
}

/// The answer of a rule that forwards no such request: a redirect, or that to a preflight request.
fn answer(
    exchange: &Exchange,
    head: &request::Parts,
    path: &Result<Cow<'_, str>, Ambiguous>,
    matched: &MatchedRule,
) -> Result<Option<Response<Body>>, Failure> {
    for filter in &matched.rule.spec.filters {
        match filter {
            RouteFilter::Cors(cors) if cors::is_preflight(&head.method, &head.headers) => {
                let (status, headers) = cors::preflight(cors, &head.headers);
                return Ok(Some(reply::bare(status, headers)));
            }
            RouteFilter::Redirect(redirect) => {
                let path = path.as_ref().map_err(|ambiguous| HeadError::Path(ambiguous.words()))?;
                let (host, _) = head::split_authority(head::authority(head));
                let asked = RequestOrigin { scheme: exchange.scheme, host, port: exchange.port };
                let query = head.uri.query();
                let to = leno_routing::redirect(redirect, &matched.pattern().path, path, query, asked);
                let (status, location) = to.map_err(unusable)?;
                let headers = HeaderMap::from_iter([(header::LOCATION, location)]);
                return Ok(Some(reply::bare(status, headers)));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The fields by which CORS decides about the response. Credentials count by their presence alone.
fn origin(rule: &Rule, head: &request::Parts) -> HeaderMap {
    if !rule.spec.filters.iter().any(|filter| matches!(filter, RouteFilter::Cors(_))) {
        return HeaderMap::new();
    }
    let origins = head.headers.get_all(header::ORIGIN).iter();
    let credentials = [header::COOKIE, header::AUTHORIZATION].into_iter();
    let credentials = credentials.filter(|name| head.headers.contains_key(name));
    let credentials = credentials.map(|name| (name, HeaderValue::from_static("")));
    origins.map(|origin| (header::ORIGIN, head::own(origin))).chain(credentials).collect()
}

fn unusable(bad: BadRewrite) -> Failure {
    Failure::Route(bad.to_string())
}

impl FollowedRoute {
    fn backend(&self) -> &Backend {
        &self.matched.rule.spec.backends[self.backend]
    }

    /// The back end.
    pub(crate) fn target(&self) -> &BackendTarget {
        &self.backend().target
    }

    /// The revision that gets the request; `None`: the function decides.
    pub(crate) fn revision(&self) -> Option<&str> {
        match self.target() {
            BackendTarget::Revision(_, revision) => Some(revision),
            _ => None,
        }
    }

    /// The port of an External that gets the request.
    pub(crate) fn external_port(&self) -> Option<u16> {
        match self.target() {
            BackendTarget::External(_, port) => Some(*port),
            _ => None,
        }
    }

    fn filters(&self) -> impl Iterator<Item = &RouteFilter> {
        self.matched.rule.spec.filters.iter().chain(&self.backend().filters)
    }

    /// Changes the head as the rule and the back end say. The judge sees the changed head.
    pub(super) fn apply(&self, exchange: &Exchange, head: &mut request::Parts) -> Result<(), Failure> {
        let (mut host, mut path) = (None, None);
        for filter in self.filters() {
            match filter {
                RouteFilter::RequestHeaders(modifier) => {
                    leno_routing::modify(modifier, &mut head.headers).map_err(unusable)?;
                }
                RouteFilter::Rewrite(Rewrite { host: new_host, path: new_path }) => {
                    host = new_host.as_deref().or(host);
                    path = new_path.as_ref().or(path);
                }
                RouteFilter::ResponseHeaders(_)
                | RouteFilter::Redirect(_)
                | RouteFilter::Mirror(_)
                | RouteFilter::Cors(_) => {}
            }
        }
        if let Some(change) = path {
            let asked = self.path.as_deref().ok_or(HeadError::Path(Ambiguous::AnotherReading.words()))?;
            let pattern = &self.matched.pattern().path;
            let path = leno_routing::rewritten_path(change, pattern, asked).map_err(unusable)?;
            set_path(head, &path)?;
            exchange.record.rewritten(None, Some(&path));
        }
        let port = self.external_port();
        if host.is_some() || port.is_some() {
            let (asked, _) = head::split_authority(head::authority(head));
            let host = host.unwrap_or(asked);
            let authority = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            set_authority(head, &authority)?;
            exchange.record.rewritten(Some(&authority), None);
        }
        Ok(())
    }

    /// The back ends that get copies of the request.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &Mirror> {
        self.filters().filter_map(|filter| match filter {
            RouteFilter::Mirror(mirror) => Some(mirror),
            _ => None,
        })
    }

    /// The route of a copy; `None`: this node cannot reach its back end.
    pub(crate) fn mirrored(&self, exchange: &Exchange, target: &BackendTarget) -> Option<Route> {
        let (judge, upstream) = super::reach(exchange, target.function()?).ok()?;
        Some(Route { judge, upstream, followed: None })
    }

    /// Begins the exchange of a copy for this back end.
    pub(crate) fn begin_copy(
        &self,
        exchange: &Exchange,
        target: &BackendTarget,
        head: &mut request::Parts,
    ) -> Result<Exchange, Failure> {
        let rule = &self.matched.rule;
        let mut port = self.port;
        if let BackendTarget::External(_, own) = target {
            let (host, _) = head::split_authority(head::authority(head));
            let authority = format!("{host}:{own}");
            set_authority(head, &authority)?;
            port = *own;
        }
        let revision = match target {
            BackendTarget::Revision(_, revision) => Some(revision.as_str().into()),
            _ => None,
        };
        let terms = hop::RouteTerms { is_copy: true, revision, ..hop::RouteTerms::default() };
        let copy = exchange.for_copy(terms, port, head);
        copy.record.followed(RouteRecord {
            backend: Some(target.to_string().into()),
            is_copy: true,
            ..RouteRecord::new(rule.route.clone(), rule.name.clone(), self.matched.words().clone())
        });
        Ok(copy)
    }

    /// Changes the head of a response.
    pub(crate) fn respond(&self, head: &mut response::Parts) -> Result<(), Failure> {
        for filter in self.filters() {
            match filter {
                RouteFilter::ResponseHeaders(modifier) => {
                    leno_routing::modify(modifier, &mut head.headers).map_err(unusable)?;
                }
                RouteFilter::Cors(cors) => cors::response(cors, &self.origin, &mut head.headers),
                RouteFilter::RequestHeaders(_)
                | RouteFilter::Redirect(_)
                | RouteFilter::Rewrite(_)
                | RouteFilter::Mirror(_) => {}
            }
        }
        Ok(())
    }

    /// Time limits and retries of the request; `None`: those of the policies.
    pub(crate) fn terms(&self, of_policies: &Target) -> Option<Target> {
        let rule = &self.matched.rule;
        let (timeouts, retry, is_ordered) = (rule.spec.timeouts, &rule.spec.retry, rule.is_ordered);
        if timeouts.request.is_none() && timeouts.backend_request.is_none() && retry.is_none() && !is_ordered {
            return None;
        }
        let mut terms = of_policies.clone();
        if let Some(request) = timeouts.request.or(is_ordered.then_some(Duration::ZERO)) {
            terms.timeout_ms = millis(request);
        }
        terms.retry = match retry {
            Some(retry) => Some(plan(retry, &rule.route, of_policies.retry.as_ref())).filter(|plan| plan.attempts > 0),
            None if is_ordered => None,
            None => terms.retry,
        };
        if let Some(attempt) = timeouts.backend_request.map(millis) {
            match &mut terms.retry {
                Some(retry) => retry.per_try_timeout_ms = attempt,
                None if attempt > 0 => {
                    terms.timeout_ms = if terms.timeout_ms == 0 { attempt } else { terms.timeout_ms.min(attempt) };
                }
                None => {}
            }
        }
        Some(terms)
    }

    /// The facts that the callee's sidecar must know; `None`: nothing.
    pub(crate) fn hop_terms(&self) -> Option<hop::RouteTerms> {
        let rule = &self.matched.rule;
        let is_limited_by_caller = rule.is_ordered || rule.spec.timeouts.request.is_some();
        let revision = self.revision().map(Into::into);
        (is_limited_by_caller || revision.is_some()).then_some(hop::RouteTerms {
            is_limited_by_caller,
            is_copy: false,
            revision,
        })
    }

    /// The shortest pause before another attempt.
    pub(crate) fn shortest_pause(&self) -> Duration {
        self.matched.rule.spec.retry.as_ref().and_then(|retry| retry.backoff).unwrap_or_default()
    }
}

/// The retries of a rule. The pauses and the budget are those of the policies, if these have any.
fn plan(retry: &RouteRetry, route: &str, of_policies: Option<&Retry>) -> Retry {
    let failures = [RetryOn::ConnectFailure, RetryOn::RefusedStream, RetryOn::Reset, RetryOn::Timeout];
    let statuses = retry.codes.iter().copied().map(RetryOn::Status);
    let base = retry.backoff.map_or_else(|| of_policies.map_or(PAUSE, |plan| plan.backoff_base_ms), millis);
    Retry {
        name: route.to_owned(),
        attempts: retry.attempts.unwrap_or(1).try_into().unwrap_or(u8::MAX),
        per_try_timeout_ms: of_policies.map_or(0, |plan| plan.per_try_timeout_ms),
        backoff_base_ms: base,
        backoff_max_ms: of_policies.map_or(0, |plan| plan.backoff_max_ms).max(base.saturating_mul(10)),
        on: failures.into_iter().chain(statuses).collect(),
        non_idempotent: false,
        budget_percent: of_policies.map_or(BUDGET.0, |plan| plan.budget_percent),
        budget_min: of_policies.map_or(BUDGET.1, |plan| plan.budget_min),
    }
}

/// Whole milliseconds, rounded up: only zero means no limit.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Replaces the path. The query stays.
fn set_path(head: &mut request::Parts, path: &str) -> Result<(), Failure> {
    let query = head.uri.query().map(|query| ["?", query].concat()).unwrap_or_default();
    let bad = || Failure::Route(format!("it rewrites the path to {path}, which no request can have"));
    let path_and_query = PathAndQuery::try_from([path, &query].concat()).map_err(|_| bad())?;
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.path_and_query = Some(path_and_query);
    head.uri = Uri::from_parts(parts).map_err(|_| bad())?;
    Ok(())
}

/// Replaces the authority where the head has it: in the URI, or in a field.
fn set_authority(head: &mut request::Parts, authority: &str) -> Result<(), Failure> {
    let bad = || Failure::Route(format!("it rewrites the host to {authority}, which no request can have"));
    if head.uri.authority().is_none() {
        head.headers.insert(HOST, HeaderValue::try_from(authority).map_err(|_| bad())?);
        return Ok(());
    }
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.authority = Some(Authority::try_from(authority).map_err(|_| bad())?);
    head.uri = Uri::from_parts(parts).map_err(|_| bad())?;
    Ok(())
}
