//! The control plane's status, for operators (`leno get`) and experiments.

use crate::job::JobStatus;
use leno_identity::SpiffeId;
use leno_model::{ChainLink, FunctionId, Locality};
use leno_wire::{Bounds, Capacity, Instance, NodeOffer, Subject, Version, messages, v1};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// The status of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Sorted by name.
    pub functions: Vec<FunctionStatus>,
    /// Sorted by name.
    pub nodes: Vec<NodeStatus>,
    /// Sorted by name.
    pub jobs: Vec<JobStatus>,
    /// Sorted by identity; the latest certificate of each identity on each node.
    pub identities: Vec<IssuedIdentity>,
}

/// The status of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionStatus {
    /// Name of the function.
    pub function: FunctionId,
    /// Its SPIFFE ID.
    #[serde(serialize_with = "as_text")]
    pub identity: SpiffeId,
    /// Version of its configuration.
    pub version: Version,
    /// The functions and external services that it may call.
    pub callees: Vec<FunctionId>,
    /// Whether the gateway has a route to it.
    pub exposed: bool,
    /// Its chain; `None`: none.
    pub chain: Option<ChainLink>,
    /// Whether it is an external service.
    pub external: bool,
    /// Its instances on all nodes, as the nodes report them.
    pub instances: Vec<HostedInstance>,
    /// Its kept revisions, oldest first. The last one is the latest.
    pub revisions: Vec<RevisionStatus>,
    /// The nodes that host it, with their bounds.
    pub nodes: Vec<FunctionNode>,
    /// Whether it is on no node, because there is none or none has capacity. It cannot be reached
    /// then.
    pub unplaced: bool,
    /// Why it is on no node, or on fewer than it needs; `None`: it lacks none.
    pub reason: Option<String>,
}

/// A function has no node any more or too few, has them again, or moves to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacementEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The function.
    pub function: FunctionId,
    /// What happened, and why.
    pub reason: String,
    /// Of a move: the load of both nodes before it, which is of functions of all namespaces.
    pub load: Option<String>,
}

/// The functions that have pods, each with the nodes of these.
pub type PodHosts = BTreeMap<FunctionId, BTreeSet<Arc<str>>>;

/// The state of the deliveries to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// It is not connected.
    Disconnected,
    /// It has refused a version that is still the newest, for this reason.
    Rejected(String),
    /// It has confirmed everything.
    Confirmed,
    /// It has something to confirm.
    UnderWay,
}

/// A node joined the mesh, went away, came back, or was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the node.
    pub node: String,
    /// The change.
    pub change: NodeChange,
    /// Why, and the consequences.
    pub reason: String,
}

/// A change of a node's membership or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeChange {
    /// It has become a member.
    Joined,
    /// It is not connected any more.
    Away,
    /// It is connected again.
    Back,
    /// It is no member any more.
    Removed,
}

/// A node that is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AbsenceStatus {
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// It has not connected since the control plane started, and may be away for longer.
    pub at_least: bool,
    /// It had a gateway, and no connected node has one.
    pub only_gateway: bool,
    /// It is an egress node, and no connected node is one.
    pub only_egress: bool,
    /// Functions that it hosted and that no connected node hosts, sorted.
    pub stranded: Vec<FunctionId>,
}

impl AbsenceStatus {
    /// The functions that a sentence names.
    const NAMED: usize = 5;

    /// Whether the node was the last one with the function.
    pub fn has(&self, function: &FunctionId) -> bool {
        self.stranded.binary_search(function).is_ok()
    }

    /// Which traffic fails because of the absence, as main clauses.
    pub fn consequences(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.only_gateway {
            all.push("no other node has a gateway".to_owned());
        }
        if self.only_egress {
            all.push("no other node is an egress node".to_owned());
        }
        if let Some(count) = Some(self.stranded.len()).filter(|count| *count > 0) {
            let named: Vec<_> = self.stranded.iter().take(Self::NAMED).map(FunctionId::to_string).collect();
            let (noun, verb) = if count == 1 { ("function", "has") } else { ("functions", "have") };
            let more = count - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            all.push(format!("{count} {noun} {verb} no other node: {}{more}", named.join(", ")));
        }
        all
    }
}

/// A node that hosts a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionNode {
    /// Name of the node.
    pub node: String,
    /// Minimum and maximum number of instances; empty: the scheduler does not decide about this
    /// node.
    pub bounds: Vec<Bounds>,
    /// The function is being moved off the node.
    pub leaving: bool,
}

/// The status of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RevisionStatus {
    /// Name of the revision, such as `checkout-00003`.
    pub revision: String,
    /// The name that the document declares, or declared when it made the revision.
    pub declared: Option<String>,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Percentage of the requests that neither a tag nor a header decides.
    pub percent: u8,
    /// Tags that select it.
    pub tags: Vec<String>,
    /// Whether headers select it.
    pub headers: bool,
    /// Current step of its rollout, counted from 1, and the number of steps; `None`: it is not
    /// being rolled out.
    pub step: Option<(u32, u32)>,
    /// Whether a user has paused the function's rollouts.
    pub paused: bool,
    /// Why it was rolled back; `None`: it was not.
    pub failed: Option<String>,
}

