//! The records of a request that followed a route: those of `leno explain`, and the access log.

use super::client::{Reply, SentRequest};
use super::mesh::Running;
use super::table::{Gets, RouteRecord};
use super::{Attempt, Way};
use leno_testkit::eventually;
use serde_json::{Value, json};

/// The fields of a record in both, in their forms there.
fn expected(attempt: &Attempt<'_>, sent: &SentRequest<'_>, record: &RouteRecord) -> (Value, Value) {
    let RouteRecord { rule, r#match, backend, host, path, copy, asked } = record;
    let (hop, name) = match attempt.way {
        Way::Gateway => ("gateway", format!("test/{}-0", attempt.group.name)),
        Way::Call => ("outbound", format!("test/{}-calls-0", attempt.group.name)),
    };
    let asked = asked.as_deref().or(sent.path.split('?').next());
    let explained = json!({
        "hop": hop, "method": sent.method, "host": sent.host, "path": asked,
        "route": {
            "name": name, "rule": rule, "matched": r#match, "backend": backend, "authority": host, "path": path, "copy": copy,
        },
    });
    let logged = json!({
        "direction": hop, "method": sent.method, "authority": sent.host, "path": asked,
        "route_name": format!("{name}/{rule}"), "route_match": r#match, "route_backend": backend,
        "rewritten_authority": host, "rewritten_path": path,
    });
    (explained, logged)
}

/// The fields of a hop that are compared.
fn explained(hop: &Value) -> Value {
    let (asked, route) = (&hop["asked"], &hop["route"]);
    json!({
        "hop": hop["hop"], "method": asked["method"], "host": asked["authority"], "path": asked["path"],
        "route": {
            "name": route["name"], "rule": route["rule"], "matched": route["matched"], "backend": route["backend"],
            "authority": route["authority"], "path": route["path"], "copy": route["copy"] == true,
        },
    })
}

/// How the records of a request differ from the expected ones.
pub(crate) fn differences(
    attempt: &Attempt<'_>,
    gets: &Gets,
    sent: &SentRequest<'_>,
    reply: &Reply,
    running: &mut Running,
) -> Vec<String> {
    let [id] = reply.values("x-request-id")[..] else { return vec!["the response has no request ID".to_owned()] };
    let mut hops = Vec::new();
    eventually(&format!("the records of {}", attempt.id), || {
        let followed = running.explain(id).into_iter().filter(|hop| hop["route"].is_object());
        hops = followed.collect();
        hops.len() >= gets.records.len()
    });
    let mut lines = running.log(id, gets.records.len());
    lines.iter_mut().for_each(|lines| lines.retain(|line| line["route_name"].is_string()));
    let mut found = Vec::new();
    for record in &gets.records {
        let (hop, line) = expected(attempt, sent, record);
        if !hops.iter().any(|known| explained(known) == hop) {
            found.push(format!("no hop is {hop}: {}", Value::from(hops.clone())));
        }
        let has = |known: &Value| line.as_object().into_iter().flatten().all(|(name, value)| known[name] == *value);
        if let Some(lines) = &lines
            && !lines.iter().any(has)
        {
            found.push(format!("no line of the access log has {line}: {}", Value::from(lines.clone())));
        }
    }
    if hops.len() > gets.records.len() {
        found.push(format!("{} hops followed a route: {}", hops.len(), Value::from(hops)));
    }
    found
}
