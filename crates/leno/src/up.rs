//! `leno up`: control plane, node and gateway in one process, with real sockets between them.
//!
//! `leno upgrade` replaces the process by another one, as it does with a node. The child has its own
//! control plane, which reads the documents and continues from the revisions and the outcomes of
//! jobs of its parent.

mod transfer;

use self::transfer::{Attachment, ControlListener};
use crate::Guards;
use crate::allocator::Starting;
use crate::component_cache;
use crate::control::data_folder;
use crate::harden;
use crate::hot_restart::{self, ChildStarter, Program};
use crate::jails;
use crate::notify;
use crate::problems;
use crate::progress::Progress;
use crate::pulls;
use crate::random;
use crate::signals::Stop;
use crate::telemetry;
use anyhow::{Context, Result, bail};
use leno_api::alerts::AlertHistory;
use leno_api::changes::FileChanges;
use leno_api::gateways::RouteViews;
use leno_api::node::{self as admin, Address, Admin, Listener, PARENT_PID, ParentListener};
use leno_api::upgrade::Pending;
use leno_config::{Effort, Problem, Snapshot, Standing};
use leno_control::{Admission, Control, Store};
use leno_identity::Authority;
use leno_intake::{Intake, IntakeError};
use leno_model::MeshConfig;
use leno_node::{Engines, Join, Parent, Running};
use leno_proxy::modules::Modules;
use leno_supervisor::{Settings, VolumeStore, end_orphans};
use leno_wire::Placement;
use rustix::process::{Resource, getrlimit};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Threads of the control plane, the supervisor and the admin listener, unless there are fewer
/// cores: they would only wake one another. Requests have separate workers.
const MANAGEMENT_THREADS: usize = 2;

/// Pause before asking registries again that could not resolve a tag.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The arguments.
pub(crate) struct Options<'a> {
    pub path: &'a Path,
    pub workers: Option<usize>,
    pub store: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub guards: &'a Guards,
    pub take_over: bool,
}

/// Runs until a signal ends it.
pub(crate) fn run(options: &Options<'_>) -> Result<ExitCode> {
    let starting = Starting::begin();
    random::gather();
    telemetry::start();
    let program = Program::of_this_process()?;
    let parent = options.take_over.then(hot_restart::parent).transpose()?;
    let path = options.path;
    // The check compiles modules and the node runs the compiled ones: an interpreter need not
    // compile twice.
    let modules = Arc::new(component_cache::modules());
    let intake = Intake::new(modules.clone());
    let compiles = Progress::of(format!("compiles {}", path.display()));
    let checked = intake.check(path, &Effort::unbounded());
    drop(compiles);
    let snapshot = match checked {
        Ok(snapshot) => snapshot,
        Err(problems) => {
            problems::report(&problems);
            return Ok(ExitCode::from(2));
        }
    };
    let workers = options.workers.map(|count| NonZeroUsize::new(count).context("--workers must be at least 1"));
    let workers = workers.transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // The parent still has the file of the store open.
    let file = options.store.as_deref().filter(|_| parent.is_none());
    let store = file.map(Store::open).transpose()?.unwrap_or_else(Store::memory);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(MANAGEMENT_THREADS.min(cores))
        .thread_name("leno-manage")
        .enable_all()
        .build()?;
    let state = options.state.clone().or_else(|| Some(data_folder().ok()?.join("up")));
    let volumes = state.map(|state| VolumeStore::new(&state.join("volumes")));
    let code = runtime.block_on(up(
        options,
        snapshot,
        (modules, intake, store),
        volumes,
        workers,
        (program, parent),
        starting,
    ))?;
    // The remaining tasks need not complete.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code)
}

