//! The control plane's process, which is commands by lines, and its handle.

use super::world::World;
use crate::affinity::Cores;
use crate::proxy_under_test::Helper;
use anyhow::{Context, anyhow, bail, ensure};
use leno_control::{CapacityLimits, Control, Counters, Definitions, Store, TokenGrant, Transaction};
use leno_identity::AuthorityFile;
use leno_model::FunctionId;
use leno_policy::spec::QuotaAlgorithm;
use leno_wire::JoinToken;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpListener;

const POLL_INTERVAL: Duration = Duration::from_micros(100);
const TIMEOUT: Duration = Duration::from_secs(60);
const INVITATION: &str = "invitation.json";
/// As `leno up` has.
const MANAGEMENT_THREADS: usize = 2;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NUMBER")]
    functions: usize,
    #[arg(long, value_name = "NUMBER")]
    nodes: usize,
    /// Where the store is, and where the address and the nodes' tokens are written.
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// Listen where an earlier process did, and go on with its definitions, its authority and its
    /// nodes.
    #[arg(long)]
    resume: bool,
    /// Let the scheduler place the functions.
    #[arg(long)]
    scheduled: bool,
}

/// What nodes need to know.
#[derive(Serialize, Deserialize)]
struct Invitation {
    address: SocketAddr,
    /// By node.
    tokens: Vec<String>,
}

/// A running control plane, on the proxies' core.
pub(super) struct Plane {
    process: Helper,
    invitation: Invitation,
}

/// Some of [`Counters`].
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct CounterTotals {
    pub messages: u64,
    pub bytes: u64,
    pub acks: u64,
    pub reports: u64,
}

impl Plane {
    /// `resume`: goes on where an earlier process ended.
    pub(super) fn start(cores: Cores, folder: &Path, world: World, resume: bool) -> anyhow::Result<Self> {
        let [functions, nodes] = [world.functions, world.nodes].map(|number| number.to_string());
        let path = folder.display().to_string();
        let mut arguments = vec!["control-plane", "--functions", &functions, "--nodes", &nodes, "--folder", &path];
        arguments.extend(resume.then_some("--resume"));
        arguments.extend(world.scheduled.then_some("--scheduled"));
        let process = Helper::start(cores, &arguments)?;
        let invitation = serde_json::from_slice(&fs::read(folder.join(INVITATION))?)?;
        Ok(Self { process, invitation })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.invitation.address
    }

    pub(super) fn token(&self, node: usize) -> anyhow::Result<JoinToken> {
        Ok(self.invitation.tokens.get(node).context("there is no such node")?.parse()?)
    }

    pub(super) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.process.say(line)
    }

    pub(super) fn tell(&mut self, line: &str, expected: &str) -> anyhow::Result<()> {
        self.process.tell(line, expected)
    }

    pub(super) fn hear_number(&mut self) -> anyhow::Result<u64> {
        let line = self.process.hear_line()?;
        line.parse().with_context(|| format!("the control plane says `{line}` instead of a number"))
    }

    /// Waits until nodes have acknowledged all that they were sent.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        self.tell("settle", "settled")
    }

    pub(super) fn counters(&mut self, node: usize) -> anyhow::Result<CounterTotals> {
        self.say(&format!("counters {node}"))?;
        Ok(serde_json::from_str(&self.process.hear_line()?)?)
    }

    /// The sums over all nodes but the new one.
    pub(super) fn counters_of_all(&mut self) -> anyhow::Result<CounterTotals> {
        self.say("counters")?;
        Ok(serde_json::from_str(&self.process.hear_line()?)?)
    }

    pub(super) fn wait_for_reports(&mut self, node: usize, count: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.counters(node)?.reports < count {
            ensure!(begin.elapsed() < TIMEOUT, "the node's reports do not arrive");
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Defines all functions, once all nodes have reported their capacity.
    pub(super) fn publish(&mut self) -> anyhow::Result<()> {
        self.tell("publish", "published")
    }

    /// Until all nodes that host the function have acknowledged it.
    pub(super) fn change_policy(&mut self, function: usize, edition: usize) -> anyhow::Result<Duration> {
        self.say(&format!("change {function} {edition}"))?;
        self.hear_number().map(Duration::from_nanos)
    }
}

/// The process. It ends with its standard input.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let world = World { functions: arguments.functions, nodes: arguments.nodes, scheduled: arguments.scheduled };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(MANAGEMENT_THREADS)
        .thread_name("leno-manage")
        .enable_all()
        .build()?;
    let domain = crate::material::TRUST_DOMAIN.parse()?;
    let file = arguments.folder.join("authority.pem");
    let authority = AuthorityFile::new(&file, b"a passphrase of a benchmark", &domain)?.open()?.remove(0);
    let file =
        arguments.folder.join(format!("{}{}.redb", world.functions, if world.scheduled { "-scheduled" } else { "" }));
    let control = Control::new(authority, Store::open(&file)?, leno_control::Options::default())?;
    let definitions = match arguments.resume {
        true => None,
        false => Some(world.definitions(&arguments.folder)?),
    };
    // A scheduler that knows all nodes divides the functions between them. Where it has none to
    // schedule, nodes get theirs when they join.
    if let Some(definitions) = definitions.as_ref().filter(|_| !world.scheduled) {
        control.publish(definitions)?;
    }
    let mut placements: Vec<BTreeSet<FunctionId>> = (0..world.nodes).map(|node| world.placement(node)).collect();
    placements.push(BTreeSet::new());
    let invitation = arguments.folder.join(INVITATION);
    let listener = match arguments.resume {
        true => {
            let earlier: Invitation = serde_json::from_slice(&fs::read(invitation)?)?;
            runtime.block_on(TcpListener::bind(earlier.address))?
        }
        false => {
            let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
            let grant = |(node, functions): (usize, &BTreeSet<FunctionId>)| TokenGrant {
                node: Some(World::node_name(node)),
                admission: world.admission(node, functions.clone()),
                addresses: Vec::new(),
                expires: SystemTime::now() + Duration::from_secs(3600),
                limits: CapacityLimits::default(),
            };
            let tokens = placements
                .iter()
                .enumerate()
                .map(|node| Ok(control.grant(grant(node), Transaction::default())?.reveal().to_string()));
            let tokens = tokens.collect::<anyhow::Result<_>>()?;
            let content = Invitation { address: listener.local_addr()?, tokens };
            fs::write(invitation, serde_json::to_vec(&content)?)?;
            listener
        }
    };
    let serving = control.clone();
    runtime.spawn(async move { drop(serving.serve(listener, std::future::pending()).await) });
    let mut commands = CommandLoop { control, world, definitions, placements };
    say("ready")?;
    for line in std::io::stdin().lines() {
        let answer = commands.obey(&line?)?;
        say(&answer)?;
    }
    Ok(())
}

