//! `leno-bench node`: control plane and node as `leno up` puts them together, for what cannot be
//! measured from outside: the inline engine (which configuration cannot select), the inbound
//! listener with an identity of the mesh for the load, and the time from a publication to the first
//! judged request (`leno up` looks at its files twice a second).
//!
//! It lacks the admin listener.

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use leno_config::Snapshot;
use leno_control::{Admission, Control, Definitions, Store};
use leno_identity::{Authority, SpiffeId};
use leno_node::{Engines, Join};
use leno_sandbox::Engine;
use leno_supervisor::Settings;
use leno_wire::Placement;
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// As `leno up` has.
const MANAGEMENT_THREADS: usize = 2;
const NODE: &str = "bench";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A file of documents, all functions external.
    #[arg(long, value_name = "FILE")]
    documents: PathBuf,
    #[arg(long, value_name = "ENGINE")]
    engine: Isolation,
    /// Sign an SVID for the load: a request for it is read from NAME.csr, and the chain and the
    /// root are written to NAME.pem and ca.pem beside it.
    #[arg(long, value_name = "NAME")]
    identity: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Isolation {
    Inline,
    Wasm,
    Microvm,
}

/// Serves until standard input ends. A line `load FILE` reads other documents, a line `publish`
/// puts them into force; each is answered by a line when it is done.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
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
    let authority = Authority::new(&mesh.trust_domain)?;
    if let Some(path) = &arguments.identity {
        certify(&authority, path)?;
    }
    let control = Control::new(authority, Store::memory(), leno_control::Options::default())?;
    let listener = TcpListener::bind(mesh.control).await?;
    let address = listener.local_addr()?;
    control.publish(&next)?;
    let admission =
        Admission { placement: Placement::Everything, gateway: true, locality: Default::default(), egress: true };
    let membership = control.admit_at(NODE, admission, &[mesh.inbound.ip()])?;
    let serving = control.clone();
    tokio::spawn(async move { drop(serving.serve(listener, std::future::pending()).await) });

    let join = Join {
        control: vec![address.to_string()],
        membership,
        rejoin: None,
        advertised: None,
        gateway: true,
        listeners: leno_node::Listeners::default(),
        locality: Default::default(),
        any_caller: false,
        capacity: None,
        settings: Settings::default(),
        parent: None,
        pods: None,
        own_control: true,
    };
    let engines = Arc::new(Engines::only(engine));
    let running = leno_node::start(mesh, NonZeroUsize::new(1), engines, Arc::default(), join).await?;
    running.ready.clone().wait_for(|ready| *ready).await?;
    say("ready")?;

    let mut fresh = BTreeMap::new();
    let mut lines = std::io::stdin().lines();
    // Reading blocks this thread; the node lives on others.
    while let Some(line) = tokio::task::block_in_place(|| lines.next()) {
        let line = line?;
        if let Some(path) = line.strip_prefix("load ") {
            let read = read(Path::new(path))?;
            fresh = read.configs.into_iter().filter(|(id, config)| next.configs.get(id) != Some(config)).collect();
            say("loaded")?;
        } else if line == "publish" {
            for config in fresh.values() {
                control.put(config)?;
            }
            next.configs.append(&mut fresh);
            say("published")?;
        } else {
            bail!("a line is `load FILE` or `publish`");
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Definitions> {
    let snapshot: Snapshot = leno_config::load(path).map_err(|problems| anyhow!("{problems:?}"))?;
    let configs = snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.function_config(id)?))).collect();
    Ok(Definitions {
        mesh: snapshot.mesh_config().clone(),
        configs,
        routes: snapshot.gateway_routes().clone(),
        modules: snapshot.modules().clone(),
        permissions: snapshot.permissions(),
        secrets: None,
    })
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

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
