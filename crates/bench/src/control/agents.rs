//! Simulated nodes, which accept all updates.

use super::plane::Plane;
use super::world::{INSTANCE_MIB, World};
use crate::relay::Relay;
use anyhow::{Context, bail, ensure};
use leno_agent::{Agent, BACKOFF, Change, Connection, JoinOptions, Options, Updates, enrol, join};
use leno_model::{FunctionId, InstanceState};
use leno_wire::{Capacity, Instance, Load, NodeOffer, Observation, Resource, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

pub(super) struct Agents {
    nodes: Vec<Agent>,
    new_node: Agent,
    relay: Relay,
    tally: Arc<Tally>,
}

/// Counts over all nodes but the new one.
#[derive(Default)]
struct Tally {
    /// Slices that they have accepted.
    configurations: AtomicU64,
    /// Why the last stream ended.
    lost: Mutex<Option<String>>,
}

impl Agents {
    /// All nodes join, one after the other.
    pub(super) async fn join(plane: &Plane, world: World) -> anyhow::Result<Self> {
        let tally = Arc::new(Tally::default());
        let relay = Relay::start(plane.address())?;
        let mut nodes = Vec::new();
        for number in 0..world.nodes {
            nodes.push(node(plane, number, plane.address(), &tally).await?);
        }
        let new_node = node(plane, world.new_node(), relay.address, &Arc::default()).await?;
        until(|| new_node.held().contains_key(&Subject::Hosted)).await.context("a node gets nothing")?;
        Ok(Self { nodes, new_node, relay, tally })
    }

    /// Function configurations that all nodes but the new one have accepted.
    pub(super) fn configurations(&self) -> u64 {
        self.tally.configurations.load(Ordering::Relaxed)
    }

    /// Waits until the nodes have accepted so many function configurations.
    pub(super) async fn hold_configurations(&self, count: u64) -> anyhow::Result<()> {
        let lost = || self.tally.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let reached = until(|| self.configurations() >= count || lost().is_some()).await;
        if let Some(reason) = lost() {
            bail!("a node lost its stream, and what it reported meanwhile is lost: {reason}");
        }
        reached.with_context(|| format!("nodes got {} configurations instead of {count}", self.configurations()))?;
        ensure!(
            self.configurations() == count,
            "nodes got {} configurations instead of {count}",
            self.configurations()
        );
        Ok(())
    }

    /// The nodes that host functions, by function.
    pub(super) fn homes(&self) -> BTreeMap<FunctionId, &Agent> {
        let hosted = |node: &Agent| node.held().into_keys().filter_map(function_of).collect::<Vec<_>>();
        self.nodes.iter().flat_map(|node| hosted(node).into_iter().map(move |function| (function, node))).collect()
    }

    /// All nodes offer capacity for one instance of any function.
    pub(super) fn offer(&self) {
        let capacity = Capacity { cpu_millis: 1 << 20, memory: (INSTANCE_MIB << 20) * 3 / 2, instances: 1 << 20 };
        let offer = NodeOffer { capacity, images: BTreeSet::new(), without_jails: false };
        self.nodes.iter().for_each(|node| node.offer(offer.clone()));
    }

    /// Bytes on the new node's connection so far.
    pub(super) fn new_node_received(&self) -> u64 {
        self.relay.received()
    }

    /// Waits until the new node has these resources of functions, and no others.
    pub(super) async fn new_node_holds(&self, wanted: &BTreeSet<Subject>) -> anyhow::Result<()> {
        let held = || self.new_node.held().into_keys().filter(is_about_a_function).collect::<BTreeSet<_>>();
        until(|| held() == *wanted).await.with_context(|| format!("the node has {:?} and not {wanted:?}", held()))
    }

    /// The new node reports an instance that starts and becomes ready.
    pub(super) fn start_instance(&self, function: usize) {
        for state in [InstanceState::Starting, InstanceState::Ready] {
            let address = SocketAddr::from(([127, 0, 0, 1], 9000));
            let instance = Instance { id: 1, state, address, pid: Some(1), restarts: 0, since: SystemTime::UNIX_EPOCH };
            self.new_node.report(&World::id(function), vec![instance]);
        }
    }

    pub(super) fn stop_instance(&self, function: usize) {
        self.new_node.report(&World::id(function), Vec::new());
    }
}

/// A machine joins, and opens its stream by way of `address`.
async fn node(plane: &Plane, number: usize, address: SocketAddr, tally: &Arc<Tally>) -> anyhow::Result<Agent> {
    let control = vec![plane.address().to_string()];
    let (token, name) = (plane.token(number)?, World::node_name(number));
    let membership = enrol(&JoinOptions { control, token, name, address: None }, BACKOFF).await?;
    let (agent, updates) = join(Options {
        control: vec![address.to_string()],
        membership,
        // No connection goes there.
        inbound: Some(SocketAddr::from(([127, 0, 0, 1], 10_000 + number as u16))),
        backoff: BACKOFF,
        rejoin: None,
        oldest: 1,
    })?;
    agent.subscribe([Subject::Mesh, Subject::Bundle, Subject::Hosted]);
    tokio::spawn(accept(updates, tally.clone()));
    tokio::spawn(watch_stream(agent.connection(), tally.clone()));
    Ok(agent)
}

fn is_about_a_function(subject: &Subject) -> bool {
    matches!(subject, Subject::FunctionConfig(_) | Subject::Endpoints(_))
}

fn function_of(subject: Subject) -> Option<FunctionId> {
    match subject {
        Subject::FunctionConfig(function) => Some(function),
        _ => None,
    }
}

/// Tells that so many requests wait at the node for an instance.
pub(super) fn report_waiting(node: &Agent, function: &FunctionId, waiting: u32) {
    let seen = Observation { waiting, requests: waiting.into(), ..Observation::default() };
    node.report_loads(&[Load { function: function.clone(), revision: 1, starting: 0, seen }]);
}

async fn accept(mut updates: Updates, tally: Arc<Tally>) {
    while let Some(update) = updates.recv().await {
        let is_configuration = |change: &&Change| matches!(change, Change::Set(Resource::FunctionConfig(_)));
        let count = update.changes.iter().filter(is_configuration).count();
        update.accept();
        tally.configurations.fetch_add(count as u64, Ordering::Relaxed);
    }
}

async fn watch_stream(mut connection: watch::Receiver<Connection>, tally: Arc<Tally>) {
    while connection.changed().await.is_ok() {
        if let Connection::Away { reason: Some(reason), .. } = &*connection.borrow_and_update() {
            *tally.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.clone());
        }
    }
}

async fn until(mut condition: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !condition() {
        ensure!(begin.elapsed() < TIMEOUT, "nodes do not get what is theirs");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
