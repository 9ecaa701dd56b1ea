//! What the configuration names by its address, fetched by the node: key sets, and modules of extensions and components.

mod download;
pub mod jwks;
pub(crate) mod modules;
