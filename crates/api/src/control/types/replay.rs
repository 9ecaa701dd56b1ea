//! Replays of recorded requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which recorded requests would have been decided differently. Each node remembers some two thousand requests for each worker, in its memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// Functions whose programs would be others.
    pub functions: Vec<FunctionReplay>,
    /// Further functions whose programs would be others, of namespaces that the token is not for.
    pub hidden: usize,
}

/// What became of the recorded requests of one function: calls to it, and its own calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionReplay {
    /// `namespace/name`.
    pub function: String,
    /// Requests that were judged again.
    pub judged: u64,
    /// Of those, which were allowed and would be denied.
    pub newly_denied: u64,
    /// Of those, which were denied and would be allowed.
    pub newly_allowed: u64,
    /// Requests that could not be judged again.
    pub unjudged: Vec<UnjudgedRequests>,
    /// Requests for which there was no time.
    pub skipped: u64,
    /// Some of the differences, the latest first.
    pub examples: Vec<ReplayExample>,
    /// Policies of the function that a replay leaves out: rate limits, circuit breakers, external authorizers, extensions.
    pub left_out: Vec<String>,
    /// Nodes that host the function and did not replay, and why; or that no node hosts it.
    pub missing: Vec<String>,
}

/// Requests that could not be judged again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnjudgedRequests {
    /// Why.
    pub reason: String,
    /// How many.
    pub requests: u64,
}

/// A request that would have been decided differently.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayExample {
    /// When it was made, in seconds since 1970.
    pub time: f64,
    /// The node that has it.
    pub node: String,
    /// Its ID, for `leno explain` on that node.
    pub request_id: String,
    /// `outbound`: the function's own call; `inbound` or `gateway`: a call to it.
    pub direction: String,
    /// `namespace/name`, or the address of a caller outside of the mesh.
    pub caller: String,
    /// The callee of an outbound call.
    pub callee: Option<String>,
    /// Method, as sent.
    pub method: String,
    /// Path, without query.
    pub path: String,
    /// The verdict at that time.
    pub before: ReplayVerdict,
    /// The verdict by the new documents.
    pub after: ReplayVerdict,
}

/// A verdict.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplayVerdict {
    /// `allow` or `deny`.
    pub verdict: String,
    /// The policy that refused.
    pub policy: Option<String>,
    /// The rule that decided, or came nearest.
    pub rule: String,
    /// The clause that decided or missed.
    pub clause: String,
}