async fn up(
    options: &Options<'_>,
    snapshot: Snapshot,
    (modules, intake, store): (Arc<Modules>, Intake, Store),
    volumes: Option<VolumeStore>,
    workers: Option<NonZeroUsize>,
    (program, mut parent): (Program, Option<Parent>),
    starting: Starting,
) -> Result<ExitCode> {
    let (path, guards) = (options.path, options.guards);
    // Handlers of signals come first, so that no signal is lost.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // Jails are made while the documents are put into force.
    let half = parent.as_ref().map(Parent::half).unwrap_or_default();
    let jails = tokio::spawn(jails::open(half));
    let mesh = snapshot.mesh_config().clone();
    let engines = Arc::new(Engines::default());
    // Starting an engine takes a while.
    let starts = Progress::of("starts the sandbox engine");
    tokio::task::block_in_place(|| engines.refuse(&snapshot)).map_err(anyhow::Error::msg)?;
    drop(starts);
    tracing::info!("sandbox engine: {}", engines.describe(mesh.engine)?);

    let accounts = harden::accounts(mesh.accounts, guards.node_account)?;
    let control = Control::new(Authority::new(&mesh.trust_domain)?, store, leno_control::Options::default())?;
    let ControlListener { listener, reserved } = match &mut parent {
        Some(parent) => {
            transfer::import(&control, parent)?;
            ControlListener::after(parent).await?
        }
        None => ControlListener::bind(mesh.control).await?,
    };
    let control_address = listener.local_addr()?;
    let publishes = Progress::of("resolves the tags of images and publishes the documents");
    let published = tokio::select! {
        published = intake.publish(&control, &snapshot, None) => published,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    drop(publishes);
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

    let descriptors = match &parent {
        Some(parent) => parent.descriptors(),
        // The limit before the node raises it for itself: programs that use select(2) must not get
        // descriptors above 1023.
        None => getrlimit(Resource::Nofile).current,
    };
    let first_instance = parent.as_ref().map_or(1, Parent::first_instance);
    let inherited = parent.as_mut().map(|parent| ParentListener::from_descriptors(|name| parent.take(name)));
    let settings = Settings {
        cgroups: true,
        adopt_orphans: true,
        accounts,
        jails: jails.await?,
        first_instance,
        descriptors,
        volumes,
        ..Settings::default()
    };
    let join = Join {
        control: vec![control_address.to_string()],
        membership,
        rejoin: None,
        advertised: None,
        gateway: true,
        listeners: leno_node::Listeners::default(),
        locality: Default::default(),
        any_caller: guards.any_caller,
        capacity: None,
        settings,
        parent,
        pods: None,
        own_control: true,
    };
    let admin_listener = Listener::open(&mesh.admin, inherited.unwrap_or_default()).await?;
    let (admin, leaves_file) = (admin_listener.address()?, admin_listener.leaves_file());
    let (sole, alone) = watch::channel(false);
    let mut starter = ChildStarter { program, admin: admin_listener.descriptors()?, half, descriptors, alone };
    let mut running = leno_node::start(mesh.clone(), workers, engines.clone(), modules.clone(), join).await?;
    let taken = tokio::select! {
        taken = running.take_over() => taken.map(Some),
        _ = terminate.recv() => Ok(None),
        _ = interrupt.recv() => Ok(None),
    };
    match taken {
        Ok(Some(gone)) => drop(tokio::spawn(async move {
            gone.await;
            PARENT_PID.store(0, Ordering::Relaxed);
            sole.send_replace(true);
        })),
        Ok(None) => {
            running.stop().await?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(reason) => {
            running.stop().await?;
            bail!("{reason}");
        }
    }
    leaves_file.store(false, Ordering::Relaxed);
    let (mut attachment, store_fault) = Attachment::new(options.store.as_deref().filter(|_| options.take_over));
    let (upgrades, mut requests) = mpsc::channel(1);
    let files = Arc::new(tokio::task::block_in_place(|| FileChanges::new(path)));
    let routes = Arc::new(RouteViews::default());
    routes.set(snapshot.route_report());
    let told = Admin {
        node: running.node.clone(),
        supervisor: running.supervisor.clone(),
        control: Some(control.clone()),
        changes: Some(files.clone()),
        routes: Some(routes.clone()),
        configured: running.configured.clone(),
        ready: running.ready.clone(),
        pods: None,
        store_fault,
        upgrades,
        alerts: AlertHistory::default(),
    };
    told.alerts.take_warnings(snapshot.warnings());
    let told = Arc::new(told);
    let answering = admin::serve(told.clone(), admin_listener);
    tokio::spawn(pulls::show(running.supervisor.clone()));
    let waits = Progress::of("fetches modules and waits for certificates");
    let mut is_ready = running.ready.clone();
    let started = tokio::select! {
        ready = is_ready.wait_for(|ready| *ready) => ready.is_ok(),
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    drop(waits);
    if !started {
        running.stop().await?;
        return Ok(ExitCode::SUCCESS);
    }
    announce(&running, &admin, path, &snapshot);
    if !options.take_over {
        notify::send("READY=1");
    }
    tokio::spawn(starting.give_back());

    let (changed, mut changes) = mpsc::unbounded_channel();
    // Dropping the watcher at the end of this function closes the channel.
    let _watching =
        leno_config::watch::watch(path, &snapshot, leno_translate::load, move |change| drop(changed.send(change)));
    let mut warned = snapshot.warnings().to_vec();
    // A change with tags that no registry could resolve, and the time of the next attempt.
    let mut unresolved: Option<(Instant, Snapshot)> = None;
    let mut in_force = snapshot;
    loop {
        let again = unresolved.as_ref().map_or_else(Instant::now, |(again, _)| *again);
        let change = tokio::select! {
            Some(change) = changes.recv() => change,
            () = sleep_until(again), if unresolved.is_some() => match unresolved.take() {
                Some((_, snapshot)) => Ok(snapshot),
                None => continue,
            },
            () = attachment.due() => {
                attachment.attempt(&control, &intake, &in_force).await;
                continue;
            }
            Some(Pending { request, answer }) = requests.recv() => {
                let upgraded = tokio::select! {
                    upgraded = transfer::upgrade(&mut starter, &running, &control, (&reserved, &request)) => upgraded,
                    _ = terminate.recv() => break,
                    _ = interrupt.recv() => break,
                };
                match upgraded {
                    Ok((link, child)) => {
                        // The client may be gone.
                        let _ = answer.send(Ok(format!("process {} has taken over", child.pid())));
                        control.detach();
                        leaves_file.store(true, Ordering::Relaxed);
                        tracing::info!("draining: child process {} has the mesh, requests under way may end", child.pid());
                        tokio::join!(answering.end(), running.drain_as_parent(link)).1?;
                        return Ok(ExitCode::SUCCESS);
                    }
                    Err(reason) => {
                        tracing::error!("hot restart: {reason}; this process goes on");
                        let _ = answer.send(Err(reason));
                        continue;
                    }
                }
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        // Registries may be slow.
        unresolved = tokio::select! {
            applied = apply(&control, &intake, (&engines, &mesh), change, (&mut in_force, &mut warned), (&files, &routes, &told.alerts)) => applied,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
    }
    // Processes of a child that failed to take over.
    end_orphans().await;
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
    let outbound = addresses.outbound.map(|address| format!("outbound {address}, ")).unwrap_or_default();
    tracing::info!("sidecars  {outbound}inbound {}", addresses.inbound);
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
    (in_force, warned): (&mut Snapshot, &mut Vec<Problem>),
    (files, routes, alerts): (&FileChanges, &RouteViews, &AlertHistory),
) -> Option<(Instant, Snapshot)> {
    let change = change.and_then(|snapshot| {
        let fixed = running.fixed_at_start(snapshot.mesh_config());
        let problems: Vec<_> = fixed.into_iter().map(|field| snapshot.mesh_problem(field, "needs a restart")).collect();
        if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
    });
    // Compiling takes a while, and registries may be slow.
    let _applies = Progress::of("compiles and publishes the change");
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
    match intake.publish(control, &snapshot, None).await {
        Ok((published, _)) => {
            tracing::info!(
                functions = published.functions,
                changed = published.changed,
                removed = published.removed,
                "the documents have changed: {}",
                snapshot.read()
            );
            tokio::task::block_in_place(|| files.record());
            tell_imports(&snapshot);
            warn_of_more(warned, snapshot.warnings());
            alerts.take_warnings(snapshot.warnings());
            routes.set(snapshot.route_report());
            *in_force = snapshot;
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
