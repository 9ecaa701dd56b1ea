//! `spec.rateLimits`.

use super::fields::{self, DAY, MILLISECOND};
use super::header::{self, Use};
use super::{Context, authorization};
use crate::document::{Algorithm, Counts, KeyPart, Mode, RateLimit, RateLimitOverride};
use crate::duration::Duration;
use crate::problem::Scope;
use leno_policy::spec;

/// Each override becomes a separate limit, before the limit that it overrides.
pub(super) fn rate_limits(
    context: &Context<'_>,
    list: &Scope<'_>,
    policy: (&str, &str),
    limits: &[RateLimit],
) -> Vec<spec::RateLimit> {
    fields::unique_names(list, limits.iter().map(|limit| limit.name.as_deref()));
    let compile = |(index, one)| rate_limit(context, &list.element(index), policy, one, index);
    limits.iter().enumerate().flat_map(compile).collect()
}

fn rate_limit(
    context: &Context<'_>,
    scope: &Scope<'_>,
    (namespace, policy): (&str, &str),
    limit: &RateLimit,
    index: usize,
) -> Vec<spec::RateLimit> {
    let counts = match limit.counts {
        Counts::Requests => spec::Counts::Requests,
        Counts::AuthenticationFailures => spec::Counts::AuthenticationFailures,
    };
    if let Some(index) = limit.key.iter().position(|part| matches!(part, KeyPart::Claim(_)))
        && limit.counts == Counts::AuthenticationFailures
    {
        scope.field("key").element(index).problem(
            "a token that is refused has no claims to tell counters apart by",
            "use `address` or `identity`, or count `requests`",
        );
    }
    let match_ = scope.field("match");
    let mut base = spec::RateLimit {
        counts,
        name: fields::rule_name(scope, policy, "rateLimits", limit.name.as_deref(), index),
        only: limit.r#match.as_ref().map(|operation| authorization::operation(&match_, operation)),
        from: Vec::new(),
        except: Vec::new(),
        audit: limit.mode == Mode::Audit,
        key: key(&scope.field("key"), &limit.key),
        algorithm: algorithm(scope, limit.algorithm, limit.requests, limit.per, limit.burst),
    };
    let list = scope.field("overrides");
    fields::unique_names(&list, limit.overrides.iter().map(|other| other.name.as_deref()));
    let section = base.name.clone();
    let section = section.strip_prefix(policy).and_then(|name| name.strip_prefix('/')).unwrap_or_default();
    let mut limits = Vec::new();
    for (index, other) in limit.overrides.iter().enumerate() {
        let scope = list.element(index);
        let RateLimitOverride { name, from, requests, per, burst } = other;
        let sources = callers(context, &scope.field("from"), namespace, from, limit.counts);
        limits.push(spec::RateLimit {
            name: fields::rule_name(&scope, policy, section, name.as_deref(), index),
            from: sources.clone(),
            algorithm: algorithm(&scope, limit.algorithm, *requests, per.unwrap_or(limit.per), *burst),
            ..base.clone()
        });
        // A request that one limit counts is not counted by later ones.
        base.except.extend(sources);
    }
    limits.push(base);
    limits
}

fn callers(
    context: &Context<'_>,
    list: &Scope<'_>,
    namespace: &str,
    from: &[crate::document::Source],
    counts: Counts,
) -> Vec<spec::Source> {
    fields::not_empty(list, from, "nothing: it is required");
    let compile = |(index, one): (usize, &crate::document::Source)| {
        let scope = list.element(index);
        let users = one.request_principals.is_some() || !one.not_request_principals.is_empty();
        if users && counts == Counts::AuthenticationFailures {
            scope.problem(
                "of a request that authentication refuses no user is known",
                "use `identities` or `addresses`",
            );
        }
        authorization::source(context, &scope, namespace, one)
    };
    from.iter().enumerate().map(compile).collect()
}

fn algorithm(
    scope: &Scope<'_>,
    algorithm: Algorithm,
    requests: u32,
    per: Duration,
    burst: Option<u32>,
) -> spec::QuotaAlgorithm {
    if requests == 0 {
        scope
            .field("requests")
            .problem("0 requests would refuse all", "expected at least 1; to refuse requests, use `authorization`");
    }
    let period_ms = fields::millis(&scope.field("per"), per, MILLISECOND, DAY);
    if burst == Some(0) {
        scope.field("burst").problem("a burst of 0 would refuse all requests", "expected at least 1");
    }
    match (algorithm, burst) {
        (Algorithm::TokenBucket, burst) => {
            spec::QuotaAlgorithm::TokenBucket { requests, period_ms, burst: burst.unwrap_or(requests) }
        }
        (Algorithm::FixedWindow, None) => spec::QuotaAlgorithm::FixedWindow { requests, period_ms },
        (Algorithm::FixedWindow, Some(_)) => {
            scope.field("burst").problem("a fixed window has no burst", "remove it, or use `algorithm: tokenBucket`");
            spec::QuotaAlgorithm::FixedWindow { requests, period_ms }
        }
    }
}

pub(super) fn key(list: &Scope<'_>, parts: &[KeyPart]) -> Vec<spec::KeyPart> {
    let mut key = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let scope = list.element(index);
        let part = match part {
            KeyPart::Identity => spec::KeyPart::Identity,
            KeyPart::Path => spec::KeyPart::Path,
            KeyPart::Method => spec::KeyPart::Method,
            KeyPart::Address => spec::KeyPart::Address,
            KeyPart::Claim(claim) => spec::KeyPart::Claim(claim.0.clone()),
            KeyPart::Header(name) => match header::name(&scope.field("header"), name, Use::Read) {
                Some(name) => spec::KeyPart::Header(name),
                None => continue,
            },
        };
        if key.contains(&part) {
            scope.problem("this part of the key appears twice", "remove it");
        }
        key.push(part);
    }
    key
}
