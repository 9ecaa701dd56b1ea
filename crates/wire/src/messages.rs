//! Conversions between messages of the protocol and types of this crate. The receiver refuses a
//! message that it cannot convert.

use crate::job::{JobReport, JobState};
use crate::load::{Bounds, Capacity, Lease, LimitDemand, LimitShare, Load, Observation, RevisionCounts};
use crate::resource::{Content, Instance, Subject, Version};
use crate::v1;
use bytes::Bytes;
use leno_identity::{AuthorityKeyId, CertificateDer, MembershipMark};
use leno_model::{BadFunctionId, FunctionId, InstanceState, ModuleHash, PodUid, ServiceName};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use tonic::Status;

/// Maximum number of issuing authorities in a node's report. A node has certificates of two at
/// most.
const MAX_ISSUERS: usize = 16;
/// Maximum size of a reason that a node gives, in bytes; the control plane cuts longer ones.
pub const MAX_REASON: usize = 1024;

/// The certificates that a node presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCertificates {
    /// The authorities that issued them.
    pub issuers: BTreeSet<AuthorityKeyId>,
    /// When the node's own certificate expires, in seconds since 1970.
    pub not_after: u64,
    /// Number of certificates whose renewal is due.
    pub overdue: u32,
}

/// Encodes the addresses of the mesh's machines.
pub fn machines(addresses: impl IntoIterator<Item = IpAddr>) -> v1::Machines {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(address) => v4.extend(address.octets()),
            IpAddr::V6(address) => v6.extend(address.octets()),
        }
    }
    v1::Machines { v4: v4.into(), v6: v6.into() }
}

/// Decodes the addresses of the mesh's machines, without bytes that are not a whole address.
pub fn machine_addresses(sent: &v1::Machines) -> Vec<IpAddr> {
    let v4 = sent.v4.as_chunks::<4>().0.iter().map(|octets| IpAddr::from(*octets));
    v4.chain(sent.v6.as_chunks::<16>().0.iter().map(|octets| IpAddr::from(*octets))).collect()
}

/// Encodes the revoked memberships.
pub fn revoked(memberships: impl IntoIterator<Item = MembershipMark>) -> v1::Revoked {
    v1::Revoked { memberships: memberships.into_iter().flat_map(|mark| mark.0).collect::<Vec<u8>>().into() }
}

/// Decodes the revoked memberships, without bytes that are not a whole one.
pub fn memberships(sent: &v1::Revoked) -> Vec<MembershipMark> {
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
            Subject::Secrets(function) => (v1::Kind::Secrets, function.to_string()),
            Subject::Certificates => (v1::Kind::Certificates, String::new()),
            Subject::FunctionConfig(function) => (v1::Kind::Slice, function.to_string()),
            Subject::Route(function) => (v1::Kind::Route, function.to_string()),
            Subject::Endpoints(function) => (v1::Kind::Endpoints, function.to_string()),
            Subject::EnforcedNamespaces => (v1::Kind::EnforcedNamespaces, String::new()),
            Subject::Pod(uid) => (v1::Kind::Pod, uid.to_string()),
            Subject::ServiceEndpoint(service, address) => (v1::Kind::ServiceEndpoint, format!("{service}/{address}")),
            Subject::Destination(address) => (v1::Kind::Destination, address.to_string()),
            Subject::Routes => (v1::Kind::Routes, String::new()),
            Subject::Hosted => (v1::Kind::Hosted, String::new()),
        };
        Self { kind: kind.into(), name }
    }
}

fn function_id(name: &str) -> Result<FunctionId, Status> {
    name.parse().map_err(|error: BadFunctionId| Status::invalid_argument(error.to_string()))
}

fn ip_address(text: &str) -> Result<IpAddr, Status> {
    text.parse().map_err(|_| Status::invalid_argument(format!("`{}` is no IP address", text.escape_debug())))
}

