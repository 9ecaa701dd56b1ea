//! One node of the mesh: the supervisor of its instances, the corridor that carries requests, and the reconciler that puts into force
//! what the control plane delivers.
//!
//! [`start`] puts them together. What it returns, [`Running`], is all that others need to know of a node: where it listens, whether it is
//! ready, and how to stop it.
#![forbid(unsafe_code)]

mod draining;
mod engines;
mod instances;
mod jobs;
mod loader;
mod reconciler;
mod retries;
mod start;

pub use engines::{Engines, NoEngine};
pub use start::{Join, Running, start};
