//! Rows of nodes, through the control plane; and the wait for changed functions.

use super::Connection;
use crate::progress::Progress;
use crate::screen::shown;
use anyhow::{Result, bail};
use leno_api::control::ViewPage;
use leno_dashboard::filter::FlowQuery;
use leno_telemetry::flows::{Flow, Flows};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks at the state of functions.
const LOOK: Duration = Duration::from_millis(500);

/// The rows of a view. Nodes that did not answer are named on standard error.
pub(super) fn rows(connection: &Connection, path: &str) -> Result<Vec<Value>> {
    let page: ViewPage = connection.get(path)?;
    tell_missing(&page.missing);
    if page.missed > 0 {
        eprintln!("leno: {} rows are left out", page.missed);
    }
    Ok(page.rows)
}

fn tell_missing(missing: &[String]) {
    missing.iter().for_each(|missing| eprintln!("leno: {}", shown(missing)));
}

/// Flows of all nodes.
pub(crate) fn flows(connection: &Connection, query: &FlowQuery<'_>, told: &mut Vec<String>) -> Result<Flows> {
    let page: ViewPage<Flow> = connection.get(&query.path())?;
    page.missing
        .iter()
        .filter(|missing| !told.contains(missing))
        .for_each(|missing| eprintln!("leno: {}", shown(missing)));
    *told = page.missing;
    Ok(Flows { flows: page.rows, missed: page.missed, next: page.after })
}

/// The records of a request, of all nodes; none: no node that answered remembers it.
pub(crate) fn explain(connection: &Connection, request_id: &str) -> Result<Vec<Value>> {
    let page: ViewPage = connection.get(&format!("/v1/requests/{request_id}"))?;
    tell_missing(&page.missing);
    Ok(page.rows)
}

/// Waits until functions and jobs are ready, or one has failed: those that were `applied`, and
/// others that changed because of them.
pub(super) fn wait(
    connection: &Connection,
    (changed, applied): (&[String], &BTreeSet<String>),
    timeout: Duration,
) -> Result<ExitCode> {
    let until = Instant::now() + timeout;
    let (mut told, mut told_reasons) = (BTreeSet::new(), BTreeSet::new());
    let waits = Progress::of("waits for the functions and jobs");
    loop {
        let page: ViewPage = connection.get("/v1/functions")?;
        let status: Value = connection.get("/v1/status")?;
        let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
        let mut waiting = Vec::new();
        for name in changed.iter().filter(|name| !applied.contains(*name)).chain(applied) {
            let function = page.rows.iter().find(|row| row["function"] == **name);
            let Some(row) = function.or_else(|| jobs.iter().find(|row| row["job"] == **name)) else {
                // A removed function has no row, and the token may not know others.
                if applied.contains(name) {
                    waiting.push(format!("{name} is not listed yet"));
                }
                continue;
            };
            let (state, reason) = (row["state"].as_str().unwrap_or_default(), row["reason"].as_str());
            let line = reason.map_or_else(|| format!("{name} {state}"), |reason| format!("{name} {state}: {reason}"));
            match state {
                "ready" | "idle" | "succeeded" | "running" => {
                    if told.insert(name) {
                        println!("{}", shown(&line));
                    }
                }
                "failed" => bail!("{}", shown(&line)),
                _ => {
                    // It may wait for a node, for instance for the one with its volumes.
                    if state == "unplaced" && told_reasons.insert(line.clone()) {
                        eprintln!("leno: {}", shown(&line));
                    }
                    waiting.push(line);
                }
            }
        }
        if waiting.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let all = (told.len() + waiting.len()) as u64;
        waits.set(format!("waits for {}", waiting.join(", ")), Some((told.len() as u64, all)));
        if Instant::now() >= until {
            tell_missing(&page.missing);
            let lines: Vec<_> = waiting.iter().map(|line| shown(line).into_owned()).collect();
            bail!("not ready within {timeout:?}: {}", lines.join("; "));
        }
        thread::sleep(LOOK);
    }
}
