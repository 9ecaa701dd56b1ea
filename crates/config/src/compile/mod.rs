//! Documents -> a checked [`Snapshot`]. Checking and compiling are one step: the result can only be
//! valid, and every error is reported.

mod arguments;
mod attach;
mod authentication;
mod authorization;
mod authorizer;
pub(crate) mod cache;
mod callee_rules;
mod chain;
mod confine;
mod container;
mod extension;
pub(crate) mod external;
mod faults;
mod fields;
pub(crate) mod forms;
mod function;
mod gateway_api;
pub(crate) mod header;
mod hosts;
mod images;
mod isolation;
mod issuers;
mod job;
mod label;
mod mesh;
mod metadata;
mod module;
mod namespaces;
mod observe;
mod pods;
mod policy;
mod process;
mod quotas;
mod rate_limit;
mod regex;
mod resilience;
mod revisions;
mod rollout;
mod routes;
mod scale;
mod sidecar;
pub(crate) mod stored_secret;
pub(crate) mod template;
pub(crate) mod text;
mod warnings;
mod wasm;

pub(crate) use self::authentication::read as read_key_set;
pub use self::cache::CompileCache;
use self::cache::Lookups;
pub(crate) use self::process::words;
pub use self::resilience::retry_condition;
pub use self::warnings::rules_without_effect;
use crate::document;
use crate::document_id::DocumentId;
use crate::effort::Effort;
use crate::foreign::ForeignDocument;
use crate::namespace::Namespaces;
use crate::namespace_object::NamespaceObject;
use crate::problem::{Origin, Problem, Scope};
use crate::secrets::SecretSet;
use crate::snapshot::{QuotaUses, Read, Snapshot};
use crate::yaml::Node;
use leno_gateway_api::{KIND_NAMES, Resource};
use leno_model::FunctionId;
use leno_model::{Isolation, ModuleHash, SpiffeId, TrustDomain};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// A typed document with its source.
#[derive(Clone)]
pub struct TypedDocument<T> {
    /// Its file.
    pub file: PathBuf,
    /// Its content, with positions.
    pub node: Node,
    /// Its origin.
    pub origin: Origin,
    /// Its content.
    pub document: T,
}

impl<T> TypedDocument<T> {
    fn scope<'a>(&'a self, problems: &'a RefCell<Vec<Problem>>) -> Scope<'a> {
        Scope::root(&self.file, &self.node, problems).of(self.origin)
    }
}

/// All documents of a mesh.
#[derive(Default)]
pub struct Documents {
    /// Mesh documents: one at most.
    pub meshes: Vec<Arc<TypedDocument<document::Mesh>>>,
    /// Functions.
    pub functions: Vec<Arc<TypedDocument<document::Function>>>,
    /// Jobs.
    pub jobs: Vec<Arc<TypedDocument<document::Job>>>,
    /// External services.
    pub externals: Vec<Arc<TypedDocument<document::External>>>,
    /// Chains.
    pub chains: Vec<Arc<TypedDocument<document::Chain>>>,
    /// Policies.
    pub policies: Vec<Arc<TypedDocument<document::Policy>>>,
    /// Stored secrets.
    pub stored_secrets: Vec<Arc<TypedDocument<document::StoredSecret>>>,
    /// Quotas of namespaces.
    pub namespace_quotas: Vec<Arc<TypedDocument<document::NamespaceQuota>>>,
    /// Namespace objects.
    pub namespaces: Vec<Arc<TypedDocument<NamespaceObject>>>,
    /// Warnings of documents in files that the mesh does not read.
    pub skipped: Vec<Problem>,
    /// Documents of the Gateway API.
    pub gateway_api: Vec<Arc<TypedDocument<Resource>>>,
    /// Documents of other projects that are not translated yet.
    pub foreign: Vec<Arc<ForeignDocument>>,
    /// The folder of the documents; `None`: they are from a file.
    pub folder: Option<PathBuf>,
    /// Some documents could not be read. They may define the names that are not found, so missing
    /// names are not reported.
    pub incomplete: bool,
    /// The documents are for a control plane, and not stored yet.
    pub unstored: bool,
    /// The stored secrets that this control plane has; `None`: they are not known.
    pub stored: Option<SecretSet>,
    /// The documents are those of a control plane for Kubernetes: functions may be pods.
    pub kubernetes: bool,
    /// Policies of Kubernetes that were in force before in the same version. They stay when another
    /// workload begins to share the service account of a caller that they name.
    pub in_force: BTreeSet<DocumentId>,
    /// The bound on the time of compilation.
    pub effort: Effort,
    /// Results of the last compilation of such documents; `None`: none are kept.
    pub cache: Option<CompileCache>,
}

