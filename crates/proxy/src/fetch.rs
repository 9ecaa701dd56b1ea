//! Fetches key sets, and the modules of extensions and components, from URLs in the configuration.

pub(crate) mod download;
pub mod jwks;
pub(crate) mod modules;
