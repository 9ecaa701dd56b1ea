//! Documents become checked, immutable configuration; policies become programs.
#![forbid(unsafe_code)]

pub mod id;
pub mod slice;

pub use id::FunctionId;
pub use slice::{MeshSlice, Slice};
