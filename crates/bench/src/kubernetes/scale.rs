//! Many pods on fake nodes: the controller's memory and processor time, and the bytes to agents.
//!
//! The cluster is a control plane without nodes. kwok plays 100 nodes, on which pods only seem to
//! run. The controller is the real program with its own connection to the API server; agents are
//! simulated.

use super::agents::Agents;
use super::api::Api;
use super::cluster::Cluster;
use super::objects::milliseconds;
use super::world::{CALLERS, World};
use super::{Setting, definitions};
use crate::cpu::{Memory, Usage};
use crate::relay::Relay;
use crate::report::Report;
use anyhow::{Context, ensure};
use leno_testkit::Process;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Add;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const API_SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1)), 6443);
const NODES: &str = "127.0.0.1:15010";
const ADMIN: &str = "127.0.0.1:15020";
/// Pods of one function that come together.
const POD_GROUP: usize = 10;
/// Agents that count if they have all that is theirs.
const SOON: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

struct Counts {
    world: World,
    /// Groups of new pods whose bytes are counted.
    groups: usize,
    /// Policies that change.
    policies: usize,
    /// New pods during which processor time is counted.
    pods: usize,
    /// Times that watches are lost.
    losses: usize,
    /// How long nothing happens, to know the bytes of keep-alives.
    rest: Duration,
}

pub(super) fn measure(setting: &Setting, report: &mut Report) -> anyhow::Result<Value> {
    let counts = match setting.quick {
        true => Counts {
            world: World { nodes: 20, functions: 500, replicas: 2 },
            groups: 3,
            policies: 3,
            pods: 100,
            losses: 1,
            rest: Duration::from_secs(2),
        },
        false => Counts {
            world: World { nodes: 100, functions: 1000, replicas: 10 },
            groups: 10,
            policies: 20,
            pods: 500,
            losses: 3,
            rest: Duration::from_secs(10),
        },
    };
    let world = counts.world;
    let cluster = Cluster::start(&setting.programs, &setting.folder.join("scale"), &["--control-only"])?;
    cluster.run(&["fake-nodes", &world.nodes.to_string()])?;
    cluster.run(&["kubectl", "create", "namespace", "leno-system"])?;
    let folder = definitions();
    cluster.run(&["kubectl", "apply", "-f", &folder])?;
    cluster.run(&["kubectl", "wait", "--for=condition=Established", "--timeout=60s", "-f", &folder])?;
    cluster.block_on(async || {
        let api = cluster.api();
        fill(&api, world).await?;
        let scale = Scale::start(&cluster, setting, counts, api).await?;
        scale.measure(report).await
    })?;
    Ok(json!({
        "nodes": world.nodes, "pods": world.pods(), "functions": world.functions, "policies": world.functions,
        "callers_of_each_function": CALLERS,
    }))
}

/// Makes all objects, and waits until all pods seem to run.
async fn fill(api: &Api, world: World) -> anyhow::Result<()> {
    let begin = Instant::now();
    api.create_all(world.without_pods()).await?;
    api.create_all(world.all_pods()).await?;
    running(api).await?;
    println!("{} pods on {} nodes after {:.0} s", world.pods(), world.nodes, begin.elapsed().as_secs_f64());
    Ok(())
}

async fn running(api: &Api) -> anyhow::Result<()> {
    api.await_none("/api/v1/pods?fieldSelector=status.phase!=Running").await
}

struct Scale {
    counts: Counts,
    api: Api,
    controller: Process,
    /// The controller's way to the API server.
    relay: Relay,
    agents: Agents,
    ready_after: Duration,
}

