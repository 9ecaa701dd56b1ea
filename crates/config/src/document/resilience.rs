//! `spec.retry` and `spec.circuitBreaker` of a policy.

use crate::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which failed calls are tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// Tries after the first, 1 to 10.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u8,
    /// Longest time for one try. Without it: only the time for all of them counts.
    pub per_try_timeout: Option<Duration>,
    /// Pauses before tries. They are random, so that callers do not try all at once.
    pub backoff: Backoff,
    /// Failures after which the request is tried again: `connect-failure` (no connection),
    /// `refused-stream` (the callee says that it did nothing), `reset` (the connection broke before
    /// a response), `timeout` (of one try), `5xx`, `gateway-error` (502, 503, 504), a status
    /// (`429`), or a gRPC status (`unavailable`). `5xx` and `gateway-error` also stand for gRPC
    /// statuses that say the same. A call is not tried again after its first message, or when its
    /// trailers come later than 20 ms after its head. The former name `on`, which tools for YAML 1.1
    /// take for a boolean, stays valid.
    #[serde(alias = "on")]
    pub retry_on: Vec<String>,
    /// Also repeat methods that are not idempotent (`POST`, `PATCH`) after bytes were sent.
    pub non_idempotent: bool,
    /// Keeps retries from making an overload worse.
    pub budget: RetryBudget,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 2,
            per_try_timeout: None,
            backoff: Backoff::default(),
            retry_on: ["connect-failure", "refused-stream", "unavailable", "cancelled"].map(str::to_owned).to_vec(),
            non_idempotent: false,
            budget: RetryBudget::default(),
        }
    }
}

/// Pauses before tries: random, up to `base` before the first retry, up to twice as much before
/// each further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// Longest pause before the first retry.
    pub base: Duration,
    /// Longest pause of all.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(25), max: Duration::from_millis(250) }
    }
}

/// How many retries may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Retries may be at most this percentage of the requests under way to the function.
    #[schemars(range(max = 100))]
    pub percent: u8,
    /// So many retries may be under way whatever the percentage.
    pub min: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { percent: 20, min: 3 }
    }
}

/// Limits on the open work of a function. The node refuses more (503).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// Connections. Without it: no limit.
    #[schemars(range(min = 1))]
    pub max_connections: Option<u32>,
    /// Requests that wait for a connection or an instance. Without it: no limit.
    #[schemars(range(min = 1))]
    pub max_pending_requests: Option<u32>,
    /// Requests under way. Without it: no limit.
    #[schemars(range(min = 1))]
    pub max_requests: Option<u32>,
    /// When a failing instance gets a pause. Without it: never.
    pub outlier_detection: Option<OutlierDetection>,
}

/// When a failing instance gets a pause. A gRPC call counts as the HTTP status that says the same
/// as its own, wherever that stands: UNAVAILABLE as 503, DEADLINE_EXCEEDED as 504, UNIMPLEMENTED as
/// 501; UNKNOWN, INTERNAL and DATA_LOSS as 500. All others are answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutlierDetection {
    /// After so many 5xx responses, gRPC statuses that say the same, or failed connections in a
    /// row; 0: not for that.
    #[serde(rename = "consecutive5xx")]
    pub consecutive_5xx: u32,
    /// After so many 502, 503, 504 responses, gRPC statuses that say the same, or failed
    /// connections in a row; 0: not for that.
    pub consecutive_gateway_errors: u32,
    /// How often pauses are reviewed.
    pub interval: Duration,
    /// Length of the first pause; the second is twice as long, the third three times.
    pub base_ejection: Duration,
    /// At most this share of the instances may pause at once; one always may.
    #[schemars(range(max = 100))]
    pub max_ejection_percent: u8,
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self {
            consecutive_5xx: 5,
            consecutive_gateway_errors: 0,
            interval: Duration::from_secs(10),
            base_ejection: Duration::from_secs(30),
            max_ejection_percent: 10,
        }
    }
}
