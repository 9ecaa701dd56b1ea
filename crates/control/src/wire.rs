//! Converts between the protocol's messages and this crate's types. A message that cannot be converted is an error of its sender.

use crate::job::{JobReport, JobState};
use crate::load::{Bounds, Capacity, Lease, LimitDemand, LimitShare, Load, Observation};
use crate::resource::{Content, Instance, InstanceState, Subject, Version};
use crate::rollout::RevisionCounts;
use bytes::Bytes;
use leno_config::{FunctionId, ModuleHash};
use leno_identity::{AuthorityKeyId, CertificateDer, MembershipMark};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};
use tonic::Status;

/// The protocol generated from `proto/leno/v1/discovery.proto`, for clients other than [`crate::node`].
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("leno.v1");
}

/// The release of this crate, for people.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The versions of the protocol that this crate speaks. `Protocols` in the definition of the protocol tells when a version is new.
pub(crate) const PROTOCOLS: RangeInclusive<u32> = 1..=4;
/// The first version in which a node says which authorities its certificates are of, and proves that it takes those of another one.
pub(crate) const AUTHORITIES: u32 = 2;
/// The first version in which nodes hear of the addresses of the mesh's machines.
pub(crate) const MACHINES: u32 = 3;
/// The first version in which nodes hear of revoked memberships.
pub(crate) const REVOKED: u32 = 4;
/// Authorities that a node's certificates may be of. There are two at most.
const MAX_ISSUERS: usize = 16;
/// The version since which nodes are asked questions.
pub(crate) const QUESTIONS: u32 = 2;
/// Bytes that are kept of a reason that a node gives.
pub(crate) const MAX_REASON: usize = 1024;
/// Bytes of one message. Deltas are cut long before that, unless a single resource is larger.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;

pub(crate) fn protocols() -> v1::Protocols {
    v1::Protocols { oldest: *PROTOCOLS.start(), newest: *PROTOCOLS.end() }
}

/// The version of the protocol to speak with a node.
pub(crate) fn shared_protocol(hello: &v1::Hello) -> Result<u32, Status> {
    // A node that names no versions is older than the first one.
    let v1::Protocols { oldest, newest } = hello.protocols.unwrap_or_default();
    let shared = newest.min(*PROTOCOLS.end());
    if shared >= oldest && PROTOCOLS.contains(&shared) {
        return Ok(shared);
    }
    let text = format!(
        "the node (release {:?}) speaks versions {oldest} to {newest} of the protocol and the control plane (release {RELEASE}) versions {} to {}",
        hello.release,
        PROTOCOLS.start(),
        PROTOCOLS.end()
    );
    Err(Status::failed_precondition(text))
}

/// The addresses of the mesh's machines.
pub(crate) fn machines(addresses: impl IntoIterator<Item = IpAddr>) -> v1::Machines {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.extend(address.octets()),
            IpAddr::V6(address) => v6.extend(address.octets()),
        }
    }
    v1::Machines { v4: v4.into(), v6: v6.into() }
}

/// The addresses in a message. Bytes that make no address are left out.
pub(crate) fn machine_addresses(sent: &v1::Machines) -> Vec<IpAddr> {
    let v4 = sent.v4.as_chunks::<4>().0.iter().map(|octets| IpAddr::from(*octets));
    v4.chain(sent.v6.as_chunks::<16>().0.iter().map(|octets| IpAddr::from(*octets))).collect()
}

/// The revoked memberships.
pub(crate) fn revoked(memberships: impl IntoIterator<Item = MembershipMark>) -> v1::Revoked {
    v1::Revoked { memberships: memberships.into_iter().flat_map(|mark| mark.0).collect::<Vec<u8>>().into() }
}

/// The memberships in a message. Bytes that make none are left out.
pub(crate) fn memberships(sent: &v1::Revoked) -> Vec<MembershipMark> {
    sent.memberships.as_chunks::<8>().0.iter().copied().map(MembershipMark).collect()
}

