//! Rows of listings, from a control plane's status.

use serde_json::{Value, json};

/// The rows of a listing that the status has; `None`: it has no such listing.
pub fn rows(listing: &str, status: &mut Value) -> Option<Vec<Value>> {
    let mut part = |name: &str| match status[name].take() {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    };
    Some(match listing {
        "nodes" => part("nodes").iter().map(node).collect(),
        "jobs" => part("jobs").iter().map(job).collect(),
        "identities" => part("identities"),
        _ => return None,
    })
}

/// A row of `leno get nodes`, from the status of a node.
pub fn node(node: &Value) -> Value {
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
        "last_seen": node["seen_ms"].as_f64().map(|ms| ms / 1e3),
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

/// A row of `leno get jobs`, from the status of a job. Control planes of earlier releases write times
/// as structures.
pub fn job(job: &Value) -> Value {
    let time = |field: &str| match &job[field] {
        Value::Object(time) => {
            let part = |name: &str| time.get(name).and_then(Value::as_f64).unwrap_or_default();
            json!(part("secs_since_epoch") + part("nanos_since_epoch") / 1e9)
        }
        time => time.clone(),
    };
    json!({
        "job": job["job"],
        "state": job["state"],
        "node": job["node"],
        "attempt": job["attempt"],
        "completions": format!("{}/{}", job["succeeded"], job["completions"]),
        "active": job["active"],
        "failed": job["failed"],
        "start": time("started"),
        "end": time("ended"),
        "exit_code": job["exit_code"],
        "reason": job["reason"],
    })
}
