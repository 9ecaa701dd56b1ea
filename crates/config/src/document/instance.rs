//! Instances of a function: who runs them, and how they are probed.

use super::value::Address;
use crate::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Instances that another system runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalInstances {
    /// Their addresses. A client that can reach them directly bypasses the mesh.
    pub addresses: Vec<Address>,
}

/// When an instance may get requests: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Readiness {
    /// When a GET of this path answers 2xx or 3xx.
    pub http: Option<String>,
    /// `true`: when it accepts a TCP connection.
    pub tcp: Option<bool>,
}

/// How an instance that was ready is watched. It is asked as `readiness` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Liveness {
    /// Between two probes, from 100ms on; where something is wrong, a second at most. `0s`: it is
    /// not watched.
    pub interval: Duration,
    /// Failures in a row after which another instance takes its place, 1 to 100: probes, or
    /// requests that time out.
    #[schemars(range(min = 1, max = 100))]
    pub failures: u32,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), failures: 3 }
    }
}