impl From<&Subject> for v1::Subject {
    fn from(subject: &Subject) -> Self {
        let (kind, name) = match subject {
            Subject::Mesh => (v1::Kind::Mesh, String::new()),
            Subject::Bundle => (v1::Kind::Bundle, String::new()),
            Subject::Module(hash) => (v1::Kind::Module, hash.to_string()),
            Subject::Scale(function) => (v1::Kind::Scale, function.to_string()),
            Subject::Quota(function) => (v1::Kind::Quota, function.to_string()),
            Subject::Slice(function) => (v1::Kind::Slice, function.to_string()),
            Subject::Route(function) => (v1::Kind::Route, function.to_string()),
            Subject::Endpoints(function) => (v1::Kind::Endpoints, function.to_string()),
            Subject::Routes => (v1::Kind::Routes, String::new()),
            Subject::Hosted => (v1::Kind::Hosted, String::new()),
        };
        Self { kind: kind.into(), name }
    }
}

pub(crate) fn subject(sent: Option<&v1::Subject>) -> Result<Subject, Status> {
    let sent = sent.ok_or_else(|| Status::invalid_argument("a resource without a name"))?;
    let function = || sent.name.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()));
    let subject = match sent.kind() {
        v1::Kind::Scale => Subject::Scale(function()?),
        v1::Kind::Quota => Subject::Quota(function()?),
        v1::Kind::Slice => Subject::Slice(function()?),
        v1::Kind::Route => Subject::Route(function()?),
        v1::Kind::Endpoints => Subject::Endpoints(function()?),
        v1::Kind::Module => {
            let hash = sent.name.parse::<ModuleHash>();
            Subject::Module(hash.map_err(|error| Status::invalid_argument(error.to_string()))?)
        }
        v1::Kind::Unspecified => {
            return Err(Status::invalid_argument(format!("unknown kind of resource {}", sent.kind)));
        }
        kind if !sent.name.is_empty() => {
            return Err(Status::invalid_argument(format!("resources of kind {} have no name", kind.as_str_name())));
        }
        v1::Kind::Mesh => Subject::Mesh,
        v1::Kind::Bundle => Subject::Bundle,
        v1::Kind::Routes => Subject::Routes,
        v1::Kind::Hosted => Subject::Hosted,
    };
    Ok(subject)
}

pub(crate) fn subjects(sent: &[v1::Subject]) -> Result<Vec<Subject>, Status> {
    sent.iter().map(|sent| subject(Some(sent))).collect()
}

pub(crate) fn version(sent: &[u8]) -> Result<Version, Status> {
    Version::from_wire(sent).ok_or_else(|| Status::invalid_argument("a version is 16 bytes"))
}

pub(crate) fn resource(subject: &Subject, content: &Content) -> v1::Resource {
    v1::Resource { subject: Some(subject.into()), version: content.version.to_wire(), payload: content.payload.clone() }
}

pub(crate) fn held((subject, version): (&Subject, &Version)) -> v1::Held {
    v1::Held { subject: Some(subject.into()), version: version.to_wire() }
}

pub(crate) fn report(function: &FunctionId, instances: &[Instance]) -> v1::Report {
    v1::Report { function: function.to_string(), instances: instances.iter().map(Into::into).collect() }
}

pub(crate) fn reported(sent: &v1::Report) -> Result<(FunctionId, Vec<Instance>), Status> {
    let function = sent.function.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok((function, sent.instances.iter().map(instance).collect::<Result<_, _>>()?))
}

pub(crate) fn traffic(function: &FunctionId, counts: &[(u32, RevisionCounts)]) -> v1::Traffic {
    let of = |(revision, counts): &(u32, RevisionCounts)| {
        let RevisionCounts { requests, failed, slow } = *counts;
        v1::RevisionCounts { revision: *revision, requests, failed, slow }
    };
    v1::Traffic { function: function.to_string(), revisions: counts.iter().map(of).collect() }
}

/// A function and the request counts of its revisions.
pub(crate) type Counted = (FunctionId, Vec<(u32, RevisionCounts)>);

pub(crate) fn counted(sent: &v1::Traffic) -> Result<Counted, Status> {
    let function = sent.function.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let of = |sent: &v1::RevisionCounts| {
        let (requests, failed, slow) = (sent.requests, sent.failed, sent.slow);
        (sent.revision, RevisionCounts { requests, failed, slow })
    };
    Ok((function, sent.revisions.iter().map(of).collect()))
}

/// Images whose names a node may report.
const MAX_IMAGES: usize = 256;