impl Scale {
    /// Starts the controller, and then all agents.
    async fn start(cluster: &Cluster, setting: &Setting, counts: Counts, api: Api) -> anyhow::Result<Self> {
        let relay = Relay::start(API_SERVER)?;
        let kubeconfig = setting.folder.join("controller.conf");
        let administrator = cluster.run(&["kubeconfig"])?;
        let administrator = std::fs::read_to_string(administrator.trim())?;
        let (direct, relayed) = (format!("https://{API_SERVER}"), format!("https://{}", relay.address));
        ensure!(administrator.contains(&direct), "the administrator's configuration names another API server");
        std::fs::write(&kubeconfig, administrator.replace(&direct, &relayed))?;
        let begin = Instant::now();
        let mut controller = cluster.spawn(&setting.controller, &["run", "--identity", "bench"], &kubeconfig)?;
        while get(ADMIN, "/readyz").await.is_none_or(|(ready, _)| !ready) {
            controller.ensure_running();
            ensure!(begin.elapsed() < TIMEOUT, "the controller is not ready:\n{}", controller.output());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let ready_after = begin.elapsed();
        let agents = Agents::start(&api, counts.world, NODES.parse()?, &setting.folder).await?;
        Ok(Self { counts, api, controller, relay, agents, ready_after })
    }

    async fn measure(mut self, report: &mut Report) -> anyhow::Result<()> {
        let world = self.counts.world;
        let pods = world.pods();
        let soon = self.agents.iter().filter(|agent| agent.complete_after <= SOON).count();
        report.show("nodes_connected_in_15s", soon as f64);
        let times = self.agents.iter().map(|agent| agent.complete_after.as_secs_f64()).collect();
        report.show_median("node_connected_after_s", times);
        let bytes = self.agents.iter().map(|agent| agent.start_bytes as f64).collect();
        report.show_median(&format!("config_bytes_node_start_{pods}"), bytes);
        report.show(&format!("control_ready_after_s_{pods}"), self.ready_after.as_secs_f64());
        self.settle().await?;
        self.new_pods(report).await?;
        self.policies(report).await?;
        self.processor_time(report).await?;
        let memory = Memory::of(&[self.controller.pid()])?;
        report.show(&format!("control_memory_mib_{pods}"), memory.rss as f64 / 1024.0);
        report.show(&format!("control_memory_anonymous_mib_{pods}"), memory.anonymous as f64 / 1024.0);
        self.lost_watches(report).await?;
        self.controller.ensure_running();
        Ok(())
    }

    /// Waits until agents get nothing any more.
    async fn settle(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let before = self.agents.received();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.agents.received().since(&before).iter().all(|(_, updates)| *updates == 0) {
                return Ok(());
            }
            ensure!(begin.elapsed() < TIMEOUT, "agents get updates without end");
        }
    }

