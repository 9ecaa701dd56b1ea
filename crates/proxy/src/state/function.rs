//! A function on this node: its configuration, and the data prepared from it.

use super::authorizer::Authorizer;
use super::component::{self, ComponentSecrets, Share};
use super::decisions::Decisions;
use super::egress::{self, EgressSecrets, EgressTarget};
use super::extension::Extension;
use super::modules::Modules;
use super::revisions::Revisions;
use super::routes::calls::{CallRoutes, CallTables};
use super::routes::faults::Faults;
use super::signature::PreparedKeys;
use leno_model::egress::wildcard;
use leno_model::{FunctionConfig, FunctionId, Route};
use leno_namespaces::{Bounds, Importance, Namespace, Namespaces, Source};
use leno_policy::engine::EngineKind;
use leno_policy::host::of_authority;
use leno_policy::needs::Needs;
use leno_policy::spec::{Cidr, ProgramSpec};
use leno_runtime::schedule::Class;
use leno_sandbox::{Engine, Image, LoadError};
use leno_telemetry::inputs::InputSelection;
use leno_telemetry::stats::StatsByRevision;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that a log message about an event counts for.
pub(crate) const EVENT: usize = 256;

/// Zero means no limit.
pub(crate) fn limit(time: Duration) -> Duration {
    if time.is_zero() { Duration::MAX } else { time }
}

/// One function on this node: its configuration, and the data prepared from it.
#[derive(Debug)]
pub struct FunctionEntry {
    /// The configuration as it was delivered.
    pub config: FunctionConfig,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The revisions that get requests.
    pub revisions: Revisions,
    /// Scheduling class of the tasks that work for this function.
    pub class: Class,
    /// The function's SPIFFE ID.
    pub identity: Arc<str>,
    /// The program that judges requests to this function.
    pub inbound: LoadedProgram,
    /// The program that judges this function's own calls.
    pub outbound: LoadedProgram,
    /// The external authorizers of requests to this function.
    pub(crate) authorizers: Box<[Authorizer]>,
    /// Extensions that see requests to this function, in order.
    pub inbound_extensions: Box<[Extension]>,
    /// Extensions that see this function's own calls, in order.
    pub outbound_extensions: Box<[Extension]>,
    /// Public keys that the programs may use.
    pub keys: PreparedKeys,
    /// Request headers that the inbound program sets from claims, and those that authorizers set.
    /// They must not occur in trailers.
    pub identity_fields: Arc<[Box<str>]>,
    /// Index into `config.callees`, by host name in lower case and without port, or by `*.suffix`
    /// for one more label.
    callees: HashMap<String, usize>,
    /// Addresses by which external callees may be called, and indices into `config.callees`; the
    /// longest prefix first.
    networks: Vec<(Cidr, usize)>,
    /// The rules that the function's calls follow.
    pub(crate) call_routes: CallRoutes,
    /// The faults of requests that come to it by `expose`; `None`: it has none.
    pub(crate) faults: Option<Faults>,
    /// The service, if the function is external.
    pub(crate) external: Option<Arc<EgressTarget>>,
    /// Whether this is a route: remote nodes host the function and judge its requests. Its
    /// configuration contains only the fields for the gateway.
    pub(crate) remote: bool,
    /// Its namespace on this node; without one, the function has no bounds.
    share: Share,
}

impl FunctionEntry {
    /// Makes a route of the gateway to a function on remote nodes. Loads its program, which allows
    /// everything: the callee's node judges. So a route must not be inserted among the functions of
    /// a snapshot ([`super::snapshot::Change::insert_route`]).
    pub fn route(engine: &Engine, route: Route) -> Self {
        Self { remote: true, ..Self::load(engine, route.into_config()) }
    }

    /// Loads both programs. This takes a millisecond or so, and does not belong on a worker thread.
    /// A program that does not load keeps the error, and denies every request.
    pub fn load(engine: &Engine, config: FunctionConfig) -> Self {
        let (modules, tables, secrets) = Default::default();
        Self::load_with(engine, &modules, &tables, config, &secrets)
    }

