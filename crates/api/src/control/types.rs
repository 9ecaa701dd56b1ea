//! JSON of the API's requests and responses.

mod authority;
mod namespaces;
mod nodes;
mod replay;
mod secrets;
mod tokens;

pub use authority::{AuthorityAnswer, RotationAction, RotationEnd, RotationRequest, TrustedRoot};
pub use namespaces::{NamespaceStatus, NodeBounds, Share};
pub use nodes::{CordonRequest, JoinTokenRequest, NewJoinToken};
pub use replay::{FunctionReplay, Replay, ReplayExample, ReplayVerdict, UnjudgedRequests};
pub use secrets::{SecretKey, SecretStatus};
pub use tokens::{NewToken, OwnToken, Role, TokenInfo, TokenRequest};

use leno_config::{DocumentId, Problem};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use utoipa::ToSchema;

/// The name of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// `Mesh`, `Function`, `Job`, `External`, `Chain`, `Policy`, `StoredSecret`,
    /// `NamespaceQuota`, `Namespace`, `NetworkPolicy`, `CiliumNetworkPolicy` or
    /// `CiliumClusterwideNetworkPolicy`, or a kind of the Gateway API: `Gateway`,
    /// `GatewayClass`, `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute`, `ReferenceGrant` or
    /// `BackendTLSPolicy`.
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
    pub expect: Vec<ExpectedVersion>,
    /// Report the changes without making them.
    #[serde(default)]
    pub dry_run: bool,
    /// Also report which recorded requests would have been decided differently. In dry runs only.
    #[serde(default)]
    pub replay: bool,
}

/// A text with any number of YAML or JSON documents.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its name in reported problems.
    pub name: String,
    /// Its documents, separated by `---`.
    pub text: String,
}

/// Without the text, which may hold secrets.
impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({})", self.name)
    }
}

/// A document and the version that it must have; 0: there must be none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedVersion {
    /// The document.
    pub document: Name,
    /// The version as listed.
    pub version: u64,
}

/// The changes that the request made, or would make in a dry run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeAnswer {
    /// The new revision; `null`: nothing changed.
    pub revision: Option<u64>,
    /// Each document of the request.
    pub documents: Vec<DocumentChange>,
    /// Functions, jobs and External documents with a changed configuration.
    pub functions: Vec<String>,
    /// Content of the documents that is valid and very likely not meant.
    pub warnings: Vec<Wrong>,
    /// Which recorded requests would have been decided differently, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// The change of one document.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DocumentChange {
    /// The document.
    pub document: Name,
    /// The kind of change.
    pub action: Action,
    /// Its text before; `null`: there was none. In dry runs only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<String>,
    /// Its text afterwards; `null`: there is none. In dry runs only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<String>,
}

/// The kind of a document's change.
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

/// A run of a job that begins.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RerunAnswer {
    /// The number of the run, from 1.
    pub attempt: u32,
}

/// A stored document.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoredDocument {
    /// Its name.
    #[serde(flatten)]
    pub document: Name,
    /// The revision that last changed it.
    pub version: u64,
    /// Who last changed it.
    pub by: String,
    /// When, in seconds since 1970.
    pub changed: f64,
    /// As it was applied; a StoredSecret without its values.
    pub text: String,
}

/// Stored documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Documents {
    /// The revision of which they are.
    pub revision: u64,
    /// Ordered by kind, namespace and name.
    pub documents: Vec<StoredDocument>,
    /// Why the stored documents are not in force, so that earlier ones still are. Empty: they are in force.
    pub not_in_force: Vec<Wrong>,
}

/// A change in the audit log.
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
    /// The kind of change.
    pub action: Action,
    /// Its version before; 0: there was none.
    pub before: u64,
}

/// A problem of a document.
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
    /// The problem.
    pub message: String,
    /// The right content; empty: the problem shows it.
    pub fix: String,
}

/// Why a request was refused.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// In words.
    pub error: String,
    /// The problems of documents.
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
