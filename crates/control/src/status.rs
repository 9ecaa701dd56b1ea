//! What the control plane knows, for people: `leno get` and the experiments.

use crate::job::JobStatus;
use crate::resource::{Instance, Subject, Version};
use crate::wire::{self, v1};
use leno_config::FunctionId;
use leno_identity::SpiffeId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// In the order of their names.
    pub functions: Vec<FunctionStatus>,
    /// In the order of their names.
    pub nodes: Vec<NodeStatus>,
    /// In the order of their names.
    pub jobs: Vec<JobStatus>,
    /// In the order of the identities; the latest certificate of each, on each node.
    pub identities: Vec<IssuedIdentity>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionStatus {
    /// Its name.
    pub function: FunctionId,
    /// Its SPIFFE ID.
    #[serde(serialize_with = "as_text")]
    pub identity: SpiffeId,
    /// Of its slice.
    pub version: Version,
    /// As the nodes report them.
    pub instances: Vec<HostedInstance>,
    /// That are kept, oldest first; the last is the latest.
    pub revisions: Vec<RevisionStatus>,
}

/// A revision of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RevisionStatus {
    /// `checkout-00003`.
    pub revision: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Of the requests that no tag and no header decides about.
    pub percent: u8,
    /// Tags that lead to it.
    pub tags: Vec<String>,
    /// Whether headers lead to it.
    pub headers: bool,
    /// The step of its rollout, from 1, and how many there are, while it lasts.
    pub step: Option<(u32, u32)>,
    /// Why it was rolled back.
    pub failed: Option<String>,
}

/// A decision on a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RolloutEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Of which function.
    pub function: FunctionId,
    /// Of which revision.
    pub revision: String,
    /// Percentage that it had.
    pub from: u8,
    /// Percentage that it has now.
    pub to: u8,
    /// Why.
    pub reason: String,
}

/// An instance and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostedInstance {
    /// The node's name.
    pub node: String,
    /// The instance.
    #[serde(flatten)]
    pub instance: Instance,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Whether it has a stream.
    pub connected: bool,
    /// Where other nodes reach its functions.
    pub inbound: Option<SocketAddr>,
    /// The functions placed on it.
    pub hosted: BTreeSet<FunctionId>,
    /// What it refused and has not replaced since.
    pub rejected: Vec<RejectedVersion>,
    /// What went to and fro.
    pub counters: Counters,
}

/// A resource that a node refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedVersion {
    /// Which.
    pub subject: Subject,
    /// The refused version.
    pub version: Version,
    /// The node's words.
    pub reason: String,
    /// What it goes on with; `None`: nothing.
    pub in_force: Option<Version>,
}

/// Totals of one node since the control plane started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Streams opened.
    pub streams: u64,
    /// Deltas pushed.
    pub messages: u64,
    /// Bytes of these messages, before HTTP/2 framing.
    pub bytes: u64,
    /// Resources in them.
    pub resources: u64,
    /// Removals in them.
    pub removals: u64,
    /// Answers, with and without rejections.
    pub acks: u64,
    /// Rejected resources.
    pub rejections: u64,
    /// Reports of instances.
    pub reports: u64,
}

/// A certificate that the authority signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IssuedIdentity {
    /// For whom.
    #[serde(serialize_with = "as_text")]
    pub identity: SpiffeId,
    /// Which node has it.
    pub node: String,
    /// Its last second, since 1970.
    pub not_after: u64,
}

fn as_text<S: serde::Serializer>(id: &SpiffeId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

impl From<&Status> for v1::ListResponse {
    fn from(status: &Status) -> Self {
        Self {
            functions: status.functions.iter().map(Into::into).collect(),
            nodes: status.nodes.iter().map(Into::into).collect(),
            jobs: status.jobs.iter().map(Into::into).collect(),
            identities: status.identities.iter().map(Into::into).collect(),
        }
    }
}

impl From<&FunctionStatus> for v1::Function {
    fn from(status: &FunctionStatus) -> Self {
        let instances = status.instances.iter();
        let instances = instances
            .map(|hosted| v1::HostedInstance { node: hosted.node.clone(), instance: Some((&hosted.instance).into()) })
            .collect();
        Self {
            name: status.function.to_string(),
            identity: status.identity.to_string(),
            version: status.version.to_wire(),
            instances,
            revisions: status.revisions.iter().map(Into::into).collect(),
        }
    }
}

impl From<&RevisionStatus> for v1::Revision {
    fn from(status: &RevisionStatus) -> Self {
        let (step, steps) = status.step.unwrap_or_default();
        Self {
            name: status.revision.clone(),
            created_ms: status.created_ms,
            percent: status.percent.into(),
            tags: status.tags.clone(),
            headers: status.headers,
            step,
            steps,
            failed: status.failed.clone().unwrap_or_default(),
        }
    }
}

impl From<&JobStatus> for v1::Job {
    fn from(status: &JobStatus) -> Self {
        Self {
            node: status.node.clone().unwrap_or_default(),
            completions: status.completions,
            progress: Some(wire::job_report(&status.job, &status.report)),
        }
    }
}

impl From<&NodeStatus> for v1::Node {
    fn from(status: &NodeStatus) -> Self {
        Self {
            name: status.name.clone(),
            connected: status.connected,
            inbound: status.inbound.map(|address| address.to_string()).unwrap_or_default(),
            hosted: status.hosted.iter().map(FunctionId::to_string).collect(),
            rejected: status.rejected.iter().map(Into::into).collect(),
            counters: Some(status.counters.into()),
        }
    }
}

impl From<&RejectedVersion> for v1::RejectedVersion {
    fn from(rejected: &RejectedVersion) -> Self {
        Self {
            subject: Some((&rejected.subject).into()),
            version: rejected.version.to_wire(),
            reason: rejected.reason.clone(),
            in_force: rejected.in_force.map(Version::to_wire).unwrap_or_default(),
        }
    }
}

impl From<Counters> for v1::Counters {
    fn from(counters: Counters) -> Self {
        let Counters { streams, messages, bytes, resources, removals, acks, rejections, reports } = counters;
        Self { streams, messages, bytes, resources, removals, acks, rejections, reports }
    }
}

impl From<&IssuedIdentity> for v1::IssuedIdentity {
    fn from(issued: &IssuedIdentity) -> Self {
        Self { identity: issued.identity.to_string(), node: issued.node.clone(), not_after: issued.not_after }
    }
}
