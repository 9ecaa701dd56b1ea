//! `spec.sidecar` of a policy.

use crate::duration::Duration;
use leno_model::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Requests that the sidecar accepts, headers that it changes, and its sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sidecar {
    /// Ports that callers may ask for. Without it: any.
    pub ports: Vec<u16>,
    /// Protocols that they may use. Without it: any.
    pub protocols: Vec<Protocol>,
    /// How the functions' sidecars are isolated. Without it: as the mesh says.
    pub engine: Option<Engine>,
    /// Longest run of a sidecar, 50us to 100ms of processor time. A request whose sidecar takes
    /// longer is refused. From 2ms on, a run may get up to one tick of the kernel's clock more,
    /// often 4 ms.
    pub deadline: Duration,
    /// Changes to every request that enters. [Some fields](../headers.md) only the mesh writes.
    pub request_headers: HeaderEdits,
    /// Changes to responses.
    pub response_headers: Vec<ResponseHeaderEdits>,
    /// Each request is judged by a fresh sidecar, even if an equal one was judged before. Otherwise
    /// the node [may remember](../architecture.md#remembered-decisions) the decision.
    pub judge_each_request: bool,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            protocols: Vec::new(),
            engine: None,
            deadline: Duration::from_millis(2),
            request_headers: HeaderEdits::default(),
            response_headers: Vec::new(),
            judge_each_request: false,
        }
    }
}

/// An application protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 other than gRPC.
    Http2,
    /// gRPC.
    Grpc,
    /// A WebSocket.
    WebSocket,
}

/// Changes to header fields: first `set`, then `append`, then `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HeaderEdits {
    /// Replaces all values.
    pub set: BTreeMap<String, String>,
    /// Adds a value.
    pub append: BTreeMap<String, String>,
    /// Removes all values.
    pub remove: Vec<String>,
}

/// Changes to the header fields of some responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseHeaderEdits {
    /// Only responses with a status like these: `404`, `4xx`, `500-503`. Empty: all.
    pub statuses: Vec<String>,
    /// Replaces all values.
    pub set: BTreeMap<String, String>,
    /// Adds a value.
    pub append: BTreeMap<String, String>,
    /// Removes all values.
    pub remove: Vec<String>,
}
