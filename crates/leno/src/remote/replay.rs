//! The output of `leno apply --dry-run`: recorded requests that the change would decide
//! differently.

use super::warn;
use crate::problems::counted;
use crate::screen::{shown, shown_json};
use crate::table::{self, Column, Show};
use anyhow::Result;
use jiff::Timestamp;
use leno_api::control::types::{Action, ChangeAnswer, FunctionReplay, Replay, ReplayExample, ReplayVerdict};
use leno_config::DocumentId;
use serde_json::json;
use std::process::ExitCode;

/// The format of the result.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// Tables.
    Table,
    /// As the control plane's API returns it; times in seconds since 1970.
    Json,
}

const COUNTS: &[Column] = &[
    ("FUNCTION", "function", Show::Plain),
    ("REPLAYED", "judged", Show::Plain),
    ("ALLOWED → DENIED", "newlyDenied", Show::Plain),
    ("DENIED → ALLOWED", "newlyAllowed", Show::Plain),
    ("NOT JUDGED", "unjudged", Show::Plain),
];

const EXAMPLES: &[Column] = &[
    ("TIME", "time", Show::Time),
    ("CALLER", "caller", Show::Plain),
    ("FUNCTION", "function", Show::Plain),
    ("METHOD", "method", Show::Plain),
    ("PATH", "path", Show::Plain),
    ("BEFORE", "before", Show::Plain),
    ("AFTER", "after", Show::Plain),
    ("REQUEST", "requestId", Show::Plain),
];

/// Prints the effect of a change.
pub(super) fn print(answer: &ChangeAnswer, form: Form) -> Result<ExitCode> {
    if form == Form::Json {
        println!("{}", shown_json(&serde_json::to_string_pretty(answer)?));
        return Ok(ExitCode::SUCCESS);
    }
    for changed in &answer.documents {
        let name = DocumentId::from(changed.document.clone()).to_string();
        let action = match changed.action {
            Action::Unchanged => "is as it is",
            Action::Created => "would be created",
            Action::Changed => "would be changed",
            Action::Deleted => "would be deleted",
        };
        println!("{} {action}", shown(&name));
    }
    warn(&answer.warnings);
    println!("{} would have another configuration", counted(answer.functions.len(), "function"));
    match &answer.replay {
        Some(replay) if !replay.functions.is_empty() || replay.hidden > 0 => print_replay(replay),
        _ => println!("no request would be decided differently: no function in force would have another program"),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_replay(replay: &Replay) {
    println!();
    print_table(COUNTS, replay.functions.iter().map(counts));
    let examples =
        replay.functions.iter().flat_map(|function| function.examples.iter().map(move |one| example(function, one)));
    let mut examples = examples.peekable();
    if examples.peek().is_some() {
        println!();
        print_table(EXAMPLES, examples);
    }
    for function in &replay.functions {
        remarks(function).iter().for_each(|remark| println!("{}: {remark}", shown(&function.function)));
    }
    if replay.hidden > 0 {
        let hidden = counted(replay.hidden, "function");
        println!("{hidden} of other namespaces would have another program too, and this token is not for them");
    }
}

fn print_table(columns: &[Column], rows: impl Iterator<Item = serde_json::Value>) {
    let now = Timestamp::now();
    let headings = columns.iter().map(|(heading, ..)| (*heading).to_owned()).collect();
    let cells = rows.map(|row| table::cells(columns, &row, now));
    table::print(&std::iter::once(headings).chain(cells).collect::<Vec<_>>());
}

fn counts(function: &FunctionReplay) -> serde_json::Value {
    let unjudged: u64 = function.unjudged.iter().map(|unjudged| unjudged.requests).sum();
    json!({
        "function": function.function,
        "judged": function.judged,
        "newlyDenied": function.newly_denied,
        "newlyAllowed": function.newly_allowed,
        "unjudged": unjudged + function.skipped,
    })
}

fn example(function: &FunctionReplay, example: &ReplayExample) -> serde_json::Value {
    let verdict = |ReplayVerdict { verdict, rule, .. }: &ReplayVerdict| format!("{verdict} by {}", named(rule));
    json!({
        "time": example.time,
        "caller": example.caller,
        "function": example.callee.as_ref().unwrap_or(&function.function),
        "method": example.method,
        "path": example.path,
        "before": verdict(&example.before),
        "after": verdict(&example.after),
        "requestId": example.request_id,
    })
}

/// Without any rule, no rule came nearest.
fn named(rule: &str) -> &str {
    if rule.is_empty() { "no rule" } else { rule }
}

/// The remarks about the counts of a function.
fn remarks(function: &FunctionReplay) -> Vec<String> {
    let mut remarks = Vec::new();
    for unjudged in &function.unjudged {
        let requests = usize::try_from(unjudged.requests).unwrap_or(usize::MAX);
        remarks.push(format!("{} not judged: {}", counted(requests, "request"), shown(&unjudged.reason)));
    }
    if function.skipped > 0 {
        let requests = usize::try_from(function.skipped).unwrap_or(usize::MAX);
        remarks.push(format!("{} not judged: there was no time for them", counted(requests, "request")));
    }
    if !function.left_out.is_empty() {
        remarks.push(format!("not replayed: {}", shown(&function.left_out.join(", "))));
    }
    remarks.extend(function.missing.iter().map(|missing| shown(missing).into_owned()));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_api::control::types::UnjudgedRequests;

    #[test]
    fn what_the_counts_leave_out_is_said() {
        let function = FunctionReplay {
            unjudged: vec![UnjudgedRequests { reason: "its query was not kept".to_owned(), requests: 2 }],
            skipped: 1,
            left_out: vec!["rate limits".to_owned(), "extensions".to_owned()],
            missing: vec!["node n1: its release does not answer such questions".to_owned()],
            ..FunctionReplay::default()
        };
        assert_eq!(counts(&function)["unjudged"], 3);
        assert_eq!(
            remarks(&function),
            [
                "2 requests not judged: its query was not kept",
                "1 request not judged: there was no time for them",
                "not replayed: rate limits, extensions",
                "node n1: its release does not answer such questions",
            ]
        );
    }
}
