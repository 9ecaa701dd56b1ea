//! The node's subscriptions and reports. They outlive each stream.

use bytes::Bytes;
use leno_model::{FunctionConfig, FunctionId, PodUid};
use leno_wire::v1::from_node::Message;
use leno_wire::v1::to_node;
use leno_wire::{
    Bounds, Content, Instance, JobReport, Lease, ListenerFault, NodeCertificates, NodeOffer, PodFaults, RELEASE,
    Resource, Subject, Version, listener_fault, messages, pod_fault, v1,
};
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// Maximum number of messages that the child process may lag behind.
const COPIES: usize = 1024;
/// Payload bytes of one message to the child process.
const COPY_BYTES: usize = 512 << 10;

#[derive(Default)]
pub(crate) struct NodeState {
    subscribed: BTreeSet<Subject>,
    /// The versions in force.
    held: BTreeMap<Subject, Version>,
    /// The payloads of `held`, for the child of a hot restart. The node has them in another form.
    payloads: BTreeMap<Subject, Bytes>,
    /// The authority that signs, from the control plane's last message.
    authority: Option<v1::Authority>,
    /// The addresses of the mesh's machines, from the control plane's last message.
    machines: Option<v1::Machines>,
    /// The revoked memberships, from the control plane's last message.
    revoked: Option<v1::Revoked>,
    /// Receives a copy of each change, for the child of a hot restart.
    copy: Option<mpsc::Sender<Bytes>>,
    instances: BTreeMap<FunctionId, Vec<Instance>>,
    jobs: BTreeMap<FunctionId, JobReport>,
    capacity: Option<NodeOffer>,
    /// The bounds in force.
    bounds: BTreeMap<FunctionId, Vec<Bounds>>,
    /// The last shares of rate limits.
    leases: BTreeMap<FunctionId, Lease>,
    /// The certificates that the node presents.
    certified: Option<NodeCertificates>,
    /// The listeners that the node cannot serve.
    listener_faults: Vec<ListenerFault>,
    /// The pods that the node does not capture.
    pod_faults: PodFaults,
    /// The versions of the protocol that the node can use.
    protocols: v1::Protocols,
    /// The version of the protocol on the present stream; 0: there is no stream, or no welcome yet.
    protocol: u32,
}

impl NodeState {
    /// Sets the oldest version of the protocol that the node can use.
    pub(crate) fn set_oldest(&mut self, oldest: u32) {
        self.protocols = v1::Protocols { oldest, ..leno_wire::protocols() };
    }

    /// Whether the node can use a version of the protocol.
    pub(crate) fn may_speak(&self, protocol: u32) -> bool {
        (self.protocols.oldest..=self.protocols.newest).contains(&protocol)
    }

    pub(crate) fn hello(&self, inbound: Option<SocketAddr>) -> v1::FromNode {
        let reports = self.instances.iter().map(|(function, instances)| messages::report(function, instances));
        from_node(Message::Hello(v1::Hello {
            release: RELEASE.to_owned(),
            protocols: Some(self.protocols),
            subscribe: self.subscribed.iter().map(Into::into).collect(),
            // Each stream delivers shares anew, because a term may have ended meanwhile. Control
            // planes of older releases know of no stored secrets and certificates.
            held: self
                .held
                .iter()
                .filter(|held| !matches!(held.0, Subject::Quota(_) | Subject::Secrets(_) | Subject::Certificates))
                .map(messages::held)
                .collect(),
            inbound: inbound.map(|address| address.to_string()).unwrap_or_default(),
            reports: reports.collect(),
            jobs: self.jobs.iter().map(|(job, report)| messages::job_report(job, report)).collect(),
            capacity: self.capacity.as_ref().map(messages::capacity),
            bounds: self.bounds.iter().map(messages::bounds).collect(),
            leases: self.leases.iter().map(messages::lease).collect(),
        }))
    }

    pub(crate) fn subscribe(&mut self, add: &[Subject], remove: &[Subject]) -> v1::FromNode {
        for subject in remove {
            self.subscribed.remove(subject);
        }
        self.subscribed.extend(add.iter().cloned());
        let subjects = |subjects: &[Subject]| subjects.iter().map(Into::into).collect();
        from_node(Message::Subscribe(v1::Subscribe { subscribe: subjects(add), unsubscribe: subjects(remove) }))
    }

