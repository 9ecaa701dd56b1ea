//! Faults that nodes inject into requests which follow a route.

use leno_policy::spec::StringMatch;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A fault of the requests that follow a rule, or that come to a function by `expose`: first the
/// delay, then the abort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// `<policy>/faults/<name>`. The policy and the route are of one namespace.
    pub name: String,
    /// Header fields that a request must have, all of them.
    pub when: Vec<FieldValues>,
    /// The share of requests, of 10,000.
    pub per_10k: u16,
    /// Time before the request goes on; zero: none.
    pub delay: Duration,
    /// The answer in place of the back end's; `None`: the request goes on.
    pub abort: Option<FaultAbort>,
    /// When the fault ends, in milliseconds since 1970, by the node's clock.
    pub until_ms: u64,
}

/// The values that a header field may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldValues {
    /// Name, in lower case.
    pub name: String,
    /// One of these.
    pub values: Vec<StringMatch>,
}

/// An answer in place of the back end's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultAbort {
    /// This status of HTTP.
    Status(u16),
    /// This status of gRPC.
    Grpc(u8),
}
