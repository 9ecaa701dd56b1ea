//! `spec.rateLimits`.

use super::fields::{self, DAY, MILLISECOND};
use super::header::{self, Use};
use crate::document::{Algorithm, Counts, KeyPart, RateLimit};
use crate::problem::Scope;
use leno_policy::spec;

pub(super) fn rate_limits(list: &Scope<'_>, policy: &str, limits: &[RateLimit]) -> Vec<spec::RateLimit> {
    fields::unique_names(list, limits.iter().map(|limit| limit.name.as_deref()));
    limits.iter().enumerate().map(|(index, one)| rate_limit(&list.element(index), policy, one, index)).collect()
}

fn rate_limit(scope: &Scope<'_>, policy: &str, limit: &RateLimit, index: usize) -> spec::RateLimit {
    if limit.requests == 0 {
        scope
            .field("requests")
            .problem("0 requests would refuse all", "expected at least 1; to refuse requests, use `authorization`");
    }
    let period_ms = fields::millis(&scope.field("per"), limit.per, MILLISECOND, DAY);
    let requests = limit.requests;
    let algorithm = match (limit.algorithm, limit.burst) {
        (Algorithm::TokenBucket, burst) => {
            spec::QuotaAlgorithm::TokenBucket { requests, period_ms, burst: burst.unwrap_or(requests) }
        }
        (Algorithm::FixedWindow, None) => spec::QuotaAlgorithm::FixedWindow { requests, period_ms },
        (Algorithm::FixedWindow, Some(_)) => {
            scope.field("burst").problem("a fixed window has no burst", "remove it, or use `algorithm: tokenBucket`");
            spec::QuotaAlgorithm::FixedWindow { requests, period_ms }
        }
    };
    if limit.burst == Some(0) {
        scope.field("burst").problem("a burst of 0 would refuse all requests", "expected at least 1");
    }
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
    spec::RateLimit {
        counts,
        name: fields::rule_name(scope, policy, "rateLimits", limit.name.as_deref(), index),
        only: limit.r#match.as_ref().map(|operation| super::authorization::operation(&scope.field("match"), operation)),
        key: key(&scope.field("key"), &limit.key),
        algorithm,
    }
}

fn key(list: &Scope<'_>, parts: &[KeyPart]) -> Vec<spec::KeyPart> {
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