    /// Groups of new pods, each of one function on one node: counts the bytes to that node, to the
    /// nodes of its callers, and to the others. Connections carry keep-alives, too: their rate at rest
    /// is not counted.
    async fn new_pods(&self, report: &mut Report) -> anyhow::Result<()> {
        let world = self.counts.world;
        let (before, begin) = (self.agents.received(), Instant::now());
        tokio::time::sleep(self.counts.rest).await;
        let idle: u64 = self.agents.received().since(&before).iter().map(|(bytes, _)| bytes).sum();
        let rate = idle as f64 / world.nodes as f64 / begin.elapsed().as_secs_f64();
        let (mut own, mut callers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for group in 0..self.counts.groups {
            let function = group * world.functions / self.counts.groups;
            let host = world.hosts(function).next().context("it has pods")?;
            let mut calling = world.calling_nodes(function);
            calling.remove(&host);
            let (before, begin) = (self.agents.received(), Instant::now());
            let pods = (0..POD_GROUP).map(|pod| World::pod(function, host, &format!("group-{pod}")));
            self.add(pods, POD_GROUP).await?;
            self.settle().await?;
            let received = self.agents.received().since(&before);
            let own_bytes = rate * begin.elapsed().as_secs_f64();
            let each = |nodes: &BTreeSet<usize>| {
                let of = |node: &usize| match received[*node] {
                    (_, 0) => 0.0,
                    (bytes, _) => (bytes as f64 - own_bytes).max(0.0),
                };
                nodes.iter().map(of).fold(0.0, f64::add) / nodes.len() as f64 / POD_GROUP as f64
            };
            let rest = (0..world.nodes).filter(|node| *node != host && !calling.contains(node)).collect();
            own.push(each(&[host].into()));
            callers.push(each(&calling));
            others.push(each(&rest));
            for pod in 0..POD_GROUP {
                self.api.delete(&World::pod_path(function, &format!("group-{pod}"))).await?;
            }
            self.agents.await_pods(world.pods()).await?;
        }
        report.show_median("bytes_per_new_pod_host", own);
        report.show_median("bytes_per_new_pod_caller", callers);
        report.show_median("bytes_per_new_pod_other", others);
        Ok(())
    }

    /// A policy changes: from the request to the API server until the agents of all nodes with its
    /// function have accepted the update.
    async fn policies(&self, report: &mut Report) -> anyhow::Result<()> {
        let (world, mut times) = (self.counts.world, Vec::new());
        for change in 0..self.counts.policies {
            let function = change * world.functions / self.counts.policies;
            let hosts: Vec<(usize, usize)> =
                world.hosts(function).map(|host| (host, self.agents.updates(host))).collect();
            let (path, policy) = world.change_policy(function, &format!("/refused-{change}"));
            let begin = Instant::now();
            self.api.change(&path, &policy).await?;
            while hosts.iter().any(|(host, before)| self.agents.updates(*host) == *before) {
                ensure!(begin.elapsed() < TIMEOUT, "agents do not get a changed policy");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            times.push(milliseconds(begin.elapsed()));
            self.settle().await?;
        }
        report.show_median(&format!("apply_to_agents_p50_ms_{}", world.pods()), times);
        Ok(())
    }

    /// Makes pods, and waits until their agents have them, with their addresses.
    async fn add(&self, pods: impl Iterator<Item = (String, Value)>, count: usize) -> anyhow::Result<()> {
        let wanted = self.agents.pods() + count;
        self.api.create_all(pods).await?;
        self.agents.await_pods(wanted).await?;
        running(&self.api).await
    }

    /// New pods all over the cluster: the controller's processor time for each, until all agents
    /// have them.
    async fn processor_time(&self, report: &mut Report) -> anyhow::Result<()> {
        let (world, pids) = (self.counts.world, [self.controller.pid()]);
        let (idle, begin) = (Usage::of(&pids)?, Instant::now());
        tokio::time::sleep(self.counts.rest).await;
        let at_rest = (Usage::of(&pids)? - idle).cpu.as_secs_f64() / begin.elapsed().as_secs_f64();
        report.show("control_cpu_at_rest_percent", at_rest * 100.0);
        let pod = |number: usize| World::pod(number % world.functions, number % world.nodes, &format!("more-{number}"));
        let (before, begin) = (Usage::of(&pids)?, Instant::now());
        self.add((0..self.counts.pods).map(pod), self.counts.pods).await?;
        let (used, elapsed) = ((Usage::of(&pids)? - before).cpu, begin.elapsed());
        report.show("control_cpu_ms_per_pod", used.as_secs_f64() * 1000.0 / self.counts.pods as f64);
        report.show("new_pods_per_second", self.counts.pods as f64 / elapsed.as_secs_f64());
        for number in 0..self.counts.pods {
            self.api.delete(&World::pod_path(number % world.functions, &format!("more-{number}"))).await?;
        }
        self.agents.await_pods(world.pods()).await
    }

    /// All connections to the API server break. Counts lists that the controller makes anew before it
    /// passes on a pod that came later.
    async fn lost_watches(&self, report: &mut Report) -> anyhow::Result<()> {
        let before = metric("leno_controller_watch_relists_total").await?;
        for loss in 0..self.counts.losses {
            let resumed = metric("leno_controller_watch_resumed_total").await?;
            self.relay.cut();
            let begin = Instant::now();
            while metric("leno_controller_watch_resumed_total").await? == resumed {
                ensure!(begin.elapsed() < TIMEOUT, "no watch has resumed");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            self.add([World::pod(0, 0, &format!("loss-{loss}"))].into_iter(), 1).await?;
        }
        let relists = metric("leno_controller_watch_relists_total").await? - before;
        report.show("relists_after_lost_watch", relists / self.counts.losses as f64);
        Ok(())
    }
}

/// A metric of the controller.
async fn metric(name: &str) -> anyhow::Result<f64> {
    let (_, text) = get(ADMIN, "/metrics").await.context("the controller does not show its metrics")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no metric {name}"))?.parse().context("a number")
}

/// Whether an answer is 200, and its text; `None`: there was none.
async fn get(address: &str, path: &str) -> Option<(bool, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some((answer.starts_with("HTTP/1.1 200"), answer))
}
