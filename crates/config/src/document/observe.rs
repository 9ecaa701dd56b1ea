//! `spec.tracing` and `spec.accessLog` of a policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which exchanges become spans.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// `false`: trace headers pass through untouched.
    pub enabled: bool,
    /// Percentage of new traces that are sampled, in steps of 0.01. The decision of a caller
    /// stands.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub sampling: f64,
    /// Whether B3 headers count where there is no `traceparent`.
    pub b3: bool,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { enabled: true, sampling: 100.0, b3: true }
    }
}

/// Which exchanges are logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AccessLog {
    /// `false`: none.
    pub enabled: bool,
    /// Only those with a status like these: `404`, `4xx`, `500-503`. Empty: all.
    pub statuses: Vec<String>,
    /// Request headers whose values go into the line. Values of other headers never do.
    pub request_headers: Vec<String>,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { enabled: true, statuses: Vec::new(), request_headers: Vec::new() }
    }
}
