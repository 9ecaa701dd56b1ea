//! State that all workers of a node share: the snapshot that routes and judges requests, limits and
//! counters, credentials, instances.

pub mod addresses;
pub(crate) mod admission;
pub(crate) mod authorizer;
pub(crate) mod by_function;
pub(crate) mod certificate;
pub mod channels;
pub(crate) mod component;
pub mod credential;
pub(crate) mod decisions;
pub(crate) mod delays;
pub(crate) mod egress;
pub(crate) mod egress_guard;
pub mod endpoints;
pub mod extension;
pub(crate) mod function;
pub mod health;
pub(crate) mod in_flight;
pub mod instances;
pub mod kernel;
pub mod limits;
pub mod links;
pub(crate) mod machines;
pub mod modules;
pub(crate) mod node;
pub mod pods;
pub mod policy_state;
pub(crate) mod recent;
pub(crate) mod removed_functions;
pub(crate) mod revisions;
pub(crate) mod routes;
pub mod shards;
pub mod signature;
pub(crate) mod snapshot;
pub(crate) mod terminating;
pub mod tokens;
