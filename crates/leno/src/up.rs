//! `leno up`: control plane, node and gateway in one process, with real sockets between them.

use crate::Guards;
use crate::allocator;
use crate::component_cache;
use crate::control::data_folder;
use crate::harden;
use crate::jails;
use crate::notify;
use crate::problems;
use crate::signals::Stop;
use crate::telemetry;
use anyhow::{Context, Result};
use leno_api::node::{self as admin, Address, Admin, Listener, ParentListener};
use leno_config::{Effort, Problem, Snapshot, Standing};
use leno_control::{Admission, Control, Options, Store};
use leno_identity::Authority;
use leno_intake::{Intake, IntakeError};
use leno_jail::Half;
use leno_model::MeshConfig;
use leno_node::{Engines, Join, Running};
use leno_proxy::modules::Modules;
use leno_supervisor::{Settings, VolumeStore};
use leno_wire::Placement;
use rustix::process::{Resource, getrlimit};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Threads of the control plane, the supervisor and the admin listener, unless there are fewer
/// cores: they would only wake one another. Requests have separate workers.
const MANAGEMENT_THREADS: usize = 2;

/// Pause before asking registries again that could not resolve a tag.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Runs until a signal ends it.
pub(crate) fn run(
    path: &Path,
    workers: Option<usize>,
    (store, state): (Option<&Path>, Option<&Path>),
    guards: &Guards,
) -> Result<ExitCode> {
    telemetry::start();
    // The check compiles modules and the node runs the compiled ones: an interpreter need not
    // compile twice.
    let modules = Arc::new(component_cache::modules());
    let intake = Intake::new(modules.clone());
    let snapshot = match intake.check(path, &Effort::unbounded()) {
        Ok(snapshot) => snapshot,
        Err(problems) => {
            problems::report(&problems);
            return Ok(ExitCode::from(2));
        }
    };
    let workers = workers.map(|count| NonZeroUsize::new(count).context("--workers must be at least 1")).transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let store = store.map(Store::open).transpose()?.unwrap_or_else(Store::memory);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(MANAGEMENT_THREADS.min(cores))
        .thread_name("leno-manage")
        .enable_all()
        .build()?;
    let state = state.map(Path::to_owned).or_else(|| Some(data_folder().ok()?.join("up")));
    let volumes = state.map(|state| VolumeStore::new(&state.join("volumes")));
    let code = runtime.block_on(up(path, snapshot, (modules, intake, store), volumes, workers, guards))?;
    // The remaining tasks need not complete.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code)
}

