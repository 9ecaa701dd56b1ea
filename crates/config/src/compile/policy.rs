//! A Policy document.

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
    let mut seen: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for placed in policies {
        let metadata = &placed.document.metadata;
        let root = placed.scope(problems);
        let scope = root.field("metadata");
        let scope = scope.field("name");
        match seen.get(&(&metadata.namespace, &metadata.name)) {
            Some(first) => {
                let message = format!(
                    "there is another policy `{}` in namespace `{}`, in {first}",
                    metadata.name, metadata.namespace
                );
                scope.problem(message, "give each its own name");
            }
            None => {
                seen.insert((&metadata.namespace, &metadata.name), scope.line());
            }
        }
    }
}

pub(super) fn policy(context: &Context<'_>, root: &Scope<'_>, document: &document::Policy) -> Policy {
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
