//! The control plane: it keeps the definitions, gives every node its part of them, relays where functions can be reached, and
//! certifies the identities of what a node hosts.
//!
//! On its side, read [`Control`] first: definitions are published to it and nodes are admitted to it; `server` carries that
//! over gRPC; `state` decides who gets what. On a node's side, read [`node`]: it holds the stream, hands on each [`node::Update`], and
//! goes on with what it has while the control plane is away.
//!
//! Only definitions are stored, and how jobs ended. Endpoints, instances, jobs under way and counters live in memory and come back from
//! the nodes after a restart.
#![forbid(unsafe_code)]

mod admission;
mod control;
mod definitions;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod job;
pub mod node;
mod resource;
mod rollout;
mod server;
mod state;
mod status;
mod store;
mod watch;
mod wire;

#[cfg(test)]
#[path = "../tests/support/slices.rs"]
mod slices;

pub use admission::{Admission, AdmitError, JoinToken, Placement};
pub use control::{Control, Options, PublishError, Published, StartError};
pub use definitions::{Definitions, gateway_identity};
pub use error::DefinitionsError;
pub use job::{JobEvent, JobReport, JobState, JobStatus, run_of};
pub use resource::{Endpoint, Instance, InstanceState, Resource, Subject, Version};
pub use rollout::RevisionCounts;
pub use server::ServeError;
pub use status::{
    Counters, FunctionStatus, HostedInstance, IssuedIdentity, NodeStatus, RejectedVersion, RevisionStatus,
    RolloutEvent, Status,
};
pub use store::{Store, StoreError};
pub use wire::v1;
