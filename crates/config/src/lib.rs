//! Compiles documents to the checked model (`leno_model`), and policies to programs.
//!
//! [`load`] reads YAML documents ([`document`]) and returns a [`Snapshot`] of the whole mesh, or all
//! [`Problem`]s with file, line, field and fix. [`Document::read`] reads documents of requests.
//! [`Snapshot::function_config`] is the configuration of one function. [`watch`] notices changes of the files.
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
mod snapshot;
pub mod watch;
mod yaml;

pub use collection::{Document, DocumentId, Reach};
pub use effort::Effort;
pub use imported::{Row as ImportRow, Standing};
pub use load::{load, load_text, texts};
pub use namespace::{NamespaceQuota, NamespaceUse, Overrun};
pub use permissions::Permissions;
pub use problem::Problem;
pub use snapshot::{CONTROL_FILES, Extension, Snapshot};
