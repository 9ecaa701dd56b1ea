//! Checked configuration of a whole mesh, and the configuration of each function.

mod authorization;
mod callees;
mod difference;
mod faults;
mod routes;
mod weight;

pub use self::difference::SnapshotDifference;
pub(crate) use self::faults::{FaultTarget, PolicyFault};
pub(crate) use self::routes::{Routes, ScopedRoute};
pub(crate) use self::weight::{PolicyWeight, QuotaUses};

use crate::document::CalleeSelector;
use crate::document_id::DocumentId;
use crate::namespace::{NamespaceQuota, NamespaceUse, Namespaces, UseShare};
use crate::permissions::{Fingerprint, Permissions};
use crate::problem::{Origin, Problem};
use crate::secrets::SecretSet;
use crate::translation::TranslationRow;
use leno_files::FileAccess;
use leno_model::{
    AppProtocol, ChainLink, Engine, Expose, FunctionConfig, FunctionId, JwksFetch, MeshConfig, ModuleHash,
    NamespaceBounds, Plan, Revisions, Run, Scale, VerificationKey,
};
use leno_policy::spec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The folder of a control plane's machine in which Mesh documents of requests may name files of registries.
pub const CONTROL_FILES: &str = "/etc/leno/registries";

/// Checked configuration of a whole mesh. Immutable; a change of the documents makes a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub(crate) version: String,
    pub(crate) read: Read,
    pub(crate) mesh: MeshConfig,
    /// The file of the Mesh document; empty: there is none.
    pub(crate) mesh_file: PathBuf,
    pub(crate) namespaces: Namespaces,
    pub(crate) mesh_origin: Origin,
    pub(crate) functions: BTreeMap<FunctionId, Function>,
    pub(crate) routes: Routes,
    pub(crate) policies: Vec<Arc<Policy>>,
    /// The fingerprint of each policy, by its index.
    pub(crate) fingerprints: Vec<Fingerprint>,
    pub(crate) inputs: Vec<PathBuf>,
    pub(crate) modules: BTreeMap<ModuleHash, Arc<[u8]>>,
    pub(crate) secrets: SecretSet,
    /// The use that documents of the Gateway API make of quotas.
    pub(crate) route_uses: BTreeMap<DocumentId, NamespaceUse>,
    pub(crate) warnings: Vec<Problem>,
    /// Those that name functions of another namespace, with that namespace.
    pub(crate) warnings_across: Vec<(String, Problem)>,
    pub(crate) translations: Vec<TranslationRow>,
}

/// Counts of the files and documents that were read, so that a user notices when some were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    pub files: usize,
    /// Documents of each kind.
    pub documents: [(&'static str, usize); 18],
    /// Files and folders that were skipped because of their names.
    pub hidden: usize,
    pub others: usize,
}

impl fmt::Display for Read {
    /// `read 3 files: 1 Mesh, 4 Function, 2 Policy (not read: 1 hidden, 2 of other names)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read {}:", counted(self.files, "file"))?;
        let kinds = self.documents.iter().filter(|(_, count)| *count > 0);
        for (place, (kind, count)) in kinds.enumerate() {
            write!(f, "{} {count} {kind}", if place == 0 { "" } else { "," })?;
        }
        match (self.hidden, self.others) {
            (0, 0) => Ok(()),
            (0, others) => write!(f, " (not read: {others} of other names)"),
            (hidden, 0) => write!(f, " (not read: {hidden} hidden)"),
            (hidden, others) => write!(f, " (not read: {hidden} hidden, {others} of other names)"),
        }
    }
}

/// A checked extension of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Extension {
    /// Whether it is for a function's outbound calls.
    pub outbound: bool,
    /// Its part of the configuration of functions.
    pub spec: leno_model::Extension,
    /// Its place, for errors in its module: a problem without text.
    pub place: Problem,
}

/// A checked authorizer of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Authorizer {
    /// The function that is asked; `None`: there is none of that name, which was reported.
    pub service: Option<FunctionId>,
    pub only: Vec<spec::Operation>,
    /// Its part of the configuration of functions.
    pub config: leno_model::Authorizer,
}

