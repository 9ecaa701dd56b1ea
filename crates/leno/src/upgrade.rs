//! `leno upgrade`: the running node starts a new process, which takes over. The node's part is in
//! `child`.

use crate::NodeAddress;
use crate::client::Node;
use crate::progress::Progress;
use crate::screen::shown;
use anyhow::{Result, bail, ensure};
use leno_api::upgrade::{MAX_TIMEOUT, PATH, UpgradeRequest};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Extra time for the response, beyond the timeout of the new process.
const MARGIN: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The program to start, with the arguments of the running process. Without it: the program at
    /// the path from which the running process was started.
    ///
    /// Only root and the node's account may be able to write to it, or to a folder above it.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Seconds within which the new process must be ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT))]
    timeout: u64,
    #[command(flatten)]
    node: NodeAddress,
}

/// Returns when the new process has the node, or with the reason of the failure.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let node = Node::of(&arguments.node)?;
    let binary = arguments.binary.as_deref().map(std::path::absolute).transpose()?;
    let request = UpgradeRequest { binary, timeout: arguments.timeout };
    let patience = Duration::from_secs(arguments.timeout) + MARGIN;
    let waits = Progress::of("waits until the new process has taken over");
    let (status, body) = node.tell(PATH, serde_json::to_vec(&request)?, patience)?;
    drop(waits);
    let body = shown(body.trim_end());
    ensure!(status != 409, "the node goes on as it is: {body}");
    if status != 200 {
        bail!("the node at {} answered {status}: {body}", node.admin);
    }
    println!("{body}");
    Ok(ExitCode::SUCCESS)
}
