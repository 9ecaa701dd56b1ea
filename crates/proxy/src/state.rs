//! What all workers of a node share: the snapshot that requests are judged and routed by, the ledger, credentials, instances.

pub mod admission;
pub mod component;
pub mod credential;
pub mod extension;
pub mod function;
pub mod instances;
pub mod ledger;
pub mod modules;
pub mod node;
pub mod revisions;
pub mod routes;
pub mod shards;
pub mod signature;
pub mod snapshot;
pub mod terminating;