/// A checked function.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    /// The origin of its document.
    pub origin: Origin,
    pub labels: BTreeMap<String, String>,
    pub protocol: AppProtocol,
    pub run: Run,
    /// The place of its program, its component or its image, if it has one.
    pub place: Problem,
    /// The same of each declared revision in `plan`. The fields here are those of the one with the
    /// largest share.
    pub declared_places: Vec<Problem>,
    pub expose: Vec<Expose>,
    pub callees: Vec<FunctionId>,
    pub concurrency: u32,
    pub queue: u32,
    pub scale: Scale,
    pub timeout: Duration,
    /// It gets paths as received.
    pub as_received: bool,
    pub plan: Plan,
    pub chain: Option<ChainLink>,
    /// Indices into [`Snapshot::policies`], by policy name.
    pub policies: Vec<usize>,
}

impl Function {
    /// The run of each declared revision, with its name and its place, or else the function's own.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Option<&str>, &Run, &Problem)> {
        let own = self.plan.declared.is_empty().then_some((None, &self.run, &self.place));
        let declared = self.plan.declared.iter().zip(&self.declared_places);
        own.into_iter().chain(declared.map(|(one, place)| (Some(&*one.name), &one.template.run, place)))
    }
}

/// A checked policy: parts of programs, to be joined for each function.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Policy {
    pub namespace: String,
    pub name: String,
    pub authentication: Vec<spec::Issuer>,
    pub keys: Vec<VerificationKey>,
    /// `issuer` is an index in this policy.
    pub jwks: Vec<JwksFetch>,
    pub authorization: Vec<spec::AuthorizationRule>,
    pub rate_limits: Vec<spec::RateLimit>,
    pub retry: Option<spec::Retry>,
    pub breaker: Option<spec::Breaker>,
    pub tracing: Option<spec::Tracing>,
    pub access_log: Option<spec::AccessLog>,
    pub sidecar: Option<Sidecar>,
    pub authorizers: Vec<Authorizer>,
    pub extensions: Vec<Extension>,
    pub faults: Vec<PolicyFault>,
    pub callee_rules: Option<CalleeRules>,
    /// Whether it has an authorization section.
    pub authorizes: bool,
    /// Whether its authorization and its rate limits are audited and not enforced.
    pub audit: bool,
    pub weight: PolicyWeight,
}

/// Rules which of their listed callees a policy's functions may call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CalleeRules {
    /// Only callees that a rule allows may be called.
    pub default_deny: bool,
    pub allow: Vec<CalleeRule>,
    pub deny: CalleeSelector,
}

/// Possible callees, and how they may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CalleeRule {
    pub name: String,
    pub to: CalleeSelector,
    /// One of these ways; empty: any way.
    pub calls: Vec<(spec::Operation, Vec<spec::Condition>)>,
}

/// The sidecar section: part of the program and how to run it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sidecar {
    pub rules: spec::Sidecar,
    pub engine: Option<Engine>,
    pub deadline: Duration,
}

/// Longest run of a sidecar if no policy sets it.
const DEADLINE: Duration = Duration::from_millis(2);

impl Snapshot {
    /// The policies that permit calls, of each function.
    pub fn permissions(&self) -> Permissions {
        let of = |index: &usize| self.fingerprints.get(*index).copied();
        let functions = self.functions.iter();
        let functions = functions.map(|(id, function)| (id.clone(), function.policies.iter().filter_map(of).collect()));
        Permissions::new(self.fingerprints.iter().copied(), functions)
    }