impl Documents {
    /// The places of documents that are files and count for the quota of a namespace: problems
    /// without text.
    fn places(&self) -> BTreeMap<DocumentId, Problem> {
        fn of<'a, T>(
            kind: &'a str,
            all: &'a [Arc<TypedDocument<T>>],
            metadata: fn(&T) -> &document::Metadata,
        ) -> impl Iterator<Item = (DocumentId, Problem)> + 'a {
            all.iter().filter(|placed| placed.origin == Origin::File).map(move |placed| {
                let document::Metadata { name, namespace, .. } = metadata(&placed.document);
                (DocumentId::new(kind, namespace, name), placed.scope(&RefCell::default()).here())
            })
        }
        of("Function", &self.functions, |it| &it.metadata)
            .chain(of("Job", &self.jobs, |it| &it.metadata))
            .chain(of("External", &self.externals, |it| &it.metadata))
            .chain(of("Policy", &self.policies, |it| &it.metadata))
            .chain(of("StoredSecret", &self.stored_secrets, |it| &it.metadata))
            .chain(gateway_api::places(&self.gateway_api))
            .collect()
    }

    /// How many documents of each kind there are.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 18] {
        let of = |index: usize| {
            let is_one = |placed: &&Arc<TypedDocument<Resource>>| placed.document.kind() == KIND_NAMES[index];
            (KIND_NAMES[index], self.gateway_api.iter().filter(is_one).count())
        };
        [
            ("Mesh", self.meshes.len()),
            ("Function", self.functions.len()),
            ("Job", self.jobs.len()),
            ("External", self.externals.len()),
            ("Chain", self.chains.len()),
            ("Policy", self.policies.len()),
            ("StoredSecret", self.stored_secrets.len()),
            ("NamespaceQuota", self.namespace_quotas.len()),
            ("Namespace", self.namespaces.len()),
            ("translated policy", self.foreign.len()),
            of(0),
            of(1),
            of(2),
            of(3),
            of(4),
            of(5),
            of(6),
            of(7),
        ]
    }
}

/// Facts about the rest of the mesh that sections need.
struct Context<'a> {
    trust_domain: &'a TrustDomain,
    /// Functions by name.
    functions: &'a BTreeMap<FunctionId, usize>,
    /// Jobs by name.
    jobs: &'a BTreeMap<FunctionId, usize>,
    /// External documents by name.
    externals: &'a BTreeMap<FunctionId, usize>,
    /// External documents that have an authorizer, which is asked in their name: they have no other
    /// callees.
    asking: BTreeSet<FunctionId>,
    /// Labels of functions and jobs: see [`Context::labels`].
    labels: BTreeMap<&'a FunctionId, &'a document::Labels>,
    /// The service accounts of functions that are pods.
    accounts: BTreeMap<&'a FunctionId, pods::Accounts<'a>>,
    /// The facts that were looked up for one document.
    lookups: RefCell<Lookups>,
    /// Functions may be pods.
    kubernetes: bool,
    incomplete: bool,
    /// The stored secrets of all namespaces.
    secrets: &'a SecretSet,
    /// A control plane may have further stored secrets.
    unknown_secrets: bool,
    effort: &'a Effort,
    /// Problems that refuse nothing, because only another namespace could correct them.
    doubts: &'a RefCell<Vec<Problem>>,
    /// Namespaces whose policies are audited.
    audited: &'a [String],
    /// The isolation of instances whose documents do not set it.
    isolation: Isolation,
    /// The quotas of namespaces.
    namespaces: &'a Namespaces,
    /// The nodes that open connections to external services.
    egress_nodes: document::EgressNodes,
    /// The issuers of all authentication sections: see [`Context::known_issuers`].
    issuers: issuers::Issuers<'a>,
    /// Files that documents refer to.
    inputs: &'a RefCell<Vec<PathBuf>>,
    /// Modules of extensions that were read.
    modules: &'a RefCell<BTreeMap<ModuleHash, Arc<[u8]>>>,
}

