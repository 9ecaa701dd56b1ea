//! Certificates that are about to expire, and clocks that differ.

use super::Finding;
use crate::client::Node;
use crate::remote::Connection;
use anyhow::Result;
use jiff::Timestamp;
use serde_json::Value;

/// Certificates of a node, as `leno get identities` lists them.
pub(super) fn of_node(node: &Node) -> Result<Vec<Finding>> {
    let rows = node.list("/identities")?;
    Ok(findings(&rows, &format!("node at {}", node.admin)))
}

/// Certificates that a control plane lists, and its clock.
pub(super) fn of_control_plane(connection: &Connection) -> Vec<Finding> {
    let place = format!("control plane at {}", connection.address());
    match crate::remote::rows(connection, crate::remote::Listing::Identities) {
        Ok(rows) => findings(&rows, &place),
        Err(error) => vec![Finding::failed(
            place,
            format!("{error:#}"),
            "start the control plane, or name another one with --server or --context",
        )],
    }
}

/// One finding for each certificate that should have been renewed; if there is none, one for all.
fn findings(rows: &[Value], place: &str) -> Vec<Finding> {
    let now = Timestamp::now().as_second() as f64;
    let check = format!("certificates of the {place}");
    let late: Vec<Finding> = rows.iter().filter_map(|row| late(row, now, &check)).collect();
    if !late.is_empty() {
        return late;
    }
    let soonest = rows.iter().filter_map(|row| row["not_after"].as_f64()).min_by(f64::total_cmp);
    let found = soonest.map_or("none".to_owned(), |end| {
        let minutes = (end - now) / 60.0;
        format!("{}, the first expires in {minutes:.0} minutes and is renewed before", rows.len())
    });
    vec![Finding::ok(check, found)]
}

fn late(row: &Value, now: f64, check: &str) -> Option<Finding> {
    let name = row["identity"].as_str().unwrap_or_default();
    let (end, renewal) = (row["not_after"].as_f64()?, row["renew_at"].as_f64());
    let reason = row["reason"].as_str().filter(|reason| !reason.is_empty());
    let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let fix = match row["file"].as_str() {
        Some(file) => format!("write a new certificate to {file}; Leno reads it again"),
        None => "see the log of the node for the reason, and whether it reaches the control plane".to_owned(),
    };
    if end <= now {
        return Some(Finding::failed(check, format!("{name} has expired{because}"), fix));
    }
    let is_late = renewal.is_some_and(|renewal| now > renewal + (end - renewal) / 2.0) || reason.is_some();
    is_late.then(|| {
        Finding::limited(
            check,
            format!("{name} expires in {:.0} minutes and is not renewed{because}", (end - now) / 60.0),
            fix,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_certificate_that_was_not_renewed_in_time_is_found() {
        let now = Timestamp::now().as_second() as f64;
        let states = |row: Value| findings(&[row], "node").iter().map(|finding| finding.state).collect::<Vec<_>>();
        let row =
            |renewal: f64, end: f64| json!({ "identity": "a", "renew_at": now + renewal, "not_after": now + end });
        assert_eq!(states(row(100.0, 200.0)), [State::Ok]);
        assert_eq!(states(row(-10.0, 100.0)), [State::Ok]);
        assert_eq!(states(row(-100.0, 50.0)), [State::Limited]);
        assert_eq!(states(row(-100.0, -1.0)), [State::Failed]);
        let file = json!({ "identity": "a", "not_after": now - 5.0, "file": "/etc/leno/tls.crt" });
        assert!(findings(&[file], "node")[0].fix.as_deref().unwrap().contains("/etc/leno/tls.crt"));
    }
}
