//! What the API takes and gives, as JSON.

use leno_config::{DocumentId, NamespaceBounds, Problem};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use utoipa::ToSchema;

/// The name of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// `Mesh`, `Function`, `Job`, `External`, `Chain`, `Policy`, `NamespaceQuota`, `NetworkPolicy`, `CiliumNetworkPolicy` or `CiliumClusterwideNetworkPolicy`.
    pub kind: String,
    /// Empty for documents of the whole mesh.
    #[serde(default)]
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

/// Documents to be applied and deleted together: all of it happens, or nothing.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeRequest {
    /// Texts with documents that are added or replaced.
    #[serde(default)]
    pub apply: Vec<File>,
    /// Documents that are removed.
    #[serde(default)]
    pub delete: Vec<Name>,
    /// Versions that documents must still have.
    #[serde(default)]
    pub expect: Vec<Expected>,
    /// Only tell what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Also tell which recorded requests would have been decided differently. In dry runs only.
    #[serde(default)]
    pub replay: bool,
}

/// A text with any number of YAML or JSON documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// What problems call it.
    pub name: String,
    /// Its documents, separated by `---`.
    pub text: String,
}

/// A document and the version that it must have; 0: there must be none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The document.
    pub document: Name,
    /// As it was listed.
    pub version: u64,
}

/// What was done, or what would be.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeAnswer {
    /// The revision that it made; `null`: nothing changed.
    pub revision: Option<u64>,
    /// Each document of the request.
    pub documents: Vec<Changed>,
    /// Functions, jobs and External documents whose configuration is another one.
    pub functions: Vec<String>,
    /// What is allowed and very likely not meant, in the documents of the request.
    pub warnings: Vec<Wrong>,
    /// Which recorded requests would have been decided differently, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// Which recorded requests would have been decided differently. Each node remembers some two thousand requests for each worker, in its memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// Functions whose programs would be others.
    pub functions: Vec<FunctionReplay>,
    /// Further functions whose programs would be others, of namespaces that the token is not for.
    pub hidden: usize,
}

/// What became of the recorded requests of one function: calls to it, and its own calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionReplay {
    /// `namespace/name`.
    pub function: String,
    /// Requests that were judged again.
    pub judged: u64,
    /// Of those, which were allowed and would be denied.
    pub newly_denied: u64,
    /// Of those, which were denied and would be allowed.
    pub newly_allowed: u64,
    /// Requests that could not be judged again.
    pub unjudged: Vec<Unjudged>,
    /// Requests for which there was no time.
    pub skipped: u64,
    /// Some of the differences, the latest first.
    pub examples: Vec<ReplayExample>,
    /// What the function has and was not replayed: rate limits, circuit breakers, external authorizers, extensions.
    pub left_out: Vec<String>,
    /// Nodes that host the function and did not replay, and why; or that no node hosts it.
    pub missing: Vec<String>,
}

/// Requests that could not be judged again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Unjudged {
    /// Why.
    pub reason: String,
    /// How many.
    pub requests: u64,
}

/// A request that would have been decided differently.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayExample {
    /// When it was made, in seconds since 1970.
    pub time: f64,
    /// The node that has it.
    pub node: String,
    /// Its ID, for `leno explain` on that node.
    pub request_id: String,
    /// `outbound`: the function's own call; `inbound` or `gateway`: a call to it.
    pub direction: String,
    /// `namespace/name`, or the address of a caller outside of the mesh.
    pub caller: String,
    /// The callee of an outbound call.
    pub callee: Option<String>,
    /// Method, as sent.
    pub method: String,
    /// Path, without query.
    pub path: String,
    /// What was decided.
    pub before: ReplayVerdict,
    /// What would have been.
    pub after: ReplayVerdict,
}

/// A verdict.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplayVerdict {
    /// `allow` or `deny`.
    pub verdict: String,
    /// The policy that refused.
    pub policy: Option<String>,
    /// The rule that decided, or came nearest.
    pub rule: String,
    /// The clause that decided or missed.
    pub clause: String,
}

/// What became of one document.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The document.
    pub document: Name,
    /// What was done.
    pub action: Action,
    /// Its text before; `null`: there was none. In dry runs only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<String>,
    /// Its text afterwards; `null`: there is none. In dry runs only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<String>,
}

/// What is done to a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// There was none of the name.
    Created,
    /// There was one with another text.
    Changed,
    /// There was one with this text.
    Unchanged,
    /// It was removed.
    Deleted,
}

/// A stored document.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// Its name.
    #[serde(flatten)]
    pub document: Name,
    /// The revision that last changed it.
    pub version: u64,
    /// Who last changed it.
    pub by: String,
    /// When, in seconds since 1970.
    pub changed: f64,
    /// As it was applied.
    pub text: String,
}

