//! Fetches what the configuration names by URL: key sets, and the modules of extensions and components.

pub(crate) mod download;
pub mod jwks;
pub(crate) mod modules;
