//! `leno version`: the releases of this command and of the process that it asks.

use crate::NodeAddress;
use crate::client::Source;
use crate::output::Format;
use crate::remote::Server;
use crate::screen::{shown, shown_json};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::process::ExitCode;

/// The release of this program.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Prints the releases of the client and of the control plane or node. Without a control plane, a
/// node that does not run is no failure.
pub(crate) fn run(only_client: bool, format: Format, server: &Server, node: &NodeAddress) -> Result<ExitCode> {
    let mut answer = json!({ "client": RELEASE });
    if !only_client {
        match Source::of(server, node)? {
            Source::ControlPlane(connection) => {
                let description: Value = connection.get("/openapi.json")?;
                answer["controlPlane"] = description["info"]["version"].clone();
                answer["server"] = connection.address().into();
            }
            Source::Node(node) => {
                answer["node"] = match node.ask("/metrics") {
                    Ok((200, metrics)) => release(&metrics).context("the node's metrics have no release")?.into(),
                    _ => Value::Null,
                };
                answer["server"] = node.admin.to_string().into();
            }
        }
    }
    if format.is_json() {
        println!("{}", shown_json(&answer.to_string()));
        return Ok(ExitCode::SUCCESS);
    }
    println!("client         {RELEASE}");
    let server = shown(answer["server"].as_str().unwrap_or_default()).into_owned();
    for (field, name) in [("controlPlane", "control plane"), ("node", "node         ")] {
        match &answer[field] {
            Value::String(release) => println!("{name}  {} at {server}", shown(release)),
            _ if answer.get(field).is_some() => println!("{name}  none answers at {server}"),
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The release of a node, from its metrics.
fn release(metrics: &str) -> Option<&str> {
    let line = metrics.lines().find(|line| line.starts_with("leno_build_info{"))?;
    line.split_once("version=\"")?.1.split('"').next()
}
