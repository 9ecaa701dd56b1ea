//! `GRPCRoute`.

use super::filter::check_filters;
use super::route::{check_backends, check_matches, check_names, check_parents, check_session};
use crate::document_value::quoted;
use crate::fault::{Faults, Path};
use crate::resource::{GRPCMethodMatch, GRPCMethodMatchType, GRPCRouteRule, GRPCRouteSpec};

pub(super) fn check(spec: &GRPCRouteSpec, at: &Path<'_>, faults: &mut Faults) {
    check_parents(&spec.parent_refs, at, faults);
    let rules = at.field("rules");
    check_names(spec.rules.iter().map(|rule| rule.name.as_deref()), &rules, faults);
    check_matches(spec.rules.iter().map(|rule| rule.matches.len()), &rules, faults);
    for (index, rule) in spec.rules.iter().enumerate() {
        check_rule(rule, &rules.element(index), faults);
    }
}

fn check_rule(rule: &GRPCRouteRule, at: &Path<'_>, faults: &mut Faults) {
    let matches = at.field("matches");
    for (index, pattern) in rule.matches.iter().enumerate() {
        if let Some(method) = &pattern.method {
            check_method(method, &matches.element(index).field("method"), faults);
        }
    }
    check_filters(&rule.filters, &at.field("filters"), faults);
    check_backends(&rule.backend_refs, at, faults);
    let backends = at.field("backendRefs");
    for (index, backend) in rule.backend_refs.iter().enumerate() {
        check_filters(&backend.filters, &backends.element(index).field("filters"), faults);
    }
    check_session(rule.session_persistence.as_ref(), at, faults);
}

fn check_method(method: &GRPCMethodMatch, at: &Path<'_>, faults: &mut Faults) {
    if method.service.is_none() && method.method.is_none() {
        return faults.add(at, "neither a service nor a method is named", "add `service` or `method`, or remove this");
    }
    // A regular expression is checked where it is compiled.
    if method.r#type == GRPCMethodMatchType::RegularExpression {
        return;
    }
    // Published schemas accept a dot before the name.
    let is_service = |text: &str| text.strip_prefix('.').unwrap_or(text).split('.').all(is_identifier);
    if let Some(service) = method.service.as_deref().filter(|text| !is_service(text)) {
        let message = format!("{} is no service of gRPC", quoted(service));
        faults.add(&at.field("service"), message, "expected a name such as `shop.v1.Cart`");
    }
    if let Some(name) = method.method.as_deref().filter(|text| !is_identifier(text)) {
        let message = format!("{} is no method of gRPC", quoted(name));
        faults.add(&at.field("method"), message, "expected a name such as `AddItem`");
    }
}

fn is_identifier(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(is_inner) && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}
