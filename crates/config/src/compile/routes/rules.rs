//! Rules of routes: their matches, filters, back ends, time limits and retries.

use super::backends::{Reference, References};
use super::filters::{self, Filter, Level};
use super::patterns;
use crate::problem::Scope;
use leno_gateway_api::{
    GRPCHeaderMatchType, GRPCMethodMatchType, GRPCRouteMatch, GRPCRouteRule, HTTPRouteMatch, HTTPRouteRetry,
    HTTPRouteRule, HTTPRouteTimeouts, HeaderMatchType, PathMatchType, QueryParamMatchType, duration,
};
use leno_model::{Backend, BackendTarget, RouteFilter, RouteMatch, RouteRetry, RouteRule, RouteTimeouts};
use std::time::Duration;

/// Most attempts after the first one, as for retries of policies.
const MAX_ATTEMPTS: u32 = 10;
/// Longest time limit or pause.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A rule of an HTTPRoute. Reports its faults.
pub(super) fn http(references: &References<'_>, scope: &Scope<'_>, rule: &HTTPRouteRule) -> RouteRule {
    let list = scope.field("matches");
    let matches = rule.matches.iter().enumerate().filter_map(|(index, it)| http_match(&list.element(index), it));
    let matches = or_any(matches.collect());
    no_sessions(scope, rule.session_persistence.is_some());
    let backends = rule.backend_refs.iter().map(|backend| {
        let leno_gateway_api::HTTPBackendRef { group, kind, namespace, name, port, weight, filters } = backend;
        let reference = Reference { group, kind, namespace: namespace.as_deref(), name, port: *port };
        (reference, *weight, filters.iter().map(Filter::of_http).collect())
    });
    let filters = rule.filters.iter().map(Filter::of_http).collect();
    finished(references, scope, matches, filters, backends.collect(), rule.name.as_deref(), |rule_scope| {
        let timeouts = rule.timeouts.as_ref().map(|it| timeouts(&rule_scope.field("timeouts"), it));
        let retry = rule.retry.as_ref().map(|it| retry(&rule_scope.field("retry"), it));
        (timeouts.unwrap_or_default(), retry)
    })
}

/// A rule of a GRPCRoute.
pub(super) fn grpc(references: &References<'_>, scope: &Scope<'_>, rule: &GRPCRouteRule) -> RouteRule {
    let list = scope.field("matches");
    let matches = rule.matches.iter().enumerate().filter_map(|(index, it)| grpc_match(&list.element(index), it));
    let matches = or_any(matches.collect());
    no_sessions(scope, rule.session_persistence.is_some());
    let backends = rule.backend_refs.iter().map(|backend| {
        let leno_gateway_api::GRPCBackendRef { group, kind, namespace, name, port, weight, filters } = backend;
        let reference = Reference { group, kind, namespace: namespace.as_deref(), name, port: *port };
        (reference, *weight, filters.iter().map(Filter::of_grpc).collect())
    });
    let filters = rule.filters.iter().map(Filter::of_grpc).collect();
    finished(references, scope, matches, filters, backends.collect(), rule.name.as_deref(), |_| Default::default())
}

fn or_any(matches: Vec<RouteMatch>) -> Vec<RouteMatch> {
    if matches.is_empty() { vec![patterns::any()] } else { matches }
}

fn no_sessions(scope: &Scope<'_>, has_sessions: bool) {
    if has_sessions {
        let fix = "remove it: an instance's state is best kept in a store that all have";
        scope.field("sessionPersistence").problem("sessions are not kept at one instance", fix);
    }
}

type WrittenBackend<'a> = (Reference<'a>, u32, Vec<Filter<'a>>);

