//! Compiled user documents: the input of the control plane.

use crate::error::DefinitionsError;
use crate::history::Histories;
use crate::job::JobDefinition;
use crate::scheduler::{Demand, JailUse};
use leno_config::Permissions;
use leno_identity::{CERTIFICATE_KEY, PRIVATE_KEY, SpiffeId, TrustBundle, TrustDomain};
use leno_model::revision::{Revision, Revisions, Template};
use leno_model::{ChainLink, Container, Isolation, Run, Scale};
use leno_model::{FunctionConfig, FunctionId, GatewayRoutes, MeshConfig, ModuleHash, Route, SecretValues, StoredKey};
use leno_policy::spec::{QuotaAlgorithm, RateLimit};
use leno_wire::encoding::EncodingError;
use leno_wire::{Capacity, Content, Subject, run_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The complete definitions of a mesh at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Definitions {
    /// Mesh-wide settings, which every node needs.
    pub mesh: MeshConfig,
    /// The configurations of all functions and jobs, by name.
    pub configs: BTreeMap<FunctionId, FunctionConfig>,
    /// The listeners and routes of Gateway documents.
    pub routes: GatewayRoutes,
    /// WebAssembly modules that function configurations name, by SHA-256. Modules that nodes fetch
    /// by URL are not included.
    pub modules: BTreeMap<ModuleHash, Arc<[u8]>>,
    /// The policies that permit calls to each function. They are not stored.
    pub permissions: Permissions,
    /// The values of stored secrets, by namespace; `None`: they are not known yet. They are not
    /// stored with the definitions.
    pub secrets: Option<Secrets>,
}

/// The values of stored secrets, by namespace.
pub type Secrets = BTreeMap<String, SecretValues>;

pub(crate) type Modules = BTreeMap<ModuleHash, Arc<[u8]>>;

/// Definitions in the form in which they are delivered.
#[derive(Default)]
pub(crate) struct CompiledDefinitions {
    /// Modules that function configurations or revisions name.
    pub modules: Modules,
    pub contents: HashMap<Subject, Content>,
    pub functions: HashMap<FunctionId, Function>,
    pub by_identity: BTreeMap<SpiffeId, Vec<FunctionId>>,
    /// The SPIFFE ID of gateways.
    pub gateway: Option<SpiffeId>,
    pub svid_lifetime: Duration,
    pub stream_lifetime: Duration,
    pub permissions: Permissions,
    /// `None`: they are not known yet, and nodes keep those that they have.
    pub secrets: Option<Secrets>,
}

/// A function that was checked and may be added or replaced.
pub(crate) struct PreparedFunction {
    pub id: FunctionId,
    function: Function,
    content: Content,
    /// `None`: the function is not exposed.
    route: Option<Content>,
    /// `None`: the function names no stored secrets, or they are not known yet.
    secrets: Option<Content>,
}

/// Routes of gateways that were encoded and may be set.
pub(crate) struct PreparedRoutes {
    routes: Content,
    /// `None`: no listener names certificates, or they are not known yet.
    certificates: Option<Content>,
}

/// The outcome of adding or replacing a function.
pub(crate) enum Put {
    /// The function was there with the same content.
    Same,
    /// The function is new.
    New,
    /// The function was there with other content.
    Changed,
}

/// The part of a function's definition that decides which node gets which resources.
pub(crate) struct Function {
    pub identity: SpiffeId,
    pub callees: Vec<FunctionId>,
    pub exposed: bool,
    pub chain: Option<ChainLink>,
    /// The function's revisions and how traffic is divided between them.
    pub revisions: Revisions,
    /// Modules that are delivered along with the function configuration.
    pub modules: BTreeSet<ModuleHash>,
    /// Whether the function names stored secrets.
    pub has_secrets: bool,
    /// `None`: a function, not a job.
    pub job: Option<JobDefinition>,
    /// The nodes that connect to it; `None`: it is not an external service.
    pub egress: Option<EgressPolicy>,
    /// Its instances are pods of Kubernetes: the nodes that have any host it.
    pub has_pods: bool,
    /// The demand of its instances.
    pub demand: Demand,
    /// The revisions whose instances nodes start.
    pub scaled: Vec<ScaledRevision>,
    /// Instances that its namespace may have in the mesh.
    pub quota: u32,
    /// The rate limits of its callers, by name, with the requests of each.
    pub limits: Vec<(String, u32)>,
}

/// The nodes that connect to an external service, and so host it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EgressPolicy {
    /// Each node that hosts a caller.
    Callers,
    /// Only nodes with the egress role.
    EgressNodes,
}