/// Converts what a node offers, and the images that it keeps.
pub(crate) fn capacity(capacity: &Capacity, images: &BTreeSet<String>) -> v1::Capacity {
    let Capacity { cpu_millis, memory, instances } = *capacity;
    let images = images.iter().take(MAX_IMAGES).cloned().collect();
    v1::Capacity { cpu_millis, memory_bytes: memory, instances, images }
}

pub(crate) fn offered(sent: v1::Capacity) -> (Capacity, BTreeSet<String>) {
    let v1::Capacity { cpu_millis, memory_bytes, instances, images } = sent;
    (Capacity { cpu_millis, memory: memory_bytes, instances }, images.into_iter().take(MAX_IMAGES).collect())
}

pub(crate) fn bounds((function, bounds): (&FunctionId, &Vec<Bounds>)) -> v1::FunctionBounds {
    let of = |&Bounds { revision, least, most }: &Bounds| v1::Bounds { revision, least, most };
    v1::FunctionBounds { function: function.to_string(), bounds: bounds.iter().map(of).collect() }
}

pub(crate) fn bounded(sent: &v1::FunctionBounds) -> Result<(FunctionId, Vec<Bounds>), Status> {
    let function = sent.function.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let of = |&v1::Bounds { revision, least, most }: &v1::Bounds| Bounds { revision, least, most };
    Ok((function, sent.bounds.iter().map(of).collect()))
}

pub(crate) fn lease((function, lease): (&FunctionId, &Lease)) -> v1::FunctionLease {
    let of = |share: &LimitShare| v1::LimitShare { limit: share.limit.clone(), parts: share.parts };
    v1::FunctionLease { function: function.to_string(), shares: lease.shares.iter().map(of).collect() }
}

pub(crate) fn leased(sent: &v1::FunctionLease) -> Result<(FunctionId, Lease), Status> {
    let function = sent.function.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let of = |share: &v1::LimitShare| LimitShare { limit: share.limit.clone(), parts: share.parts, unused: false };
    Ok((function, Lease { shares: sent.shares.iter().map(of).collect() }))
}

pub(crate) fn demands(demands: &[LimitDemand]) -> v1::LimitDemands {
    let of = |demand: &LimitDemand| v1::LimitDemand {
        function: demand.function.to_string(),
        limit: demand.limit.clone(),
        admitted: demand.admitted,
        refused: demand.refused,
    };
    v1::LimitDemands { demands: demands.iter().map(of).collect() }
}

pub(crate) fn demanded(sent: v1::LimitDemands) -> Result<Vec<LimitDemand>, Status> {
    let of = |v1::LimitDemand { function, limit, admitted, refused }| {
        let function = function.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(LimitDemand { function, limit, admitted, refused })
    };
    sent.demands.into_iter().map(of).collect()
}

pub(crate) fn loads(loads: &[Load]) -> v1::Loads {
    let of = |load: &Load| v1::Load {
        function: load.function.to_string(),
        revision: load.revision,
        ready: load.seen.ready,
        starting: load.starting,
        in_flight: load.seen.in_flight,
        waiting: load.seen.waiting,
        request_seconds: load.seen.request_seconds,
        requests: load.seen.requests,
    };
    v1::Loads { loads: loads.iter().map(of).collect() }
}

pub(crate) fn loaded(sent: &v1::Loads) -> Result<Vec<Load>, Status> {
    let of = |sent: &v1::Load| {
        let function =
            sent.function.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
        if !sent.request_seconds.is_finite() || sent.request_seconds < 0.0 {
            return Err(Status::invalid_argument("request_seconds is not a time"));
        }
        let &v1::Load { revision, ready, starting, in_flight, waiting, request_seconds, requests, .. } = sent;
        let seen = Observation { ready, in_flight, waiting, request_seconds, requests };
        Ok(Load { function, revision, starting, seen })
    };
    sent.loads.iter().map(of).collect()
}

impl From<&Instance> for v1::Instance {
    fn from(instance: &Instance) -> Self {
        let state = match instance.state {
            InstanceState::Starting => v1::InstanceState::Starting,
            InstanceState::Ready => v1::InstanceState::Ready,
            InstanceState::Draining => v1::InstanceState::Draining,
            InstanceState::Stopping => v1::InstanceState::Stopping,
        };
        Self {
            id: instance.id,
            state: state.into(),
            address: instance.address.to_string(),
            pid: instance.pid.unwrap_or(0),
            restarts: instance.restarts,
            since_ms: millis(instance.since),
        }
    }
}

