//! A report as conditions.

use super::captures::Captures;
use super::programming::{NodeProgress, Programming};
use crate::documents::{ACCEPTED, Condition, InForce, ObjectStatus, Verdict, VersionInForce};
use crate::publication::{NodeScope, Report};
use leno_config::Problem;

/// All nodes that the object concerns have it in force.
pub const PROGRAMMED: &str = "Programmed";
/// Of the Mesh object: all pods that labels enrol are captured.
pub const CAPTURED: &str = "Captured";
/// Of the Mesh object: the authority in the Secret signs, or nodes change to it.
pub const AUTHORITY: &str = "AuthorityInForce";
/// Bytes of a message. Kubernetes allows 32768.
const LONGEST_MESSAGE: usize = 4096;
/// Nodes that a message names.
const NAMED_NODES: usize = 8;

/// The status of an object of a kind with this report. `failure`: why the publication is not in force.
/// `before`: the present status, whose times stay where nothing changes; `now`: the time (RFC 3339).
pub fn status_of(
    kind: &str,
    report: &Report,
    failure: Option<&str>,
    programming: &Programming,
    before: &ObjectStatus,
    now: &str,
) -> ObjectStatus {
    let Verdict { generation, in_force, .. } = &report.verdict;
    let condition = |condition: &str, (status, reason, message): (&str, &str, String)| {
        let earlier = before.conditions.iter().find(|one| one.kind == condition && one.status == status);
        Condition {
            kind: condition.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: shortened(message),
            observed_generation: Some(*generation),
            last_transition_time: earlier.map_or_else(|| now.to_owned(), |one| one.last_transition_time.clone()),
        }
    };
    let in_force = match in_force {
        InForce::Earlier(generation, spec) => Some(VersionInForce { generation: *generation, spec: spec.clone() }),
        InForce::Present | InForce::Denial | InForce::Nothing => None,
    };
    let mut conditions =
        vec![condition(ACCEPTED, accepted(report)), condition(PROGRAMMED, programmed(report, failure, programming))];
    if kind == "Mesh" {
        conditions.push(condition(CAPTURED, captured(&programming.captures)));
        conditions.push(condition(AUTHORITY, authority(&programming.authority)));
    }
    ObjectStatus { observed_generation: Some(*generation), conditions, in_force }
}

/// Whether the authority in the Secret is in force. `trouble`: why it is not.
fn authority(trouble: &str) -> (&'static str, &'static str, String) {
    match trouble {
        "" => ("True", "InForce", String::new()),
        trouble => ("False", "Refused", format!("{trouble}.")),
    }
}

/// Whether all pods of the mesh are captured.
fn captured(captures: &Captures) -> (&'static str, &'static str, String) {
    let Captures { enrolled, faults, by_function } = captures;
    if faults.is_empty() {
        return ("True", "Captured", format!("{enrolled} pods are enrolled."));
    }
    let counts: Vec<String> = faults.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let named = by_function.iter().flat_map(|(id, pods)| pods.iter().map(move |pod| format!("{}/{pod}", id.namespace)));
    let named: Vec<String> = named.take(NAMED_NODES).collect();
    let (missing, counts, named) = (captures.missing(), counts.join(", "), named.join(", "));
    ("False", "NotCaptured", format!("{missing} of {enrolled} enrolled pods are not captured: {counts}. {named}."))
}

fn accepted(report: &Report) -> (&'static str, &'static str, String) {
    let Verdict { problems, in_force, .. } = &report.verdict;
    let rest = match in_force {
        InForce::Present => return ("True", "Accepted", fields(&report.warnings)),
        InForce::Earlier(generation, _) => format!("Generation {generation} stays in force."),
        InForce::Denial => "Until this is mended, all calls to its functions are refused.".to_owned(),
        InForce::Nothing => "It is not in force.".to_owned(),
    };
    ("False", "Invalid", format!("{}. {rest}", fields(problems)))
}

fn programmed(report: &Report, failure: Option<&str>, nodes: &Programming) -> (&'static str, &'static str, String) {
    if report.verdict.in_force != InForce::Present {
        return ("False", "Invalid", "This generation is not in force: see Accepted.".to_owned());
    }
    if let Some(failure) = failure {
        return ("False", "NotPublished", failure.to_owned());
    }
    let missing = nodes.missing(&report.scope);
    let named = |wanted: fn(&NodeProgress) -> bool| {
        let named: Vec<&str> = missing.iter().filter(|(_, one)| wanted(one)).map(|(name, _)| *name).collect();
        let more = named.len().saturating_sub(NAMED_NODES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        named.iter().take(NAMED_NODES).copied().collect::<Vec<_>>().join(", ") + &more
    };
    let rejected = missing.iter().find_map(|(name, progress)| match progress {
        NodeProgress::Rejected(reason) => Some(format!("The node {name} refuses it: {reason}")),
        _ => None,
    });
    let (behind, away) = (named(|one| *one == NodeProgress::Behind), named(|one| *one == NodeProgress::Away));
    match (rejected, &report.scope) {
        (Some(rejected), _) => ("False", "Rejected", rejected),
        _ if !behind.is_empty() => ("False", "Pending", format!("Nodes that have not confirmed it yet: {behind}.")),
        _ if !away.is_empty() => {
            let message = format!("Nodes that are not connected to any controller: {away}.");
            ("Unknown", "NotConnected", message)
        }
        (None, NodeScope::Hosts(targets)) if targets.is_empty() => {
            ("True", "NoTargets", "No function of the mesh is among its targets.".to_owned())
        }
        (None, scope) => ("True", "Programmed", uncaptured(scope, &nodes.captures)),
    }
}

/// The pods of the targets that the policy does not reach, because they are not captured.
fn uncaptured(scope: &NodeScope, captures: &Captures) -> String {
    let NodeScope::Hosts(targets) = scope else { return String::new() };
    let pods: Vec<&str> =
        targets.iter().filter_map(|id| captures.by_function.get(id)).flatten().map(String::as_str).collect();
    match pods.len() {
        0 => String::new(),
        _ => format!("Pods that are not captured: {}.", pods[..pods.len().min(NAMED_NODES)].join(", ")),
    }
}

/// Problems of one object, without its name.
fn fields(problems: &[Problem]) -> String {
    let own = |problem: &Problem| {
        let fix = if problem.fix.is_empty() { String::new() } else { format!("; {}", problem.fix) };
        let field = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
        format!("{field}{}{fix}", problem.message)
    };
    let lines: Vec<String> = problems.iter().take(8).map(own).collect();
    let more = problems.len().saturating_sub(lines.len());
    lines.join(". ") + &if more > 0 { format!(". And {more} more") } else { String::new() }
}

fn shortened(mut text: String) -> String {
    if text.len() > LONGEST_MESSAGE {
        text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
        text.push('…');
    }
    text
}