/// The number of instances of a revision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScaledRevision {
    pub number: u32,
    pub scale: Scale,
    pub concurrency: u32,
}

impl Function {
    /// The subjects that a node wants because this function exists, without its modules. `hosts`
    /// tells whether the node hosts the function; `explicit` are the node's subscriptions.
    /// Endpoints of callees that do not exist yet are included, so that the node gets them once
    /// they exist.
    pub(crate) fn brings(&self, id: &FunctionId, hosts: bool, explicit: &BTreeSet<Subject>) -> Vec<Subject> {
        let hosted = hosts && explicit.contains(&Subject::Hosted);
        let routed = explicit.contains(&Subject::Routes) && self.exposed;
        let mut brings = Vec::new();
        if hosted {
            brings.extend(self.callees.iter().cloned().map(Subject::Endpoints));
        }
        if hosted {
            brings.push(Subject::FunctionConfig(id.clone()));
        }
        if hosted && self.has_secrets {
            brings.push(Subject::Secrets(id.clone()));
        }
        if routed {
            brings.push(Subject::Endpoints(id.clone()));
        }
        if routed && !hosted {
            brings.push(Subject::Route(id.clone()));
        }
        brings
    }

    /// The modules that are delivered along with the function configuration.
    pub(crate) fn delivered(&self) -> impl Iterator<Item = Subject> {
        self.modules.iter().copied().map(Subject::Module)
    }
}

impl CompiledDefinitions {
    /// The state before anything is published: only the trust bundle.
    pub(crate) fn nothing(bundle: &TrustBundle) -> Result<Self, DefinitionsError> {
        let mut compiled = Self { gateway: SpiffeId::gateway(bundle.trust_domain()).ok(), ..Self::default() };
        compiled.add(Subject::Bundle, Content::of_bundle(bundle))?;
        Ok(compiled)
    }

    /// Compiles definitions. `modules` and `histories` are those after the publication of
    /// `definitions`.
    pub(crate) fn new(
        definitions: &Definitions,
        modules: &Modules,
        histories: &Histories,
        bundle: &TrustBundle,
    ) -> Result<Self, DefinitionsError> {
        let Definitions { mesh, configs, .. } = definitions;
        let trust_domain = bundle.trust_domain();
        if mesh.trust_domain != *trust_domain {
            return Err(DefinitionsError::TrustDomain {
                found: mesh.trust_domain.to_string(),
                expected: trust_domain.clone(),
            });
        }
        let mut compiled = Self::nothing(bundle)?;
        (compiled.svid_lifetime, compiled.stream_lifetime) = (mesh.svid_lifetime, mesh.stream_lifetime());
        compiled.permissions = definitions.permissions.clone();
        compiled.secrets = definitions.secrets.clone();
        for (id, config) in configs {
            if config.id != *id {
                return Err(DefinitionsError::Misfiled { function: id.clone(), found: config.id.clone() });
            }
            let resolved = histories.config_for_delivery(config)?;
            let prepared = compiled.prepare(&resolved, trust_domain, |module| modules.contains_key(module))?;
            compiled.insert(prepared);
        }
        for (hash, module) in modules {
            compiled.contents.insert(Subject::Module(*hash), Content::of_module(module));
        }
        compiled.modules = modules.clone();
        compiled.add(Subject::Mesh, Content::new(mesh))?;
        let routes = compiled.prepare_routes(&definitions.routes)?;
        compiled.set_routes(routes);
        Ok(compiled)
    }

    /// Replaces the roots.
    pub(crate) fn set_bundle(&mut self, bundle: &TrustBundle) -> Result<(), DefinitionsError> {
        self.add(Subject::Bundle, Content::of_bundle(bundle))
    }

