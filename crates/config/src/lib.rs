//! Compiles documents to the checked model (`leno_model`), and policies to programs.
//!
//! [`load`] reads YAML documents ([`document`]) and returns a [`Snapshot`] of the whole mesh, or all
//! [`Problem`]s with file, line, field and fix. [`Document::read`] reads documents of requests.
//! [`Snapshot::function_config`] is the configuration of one function. [`watch`] notices changes of the files.
#![forbid(unsafe_code)]

pub mod check;
mod collection;
mod compile;
mod counterpart;
mod deserialize;
mod digest;
pub mod document;
mod document_id;
mod document_set;
pub mod duration;
mod effort;
mod folder;
mod foreign;
mod gateway_document;
mod host;
mod inline;
pub mod jwks;
mod load;
mod namespace;
mod namespace_object;
mod nearest;
pub mod permissions;
mod problem;
pub mod reference;
mod route_status;
mod secrets;
mod snapshot;
mod timestamp;
mod traffic;
mod translation;
pub mod watch;
mod yaml;

pub use collection::{Document, Reach, SecretDocument, foreign_documents, without_skipped};
pub use compile::{CompileCache, Documents, TypedDocument, retry_condition, rules_without_effect};
pub use digest::module_hash;
pub use document_id::DocumentId;
pub use document_set::{DocumentSet, load, load_text, path_problems};
pub use effort::Effort;
pub use foreign::{ForeignDocument, ForeignKind};
pub use inline::{InlinedFile, inline_files};
pub use load::texts;
pub use namespace::{NamespaceQuota, NamespaceUse, Overrun, UseShare};
pub use permissions::Permissions;
pub use problem::{Origin, Problem, Scope};
pub use route_status::{
    AncestorStatus, CONTROLLER, Condition, FaultStatus, GatewayStatus, ListenerStatus, ParentName, ParentStatus,
    PolicyStatus, RouteReport, RouteStatus,
};
pub use secrets::{CheckedSecret, KeySummary, SecretSet};
pub use snapshot::{CONTROL_FILES, Extension, Snapshot, SnapshotDifference};
pub use timestamp::Timestamp;
pub use traffic::{flow, with_traffic};
pub use translation::{Standing, TranslationRow};
pub use yaml::{Key, Mark, Node, Value};