/// Stored documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Documents {
    /// The revision of which they are.
    pub revision: u64,
    /// Ordered by kind, namespace and name.
    pub documents: Vec<Stored>,
    /// Why the stored documents are not in force; what was before goes on. Empty: they are.
    pub not_in_force: Vec<Wrong>,
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read documents and status.
    Reader,
    /// Also apply and delete documents.
    Editor,
    /// Also make and revoke tokens, and read the audit log.
    Admin,
}

/// A token to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    /// What its bearer may do.
    pub role: Role,
    /// Where; empty: everywhere.
    #[serde(default)]
    pub namespaces: BTreeSet<String>,
    /// For how many seconds from now; `null`: until it is revoked.
    #[serde(default)]
    pub lifetime: Option<u64>,
    /// What it is for.
    #[serde(default)]
    pub note: String,
}

/// A token that was made. Nobody can ask for it again.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// Its public part.
    pub id: String,
    /// What `Authorization: Bearer` wants.
    pub token: String,
}

/// A join token to be made.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinTokenRequest {
    /// The name that the node must have; it replaces a node of that name. `null`: any name that no node has.
    #[serde(default)]
    pub node: Option<String>,
    /// The node may also be a gateway.
    #[serde(default)]
    pub gateway: bool,
    /// The node is a gateway and hosts nothing.
    #[serde(default)]
    pub only_gateway: bool,
    /// The node connects to the outside for the functions of all nodes, where the mesh has such nodes do that. Not with `onlyGateway`.
    #[serde(default)]
    pub egress: bool,
    /// IP addresses and blocks of them at which other nodes may reach the node. Empty: only the address from which it joins.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Region of the node.
    #[serde(default)]
    pub region: Option<String>,
    /// Zone of the node.
    #[serde(default)]
    pub zone: Option<String>,
    /// Thousandths of a processor that the node may offer at most; `null`: those of 1024 processors.
    #[serde(default)]
    pub max_cpu: Option<u64>,
    /// Bytes of memory that it may offer at most; `null`: 16 TiB.
    #[serde(default)]
    pub max_memory: Option<u64>,
    /// Instances that it may offer to run at most; `null`: 10,000.
    #[serde(default)]
    pub max_instances: Option<u32>,
    /// For how many seconds from now; `null`: an hour.
    #[serde(default)]
    pub lifetime: Option<u64>,
}

/// A join token that was made. Nobody can ask for it again.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewJoinToken {
    /// What `leno node --join` wants, in a file.
    pub token: String,
}

/// Whether a node is cordoned.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CordonRequest {
    /// It gets nothing new, and what it hosts goes elsewhere.
    pub cordoned: bool,
}

/// A token without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Its public part.
    pub id: String,
    /// What its bearer may do.
    pub role: Role,
    /// Where; empty: everywhere.
    pub namespaces: BTreeSet<String>,
    /// What it is for.
    pub note: String,
    /// Who made it.
    pub by: String,
    /// When, in seconds since 1970.
    pub created: f64,
    /// When it ends, in seconds since 1970; `null`: when it is revoked.
    pub expires: Option<f64>,
}

/// Something that somebody changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// When, in seconds since 1970.
    pub time: f64,
    /// Who.
    pub by: String,
    /// From which address.
    pub from: String,
    /// The revision that it made; 0 in the log's file, which is written with it.
    #[serde(default)]
    pub revision: u64,
    /// What.
    pub changes: Vec<AuditChange>,
}

/// One change of a document or a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditChange {
    /// `Function demo/shop`, `token 8c1f…`.
    pub what: String,
    /// What was done.
    pub action: Action,
    /// Its version before; 0: there was none.
    pub before: u64,
}

/// What is to happen to the authority of the mesh.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotationRequest {
    /// What to do.
    pub action: RotationAction,
    /// Names of nodes that are not waited for.
    #[serde(default)]
    pub without: Vec<String>,
}

/// What to do about the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RotationAction {
    /// Replace it.
    Begin,
    /// Try whether all nodes would take the certificates of another one.
    Drill,
    /// Do not wait for some nodes any more.
    Without,
    /// Go back to the one that was before.
    Abort,
}

/// The authority of the mesh, and how far its replacement is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityAnswer {
    /// Key identifier of the authority that signs, in hexadecimal digits.
    pub signs: String,
    /// The file that its key is kept in, at the control plane that leads; `null`: in memory only.
    pub file: Option<String>,
    /// When nothing that it signs is valid any more, in seconds since 1970.
    pub not_after: u64,
    /// The roots that nodes are given.
    pub roots: Vec<TrustedRoot>,
    /// `trust`, `renew` or `withdraw`; `null`: it is not being replaced.
    pub phase: Option<String>,
    /// It is a drill.
    pub drill: bool,
    /// It goes back to the authority that was before.
    pub aborted: bool,
    /// When the phase began, in seconds since 1970; 0: there is none.
    pub since: u64,
    /// The nodes that are waited for, and what each of them lacks.
    pub waiting: BTreeMap<String, String>,
    /// The nodes that are not waited for.
    pub without: BTreeSet<String>,
    /// How the last replacement or drill ended.
    pub last: Option<RotationEnd>,
    /// What expires within 30 days.
    pub warnings: Vec<String>,
}

