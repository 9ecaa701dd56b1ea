//! `HTTPRoute`.

use super::filter::{Filter, check_filters};
use super::route::{check_backends, check_matches, check_names, check_parents, check_session};
use crate::document_value::quoted;
use crate::duration::duration;
use crate::fault::{Faults, Path};
use crate::resource::{
    HTTPPathMatch, HTTPPathModifierType, HTTPRouteFilter, HTTPRouteFilterType, HTTPRouteRule, HTTPRouteSpec,
    HTTPRouteTimeouts, PATH, PathMatchType,
};

pub(super) fn check(spec: &HTTPRouteSpec, at: &Path<'_>, faults: &mut Faults) {
    check_parents(&spec.parent_refs, at, faults);
    let rules = at.field("rules");
    check_names(spec.rules.iter().map(|rule| rule.name.as_deref()), &rules, faults);
    check_matches(spec.rules.iter().map(|rule| rule.matches.len()), &rules, faults);
    for (index, rule) in spec.rules.iter().enumerate() {
        check_rule(rule, &rules.element(index), faults);
    }
}

fn check_rule(rule: &HTTPRouteRule, at: &Path<'_>, faults: &mut Faults) {
    let matches = at.field("matches");
    for (index, pattern) in rule.matches.iter().enumerate() {
        check_path(&pattern.path, &matches.element(index).field("path"), faults);
    }
    let filters = at.field("filters");
    check_filters(&rule.filters, &filters, faults);
    check_prefixes(rule, &rule.filters, &filters, faults);
    let redirects = |filter: &HTTPRouteFilter| filter.r#type == HTTPRouteFilterType::RequestRedirect;
    if let Some(index) = rule.filters.iter().position(redirects)
        && !rule.backend_refs.is_empty()
    {
        let message = "a redirect answers requests, so none goes to the `backendRefs`";
        faults.add(&filters.element(index), message, "remove one of the two");
    }
    check_backends(&rule.backend_refs, at, faults);
    let backends = at.field("backendRefs");
    for (index, backend) in rule.backend_refs.iter().enumerate() {
        let backend_path = backends.element(index);
        let path = backend_path.field("filters");
        check_filters(&backend.filters, &path, faults);
        check_prefixes(rule, &backend.filters, &path, faults);
    }
    if let Some(timeouts) = &rule.timeouts {
        check_timeouts(timeouts, &at.field("timeouts"), faults);
    }
    check_session(rule.session_persistence.as_ref(), at, faults);
}

/// A regular expression is checked where it is compiled.
fn check_path(path: &HTTPPathMatch, at: &Path<'_>, faults: &mut Faults) {
    if path.r#type == PathMatchType::RegularExpression {
        return;
    }
    let (value, at) = (&*path.value, at.field("value"));
    if !value.starts_with('/') {
        let fix = format!("write {}", quoted(&format!("/{value}")));
        return faults.add(&at, format!("{} does not begin with `/`", quoted(value)), fix);
    }
    // Requests have normal paths, so no request would match.
    let found = ["//", "/./", "/../", "%2f", "%2F", "#"].into_iter().find(|part| value.contains(part));
    if let Some(part) = found.or_else(|| ["/..", "/."].into_iter().find(|part| value.ends_with(part))) {
        let message = format!("{} has `{part}`, which no path of a request has", quoted(value));
        return faults.add(&at, message, "write the path in its normal form");
    }
    if !PATH.matches(value) {
        let message = format!("{} has characters that no path has", quoted(value));
        faults.add(&at, message, "write them as %XX; a query belongs to `queryParams`");
    }
}

/// A prefix can only be replaced in requests that match it.
fn check_prefixes(rule: &HTTPRouteRule, filters: &[HTTPRouteFilter], at: &Path<'_>, faults: &mut Faults) {
    if matches!(&rule.matches[..], [only] if only.path.r#type == PathMatchType::PathPrefix) {
        return;
    }
    for (index, filter) in filters.iter().enumerate() {
        for (field, path) in filter.paths() {
            if path.is_some_and(|path| path.r#type == HTTPPathModifierType::ReplacePrefixMatch) {
                let filter = at.element(index);
                let modifier = filter.field(field);
                let path = modifier.field("path");
                let message = "the prefix can be replaced only in a rule with exactly one match, a `PathPrefix`";
                faults.add(&path, message, "divide the rule, or write `type: ReplaceFullPath`");
            }
        }
    }
}

/// Without a limit on the request, any limit on an attempt is shorter.
fn check_timeouts(timeouts: &HTTPRouteTimeouts, at: &Path<'_>, faults: &mut Faults) {
    let HTTPRouteTimeouts { request: Some(request), backend_request: Some(attempt) } = timeouts else { return };
    let (whole, part) = (duration(request).unwrap_or_default(), duration(attempt).unwrap_or_default());
    if !whole.is_zero() && part > whole {
        let message = format!("{attempt} is longer than the {request} of the whole request");
        faults.add(&at.field("backendRequest"), message, format!("expected at most {request}"));
    }
}
