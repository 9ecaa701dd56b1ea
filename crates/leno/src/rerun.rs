//! `leno rerun`: runs an ended job once more.

use crate::NodeAddress;
use crate::client::Source;
use crate::names::NamespaceOptions;
use crate::remote::Server;
use crate::screen::shown;
use anyhow::{Context, Result, ensure};
use leno_api::control::types::RerunAnswer;
use std::process::ExitCode;
use std::time::Duration;

/// Timeout of the node's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The kinds that can be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A job that has ended.
    #[value(alias = "jobs")]
    Job,
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Its kind.
    kind: Kind,
    /// Its name, also as `namespace/name`.
    name: String,
    #[command(flatten)]
    namespace: NamespaceOptions,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    node: NodeAddress,
}

pub(crate) fn run(Arguments { kind: Kind::Job, name, namespace, server, node }: &Arguments) -> Result<ExitCode> {
    let source = Source::of(server, node)?;
    let id = namespace.function(source.namespace(), name)?;
    let attempt = match &source {
        Source::ControlPlane(connection) => {
            let answer: RerunAnswer = connection.post(&format!("/v1/jobs/{id}/rerun"), &serde_json::json!({}))?;
            answer.attempt
        }
        Source::Node(node) => {
            let (status, body) = node.tell(&format!("/jobs/{id}/rerun"), Vec::new(), TIMEOUT)?;
            ensure!(status == 200, "the node at {} refuses: {}", node.admin, shown(body.trim_end()));
            body.trim().parse().context("the node's answer is no number")?
        }
    };
    println!("{id}: attempt {attempt} begins");
    Ok(ExitCode::SUCCESS)
}
