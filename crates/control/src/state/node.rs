//! A node as the control plane sees it.

use super::session::Session;
use crate::admission::{Admission, CapacityLimits, Cordon};
use crate::status::Counters;
use leno_model::{FunctionId, InstanceState};
use leno_wire::{
    Bounds, Capacity, Content, Instance, ListenerFault, NodeCertificates, NodeOffer, Placement, PodFaults, Subject,
    Version,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

pub(super) struct Node {
    pub admission: Admission,
    pub inbound: Option<SocketAddr>,
    /// The addresses at which other machines reach it.
    pub addresses: BTreeSet<IpAddr>,
    /// The source address of its last stream.
    pub from: Option<IpAddr>,
    /// The node is connected, or was within the grace period, so its endpoints count.
    pub present: bool,
    pub cordon: Cordon,
    /// It does not acknowledge its configuration.
    pub behind: bool,
    /// Its reported capacity, capped by its membership.
    pub capacity: Option<Capacity>,
    /// The capacity that it reports.
    pub claimed: Option<Capacity>,
    pub limits: CapacityLimits,
    pub images: BTreeSet<String>,
    /// It cannot put instances into jails.
    pub without_jails: bool,
    pub instances: BTreeMap<FunctionId, Vec<Instance>>,
    /// The functions that it hosts.
    pub hosted: BTreeSet<FunctionId>,
    /// Functions with whose certificates it proves to other nodes that it hosts them.
    pub certified: BTreeSet<FunctionId>,
    /// Functions whose certificates it probably does not have yet, each with the calls of
    /// [`super::State::note_certificates`] until it counts as having them.
    pub certifying: BTreeMap<FunctionId, u8>,
    pub session: Option<Session>,
    pub last_session: u64,
    /// The release of its program.
    pub release: String,
    pub in_force: HashMap<Subject, Version>,
    pub rejected: BTreeMap<Subject, (Version, String)>,
    /// Removed functions that the node drains and whose permissions were withdrawn since, each with
    /// the delta that withdraws them.
    pub withdrawn: BTreeMap<FunctionId, Option<u64>>,
    pub counters: Counters,
    pub certificates: Option<NodeCertificates>,
    pub proof: Option<Proof>,
    /// The listeners of Gateway documents that it cannot serve.
    pub listener_faults: Vec<ListenerFault>,
    /// The pods that it does not capture.
    pub pod_faults: PodFaults,
    /// Its last absence, until a tick has seen that it is back.
    pub absence: Option<Absence>,
}

/// A request to prove that the node accepts certificates of the candidate authority.
pub(super) struct Proof {
    pub sequence: u64,
    /// The stream of the request.
    pub session: u64,
    /// When it was sent, in seconds since 1970.
    pub asked: u64,
    /// `None`: the node has not answered.
    pub outcome: Option<Result<(), String>>,
}

/// The absence of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Absence {
    /// When its stream ended, in milliseconds since 1970; `None`: no tick has seen that yet.
    pub since_ms: Option<u64>,
    /// The node has not connected since this process began, and may have been away before.
    pub at_least: bool,
    /// The functions that it hosted when its stream ended.
    pub hosted: BTreeSet<FunctionId>,
    /// There is an event of it.
    pub noted: bool,
}

impl Node {
    pub(super) fn new(admission: Admission) -> Self {
        Self {
            admission,
            inbound: None,
            addresses: BTreeSet::new(),
            from: None,
            present: false,
            cordon: Cordon::default(),
            behind: false,
            capacity: None,
            claimed: None,
            limits: CapacityLimits::default(),
            images: BTreeSet::new(),
            without_jails: false,
            instances: BTreeMap::new(),
            hosted: BTreeSet::new(),
            certified: BTreeSet::new(),
            certifying: BTreeMap::new(),
            session: None,
            last_session: 0,
            release: String::new(),
            in_force: HashMap::new(),
            rejected: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            counters: Counters::default(),
            certificates: None,
            proof: None,
            listener_faults: Vec::new(),
            pod_faults: PodFaults::new(),
            absence: None,
        }
    }