struct CommandLoop {
    control: Control,
    world: World,
    definitions: Option<Definitions>,
    /// By node.
    placements: Vec<BTreeSet<FunctionId>>,
}

impl CommandLoop {
    fn obey(&mut self, line: &str) -> anyhow::Result<String> {
        let mut words = line.split_ascii_whitespace();
        let command = words.next().unwrap_or_default();
        let numbers: Vec<usize> = words.map(str::parse).collect::<Result<_, _>>()?;
        Ok(match (command, &*numbers) {
            ("settle", []) => {
                self.settle()?;
                "settled".to_owned()
            }
            ("connected", []) => {
                let begin = Instant::now();
                for node in (0..=self.world.nodes).map(World::node_name) {
                    self.wait(begin, || Ok(self.of_node(&node)?.streams > 0))?;
                }
                "connected".to_owned()
            }
            ("publish", []) => {
                let offers = || self.control.status().nodes.iter().filter(|node| node.capacity.is_some()).count();
                self.wait(Instant::now(), || Ok(offers() >= self.world.nodes))?;
                self.control.publish(self.definitions.as_ref().context("definitions are in the store only")?)?;
                "published".to_owned()
            }
            ("only", [node, functions @ ..]) => {
                let functions = functions.iter().copied().map(World::id).collect();
                *self.placements.get_mut(*node).context("there is no such node")? = functions;
                self.place(*node)?;
                "placed".to_owned()
            }
            ("change", [function, edition]) => self.change(*function, *edition)?.as_nanos().to_string(),
            ("counters", [node]) => serde_json::to_string(&self.counted([*node])?)?,
            ("counters", []) => serde_json::to_string(&self.counted(0..self.world.nodes)?)?,
            _ => bail!("`{line}` is no command"),
        })
    }

    fn place(&self, node: usize) -> anyhow::Result<()> {
        let functions = self.placements.get(node).cloned().unwrap_or_default();
        Ok(self.control.place(&World::node_name(node), self.world.admission(node, functions))?)
    }

    fn change(&mut self, function: usize, edition: usize) -> anyhow::Result<Duration> {
        let definitions = self.definitions.as_mut().context("definitions are in the store only")?;
        let config = definitions.configs.get_mut(&World::id(function)).context("there is no such function")?;
        let limit = config.inbound.rate_limits.first_mut().context("it has a limit")?;
        if let QuotaAlgorithm::TokenBucket { burst, .. } = &mut limit.algorithm {
            *burst = 100_000 + edition as u32;
        }
        let config = config.clone();
        let hosts = self.world.hosts(function).map(World::node_name);
        let before = hosts.map(|node| Ok((self.of_node(&node)?.acks, node))).collect::<anyhow::Result<Vec<_>>>()?;
        let begin = Instant::now();
        ensure!(self.control.put(&config)?, "it is the same policy");
        for (acks, node) in before {
            self.wait(begin, || Ok(self.of_node(&node)?.acks > acks))?;
        }
        Ok(begin.elapsed())
    }

    fn settle(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        (0..=self.world.nodes)
            .map(World::node_name)
            .try_for_each(|node| self.wait(begin, || Ok(self.control.is_up_to_date(&node))))
    }

    fn wait(&self, begin: Instant, done: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        while !done()? {
            ensure!(begin.elapsed() < TIMEOUT, "nodes do not answer");
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn counted(&self, nodes: impl IntoIterator<Item = usize>) -> anyhow::Result<CounterTotals> {
        let mut sum = CounterTotals::default();
        for node in nodes {
            let Counters { messages, bytes, acks, reports, .. } = self.of_node(&World::node_name(node))?;
            sum.messages += messages;
            sum.bytes += bytes;
            sum.acks += acks;
            sum.reports += reports;
        }
        Ok(sum)
    }

    fn of_node(&self, node: &str) -> anyhow::Result<Counters> {
        self.control.counters(node).ok_or_else(|| anyhow!("{node} was not admitted"))
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
