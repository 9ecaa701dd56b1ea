//! `leno-controller`: Leno's control plane for Kubernetes.
#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser;
use leno_controller::crds::KINDS;
use leno_controller::release;
use leno_controller::run::{Options, run};
use std::io::{Write as _, stdout};
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

/// Leno's control plane for Kubernetes.
#[derive(Parser)]
#[command(name = "leno-controller", version)]
enum Command {
    /// Serve the nodes of a cluster. The API server is that of the pod, or of KUBECONFIG.
    Run(Options),
    /// Have the agents let go of all pods, and remove the CNI plug-in from the nodes, before Leno is
    /// uninstalled.
    Release(release::Options),
    /// Print the CustomResourceDefinitions of Leno's documents as YAML, for `kubectl apply`.
    Crds,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Run(options) => start()?.block_on(run(options)),
        Command::Release(options) => start()?.block_on(release::run(options)),
        Command::Crds => {
            let texts: Vec<String> = KINDS.iter().map(|kind| kind.definition_yaml()).collect();
            Ok(stdout().write_all(texts.join("---\n").as_bytes())?)
        }
    }
}

/// Starts the log and the executor.
fn start() -> Result<Runtime> {
    let filter = EnvFilter::try_from_env("LENO_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(std::io::stderr).init();
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}
