//! The objects on real nodes.

use serde_json::{Value, json};
use std::time::Duration;

pub(super) const PORT: u16 = 8080;
/// A namespace that is enrolled.
pub(super) const ENROLLED: &str = "shop";
/// One that is not, but may have an enrolled pod.
pub(super) const OTHER: &str = "other";

/// A pod that answers requests.
pub(super) fn server(name: &str, function: &str, node: usize) -> Value {
    let container = json!({
        "name": "main",
        "image": "local/bench:1",
        "imagePullPolicy": "Never",
        "args": ["upstream", "--listen", format!("0.0.0.0:{PORT}")],
        "ports": [{"name": "http", "containerPort": PORT}],
    });
    pod(name, function, node, container)
}

/// A pod that does nothing.
pub(super) fn idle(name: &str, function: &str) -> Value {
    let container = json!({"name": "main", "image": "docker.io/local/pause:1", "imagePullPolicy": "Never"});
    pod(name, function, 1, container)
}

fn pod(name: &str, function: &str, node: usize, container: Value) -> Value {
    let metadata = json!({"name": name, "labels": {"leno.dev/function": function}});
    let node = format!("node{node}");
    let spec = json!({"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"))
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
