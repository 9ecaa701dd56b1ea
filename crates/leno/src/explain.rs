//! `leno explain`: the records of one request, of a node or of all nodes; or the policies of a
//! function.

mod function;

use crate::NodeAddress;
use crate::client::Source;
use crate::names::NamespaceOptions;
use crate::observe;
use crate::output::Format;
use crate::remote::{self, Server};
use crate::screen::{shown, shown_all, shown_json};
use crate::telemetry;
use anyhow::{Context, Result, bail, ensure};
use leno_dashboard::filter::{FlowFilter, FlowQuery};
use leno_telemetry::ring::Explanation;
use serde_json::Value;
use std::process::ExitCode;

/// Most IDs that are listed when several begin alike.
const MAX_LISTED: usize = 8;

/// The request or function to explain.
#[derive(clap::Args)]
pub(crate) struct Subject {
    /// The response's `x-request-id`, also in the access log and in `leno observe`; its first
    /// characters are enough. Or a trace ID: all hops of the trace. Or `function NAME`: the policies of a function in words.
    #[arg(value_name = "REQUEST-ID", num_args = 1..=2, required_unless_present = "last")]
    subject: Vec<String>,
    /// The last request, of those that the filters match.
    #[arg(long, conflicts_with = "subject")]
    last: bool,
    #[command(flatten)]
    namespace: NamespaceOptions,
}

/// Prints what the subject names.
pub(crate) fn run(
    subject: &Subject,
    filter: &observe::Filter,
    (node, server): (&NodeAddress, &Server),
    format: Format,
) -> Result<ExitCode> {
    match &subject.subject[..] {
        [kind, name] if kind == "function" => {
            function::run(name, &subject.namespace, &Source::of(server, node)?, format)
        }
        [] => request(None, filter, (node, server), format),
        [id] => request(Some(id), filter, (node, server), format),
        _ => bail!("expected REQUEST-ID, or `function NAME`: `leno explain function demo/shop`"),
    }
}

/// Prints the records of the request with this ID, of the only one whose ID begins so, or, without
/// an ID, of the last request that the filter matches.
fn request(
    request_id: Option<&str>,
    filter: &observe::Filter,
    (node, server): (&NodeAddress, &Server),
    format: Format,
) -> Result<ExitCode> {
    if let Some(id) = request_id
        && (id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)))
    {
        bail!("`{}` is not a request id: letters, digits, `-`, `_` and `.` only", shown(id));
    }
    let source = Source::of(server, node)?;
    let mut hops = request_id.map(|id| records(&source, id)).transpose()?.unwrap_or_default();
    if hops.is_empty() {
        hops = records(&source, &find(&source, request_id, filter)?)?;
    }
    ensure!(!hops.is_empty(), "{}", unknown(&source, request_id));
    if format.is_json() {
        println!("{}", shown_json(&Value::Array(hops).to_string()));
        return Ok(ExitCode::SUCCESS);
    }
    let hops: Vec<Explanation> =
        serde_json::from_value(shown_all(Value::Array(hops))).context("the answer is not an explanation")?;
    print!("{}", telemetry::tell(&hops));
    Ok(ExitCode::SUCCESS)
}

/// The records of a request; none: nobody remembers it.
fn records(source: &Source, id: &str) -> Result<Vec<Value>> {
    let node = match source {
        Source::ControlPlane(connection) => return remote::explain(connection, id),
        Source::Node(node) => node,
    };
    let (status, body) = node.ask(&format!("/explain/{id}"))?;
    match status {
        200 => serde_json::from_str(&body).context("the node's answer is not an explanation"),
        404 => Ok(Vec::new()),
        status => bail!("the node at {} answered {status}: {}", node.admin, shown(body.trim_end())),
    }
}

/// The ID of the only request whose ID begins so; without one, of the last request.
fn find(source: &Source, prefix: Option<&str>, filter: &observe::Filter) -> Result<String> {
    let query = FlowQuery { after: None, last: None, filter: &FlowFilter::from(filter) };
    let flows = observe::look(source, &query, &mut Vec::new())?.flows;
    let mut ids: Vec<&str> = Vec::new();
    for flow in flows.iter().filter(|flow| !flow.request_id.is_empty()) {
        if flow.request_id.starts_with(prefix.unwrap_or_default()) && !ids.contains(&&*flow.request_id) {
            ids.push(&flow.request_id);
        }
    }
    match (prefix, &ids[..]) {
        (_, []) => bail!(unknown(source, prefix)),
        (None, [.., last]) => Ok((*last).to_owned()),
        (Some(_), [one]) => Ok((*one).to_owned()),
        (Some(prefix), many) => {
            let listed: Vec<_> = many.iter().take(MAX_LISTED).map(|id| shown(id)).collect();
            let more = if many.len() > MAX_LISTED { ", …" } else { "" };
            bail!("{} requests have an ID that begins with {prefix}: {}{more}", many.len(), listed.join(", "))
        }
    }
}

fn unknown(source: &Source, id: Option<&str>) -> String {
    let which = id.map_or_else(|| "any such request".to_owned(), |id| format!("request {id}"));
    match source {
        Source::ControlPlane(_) => {
            format!("no node that answered remembers {which}: each keeps the most recent ones only")
        }
        Source::Node(node) => {
            format!("the node at {} does not remember {which}: it keeps the most recent ones only", node.admin)
        }
    }
}
