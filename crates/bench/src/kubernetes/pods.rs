//! Real pods on two nodes: from a change of an object to its effect on requests, what Leno adds to
//! the start of a pod, and the memory of an agent.

use super::api::Api;
use super::caller::{Connections, await_status};
use super::cluster::Cluster;
use super::objects::{ENROLLED, OTHER, PORT, idle, is_ready, milliseconds, server};
use super::starts::Starts;
use super::world::NAMESPACES;
use super::{Setting, image};
use crate::cpu::Memory;
use crate::report::Report;
use anyhow::{Context, ensure};
use leno_testkit::eventually;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pods of the node when the agent's memory is read, in whole figures.
const PODS: usize = 100;
/// Requests go on for so long before the change whose effect they show.
const BEFORE: Duration = Duration::from_millis(20);

struct Counts {
    applied: usize,
    enrolled: usize,
    starts: usize,
    pods: usize,
}

pub(super) fn measure(setting: &Setting, report: &mut Report) -> anyhow::Result<Value> {
    let counts = match setting.quick {
        true => Counts { applied: 10, enrolled: 5, starts: 2, pods: 10 },
        false => Counts { applied: 100, enrolled: 50, starts: 20, pods: PODS },
    };
    let folder = setting.folder.join("pods");
    let cluster = Cluster::start(&setting.programs, &folder, &["--nodes", "2"])?;
    let starts = install(&cluster, setting)?;
    let conditions = json!({
        "nodes": 2, "policies_applied": counts.applied, "pods_enrolled": counts.enrolled,
        "pods_started_of_each_kind": counts.starts, "pods_of_the_agent": counts.pods,
    });
    cluster.block_on(async || {
        let api = cluster.api();
        report.show("agent_memory_mib_at_0", memory(&cluster)?.rss as f64 / 1024.0);
        let pods = Pods { api: api.clone(), counts };
        pods.set_up().await?;
        pods.apply(report).await?;
        pods.enrol(report).await?;
        starts.measure(&api, pods.counts.starts, report).await?;
        starts.with_plugin().await?;
        pods.fill().await?;
        let found = memory(&cluster)?;
        let name = if pods.counts.pods == PODS { String::new() } else { format!("_at_{}", pods.counts.pods) };
        report.show(&format!("agent_memory_mib{name}"), found.rss as f64 / 1024.0);
        report.show(&format!("agent_memory_anonymous_mib{name}"), found.anonymous as f64 / 1024.0);
        Ok(())
    })?;
    Ok(conditions)
}

/// Installs Leno by the objects of its chart.
fn install(cluster: &Cluster, setting: &Setting) -> anyhow::Result<Starts> {
    let programs = [
        (&*setting.leno, "/usr/bin/leno"),
        (&*setting.controller, "/usr/bin/leno-controller"),
        (&*setting.cni, "/usr/bin/leno-cni"),
    ];
    image::load(cluster, &setting.folder, "local/leno:1", &programs)?;
    let this = std::env::current_exe()?;
    image::load(cluster, &setting.folder, "local/bench:1", &[(&this, "/usr/bin/leno-bench")])?;
    let objects = setting.folder.join("leno.yaml");
    let rendered = Command::new(&setting.leno).args(["install", "--dry-run", "--image=local/leno:1"]).output()?;
    ensure!(rendered.status.success(), "leno install: {}", String::from_utf8_lossy(&rendered.stderr));
    fs::write(&objects, rendered.stdout)?;
    cluster.run(&["kubectl", "apply", "--server-side", "-f", &objects.display().to_string()])?;
    for name in ["deployment/leno-controller", "daemonset/leno-agent"] {
        cluster.rollout(name)?;
    }
    Starts::install(cluster)
}

/// The memory of the agent of the first node.
fn memory(cluster: &Cluster) -> anyhow::Result<Memory> {
    let network = cluster.run(&["node", "1", "readlink", "/proc/self/ns/net"])?;
    let is_agent = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_there = |word: &[u8]| words.split(|byte| *byte == 0).any(|found| found == word);
        let found = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        is_there(b"node") && is_there(b"--kubernetes") && found.as_os_str() == network.trim()
    };
    let agent = || {
        let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        processes.into_iter().find(is_agent)
    };
    Memory::of(&[eventually("the agent of node 1", agent)])
}

struct Pods {
    api: Api,
    counts: Counts,
}

