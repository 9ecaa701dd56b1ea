//! `spec.retry` and `spec.circuitBreaker`.

use super::fields::{self, DAY, MILLISECOND};
use crate::document::{CircuitBreaker, OutlierDetection, Retry};
use crate::nearest::did_you_mean;
use crate::problem::Scope;
use leno_policy::spec::{self, RetryOn};

/// gRPC status codes other than OK, by number.
const GRPC: [&str; 16] = [
    "cancelled",
    "unknown",
    "invalid-argument",
    "deadline-exceeded",
    "not-found",
    "already-exists",
    "permission-denied",
    "resource-exhausted",
    "failed-precondition",
    "aborted",
    "out-of-range",
    "unimplemented",
    "internal",
    "unavailable",
    "data-loss",
    "unauthenticated",
];

/// Conditions with their own names.
const NAMED: [(&str, RetryOn); 6] = [
    ("connect-failure", RetryOn::ConnectFailure),
    ("refused-stream", RetryOn::RefusedStream),
    ("reset", RetryOn::Reset),
    ("timeout", RetryOn::Timeout),
    ("5xx", RetryOn::ServerError),
    ("gateway-error", RetryOn::GatewayError),
];

/// A condition as documents name it.
pub fn retry_condition(on: RetryOn) -> String {
    let named = NAMED.iter().find(|(_, other)| *other == on).map(|(name, _)| *name);
    match on {
        RetryOn::Status(status) => status.to_string(),
        RetryOn::Grpc(code) => GRPC.get(usize::from(code).wrapping_sub(1)).copied().unwrap_or_default().to_owned(),
        _ => named.unwrap_or_default().to_owned(),
    }
}

pub(super) fn retry(scope: &Scope<'_>, policy: &str, retry: &Retry) -> spec::Retry {
    if !(1..=10).contains(&retry.attempts) {
        let fix = if retry.attempts == 0 { "remove `retry` to have no retries" } else { "expected 1 to 10" };
        scope.field("attempts").problem(format!("{} attempts", retry.attempts), fix);
    }
    let backoff = scope.field("backoff");
    let base = fields::millis(&backoff.field("base"), retry.backoff.base, MILLISECOND, DAY);
    let max = fields::millis(&backoff.field("max"), retry.backoff.max, MILLISECOND, DAY);
    if max < base {
        backoff.field("max").problem(
            format!("{} is less than the base, {}", retry.backoff.max, retry.backoff.base),
            "expected at least the base",
        );
    }
    if retry.budget.percent > 100 {
        scope
            .field("budget")
            .field("percent")
            .problem(format!("{} percent", retry.budget.percent), "expected 0 to 100");
    }
    let per_try =
        retry.per_try_timeout.map(|timeout| fields::millis(&scope.field("perTryTimeout"), timeout, MILLISECOND, DAY));
    let list = scope.field(if scope.has("on") { "on" } else { "retryOn" });
    fields::not_empty(&list, &retry.retry_on, "connect-failure, refused-stream, unavailable and cancelled");
    spec::Retry {
        name: format!("{policy}/retry"),
        attempts: retry.attempts,
        per_try_timeout_ms: per_try.unwrap_or(0),
        backoff_base_ms: base,
        backoff_max_ms: max,
        on: retry
            .retry_on
            .iter()
            .enumerate()
            .filter_map(|(index, text)| retry_on(&list.element(index), text))
            .collect(),
        non_idempotent: retry.non_idempotent,
        budget_percent: retry.budget.percent,
        budget_min: retry.budget.min,
    }
}

fn retry_on(scope: &Scope<'_>, text: &str) -> Option<RetryOn> {
    if let Some((_, on)) = NAMED.iter().find(|(name, _)| *name == text) {
        return Some(*on);
    }
    if let Some(index) = GRPC.iter().position(|name| *name == text) {
        return u8::try_from(index + 1).ok().map(RetryOn::Grpc);
    }
    let status = (text.len() == 3).then(|| text.parse::<u16>().ok()).flatten();
    match status {
        Some(status @ 400..=599) => Some(RetryOn::Status(status)),
        Some(_) => {
            scope.problem(format!("a response with status {text} is no failure"), "expected a status from 400 to 599");
            None
        }
        None => {
            let known = NAMED.iter().map(|(name, _)| *name).chain(GRPC);
            let fix = Some(did_you_mean(text, known)).filter(|fix| !fix.is_empty());
            let fix = fix.unwrap_or_else(|| "expected connect-failure, refused-stream, reset, timeout, 5xx, gateway-error, a status or a gRPC status".to_owned());
            scope.problem(format!("`{}` is nothing that can be retried", text.escape_debug()), fix);
            None
        }
    }
}

pub(super) fn breaker(scope: &Scope<'_>, policy: &str, breaker: &CircuitBreaker) -> spec::Breaker {
    let limit = |name: &str, limit: Option<u32>| {
        if limit == Some(0) {
            scope
                .field(name)
                .problem("0 would refuse all requests", "expected at least 1, or remove the field to have no limit");
        }
        limit.unwrap_or(u32::MAX)
    };
    if *breaker == CircuitBreaker::default() {
        scope.problem("the section sets nothing", "set a limit or `outlierDetection`, or remove the section");
    }
    spec::Breaker {
        name: format!("{policy}/circuitBreaker"),
        max_connections: limit("maxConnections", breaker.max_connections),
        max_pending: limit("maxPendingRequests", breaker.max_pending_requests),
        max_requests: limit("maxRequests", breaker.max_requests),
        outlier: breaker.outlier_detection.map(|detection| outlier(&scope.field("outlierDetection"), detection)),
    }
}

fn outlier(scope: &Scope<'_>, detection: OutlierDetection) -> spec::Outlier {
    if detection.consecutive_5xx == 0 && detection.consecutive_gateway_errors == 0 {
        scope.problem(
            "nothing is detected",
            "set `consecutive5xx` or `consecutiveGatewayErrors`, or remove `outlierDetection`",
        );
    }
    if detection.max_ejection_percent > 100 {
        scope
            .field("maxEjectionPercent")
            .problem(format!("{} percent", detection.max_ejection_percent), "expected 0 to 100");
    }
    spec::Outlier {
        consecutive_5xx: detection.consecutive_5xx,
        consecutive_gateway: detection.consecutive_gateway_errors,
        interval_ms: fields::millis(&scope.field("interval"), detection.interval, MILLISECOND, DAY),
        base_ejection_ms: fields::millis(&scope.field("baseEjection"), detection.base_ejection, MILLISECOND, DAY),
        max_ejection_percent: detection.max_ejection_percent,
    }
}
