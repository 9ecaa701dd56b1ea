//! The policies of a function, as this node judges by them, and what is left of its limits.

use super::{Admin, list, reply};
use crate::limits;
use crate::policies::{FunctionPolicies, callers_of};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use leno_model::FunctionId;
use serde_json::json;

impl Admin {
    /// The policies of a function, job or External document of this node.
    pub(super) fn policies(&self, function: &str) -> Response<Full<Bytes>> {
        let id = match function.parse::<FunctionId>() {
            Ok(id) => id,
            Err(error) => return reply(StatusCode::BAD_REQUEST, "text/plain", format!("{error}\n")),
        };
        let snapshot = self.node.snapshot.load();
        let Some(entry) = snapshot.functions.get(&id) else {
            return reply(StatusCode::NOT_FOUND, "text/plain", format!("there is no function {id} on this node\n"));
        };
        let metrics = &self.node.telemetry.metrics;
        let others = snapshot.functions.values().map(|entry| &entry.config);
        let mut callers: Vec<String> = callers_of(&id, others).map(ToString::to_string).collect();
        callers.sort();
        list(json!(FunctionPolicies {
            since: Some(metrics.since()),
            callers,
            ..FunctionPolicies::of(&entry.config, &metrics.rule_hits())
        }))
    }

    /// The use of a function's limits.
    pub(super) fn limits_of(&self, function: &str) -> Response<Full<Bytes>> {
        match function.parse::<FunctionId>() {
            Ok(id) => list(json!(limits::rows(&self.node, &self.supervisor, Some(&id)))),
            Err(error) => reply(StatusCode::BAD_REQUEST, "text/plain", format!("{error}\n")),
        }
    }
}
