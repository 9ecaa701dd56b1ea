//! A Policy document.

use super::cache::{Results, repeat};
use super::{
    Context, TypedDocument, authentication, authorization, authorizer, callee_rules, extension, faults, fields,
    observe, rate_limit, resilience, sidecar,
};
use crate::document::{self, Mode};
use crate::problem::{Problem, Scope};
use crate::snapshot::Policy;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Checks that names are unique in their namespace.
pub(super) fn names(policies: &[Arc<TypedDocument<document::Policy>>], problems: &RefCell<Vec<Problem>>) {
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let report = |placed: &TypedDocument<document::Policy>, report: &dyn Fn(&Scope<'_>)| {
        let root = placed.scope(problems);
        let metadata = root.field("metadata");
        report(&metadata.field("name"));
    };
    for (index, placed) in policies.iter().enumerate() {
        let document::Metadata { name, namespace, .. } = &placed.document.metadata;
        let first = *seen.entry((namespace, name)).or_insert(index);
        if first != index {
            report(&policies[first], &|first| {
                let first = first.line();
                let message = format!("there is another policy `{name}` in namespace `{namespace}`, in {first}");
                report(placed, &|scope| scope.problem(&message, "give each its own name"));
            });
        }
    }
}

/// The checked policy, if it is kept from the last compilation; otherwise checks it now.
pub(super) fn kept(
    context: &Context<'_>,
    placed: &Arc<TypedDocument<document::Policy>>,
    cache: &mut Results,
    problems: &RefCell<Vec<Problem>>,
) -> Arc<Policy> {
    // Each index needs its policy, so policies that come too late are replaced by an empty one.
    if context.effort.is_over() {
        return Arc::default();
    }
    if let Some((policy, doubts)) = cache.policy(placed) {
        repeat(context.doubts, doubts);
        return policy.clone();
    }
    context.begin_lookups();
    let (found, doubts) = (context.found(problems), context.doubts.borrow().len());
    let policy = Arc::new(policy(context, &placed.scope(problems), &placed.document));
    let now = context.found(problems);
    if now.0 == 0 && (found.2, found.3) == (now.2, now.3) {
        cache.keep_policy(placed, &policy, &context.doubts.borrow()[doubts..], context.lookups.take());
    }
    policy
}

fn policy(context: &Context<'_>, root: &Scope<'_>, document: &document::Policy) -> Policy {
    let metadata = root.field("metadata");
    let (namespace, name) = (document.metadata.namespace.as_str(), document.metadata.name.as_str());
    fields::label(&metadata.field("name"), name);
    fields::label(&metadata.field("namespace"), namespace);
    let spec = &document.spec;
    let scope = root.field("spec");
    let mut policy = Policy { namespace: namespace.to_owned(), name: name.to_owned(), ..Policy::default() };
    policy.audit = spec.mode == Mode::Audit || context.audited.iter().any(|audited| audited == namespace);
    policy.authorizes = spec.authorization.is_some();
    if let Some(section) = &spec.authentication {
        authentication::authentication(context, &scope.field("authentication"), section, &mut policy);
    }
    if let Some(section) = &spec.authorization {
        policy.authorization =
            authorization::authorization(context, &scope.field("authorization"), (namespace, name), section);
    }
    let limits = scope.field("rateLimits");
    policy.rate_limits = rate_limit::rate_limits(context, &limits, (namespace, name), &spec.rate_limits);
    let authorizers = scope.field("externalAuthorization");
    policy.authorizers =
        authorizer::authorizers(context, &authorizers, (namespace, name), &spec.external_authorization);
    policy.authorizers.iter_mut().for_each(|authorizer| authorizer.config.audit = policy.audit);
    policy.authorization.iter_mut().for_each(|rule| rule.audit |= policy.audit);
    policy.rate_limits.iter_mut().for_each(|limit| limit.audit |= policy.audit);
    policy.retry = spec.retry.as_ref().map(|section| resilience::retry(&scope.field("retry"), name, section));
    policy.breaker =
        spec.circuit_breaker.as_ref().map(|section| resilience::breaker(&scope.field("circuitBreaker"), name, section));
    policy.tracing = spec.tracing.as_ref().map(|section| observe::tracing(&scope.field("tracing"), name, section));
    policy.access_log =
        spec.access_log.as_ref().map(|section| observe::access_log(&scope.field("accessLog"), name, section));
    policy.sidecar = spec.sidecar.as_ref().map(|section| sidecar::sidecar(&scope.field("sidecar"), name, section));
    policy.callee_rules = spec.callee_rules.as_ref().map(|section| callee_rules::callee_rules(&scope, name, section));
    policy.extensions = extension::extensions(context, &scope.field("extensions"), name, &spec.extensions);
    policy.faults = faults::faults(context, &scope.field("faults"), name, &spec.faults);
    policy
}
