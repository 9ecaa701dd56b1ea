//! `leno graph`: the functions of a mesh, and the calls between them.

use crate::NodeAddress;
use crate::client::Source;
use crate::names::NamespaceOptions;
use crate::progress::Progress;
use crate::quantity;
use crate::remote::Server;
use crate::screen::{shown, shown_json};
use anyhow::{Result, ensure};
use leno_dashboard::graph::Graph;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// The part of the graph, and its form.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this function, with its callers and callees: `name`, or `namespace/name`.
    #[arg(value_name = "FUNCTION")]
    function: Option<String>,
    #[command(flatten)]
    namespace: NamespaceOptions,
    /// Count the traffic of this time, from now on, in requests a second. Without it: all requests
    /// since each node started.
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    window: Option<Duration>,
    /// Form of the graph.
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    output: Form,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    node: NodeAddress,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Form {
    /// A tree, from the gateway.
    Text,
    /// For Graphviz: `leno graph -o dot | dot -Tsvg > mesh.svg`.
    Dot,
    /// A flowchart for Markdown.
    Mermaid,
    /// Nodes and edges, with rates a second.
    Json,
}

/// Prints the graph.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let source = Source::of(&options.server, &options.node)?;
    let chosen = options.namespace.selection(source.namespace(), options.function.as_deref())?;
    let is_wanted = |name: &str| {
        let (namespace, name) = name.split_once('/').unwrap_or_default();
        chosen.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && chosen.name.as_deref().is_none_or(|wanted| wanted == name)
    };
    let mut now = source.look()?;
    let mut before = None;
    if let Some(window) = options.window {
        Progress::sleep("counts requests", window);
        before = Some(std::mem::replace(&mut now, source.look()?));
    }
    let mut graph = Graph::between(before.as_ref(), &now);
    if chosen.namespace.is_some() || chosen.name.is_some() {
        graph = graph.around(is_wanted);
        let wanted = options.function.as_deref().unwrap_or_default();
        let is_there = graph.nodes.iter().any(|node| is_wanted(&node.name));
        ensure!(options.function.is_none() || is_there, "there is no function `{wanted}`; `leno graph` shows all");
    }
    graph.missing.iter().for_each(|missing| eprintln!("leno: {}", shown(missing)));
    let text = match options.output {
        Form::Text => graph.tree(),
        Form::Dot => graph.dot(),
        Form::Mermaid => graph.mermaid(),
        Form::Json => {
            println!("{}", shown_json(&json!(graph).to_string()));
            return Ok(ExitCode::SUCCESS);
        }
    };
    text.lines().for_each(|line| println!("{}", shown(line)));
    Ok(ExitCode::SUCCESS)
}
