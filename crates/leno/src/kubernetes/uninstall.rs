//! `leno uninstall`: has the agents let go of all pods, and deletes Leno's objects.

use super::chart::{NAMESPACE, Settings};
use super::kubectl::Cluster;
use crate::progress::Progress;
use crate::screen::shown;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

/// The label of all objects of Leno, and that of those of one part.
const PART_OF: &str = "app.kubernetes.io/part-of=leno";
const RELEASE: &str = "app.kubernetes.io/name=leno-release";
/// Pause between looks at the Job.
const LOOK: Duration = Duration::from_millis(500);

/// Arguments of `leno uninstall`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Print the objects of the first step, in which the agents let go of pods, and do not ask a
    /// cluster. They are the hook of the Helm chart.
    #[arg(long)]
    dry_run: bool,
    /// Also delete the definitions of Leno's kinds, and with them all objects of these kinds.
    #[arg(long)]
    delete_documents: bool,
    /// Leave the first step out, for a cluster whose controllers cannot run. Enforced pods that run stay
    /// closed until they are deleted, and files stay on the nodes.
    #[arg(long)]
    skip_release: bool,
    /// How long a step may take, as kubectl takes it.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    timeout: String,
    #[command(flatten)]
    cluster: Cluster,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { settings, dry_run, delete_documents, skip_release, timeout, cluster } = arguments;
    if *dry_run {
        print!("{}", settings.chart(Vec::new())?.release()?);
        return Ok(ExitCode::SUCCESS);
    }
    cluster.check_version()?;
    cluster.check_owner()?;
    let agents = ["get", "daemonset/leno-agent", "--namespace", NAMESPACE, "--ignore-not-found", "--output=json"];
    let agents = cluster.run(&agents, "")?;
    match (agents.is_empty(), skip_release) {
        (false, false) => release(settings, cluster, &serde_json::from_str(&agents)?, timeout)?,
        (true, false) => println!("no agents run, so there is nothing to release"),
        (_, true) => println!("agents do not let go of pods first (--skip-release)"),
    }
    let delete = |what: &str, selection: &[&str]| -> Result<()> {
        let _progress = Progress::of(format!("deletes {what}"));
        let common = ["--ignore-not-found", "--cascade=foreground", "--timeout", timeout];
        cluster
            .run(&[&["delete"], selection, &common].concat(), "")
            .with_context(|| format!("{what} is not deleted"))?;
        println!("deleted {what}");
        Ok(())
    };
    // Agents and installers end with their namespace still there, and clean their nodes.
    delete("agents and CNI plug-in", &["--namespace", NAMESPACE, "daemonset/leno-agent", "daemonset/leno-cni"])?;
    delete("the namespace leno-system", &["namespace", NAMESPACE])?;
    delete("the roles", &["clusterroles,clusterrolebindings", "--selector", PART_OF])?;
    let kinds = ["externals", "meshes", "namespacequotas", "policies"].map(|kind| format!("{kind}.leno.dev"));
    if *delete_documents {
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        delete("the definitions of Leno's kinds", &[&["customresourcedefinitions"], &kinds[..]].concat())?;
    } else {
        println!(
            "kept your documents; to delete them too: kubectl delete customresourcedefinition {}",
            kinds.join(" ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the chart's hook, with the image of the agents that run, and waits for its end.
fn release(settings: &Settings, cluster: &Cluster, agents: &Value, timeout: &str) -> Result<()> {
    let mut chart = settings.chart(Vec::new())?;
    let pod = &agents["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    if chart.values["image"] == "" {
        chart.values["image"] = container["image"].clone();
        chart.values["imagePullPolicy"] = container["imagePullPolicy"].clone();
    }
    if pod["imagePullSecrets"].is_array() {
        chart.values["imagePullSecrets"] = pod["imagePullSecrets"].clone();
    }
    let delete = ["delete", "--namespace", NAMESPACE, "jobs,rolebindings,roles,serviceaccounts", "--selector", RELEASE];
    let progress = Progress::of("agents let go of pods");
    // An earlier attempt.
    cluster.run(&delete, "")?;
    cluster.apply(&chart.release()?)?;
    let job = ["get", "job/leno-release", "--namespace", NAMESPACE, "--output=json"];
    let seconds = seconds(timeout)?;
    let begin = std::time::Instant::now();
    let failed = loop {
        let status = cluster.json(&job)?["status"].take();
        let is = |name: &str| {
            let conditions = status["conditions"].as_array();
            conditions.into_iter().flatten().any(|it| it["type"] == name && it["status"] == "True")
        };
        if is("Complete") {
            break None;
        }
        if is("Failed") {
            break Some("the Job leno-release has failed".to_owned());
        }
        if begin.elapsed().as_secs() > seconds {
            break Some(format!("the Job leno-release has not ended within {timeout}"));
        }
        sleep(LOOK);
    };
    drop(progress);
    if let Some(reason) = failed {
        let log = ["logs", "--namespace", NAMESPACE, "job/leno-release", "--tail=20"];
        let log = cluster.run(&log, "").unwrap_or_else(|error| format!("{error:#}"));
        let log: Vec<_> = log.lines().map(shown).collect();
        bail!(
            "{reason}; nothing is deleted:\n{}\nMend that, and repeat; or add --skip-release, which leaves traces on nodes",
            log.join("\n")
        );
    }
    cluster.run(&delete, "")?;
    println!("agents have let go of all pods");
    Ok(())
}

/// The seconds of a time as kubectl takes it: `90s`, `5m`, `1h`.
fn seconds(text: &str) -> Result<u64> {
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        _ => bail!("--timeout {text}: a number with s, m or h, such as 5m"),
    };
    let number: u64 = text[..text.len() - 1].parse().with_context(|| format!("--timeout {text}"))?;
    number.checked_mul(unit).with_context(|| format!("--timeout {text} is too long"))
}