    /// Like [`FunctionEntry::load`], with modules for extensions and components, and the tables that
    /// callers share. An extension whose module is missing or does not start keeps the error, and so
    /// does a component that cannot run.
    pub fn load_with(
        engine: &Engine,
        modules: &Modules,
        tables: &CallTables,
        mut config: FunctionConfig,
        secrets: &ComponentSecrets,
    ) -> Self {
        let call_routes = CallRoutes::new(&mut config.callees, tables);
        let (name, share): (Arc<str>, _) = (config.id.to_string().into(), Share::default());
        let hosts = |(index, callee): (usize, &leno_model::Callee)| {
            callee.hosts.iter().map(move |host| (host.clone(), index)).collect::<Vec<_>>()
        };
        let claims = config.inbound.authentication.iter().flat_map(|issuer| &issuer.claims_to_headers);
        let answered = config.authorizers.iter().flat_map(|authorizer| &authorizer.upstream_headers);
        Self {
            identity_fields: claims
                .map(|(_, header)| header)
                .chain(answered)
                .map(|name| name.as_str().into())
                .collect(),
            authorizers: config.authorizers.iter().map(Authorizer::new).collect(),
            identity: (&config.identity).into(),
            inbound: LoadedProgram::load(engine, &config.inbound, config.deadline),
            outbound: LoadedProgram::load(engine, &config.outbound, config.deadline),
            inbound_extensions: load_all(modules, &name, &config.inbound_extensions, false),
            outbound_extensions: load_all(modules, &name, &config.outbound_extensions, true),
            revisions: Revisions::new(&config, |run| component::load(modules, (&name, &share), run, secrets)),
            callees: config.callees.iter().enumerate().flat_map(hosts).collect(),
            networks: networks(&config.callees),
            call_routes,
            faults: Faults::new(&name, &config.faults),
            external: match &config.run {
                leno_model::Run::Egress(egress) => {
                    let source = EgressSecrets::new(&config.id, config.bounds.file_access(), &secrets.stored);
                    Some(Arc::new(EgressTarget::new(egress, name.clone(), &source)))
                }
                _ => None,
            },
            keys: PreparedKeys::new(&config.keys),
            remote: false,
            share,
            class: Class::of(&name),
            name,
            config,
        }
    }
}

impl FunctionEntry {
    /// Whether the function gets paths as received. Otherwise it gets normalised ones.
    pub(crate) fn gets_as_received(&self) -> bool {
        self.inbound.spec.targets.first().is_some_and(|target| target.as_received)
    }

    /// Counts the outcomes of requests by revision, if the function has several.
    pub fn count_in(&self, revision_stats: &StatsByRevision) {
        let latency = self.config.revisions.plan.rollout.as_ref().and_then(|rollout| rollout.latency);
        let slow_after = latency.map(|latency| latency.limit);
        for revision in self.revisions.all().filter(|_| self.config.revisions.split.is_some()) {
            // A label that already has statistics keeps them.
            let label = &revision.label;
            let _ = label.stats.set(revision_stats.get_or_create(&self.config.id, label.number, slow_after));
        }
    }

    /// Counts the function's use of the node for its namespace.
    pub fn share_in(&self, namespaces: &Namespaces) {
        let namespace = &self.config.id.namespace;
        // A route does not contain the bounds.
        let share =
            if self.remote { namespaces.of(namespace) } else { namespaces.set(namespace, bounds(&self.config)) };
        let _ = self.share.set(share);
    }

    /// Its namespace on this node.
    pub(crate) fn share(&self) -> Option<&Arc<Namespace>> {
        self.share.get()
    }

    /// Whether the function's share of the log admits a message of so many bytes about one of its
    /// events.
    pub(crate) fn may_log(&self, bytes: usize) -> bool {
        self.share().is_none_or(|share| {
            share.log.admits(Source::Events, Importance::Allowed, &self.name, bytes, Instant::now())
        })
    }

    /// Whether the function serves another protocol than HTTP at this port.
    pub(crate) fn serves_other(&self, port: u16) -> bool {
        match &self.config.run {
            leno_model::Run::Command(command) => command.ports.iter().any(|served| served.number == port),
            leno_model::Run::Egress(egress) => egress.http_port(port).is_none(),
            leno_model::Run::External(_)
            | leno_model::Run::Wasm(_)
            | leno_model::Run::Job(_)
            | leno_model::Run::Pods(_) => false,
        }
    }

    /// The port at which rules judge a request for `port`. For an external service it is the one to
    /// which the request goes.
    pub(crate) fn judged_port(&self, port: u16) -> u16 {
        let external = self.external.as_deref().and_then(|external| external.egress.http_port(port));
        external.map_or(port, |port| port.number)
    }