async fn up(
    path: &Path,
    snapshot: Snapshot,
    (modules, intake, store): (Arc<Modules>, Intake, Store),
    volumes: Option<VolumeStore>,
    workers: Option<NonZeroUsize>,
    guards: &Guards,
) -> Result<ExitCode> {
    // Handlers of signals come first, so that no signal is lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mesh = snapshot.mesh_config().clone();
    let engines = Arc::new(Engines::default());
    // Starting an engine takes a while.
    tokio::task::block_in_place(|| engines.refuse(&snapshot)).map_err(anyhow::Error::msg)?;
    tracing::info!("sandbox engine: {}", engines.describe(mesh.engine)?);

    let accounts = harden::accounts(mesh.accounts, guards.node_account)?;
    let control = Control::new(Authority::new(&mesh.trust_domain)?, store, Options::default())?;
    let listener = TcpListener::bind(mesh.control)
        .await
        .with_context(|| format!("cannot listen on {} (control); is another `leno up` running?", mesh.control))?;
    let control_address = listener.local_addr()?;
    let published = tokio::select! {
        published = intake.publish(&control, &snapshot) => published,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    match published {
        Ok(_) => {}
        Err(IntakeError::Images(problems)) => {
            problems::report(&problems);
            return Ok(ExitCode::from(2));
        }
        Err(IntakeError::Publish(error)) => return Err(error.into()),
    }
    let admission =
        Admission { placement: Placement::Everything, gateway: true, locality: Default::default(), egress: true };
    let membership = control.admit_at(NODE, admission, &[mesh.inbound.ip()])?;
    let serving = control.clone();
    tokio::spawn(async move {
        if let Err(error) = serving.serve(listener, std::future::pending()).await {
            tracing::error!(%error, "the control plane has ended");
        }
    });

    let settings = Settings {
        cgroups: true,
        adopt_orphans: true,
        accounts,
        jails: jails::open(Half::First).await,
        // The limit before the node raises it for itself: programs that use select(2) must not get
        // descriptors above 1023.
        descriptors: getrlimit(Resource::Nofile).current,
        volumes,
        ..Settings::default()
    };
    let join = Join {
        control: vec![control_address.to_string()],
        membership,
        advertised: None,
        gateway: true,
        listeners: leno_node::Listeners::default(),
        locality: Default::default(),
        any_caller: guards.any_caller,
        capacity: None,
        settings,
        parent: None,
    };
    let admin_listener = Listener::open(&mesh.admin, ParentListener::default()).await?;
    let admin = admin_listener.address()?;
    let running = leno_node::start(mesh.clone(), workers, engines.clone(), modules.clone(), join).await?;
    let told = Admin {
        node: running.node.clone(),
        supervisor: running.supervisor.clone(),
        control: Some(control.clone()),
        configured: running.configured.clone(),
        ready: running.ready.clone(),
        upgrades: None,
    };
    admin::serve(Arc::new(told), admin_listener);
    let mut is_ready = running.ready.clone();
    let started = tokio::select! {
        ready = is_ready.wait_for(|ready| *ready) => ready.is_ok(),
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    if !started {
        running.stop().await?;
        return Ok(ExitCode::SUCCESS);
    }
    announce(&running, &admin, path, &snapshot);
    notify::send("READY=1");
    tokio::spawn(allocator::give_back());

    let (changed, mut changes) = mpsc::unbounded_channel();
    // Dropping the watcher at the end of this function closes the channel.
    let _watching =
        leno_config::watch::watch(path, &snapshot, leno_translate::load, move |change| drop(changed.send(change)));
    let mut warned = snapshot.warnings().to_vec();
    // A change with tags that no registry could resolve, and the time of the next attempt.
    let mut unresolved: Option<(Instant, Snapshot)> = None;
    loop {
        let again = unresolved.as_ref().map_or_else(Instant::now, |(again, _)| *again);
        let change = tokio::select! {
            Some(change) = changes.recv() => change,
            () = sleep_until(again), if unresolved.is_some() => match unresolved.take() {
                Some((_, snapshot)) => Ok(snapshot),
                None => continue,
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        // Registries may be slow.
        unresolved = tokio::select! {
            applied = apply(&control, &intake, (&engines, &mesh), change, &mut warned) => applied,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
    }
    notify::send("STOPPING=1");
    tracing::info!("ending: no new connections, requests under way may end; another signal ends them");
    running.stop_unless(Stop::new()?.asked()).await?;
    Ok(ExitCode::SUCCESS)
}

/// The one node of this process.
const NODE: &str = "local";

fn announce(running: &Running, admin: &Address, path: &Path, snapshot: &Snapshot) {
    let addresses = running.addresses;
    for (scheme, address) in [("http", addresses.gateway_http), ("https", addresses.gateway_https)] {
        if let Some(address) = address {
            tracing::info!("gateway   {scheme}://{address}");
        }
    }
    tracing::info!("sidecars  outbound {}, inbound {}", addresses.outbound, addresses.inbound);
    tracing::info!("admin     {admin}");
    tracing::info!("{}: {}", path.display(), snapshot.read());
    tell_imports(snapshot);
    snapshot.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    tracing::info!("ready: {}", snapshot.summary());
}

/// Logs the number of fields that were approximated or left out in the translation of policies of
/// other projects.
fn tell_imports(snapshot: &Snapshot) {
    let count = |standing| snapshot.translations().iter().filter(|row| row.standing == standing).count();
    let (approximated, left_out) = (count(Standing::Approximated), count(Standing::LeftOut));
    if approximated + left_out > 0 {
        tracing::warn!(
            "translated policies: {approximated} fields are approximated and {left_out} left out; `leno check` says which, and how"
        );
    }
}

/// Puts a change of the documents into force, or logs why it cannot. Returns the change if it waits
/// for registries, and the time of the next attempt.
async fn apply(
    control: &Control,
    intake: &Intake,
    (engines, running): (&Engines, &MeshConfig),
    change: Result<Snapshot, Vec<Problem>>,
    warned: &mut Vec<Problem>,
) -> Option<(Instant, Snapshot)> {
    let change = change.and_then(|snapshot| {
        let fixed = running.fixed_at_start(snapshot.mesh_config());
        let problems: Vec<_> = fixed.into_iter().map(|field| snapshot.mesh_problem(field, "needs a restart")).collect();
        if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
    });
    // Compiling takes a while.
    let checked = tokio::task::block_in_place(|| intake.check(change, &Effort::unbounded()));
    let snapshot = match checked {
        Ok(snapshot) => snapshot,
        Err(problems) => {
            refused(&problems);
            return None;
        }
    };
    if let Err(error) = tokio::task::block_in_place(|| engines.refuse(&snapshot)) {
        tracing::error!("the change is refused: {error}; what was in force goes on");
        return None;
    }
    match intake.publish(control, &snapshot).await {
        Ok((published, _)) => {
            tracing::info!(
                functions = published.functions,
                changed = published.changed,
                removed = published.removed,
                "the documents have changed: {}",
                snapshot.read()
            );
            tell_imports(&snapshot);
            warn_of_more(warned, snapshot.warnings());
        }
        Err(IntakeError::Images(problems)) => {
            refused(&problems);
            tracing::info!("registries are asked again in {ASK_AGAIN:?}");
            return Some((Instant::now() + ASK_AGAIN, snapshot));
        }
        Err(IntakeError::Publish(error)) => {
            tracing::error!("the change is refused: {error}; what was in force goes on");
        }
    }
    None
}

fn refused(problems: &[Problem]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
    tracing::error!(
        "the change is refused ({}); what was in force goes on",
        problems::counted(problems.len(), "problem")
    );
}

/// Logs the warnings that the documents did not have before the change. Lines and numbers of rules
/// move, so only file and message count.
fn warn_of_more(before: &mut Vec<Problem>, now: &[Problem]) {
    let same = |one: &Problem, other: &Problem| (&one.file, &one.message) == (&other.file, &other.message);
    for warning in now.iter().filter(|warning| !before.iter().any(|before| same(before, warning))) {
        tracing::warn!("{warning}");
    }
    *before = now.to_vec();
}