    /// Encodes the routes of gateways, and the certificates of their listeners.
    pub(crate) fn prepare_routes(&self, routes: &GatewayRoutes) -> Result<PreparedRoutes, DefinitionsError> {
        let unencodable =
            |subject, error: EncodingError| DefinitionsError::Encoding { subject, reason: error.to_string() };
        let certificates = self.secrets.as_ref().and_then(|secrets| certificates(routes, secrets));
        let certificates = certificates.map(|values| Content::of_secrets(&values)).transpose();
        Ok(PreparedRoutes {
            routes: Content::of_routes(routes).map_err(|error| unencodable(Subject::Routes, error))?,
            certificates: certificates.map_err(|error| unencodable(Subject::Certificates, error))?,
        })
    }

    /// Replaces the routes of gateways, and the certificates of their listeners. Returns the
    /// resources that are others now.
    pub(crate) fn set_routes(&mut self, PreparedRoutes { routes, certificates }: PreparedRoutes) -> Vec<Subject> {
        let new = [(Subject::Certificates, certificates), (Subject::Routes, Some(routes))];
        let mut replace = |(subject, content): (Subject, Option<Content>)| {
            let version = content.as_ref().map(|content| content.version);
            let before = match content {
                Some(content) => self.contents.insert(subject.clone(), content),
                None => self.contents.remove(&subject),
            };
            (before.map(|before| before.version) != version).then_some(subject)
        };
        new.into_iter().filter_map(&mut replace).collect()
    }

    /// Checks a function that [`CompiledDefinitions::put`] is to add or replace. Its modules must
    /// have been published.
    pub(crate) fn prepare_put(
        &self,
        config: &FunctionConfig,
        trust_domain: &TrustDomain,
    ) -> Result<PreparedFunction, DefinitionsError> {
        if !self.contents.contains_key(&Subject::Mesh) {
            return Err(DefinitionsError::NoMesh { function: config.id.clone() });
        }
        self.prepare(config, trust_domain, |module| self.contents.contains_key(&Subject::Module(*module)))
    }

    /// Adds or replaces one function. The cost does not depend on the number of other functions.
    pub(crate) fn put(&mut self, prepared: PreparedFunction) -> Put {
        // The route follows from the function configuration.
        if self.contents.get(&Subject::FunctionConfig(prepared.id.clone())) == Some(&prepared.content) {
            return Put::Same;
        }
        let is_new = !self.functions.contains_key(&prepared.id);
        self.insert(prepared);
        if is_new { Put::New } else { Put::Changed }
    }

    /// The functions that egress nodes connect to.
    pub(crate) fn on_egress_nodes(&self) -> Vec<FunctionId> {
        self.functions.keys().filter(|id| self.is_on_egress_nodes(id)).cloned().collect()
    }

    /// Whether egress nodes connect to the function.
    pub(crate) fn is_on_egress_nodes(&self, id: &FunctionId) -> bool {
        self.functions.get(id).is_some_and(|function| function.egress == Some(EgressPolicy::EgressNodes))
    }

    /// The callees of a function to which the callers' own nodes connect.
    pub(crate) fn callees_on_callers_nodes(&self, id: &FunctionId) -> Vec<FunctionId> {
        let callees = self.functions.get(id).into_iter().flat_map(|function| &function.callees);
        callees.filter(|id| self.is_on_callers_nodes(id)).cloned().collect()
    }

    /// Whether the callers' own nodes connect to the function.
    pub(crate) fn is_on_callers_nodes(&self, id: &FunctionId) -> bool {
        self.functions.get(id).is_some_and(|function| function.egress == Some(EgressPolicy::Callers))
    }

    pub(crate) fn is_job(&self, id: &FunctionId) -> bool {
        self.functions.get(id).is_some_and(|function| function.job.is_some())
    }

    /// Removes one function. Returns whether it was there. Its modules stay until everything is
    /// published again.
    pub(crate) fn remove(&mut self, id: &FunctionId) -> bool {
        let Some(function) = self.functions.remove(id) else { return false };
        self.forget_identity(&function.identity, id);
        self.contents.remove(&Subject::FunctionConfig(id.clone()));
        self.contents.remove(&Subject::Secrets(id.clone()));
        self.contents.remove(&Subject::Route(id.clone()));
        true
    }

    fn forget_identity(&mut self, identity: &SpiffeId, id: &FunctionId) {
        if let Some(functions) = self.by_identity.get_mut(identity) {
            functions.retain(|other| other != id);
            if functions.is_empty() {
                self.by_identity.remove(identity);
            }
        }
    }

