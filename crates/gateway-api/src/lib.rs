//! Documents of the Gateway API (`gateway.networking.k8s.io`): their types, and the constraints that
//! a Kubernetes API server puts on them.
//!
//! [`read`] takes a value as a parser of YAML or JSON has it, and returns a [`Resource`] with the
//! defaults of its schema, or all [`Fault`]s with the path of the field. Types and constraints are
//! generated from the published CRDs by `scripts/gateway-api.py`; `rules` has the CRDs' CEL rules.
#![forbid(unsafe_code)]

mod document_value;
mod duration;
mod fault;
mod metadata;
mod pattern;
mod read;
mod resource;
mod rules;
mod schema;

pub use document_value::{Content, DocumentValue};
pub use duration::duration;
pub use fault::{Fault, Step};
pub use metadata::ObjectMeta;
pub use read::{is_of_the_mesh, read};
pub use resource::*;

/// The group in `apiVersion` of its documents.
pub const GROUP: &str = "gateway.networking.k8s.io";
