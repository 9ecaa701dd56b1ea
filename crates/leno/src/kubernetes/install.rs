//! `leno install`: applies the objects of the chart, and waits until Leno is ready.

use super::chart::{NAMESPACE, Settings};
use super::kubectl::Cluster;
use crate::progress::Progress;
use crate::screen::shown;
use anyhow::{Context, Result};
use std::process::ExitCode;

/// Arguments of `leno install`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Print the objects, and do not ask a cluster. `helm template` prints the same ones.
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: a group with version that the cluster has, such as monitoring.coreos.com/v1.
    #[arg(long, value_name = "GROUP/VERSION", requires = "dry_run")]
    api_versions: Vec<String>,
    /// How long to wait until Leno is ready, as kubectl takes it.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    timeout: String,
    #[command(flatten)]
    cluster: Cluster,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { settings, dry_run, api_versions, timeout, cluster } = arguments;
    if *dry_run {
        print!("{}", settings.chart(api_versions.clone())?.objects()?);
        return Ok(ExitCode::SUCCESS);
    }
    // Errors of the values come before the cluster is asked.
    settings.chart(Vec::new())?.objects()?;
    let release = cluster.check_version()?;
    cluster.check_owner()?;
    let chart = settings.chart(cluster.api_versions()?)?;
    println!("Kubernetes {}", shown(&release));
    let applied = {
        let _progress = Progress::of("applies Leno's objects");
        cluster.apply(&chart.objects()?)?
    };
    println!("{applied} objects applied");
    let mut parts = vec!["deployment/leno-controller", "daemonset/leno-agent"];
    if chart.values["cni"]["enabled"] == true {
        parts.push("daemonset/leno-cni");
    }
    for part in parts {
        let _progress = Progress::of(format!("waits for {part}"));
        let wait = ["rollout", "status", "--namespace", NAMESPACE, part, "--timeout", timeout];
        cluster.run(&wait, "").with_context(|| unready(cluster, part))?;
        println!("{part} is ready");
    }
    println!(
        "\nNothing is captured yet. Enrol a namespace:\n  kubectl label namespace NAMESPACE leno.dev/mesh=enabled"
    );
    Ok(ExitCode::SUCCESS)
}

/// Why a part is not ready, as far as its pods say.
fn unready(cluster: &Cluster, part: &str) -> String {
    let pods = cluster.run(&["get", "pods", "--namespace", NAMESPACE, "--output=wide"], "");
    let events =
        ["get", "events", "--namespace", NAMESPACE, "--field-selector=type=Warning", "--sort-by=.lastTimestamp"];
    let events = cluster.run(&events, "").unwrap_or_default();
    let lines: Vec<_> = events.lines().rev().take(8).collect();
    let lines: Vec<_> = pods.iter().flat_map(|it| it.lines()).chain(lines.into_iter().rev()).map(shown).collect();
    format!("{part} is not ready:\n{}\n`leno check --kubernetes` says what the cluster lacks", lines.join("\n"))
}
