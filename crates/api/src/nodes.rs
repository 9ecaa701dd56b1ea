//! Views of nodes.

use leno_control::{FunctionNode, NodeStatus, PlacementEvent};
use leno_wire::Bounds;
use serde_json::{Value, json};

/// A row of `leno get nodes`, from the API's status of a node.
pub fn row_of(node: &Value) -> Value {
    let state = match (&node["connected"], &node["behind"], &node["cordoned"]) {
        (Value::Bool(true), Value::Bool(true), _) => format!("behind {}s", node["unacknowledged_seconds"]),
        (Value::Bool(true), _, Value::Bool(true)) if node["drained"] == Value::Bool(true) => "drained".to_owned(),
        (Value::Bool(true), _, Value::Bool(true)) => "cordoned".to_owned(),
        (Value::Bool(true), ..) => "connected".to_owned(),
        _ => "away".to_owned(),
    };
    let roles = ["gateway", "egress"].into_iter().filter(|role| node[role] == Value::Bool(true));
    let count = |list: &Value| list.as_array().map(Vec::len);
    json!({
        "node": node["name"],
        "state": state,
        "version": node["release"],
        "roles": roles.collect::<Vec<_>>(),
        "inbound": node["inbound"],
        "region": node["locality"]["region"],
        "zone": node["locality"]["zone"],
        "hosted": count(&node["hosted"]),
        "instances": node["reserved"],
        "most_instances": node["capacity"]["instances"],
        "capped": capped(node),
        "cpu_millis": node["capacity"]["cpu_millis"],
        "memory_bytes": node["capacity"]["memory"],
        "rejected": count(&node["rejected"]),
        "refused": node["counters"]["refused"],
        "certificate_expires": node["certificates"]["not_after"],
        "overdue": node["certificates"]["overdue"],
    })
}

/// Capacities of which a node reports more than its membership permits.
fn capped(node: &Value) -> Vec<String> {
    let (claimed, capacity) = (&node["claimed"], &node["capacity"]);
    let names = [("cpu", "cpu_millis"), ("memory", "memory"), ("instances", "instances")];
    let more = names.into_iter().filter(|(_, field)| claimed.is_object() && claimed[field] != capacity[field]);
    more.map(|(name, field)| format!("{name} {}", claimed[field])).collect()
}

/// The rows of `leno get nodes`, if the control plane is in the same process.
pub fn rows(nodes: &[NodeStatus]) -> Value {
    nodes.iter().map(|node| row_of(&json!(node))).collect()
}

/// A function's nodes, with the bounds of their instances: `one 1..5`.
pub fn of_function(nodes: &[FunctionNode]) -> Vec<String> {
    let bounds = |&Bounds { least, most, .. }: &Bounds| match most {
        u32::MAX => format!(" {least}.."),
        most => format!(" {least}..{most}"),
    };
    let text = |node: &FunctionNode| {
        let bounds: String = node.bounds.iter().map(bounds).collect();
        let leaving = if node.leaving { " (leaving)" } else { "" };
        format!("{}{bounds}{leaving}", node.node)
    };
    nodes.iter().map(text).collect()
}

/// An event of a function that lacked nodes, as a row of `leno get events`.
pub(crate) fn placement_event(event: &PlacementEvent) -> Value {
    json!({
        "time": event.at_ms as f64 / 1e3,
        "kind": "placement",
        "function": event.function.to_string(),
        "reason": event.reason,
    })
}
