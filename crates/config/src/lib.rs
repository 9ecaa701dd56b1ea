//! Documents become checked, immutable configuration; policies become programs.
//!
//! [`load`] reads YAML documents ([`document`]) and yields a [`Snapshot`] of the whole mesh, or all [`Problem`]s with file, line, field and
//! fix; documents that come in requests are read by [`Document::read`]. [`Snapshot::slice`] is what one function's sidecars get of it. [`watch`] notices changes of the files.
#![forbid(unsafe_code)]

mod collection;
mod compile;
mod deserialize;
pub mod document;
pub mod duration;
mod effort;
mod folder;
mod host;
mod import;
mod imported;
pub mod jwks;
mod load;
mod namespace;
mod nearest;
pub mod permissions;
mod problem;
pub mod reference;
pub mod size;
mod snapshot;
pub mod watch;
mod yaml;

pub use collection::{Document, DocumentId, Reach};
pub use effort::Effort;
pub use imported::{Row as ImportRow, Standing};
pub use leno_model::{
    CandidatePrograms, Distance, FunctionId, Locality, ModuleHash, NamespaceBounds, Route, SecretValue, secret_values,
};
pub use leno_model::{FunctionConfig as Slice, MeshConfig as MeshSlice};
pub use leno_model::{egress, function_id as id, revision};
pub use load::{load, load_text, texts};
pub use namespace::{NamespaceQuota, NamespaceUse, Overrun};
pub use permissions::Permissions;
pub use problem::Problem;
pub use snapshot::{CONTROL_FILES, Extension, Snapshot};

/// The types of `leno-model`, by their old place.
pub mod slice {
    pub use leno_model::*;
    pub use leno_model::{FunctionConfig as Slice, MeshConfig as MeshSlice};
}