/// Decodes the name of a resource.
pub fn subject(sent: Option<&v1::Subject>) -> Result<Subject, Status> {
    let sent = sent.ok_or_else(|| Status::invalid_argument("a resource without a name"))?;
    let function = || function_id(&sent.name);
    let subject = match sent.kind() {
        v1::Kind::Scale => Subject::Scale(function()?),
        v1::Kind::Quota => Subject::Quota(function()?),
        v1::Kind::Secrets => Subject::Secrets(function()?),
        v1::Kind::Slice => Subject::FunctionConfig(function()?),
        v1::Kind::Route => Subject::Route(function()?),
        v1::Kind::Endpoints => Subject::Endpoints(function()?),
        v1::Kind::Module => {
            let hash = sent.name.parse::<ModuleHash>();
            Subject::Module(hash.map_err(|error| Status::invalid_argument(error.to_string()))?)
        }
        v1::Kind::Pod => {
            let uid = sent.name.parse::<PodUid>();
            Subject::Pod(uid.map_err(|error| Status::invalid_argument(error.to_string()))?)
        }
        v1::Kind::ServiceEndpoint => {
            let (service, address) = sent.name.rsplit_once('/').unwrap_or_default();
            let service = service.parse::<ServiceName>();
            let service = service.map_err(|error| Status::invalid_argument(error.to_string()))?;
            Subject::ServiceEndpoint(service, ip_address(address)?)
        }
        v1::Kind::Destination => Subject::Destination(ip_address(&sent.name)?),
        v1::Kind::Unspecified => {
            return Err(Status::invalid_argument(format!("unknown kind of resource {}", sent.kind)));
        }
        kind if !sent.name.is_empty() => {
            return Err(Status::invalid_argument(format!("resources of kind {} have no name", kind.as_str_name())));
        }
        v1::Kind::Mesh => Subject::Mesh,
        v1::Kind::Bundle => Subject::Bundle,
        v1::Kind::Certificates => Subject::Certificates,
        v1::Kind::EnforcedNamespaces => Subject::EnforcedNamespaces,
        v1::Kind::Routes => Subject::Routes,
        v1::Kind::Hosted => Subject::Hosted,
    };
    Ok(subject)
}

/// Decodes names of resources.
pub fn subjects(sent: &[v1::Subject]) -> Result<Vec<Subject>, Status> {
    sent.iter().map(|sent| subject(Some(sent))).collect()
}

/// Decodes a version.
pub fn version(sent: &[u8]) -> Result<Version, Status> {
    Version::from_wire(sent).ok_or_else(|| Status::invalid_argument("a version is 16 bytes"))
}

/// Encodes a resource.
pub fn resource(subject: &Subject, content: &Content) -> v1::Resource {
    v1::Resource { subject: Some(subject.into()), version: content.version.to_wire(), payload: content.payload.clone() }
}

/// Encodes the version that a node holds of a resource.
pub fn held((subject, version): (&Subject, &Version)) -> v1::Held {
    v1::Held { subject: Some(subject.into()), version: version.to_wire() }
}

/// Encodes all instances of a function on a node.
pub fn report(function: &FunctionId, instances: &[Instance]) -> v1::Report {
    v1::Report { function: function.to_string(), instances: instances.iter().map(Into::into).collect() }
}

/// Decodes all instances of a function on a node.
pub fn reported(sent: &v1::Report) -> Result<(FunctionId, Vec<Instance>), Status> {
    let function = function_id(&sent.function)?;
    Ok((function, sent.instances.iter().map(instance).collect::<Result<_, _>>()?))
}

/// Encodes the request counts of a function's revisions.
pub fn traffic(function: &FunctionId, counts: &[(u32, RevisionCounts)]) -> v1::Traffic {
    let of = |(revision, counts): &(u32, RevisionCounts)| {
        let RevisionCounts { requests, failed, slow } = *counts;
        v1::RevisionCounts { revision: *revision, requests, failed, slow }
    };
    v1::Traffic { function: function.to_string(), revisions: counts.iter().map(of).collect() }
}

/// A function and the request counts of its revisions.
pub type FunctionTraffic = (FunctionId, Vec<(u32, RevisionCounts)>);

/// Decodes the request counts of a function's revisions.
pub fn counted(sent: &v1::Traffic) -> Result<FunctionTraffic, Status> {
    let function = function_id(&sent.function)?;
    let of = |sent: &v1::RevisionCounts| {
        let (requests, failed, slow) = (sent.requests, sent.failed, sent.slow);
        (sent.revision, RevisionCounts { requests, failed, slow })
    };
    Ok((function, sent.revisions.iter().map(of).collect()))
}

/// Maximum number of images that a node may report.
const MAX_IMAGES: usize = 256;

/// The offer of a node to instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOffer {
    /// Its capacity.
    pub capacity: Capacity,
    /// The images in its cache.
    pub images: BTreeSet<String>,
    /// It cannot put instances into jails.
    pub without_jails: bool,
}

/// Encodes a node's offer.
pub fn capacity(NodeOffer { capacity, images, without_jails }: &NodeOffer) -> v1::Capacity {
    let Capacity { cpu_millis, memory, instances } = *capacity;
    let images = images.iter().take(MAX_IMAGES).cloned().collect();
    v1::Capacity { cpu_millis, memory_bytes: memory, instances, images, without_jails: *without_jails }
}

/// Decodes a node's offer.
pub fn offered(sent: v1::Capacity) -> NodeOffer {
    let v1::Capacity { cpu_millis, memory_bytes, instances, images, without_jails } = sent;
    let capacity = Capacity { cpu_millis, memory: memory_bytes, instances };
    NodeOffer { capacity, images: images.into_iter().take(MAX_IMAGES).collect(), without_jails }
}

