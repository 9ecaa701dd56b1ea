//! Documents become checked, immutable configuration; policies become programs.
//!
//! [`load`] reads YAML documents ([`document`]) and yields a [`Snapshot`] of the whole mesh, or all [`Problem`]s with file, line, field and
//! fix; documents that come in requests are read by [`Document::read`]. [`Snapshot::slice`] is what one function's sidecars get of it. [`watch`] notices changes of the files.
#![forbid(unsafe_code)]

mod authorizer;
mod bounds;
mod candidate;
mod chain;
mod collection;
mod compile;
mod container;
mod deserialize;
pub mod document;
pub mod duration;
mod effort;
pub mod egress;
mod folder;
mod host;
pub mod id;
mod import;
mod imported;
pub mod jwks;
mod load;
mod locality;
mod namespace;
mod nearest;
pub mod permissions;
mod problem;
pub mod reference;
pub mod revision;
mod route;
mod run;
mod secret;
pub mod size;
pub mod slice;
mod snapshot;
mod special;
pub mod watch;
mod yaml;

pub use bounds::NamespaceBounds;
pub use candidate::CandidatePrograms;
pub use collection::{Document, DocumentId, Reach};
pub use effort::Effort;
pub use id::FunctionId;
pub use imported::{Row as ImportRow, Standing};
pub use load::{load, load_text, texts};
pub use locality::{Distance, Locality};
pub use namespace::{NamespaceQuota, NamespaceUse, Overrun};
pub use permissions::Permissions;
pub use problem::Problem;
pub use route::Route;
pub use secret::{SecretValue, secret_values};
pub use slice::{MeshSlice, ModuleHash, Slice};
pub use snapshot::{CONTROL_FILES, Extension, Snapshot};
