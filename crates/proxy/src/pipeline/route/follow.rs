//! Follows a rule of a route: chooses the back end, changes the request, and begins its copies.

use super::followed::{FollowedRoute, unusable};
use super::{NotForwarded, Route};
use crate::pipeline::exchange::Exchange;
use crate::pipeline::judge::RequestSnapshot;
use crate::pipeline::reply;
use crate::state::routes::rules::{MatchedRule, Rule};
use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Response, Uri, header, request};
use leno_http::body::Body;
use leno_http::failure::Failure;
use leno_http::head::{self, HeadError};
use leno_http::hop;
use leno_model::{BackendTarget, Rewrite, RouteFilter};
use leno_policy::path::{Ambiguous, Readings};
use leno_routing::{RequestOrigin, cors};
use leno_telemetry::exchange::RouteRecord;
use std::borrow::Cow;
use std::rc::Rc;

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
    let fault = rule.faults.as_ref().and_then(|faults| super::pick(exchange, head, faults));
    let mut route = Route { judge, upstream, followed: None, fault };
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

impl FollowedRoute {
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
                | RouteFilter::Authorize(_)
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

    /// The route of a copy; `None`: this node cannot reach its back end.
    pub(crate) fn mirrored(&self, exchange: &Exchange, target: &BackendTarget) -> Option<Route> {
        let (judge, upstream) = super::reach(exchange, target.function()?).ok()?;
        Some(Route { judge, upstream, followed: None, fault: None })
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
