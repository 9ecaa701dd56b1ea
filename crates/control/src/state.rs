//! Decides which node gets what, without sockets, clocks and files.
//!
//! A session is the stream of a connected node. It has the versions that were sent on it and a set of subjects that may have changed. A change marks
//! subjects in the sessions that want them and wakes these sessions. [`State::next_delta`] then compares versions and decides what to send. Changes
//! that come faster than a node reads are merged, and nothing is ever held back.

mod jobs;

use self::jobs::Jobs;
use crate::active_rollouts::ActiveRollouts;
use crate::admission::{Admission, Placement};
use crate::definitions::{Compiled, Function, Modules, Prepared, Put};
use crate::error::DefinitionsError;
use crate::history::{Candidate, Histories, History};
use crate::job::JobReport;
use crate::resource::{Content, Endpoint, Instance, InstanceState, Resource, Subject, Version};
use crate::rollout::{RevisionCounts, Verdict};
use crate::status::{
    Counters, FunctionStatus, HostedInstance, IssuedIdentity, NodeStatus, RejectedVersion, RolloutEvent, Status,
};
use crate::wire::{self, MAX_REASON, v1};
use bytes::Bytes;
use leno_config::{FunctionId, Slice};
use leno_identity::{SpiffeId, TrustDomain};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Payload bytes after which a delta is sent and another begun.
const DELTA_BYTES: usize = 512 << 10;
/// Deltas that a node may leave unacknowledged before it gets no more. Changes are merged meanwhile, so the node never gets a long history.
const MAX_UNANSWERED: usize = 16;
/// Rollout decisions that are kept.
const EVENTS: usize = 100;

/// The control plane's state.
pub(crate) struct State {
    compiled: Compiled,
    /// The revisions with which `compiled` was resolved.
    histories: Histories,
    active_rollouts: ActiveRollouts,
    /// The last decisions on rollouts, oldest first.
    events: VecDeque<RolloutEvent>,
    nodes: BTreeMap<Arc<str>, Node>,
    issued: BTreeMap<(SpiffeId, Arc<str>), u64>,
    sessions: u64,
    jobs: Jobs,
}

struct Node {
    admission: Admission,
    inbound: Option<SocketAddr>,
    /// The node is connected, or was within the grace period, so its endpoints count.
    present: bool,
    instances: BTreeMap<FunctionId, Vec<Instance>>,
    session: Option<Session>,
    last_session: u64,
    in_force: BTreeMap<Subject, Version>,
    rejected: BTreeMap<Subject, (Version, String)>,
    counters: Counters,
}

struct Session {
    number: u64,
    explicit: BTreeSet<Subject>,
    /// All subjects that `explicit` covers.
    wanted: BTreeSet<Subject>,
    /// What the node was last sent; `None`: that the subject does not exist.
    sent: BTreeMap<Subject, Option<Version>>,
    pending: BTreeSet<Subject>,
    nonce: u64,
    unanswered: BTreeMap<u64, Vec<(Subject, Option<Version>)>>,
    wake: Arc<Notify>,
}

/// The first message of a node's stream.
pub(crate) struct Greeting {
    pub subscribe: Vec<Subject>,
    pub held: Vec<(Subject, Version)>,
    pub inbound: Option<SocketAddr>,
    pub instances: BTreeMap<FunctionId, Vec<Instance>>,
    pub jobs: Vec<(FunctionId, JobReport)>,
}

/// What to do for a session.
pub(crate) enum Next {
    Send(v1::ToNode),
    /// Send nothing until the session is woken.
    Wait,
    /// Another stream of the same node has replaced this one.
    Ended,
}

impl State {
    pub(crate) fn new(compiled: Compiled, histories: Histories) -> Self {
        let mut active_rollouts = ActiveRollouts::default();
        active_rollouts.follow_all(&histories);
        let (nodes, issued, events) = Default::default();
        Self { compiled, histories, active_rollouts, events, nodes, issued, sessions: 0, jobs: Jobs::default() }
    }

