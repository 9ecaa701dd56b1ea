//! Loads function configurations, so that they can run. That takes about a millisecond for each
//! program, and longer for components. Separate tasks do it, so the reconciler goes on meanwhile.

use crate::engines::{Engines, NoEngine};
use crate::kernel::KernelParts;
use bytes::Bytes;
use leno_model::{FunctionConfig, FunctionId, GatewayRoutes, Isolation, ModuleHash, Route, StoredSecrets};
use leno_policy::spec::Direction;
use leno_proxy::extension::Extension;
use leno_proxy::modules::Modules;
use leno_proxy::{CallTables, ComponentSecrets, FunctionEntry, GatewayTables, Node};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};

#[derive(Clone)]
pub(crate) struct Loader {
    pub engines: Arc<Engines>,
    /// Compiled modules of extensions and components.
    pub modules: Arc<Modules>,
    /// Tables of routes for calls, which functions share.
    pub call_tables: Arc<CallTables>,
    pub node: Arc<Node>,
    pub kernel: Arc<KernelParts>,
    /// The stored secrets that the control plane has delivered.
    pub secrets: StoredSecrets,
}

/// The resources to load.
#[derive(Default)]
pub(crate) struct LoadRequest {
    /// Compiled before any function configuration is loaded, because these name them.
    pub modules: Vec<(ModuleHash, Bytes)>,
    pub configs: Vec<FunctionConfig>,
    /// The gateway's routes to functions of other nodes.
    pub routes: Vec<Route>,
    /// The listeners and routes of Gateway documents.
    pub gateway_routes: Option<Box<GatewayRoutes>>,
    /// The engine of functions that request none.
    pub engine: Option<leno_model::Engine>,
}

/// Why a function configuration or route cannot run on this node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("its `isolation: {isolation}` is weaker than its namespace may have: `{least}`")]
    WeakIsolation { isolation: Isolation, least: Isolation },
    #[error("{0} is an address of metadata services, which `egress` of its namespace's quota does not list")]
    Metadata(IpAddr),
    #[error(transparent)]
    Engine(#[from] NoEngine),
    #[error("its program cannot be loaded: {0}")]
    RouteProgram(String),
    #[error("the routes of documents cannot be used: {0}")]
    Routes(String),
    #[error("its {direction:?} program cannot be loaded: {reason}")]
    Program { direction: Direction, reason: String },
    #[error("its extension {name} cannot be loaded: {reason}")]
    Extension { name: String, reason: String },
    #[error("its component cannot be loaded: {0}")]
    Component(String),
    #[error("no thread can be started to load it: {0}")]
    NoThread(io::Error),
    #[error("loading it has failed")]
    Panicked,
}

/// The result of loading.
#[derive(Default)]
pub(crate) struct LoadResult {
    /// Modules that cannot be used, and why.
    pub refused: HashMap<ModuleHash, String>,
    pub functions: HashMap<FunctionId, Result<Arc<FunctionEntry>, LoadError>>,
    pub routes: HashMap<FunctionId, Result<Arc<FunctionEntry>, LoadError>>,
    pub gateway_routes: Option<Result<Arc<GatewayTables>, LoadError>>,
}

enum Load {
    Function(Box<FunctionConfig>),
    Route(Box<Route>),
}

impl Loader {
    /// Loads everything in the background. At most as many function configurations are loaded at a
    /// time as there are cores.
    pub(crate) fn start(&self, wanted: LoadRequest) -> JoinHandle<LoadResult> {
        let loader = self.clone();
        tokio::spawn(async move { loader.load(wanted).await })
    }

