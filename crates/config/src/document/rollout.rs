//! `spec.traffic` and `spec.rollout` of a function: which of its revisions gets a request.

use crate::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A revision, and the requests that it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrafficTarget {
    /// A revision by its name in `revisions`. Without `revisions`: by its number, such as
    /// `checkout-00003`, which `leno get revisions` lists. Either this or `latest`.
    pub revision: Option<String>,
    /// `true`: the revision that the document describes, whichever that is. Either this or
    /// `revision`; not with `revisions`, which are all described.
    pub latest: Option<bool>,
    /// Share of the requests that no tag and no header decides about. All shares add up to 100. If
    /// no revision has a share, all such requests go to the latest revision; with `revisions`, there
    /// have to be shares.
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<u8>,
    /// Requests with the header `Leno-Tag` of this value get this revision.
    pub tag: Option<String>,
    /// Requests that have all of these headers, each with exactly this value, get this revision.
    /// The first target that fits decides, a tag before any headers.
    pub headers: BTreeMap<String, String>,
}

/// How a new revision takes over: step by step, and not at all if it does worse than the one before
/// it. With `revisions`: the new content of a name, within the share of the name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rollout {
    /// Percentages of the requests that the new revision gets one after the other, rising, each 1
    /// to 99. After the last step it gets all.
    pub steps: Vec<u8>,
    /// How long each step lasts at least, 1s to 1d.
    pub interval: Duration,
    /// The new revision may fail this much oftener than the one before it does in the same step, in
    /// percentage points, 0 to 100. Failed means: a status of 500 or above, or no response.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub max_error_rate: f64,
    /// How slow the new revision may be. Without it: as slow as it likes.
    pub max_latency: Option<MaxLatency>,
    /// Requests that the new revision must have had in a step before it is judged, and before the
    /// next step begins; 0: time alone decides.
    pub min_requests: u32,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            steps: vec![5, 25, 50],
            interval: Duration::from_secs(60),
            max_error_rate: 5.0,
            max_latency: None,
            min_requests: 20,
        }
    }
}

/// How slow a new revision may be: from the moment that an instance is given the request to the
/// head of its response.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaxLatency {
    /// Percentage of the requests that must be within `limit`, 1 to 99.99. If fewer are, and a
    /// smaller share than with the revision before it, the new revision is too slow.
    #[schemars(range(min = 1.0, max = 99.99))]
    pub percentile: f64,
    /// 1ms to 1d.
    pub limit: Duration,
}

impl Default for MaxLatency {
    fn default() -> Self {
        Self { percentile: 99.0, limit: Duration::default() }
    }
}