    /// Adds a node, or changes its placement and gateway role.
    pub(crate) fn admit(&mut self, name: &str, admission: Admission) {
        let before = self.nodes.get(name).map(|node| node.admission.placement.clone());
        let node = self.nodes.entry(name.into()).or_insert_with(|| Node::new(admission.clone()));
        let before_locality = mem::replace(&mut node.admission, admission).locality;
        let relocated = node.admission.locality != before_locality;
        let after = node.admission.placement.clone();
        if relocated {
            self.endpoints_changed(&self.hosted(name).into_iter().collect::<Vec<_>>(), name);
        }
        if before.as_ref() == Some(&after) {
            return;
        }
        let Some(node) = self.nodes.get_mut(name) else { return };
        if let Some(session) = &mut node.session {
            session.pending.insert(Subject::Hosted);
        }
        self.refresh(name);
        let hosts = |placement: &Placement, id: &FunctionId| placement.hosts(id);
        let moved = self
            .compiled
            .functions
            .keys()
            .filter(|id| before.as_ref().is_some_and(|b| hosts(b, id)) != hosts(&after, id));
        let moved: Vec<_> = moved.cloned().collect();
        self.endpoints_changed(&moved, name);
        self.place_jobs();
    }

    /// The encoded settings of the mesh; `None`: nothing was published yet.
    pub(crate) fn mesh(&self) -> Option<Bytes> {
        self.compiled.contents.get(&Subject::Mesh).map(|content| content.payload.clone())
    }

    /// Removes a node with its endpoints, and ends its stream.
    pub(crate) fn expel(&mut self, name: &str) {
        let hosted: Vec<_> = self.hosted(name).into_iter().collect();
        let Some(node) = self.nodes.remove(name) else { return };
        if let Some(session) = node.session {
            session.wake.notify_one();
        }
        self.issued.retain(|(_, node), _| **node != *name);
        self.endpoints_changed(&hosted, name);
        self.place_jobs();
    }

    pub(crate) fn has_definitions(&self) -> bool {
        self.compiled.contents.contains_key(&Subject::Mesh)
    }

    pub(crate) fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Whether a rollout is under way.
    pub(crate) fn rolls_out(&self) -> bool {
        self.active_rollouts.any()
    }

    /// Takes in a node's request counts, which are cumulative.
    pub(crate) fn count(&mut self, name: &str, number: u64, function: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        if self.session(name, number).is_some()
            && let Some((name, _)) = self.nodes.get_key_value(name)
        {
            self.active_rollouts.report(name, function, counts);
        }
    }

    /// Rollouts that have a decision due.
    pub(crate) fn decisions(&self, now_ms: u64) -> Vec<(FunctionId, Candidate, Verdict)> {
        let functions = &self.compiled.functions;
        self.active_rollouts.decisions(now_ms, |id| functions.get(id)?.revisions.plan.rollout.as_ref())
    }

    /// The slice of a function as nodes get it.
    pub(crate) fn slice(&self, id: &FunctionId) -> Option<Slice> {
        let subject = Subject::Slice(id.clone());
        let content = self.compiled.contents.get(&subject)?;
        match Resource::decode(&subject, &content.payload).ok()? {
            Resource::Slice(slice) => Some(*slice),
            _ => None,
        }
    }

    /// Records a decision on a rollout.
    pub(crate) fn decided(&mut self, event: RolloutEvent) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The last decisions on rollouts, oldest first.
    pub(crate) fn events(&self) -> Vec<RolloutEvent> {
        self.events.iter().cloned().collect()
    }

