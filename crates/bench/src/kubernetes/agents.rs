//! Simulated agents: the stream of `leno-agent`, without pods.

use super::api::Api;
use super::world::{NAMESPACES, SYSTEM, World};
use crate::relay::Relay;
use anyhow::{Context, ensure};
use leno_agent::{Agent, BACKOFF, Change, Options, PlatformJoin, Updates, join, settings};
use leno_wire::{Resource, Subject};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long all of them may take.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The address of all fake nodes.
const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The agents of all nodes, in their order.
pub(super) struct Agents(Vec<FakeAgent>);

/// The agent of one node, which accepts all updates.
pub(super) struct FakeAgent {
    /// What counts its bytes.
    relay: Relay,
    tally: Arc<Tally>,
    /// From the start of all agents until it had accepted its pods and functions.
    pub complete_after: Duration,
    /// Bytes on its stream until then.
    pub start_bytes: u64,
    /// Dropping it ends the stream.
    _agent: Agent,
}

#[derive(Default)]
struct Tally {
    updates: AtomicUsize,
    pods: AtomicUsize,
    functions: AtomicUsize,
}

/// Bytes that agents got, and how many updates.
#[derive(Clone, Debug)]
pub(super) struct ReceivedBytes(Vec<(u64, usize)>);

impl Agents {
    /// Starts the agents of all nodes at once. Each joins with a token that is bound to its pod.
    pub(super) async fn start(api: &Api, world: World, controller: SocketAddr, folder: &Path) -> anyhow::Result<Self> {
        api.create_all((0..world.nodes).map(World::agent)).await?;
        let mut credentials = Vec::new();
        for node in 0..world.nodes {
            credentials.push(token(api, node, folder).await?);
        }
        let roots = folder.join("ca.crt");
        // The controller may write it a moment after it serves nodes.
        let map = api.await_existing(&format!("{NAMESPACES}/{SYSTEM}/configmaps/leno-ca")).await?;
        std::fs::write(&roots, map["data"]["ca.crt"].as_str().context("the ConfigMap leno-ca has no ca.crt")?)?;
        let (begin, mut starting) = (Instant::now(), JoinSet::new());
        for (node, credential) in credentials.into_iter().enumerate() {
            // Nodes have different addresses, and the control plane bounds requests to join by them.
            let from = IpAddr::from([127, 0, 1, node as u8 + 1]);
            let relay = Relay::start_from(from, controller)?;
            let name = World::node(node);
            let join =
                PlatformJoin { control: vec![relay.address.to_string()], name, credential, roots: roots.clone() };
            let expected = (world.pods_on(node), world.functions_on(node));
            starting.spawn(async move { (node, start(join, relay, node, expected, begin).await) });
        }
        let mut agents = Vec::new();
        while let Some(started) = starting.join_next().await {
            let (node, agent) = started?;
            agents.push((node, agent.with_context(|| format!("the agent of node {node}"))?));
        }
        agents.sort_by_key(|(node, _)| *node);
        Ok(Self(agents.into_iter().map(|(_, agent)| agent).collect()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &FakeAgent> {
        self.0.iter()
    }

    pub(super) fn received(&self) -> ReceivedBytes {
        let one = |agent: &FakeAgent| (agent.relay.received(), agent.tally.updates.load(Ordering::Relaxed));
        ReceivedBytes(self.0.iter().map(one).collect())
    }

    /// Updates that the agent of a node has accepted.
    pub(super) fn updates(&self, node: usize) -> usize {
        self.0[node].tally.updates.load(Ordering::Relaxed)
    }

    /// Pods that all agents have together.
    pub(super) fn pods(&self) -> usize {
        self.0.iter().map(|agent| agent.tally.pods.load(Ordering::Relaxed)).sum()
    }

    /// Waits until they have so many.
    pub(super) async fn await_pods(&self, count: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.pods() != count {
            ensure!(begin.elapsed() < TIMEOUT, "agents have {} pods, not {count}", self.pods());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl ReceivedBytes {
    /// By node: bytes and updates since an earlier time.
    pub(super) fn since(&self, earlier: &Self) -> Vec<(u64, usize)> {
        self.0.iter().zip(&earlier.0).map(|(now, then)| (now.0 - then.0, now.1 - then.1)).collect()
    }
}

/// Writes the token of a node's agent into a file.
async fn token(api: &Api, node: usize, folder: &Path) -> anyhow::Result<PathBuf> {
    let pod = api.get(&format!("{NAMESPACES}/{SYSTEM}/pods/{}", World::agent_name(node))).await?;
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "name": World::agent_name(node), "uid": pod["metadata"]["uid"]});
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["leno"], "expirationSeconds": 3600, "boundObjectRef": pod},
    });
    let path = format!("{NAMESPACES}/{SYSTEM}/serviceaccounts/leno-agent/token");
    let answer = api.create(&path, &request).await?;
    let file = folder.join(format!("token-{node}"));
    std::fs::write(&file, answer["status"]["token"].as_str().context("no token")?)?;
    Ok(file)
}

async fn start(
    platform: PlatformJoin,
    relay: Relay,
    node: usize,
    (pods, functions): (usize, usize),
    begin: Instant,
) -> anyhow::Result<FakeAgent> {
    let membership = platform.enrol(BACKOFF).await?;
    let control = platform.control.clone();
    settings(&control, &membership, BACKOFF).await?;
    let before = relay.received();
    let inbound = Some(SocketAddr::from((NODE, 10_000 + node as u16)));
    let (agent, updates) =
        join(Options { control, membership, inbound, backoff: BACKOFF, rejoin: Some(platform), oldest: 1 })?;
    agent.subscribe([Subject::Mesh, Subject::Bundle, Subject::Hosted]);
    let tally = Arc::new(Tally::default());
    tokio::spawn(accept(updates, tally.clone()));
    let has = |count: &AtomicUsize, wanted| count.load(Ordering::Relaxed) >= wanted;
    while !(has(&tally.pods, pods) && has(&tally.functions, functions)) {
        ensure!(begin.elapsed() < TIMEOUT, "it has {} of {pods} pods", tally.pods.load(Ordering::Relaxed));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let (complete_after, start_bytes) = (begin.elapsed(), relay.received() - before);
    Ok(FakeAgent { relay, tally, complete_after, start_bytes, _agent: agent })
}

async fn accept(mut updates: Updates, tally: Arc<Tally>) {
    let mut held = BTreeSet::new();
    while let Some(update) = updates.recv().await {
        for change in &update.changes {
            match change {
                // A pod counts once its address is known.
                Change::Set(Resource::Pod(pod)) if pod.addresses.is_empty() => false,
                Change::Set(resource) => held.insert(resource.subject()),
                Change::Removed(subject) => held.remove(subject),
                Change::Withdrawn(_) => false,
            };
        }
        update.accept();
        let count = |of: fn(&Subject) -> bool| held.iter().filter(|subject| of(subject)).count();
        tally.pods.store(count(|subject| matches!(subject, Subject::Pod(_))), Ordering::Relaxed);
        tally.functions.store(count(|subject| matches!(subject, Subject::FunctionConfig(_))), Ordering::Relaxed);
        tally.updates.fetch_add(1, Ordering::Relaxed);
    }
}