/// Encodes the bounds of a function.
pub fn bounds((function, bounds): (&FunctionId, &Vec<Bounds>)) -> v1::FunctionBounds {
    let of = |&Bounds { revision, least, most }: &Bounds| v1::Bounds { revision, least, most };
    v1::FunctionBounds { function: function.to_string(), bounds: bounds.iter().map(of).collect() }
}

/// Decodes the bounds of a function.
pub fn bounded(sent: &v1::FunctionBounds) -> Result<(FunctionId, Vec<Bounds>), Status> {
    let function = function_id(&sent.function)?;
    let of = |&v1::Bounds { revision, least, most }: &v1::Bounds| Bounds { revision, least, most };
    Ok((function, sent.bounds.iter().map(of).collect()))
}

/// Encodes a node's shares of a function's rate limits.
pub fn lease((function, lease): (&FunctionId, &Lease)) -> v1::FunctionLease {
    let of = |share: &LimitShare| v1::LimitShare { limit: share.limit.clone(), parts: share.parts };
    v1::FunctionLease { function: function.to_string(), shares: lease.shares.iter().map(of).collect() }
}

/// Decodes a node's shares of a function's rate limits.
pub fn leased(sent: &v1::FunctionLease) -> Result<(FunctionId, Lease), Status> {
    let function = function_id(&sent.function)?;
    let of = |share: &v1::LimitShare| LimitShare { limit: share.limit.clone(), parts: share.parts, unused: false };
    Ok((function, Lease { shares: sent.shares.iter().map(of).collect() }))
}

/// Encodes the demand for rate limits.
pub fn demands(demands: &[LimitDemand]) -> v1::LimitDemands {
    let of = |demand: &LimitDemand| v1::LimitDemand {
        function: demand.function.to_string(),
        limit: demand.limit.clone(),
        admitted: demand.admitted,
        refused: demand.refused,
    };
    v1::LimitDemands { demands: demands.iter().map(of).collect() }
}

/// Decodes the demand for rate limits.
pub fn demanded(sent: v1::LimitDemands) -> Result<Vec<LimitDemand>, Status> {
    let of = |v1::LimitDemand { function, limit, admitted, refused }| {
        let function = function_id(&function)?;
        Ok(LimitDemand { function, limit, admitted, refused })
    };
    sent.demands.into_iter().map(of).collect()
}

/// Encodes the load of functions.
pub fn loads(loads: &[Load]) -> v1::Loads {
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

/// Decodes the load of functions.
pub fn loaded(sent: &v1::Loads) -> Result<Vec<Load>, Status> {
    let of = |sent: &v1::Load| {
        let function = function_id(&sent.function)?;
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
            InstanceState::Pulling | InstanceState::Starting => v1::InstanceState::Starting,
            InstanceState::Ready => v1::InstanceState::Ready,
            InstanceState::Draining | InstanceState::Unhealthy => v1::InstanceState::Draining,
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

/// Encodes the progress of a job.
pub fn job_report(job: &FunctionId, report: &JobReport) -> v1::JobReport {
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

/// Decodes the progress of a job.
pub fn reported_job(sent: v1::JobReport) -> Result<(FunctionId, JobReport), Status> {
    let job = function_id(&sent.name)?;
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

/// Encodes the certificates of a node.
pub fn certificates(certificates: &NodeCertificates) -> v1::Certificates {
    let NodeCertificates { issuers, not_after, overdue } = certificates;
    let issuers = issuers.iter().map(|issuer| Bytes::copy_from_slice(issuer.as_bytes())).collect();
    v1::Certificates { issuers, not_after: *not_after, overdue: *overdue }
}

/// Decodes the certificates of a node.
pub fn certified(sent: &v1::Certificates) -> NodeCertificates {
    let issuers = sent.issuers.iter().take(MAX_ISSUERS).map(|issuer| AuthorityKeyId::from_bytes(issuer)).collect();
    NodeCertificates { issuers, not_after: sent.not_after, overdue: sent.overdue }
}

/// Decodes the outcome of a proof: its number, and the reason if it failed.
pub fn proof(sent: v1::Proof) -> (u64, Result<(), String>) {
    let mut failure = sent.failure;
    failure.truncate(failure.floor_char_boundary(MAX_REASON));
    (sent.sequence, if failure.is_empty() { Ok(()) } else { Err(failure) })
}

/// Encodes a certificate chain, leaf first.
pub fn chain(chain: &[CertificateDer<'_>]) -> Vec<Bytes> {
    chain.iter().map(|der| Bytes::copy_from_slice(der)).collect()
}

/// Milliseconds since the Unix epoch.
pub fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Decodes milliseconds since the Unix epoch.
pub fn time(millis: u64) -> Result<SystemTime, Status> {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    time.ok_or_else(|| Status::invalid_argument("a time beyond all clocks"))
}
