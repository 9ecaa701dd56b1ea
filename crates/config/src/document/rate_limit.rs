//! `spec.rateLimits` of a policy.

use super::authorization::{Mode, Operation, Source};
use super::claim::ClaimPath;
use crate::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A limit on requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Name of the limit in logs; its counters go by it. Without it: its index.
    #[serde(default)]
    pub name: Option<String>,
    /// How many requests may come in the time `per`.
    #[schemars(range(min = 1))]
    pub requests: u32,
    /// The time in which `requests` may come, one millisecond to one day.
    pub per: Duration,
    /// Token bucket: requests that may come at once after a pause. Without it: as many as
    /// `requests`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub burst: Option<u32>,
    /// How requests are counted.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Whether it is in force. An audited one counts requests, and refuses none.
    #[serde(default)]
    pub mode: Mode,
    /// Counted events.
    #[serde(default)]
    pub counts: Counts,
    /// Requests with equal values of all of these share a counter. Empty: all requests share one. A
    /// limit has up to 65,536 counters; when all are in use, further values share some of 4,096
    /// more (`leno_rate_limit_overflow_total`).
    #[serde(default)]
    pub key: Vec<KeyPart>,
    /// Which requests count. Without it: all.
    #[serde(default)]
    pub r#match: Option<Operation>,
    /// Other limits for some callers. The first that matches replaces this one, with separate
    /// counters; it has the same `algorithm`, `key` and `match`.
    #[serde(default)]
    pub overrides: Vec<RateLimitOverride>,
}

/// Another limit for some callers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimitOverride {
    /// Name of the override in logs, after that of the limit; its counters go by it. Without it:
    /// its index.
    #[serde(default)]
    pub name: Option<String>,
    /// The callers: one of these.
    pub from: Vec<Source>,
    /// How many requests may come in the time `per`.
    #[schemars(range(min = 1))]
    pub requests: u32,
    /// The time in which `requests` may come. Without it: the limit's.
    #[serde(default)]
    pub per: Option<Duration>,
    /// Token bucket: requests that may come at once after a pause. Without it: as many as
    /// `requests`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub burst: Option<u32>,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Algorithm {
    /// A bucket of `burst` requests that is refilled evenly.
    #[default]
    TokenBucket,
    /// Windows of length `per`, aligned to the Unix epoch.
    FixedWindow,
}

/// What a rate limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Counts {
    /// Requests that no other policy refuses.
    #[default]
    Requests,
    /// Requests that `authentication` refuses: with a bad token, or without one where one is
    /// required. As long as the limit has something left they get 401, then 429. Requests that
    /// authenticate pass, and are not counted.
    AuthenticationFailures,
}

/// What tells counters apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// The calling function.
    Identity,
    /// A claim of the verified token.
    Claim(ClaimPath),
    /// A request header.
    Header(String),
    /// The normalised path without query.
    Path,
    /// The method.
    Method,
    /// The address that the connection comes from. A rate limit counts the /64 of an IPv6 address
    /// as one client.
    Address,
}
