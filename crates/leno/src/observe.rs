//! `leno observe`: flows, as they happen.

use crate::NodeAddress;
use crate::client::Source;
use crate::colour;
use crate::output::Format;
use crate::remote::{self, Server};
use crate::screen::{shown, shown_json};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use leno_dashboard::filter::{FlowFilter, FlowQuery};
use leno_telemetry::flows::{Flow, Flows};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two queries.
const LOOK: Duration = Duration::from_millis(300);
/// The same, of a control plane, which asks all nodes.
const LOOK_AT_ALL: Duration = Duration::from_secs(1);

/// Which flows to show: those that match all of these.
#[derive(clap::Args)]
pub(crate) struct Filter {
    /// Only flows of this function, as caller or as callee: `name`, or `namespace/name`.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Only flows with this verdict.
    #[arg(long)]
    verdict: Option<Verdict>,
    /// Only requests to this path, or, with `*` at its end, to paths with this prefix.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Only requests that name this port in their host.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Only flows that this rule decided; a part of its name is enough.
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// Only flows of this kind.
    #[arg(long)]
    kind: Option<Kind>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Verdict {
    Allow,
    Deny,
    /// There was no reliable verdict, or no component to decide.
    Error,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Requests from clients outside the mesh.
    Gateway,
    /// Requests of an instance, as its own sidecar saw them.
    Outbound,
    /// Requests to an instance, as its own sidecar saw them.
    Inbound,
    /// Connections from a jail that carry no requests.
    Connection,
    /// Names that a jail looked up and that have no address there.
    Name,
    /// System calls that the jail refused.
    SystemCall,
}

/// The output options of `leno observe`.
#[derive(clap::Args)]
pub(crate) struct Printing {
    #[command(flatten)]
    format: Format,
    /// Print the last N flows that the node keeps, and end.
    #[arg(long, value_name = "N")]
    last: Option<u32>,
}

/// Prints flows until interrupted, or the last ones.
pub(crate) fn run((node, server): (&NodeAddress, &Server), filter: &Filter, printing: &Printing) -> Result<ExitCode> {
    let source = Source::of(server, node)?;
    let wanted = FlowFilter::from(filter);
    let pause = if matches!(source, Source::Node(_)) { LOOK } else { LOOK_AT_ALL };
    let mut told = Vec::new();
    let mut seen: Option<String> = None;
    loop {
        let first = seen.is_none();
        // Without --last, earlier flows are not shown.
        let last = printing.last.or(first.then_some(0));
        let query = FlowQuery { after: seen.as_deref(), last, filter: &wanted };
        let answer = look(&source, &query, &mut told)?;
        if answer.missed > 0 && !first {
            eprintln!("leno: {} flows were forgotten before they could be shown", answer.missed);
        }
        for flow in &answer.flows {
            if printing.format.is_json() {
                println!("{}", shown_json(&serde_json::to_string(flow)?));
            } else {
                println!("{}", line(flow));
            }
        }
        if printing.last.is_some() {
            return Ok(ExitCode::SUCCESS);
        }
        seen = Some(answer.next);
        std::thread::sleep(pause);
    }
}

/// Flows of a node or of all. `told`: the nodes that did not answer, which the user knows.
pub(crate) fn look(source: &Source, query: &FlowQuery<'_>, told: &mut Vec<String>) -> Result<Flows> {
    let node = match source {
        Source::ControlPlane(connection) => return remote::flows(connection, query, told),
        Source::Node(node) => node,
    };
    let path = query.after.map_or_else(|| "/flows".to_owned(), |after| format!("/flows?{after}"));
    let (status, body) = node.ask(&path)?;
    ensure!(status == 200, "the node at {} answered {status}: {}", node.admin, shown(body.trim_end()));
    let mut answer: Flows = serde_json::from_str(&body).context("the node's answer is not JSON")?;
    query.select(&mut answer);
    Ok(answer)
}

impl From<&Filter> for FlowFilter {
    fn from(filter: &Filter) -> Self {
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        Self {
            function: filter.function.clone(),
            verdict: name(filter.verdict.and_then(|verdict| verdict.to_possible_value())),
            path: filter.path.clone(),
            port: filter.port,
            rule: filter.rule.clone(),
            kind: name(filter.kind.and_then(|kind| kind.to_possible_value())),
        }
    }
}

/// A flow as one line.
fn line(flow: &Flow) -> String {
    let verdict = format!("{:<5}", flow.verdict);
    let verdict = if flow.verdict == "allow" { colour::good(verdict) } else { colour::error(verdict) };
    let source = flow.source.rsplit_once("/ns/").map_or_else(|| flow.source.clone(), |(_, it)| it.replace("/sa/", "/"));
    let node = if flow.node.is_empty() { String::new() } else { format!("{} ", shown(&flow.node)) };
    let mut line = format!("{node}{} {verdict} {:<11} {}", flow.time, flow.kind, shown(&source));
    // Writing to a string does not fail.
    let _ = match (&flow.target, &*flow.kind) {
        (Some(target), _) => write!(line, " -> {}", shown(target)),
        (None, "system-call") => write!(line, " `{}`", shown(&flow.host)),
        (None, _) => write!(line, " -> {}", shown(&flow.host)),
    };
    let _ = write!(line, " {}", shown(&flow.what));
    for text in [&flow.path, &flow.protocol] {
        if !text.is_empty() {
            let _ = write!(line, " {}", shown(text));
        }
    }
    if flow.status != 0 {
        let _ = write!(line, " {} {} us", flow.status, flow.time_us);
    }
    if !flow.rule.is_empty() {
        let _ = write!(line, " [{}]", shown(&flow.rule));
    }
    if !flow.audit.is_empty() {
        let _ = write!(line, " [audit: {}]", shown(&flow.audit));
    }
    if !flow.reason.is_empty() {
        let _ = write!(line, " {}", shown(&flow.reason));
    }
    if !flow.request_id.is_empty() {
        let _ = write!(line, " id={}", shown(&flow.request_id));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        filter: Filter,
    }

    fn flow(source: &str, target: Option<&str>) -> Flow {
        serde_json::from_value(serde_json::json!({
            "time": "2026-01-01T00:00:00.000Z", "kind": "outbound", "source": source, "target": target, "verdict": "deny",
            "rule": "test/policy/only-friends", "what": "GET", "host": "stock:8080", "path": "/items/7", "port": 8080,
        }))
        .unwrap()
    }

    #[test]
    fn filters_are_about_both_ends_and_all_have_to_be_true() {
        let call = flow("spiffe://mesh.example/ns/shop/sa/cart", Some("shop/stock"));
        let matches = |arguments: &str| {
            let only = Only::parse_from(std::iter::once("observe").chain(arguments.split_whitespace()));
            FlowFilter::from(&only.filter).matches(&call)
        };
        for yes in [
            "",
            "--function cart",
            "--function shop/stock",
            "--verdict deny",
            "--path /items/*",
            "--path /items/7",
            "--port 8080",
            "--rule only-friends",
            "--kind outbound",
            "--function cart --verdict deny --port 8080",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in [
            "--function art",
            "--function other/stock",
            "--verdict allow",
            "--path /items",
            "--port 80",
            "--rule others",
            "--kind name",
            "--function cart --verdict allow",
        ] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn nothing_of_a_flow_acts_on_a_terminal() {
        let mut flow = flow("a/b\x1b[2J-1", None);
        flow.request_id = "4bf92f\x1b[2J".to_owned();
        let told = line(&flow);
        assert!(!told.contains('\x1b') && told.ends_with(r" id=4bf92f\u{1b}[2J"), "{told}");
    }
}