fn finished(
    references: &References<'_>,
    scope: &Scope<'_>,
    matches: Vec<RouteMatch>,
    written: Vec<Filter<'_>>,
    backend_refs: Vec<WrittenBackend<'_>>,
    name: Option<&str>,
    limits: impl FnOnce(&Scope<'_>) -> (RouteTimeouts, Option<RouteRetry>),
) -> RouteRule {
    let (timeouts, retry) = limits(scope);
    let list = scope.field("backendRefs");
    let backends = backend_refs.iter().enumerate().map(|(index, (reference, weight, written))| {
        let place = list.element(index);
        let (target, weight) = (references.target(&place, *reference), *weight);
        match filters::compiled(references, &place.field("filters"), written, &matches, Level::Backend) {
            Ok(filters) => Backend { target, weight, filters },
            Err(reason) => Backend { target: BackendTarget::Invalid(reason), weight, filters: Vec::new() },
        }
    });
    let mut backends: Vec<Backend> = backends.collect();
    // Requests that a filter would have handled get an error, and do not pass without it.
    let filters = match filters::compiled(references, &scope.field("filters"), &written, &matches, Level::Rule) {
        Ok(filters) => filters,
        Err(reason) => {
            backends = vec![Backend { target: BackendTarget::Invalid(reason), weight: 1, filters: Vec::new() }];
            Vec::new()
        }
    };
    let asks = |filter: &RouteFilter| matches!(filter, RouteFilter::Authorize(_));
    let asks_for_all = filters.iter().any(asks);
    for (index, backend) in backends.iter_mut().enumerate() {
        let called = backend.target.function().and_then(|id| references.functions.get_key_value(id));
        if let Some((id, _)) = called.filter(|(_, function)| function.as_received)
            && (asks_for_all || backend.filters.iter().any(asks))
        {
            // Its server could read another path than the authorizer does.
            let message = format!("`{id}` gets paths as they come, about which a route asks no authorizer");
            let fix = "use `externalAuthorization` of a Policy for it";
            backend.target = references.invalid(&list.element(index), "UnsupportedProtocol", message, fix);
        }
    }
    let redirects = filters.iter().any(|filter| matches!(filter, RouteFilter::Redirect(_)));
    if redirects && !backends.is_empty() {
        list.problem("a rule with a redirect sends nothing to back ends", "remove `backendRefs`");
    }
    RouteRule {
        name: name.unwrap_or_default().to_owned(),
        matches,
        filters,
        backends,
        timeouts,
        retry,
        faults: Vec::new(),
    }
}

fn http_match(scope: &Scope<'_>, written: &HTTPRouteMatch) -> Option<RouteMatch> {
    let place = scope.field("path");
    let (value, path) = (place.field("value"), &written.path.value);
    let path = match written.path.r#type {
        PathMatchType::Exact => patterns::exact(&value, path),
        PathMatchType::PathPrefix => patterns::prefix(&value, path),
        PathMatchType::RegularExpression => patterns::path_regex(&value, path),
    };
    let headers = written
        .headers
        .iter()
        .map(|it| (&*it.name, &*it.value, matches!(it.r#type, HeaderMatchType::RegularExpression)));
    let query = written
        .query_params
        .iter()
        .map(|it| (&*it.name, &*it.value, matches!(it.r#type, QueryParamMatchType::RegularExpression)));
    let headers = patterns::headers(&scope.field("headers"), headers);
    let query = patterns::query(&scope.field("queryParams"), query);
    Some(RouteMatch { path: path?, method: written.method.clone().unwrap_or_default(), headers, query })
}

fn grpc_match(scope: &Scope<'_>, written: &GRPCRouteMatch) -> Option<RouteMatch> {
    let place = scope.field("method");
    let method = written.method.as_ref();
    let name = method.and_then(|method| method.method.as_deref()).filter(|name| !name.is_empty());
    let service = method.and_then(|method| method.service.as_deref()).filter(|service| !service.is_empty());
    let path = match method.map(|method| method.r#type) {
        None | Some(GRPCMethodMatchType::Exact) => patterns::grpc(&place, service, name),
        Some(GRPCMethodMatchType::RegularExpression) => patterns::grpc_regex(&place, service, name),
    };
    let headers = written
        .headers
        .iter()
        .map(|it| (&*it.name, &*it.value, matches!(it.r#type, GRPCHeaderMatchType::RegularExpression)));
    let headers = patterns::headers(&scope.field("headers"), headers);
    Some(RouteMatch { path: path?, method: String::new(), headers, query: Vec::new() })
}

fn timeouts(scope: &Scope<'_>, written: &HTTPRouteTimeouts) -> RouteTimeouts {
    let limit = |field: &str, text: &Option<String>| text.as_deref().and_then(|text| span(&scope.field(field), text));
    RouteTimeouts {
        request: limit("request", &written.request),
        backend_request: limit("backendRequest", &written.backend_request),
    }
}

fn retry(scope: &Scope<'_>, written: &HTTPRouteRetry) -> RouteRetry {
    if let Some(attempts) = written.attempts.filter(|attempts| !(1..=MAX_ATTEMPTS).contains(attempts)) {
        scope.field("attempts").problem(format!("{attempts} attempts"), format!("expected 1 to {MAX_ATTEMPTS}"));
    }
    let backoff = written.backoff.as_deref().and_then(|text| span(&scope.field("backoff"), text));
    RouteRetry { codes: written.codes.clone(), attempts: written.attempts, backoff }
}

/// A duration, as GEP-2257 has it.
fn span(scope: &Scope<'_>, text: &str) -> Option<Duration> {
    let found = duration(text).filter(|found| *found <= LONGEST);
    if found.is_none() {
        scope.problem(format!("`{}` is too long", text.escape_debug()), "expected at most 24h");
    }
    found
}
