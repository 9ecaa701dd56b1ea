//! The discovery protocol between a node and the control plane.
//!
//! [`v1`] is generated from `proto/leno/v1/discovery.proto`. [`messages`] has the only conversions
//! between its messages and the types of this crate. [`encoding`] is the format of resources and
//! stored values. `leno-agent` is the node's end of the protocol, `leno-control` the other end.
#![forbid(unsafe_code)]

pub mod encoding;
mod job;
mod join_token;
pub mod listener_fault;
mod load;
pub mod messages;
mod placement;
pub mod pod_fault;
mod protocol;
mod question;
mod question_error;
mod resource;
mod secrets;
mod view;

/// The protocol, generated from `proto/leno/v1/discovery.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("leno.v1");
}

pub use job::{JobReport, JobState, run_of};
pub use join_token::{BadNodeName, JoinToken, NoRandomness, NoToken, check_node_name};
pub use listener_fault::{ListenerFault, ListenerFaultKind};
pub use load::{Bounds, Capacity, Lease, LimitDemand, LimitShare, Load, Observation, RevisionCounts, TERM};
pub use messages::{MAX_REASON, NodeCertificates, NodeOffer};
pub use placement::Placement;
pub use pod_fault::PodFaults;
pub use protocol::{
    AUTHORITIES, LISTENERS, MACHINES, MAX_MESSAGE, PODS, PROTOCOLS, QUESTIONS, RELEASE, REVOKED, SECRETS, protocols,
    shared_protocol,
};
pub use question::{Answer, Question, ReplayExample, ReplaySummary, ReplayVerdict};
pub use question_error::{BadAnswer, BadQuestion};
pub use resource::{BadPayload, Content, Endpoint, Instance, Resource, Subject, Version, module_hash};
pub use view::{View, ViewQuery, ViewRows};