    /// `None`: nothing has changed since the last report.
    pub(crate) fn report(&mut self, function: &FunctionId, instances: Vec<Instance>) -> Option<v1::FromNode> {
        if self.instances.get(function).map_or(&[][..], Vec::as_slice) == instances {
            return None;
        }
        let report = messages::report(function, &instances);
        if instances.is_empty() {
            self.instances.remove(function);
        } else {
            self.instances.insert(function.clone(), instances);
        }
        Some(from_node(Message::Report(report)))
    }

    /// `None`: nothing has changed since the last report.
    pub(crate) fn offer(&mut self, offer: NodeOffer) -> Option<v1::FromNode> {
        let offer = Some(offer);
        if self.capacity == offer {
            return None;
        }
        self.capacity = offer;
        Some(from_node(Message::Capacity(messages::capacity(self.capacity.as_ref()?))))
    }

    /// Stores the bounds of a function that are in force; `None`: it has none any more.
    pub(crate) fn bounded(&mut self, function: &FunctionId, bounds: Option<Vec<Bounds>>) {
        match bounds {
            Some(bounds) => self.bounds.insert(function.clone(), bounds),
            None => self.bounds.remove(function),
        };
    }

    /// Stores the shares of a function's rate limits; `None`: it has none any more.
    pub(crate) fn leased(&mut self, function: &FunctionId, lease: Option<Lease>) {
        match lease {
            Some(lease) => self.leases.insert(function.clone(), lease),
            None => self.leases.remove(function),
        };
    }

    pub(crate) fn report_job(&mut self, job: &FunctionId, report: JobReport) -> v1::FromNode {
        let message = Message::Job(messages::job_report(job, &report));
        self.jobs.insert(job.clone(), report);
        from_node(message)
    }

    pub(crate) fn forget_job(&mut self, job: &FunctionId) {
        self.jobs.remove(job);
    }

    /// Stores the versions that are in force; `None`: the resource is gone.
    pub(crate) fn in_force(&mut self, changes: Vec<(Subject, Option<Content>)>, withdrawn: &[FunctionId]) {
        self.pass_on(|| delta(&changes, withdrawn));
        for (subject, content) in changes {
            match content {
                // Copied, because the payload is a slice of its whole message.
                Some(content @ Content { version, .. }) => {
                    self.payloads.insert(subject.clone(), content.copy_payload(&subject));
                    self.held.insert(subject, version);
                }
                None => {
                    // The secrets of a function do not outlive its configuration, which counts on
                    // each stream.
                    let secrets = match &subject {
                        Subject::FunctionConfig(id) => Some(Subject::Secrets(id.clone())),
                        _ => None,
                    };
                    if let Subject::Pod(uid) = &subject {
                        self.pod_faults.remove(uid);
                    }
                    for subject in secrets.iter().chain([&subject]) {
                        self.payloads.remove(subject);
                        self.held.remove(subject);
                    }
                }
            }
        }
    }

    /// Stores the authority that signs.
    pub(crate) fn signs(&mut self, authority: v1::Authority) {
        self.pass_on(|| to_node(to_node::Message::Authority(authority.clone())));
        self.authority = Some(authority);
    }

    /// Stores the addresses of the mesh's machines.
    pub(crate) fn located(&mut self, machines: v1::Machines) {
        self.pass_on(|| to_node(to_node::Message::Machines(machines.clone())));
        self.machines = Some(machines);
    }

    /// Stores the revoked memberships.
    pub(crate) fn revoked(&mut self, revoked: v1::Revoked) {
        self.pass_on(|| to_node(to_node::Message::Revoked(revoked.clone())));
        self.revoked = Some(revoked);
    }

    fn pass_on(&mut self, message: impl FnOnce() -> Bytes) {
        if let Some(copy) = &self.copy
            && copy.try_send(message()).is_err()
        {
            self.copy = None;
        }
    }

    /// All resources in force, as messages, and then each change. The receiver closes if the child
    /// process does not read.
    pub(crate) fn copy(&mut self) -> (Vec<Bytes>, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(COPIES);
        self.copy = Some(sender);
        let contents = self.payloads.iter().filter_map(|(subject, payload)| {
            let version = *self.held.get(subject)?;
            Some((subject.clone(), Some(Content { version, payload: payload.clone() })))
        });
        let (mut messages, mut part, mut size) = (Vec::new(), Vec::new(), 0);
        for (subject, content) in contents {
            size += content.as_ref().map_or(0, |content| content.payload.len());
            part.push((subject, content));
            if size >= COPY_BYTES {
                messages.push(delta(&std::mem::take(&mut part), &[]));
                size = 0;
            }
        }
        messages.push(delta(&part, &[]));
        messages.extend(self.authority.clone().map(|authority| to_node(to_node::Message::Authority(authority))));
        messages.extend(self.machines.clone().map(|machines| to_node(to_node::Message::Machines(machines))));
        messages.extend(self.revoked.clone().map(|revoked| to_node(to_node::Message::Revoked(revoked))));
        (messages, receiver)
    }

