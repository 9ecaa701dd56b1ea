//! `leno-bench node`: control plane and node as `leno up` puts them together, out of the same crates, for what cannot be measured
//! from outside: the inline engine (which configuration cannot select), the inbound listener with an identity of the mesh for the
//! load, and the time from a publication to the first judged request (`leno up` looks at its files twice a second).
//!
//! It lacks what needs no measurement here: the supervisor (all functions are external), key sets by URL, the admin listener.

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use leno_config::slice::Run;
use leno_config::{FunctionId, Snapshot};
use leno_control::node::{Backoff, Change, Identities, Updates};
use leno_control::{Admission, Control, Definitions, Placement, Resource, Store, Subject, gateway_identity};
use leno_identity::{Authority, SpiffeId, SvidStore, TrustDomain};
use leno_proxy::Telemetry;
use leno_proxy::instances::{Acquire, Instances, Lease, Unavailable};
use leno_proxy::{FunctionEntry, Node, NodeSnapshot};
use leno_sandbox::Engine;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// As `leno up` has.
const MANAGEMENT_THREADS: usize = 2;
const NODE: &str = "bench";

#[derive(clap::Args)]
pub struct Arguments {
    /// A file of documents, all functions external.
    #[arg(long, value_name = "FILE")]
    documents: PathBuf,
    #[arg(long, value_name = "ENGINE")]
    engine: Isolation,
    /// Sign an SVID for the load: a request for it is read from NAME.csr, and the chain and the root are written to NAME.pem and ca.pem beside it.
    #[arg(long, value_name = "NAME")]
    identity: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Isolation {
    Inline,
    Wasm,
    Microvm,
}

/// Serves until standard input ends. A line `load FILE` reads other documents, a line `publish` puts them into force; each is
/// answered by a line when it is done.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(MANAGEMENT_THREADS.min(cores))
        .thread_name("leno-manage")
        .enable_all()
        .build()?;
    runtime.block_on(serve(arguments))?;
    runtime.shutdown_background();
    Ok(())
}

async fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let mut next = read(&arguments.documents)?;
    let mesh = next.mesh.clone();
    let engine = match arguments.engine {
        Isolation::Inline => Engine::inline(),
        Isolation::Wasm => Engine::wasm()?,
        Isolation::Microvm => Engine::microvm()?,
    };
    let trust_domain: TrustDomain = mesh.trust_domain.parse()?;
    let authority = Authority::new(&trust_domain)?;
    if let Some(path) = &arguments.identity {
        certify(&authority, path)?;
    }
    let control = Control::new(authority, Store::memory(), leno_control::Options::default())?;
    let listener = TcpListener::bind(mesh.control).await?;
    let address = listener.local_addr()?;
    control.publish(&next)?;
    let token = control.admit(NODE, Admission { placement: Placement::Everything, gateway: true })?;
    let serving = control.clone();
    tokio::spawn(async move { drop(serving.serve(listener, std::future::pending()).await) });

    let svids = SvidStore::new(control.bundle().clone());
    let telemetry = Telemetry::start(&mesh)?;
    let instances = Arc::new(External::default());
    let node = Node::new(NodeSnapshot::new(mesh), instances.clone(), svids.clone(), telemetry);
    instances.node.set(node.clone()).map_err(|_| anyhow!("a node serves once"))?;
    let options = leno_proxy::Options { workers: NonZeroUsize::new(1), ..leno_proxy::Options::default() };
    let corridor = leno_proxy::serve(&node, options)?;
    let options = leno_control::node::Options {
        control: address,
        token,
        inbound: Some(corridor.addresses.inbound),
        backoff: Backoff::default(),
    };
    let (agent, updates) = leno_control::node::join(options)?;
    let (wanted, is_wanted) = watch::channel(BTreeSet::new());
    let (applied, mut is_applied) = watch::channel(false);
    Identities::new(agent.clone(), svids.clone()).start(is_wanted.clone())?;
    agent.subscribe([Subject::Mesh, Subject::Bundle, Subject::Hosted, Subject::Routes]);
    let gateway = gateway_identity(&trust_domain)?;
    tokio::spawn(keep(node.clone(), engine, updates, wanted, gateway, applied));
    is_applied.wait_for(|applied| *applied).await?;
    while !is_wanted.borrow().iter().all(|id| svids.current(id).is_some()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    say("ready")?;

    let mut fresh = BTreeMap::new();
    let mut lines = std::io::stdin().lines();
    // Reading blocks this thread; the node lives on others.
    while let Some(line) = tokio::task::block_in_place(|| lines.next()) {
        let line = line?;
        if let Some(path) = line.strip_prefix("load ") {
            let read = read(Path::new(path))?;
            fresh = read.slices.into_iter().filter(|(id, slice)| next.slices.get(id) != Some(slice)).collect();
            say("loaded")?;
        } else if line == "publish" {
            for slice in fresh.values() {
                control.put(slice)?;
            }
            next.slices.append(&mut fresh);
            say("published")?;
        } else {
            bail!("a line is `load FILE` or `publish`");
        }
    }
    Ok(())
}

