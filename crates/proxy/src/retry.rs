//! Policy 8, carried out: tries again what the plan allows and what is safe to repeat.
//!
//! A request is repeated only if its body can be sent again from the beginning, and, once any byte may have reached the upstream, only if its
//! method is idempotent (RFC 9110, 9.2.2) or the plan says that it does not matter.

use crate::body::{Body, grpc_status};
use crate::failure::Failure;
use crate::replay::Replayable;
use crate::upstream::{Forward, Reply};
use http::{Method, Request, request};
use leno_policy::spec::{Retry, RetryOn};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Tries as often as `retry` allows, all together within `deadline`.
pub async fn forward(
    forward: &Forward<'_>,
    retry: &Retry,
    head: request::Parts,
    body: Body,
    deadline: Option<(Instant, Duration)>,
) -> Result<Reply, Failure> {
    let repeatable = retry.non_idempotent || is_idempotent(&head.method);
    let mut head = Some(head);
    let body = (!body.is_over()).then(|| Replayable::new(body));
    let mut tried: Vec<SocketAddr> = Vec::new();
    let mut budget = None;
    for attempt in 0..=retry.attempts {
        let last = attempt == retry.attempts;
        let head_again = if last { head.take() } else { head.as_ref().map(copy) };
        let body_again = body.as_ref().map_or(Some(Body::empty()), Replayable::another);
        let (Some(head_again), Some(body_again)) = (head_again, body_again) else { break };
        let limit = sooner(retry, deadline);
        let once = forward.attempt(head_again, body_again, &tried);
        let result = match limit {
            Some((at, limit)) => tokio::time::timeout_at(at, once).await.unwrap_or(Err(Failure::Timeout(limit))),
            None => once.await,
        };
        let result = forward.note(result);
        drop(budget.take());
        let again = !last
            && is_worth_it(retry, &result, repeatable)
            && body.as_ref().is_none_or(Replayable::is_possible)
            && deadline.is_none_or(|(at, _)| Instant::now() < at);
        if !again {
            return result;
        }
        budget = forward.ruling.target.retry(retry.budget_percent, retry.budget_min);
        if budget.is_none() {
            return result;
        }
        tried.extend(forward.endpoint.get());
        let pause = pause(retry, attempt, |max| forward.exchange.worker.random.up_to(max));
        if deadline.is_some_and(|(at, _)| Instant::now() + pause >= at) {
            return result;
        }
        if let Ok(mut reply) = result {
            // To those behind us it is answered; nobody broke it off.
            drop(reply.response.body_mut().detach());
        }
        tokio::time::sleep(pause).await;
    }
    // The body could not be had again between two looks at it; nothing else ends the loop.
    Err(Failure::ClientGone)
}

/// RFC 9110, 9.2.2.
pub fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE | Method::OPTIONS | Method::TRACE)
}

/// The end of the present try.
fn sooner(retry: &Retry, deadline: Option<(Instant, Duration)>) -> Option<(Instant, Duration)> {
    let per_try = match retry.per_try_timeout_ms {
        0 => None,
        ms => Some((Instant::now() + Duration::from_millis(ms), Duration::from_millis(ms))),
    };
    [per_try, deadline].into_iter().flatten().min()
}

/// Uniform in `[0, base * 2^n]`, at most the longest pause.
fn pause(retry: &Retry, attempt: u8, up_to: impl Fn(u64) -> u64) -> Duration {
    let most = retry.backoff_base_ms.saturating_mul(1 << attempt.min(32)).min(retry.backoff_max_ms);
    Duration::from_micros(up_to(most.saturating_mul(1000)))
}

fn is_worth_it(retry: &Retry, result: &Result<Reply, Failure>, repeatable: bool) -> bool {
    let failure = match result {
        Ok(reply) => reply.failure(),
        Err(failure) => Some(failure),
    };
    match (failure, result) {
        (Some(failure), _) => on_failure(retry, failure) && (repeatable || is_unsent(failure)),
        (None, Ok(reply)) => repeatable && on_response(retry, reply),
        (None, Err(_)) => false,
    }
}

/// Nothing reached the callee, or it says that it did nothing.
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
    // To its client each of these is a 502, 503 or 504.
    retry.on.iter().any(|on| own.contains(on) || matches!(on, RetryOn::ServerError | RetryOn::GatewayError))
}

fn on_response(retry: &Retry, reply: &Reply) -> bool {
    let status = reply.response.status().as_u16();
    retry.on.iter().any(|on| match on {
        RetryOn::ServerError => (500..=599).contains(&status),
        RetryOn::GatewayError => (502..=504).contains(&status),
        RetryOn::Status(wanted) => status == *wanted,
        RetryOn::Grpc(wanted) => grpc_status(reply.response.headers()) == Some(*wanted),
        RetryOn::ConnectFailure | RetryOn::RefusedStream | RetryOn::Reset | RetryOn::Timeout => false,
    })
}

fn copy(head: &request::Parts) -> request::Parts {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method = head.method.clone();
    copy.uri = head.uri.clone();
    copy.version = head.version;
    copy.headers = head.headers.clone();
    copy
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
            |failure: Failure, repeatable| is_worth_it(&RETRY(&[RetryOn::ServerError]), &Err(failure), repeatable);
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