/// A decision on a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RolloutEvent {
    /// When the decision was made, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Name of the function.
    pub function: FunctionId,
    /// The revision, such as `checkout-00003 (stable)`.
    pub revision: String,
    /// Percentage of traffic before the decision; of a declared revision, of its name's traffic.
    pub from: u8,
    /// Percentage of traffic after it; 0: the revision was rolled back.
    pub to: u8,
    /// Why the decision was made.
    pub reason: String,
}

/// An instance and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostedInstance {
    /// Name of the node.
    pub node: String,
    /// The instance.
    #[serde(flatten)]
    pub instance: Instance,
}

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Name of the node.
    pub name: String,
    /// Whether its stream is open.
    pub connected: bool,
    /// When its stream was open last, in milliseconds since 1970; `None`: it has not connected
    /// since the control plane started.
    pub seen_ms: Option<u64>,
    /// `None`: it is not away.
    pub absence: Option<AbsenceStatus>,
    /// The release of its program; empty: it has not connected since this control plane leads.
    pub release: String,
    /// Its inbound listener, where other nodes reach its functions.
    pub inbound: Option<SocketAddr>,
    /// The functions placed on it.
    pub hosted: BTreeSet<FunctionId>,
    /// Versions that it rejected and that nothing has replaced since.
    pub rejected: Vec<RejectedVersion>,
    /// Totals of its messages.
    pub counters: Counters,
    /// The node's locality.
    pub locality: Locality,
    /// The node gets no further functions.
    pub cordoned: bool,
    /// Its functions move to other nodes too.
    pub drained: bool,
    /// For how long it has left configuration unacknowledged.
    pub unacknowledged_seconds: u64,
    /// That time is too long: the node gets no further functions and instances.
    pub behind: bool,
    /// Whether it may be a gateway.
    pub gateway: bool,
    /// Whether it connects to external services for the functions of all nodes, if the mesh uses
    /// egress nodes.
    pub egress: bool,
    /// Its capacity for instances; `None`: it has reported none, so the scheduler places no
    /// function on it.
    pub capacity: Option<Capacity>,
    /// The capacity that it claims, if that is more than its membership allows.
    pub claimed: Option<Capacity>,
    /// Instances that it has, or must have.
    pub reserved: u32,
    /// The certificates that it presents; `None`: it has not reported them, perhaps because of its
    /// release.
    pub certificates: Option<Certificates>,
}

/// The certificates that a node presents: its own and those of functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificates {
    /// Key identifiers of the authorities that signed them.
    pub issuers: Vec<String>,
    /// When its own certificate expires, in seconds since 1970; 0: it has none.
    pub not_after: u64,
    /// Number of certificates that were not renewed although half of their lifetime has passed.
    pub overdue: u32,
}

/// A version of a resource that a node rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedVersion {
    /// The resource.
    pub subject: Subject,
    /// The rejected version.
    pub version: Version,
    /// The node's reason, at most 1024 bytes.
    pub reason: String,
    /// The version that stays in force; `None`: none.
    pub in_force: Option<Version>,
}

/// Totals of one node since the control plane started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Streams opened.
    pub streams: u64,
    /// Deltas sent.
    pub messages: u64,
    /// Bytes of these deltas, before HTTP/2 framing.
    pub bytes: u64,
    /// Resources in these deltas.
    pub resources: u64,
    /// Removals in these deltas.
    pub removals: u64,
    /// Acknowledgements, with and without rejections.
    pub acks: u64,
    /// Rejected resources.
    pub rejections: u64,
    /// Reports of instances and jobs.
    pub reports: u64,
    /// Subscriptions and reports that were refused, because they concern other nodes' functions.
    pub refused: u64,
}

/// A certificate that the authority signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IssuedIdentity {
    /// The certified SPIFFE ID.
    #[serde(serialize_with = "as_text")]
    pub identity: SpiffeId,
    /// The node that has the certificate.
    pub node: String,
    /// End of its validity, in seconds since the Unix epoch.
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
            progress: Some(messages::job_report(&status.job, &status.report)),
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
            capacity: status.capacity.map(|capacity| {
                messages::capacity(&NodeOffer { capacity, images: BTreeSet::new(), without_jails: false })
            }),
            instances: status.reserved,
            cordoned: status.cordoned,
            unacknowledged_seconds: status.unacknowledged_seconds,
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
        let Counters { streams, messages, bytes, resources, removals, acks, rejections, reports, refused } = counters;
        Self { streams, messages, bytes, resources, removals, acks, rejections, reports, refused }
    }
}

impl From<&IssuedIdentity> for v1::IssuedIdentity {
    fn from(issued: &IssuedIdentity) -> Self {
        Self { identity: issued.identity.to_string(), node: issued.node.clone(), not_after: issued.not_after }
    }
}
