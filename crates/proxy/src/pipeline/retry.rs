//! Decides about retries (policy 8): which outcomes deserve another attempt, and when.
//!
//! A request is retried only if its body can be sent again from the beginning. Once any byte may
//! have reached the upstream, the method must also be idempotent (RFC 9110, 9.2.2), unless the plan
//! says that this does not matter.

use http::Method;
use leno_http::failure::Failure;
use leno_http::outcome;
use leno_policy::spec::{Retry, RetryOn};
use std::time::Duration;
use tokio::time::Instant;

/// Whether RFC 9110, 9.2.2 calls the method idempotent.
pub(super) fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE | Method::OPTIONS | Method::TRACE)
}

/// The deadline of the attempt that begins now, and the time limit behind it: per try or of the
/// whole exchange, whichever ends sooner.
pub(super) fn attempt_deadline(retry: &Retry, deadline: Option<(Instant, Duration)>) -> Option<(Instant, Duration)> {
    let per_try = match retry.per_try_timeout_ms {
        0 => None,
        ms => Some((Instant::now() + Duration::from_millis(ms), Duration::from_millis(ms))),
    };
    [per_try, deadline].into_iter().flatten().min()
}

/// Backoff before the next attempt: uniform in `[0, base * 2^attempt]`, where the upper end is at
/// most the longest backoff.
pub(super) fn pause(retry: &Retry, attempt: u8, up_to: impl Fn(u64) -> u64) -> Duration {
    let most = retry.backoff_base_ms.saturating_mul(1 << attempt.min(32)).min(retry.backoff_max_ms);
    Duration::from_micros(up_to(most.saturating_mul(1000)))
}

/// How an attempt ended: with a response's status and that of its gRPC call, or with a failure.
pub(super) type Outcome<'a> = Result<(u16, Option<u8>), &'a Failure>;

/// Whether the plan wants another attempt after this outcome. `repeatable`: the request may be
/// carried out twice.
pub(super) fn is_worth_it(retry: &Retry, outcome: Outcome<'_>, repeatable: bool) -> bool {
    match outcome {
        Ok((status, grpc)) => repeatable && on_response(retry, status, grpc),
        Err(failure) => on_failure(retry, failure) && (repeatable || is_unsent(failure)),
    }
}

/// Whether nothing reached the callee, or the callee reports that it did nothing.
fn is_unsent(failure: &Failure) -> bool {
    matches!(failure, Failure::Connect { .. } | Failure::Reset { refused: true, .. })
}

fn on_failure(retry: &Retry, failure: &Failure) -> bool {
    let own = match failure {
        Failure::Connect { .. } => [RetryOn::ConnectFailure, RetryOn::Reset],
        Failure::Reset { refused: true, .. } => [RetryOn::RefusedStream, RetryOn::Reset],
        Failure::Reset { .. } => [RetryOn::Reset, RetryOn::Reset],
        Failure::Timeout(_) => [RetryOn::Timeout, RetryOn::Timeout],
        _ => return false,
    };
    // The client sees each of these as a 502, 503 or 504.
    retry.on.iter().any(|on| own.contains(on) || matches!(on, RetryOn::ServerError | RetryOn::GatewayError))
}

/// Whether responses matter, and not only failures.
pub(super) fn looks_at_responses(retry: &Retry) -> bool {
    let looks = |on: &RetryOn| matches!(on, RetryOn::ServerError | RetryOn::GatewayError | RetryOn::Grpc(_));
    retry.on.iter().any(looks)
}

fn on_response(retry: &Retry, status: u16, grpc: Option<u8>) -> bool {
    let same = outcome::status(status, grpc);
    retry.on.iter().any(|on| match on {
        RetryOn::ServerError => (500..=599).contains(&same),
        RetryOn::GatewayError => (502..=504).contains(&same),
        RetryOn::Status(wanted) => status == *wanted,
        RetryOn::Grpc(wanted) => grpc == Some(*wanted),
        RetryOn::ConnectFailure | RetryOn::RefusedStream | RetryOn::Reset | RetryOn::Timeout => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: fn(&[RetryOn]) -> Retry = |on| Retry {
        name: String::new(),
        attempts: 2,
        per_try_timeout_ms: 0,
        backoff_base_ms: 25,
        backoff_max_ms: 60,
        on: on.to_vec(),
        non_idempotent: false,
        budget_percent: 20,
        budget_min: 3,
    };

    fn connect() -> Failure {
        Failure::Connect { cause: String::new() }
    }

    fn reset(refused: bool) -> Failure {
        Failure::Reset { cause: String::new(), refused }
    }

    #[test]
    fn conditions_on_failures() {
        let yes = |on: &[RetryOn], failure: Failure| on_failure(&RETRY(on), &failure);
        assert!(yes(&[RetryOn::ConnectFailure], connect()));
        assert!(!yes(&[RetryOn::ConnectFailure], reset(false)));
        assert!(yes(&[RetryOn::Reset], reset(false)));
        assert!(yes(&[RetryOn::RefusedStream], reset(true)));
        assert!(!yes(&[RetryOn::RefusedStream], reset(false)));
        assert!(yes(&[RetryOn::Timeout], Failure::Timeout(Duration::ZERO)));
        assert!(!yes(&[RetryOn::Status(503)], connect()));
        assert!(yes(&[RetryOn::ServerError], connect()));
        assert!(!yes(&[RetryOn::ServerError, RetryOn::Reset], Failure::Overflow));
        assert!(!yes(&[RetryOn::ServerError, RetryOn::Reset], Failure::ClientGone));
    }

    #[test]
    fn what_was_sent_is_repeated_only_if_it_may_be() {
        let worth =
            |failure: Failure, repeatable| is_worth_it(&RETRY(&[RetryOn::ServerError]), Err(&failure), repeatable);
        assert!(worth(connect(), false));
        assert!(worth(reset(true), false));
        assert!(!worth(reset(false), false));
        assert!(worth(reset(false), true));
        assert!(!worth(Failure::Timeout(Duration::ZERO), false));
        assert!(is_idempotent(&Method::PUT) && !is_idempotent(&Method::POST) && !is_idempotent(&Method::PATCH));
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let most = |attempt| pause(&RETRY(&[]), attempt, |max| max);
        assert_eq!([0, 1, 2, 200].map(most), [25, 50, 60, 60].map(Duration::from_millis));
        assert_eq!(pause(&RETRY(&[]), 1, |_| 0), Duration::ZERO);
    }
}