    fn prepare(
        &self,
        config: &FunctionConfig,
        trust_domain: &TrustDomain,
        is_there: impl Fn(&ModuleHash) -> bool,
    ) -> Result<PreparedFunction, DefinitionsError> {
        let id = config.id.clone();
        let identity = identity(config, trust_domain)?;
        let modules = delivered(config);
        if let Some(missing) = modules.iter().find(|hash| !is_there(hash)) {
            return Err(DefinitionsError::Module { function: id, module: *missing });
        }
        let unencodable = |subject: Subject, error: &dyn std::fmt::Display| DefinitionsError::Encoding {
            subject,
            reason: error.to_string(),
        };
        let content = Content::new(&*config.for_delivery())
            .map_err(|error| unencodable(Subject::FunctionConfig(id.clone()), &error))?;
        let route = Route::of(config).map(|route| Content::new(&route)).transpose();
        let route = route.map_err(|error| unencodable(Subject::Route(id.clone()), &error))?;
        let named = config.stored_keys();
        let secrets = self.secrets.as_ref().filter(|_| !named.is_empty()).map(|secrets| {
            let values = secrets.get(&id.namespace).into_iter().flatten();
            let values =
                values.filter(|(key, _)| named.contains(*key)).map(|(key, value)| (key.clone(), value.clone()));
            Content::of_secrets(&values.collect())
        });
        let secrets = secrets.transpose().map_err(|error| unencodable(Subject::Secrets(id.clone()), &error))?;
        let callees = config.callees.iter().map(|callee| callee.id.clone()).collect();
        let job = job(config)?;
        let function = Function {
            identity,
            callees,
            exposed: config.is_routed || !config.expose.is_empty(),
            chain: config.chain.clone(),
            revisions: config.revisions.clone(),
            modules,
            has_secrets: !named.is_empty(),
            job,
            egress: match &config.run {
                Run::Egress(egress) if egress.by_egress_nodes => Some(EgressPolicy::EgressNodes),
                Run::Egress(_) => Some(EgressPolicy::Callers),
                _ => None,
            },
            has_pods: matches!(config.run, Run::Pods(_)),
            demand: demand(config),
            scaled: scaled(config),
            quota: config.bounds.instances(),
            limits: config.inbound.rate_limits.iter().map(|limit| (limit.name.clone(), capacity(limit))).collect(),
        };
        Ok(PreparedFunction { id, function, content, route, secrets })
    }

    fn insert(&mut self, PreparedFunction { id, function, content, route, secrets }: PreparedFunction) {
        let identity = function.identity.clone();
        if let Some(before) = self.functions.insert(id.clone(), function) {
            self.forget_identity(&before.identity, &id);
        }
        self.by_identity.entry(identity).or_default().push(id.clone());
        match route {
            Some(route) => self.contents.insert(Subject::Route(id.clone()), route),
            None => self.contents.remove(&Subject::Route(id.clone())),
        };
        match secrets {
            Some(secrets) => self.contents.insert(Subject::Secrets(id.clone()), secrets),
            None => self.contents.remove(&Subject::Secrets(id.clone())),
        };
        self.contents.insert(Subject::FunctionConfig(id), content);
    }

    fn add(&mut self, subject: Subject, content: Result<Content, EncodingError>) -> Result<(), DefinitionsError> {
        match content {
            Ok(content) => {
                self.contents.insert(subject, content);
                Ok(())
            }
            Err(error) => Err(DefinitionsError::Encoding { subject, reason: error.to_string() }),
        }
    }
}

/// The stored secrets that listeners name, with `namespace/name` in each key; `None`: no listener
/// names any.
fn certificates(routes: &GatewayRoutes, secrets: &Secrets) -> Option<SecretValues> {
    let of_streams = routes.streams.iter().flat_map(|listener| &listener.certificates);
    let named: BTreeSet<&String> =
        routes.listeners.iter().flat_map(|listener| &listener.certificates).chain(of_streams).collect();
    let values = named.iter().flat_map(|named| {
        let (namespace, secret) = named.split_once('/').unwrap_or_default();
        [CERTIFICATE_KEY, PRIVATE_KEY].into_iter().filter_map(move |key| {
            let stored = StoredKey { secret: secret.to_owned(), key: key.to_owned() };
            let value = secrets.get(namespace)?.get(&stored)?.clone();
            Some((StoredKey { secret: (*named).clone(), ..stored }, value))
        })
    });
    (!named.is_empty()).then(|| values.collect())
}

