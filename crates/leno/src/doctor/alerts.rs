//! Alerts of a running node or control plane, such as certificates that are about to expire.

use super::{Finding, State};
use crate::client::{Listing, Source};
use serde_json::Value;

/// One finding for each alert; if there is none, one that says so.
pub(super) fn findings(source: &Source) -> Vec<Finding> {
    let place = match source {
        Source::ControlPlane(connection) => format!("control plane at {}", connection.address()),
        Source::Node(node) => format!("node at {}", node.admin),
    };
    match source.rows(Listing::Alerts) {
        Ok((_, rows)) if rows.is_empty() => vec![Finding::ok(place, "no alerts")],
        Ok((_, rows)) => rows.iter().map(finding).collect(),
        Err(error) => {
            vec![Finding::failed(
                place,
                format!("{error:#}"),
                "start it, or name another one (--server, --context, --admin)",
            )]
        }
    }
}

fn finding(alert: &Value) -> Finding {
    let text = |field: &str| alert[field].as_str().unwrap_or_default().to_owned();
    let state = match alert["severity"].as_str() {
        Some("critical") => State::Failed,
        Some("info" | "notice") => State::Ok,
        _ => State::Limited,
    };
    let fix = Some(text("fix")).filter(|fix| !fix.is_empty());
    Finding { check: format!("{} {}", text("kind"), text("subject")), state, found: text("text"), fix }
}
