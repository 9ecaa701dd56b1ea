//! The control plane. It keeps the definitions, sends each node its resources and the endpoints of
//! functions, and certifies the identities of the functions that a node hosts.
//!
//! Begin with [`Control`]: users publish definitions to it and admit nodes. `server` serves gRPC;
//! `state` decides which node gets which resources. `leno-agent` is the node's end.
//!
//! Only definitions and job outcomes are stored. Endpoints, instances, running jobs and counters
//! live in memory. After a restart, nodes report them again.
#![forbid(unsafe_code)]

mod active_rollouts;
mod admission;
mod asking;
mod bounds;
mod control;
mod definitions;
mod error;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod job;
mod join_verifier;
mod leases;
mod listener;
mod node_share;
mod places;
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

#[cfg(test)]
#[allow(dead_code, reason = "tests of the source use a part of it")]
#[path = "../tests/it/support/configs.rs"]
mod configs;
#[cfg(test)]
mod golden;

pub use admission::{Admission, AdmitError, CapacityLimits, Cordon, TokenGrant};
pub use asking::AskError;
pub use control::{
    AuthorityStatus, Control, ImportError, Options, PublishError, PublishSummary, RerunError, RootStatus, RotateError,
    RotationPeers, RotationProgress, StartError,
};
pub use definitions::{Definitions, Secrets};
pub use error::DefinitionsError;
pub use history::{RolloutAction, RolloutChange, RolloutStep, SteerError};
pub use job::{JobEvent, JobStatus};
pub use join_verifier::{BoxFuture, JoinError, JoinVerifier, VerifiedNode};
pub use places::{OpenRequest, Place, Places, Requests, source};
pub use rotation::{Phase, RotationOutcome};
pub use server::ServeError;
pub use state::destinations::DestinationChanges;
pub use status::{
    AbsenceStatus, Certificates, Counters, DeliveryState, FunctionNode, FunctionStatus, HostedInstance, IssuedIdentity,
    NodeChange, NodeEvent, NodeStatus, PlacementEvent, PodHosts, RejectedVersion, RevisionStatus, RolloutEvent, Status,
};
pub use store::{
    Backend, Commit, Entry, Etcd, EtcdOptions, Limits, Listing, Redb, Store, StoreError, Term, Transaction, Watch,
};
pub use trust::Authorities;