impl Context<'_> {
    /// The numbers of problems and doubts that were found so far, and of files that were read.
    fn found(&self, problems: &RefCell<Vec<Problem>>) -> (usize, usize, usize, usize) {
        let files = (self.inputs.borrow().len(), self.modules.borrow().len());
        (problems.borrow().len(), self.doubts.borrow().len(), files.0, files.1)
    }

    /// Begins to record what is looked up for one document.
    fn begin_lookups(&self) {
        self.lookups.take();
    }

    fn looked_up(&self, id: &FunctionId) {
        let mut lookups = self.lookups.borrow_mut();
        if !lookups.ids.contains(id) {
            lookups.ids.insert(id.clone());
        }
    }

    /// All functions, jobs and External documents, by name.
    fn all(&self) -> impl Iterator<Item = &BTreeMap<FunctionId, usize>> {
        self.search_all();
        [self.functions, self.jobs, self.externals].into_iter()
    }

    /// Records that the result for this document depends on all functions.
    fn search_all(&self) {
        self.lookups.borrow_mut().all = true;
    }

    /// Labels of functions and jobs.
    fn labels(&self) -> &BTreeMap<&FunctionId, &document::Labels> {
        self.search_all();
        &self.labels
    }

    /// The issuers that a document of a namespace can mean.
    fn known_issuers(&self, namespace: &str, origin: Origin) -> impl Iterator<Item = &str> {
        self.lookups.borrow_mut().issuers = true;
        self.issuers.known_to(namespace, origin)
    }

    fn has(&self, id: &FunctionId) -> bool {
        self.looked_up(id);
        [self.functions, self.jobs, self.externals].into_iter().any(|names| names.contains_key(id))
    }

    /// The identity of a function or job.
    fn identity(&self, id: &FunctionId) -> SpiffeId {
        self.looked_up(id);
        let account = self.accounts.get(id).and_then(|accounts| accounts.identity.clone());
        account.unwrap_or_else(|| SpiffeId::of_function(self.trust_domain, id))
    }
}

fn labels<'a>(
    documents: &'a Documents,
    functions: &'a BTreeMap<FunctionId, usize>,
    jobs: &'a BTreeMap<FunctionId, usize>,
) -> BTreeMap<&'a FunctionId, &'a document::Labels> {
    let of_functions = functions.iter().map(|(id, index)| (id, &documents.functions[*index].document.metadata.labels));
    let of_jobs = jobs.iter().map(|(id, index)| (id, &documents.jobs[*index].document.metadata.labels));
    of_functions.chain(of_jobs).collect()
}