impl Pods {
    /// Two functions: one with a pod on each node in the enrolled namespace, and a pod that is not
    /// enrolled yet.
    async fn set_up(&self) -> anyhow::Result<()> {
        for (name, labels) in [(ENROLLED, json!({"leno.dev/mesh": "enabled"})), (OTHER, json!({}))] {
            let metadata = json!({"name": name, "labels": labels});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            self.api.create(NAMESPACES, &namespace).await?;
            // Pods are refused until the controllers of the cluster have made it.
            let account = format!("{NAMESPACES}/{name}/serviceaccounts/default");
            self.api.await_existing(&account).await?;
        }
        for (namespace, function) in [(ENROLLED, "stock"), (OTHER, "late")] {
            let policy = json!({
                "apiVersion": "leno.dev/v1alpha1",
                "kind": "Policy",
                "metadata": {"name": function},
                "spec": {"functions": [function], "authorization": rules("/secrets")},
            });
            self.api.create(&format!("/apis/leno.dev/v1alpha1/namespaces/{namespace}/policies"), &policy).await?;
        }
        for (namespace, name, function, node) in
            [(ENROLLED, "stock-1", "stock", 1), (ENROLLED, "stock-2", "stock", 2), (OTHER, "late", "late", 1)]
        {
            self.api.create(&format!("{NAMESPACES}/{namespace}/pods"), &server(name, function, node)).await?;
        }
        Ok(())
    }

    async fn address(&self, namespace: &str, name: &str) -> anyhow::Result<SocketAddr> {
        let path = format!("{NAMESPACES}/{namespace}/pods/{name}");
        self.api.await_object(&path, is_ready).await?;
        let pod = self.api.get(&path).await?;
        let address = pod["status"]["podIP"].as_str().context("the pod has no address")?;
        Ok(SocketAddr::new(address.parse()?, PORT))
    }

    /// A policy refuses another path than before: from the request to the API server until the pods
    /// of both nodes refuse it.
    async fn apply(&self, report: &mut Report) -> anyhow::Result<()> {
        let pods = [self.address(ENROLLED, "stock-1").await?, self.address(ENROLLED, "stock-2").await?];
        let policy = format!("/apis/leno.dev/v1alpha1/namespaces/{ENROLLED}/policies/stock");
        let (mut times, mut answers) = (Vec::new(), Vec::new());
        for round in 0..=self.counts.applied {
            let path = format!("/round-{round}");
            let mut requests = JoinSet::new();
            for pod in pods {
                requests.spawn(await_status(pod, path.clone(), 403, Connections::Kept));
            }
            sleep(BEFORE).await;
            ensure!(requests.try_join_next().is_none(), "{path} is refused before the policy says so");
            let begin = Instant::now();
            self.api.change(&policy, &json!({"spec": {"authorization": rules(&path)}})).await?;
            let answered = begin.elapsed();
            let mut last = begin;
            while let Some(refused) = requests.join_next().await {
                last = last.max(refused??);
            }
            // The first one waits until both pods are in the mesh.
            if round > 0 {
                times.push(milliseconds(last - begin));
                answers.push(milliseconds(answered));
            }
        }
        report.show_median("apply_to_enforced_p50_ms", times);
        report.show_median("apply_answered_p50_ms", answers);
        Ok(())
    }

    /// A pod that runs gets the label: from the request to the API server until its requests are
    /// judged.
    async fn enrol(&self, report: &mut Report) -> anyhow::Result<()> {
        let (pod, path) = (self.address(OTHER, "late").await?, format!("{NAMESPACES}/{OTHER}/pods/late"));
        let mut times = Vec::new();
        for _ in 0..self.counts.enrolled {
            await_status(pod, "/secrets".to_owned(), 200, Connections::Fresh).await?;
            let requests = tokio::spawn(await_status(pod, "/secrets".to_owned(), 403, Connections::Fresh));
            sleep(BEFORE).await;
            let begin = Instant::now();
            self.api.change(&path, &json!({"metadata": {"labels": {"leno.dev/mesh": "enabled"}}})).await?;
            times.push(milliseconds(requests.await?? - begin));
            self.api.change(&path, &json!({"metadata": {"labels": {"leno.dev/mesh": null}}})).await?;
        }
        await_status(pod, "/secrets".to_owned(), 200, Connections::Fresh).await?;
        report.show_median("enrol_p50_ms", times);
        Ok(())
    }

    /// Gives the first node as many enrolled pods as are counted, of ten functions. The CNI plug-in
    /// holds them until they are captured, so they are when they run.
    async fn fill(&self) -> anyhow::Result<()> {
        let pod = |number: usize| {
            let function = format!("many-{}", number % 10);
            (format!("{NAMESPACES}/{ENROLLED}/pods"), idle(&format!("many-{number}"), &function))
        };
        // One of `stock` is there.
        self.api.create_all((1..self.counts.pods).map(pod)).await?;
        self.api.await_none(&format!("{NAMESPACES}/{ENROLLED}/pods?fieldSelector=status.phase!=Running")).await
    }
}

/// A policy's rules: one path is refused.
fn rules(refused: &str) -> Value {
    json!({"rules": [{"name": "refused", "action": "deny", "to": [{"paths": [refused]}]}, {"name": "others"}]})
}