    /// Stores the node's certificates. `None`: nothing has changed, or the control plane's release
    /// does not expect such a report.
    pub(crate) fn certified(&mut self, certified: NodeCertificates) -> Option<v1::FromNode> {
        if self.certified.as_ref() == Some(&certified) {
            return None;
        }
        self.certified = Some(certified);
        self.certificates()
    }

    /// Stores the listeners that the node cannot serve. Returns whether they are others, and the
    /// report if the control plane's release expects one.
    pub(crate) fn report_listeners(&mut self, faults: &[ListenerFault]) -> (bool, Option<v1::FromNode>) {
        if self.listener_faults == faults {
            return (false, None);
        }
        self.listener_faults = faults.to_vec();
        (true, self.listeners())
    }

    /// Stores why the node does not capture a pod; `None`: it does, or has no such pod any more. Returns
    /// the report, if that is a change.
    pub(crate) fn report_pod(&mut self, uid: &PodUid, fault: Option<String>) -> Option<v1::FromNode> {
        let before = match fault.clone() {
            Some(reason) => self.pod_faults.insert(uid.clone(), reason),
            None => self.pod_faults.remove(uid),
        };
        if before == fault { None } else { self.pods() }
    }

    fn pods(&self) -> Option<v1::FromNode> {
        let speaks = self.protocol >= leno_wire::PODS;
        speaks.then(|| from_node(Message::Pods(pod_fault::to_wire(&self.pod_faults))))
    }

    /// Stores the version of the protocol, and returns the reports that only this version has.
    pub(crate) fn speaks(&mut self, protocol: u32) -> impl Iterator<Item = v1::FromNode> + use<> {
        self.protocol = protocol;
        let listeners = self.listeners().filter(|_| !self.listener_faults.is_empty());
        let pods = self.pods().filter(|_| !self.pod_faults.is_empty());
        self.certificates().into_iter().chain(listeners).chain(pods)
    }

    fn listeners(&self) -> Option<v1::FromNode> {
        let speaks = self.protocol >= leno_wire::LISTENERS;
        speaks.then(|| from_node(Message::Listeners(listener_fault::to_wire(&self.listener_faults))))
    }

    fn certificates(&self) -> Option<v1::FromNode> {
        let certified = self.certified.as_ref().filter(|_| self.protocol >= leno_wire::AUTHORITIES)?;
        Some(from_node(Message::Certificates(messages::certificates(certified))))
    }

    /// The configuration of a function that is in force.
    pub(crate) fn config(&self, id: &FunctionId) -> Option<FunctionConfig> {
        let subject = Subject::FunctionConfig(id.clone());
        match Resource::decode(&subject, self.payloads.get(&subject)?).ok()? {
            Resource::FunctionConfig(config) => Some(*config),
            _ => None,
        }
    }

    pub(crate) fn held(&self) -> &BTreeMap<Subject, Version> {
        &self.held
    }
}

/// Changes as a message, without the settings of the mesh, which a process requests when it starts.
fn delta(changes: &[(Subject, Option<Content>)], withdrawn: &[FunctionId]) -> Bytes {
    let changes = || changes.iter().filter(|(subject, _)| *subject != Subject::Mesh);
    let resources = changes().filter_map(|(subject, content)| Some(messages::resource(subject, content.as_ref()?)));
    let removed = changes().filter(|(_, content)| content.is_none()).map(|(subject, _)| subject.into());
    let withdrawn = withdrawn.iter().map(ToString::to_string).collect();
    let delta = v1::Delta { nonce: 0, resources: resources.collect(), removed: removed.collect(), withdrawn };
    to_node(to_node::Message::Delta(delta))
}

fn to_node(message: to_node::Message) -> Bytes {
    v1::ToNode { message: Some(message) }.encode_to_vec().into()
}

pub(crate) fn from_node(message: Message) -> v1::FromNode {
    v1::FromNode { message: Some(message) }
}