    /// Hash over all input: equal versions, equal configuration.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// All functions, jobs and External documents, by name.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &FunctionId> {
        self.functions.keys()
    }

    /// Whether this is a job.
    pub fn is_job(&self, id: &FunctionId) -> bool {
        self.functions.get(id).is_some_and(|function| matches!(function.run, Run::Job(_)))
    }

    /// The numbers of files that were read, of documents of each kind, and of files that were
    /// skipped, in words.
    pub fn read(&self) -> String {
        self.read.to_string()
    }

    /// The numbers of functions, jobs and External documents, in words.
    pub fn summary(&self) -> String {
        let runs = || self.functions.values().map(|function| &function.run);
        let jobs = runs().filter(|run| matches!(run, Run::Job(_))).count();
        let externals = runs().filter(|run| matches!(run, Run::Egress(_))).count();
        let mut summary = counted(self.functions.len() - jobs - externals, "function");
        for (count, what) in [(jobs, "job"), (externals, "External")] {
            if count > 0 {
                summary = format!("{summary}, {}", counted(count, what));
            }
        }
        summary
    }

    /// The files that a control plane opens because the Mesh document names them: those of
    /// registries. For a document of a request, they must be below [`CONTROL_FILES`].
    pub fn control_files(&self) -> FileAccess {
        match self.mesh_origin {
            Origin::File => FileAccess::Any,
            Origin::Request => FileAccess::Beneath(vec![CONTROL_FILES.into()]),
        }
    }

    /// An error of a field of the Mesh document, which the document may no longer have.
    pub fn mesh_problem(&self, field: &str, message: &str) -> Problem {
        let file =
            if self.mesh_file.as_os_str().is_empty() { "no Mesh document".into() } else { self.mesh_file.clone() };
        Problem { field: field.to_owned(), ..Problem::of_file(&file, message, "") }
    }

    /// Documents that are valid but very likely wrong, ordered by file and line: rules that decide
    /// nothing, functions without callers.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Warnings about documents of requests that name functions of another namespace, each with that
    /// namespace: only for readers who may know it.
    pub fn warnings_across(&self) -> &[(String, Problem)] {
        &self.warnings_across
    }

    /// The report of translated policies, field by field, in the order of the documents.
    pub fn translations(&self) -> &[TranslationRow] {
        &self.translations
    }

    /// The configuration that every node gets.
    pub fn mesh_config(&self) -> &MeshConfig {
        &self.mesh
    }

    /// Files that were read or are referred to; a change of one may change the configuration.
    pub fn inputs(&self) -> &[PathBuf] {
        &self.inputs
    }

    /// All components, and the place of each, for errors found in it: a problem without text.
    pub fn components(&self) -> impl Iterator<Item = (&leno_model::Wasm, &Problem)> {
        self.functions.values().flat_map(Function::runs).filter_map(|(_, run, place)| match run {
            Run::Wasm(wasm) => Some((wasm, place)),
            Run::Command(_) | Run::External(_) | Run::Job(_) | Run::Egress(_) | Run::Pods(_) => None,
        })
    }

    /// All functions and jobs whose documents are files, and the places of their programs, for errors
    /// found in these: problems without text.
    pub fn programs(&self) -> impl Iterator<Item = (&FunctionId, &Run, &Problem)> {
        let of_files = self.functions.iter().filter(|(_, function)| function.origin == Origin::File);
        of_files.flat_map(|(id, function)| function.runs().map(move |(_, run, place)| (id, run, place)))
    }

    /// All containers, the functions they belong to, the declared names of their revisions, and the
    /// place of the image's name in the document, for errors found in it: a problem without text.
    pub fn containers(&self) -> impl Iterator<Item = (&FunctionId, Option<&str>, &leno_model::Container, &Problem)> {
        let all = self.functions.iter().flat_map(|(id, function)| function.runs().map(move |run| (id, run)));
        all.filter_map(|(id, (name, run, place))| Some((id, name, run.container()?, place)))
    }

    /// Modules of extensions, and components, that are files. Nodes fetch those with a URL.
    pub fn modules(&self) -> &BTreeMap<ModuleHash, Arc<[u8]>> {
        &self.modules
    }

    /// The stored secrets.
    pub fn secrets(&self) -> &SecretSet {
        &self.secrets
    }

    /// The functions, jobs and External documents that name each stored secret, by the namespace and
    /// name of the secret.
    pub fn secret_users(&self) -> BTreeMap<(String, String), BTreeSet<FunctionId>> {
        let mut users: BTreeMap<(String, String), BTreeSet<FunctionId>> = BTreeMap::new();
        for (id, function) in &self.functions {
            for key in function.runs().flat_map(|(_, run, _)| run.stored_keys()) {
                users.entry((id.namespace.clone(), key.secret.clone())).or_default().insert(id.clone());
            }
        }
        users
    }

    /// All extensions, each once, however many functions it is for.
    pub fn extensions(&self) -> impl Iterator<Item = &Extension> {
        self.policies.iter().flat_map(|policy| &policy.extensions)
    }

    /// Names (`namespace/name`) of the policies that apply to a function.
    pub fn policies(&self, id: &FunctionId) -> impl Iterator<Item = String> {
        let function = self.functions.get(id);
        let policies = function.into_iter().flat_map(|function| self.applied(function));
        policies.map(|policy| format!("{}/{}", policy.namespace, policy.name))
    }

    /// The functions of each policy, by the policy's namespace and name.
    pub fn policy_targets(&self) -> BTreeMap<(&str, &str), BTreeSet<FunctionId>> {
        let mut targets = vec![BTreeSet::new(); self.policies.len()];
        for (id, function) in &self.functions {
            for index in &function.policies {
                targets[*index].insert(id.clone());
            }
        }
        let names = self.policies.iter().map(|policy| (&*policy.namespace, &*policy.name));
        names.zip(targets).collect()
    }

    /// The configuration that the sidecars and the supervisor of one function or job need; `None`:
    /// there is none of that name.
    pub fn function_config(&self, id: &FunctionId) -> Option<FunctionConfig> {
        let function = self.functions.get(id)?;
        let sidecar = self.applied(function).find_map(|policy| policy.sidecar.as_ref());
        let (authentication, jwks) = self.authentication(function);
        let mut keys: Vec<VerificationKey> = Vec::new();
        for key in self.applied(function).flat_map(|policy| &policy.keys) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        let inbound = spec::ProgramSpec {
            function: id.to_string(),
            direction: spec::Direction::Inbound,
            sidecar: sidecar.map(|sidecar| sidecar.rules.clone()).unwrap_or_default(),
            authentication,
            authorization: self.authorization(id, function),
            audit_default: self.audits_default(function),
            rate_limits: self.applied(function).flat_map(|policy| policy.rate_limits.iter().cloned()).collect(),
            authorizers: self.authorizers(function).map(asked).collect(),
            tracing: self.tracing(function),
            access_log: self.access_log(function),
            targets: vec![self.target(id, function)],
        };
        let outbound = spec::ProgramSpec {
            function: id.to_string(),
            direction: spec::Direction::Outbound,
            sidecar: spec::Sidecar::default(),
            authentication: Vec::new(),
            authorization: self.calls(id, function),
            audit_default: false,
            rate_limits: Vec::new(),
            authorizers: Vec::new(),
            tracing: self.tracing(function),
            access_log: self.access_log(function),
            targets: self.callees(function).map(|(id, callee)| self.target(id, callee)).collect(),
        };
        Some(FunctionConfig {
            id: id.clone(),
            identity: function.run.identity(&self.mesh.trust_domain, id),
            inbound,
            outbound,
            engine: sidecar.and_then(|sidecar| sidecar.engine).or_else(|| self.only_engine(id)),
            bounds: self.bounds(id, function),
            deadline: sidecar.map_or(DEADLINE, |sidecar| sidecar.deadline),
            protocol: function.protocol,
            keys,
            jwks,
            run: function.run.clone(),
            expose: function.expose.clone(),
            faults: self.routes.faults.get(id).cloned().unwrap_or_default(),
            is_routed: self.routes.routed.contains(id),
            callees: self.callees(function).map(|(callee, known)| self.narrowed(id, function, callee, known)).collect(),
            concurrency: function.concurrency,
            queue: function.queue,
            scale: function.scale,
            authorizers: self.authorizers(function).map(|authorizer| authorizer.config.clone()).collect(),
            inbound_extensions: self.extended(function, false),
            outbound_extensions: self.extended(function, true),
            revisions: Revisions { plan: function.plan.clone(), ..Revisions::default() },
            chain: self.chain(function),
        })
    }

    /// The quota of a namespace, whether a document gives it one or not.
    pub fn quota(&self, namespace: &str) -> &NamespaceQuota {
        self.namespaces.of(namespace)
    }

    /// The namespaces that have documents or a quota, and the use of each.
    pub fn namespaces(&self) -> BTreeMap<&str, NamespaceUse> {
        let uses = self.quota_uses();
        let mut namespaces = uses.of_namespaces();
        for name in self.namespaces.given.keys() {
            namespaces.entry(name).or_default();
        }
        namespaces
    }

    /// The shares of a namespace's documents in its use.
    pub fn shares(&self, namespace: &str) -> Vec<UseShare> {
        self.quota_uses().shares(namespace)
    }

    fn quota_uses(&self) -> QuotaUses<'_> {
        let Self { functions, policies, secrets, route_uses: routes, .. } = self;
        QuotaUses { functions, policies, secrets, routes }
    }

    /// The bounds that nodes enforce. Documents of requests may not name files of nodes, and may
    /// not cause fetches from special addresses or calls to metadata services, unless the operator
    /// lists them.
    fn bounds(&self, id: &FunctionId, function: &Function) -> NamespaceBounds {
        let mut bounds = self.quota(&id.namespace).bounds.clone();
        if function.origin == Origin::Request {
            bounds.files.get_or_insert_default();
            bounds.host_paths.get_or_insert_default();
            bounds.metadata = Some(bounds.egress.get_or_insert_default().clone());
        }
        bounds
    }

    /// The engine of functions whose policies choose none, if the quota allows only one.
    fn only_engine(&self, id: &FunctionId) -> Option<Engine> {
        match self.quota(&id.namespace).engines.as_deref() {
            Some([engine]) => Some(*engine),
            _ => None,
        }
    }

    fn applied<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a Policy> {
        function.policies.iter().filter_map(|index| self.policies.get(*index)).map(|policy| &**policy)
    }

    fn authorizers<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a Authorizer> {
        self.applied(function).flat_map(|policy| &policy.authorizers)
    }

    /// The function's chain, without callees that its translated policies forbid.
    fn chain(&self, function: &Function) -> Option<ChainLink> {
        let mut link = function.chain.clone()?;
        link.to.retain(|id| self.callees(function).any(|(callee, _)| callee == id));
        Some(link)
    }

    fn extended(&self, function: &Function, outbound: bool) -> Vec<leno_model::Extension> {
        let all = self.applied(function).flat_map(|policy| &policy.extensions);
        all.filter(|extension| extension.outbound == outbound).map(|extension| extension.spec.clone()).collect()
    }

    /// Issuers of all policies in one list, and the fetches with indices into that list.
    fn authentication(&self, function: &Function) -> (Vec<spec::Issuer>, Vec<JwksFetch>) {
        let (mut issuers, mut fetches) = (Vec::new(), Vec::new());
        for policy in self.applied(function) {
            let before = issuers.len();
            fetches
                .extend(policy.jwks.iter().map(|fetch| JwksFetch { issuer: before + fetch.issuer, ..fetch.clone() }));
            issuers.extend(policy.authentication.iter().cloned());
        }
        (issuers, fetches)
    }

    fn tracing(&self, function: &Function) -> spec::Tracing {
        let set = self.applied(function).find_map(|policy| policy.tracing.clone());
        set.unwrap_or(spec::Tracing { name: String::new(), enabled: false, sampling_per_10k: 0, accept_b3: false })
    }

    /// Without a policy everything is logged: a mesh that denies by default must log its
    /// denials.
    fn access_log(&self, function: &Function) -> spec::AccessLog {
        let set = self.applied(function).find_map(|policy| policy.access_log.clone());
        set.unwrap_or(spec::AccessLog {
            name: String::new(),
            enabled: true,
            statuses: Vec::new(),
            request_headers: Vec::new(),
        })
    }

    /// The target for a function, with the settings of its policies for calls to it.
    fn target(&self, id: &FunctionId, function: &Function) -> spec::Target {
        spec::Target {
            function: id.to_string(),
            timeout_ms: u64::try_from(function.timeout.as_millis()).unwrap_or(u64::MAX),
            retry: self.applied(function).find_map(|policy| policy.retry.clone()),
            breaker: self.applied(function).find_map(|policy| policy.breaker.clone()),
            as_received: function.as_received,
        }
    }
}

/// The part of an authorizer that a program needs.
fn asked(Authorizer { only, config, .. }: &Authorizer) -> spec::Authorizer {
    spec::Authorizer {
        name: config.name.clone(),
        only: only.clone(),
        headers: config.upstream_headers.clone(),
        audit: config.audit,
    }
}

/// `1 function`, `2 functions`
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
