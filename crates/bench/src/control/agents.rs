//! Simulated nodes: they accept whatever they get.

use super::plane::Plane;
use super::relay::Relay;
use super::world::World;
use anyhow::ensure;
use leno_control::node::{Agent, BACKOFF, Change, Options, Updates, join};
use leno_control::{Instance, InstanceState, JoinToken, Resource, Subject};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

pub(super) struct Agents {
    /// They stay connected as long as they are here.
    _nodes: Vec<Agent>,
    stranger: Agent,
    relay: Relay,
    /// Slices that all nodes but the stranger have accepted.
    slices: Arc<AtomicU64>,
}

impl Agents {
    pub(super) fn join(plane: &Plane, world: World) -> anyhow::Result<Self> {
        let slices = Arc::new(AtomicU64::new(0));
        let node = |node: usize, address: SocketAddr, slices: &Arc<AtomicU64>| {
            let (agent, updates) = join(Options {
                control: address,
                token: JoinToken::from_text(plane.token(node)?.to_owned()),
                // Nobody connects to it.
                inbound: Some(SocketAddr::from(([192, 0, 2, 1], 10_000 + node as u16))),
                backoff: BACKOFF,
            })?;
            agent.subscribe([Subject::Mesh, Subject::Bundle, Subject::Hosted]);
            tokio::spawn(accept(updates, slices.clone()));
            anyhow::Ok(agent)
        };
        let nodes = (0..world.nodes).map(|number| node(number, plane.address(), &slices)).collect::<Result<_, _>>()?;
        let relay = Relay::start(plane.address())?;
        let stranger = node(world.stranger(), relay.address, &Arc::default())?;
        Ok(Self { _nodes: nodes, stranger, relay, slices })
    }

    /// Slices that all nodes but the stranger have accepted.
    pub(super) fn slices(&self) -> u64 {
        self.slices.load(Ordering::Relaxed)
    }

    /// Waits until the nodes have accepted so many slices.
    pub(super) async fn hold_slices(&self, count: u64) -> anyhow::Result<()> {
        until(|| self.slices() >= count).await?;
        ensure!(self.slices() == count, "nodes got {} slices instead of {count}", self.slices());
        Ok(())
    }

    /// Bytes on the stranger's connection so far.
    pub(super) fn stranger_received(&self) -> u64 {
        self.relay.received()
    }

    /// The stranger has these slices and endpoints, and no others.
    pub(super) fn stranger_holds(&self, wanted: &[Subject]) -> anyhow::Result<()> {
        let held: BTreeSet<Subject> = self.stranger.held().into_keys().filter(is_about_a_function).collect();
        let wanted = wanted.iter().filter(|subject| is_about_a_function(subject)).cloned().collect();
        ensure!(held == wanted, "the node has {held:?} and not {wanted:?}");
        Ok(())
    }

    pub(super) async fn wait_for_stranger(&self, wanted: &[Subject]) -> anyhow::Result<()> {
        until(|| {
            let held = self.stranger.held();
            wanted.iter().all(|subject| held.contains_key(subject))
        })
        .await?;
        self.stranger_holds(wanted)
    }

    /// The stranger reports an instance that starts and becomes ready.
    pub(super) fn start_instance(&self, function: usize) {
        for state in [InstanceState::Starting, InstanceState::Ready] {
            let address = SocketAddr::from(([127, 0, 0, 1], 9000));
            let instance = Instance { id: 1, state, address, pid: Some(1), restarts: 0, since: SystemTime::UNIX_EPOCH };
            self.stranger.report(&World::id(function), vec![instance]);
        }
    }

    pub(super) fn stop_instance(&self, function: usize) {
        self.stranger.report(&World::id(function), Vec::new());
    }
}

fn is_about_a_function(subject: &Subject) -> bool {
    matches!(subject, Subject::Slice(_) | Subject::Endpoints(_))
}

async fn accept(mut updates: Updates, slices: Arc<AtomicU64>) {
    while let Some(update) = updates.recv().await {
        let of_slice = |change: &&Change| matches!(change, Change::Set(Resource::Slice(_)));
        let count = update.changes.iter().filter(of_slice).count();
        update.accept();
        slices.fetch_add(count as u64, Ordering::Relaxed);
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
