//! The start of a pod without Leno's CNI plug-in, with it, and with it in the mesh.
//!
//! The three kinds start in turn on one node, each in a namespace without other new pods. The
//! plug-in stays when its installer is gone, and then this module alone writes the node's network
//! configuration. A script around the plug-in notes how long it takes: the runtime waits for it
//! before it makes the pod's containers, so a pod's start is longer by this time, which varies less
//! than starts do.

use super::api::Api;
use super::cluster::Cluster;
use super::objects::{ENROLLED, OTHER, idle, is_ready, milliseconds};
use super::world::NAMESPACES;
use crate::report::Report;
use anyhow::{Context, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const CONFIGURATION: &str = "etc/cni/net.d/10-pods.conflist";
const TIMED: &str = "leno-cni-timed";
/// The file of the times, on the node: the begin and the end of each call, in seconds.
const TIMES: &str = "run/leno-cni-times";
/// Between a change of the network configuration and the next pod: the runtime reads it anew.
const RELOAD: Duration = Duration::from_millis(500);
/// Starts of a kind before it is given up because the runtime used another configuration.
const ATTEMPTS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Without the plug-in.
    Plain,
    /// With the plug-in, in a namespace that is not enrolled.
    Beside,
    /// With the plug-in, and captured before its first program starts.
    Captured,
}

/// The network configurations of the first node.
pub(super) struct Starts {
    /// The files of the node.
    node: PathBuf,
    without: String,
    with: String,
}

impl Starts {
    /// Waits for the plug-in on the nodes, and takes its installer away.
    pub(super) fn install(cluster: &Cluster) -> anyhow::Result<Self> {
        let node = cluster.folder().join("node1");
        let without = fs::read_to_string(node.join(CONFIGURATION))?;
        cluster.rollout("daemonset/leno-cni")?;
        cluster.run(&["kubectl", "delete", "-n", "leno-system", "daemonset/leno-cni", "--cascade=foreground"])?;
        let with = fs::read_to_string(node.join(CONFIGURATION))?;
        ensure!(with.contains("\"leno-cni\""), "the plug-in is not in the network configuration:\n{with}");
        let script = node.join("opt/cni/bin").join(TIMED);
        let lines = [
            "#!/bin/bash",
            "begin=$EPOCHREALTIME",
            "/opt/cni/bin/leno-cni",
            "status=$?",
            &format!("[ \"$CNI_COMMAND\" != ADD ] || echo \"$begin $EPOCHREALTIME\" >> /{TIMES}"),
            "exit $status",
        ];
        fs::write(&script, lines.join("\n") + "\n")?;
        fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        let with = with.replace("\"leno-cni\"", &format!("\"{TIMED}\""));
        Ok(Self { node, without, with })
    }

    /// From now on, pods start with the plug-in.
    pub(super) async fn with_plugin(&self) -> anyhow::Result<()> {
        self.configure(&self.with).await
    }

    async fn configure(&self, text: &str) -> anyhow::Result<()> {
        let path = self.node.join(CONFIGURATION);
        if fs::read_to_string(&path)? != text {
            let partial = path.with_extension("partial");
            fs::write(&partial, text)?;
            fs::rename(partial, path)?;
            sleep(RELOAD).await;
        }
        Ok(())
    }

    pub(super) async fn measure(&self, api: &Api, count: usize, report: &mut Report) -> anyhow::Result<()> {
        let kinds = [Kind::Plain, Kind::Beside, Kind::Captured];
        let (mut starts, mut plugin) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for round in 0..=count {
            for turn in 0..kinds.len() {
                let index = (round + turn) % kinds.len();
                let (start, added) = self.start(api, kinds[index], round).await?;
                // The first ones find nothing in the caches of the machine.
                if round > 0 {
                    starts[index].push(start);
                    plugin[index].extend(added);
                }
            }
        }
        let [plain, beside, captured] = starts;
        let added = |other: &[f64]| other.iter().zip(&plain).map(|(with, without)| with - without).collect();
        report.show_median("pod_ready_paired_captured_p50_ms", added(&captured));
        report.show_median("pod_ready_paired_beside_p50_ms", added(&beside));
        let [_, plugin_beside, plugin_captured] = plugin;
        report.show_median("pod_ready_added_p50_ms", plugin_captured);
        report.show_median("pod_ready_added_beside_p50_ms", plugin_beside);
        for (name, times) in [("plain", plain), ("beside", beside), ("captured", captured)] {
            report.show_median(&format!("pod_ready_{name}_p50_ms"), times);
        }
        Ok(())
    }

    /// Starts a pod: from the request to the API server until the pod is ready, and the plug-in's
    /// part of it.
    async fn start(&self, api: &Api, kind: Kind, round: usize) -> anyhow::Result<(f64, Option<f64>)> {
        let (namespace, text) = match kind {
            Kind::Plain => (OTHER, &self.without),
            Kind::Beside => (OTHER, &self.with),
            Kind::Captured => (ENROLLED, &self.with),
        };
        self.configure(text).await?;
        let pods = format!("{NAMESPACES}/{namespace}/pods");
        for attempt in 0..ATTEMPTS {
            let before = times(&self.node)?.len();
            let name = format!("start-{round}-{attempt}");
            let begin = Instant::now();
            api.create(&pods, &idle(&name, "start")).await?;
            api.await_object(&format!("{pods}/{name}"), is_ready).await?;
            let took = milliseconds(begin.elapsed());
            let plugin = times(&self.node)?.split_off(before);
            api.delete(&format!("{pods}/{name}")).await?;
            sleep(RELOAD).await;
            if plugin.is_empty() == (kind == Kind::Plain) {
                return Ok((took, plugin.last().copied()));
            }
        }
        anyhow::bail!("the runtime of node 1 does not use the network configuration that it has")
    }
}

/// The times of the plug-in so far, in milliseconds.
fn times(node: &Path) -> anyhow::Result<Vec<f64>> {
    let text = fs::read_to_string(node.join(TIMES)).unwrap_or_default();
    let time = |line: &str| {
        let (begin, end) = line.split_once(' ').context("the time of a call")?;
        Ok((end.parse::<f64>()? - begin.parse::<f64>()?) * 1000.0)
    };
    text.lines().map(time).collect()
}
