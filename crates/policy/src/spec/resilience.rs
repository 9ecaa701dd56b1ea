//! Policies 8 and 9: timeouts, retries, circuit breakers and outlier detection.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// One destination to which a request may be forwarded, with policies 8 and 9 for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// `namespace/name` of the callee.
    pub function: String,
    /// Total time for the exchange, all tries together; 0: none.
    pub timeout_ms: u64,
    /// Policy 8; `None`: one try.
    pub retry: Option<Retry>,
    /// Policy 9; `None`: no limits.
    pub breaker: Option<Breaker>,
    /// It gets paths as received, and a request is allowed only if each reading of its path is
    /// allowed ([`crate::path::Readings`]). Otherwise it gets normalised paths.
    pub as_received: bool,
}

/// Policy 8, semantics of Istio's `retries` and Envoy's retry budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    /// Rule name for verdicts and logs.
    pub name: String,
    /// Tries after the first.
    pub attempts: u8,
    /// Per try; 0: only the total timeout.
    pub per_try_timeout_ms: u64,
    /// First pause; doubles each time, full jitter (the pause is uniform in `[0, this * 2^n]`).
    pub backoff_base_ms: u64,
    /// Longest pause.
    pub backoff_max_ms: u64,
    /// The conditions under which a try is repeated.
    pub on: Vec<RetryOn>,
    /// Also repeat requests with a method that is not idempotent (RFC 9110, 9.2.2) after bytes were sent.
    pub non_idempotent: bool,
    /// Retries in flight may be at most this percentage of requests in flight to the target.
    pub budget_percent: u8,
    /// This many retries are always allowed.
    pub budget_min: u32,
}

/// A condition under which a try is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetryOn {
    /// No connection could be made; nothing was sent, safe for every method.
    ConnectFailure,
    /// The peer signals that it did not process the request (HTTP/2 REFUSED_STREAM, GOAWAY below
    /// the stream); safe for every method.
    RefusedStream,
    /// The connection broke before a response.
    Reset,
    /// The per-try timeout passed.
    Timeout,
    /// Any 5xx.
    ServerError,
    /// 502, 503 or 504.
    GatewayError,
    /// This status.
    Status(u16),
    /// This gRPC status, in the response's headers ("trailers-only").
    Grpc(u8),
}

/// Policy 9: limits on the load of a target, and ejection of failing endpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Breaker {
    /// Rule name for verdicts.
    pub name: String,
    /// Connections to the target.
    pub max_connections: u32,
    /// Requests waiting for a connection or an instance.
    pub max_pending: u32,
    /// Requests in flight.
    pub max_requests: u32,
    /// Ejection of failing endpoints.
    pub outlier: Option<Outlier>,
}

/// Semantics of Istio's `outlierDetection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlier {
    /// Consecutive 5xx responses (or local failures) that eject; 0: off.
    pub consecutive_5xx: u32,
    /// Consecutive 502, 503, 504 (or local failures) that eject; 0: off.
    pub consecutive_gateway: u32,
    /// How often ejections are reviewed.
    pub interval_ms: u64,
    /// An endpoint is out for this long times the number of times it was ejected.
    pub base_ejection_ms: u64,
    /// At most this share of the endpoints is out (one always may be).
    pub max_ejection_percent: u8,
}