    /// The absence of a node without a stream, which began now or before.
    pub(super) fn absence_at(&mut self, now_ms: u64) -> Option<&mut Absence> {
        let absence = self.session.is_none().then(|| self.absence.get_or_insert_default())?;
        absence.since_ms.get_or_insert(now_ms);
        Some(absence)
    }

    /// Stores the node's offer; `None`: nothing.
    pub(super) fn take_offer(&mut self, offer: Option<NodeOffer>) {
        self.claimed = offer.as_ref().map(|offer| offer.capacity);
        self.without_jails = offer.as_ref().is_some_and(|offer| offer.without_jails);
        self.images = offer.map(|offer| offer.images).unwrap_or_default();
        self.cap();
    }

    /// Caps the reported capacity.
    pub(super) fn cap(&mut self) {
        self.capacity = self.claimed.map(|claimed| self.limits.cap(&claimed));
    }

    /// Counts a subscription or report that the node may not make. The log has the first one, and
    /// then ever fewer.
    pub(super) fn refuse(&mut self, name: &str, what: &dyn std::fmt::Display) {
        self.counters.refused += 1;
        let refused = self.counters.refused;
        if refused.is_power_of_two() {
            tracing::warn!(node = name, %what, refused, "refused: a node may ask for its own part only, and report on what it hosts");
        }
    }

    /// Whether the scheduler places functions on the node.
    pub(super) fn is_scheduled(&self) -> bool {
        self.admission.placement == Placement::Scheduled
    }

    /// Whether the node hosts the functions of its pods.
    pub(super) fn has_pods(&self) -> bool {
        self.admission.placement == Placement::Pods
    }

    /// Whether the node shares rate limits with other nodes.
    pub(super) fn shares_limits(&self) -> bool {
        self.admission.placement.shares_limits()
    }

    /// Whether the node can run the job.
    pub(super) fn may_run(&self, id: &FunctionId) -> bool {
        self.admission.placement.hosts(id) || self.is_scheduled()
    }

    /// Whether the node is present, has applied the function's configuration, and does not refuse
    /// its requests, now or soon.
    pub(super) fn has_in_force(&self, id: &FunctionId) -> bool {
        let config = Subject::FunctionConfig(id.clone());
        let is_removed = || self.session.as_ref().is_some_and(|session| session.delivers(&config, None));
        self.present && self.in_force.contains_key(&config) && !is_removed() && !self.refuses(id)
    }

    /// Whether the function has left the node, which refuses its requests: the node has no bounds
    /// of it, or is about to.
    pub(super) fn refuses(&self, id: &FunctionId) -> bool {
        static NO_BOUNDS: LazyLock<Option<Version>> =
            LazyLock::new(|| Content::new(&Vec::<Bounds>::new()).ok().map(|content| content.version));
        let Some(none) = *NO_BOUNDS else { return false };
        let bounds = Subject::Scale(id.clone());
        let is_sent = || self.session.as_ref().is_some_and(|session| session.delivers(&bounds, Some(none)));
        self.in_force.get(&bounds) == Some(&none) || is_sent()
    }

    /// Whether the node has answered the last change of a subject, or is not connected.
    pub(super) fn has_answered(&self, subject: &Subject) -> bool {
        self.session.as_ref().is_none_or(|session| session.has_answered(subject))
    }

    /// Whether the node may subscribe to the subject. Its other subjects follow from the functions
    /// that it hosts.
    pub(super) fn may_subscribe(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Mesh | Subject::Bundle | Subject::Hosted => true,
            Subject::Routes => self.admission.gateway,
            Subject::Destination(_) => self.has_pods(),
            Subject::Scale(_)
            | Subject::Quota(_)
            | Subject::Secrets(_)
            | Subject::Certificates
            | Subject::Module(_)
            | Subject::FunctionConfig(_)
            | Subject::Route(_)
            | Subject::Endpoints(_)
            | Subject::EnforcedNamespaces
            | Subject::ServiceEndpoint(..)
            | Subject::Pod(_) => false,
        }
    }
}

/// The number of ready instances.
pub(super) fn ready(instances: Option<&Vec<Instance>>) -> u32 {
    let ready = instances.into_iter().flatten().filter(|instance| instance.state == InstanceState::Ready);
    ready.count().try_into().unwrap_or(u32::MAX)
}
