//! `leno doctor`: the requirements of a node on this machine, and of documents, without starting
//! anything.

mod addresses;
mod alerts;
mod machine;

use crate::NodeAddress;
use crate::client::{Node, Source};
use crate::output::Format;
use crate::problems::report;
use crate::remote::Server;
use crate::screen::{shown, shown_json};
use crate::table;
use crate::{colour, component_cache};
use anyhow::Result;
use leno_config::{Effort, Problem, Snapshot};
use leno_intake::Intake;
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The documents, and the form of the findings.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also check the listeners of these documents: a YAML file, or a folder of them.
    path: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

/// How far a requirement is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It is met.
    Ok,
    /// Leno works without it, with less isolation or fewer functions.
    Limited,
    /// A node would not start, or is about to fail.
    Failed,
}

/// The answer of one check.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    check: String,
    pub(crate) state: State,
    /// The measured fact, and the consequence if it is not met.
    pub(crate) found: String,
    /// The remedy; `None`: there is nothing to mend.
    pub(crate) fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Ok, found: found.into(), fix: None }
    }

    pub(crate) fn limited(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Limited, found: found.into(), fix: Some(fix.into()) }
    }

    pub(crate) fn failed(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check: check.into(), state: State::Failed, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Prints the findings. Ends with 1 if a node would not start, or is about to fail.
pub(crate) fn run(options: &Options, (server, node): (&Server, &NodeAddress)) -> Result<ExitCode> {
    let snapshot = match options.path.as_deref().map(load) {
        None => None,
        Some(Ok(snapshot)) => Some(snapshot),
        Some(Err(problems)) => {
            report(&problems);
            return Ok(ExitCode::from(2));
        }
    };
    let local = Node::of(node)?;
    // A node that runs here has its listeners.
    let is_running = local.ask("/healthz").is_ok_and(|(status, _)| status == 200);
    let mut findings = machine::findings(is_running)?;
    match &snapshot {
        Some(_) if is_running => {
            findings
                .push(Finding::ok("listeners", format!("not tried: a node runs here and answers at {}", local.admin)));
        }
        Some(snapshot) => findings.extend(addresses::findings(snapshot.mesh_config())),
        None => {}
    }
    if let Source::ControlPlane(connection) = Source::of(server, node)? {
        findings.extend(alerts::findings(&Source::ControlPlane(connection)));
    }
    if is_running {
        findings.extend(alerts::findings(&Source::Node(local)));
    }
    print(&findings, options.format);
    let has_failed = findings.iter().any(|finding| finding.state == State::Failed);
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn load(path: &Path) -> Result<Snapshot, Vec<Problem>> {
    Intake::new(Arc::new(component_cache::modules())).check(path, &Effort::unbounded())
}

/// Prints findings as a table, with the fix below each line that needs one.
pub(crate) fn print(findings: &[Finding], format: Format) {
    if format.is_json() {
        println!("{}", shown_json(&json!(findings).to_string()));
        return;
    }
    let heading = ["CHECK", "STATE", "FOUND"].map(str::to_owned).to_vec();
    let row = |finding: &Finding| {
        let state = match finding.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Failed => "failed",
        };
        vec![shown(&finding.check).into_owned(), state.to_owned(), shown(&finding.found).into_owned()]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(findings.iter().map(row)).collect();
    let mut lines = table::lines(&rows).into_iter();
    println!("{}", lines.next().unwrap_or_default());
    for (line, finding) in lines.zip(findings) {
        let painted = match finding.state {
            State::Ok => line,
            State::Limited => colour::warning(line),
            State::Failed => colour::error(line),
        };
        println!("{painted}");
        if let Some(fix) = &finding.fix {
            println!("    fix: {}", shown(fix));
        }
    }
}