    /// Replaces all definitions. Returns the subjects that differ from before.
    pub(crate) fn publish(&mut self, compiled: Compiled, histories: Histories) -> BTreeSet<Subject> {
        self.active_rollouts.follow_all(&histories);
        self.histories = histories;
        let before = mem::replace(&mut self.compiled, compiled);
        let mut changed = BTreeSet::new();
        let names = before.contents.keys().chain(self.compiled.contents.keys());
        changed.extend(names.filter(|name| before.contents.get(name) != self.compiled.contents.get(name)).cloned());
        let functions = before.functions.keys().chain(self.compiled.functions.keys());
        let added_or_removed =
            functions.filter(|id| before.functions.contains_key(*id) != self.compiled.functions.contains_key(*id));
        let added_or_removed: Vec<_> = added_or_removed.cloned().map(Subject::Endpoints).collect();
        changed.extend(added_or_removed);
        self.follow_jobs();
        self.announce(&changed);
        self.place_jobs();
        changed
    }

    /// Adds or replaces one function. Returns whether anything changed.
    pub(crate) fn put(&mut self, prepared: Prepared, history: History) -> bool {
        self.active_rollouts.follow(&prepared.id, &history);
        self.histories.0.insert(prepared.id.clone(), history);
        let (id, is_new) = match self.compiled.put(prepared) {
            Put::Same => return false,
            Put::Changed(id) => (id, false),
            Put::New(id) => (id, true),
        };
        self.follow_job(&id);
        if is_new {
            self.introduce(&id);
        } else {
            self.announce(&BTreeSet::from([Subject::Slice(id.clone()), Subject::Route(id.clone())]));
        }
        if self.is_job(&id) {
            self.place_jobs();
        }
        true
    }

    /// Adds, replaces and removes functions together.
    pub(crate) fn change(&mut self, prepared: Vec<(Prepared, History)>, removed: &[FunctionId]) {
        let mut changed = BTreeSet::new();
        for id in removed {
            self.active_rollouts.forget(id);
            self.histories.0.remove(id);
            if self.compiled.remove(id) {
                changed.extend([Subject::Slice(id.clone()), Subject::Endpoints(id.clone())]);
            }
        }
        for (prepared, history) in prepared {
            self.active_rollouts.follow(&prepared.id, &history);
            self.histories.0.insert(prepared.id.clone(), history);
            match self.compiled.put(prepared) {
                Put::Same => {}
                Put::Changed(id) => drop(changed.insert(Subject::Slice(id))),
                Put::New(id) => changed.extend([Subject::Slice(id.clone()), Subject::Endpoints(id)]),
            }
        }
        self.follow_jobs();
        self.announce(&changed);
        self.place_jobs();
    }

    /// Marks the resources of a new function in the sessions that want them. Other functions are not looked at, so a cold start costs the same
    /// however many there are.
    fn introduce(&mut self, id: &FunctionId) {
        let Some(function) = self.compiled.functions.get(id) else { return };
        let slice = Subject::Slice(id.clone());
        let callees = function.callees.iter().cloned().map(Subject::Endpoints);
        let own = [slice.clone(), Subject::Route(id.clone()), Subject::Endpoints(id.clone())];
        let concerned: Vec<_> = own.into_iter().chain(callees).chain(function.delivered()).collect();
        for (name, node) in &mut self.nodes {
            let Some(session) = &mut node.session else { continue };
            let hosts = hosts(&self.jobs, (name, &node.admission.placement), (id, function));
            session.wanted.extend(function.brings(id, hosts, &session.explicit));
            if session.wanted.contains(&slice) {
                session.wanted.extend(function.delivered());
            }
            let of_interest: Vec<_> =
                concerned.iter().filter(|subject| session.wanted.contains(*subject)).cloned().collect();
            session.pending.extend(of_interest);
            session.wake();
        }
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.compiled.modules
    }

    /// Checks a function that [`State::put`] is to add or replace.
    pub(crate) fn prepare_put(&self, slice: &Slice, trust_domain: &TrustDomain) -> Result<Prepared, DefinitionsError> {
        self.compiled.prepare_put(slice, trust_domain)
    }

