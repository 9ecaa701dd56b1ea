//! `leno ready`: whether a node is ready, for probes and scripts.

use crate::NodeAddress;
use crate::client::Node;
use crate::screen::shown;
use anyhow::Result;
use std::process::ExitCode;

/// Prints the node's answer.
pub(crate) fn run(node: &NodeAddress) -> Result<ExitCode> {
    let (status, body) = Node::of(node)?.ask("/readyz")?;
    println!("{}", shown(body.trim_end()));
    Ok(if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
