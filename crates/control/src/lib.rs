//! The control plane. It keeps the definitions, gives every node its part of them, relays the endpoints of functions, and certifies the identities of
//! the functions that a node hosts.
//!
//! To read the control plane's side, begin with [`Control`]: users publish definitions to it and admit nodes. `server` serves gRPC; `state` decides
//! which node gets what. To read the node's side, begin with [`node`]: it keeps the stream open, passes on each [`node::Update`], and keeps the last
//! configuration while the control plane is away.
//!
//! Only definitions and job outcomes are stored. Endpoints, instances, running jobs and counters live in memory. After a restart they come back from
//! the nodes.
#![forbid(unsafe_code)]

mod active_rollouts;
mod admission;
mod asking;
mod bounds;
pub mod channel;
mod control;
mod definitions;
mod encoding;
mod enrol;
mod error;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod job;
mod leases;
mod listener;
mod load;
mod membership;
pub mod node;
mod node_share;
mod places;
mod question;
mod resource;
mod revocations;
mod rollout;
mod rotation;
mod scheduler;
mod server;
mod state;
mod status;
mod store;
mod ticks;
mod trust;
mod wire;

#[cfg(test)]
mod golden;
#[cfg(test)]
#[allow(dead_code, reason = "tests of the source use a part of it")]
#[path = "../tests/it/support/slices.rs"]
mod slices;

pub use admission::{Admission, AdmitError, JoinToken, NoToken, Placement, TokenGrant};
pub use asking::AskError;
pub use control::{AuthorityStatus, Control, Options, PublishError, Published, RootStatus, RotateError, StartError};
pub use definitions::Definitions;
pub use enrol::{JoinFailure, JoinOptions, enrol, settings};
pub use error::DefinitionsError;
pub use job::{JobEvent, JobReport, JobState, JobStatus, run_of};
pub use load::{Bounds, Capacity, CapacityLimits, Lease, LimitDemand, LimitShare, Load, Observation};
pub use membership::Membership;
pub use places::{OpenRequest, Place, Places, Requests, source};
pub use question::{
    Answer, Output, OutputLine, OutputMark, Question, ReadOutput, ReplayExample, ReplayVerdict, Replayed,
};
pub use resource::{Endpoint, Instance, InstanceState, Resource, Subject, Version};
pub use rollout::RevisionCounts;
pub use rotation::{Ended, Phase};
pub use server::ServeError;
pub use status::{
    Certificates, Counters, FunctionNode, FunctionStatus, HostedInstance, IssuedIdentity, NodeStatus, RejectedVersion,
    RevisionStatus, RolloutEvent, Status,
};
pub use store::{
    Backend, Commit, Entry, Etcd, EtcdOptions, Limits, Listing, Redb, Store, StoreError, Term, Transaction, Watch,
};
pub use trust::Authorities;
pub use wire::v1;