    /// Marks changed subjects in the sessions that want or have them.
    fn announce(&mut self, changed: &BTreeSet<Subject>) {
        let Compiled { by_identity, gateway, .. } = &self.compiled;
        self.issued.retain(|(id, _), _| by_identity.contains_key(id) || gateway.as_ref() == Some(id));
        for session in self.nodes.values_mut().filter_map(|node| node.session.as_mut()) {
            let of_interest =
                |subject: &&Subject| session.wanted.contains(*subject) || session.sent.contains_key(*subject);
            let marked: Vec<_> = changed.iter().filter(of_interest).cloned().collect();
            session.pending.extend(marked);
        }
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.refresh(&name);
        }
    }

    /// Begins a session and returns its number. An older session of the same node ends. `None`: no such node was admitted.
    pub(crate) fn connect(&mut self, name: &str, greeting: Greeting, wake: Arc<Notify>) -> Option<u64> {
        let node = self.nodes.get_mut(name)?;
        self.sessions += 1;
        let Greeting { subscribe, held, inbound, instances, jobs } = greeting;
        let sent: BTreeMap<_, _> = held.iter().map(|(subject, version)| (subject.clone(), Some(*version))).collect();
        let session = Session {
            number: self.sessions,
            explicit: subscribe.into_iter().collect(),
            wanted: BTreeSet::new(),
            pending: sent.keys().cloned().collect(),
            sent,
            nonce: 0,
            unanswered: BTreeMap::new(),
            wake,
        };
        node.counters.streams += 1;
        node.last_session = self.sessions;
        node.in_force = held.into_iter().collect();
        node.rejected.clear();
        let moved = (node.present, node.inbound) != (true, inbound);
        node.inbound = inbound;
        node.present = true;
        if let Some(older) = node.session.replace(session) {
            older.wake.notify_one();
        }
        let before = mem::replace(&mut node.instances, instances);
        let mut affected: BTreeSet<FunctionId> = before.keys().chain(node.instances.keys()).cloned().collect();
        affected.retain(|id| ready(before.get(id)) != ready(node.instances.get(id)));
        if moved {
            affected.extend(self.hosted(name));
        }
        self.assign_reported_jobs(&name.into(), &jobs);
        self.refresh(name);
        self.endpoints_changed(&affected.into_iter().collect::<Vec<_>>(), name);
        self.place_jobs();
        Some(self.sessions)
    }

    /// Ends a session. The node's endpoints stay for the grace period; see [`State::forget`].
    pub(crate) fn disconnect(&mut self, name: &str, number: u64) {
        if let Some(node) = self.nodes.get_mut(name)
            && node.session.as_ref().is_some_and(|session| session.number == number)
        {
            node.session = None;
        }
    }

    /// Removes the endpoints of a node that has not reconnected since the session `number`.
    pub(crate) fn forget(&mut self, name: &str, number: u64) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.session.is_some() || node.last_session != number {
            return;
        }
        node.present = false;
        node.instances.clear();
        let affected: Vec<_> = self.hosted(name).into_iter().collect();
        self.endpoints_changed(&affected, name);
        self.place_jobs();
    }

    pub(crate) fn subscribe(&mut self, name: &str, number: u64, add: Vec<Subject>, remove: &[Subject]) {
        let Some(session) = self.session(name, number) else { return };
        for subject in remove {
            session.explicit.remove(subject);
            if session.sent.get(subject) == Some(&None) {
                session.sent.remove(subject);
            }
        }
        session.pending.extend(add.iter().cloned());
        session.explicit.extend(add);
        self.refresh(name);
    }

    /// Takes in a node's report of all its instances of `function`.
    pub(crate) fn report(&mut self, name: &str, number: u64, function: FunctionId, instances: Vec<Instance>) {
        if self.session(name, number).is_none() {
            return;
        }
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.counters.reports += 1;
        let after = ready(Some(&instances));
        let before = if instances.is_empty() {
            node.instances.remove(&function)
        } else {
            node.instances.insert(function.clone(), instances)
        };
        if ready(before.as_ref()) != after {
            self.endpoints_changed(&[function], name);
        }
    }

    /// Takes in a node's answer to a delta.
    pub(crate) fn acknowledge(&mut self, name: &str, number: u64, nonce: u64, rejected: Vec<(Subject, String)>) {
        let Some(session) = self.session(name, number) else { return };
        let Some(delivered) = session.unanswered.remove(&nonce) else { return };
        session.wake.notify_one();
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.counters.acks += 1;
        let mut reasons: BTreeMap<_, _> = rejected.into_iter().collect();
        for (subject, version) in delivered {
            match (version, reasons.remove(&subject)) {
                (Some(version), Some(mut reason)) => {
                    reason.truncate(reason.floor_char_boundary(MAX_REASON));
                    node.counters.rejections += 1;
                    tracing::warn!(node = name, %subject, %version, reason, "a node rejected configuration");
                    node.rejected.insert(subject, (version, reason));
                }
                (Some(version), None) => {
                    node.rejected.remove(&subject);
                    node.in_force.insert(subject, version);
                }
                (None, _) => {
                    node.rejected.remove(&subject);
                    node.in_force.remove(&subject);
                }
            }
        }
    }

    /// The next delta for a session, limited in size. Removals are sent only after all other changes.
    pub(crate) fn next_delta(&mut self, name: &str, number: u64) -> Next {
        let Some(session) = self.session(name, number) else { return Next::Ended };
        if session.pending.is_empty() || session.unanswered.len() >= MAX_UNANSWERED {
            return Next::Wait;
        }
        let mut pending = mem::take(&mut session.pending);
        let (mut resources, mut removed, mut delivered, mut size) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while size < DELTA_BYTES
            && let Some(subject) = pending.pop_first()
        {
            match self.difference(name, &subject) {
                Difference::Same => (),
                Difference::Set(content) => {
                    size += content.payload.len();
                    resources.push(wire::resource(&subject, &content));
                    delivered.push((subject, Some(content.version)));
                }
                Difference::Gone => removed.push(subject),
            }
        }
        if !pending.is_empty() {
            pending.extend(removed.drain(..));
        }
        delivered.extend(removed.iter().map(|subject| (subject.clone(), None)));
        let Some(node) = self.nodes.get_mut(name) else { return Next::Ended };
        let Some(session) = &mut node.session else { return Next::Ended };
        session.pending.extend(pending);
        if delivered.is_empty() {
            return Next::Wait;
        }
        session.record_sent(&delivered);
        session.nonce += 1;
        session.unanswered.insert(session.nonce, delivered);
        let removed: Vec<_> = removed.iter().map(v1::Subject::from).collect();
        node.counters.resources += resources.len() as u64;
        node.counters.removals += removed.len() as u64;
        let delta = v1::Delta { nonce: session.nonce, resources, removed };
        let message = v1::ToNode { message: Some(v1::to_node::Message::Delta(delta)) };
        node.counters.messages += 1;
        node.counters.bytes += message.encoded_len() as u64;
        Next::Send(message)
    }

    /// How long a certificate for `identity` on the node is valid; `None`: the node hosts nothing with that identity.
    pub(crate) fn may_sign(&self, name: &str, identity: &SpiffeId) -> Option<Duration> {
        let admission = &self.nodes.get(name)?.admission;
        let mut functions = self.compiled.by_identity.get(identity).into_iter().flatten();
        let hosted = functions.any(|function| self.hosts(name, &admission.placement, function));
        let gateway = admission.gateway && self.compiled.gateway.as_ref() == Some(identity);
        (hosted || gateway).then_some(self.compiled.svid_lifetime)
    }

    pub(crate) fn signed(&mut self, name: &str, identity: SpiffeId, not_after: u64) {
        self.issued.insert((identity, name.into()), not_after);
    }

    pub(crate) fn counters(&self, name: &str) -> Option<Counters> {
        Some(self.nodes.get(name)?.counters)
    }

    pub(crate) fn status(&self) -> Status {
        Status {
            functions: self
                .compiled
                .functions
                .iter()
                .filter(|(_, function)| function.job.is_none())
                .filter_map(|(id, function)| self.function(id, function))
                .collect(),
            nodes: self.nodes.iter().map(|(name, node)| self.node(name, node)).collect(),
            jobs: self.job_statuses(),
            identities: self.issued.iter().map(issued).collect(),
        }
    }

    fn function(&self, id: &FunctionId, function: &Function) -> Option<FunctionStatus> {
        let version = self.compiled.contents.get(&Subject::Slice(id.clone()))?.version;
        let of_node = |(name, node): (&Arc<str>, &Node)| {
            let instances = node.instances.get(id).cloned().unwrap_or_default();
            let name = name.clone();
            instances
                .into_iter()
                .map(move |instance| HostedInstance { node: name.to_string(), instance })
                .collect::<Vec<_>>()
        };
        let instances = self.nodes.iter().flat_map(of_node).collect();
        let revisions = self.histories.0.get(id).map(|history| history.status(id, &function.revisions));
        Some(FunctionStatus {
            function: id.clone(),
            identity: function.identity.clone(),
            version,
            instances,
            revisions: revisions.unwrap_or_default(),
        })
    }

    fn node(&self, name: &Arc<str>, node: &Node) -> NodeStatus {
        let rejected = node.rejected.iter().map(|(subject, (version, reason))| RejectedVersion {
            subject: subject.clone(),
            version: *version,
            reason: reason.clone(),
            in_force: node.in_force.get(subject).copied(),
        });
        NodeStatus {
            name: name.to_string(),
            connected: node.session.is_some(),
            inbound: node.inbound,
            hosted: self.hosted(name),
            rejected: rejected.collect(),
            counters: node.counters,
        }
    }

    /// Recomputes what a session's subscriptions cover, and marks the differences.
    fn refresh(&mut self, name: &str) {
        let Some(explicit) = self.nodes.get(name).and_then(|node| Some(node.session.as_ref()?.explicit.clone())) else {
            return;
        };
        let wanted = self.wanted(name, explicit);
        let Some(session) = self.nodes.get_mut(name).and_then(|node| node.session.as_mut()) else { return };
        session.pending.extend(wanted.symmetric_difference(&session.wanted).cloned());
        session.wanted = wanted;
        session.wake();
    }

    fn wanted(&self, name: &str, explicit: BTreeSet<Subject>) -> BTreeSet<Subject> {
        let Some(node) = self.nodes.get(name) else { return explicit };
        let mut wanted = explicit.clone();
        for (id, function) in &self.compiled.functions {
            let hosts = hosts(&self.jobs, (name, &node.admission.placement), (id, function));
            wanted.extend(function.brings(id, hosts, &explicit));
            if wanted.contains(&Subject::Slice(id.clone())) {
                wanted.extend(function.delivered());
            }
        }
        wanted
    }

    fn difference(&self, name: &str, subject: &Subject) -> Difference {
        let Some(session) = self.nodes.get(name).and_then(|node| node.session.as_ref()) else {
            return Difference::Same;
        };
        let content = if session.wanted.contains(subject) { self.content(name, subject) } else { None };
        match (content, session.sent.get(subject)) {
            (Some(content), Some(Some(sent))) if content.version == *sent => Difference::Same,
            (Some(content), _) => Difference::Set(content),
            (None, Some(Some(_))) => Difference::Gone,
            (None, None) if session.explicit.contains(subject) => Difference::Gone,
            (None, _) => Difference::Same,
        }
    }

    fn content(&self, name: &str, subject: &Subject) -> Option<Content> {
        match subject {
            Subject::Hosted => Content::new(&self.nodes.get(name)?.admission.placement).ok(),
            Subject::Endpoints(function) if self.compiled.functions.contains_key(function) => {
                Content::new(&self.endpoints(name, function)).ok()
            }
            Subject::Endpoints(_) => None,
            subject => self.compiled.contents.get(subject).cloned(),
        }
    }

    fn hosted(&self, name: &str) -> BTreeSet<FunctionId> {
        let Some(node) = self.nodes.get(name) else { return BTreeSet::new() };
        let placement = &node.admission.placement;
        self.compiled.functions.keys().filter(|id| self.hosts(name, placement, id)).cloned().collect()
    }

    fn hosts(&self, name: &str, placement: &Placement, id: &FunctionId) -> bool {
        self.compiled.functions.get(id).is_some_and(|function| hosts(&self.jobs, (name, placement), (id, function)))
    }

    fn is_job(&self, id: &FunctionId) -> bool {
        self.compiled.functions.get(id).is_some_and(|function| function.job.is_some())
    }

    /// The endpoints of a function as node `name` sees them. The node itself is left out, because it knows its own instances sooner and better.
    fn endpoints(&self, name: &str, function: &FunctionId) -> Vec<Endpoint> {
        let others = self.nodes.iter().filter(|(other, _)| ***other != *name);
        // Nobody can call a job.
        let callable = !self.is_job(function);
        let hosting = others.filter(|(_, node)| callable && node.present && node.admission.placement.hosts(function));
        let endpoint = |(other, node): (&Arc<str>, &Node)| {
            let ready = ready(node.instances.get(function));
            let locality = node.admission.locality.clone();
            Some(Endpoint { node: other.to_string(), address: node.inbound?, ready, locality })
        };
        hosting.filter_map(endpoint).collect()
    }

    /// Marks the endpoints of `functions` in every session except that of the node `at`, on which they changed.
    fn endpoints_changed(&mut self, functions: &[FunctionId], at: &str) {
        for (name, node) in &mut self.nodes {
            let Some(session) = node.session.as_mut().filter(|_| **name != *at) else { continue };
            let subjects = functions.iter().cloned().map(Subject::Endpoints);
            let marked: Vec<_> = subjects.filter(|subject| session.wanted.contains(subject)).collect();
            session.pending.extend(marked);
            session.wake();
        }
    }

    fn session(&mut self, name: &str, number: u64) -> Option<&mut Session> {
        self.nodes.get_mut(name)?.session.as_mut().filter(|session| session.number == number)
    }
}