fn instance(sent: &v1::Instance) -> Result<Instance, Status> {
    let state = match sent.state() {
        v1::InstanceState::Unspecified => return Err(Status::invalid_argument("an instance without a known state")),
        v1::InstanceState::Starting => InstanceState::Starting,
        v1::InstanceState::Ready => InstanceState::Ready,
        v1::InstanceState::Draining => InstanceState::Draining,
        v1::InstanceState::Stopping => InstanceState::Stopping,
    };
    let address =
        sent.address.parse().map_err(|_| Status::invalid_argument("an instance's address is not address:port"))?;
    let since = time(sent.since_ms)?;
    Ok(Instance {
        id: sent.id,
        state,
        address,
        pid: (sent.pid != 0).then_some(sent.pid),
        restarts: sent.restarts,
        since,
    })
}

pub(crate) fn job_report(job: &FunctionId, report: &JobReport) -> v1::JobReport {
    let state = match report.state {
        JobState::Pending => v1::JobState::Pending,
        JobState::Running => v1::JobState::Running,
        JobState::Succeeded => v1::JobState::Succeeded,
        JobState::Failed => v1::JobState::Failed,
    };
    v1::JobReport {
        name: job.to_string(),
        run: report.run.clone(),
        state: state.into(),
        active: report.active,
        succeeded: report.succeeded,
        failed: report.failed,
        started_ms: report.started.map(millis),
        ended_ms: report.ended.map(millis),
        exit_code: report.exit_code,
        reason: report.reason.clone(),
        changed_ms: millis(report.changed),
    }
}

pub(crate) fn reported_job(sent: v1::JobReport) -> Result<(FunctionId, JobReport), Status> {
    let job = sent.name.parse::<FunctionId>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let state = match sent.state() {
        v1::JobState::Unspecified => return Err(Status::invalid_argument("a job without a known state")),
        v1::JobState::Pending => JobState::Pending,
        v1::JobState::Running => JobState::Running,
        v1::JobState::Succeeded => JobState::Succeeded,
        v1::JobState::Failed => JobState::Failed,
    };
    let mut reason = sent.reason;
    if let Some(reason) = &mut reason {
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
    }
    let report = JobReport {
        run: sent.run,
        state,
        active: sent.active,
        succeeded: sent.succeeded,
        failed: sent.failed,
        started: sent.started_ms.map(time).transpose()?,
        ended: sent.ended_ms.map(time).transpose()?,
        exit_code: sent.exit_code,
        reason,
        changed: time(sent.changed_ms)?,
    };
    Ok((job, report))
}

/// Authorities, the end of the node's own certificate, and how many are overdue.
pub(crate) type Certified = (BTreeSet<AuthorityKeyId>, u64, u32);

pub(crate) fn certificates((issuers, not_after, overdue): &Certified) -> v1::Certificates {
    let issuers = issuers.iter().map(|issuer| Bytes::copy_from_slice(issuer.as_bytes())).collect();
    v1::Certificates { issuers, not_after: *not_after, overdue: *overdue }
}

pub(crate) fn certified(sent: &v1::Certificates) -> Certified {
    let issuers = sent.issuers.iter().take(MAX_ISSUERS).map(|issuer| AuthorityKeyId::from_bytes(issuer)).collect();
    (issuers, sent.not_after, sent.overdue)
}

/// What a node's proof says, at most so long.
pub(crate) fn proof(sent: v1::Proof) -> (u64, Result<(), String>) {
    let mut failure = sent.failure;
    failure.truncate(failure.floor_char_boundary(MAX_REASON));
    (sent.sequence, if failure.is_empty() { Ok(()) } else { Err(failure) })
}

pub(crate) fn chain(chain: &[CertificateDer<'_>]) -> Vec<Bytes> {
    chain.iter().map(|der| Bytes::copy_from_slice(der)).collect()
}

/// Milliseconds since the Unix epoch.
pub(crate) fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

pub(crate) fn time(millis: u64) -> Result<SystemTime, Status> {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    time.ok_or_else(|| Status::invalid_argument("a time beyond all clocks"))
}
