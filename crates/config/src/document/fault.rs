//! `spec.faults` of a policy.

use crate::duration::Duration;
use crate::timestamp::Timestamp;
use leno_model::GRPC_STATUSES;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;

/// A fault that the node which follows the route injects into permitted requests: first the delay,
/// then the abort. It ends by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// Name of the fault in logs, metrics and records: `<policy>/faults/<name>`.
    pub name: String,
    /// Routes of the policy's namespace: `ROUTE`, an HTTPRoute or GRPCRoute or a function with
    /// `expose`, or `ROUTE/RULE`, one rule of a route by its name or else its index.
    pub routes: Vec<String>,
    /// Only requests with these header fields, all of them, as the client sent them. Empty: all
    /// requests.
    #[serde(default)]
    pub when: Vec<FaultCondition>,
    /// Percentage of these requests, in steps of 0.01. Each request counts by chance.
    #[serde(default = "all")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub percent: f64,
    /// Time that a request waits before it goes on, 1ms to 60s. It is part of the request's time
    /// limit.
    #[serde(default)]
    pub delay: Option<Duration>,
    /// The answer in place of the back end's, which gets nothing.
    #[serde(default)]
    pub abort: Option<FaultAbort>,
    /// When the fault ends (RFC 3339), at most 24 hours after the document is applied:
    /// `2026-11-28T12:00:00Z`. It is compared with the clock of each node.
    pub until: Timestamp,
}

/// A header field, and the values that it may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultCondition {
    /// Name of a request header.
    pub header: String,
    /// One of these: `abc`, `abc*`, `*abc` or `*` (not empty).
    pub values: Vec<String>,
}

/// The answer in place of the back end's: one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultAbort {
    /// Status of HTTP. gRPC calls get the status of gRPC that belongs to it.
    #[serde(default)]
    #[schemars(range(min = 400, max = 599))]
    pub status: Option<u16>,
    /// Status of gRPC, by name or number: `UNAVAILABLE`, `14`. Other requests get the status of HTTP
    /// that belongs to it.
    #[serde(default)]
    pub grpc: Option<GrpcStatus>,
}

/// A status of gRPC other than `OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcStatus(pub u8);

fn all() -> f64 {
    100.0
}

impl Serialize for GrpcStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match GRPC_STATUSES.get(usize::from(self.0)) {
            Some(name) => name.serialize(serializer),
            None => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for GrpcStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = (0..).zip(GRPC_STATUSES).skip(1).find_map(|(number, name)| (name == text).then_some(number));
        number.or_else(|| text.parse().ok().filter(|number| (1..=16).contains(number))).map(Self).ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            de::Error::custom(format!(
                "\"{text}\" is no status that ends a call with an error; expected a name of gRPC such as UNAVAILABLE, or 1 to 16"
            ))
        })
    }
}

impl JsonSchema for GrpcStatus {
    fn schema_name() -> Cow<'static, str> {
        "GrpcStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = format!("^({}|[1-9]|1[0-6])$", GRPC_STATUSES[1..].join("|"));
        let numbers: Vec<u8> = (1..=16).collect();
        json_schema!({ "anyOf": [{ "type": "string", "pattern": pattern }, { "type": "integer", "enum": numbers }] })
    }
}