    async fn load(self, wanted: LoadRequest) -> LoadResult {
        let mut loaded = LoadResult::default();
        for (hash, bytes) in wanted.modules {
            let modules = self.modules.clone();
            let compiled = spawn_blocking(move || modules.add(hash, &bytes)).await;
            let compiled = compiled.map_err(|error| error.to_string());
            if let Err(reason) = compiled.and_then(|added| added.map_err(|error| error.to_string())) {
                loaded.refused.insert(hash, reason);
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let permits = Arc::new(Semaphore::new(cores));
        let mut loading = JoinSet::new();
        let configs = wanted.configs.into_iter().map(|config| Load::Function(Box::new(config)));
        let routes = wanted.routes.into_iter().map(|route| Load::Route(Box::new(route)));
        for load in configs.chain(routes) {
            let (loader, secrets, permits, engine) =
                (self.clone(), self.secrets.clone(), permits.clone(), wanted.engine);
            loading.spawn(async move {
                let (id, is_route) = match &load {
                    Load::Function(config) => (config.id.clone(), false),
                    Load::Route(route) => (route.id.clone(), true),
                };
                // Reads them before it takes a permit: a file system that hangs must not delay the
                // loads of other functions.
                let secrets = match &load {
                    Load::Function(config) => ComponentSecrets::read(config, &secrets).await,
                    Load::Route(_) => ComponentSecrets::default(),
                };
                // The semaphore is never closed, so this does not fail.
                let _permit = permits.acquire_owned().await;
                let entry = on_thread(move || match load {
                    Load::Function(config) => loader.load_one(*config, engine, &secrets),
                    Load::Route(route) => loader.load_route(*route, engine),
                });
                (is_route, id, entry.await)
            });
        }
        if let Some(routes) = wanted.gateway_routes {
            let tables =
                move || GatewayTables::new(&routes).map(Arc::new).map_err(|error| LoadError::Routes(error.to_string()));
            loaded.gateway_routes = Some(on_thread(tables).await);
        }
        while let Some(done) = loading.join_next().await {
            // The tasks do not panic, and no code aborts them.
            let Ok((is_route, id, entry)) = done else { continue };
            if is_route { &mut loaded.routes } else { &mut loaded.functions }.insert(id, entry);
        }
        loaded
    }

    fn load_route(&self, route: Route, engine: Option<leno_model::Engine>) -> Result<Arc<FunctionEntry>, LoadError> {
        let engine = self.engines.choose(route.engine, engine)?;
        let entry = FunctionEntry::route(engine, route);
        entry.share_in(&self.node.telemetry.namespaces);
        match &entry.inbound.image {
            Ok(_) => Ok(Arc::new(entry)),
            Err(reason) => Err(LoadError::RouteProgram(reason.to_string())),
        }
    }

    fn load_one(
        &self,
        config: FunctionConfig,
        engine: Option<leno_model::Engine>,
        secrets: &ComponentSecrets,
    ) -> Result<Arc<FunctionEntry>, LoadError> {
        if let Some((isolation, least)) = config.weaker_isolation() {
            return Err(LoadError::WeakIsolation { isolation, least });
        }
        if let Some(address) = config.unlisted_metadata() {
            return Err(LoadError::Metadata(address));
        }
        self.kernel.prepare(&config);
        let engine = self.engines.choose(config.engine, engine)?;
        let entry = FunctionEntry::load_with(engine, &self.modules, &self.call_tables, config, secrets);
        entry.count_in(&self.node.revision_stats);
        entry.share_in(&self.node.telemetry.namespaces);
        for program in [&entry.inbound, &entry.outbound] {
            if let Err(reason) = &program.image {
                return Err(LoadError::Program { direction: program.spec.direction, reason: reason.to_string() });
            }
        }
        delivered(&entry.config.inbound_extensions, &entry.inbound_extensions)?;
        delivered(&entry.config.outbound_extensions, &entry.outbound_extensions)?;
        for component in entry.revisions.all().filter_map(|revision| revision.component.as_ref()) {
            if let (Err(reason), false) = (&component.program, component.fetched) {
                return Err(LoadError::Component(reason.to_string()));
            }
        }
        Ok(Arc::new(entry))
    }
}

/// Loads on a thread outside of the async runtime, because a call that blocks that runtime must not
/// block configuration.
async fn on_thread<T: Send + 'static>(
    load: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("leno-load".to_owned());
    let started = thread.spawn(move || drop(done.send(load())));
    started.map_err(LoadError::NoThread)?;
    result.await.unwrap_or(Err(LoadError::Panicked))
}

/// Fails if an extension is not ready although its module was delivered. A fetched module may
/// arrive later, or never.
fn delivered(specs: &[leno_model::Extension], loaded: &[Extension]) -> Result<(), LoadError> {
    for (spec, extension) in specs.iter().zip(loaded).filter(|(spec, _)| spec.url.is_none()) {
        if let Err(reason) = &extension.plugin {
            return Err(LoadError::Extension { name: spec.name.clone(), reason: reason.to_string() });
        }
    }
    Ok(())
}