/// A root certificate that nodes are given.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustedRoot {
    /// SHA-256 of the certificate in DER, in hexadecimal digits.
    pub sha256: String,
    /// When it expires, in seconds since 1970.
    pub not_after: u64,
    /// Certificates are signed under it now.
    pub signs: bool,
}

/// How a replacement of the authority or a drill ended.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RotationEnd {
    /// Which one it was, counted from 1.
    pub number: u64,
    /// It was a drill.
    pub drill: bool,
    /// It was aborted.
    pub aborted: bool,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Of a drill: the nodes that would fail, and why.
    pub failed: BTreeMap<String, String>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wrong {
    /// The file, as the request names it; `Function demo/shop`: a stored document.
    pub file: String,
    /// Line, from 1; 0: the file as a whole.
    pub line: u32,
    /// Column in characters, from 1; 0: the file as a whole.
    pub column: u32,
    /// `spec.retry.attempts`; empty: the document as a whole.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What would be right; empty: that is clear.
    pub fix: String,
}

/// Why a request was refused.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// In words.
    pub error: String,
    /// What is wrong with documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Wrong>,
    /// The address of the control plane that takes changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}

impl From<&DocumentId> for Name {
    fn from(id: &DocumentId) -> Self {
        let DocumentId { kind, namespace, name } = id.clone();
        Self { kind, namespace, name }
    }
}

impl From<Name> for DocumentId {
    fn from(Name { kind, namespace, name }: Name) -> Self {
        Self { kind, namespace, name }
    }
}

impl From<&Problem> for Wrong {
    fn from(problem: &Problem) -> Self {
        let Problem { file, line, column, field, message, fix } = problem.clone();
        Self { file: file.display().to_string(), line, column, field, message, fix }
    }
}

impl From<Wrong> for Problem {
    fn from(Wrong { file, line, column, field, message, fix }: Wrong) -> Self {
        Self { file: PathBuf::from(file), line, column, field, message, fix }
    }
}

/// The use that a namespace makes of its quota. `functions`, `rules` and `documentBytes` are those of its documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceStatus {
    /// The namespace.
    pub namespace: String,
    /// Functions, jobs and External documents.
    pub functions: Share,
    /// Instances that run on all nodes.
    pub instances: u64,
    /// Rules of policies, each once for every function that it applies to.
    pub rules: Share,
    /// Bytes of documents.
    pub document_bytes: Share,
    /// Hosts that are its own; `null`: any that no other namespace has.
    pub hosts: Option<Vec<String>>,
    /// Engines of its functions; `null`: any.
    pub engines: Option<Vec<String>>,
    /// The bounds that each node enforces.
    pub node: NodeBounds,
}

/// A use beside its bound.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// The use.
    pub used: u64,
    /// The bound.
    pub bound: u64,
}

impl Share {
    pub(crate) fn new(used: u64, bound: impl Into<u64>) -> Self {
        Self { used, bound: bound.into() }
    }
}

/// The bounds that each node enforces for a namespace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBounds {
    /// Instances and processes of jobs.
    pub instances: u32,
    /// Thousandths of a core; `null`: a fair share.
    pub cpu_millis: Option<u32>,
    /// Bytes of memory; `null`: half of the machine's.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: u32,
    /// Connections; `null`: an eighth of those that the node may have.
    pub connections: Option<u32>,
    /// Requests that are open at a time.
    pub open_requests: u32,
    /// Requests that wait for an instance at a time.
    pub waiting_requests: u32,
    /// Bytes of images and modules a second; `null`: no bound.
    pub pull_bandwidth: Option<u64>,
    /// Bytes of unpacked images; `null`: a quarter of the node's image store, at least 1Gi.
    pub image_bytes: Option<u64>,
    /// Files and folders of unpacked images; `null`: 500000, or less where the node's file system has few.
    pub image_files: Option<u32>,
    /// Bytes of log a second.
    pub log_bandwidth: u64,
    /// Folders below which files of the nodes are opened; `null`: none.
    pub files: Option<Vec<String>>,
}

impl From<&NamespaceBounds> for NodeBounds {
    fn from(bounds: &NamespaceBounds) -> Self {
        Self {
            instances: bounds.instances(),
            cpu_millis: bounds.cpu_millis,
            memory_bytes: bounds.memory,
            pids: bounds.pids(),
            connections: bounds.connections,
            open_requests: bounds.open_requests(),
            waiting_requests: bounds.waiting_requests(),
            pull_bandwidth: bounds.pull_bandwidth,
            image_bytes: bounds.image_bytes,
            image_files: bounds.image_files,
            log_bandwidth: bounds.log_bandwidth(),
            files: bounds.files.as_ref().map(|files| files.iter().map(|path| path.display().to_string()).collect()),
        }
    }
}