/// The demand of a function's instances: that of its largest revision.
fn demand(config: &FunctionConfig) -> Demand {
    let mut demand = Demand::default();
    for revision in config.all_revisions() {
        let (resources, count, least) = match &revision.template.run {
            Run::Command(command) => (command.resources, 1, revision.template.scale.min),
            Run::Job(job) => (job.process.resources, job.parallelism.max(1), 1),
            Run::External(_) | Run::Wasm(_) | Run::Egress(_) | Run::Pods(_) => continue,
        };
        let all = Capacity { cpu_millis: resources.cpu_millis.into(), memory: resources.memory, instances: 1 };
        let (all, before) = (all.times(count), demand.instance);
        demand.instance = Capacity {
            cpu_millis: all.cpu_millis.max(before.cpu_millis),
            memory: all.memory.max(before.memory),
            instances: all.instances.max(before.instances),
        };
        demand.least = demand.least.saturating_add(least);
        demand.jails = demand.jails.max(jail_use(&revision.template.run));
        demand.single = matches!(config.run, Run::Job(_));
        demand.stateful |= keeps_state(&revision.template.run);
    }
    demand.only = config.run.node().map(str::to_owned);
    demand.single |= demand.only.is_some();
    let named = |container: &Container| Some(format!("{}@{}", container.image, container.digest.as_ref()?));
    demand.image = config.run.container().and_then(named);
    demand
}

/// Whether instances keep state that a move would lose: clients have TCP connections to them, or
/// volumes on disk are theirs.
fn keeps_state(run: &Run) -> bool {
    matches!(run, Run::Command(command) if !command.ports.is_empty() || !command.persistent.is_empty())
}

/// The need of an instance for its node's jails. Containers need no jail of a program.
fn jail_use(run: &Run) -> JailUse {
    let (isolation, port, container) = match run {
        Run::Command(command) => (command.isolation, command.port, &command.container),
        Run::Job(job) => (job.process.isolation, None, &job.process.container),
        Run::External(_) | Run::Wasm(_) | Run::Egress(_) | Run::Pods(_) => return JailUse::Nothing,
    };
    match (isolation, port) {
        _ if container.is_some() => JailUse::Nothing,
        (Isolation::Strict, _) => JailUse::Required,
        (Isolation::Auto, Some(_)) => JailUse::FixedPort,
        (Isolation::Process, Some(_)) => JailUse::SharedPort,
        (Isolation::Auto | Isolation::Process, None) => JailUse::Nothing,
    }
}

fn scaled(config: &FunctionConfig) -> Vec<ScaledRevision> {
    let scaled = |revision: Revision| {
        let Run::Command(_) = &revision.template.run else { return None };
        let Template { scale, concurrency, .. } = revision.template;
        Some(ScaledRevision { number: revision.number, scale, concurrency })
    };
    config.all_revisions().filter_map(scaled).collect()
}

fn capacity(limit: &RateLimit) -> u32 {
    match limit.algorithm {
        QuotaAlgorithm::TokenBucket { burst, .. } => burst.max(1),
        QuotaAlgorithm::FixedWindow { requests, .. } => requests.max(1),
    }
}

/// The modules of a function configuration that the control plane delivers. Nodes fetch the others.
fn delivered(config: &FunctionConfig) -> BTreeSet<ModuleHash> {
    config.modules().filter(|(_, url)| url.is_none()).map(|(module, _)| module).collect()
}

fn job(config: &FunctionConfig) -> Result<Option<JobDefinition>, DefinitionsError> {
    let Run::Job(job) = &config.run else { return Ok(None) };
    let run = run_of(config).ok_or_else(|| DefinitionsError::Encoding {
        subject: Subject::FunctionConfig(config.id.clone()),
        reason: "its run cannot be named".to_owned(),
    })?;
    Ok(Some(JobDefinition { run, completions: job.completions, ttl: job.ttl, attempt: job.attempt() }))
}

fn identity(config: &FunctionConfig, trust_domain: &TrustDomain) -> Result<SpiffeId, DefinitionsError> {
    let identity = config.identity.clone();
    if identity.trust_domain() != trust_domain.as_str() || identity.path().is_empty() || identity.is_reserved() {
        return Err(DefinitionsError::Foreign { function: config.id.clone(), identity });
    }
    Ok(identity)
}