/// Checks and compiles everything. It always returns a snapshot, which may only be used if no
/// problem was reported and the effort is not over.
pub(crate) fn compile(documents: &Documents, problems: &RefCell<Vec<Problem>>) -> Snapshot {
    let (inputs, modules, doubts) = (RefCell::default(), RefCell::default(), RefCell::default());
    let mesh = mesh::mesh(&documents.meshes, documents.folder.as_deref(), problems, &inputs);
    let namespaces = namespaces::namespaces(documents, problems);
    let secrets = stored_secret::secrets(documents, problems);
    let route_uses = gateway_api::uses(&documents.gateway_api, problems);
    let unshared = CompileCache::default();
    let mut cache = documents.cache.as_ref().unwrap_or(&unshared).lock();
    let names = function::names(&documents.functions, &cache, problems);
    let jobs = job::names(&documents.jobs, &documents.functions, &names, problems);
    let externals = external::names(&documents.externals, |id| taken(documents, &names, &jobs, id, problems), problems);
    let (asking, issuers) = (authorizer::asking(&documents.policies), issuers::Issuers::of(&documents.policies));
    cache.begin(documents, (&names, &externals), (&asking, &issuers));
    let context = Context {
        trust_domain: &mesh.trust_domain,
        functions: &names,
        jobs: &jobs,
        externals: &externals,
        asking,
        labels: labels(documents, &names, &jobs),
        accounts: pods::accounts(documents, &names, &mesh.trust_domain, &mut cache),
        lookups: RefCell::default(),
        kubernetes: documents.kubernetes,
        incomplete: documents.incomplete,
        secrets: &secrets,
        unknown_secrets: documents.unstored && documents.stored.is_none(),
        effort: &documents.effort,
        doubts: &doubts,
        audited: documents.meshes.first().map_or(&[], |mesh| &mesh.document.spec.audit_namespaces),
        isolation: documents.meshes.first().map(|mesh| mesh.document.spec.instances.isolation).unwrap_or_default(),
        namespaces: &namespaces,
        egress_nodes: documents.meshes.first().map(|mesh| mesh.document.spec.egress.nodes).unwrap_or_default(),
        issuers,
        inputs: &inputs,
        modules: &modules,
    };
    let mut functions = BTreeMap::new();
    let going_on = |_: &_| !documents.effort.is_over();
    for (id, index) in names.iter().take_while(going_on) {
        let placed = &documents.functions[*index];
        let function = cache.function(placed).unwrap_or_else(|| {
            let found = context.found(problems);
            let function = function::function(&context, &placed.scope(problems), id, &placed.document, &mesh);
            if found == context.found(problems) && found.0 == 0 {
                cache.keep_function(placed, &function);
            }
            function
        });
        functions.insert(id.clone(), function);
    }
    for (id, index) in jobs.iter().take_while(going_on) {
        let placed = &documents.jobs[*index];
        functions.insert(id.clone(), job::job(&context, &placed.scope(problems), id, &placed.document, &mesh));
    }
    for (id, index) in externals.iter().take_while(going_on) {
        let placed = &documents.externals[*index];
        functions.insert(id.clone(), external::external(&context, &placed.scope(problems), &placed.document, &mesh));
    }
    let backend_tls = routes::backend_tls(&context, &documents.gateway_api, &mut functions);
    let grants = hosts::grants(&documents.namespace_quotas, &namespaces, problems);
    let mut claims = hosts::Claims::new(grants);
    hosts::belong(&documents.functions, &names, &mut claims, problems);
    let mut policies: Vec<_> =
        documents.policies.iter().map(|placed| policy::kept(&context, placed, &mut cache, problems)).collect();
    policy::names(&documents.policies, problems);
    attach::attach(&context, (documents, &policies), &mut functions, &mut cache, problems);
    pods::shared_accounts(&context, (documents, &policies), &functions, &mut cache, problems);
    namespaces::engines(&documents.policies, &policies, &functions, &namespaces, problems);
    chain::chains(&context, documents, &mut policies, &mut functions, problems);
    authorizer::connect(&context, &documents.policies, &mut policies, &mut functions, problems);
    external::distinct_callees(&context, &mut functions, |caller, report| {
        let (function, job, external) = (names.get(caller), jobs.get(caller), externals.get(caller));
        match (function, job, external) {
            (Some(index), ..) => report(&documents.functions[*index].scope(problems)),
            (None, Some(index), _) => report(&documents.jobs[*index].scope(problems)),
            (None, None, Some(index)) => report(&documents.externals[*index].scope(problems)),
            (None, None, None) => {}
        }
    });
    let faults = faults::RouteFaults::new(&documents.policies, &policies, problems);
    let (mut routes, compiled_routes) =
        routes::routes(documents, &mesh, (&functions, &secrets, backend_tls, &faults), &mut claims, problems, &doubts);
    (routes.faults, routes.report.faults) = (faults.of_exposed(&functions), faults.statuses());
    faults.report_missing(documents, &functions, &doubts);
    if problems.borrow().is_empty() {
        let uses = QuotaUses { functions: &functions, policies: &policies, secrets: &secrets, routes: &route_uses };
        namespaces::within(documents, &uses, &namespaces, problems);
    }
    let (warnings, warnings_across) = if problems.borrow().is_empty() && !documents.effort.is_over() {
        let mut doubts = doubts.take();
        doubts.extend(stored_secret::exposed(&documents.stored_secrets));
        doubts.extend(documents.skipped.iter().cloned());
        let routes = (&routes, &compiled_routes[..]);
        let policies = (&policies[..], &mut *cache);
        warnings::find(&mesh, documents, policies, &functions, [&names, &jobs, &externals], routes, doubts)
    } else {
        Default::default()
    };
    let (inputs, modules) = (inputs.into_inner(), modules.into_inner());
    let mesh_file = documents.meshes.first().map(|placed| placed.file.clone()).unwrap_or_default();
    let (version, read) = (String::new(), Read::default());
    let mesh_origin = documents.meshes.first().map(|placed| placed.origin).unwrap_or_default();
    let fingerprints = documents.policies.iter().map(|placed| cache.fingerprint(placed)).collect();
    cache.end();
    Snapshot {
        version,
        read,
        mesh,
        mesh_file,
        mesh_origin,
        namespaces,
        functions,
        routes,
        policies,
        fingerprints,
        inputs,
        modules,
        secrets,
        route_uses,
        warnings,
        warnings_across,
        translations: Vec::new(),
    }
}

/// The function or job that has a name, and its place.
fn taken(
    documents: &Documents,
    functions: &BTreeMap<FunctionId, usize>,
    jobs: &BTreeMap<FunctionId, usize>,
    id: &FunctionId,
    problems: &RefCell<Vec<Problem>>,
) -> Option<(&'static str, String)> {
    let function = functions.get(id).map(|index| ("function", documents.functions[*index].scope(problems).line()));
    let job = || jobs.get(id).map(|index| ("job", documents.jobs[*index].scope(problems).line()));
    function.or_else(job)
}