    /// The callee that the function may call by this authority, with or without port. `None`: it
    /// may call none by this name or address.
    pub(crate) fn callee(&self, authority: &str) -> Option<&leno_model::Callee> {
        let host = of_authority(authority)?;
        let address = if self.networks.is_empty() { None } else { egress::literal(&host) };
        let index = match address {
            Some(address) => self.callee_at(address),
            None => self.callees.get(&*host).or_else(|| self.callees.get(&wildcard(&host)?)).copied(),
        };
        self.config.callees.get(index?)
    }

    /// The callee of this name; `None`: the function may not call it.
    pub(crate) fn callee_named(&self, id: &FunctionId) -> Option<&leno_model::Callee> {
        self.config.callees.iter().find(|callee| callee.id == *id)
    }

    /// Index of the external callee that has this address.
    pub(crate) fn callee_at(&self, address: IpAddr) -> Option<usize> {
        self.networks.iter().find(|(block, _)| block.contains(address)).map(|(_, index)| *index)
    }

    /// The longest time that an exchange with one of its targets may take; [`Duration::MAX`]: a
    /// target has no limit.
    pub fn longest_exchange(&self) -> Duration {
        let targets = self.inbound.spec.targets.iter().chain(&self.outbound.spec.targets);
        let longest = targets.map(|target| limit(Duration::from_millis(target.timeout_ms))).max();
        longest.unwrap_or_default().max(self.call_routes.longest)
    }
}

fn networks(callees: &[leno_model::Callee]) -> Vec<(Cidr, usize)> {
    let of = |(index, callee): (usize, &leno_model::Callee)| {
        callee.addresses.iter().map(move |block| (*block, index)).collect::<Vec<_>>()
    };
    let mut networks: Vec<_> = callees.iter().enumerate().flat_map(of).collect();
    networks.sort_by_key(|(block, _)| std::cmp::Reverse(block.prefix));
    networks
}

/// The bounds of a function's namespace.
fn bounds(FunctionConfig { bounds, .. }: &FunctionConfig) -> Bounds {
    Bounds {
        instances: bounds.instances().into(),
        connections: bounds.connections.map(Into::into),
        open_requests: bounds.open_requests().into(),
        waiting_requests: bounds.waiting_requests().into(),
        pull_bytes_per_second: bounds.pull_bandwidth.unwrap_or(u64::MAX),
        image_bytes: bounds.image_bytes,
        image_files: bounds.image_files.map(Into::into),
        log_bytes_per_second: bounds.log_bandwidth(),
    }
}

fn load_all(modules: &Modules, function: &str, list: &[leno_model::Extension], outbound: bool) -> Box<[Extension]> {
    list.iter().map(|extension| Extension::load(modules, function, extension, outbound)).collect()
}

/// Why a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Its source cannot be encoded.
    #[error(transparent)]
    Encoding(#[from] postcard::Error),
    /// The engine refuses it.
    #[error(transparent)]
    Engine(#[from] LoadError),
}

/// The program for one direction, ready to run.
#[derive(Debug)]
pub struct LoadedProgram {
    /// The initialised program, or why it could not be loaded. A program that could not be loaded
    /// denies everything.
    pub image: Result<Image, ProgramError>,
    /// The source of the program. The runtime uses it to render counter keys and to name rules.
    pub spec: Arc<ProgramSpec>,
    /// The inputs that the program requires.
    pub needs: Needs,
    /// The parts of each request that are kept, so that another program can judge it later.
    pub keeps: InputSelection,
    /// The longest time that one run may take.
    pub deadline: Duration,
    /// Whether decisions are remembered. Otherwise each request is judged by a run.
    pub(crate) remembers: bool,
    /// The decisions that are remembered.
    pub(crate) decisions: Decisions,
}

impl LoadedProgram {
    /// Initialises a program in `engine`, unless its verdict is the same for every request. If this
    /// fails, `image` holds the error.
    pub fn load(engine: &Engine, spec: &ProgramSpec, deadline: Duration) -> Self {
        let isolated = || -> Result<Image, ProgramError> {
            let blob = postcard::to_allocvec(spec)?;
            Ok(engine.load(&blob)?)
        };
        let image = Image::constant(spec.clone()).map_or_else(isolated, Ok);
        let needs = Needs::of(spec);
        // A constant program runs without a sandbox, which costs less than to remember.
        let sandboxed = image.as_ref().is_ok_and(|image| image.kind() != EngineKind::Constant);
        let remembers = sandboxed && !spec.sidecar.judge_each_request;
        let decisions = Decisions::default();
        Self {
            image,
            spec: Arc::new(spec.clone()),
            keeps: InputSelection::of(spec, &needs),
            needs,
            deadline,
            remembers,
            decisions,
        }
    }
}