enum Difference {
    Same,
    Set(Content),
    Gone,
}

impl Session {
    /// Records what a delta sends the node. A subject that neither exists nor is subscribed to is forgotten.
    fn record_sent(&mut self, delivered: &[(Subject, Option<Version>)]) {
        for (subject, version) in delivered {
            if version.is_some() || self.explicit.contains(subject) {
                self.sent.insert(subject.clone(), *version);
            } else {
                self.sent.remove(subject);
            }
        }
    }

    fn wake(&self) {
        if !self.pending.is_empty() {
            self.wake.notify_one();
        }
    }
}

impl Node {
    fn new(admission: Admission) -> Self {
        Self {
            admission,
            inbound: None,
            present: false,
            instances: BTreeMap::new(),
            session: None,
            last_session: 0,
            in_force: BTreeMap::new(),
            rejected: BTreeMap::new(),
            counters: Counters::default(),
        }
    }
}

/// A function runs on every node whose placement covers it, a job on one of them.
fn hosts(jobs: &Jobs, (name, placement): (&str, &Placement), (id, function): (&FunctionId, &Function)) -> bool {
    placement.hosts(id) && (function.job.is_none() || jobs.runs_on(id, name))
}

fn ready(instances: Option<&Vec<Instance>>) -> u32 {
    let ready = instances.into_iter().flatten().filter(|instance| instance.state == InstanceState::Ready);
    ready.count().try_into().unwrap_or(u32::MAX)
}

fn issued(((identity, node), not_after): (&(SpiffeId, Arc<str>), &u64)) -> IssuedIdentity {
    IssuedIdentity { identity: identity.clone(), node: node.to_string(), not_after: *not_after }
}

#[cfg(test)]
mod tests;