/// The heart of `leno`'s agent: loads what is delivered, swaps one pointer.
async fn keep(
    node: Arc<Node>,
    engine: Engine,
    mut updates: Updates,
    wanted: watch::Sender<BTreeSet<SpiffeId>>,
    gateway: SpiffeId,
    applied: watch::Sender<bool>,
) {
    while let Some(update) = updates.recv().await {
        let mut next = node.snapshot.load().change();
        let (mut complete, mut come) = (false, Vec::new());
        for change in update.changes.iter().cloned() {
            match change {
                Change::Set(Resource::Mesh(mesh)) => drop(next.mesh(*mesh)),
                Change::Set(Resource::Bundle(bundle)) => node.svids.set_bundle(bundle),
                Change::Set(Resource::Slice(slice)) => {
                    let engine = engine.clone();
                    let loading = tokio::task::spawn_blocking(move || Arc::new(FunctionEntry::load(&engine, *slice)));
                    let Ok(entry) = loading.await else { return };
                    come.extend(entry.identity.parse::<SpiffeId>());
                    next.insert(entry);
                }
                Change::Removed(Subject::Slice(id)) => drop(next.remove(&id)),
                Change::Set(Resource::Hosted(_)) => complete = true,
                // There are no user-written policies here.
                Change::Set(Resource::Endpoints(..) | Resource::Routes | Resource::Module(..)) | Change::Removed(_) => {
                }
            }
        }
        let snapshot = next.finish();
        let snapshot = Arc::new(snapshot);
        node.snapshot.store(snapshot.clone());
        wanted.send_modify(|wanted| wanted.extend(come.into_iter().chain([gateway.clone()])));
        update.accept();
        if complete {
            applied.send_replace(true);
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Definitions> {
    let snapshot: Snapshot = leno_config::load(path).map_err(|problems| anyhow!("{problems:?}"))?;
    let slices = snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.slice(id)?))).collect();
    Ok(Definitions { mesh: snapshot.mesh_slice().clone(), slices, modules: snapshot.modules().clone() })
}

/// The load's own key stays with the load.
fn certify(authority: &Authority, path: &Path) -> anyhow::Result<()> {
    let csr = std::fs::read(path.with_extension("csr")).context("no request for a certificate")?;
    let id: SpiffeId = crate::material::FRONTEND.parse()?;
    let chain = authority.sign(&csr, &id, Duration::from_secs(3600))?;
    let pem =
        |certificates: &mut dyn Iterator<Item = &[u8]>| certificates.map(crate::material::pem).collect::<String>();
    std::fs::write(path.with_extension("pem"), pem(&mut chain.iter().map(AsRef::as_ref)))?;
    let roots = authority.bundle();
    std::fs::write(path.with_file_name("mesh-ca.pem"), pem(&mut roots.roots().map(AsRef::as_ref)))?;
    Ok(())
}

/// The first address of each function's document.
#[derive(Default)]
struct External {
    node: OnceLock<Arc<Node>>,
}

impl Instances for External {
    fn try_acquire(&self, function: &FunctionId, _: u32, _: &[SocketAddr]) -> Option<Lease> {
        let snapshot = self.node.get()?.snapshot.load();
        match &snapshot.functions.get(function)?.slice.run {
            Run::External(addresses) => {
                Some(Lease { address: *addresses.first()?, instance: None, guard: Box::new(()) })
            }
            Run::Command(_) | Run::Wasm(_) | Run::Job(_) => None,
        }
    }

    fn acquire<'a>(
        &'a self,
        _: &'a FunctionId,
        _: u32,
        _: &'a [SocketAddr],
        _: Option<tokio::time::Instant>,
    ) -> Acquire<'a> {
        Box::pin(std::future::ready(Err(Unavailable::Unknown)))
    }

    fn count(&self, _: &FunctionId) -> u32 {
        1
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
