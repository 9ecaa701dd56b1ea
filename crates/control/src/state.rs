//! Decides which node gets what, without sockets, clocks and files.
//!
//! A node may subscribe to its own part only: what that covers follows from the functions that it hosts. Everything else that it asks for, and reports
//! about functions that it does not host, are refused and counted.
//!
//! A session is the stream of a connected node. It has the versions that were sent on it and a set of subjects that may have changed. A change marks
//! subjects in the sessions that want them and wakes these sessions. [`State::next_delta`] then compares versions and decides what to send. Changes
//! that come faster than a node reads are merged, and nothing is ever held back.
//!
//! Functions are known by the nodes that host them, and subjects by the nodes that want them. So a change costs what it concerns, however many
//! functions and nodes there are.
//!
//! What is looked up by function or subject is in hash maps: an ordered map of ten thousand names compares some fifty texts for each. What decides has
//! no order of theirs.

mod behind;
mod delivery;
mod jobs;
mod leasing;
mod listing;
mod machines;
mod placing;
mod quotas;
mod removals;
mod scaling;
mod trust;

use self::behind::Attention;
use self::delivery::Session;
use self::jobs::Jobs;
use self::machines::Machines;
use self::placing::Index;
use self::quotas::NamespaceScale;
use self::removals::Removals;
use self::scaling::Scaled;
use self::trust::Proof;
use crate::active_rollouts::ActiveRollouts;
use crate::admission::{Admission, CapacityLimits};
use crate::definitions::{Carrier, Compiled, Modules, Prepared, Put};
use crate::error::DefinitionsError;
use crate::history::{Candidate, Histories, History};
use crate::leases::Leases;
use crate::rollout::Verdict;
use crate::scheduler::Scheduler;
use crate::status::{Counters, RolloutEvent};
use bytes::Bytes;
use leno_config::{FunctionId, Permissions, Slice};
use leno_identity::{SpiffeId, TrustDomain};
use leno_wire::{
    Bounds, Capacity, Instance, InstanceState, JobReport, Lease, NodeCertificates, Placement, Resource, RevisionCounts,
    Subject, Version, v1,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) use self::delivery::Next;

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
    index: Index,
    scheduler: Scheduler,
    scaled: HashMap<FunctionId, Scaled>,
    /// What the functions of each namespace may have together.
    quotas: HashMap<String, NamespaceScale>,
    /// The rate limits that are divided between nodes.
    leased: HashMap<FunctionId, Leases>,
    /// Functions whose limits may have to be divided anew.
    dividing: BTreeSet<FunctionId>,
    /// When nodes last asked for another term of their leases, also of nodes that are gone.
    renewed: BTreeMap<Arc<str>, Duration>,
    /// Functions that have any load.
    active: BTreeSet<FunctionId>,
    /// The time of the last report of load, from any fixed moment.
    now: Duration,
    /// Definitions are older than this process, so nodes that have not reconnected yet may have functions.
    awaiting: bool,
    /// Nodes of an earlier process that have not come back yet. When all of them have, nothing is awaited any more.
    awaited: BTreeSet<Arc<str>>,
    /// Functions whose nodes stay away. Until a node in their place has one in force, callers keep the endpoints that they have: the nodes may still
    /// serve it.
    abandoned: BTreeSet<FunctionId>,
    removals: Removals,
    attention: Attention,
    /// Key identifier of the authority that signs; empty: nodes are not told.
    issuer: Vec<u8>,
    /// The memberships that were revoked.
    revoked: v1::Revoked,
    /// Proofs that were asked for.
    proofs: u64,
    machines: Machines,
}

struct Node {
    admission: Admission,
    inbound: Option<SocketAddr>,
    /// The addresses at which it can be reached.
    addresses: BTreeSet<IpAddr>,
    /// Where its last stream came from.
    from: Option<IpAddr>,
    /// The node is connected, or was within the grace period, so its endpoints count.
    present: bool,
    cordoned: bool,
    /// It does not acknowledge its configuration.
    behind: bool,
    /// Its offer, capped by its membership.
    capacity: Option<Capacity>,
    /// The offer that it reports.
    claimed: Option<Capacity>,
    limits: CapacityLimits,
    images: BTreeSet<String>,
    instances: BTreeMap<FunctionId, Vec<Instance>>,
    /// The functions that it hosts.
    hosted: BTreeSet<FunctionId>,
    session: Option<Session>,
    last_session: u64,
    in_force: HashMap<Subject, Version>,
    rejected: BTreeMap<Subject, (Version, String)>,
    /// Removed functions that the node drains and whose permissions were withdrawn since, each with the delta that says so.
    withdrawn: BTreeMap<FunctionId, Option<u64>>,
    counters: Counters,
    certificates: Option<NodeCertificates>,
    proof: Option<Proof>,
    /// Since when it is known to be away, in seconds since 1970.
    away_since: Option<u64>,
}

/// Nodes that are away at a time before that says something about the control plane.
const MANY: u32 = 2;

/// Whether there is another time to ask for a node that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Again,
    Last,
}

/// Whether a node that was away still is something that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// It is withdrawn, or has come back.
    Yes,
    NotYet,
}

/// The first message of a node's stream.
#[derive(Default)]
pub(crate) struct Greeting {
    pub subscribe: Vec<Subject>,
    pub held: Vec<(Subject, Version)>,
    pub inbound: Option<SocketAddr>,
    pub instances: BTreeMap<FunctionId, Vec<Instance>>,
    pub jobs: Vec<(FunctionId, JobReport)>,
    pub capacity: Option<(Capacity, BTreeSet<String>)>,
    pub bounds: Vec<(FunctionId, Vec<Bounds>)>,
    pub leases: Vec<(FunctionId, Lease)>,
    /// The version of the protocol that is spoken.
    pub protocol: u32,
    /// Where the stream comes from, and where it has reached the control plane.
    pub from: Option<IpAddr>,
    pub at: Option<IpAddr>,
}

impl State {
    pub(crate) fn new(compiled: Compiled, histories: Histories) -> Self {
        let mut active_rollouts = ActiveRollouts::default();
        active_rollouts.follow_all(&histories);
        let awaiting = !compiled.functions.is_empty();
        let (nodes, issued, events, jobs, scaled, quotas) = Default::default();
        let mut state = Self {
            compiled,
            histories,
            active_rollouts,
            events,
            nodes,
            issued,
            sessions: 0,
            jobs,
            index: Index::default(),
            scheduler: Scheduler::default(),
            scaled,
            quotas,
            leased: HashMap::new(),
            dividing: BTreeSet::new(),
            renewed: BTreeMap::new(),
            active: BTreeSet::new(),
            now: Duration::ZERO,
            awaiting,
            awaited: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            removals: Removals::new(),
            attention: Attention::default(),
            issuer: Vec::new(),
            revoked: v1::Revoked::default(),
            proofs: 0,
            machines: Machines::default(),
        };
        for id in state.compiled.functions.keys().cloned().collect::<BTreeSet<_>>() {
            state.define(&id);
        }
        state
    }

    /// Waits for these nodes, which an earlier process knew, before their functions are placed elsewhere.
    pub(crate) fn await_nodes(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        self.awaited.extend(names);
        self.awaiting |= !self.awaited.is_empty();
    }

    /// Adds a node, or changes its placement, roles and locality.
    pub(crate) fn admit(&mut self, name: &str, admission: Admission) {
        let known = self.nodes.contains_key(name);
        let name: Arc<str> = self.nodes.get_key_value(name).map_or_else(|| name.into(), |(name, _)| name.clone());
        let node = self.nodes.entry(name.clone()).or_insert_with(|| Node::new(admission.clone()));
        let before = mem::replace(&mut node.admission, admission);
        let after = node.admission.clone();
        if known && before == after {
            return;
        }
        if let Some(session) = &mut node.session {
            session.pending.insert(Subject::Hosted);
        }
        let relocated = before.locality != after.locality;
        let carried = known && before.egress;
        let before = if known { before.placement } else { Placement::Only(BTreeSet::new()) };
        let mut moved = self.index.place(&name, &before, &after.placement, || self.compiled.functions.keys().cloned());
        if carried != after.egress {
            self.index.set_egress(&name, after.egress);
            moved.extend(self.carried());
        }
        self.offer(&name);
        self.rehost(&moved);
        if relocated {
            let hosted: Vec<_> = self.nodes.get(&name).into_iter().flat_map(|node| node.hosted.clone()).collect();
            self.endpoints_changed(hosted.iter());
        }
        self.refresh(&name);
        self.place_jobs();
    }

    /// Sets the most that a node may offer.
    pub(crate) fn limit(&mut self, name: &str, limits: CapacityLimits) {
        let Some((name, _)) = self.nodes.get_key_value(name) else { return };
        let name = name.clone();
        if let Some(node) = self.nodes.get_mut(&name) {
            node.limits = limits;
            node.cap();
        }
        self.offer(&name);
    }

    /// Removes a node with its endpoints, and ends its stream. What it hosted is placed elsewhere.
    pub(crate) fn expel(&mut self, name: &str) {
        let Some((key, node)) = self.nodes.get_key_value(name) else { return };
        let (name, locality) = (key.clone(), node.admission.locality.clone());
        self.end_session(&name);
        self.locate(&name, &[]);
        self.located(&name, None, None);
        self.awaited.remove(&name);
        self.index.set_gateway(&name, false);
        if let Some(node) = self.nodes.get_mut(&name) {
            node.present = false;
            node.instances.clear();
        }
        let nothing = Placement::Only(BTreeSet::new());
        self.admit(&name, Admission { placement: nothing, gateway: false, locality, egress: false });
        self.nodes.remove(&name);
        self.issued.retain(|(_, node), _| **node != *name);
        // What it said to have of functions that are elsewhere would keep their instances there below the maximum forever.
        let ids: BTreeSet<_> = self.scaled.keys().cloned().collect();
        for id in ids {
            if self.scaled.get_mut(&id).is_some_and(|scaled| scaled.grants.forget(&name)) {
                self.rebalance(&id);
            }
        }
        // Others may still have endpoints of it. They must not keep them for as long as nodes are awaited, or replaced.
        self.stop_awaiting();
        let abandoned = mem::take(&mut self.abandoned);
        self.endpoints_changed(abandoned.iter());
        self.place_jobs();
    }

    /// The encoded settings of the mesh; `None`: nothing was published yet.
    pub(crate) fn mesh(&self) -> Option<Bytes> {
        self.compiled.contents.get(&Subject::Mesh).map(|content| content.payload.clone())
    }

    pub(crate) fn has_definitions(&self) -> bool {
        self.compiled.contents.contains_key(&Subject::Mesh)
    }

    /// Cordons a node, or ends that. A cordoned node gets nothing new, and what the scheduler placed on it goes elsewhere.
    pub(crate) fn cordon(&mut self, name: &str, cordoned: bool) -> bool {
        let Some((name, _)) = self.nodes.get_key_value(name) else { return false };
        let name = name.clone();
        if let Some(node) = self.nodes.get_mut(&name) {
            node.cordoned = cordoned;
        }
        self.offer(&name);
        let carried = self.carried();
        self.endpoints_changed(carried.iter());
        self.place_jobs();
        true
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
            && self.may_report(name, function)
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
        let mut changed = BTreeSet::new();
        let names = self.compiled.contents.keys().chain(compiled.contents.keys());
        changed.extend(names.filter(|name| self.compiled.contents.get(name) != compiled.contents.get(name)).cloned());
        let slices = changed.iter().filter_map(|subject| match subject {
            Subject::Slice(id) => Some(id.clone()),
            _ => None,
        });
        let slices: Vec<FunctionId> = slices.collect();
        let functions = (&self.compiled.functions, &compiled.functions);
        let new_or_gone = slices.iter().filter(|id| functions.0.contains_key(*id) != functions.1.contains_key(*id));
        let new_or_gone: Vec<_> = new_or_gone.cloned().map(Subject::Endpoints).collect();
        changed.extend(new_or_gone);
        for id in slices.iter().filter(|id| !compiled.functions.contains_key(*id)) {
            self.note_removal(id);
        }
        let permissions = compiled.permissions.clone();
        self.follow(&slices, |state| {
            slices.iter().for_each(|id| state.index.forget_definition(id, &state.compiled));
            state.compiled = compiled;
            state.follow_jobs();
            slices.iter().for_each(|id| state.define(id));
        });
        self.set_permissions(permissions);
        slices.iter().for_each(|id| self.rebalance(id));
        let Compiled { by_identity, gateway, .. } = &self.compiled;
        self.issued.retain(|(id, _), _| by_identity.contains_key(id) || gateway.as_ref() == Some(id));
        self.announce(&changed);
        self.place_jobs();
        changed
    }

    /// Adds or replaces one function. Returns whether anything changed. The cost does not depend on the number of other functions.
    pub(crate) fn put(&mut self, prepared: Prepared, history: History) -> bool {
        self.active_rollouts.follow(&prepared.id, &history);
        self.histories.0.insert(prepared.id.clone(), history);
        let id = prepared.id.clone();
        let before = self.compiled.functions.get(&id).map(|function| function.identity.clone());
        let put = self.follow(std::slice::from_ref(&id), |state| {
            state.index.forget_definition(&id, &state.compiled);
            let put = state.compiled.put(prepared);
            state.follow_job(&id);
            state.define(&id);
            put
        });
        self.rebalance(&id);
        let changed = match put {
            Put::Same => return false,
            Put::Changed => BTreeSet::from([Subject::Slice(id.clone()), Subject::Route(id.clone())]),
            Put::New => {
                BTreeSet::from([Subject::Slice(id.clone()), Subject::Route(id.clone()), Subject::Endpoints(id.clone())])
            }
        };
        if let Some(before) = before.filter(|before| !self.compiled.by_identity.contains_key(before)) {
            self.issued.retain(|(id, _), _| *id != before);
        }
        self.announce(&changed);
        if self.is_job(&id) {
            self.place_jobs();
        }
        true
    }

    /// Adds, replaces and removes functions together. Other functions are not looked at.
    pub(crate) fn change(
        &mut self,
        prepared: Vec<(Prepared, History)>,
        removed: &[FunctionId],
        permissions: &Permissions,
    ) {
        removed.iter().for_each(|id| self.note_removal(id));
        let ids: BTreeSet<_> = prepared.iter().map(|(prepared, _)| prepared.id.clone()).collect();
        let ids: Vec<_> = ids.into_iter().chain(removed.iter().cloned()).collect();
        let mut changed = BTreeSet::new();
        self.follow(&ids, |state| {
            ids.iter().for_each(|id| state.index.forget_definition(id, &state.compiled));
            for id in removed {
                state.active_rollouts.forget(id);
                state.histories.0.remove(id);
                if state.compiled.remove(id) {
                    changed.extend([
                        Subject::Slice(id.clone()),
                        Subject::Route(id.clone()),
                        Subject::Endpoints(id.clone()),
                    ]);
                }
            }
            for (prepared, history) in prepared {
                let id = prepared.id.clone();
                state.active_rollouts.follow(&id, &history);
                state.histories.0.insert(id.clone(), history);
                match state.compiled.put(prepared) {
                    Put::Same => continue,
                    Put::Changed => {}
                    Put::New => drop(changed.insert(Subject::Endpoints(id.clone()))),
                }
                changed.extend([Subject::Slice(id.clone()), Subject::Route(id)]);
            }
            state.follow_jobs();
            ids.iter().for_each(|id| state.define(id));
        });
        self.set_permissions(permissions.clone());
        ids.iter().for_each(|id| self.rebalance(id));
        let Compiled { by_identity, gateway, .. } = &self.compiled;
        self.issued.retain(|(id, _), _| by_identity.contains_key(id) || gateway.as_ref() == Some(id));
        self.announce(&changed);
        self.place_jobs();
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.compiled.modules
    }

    /// Checks a function that [`State::put`] is to add or replace.
    pub(crate) fn prepare_put(&self, slice: &Slice, trust_domain: &TrustDomain) -> Result<Prepared, DefinitionsError> {
        self.compiled.prepare_put(slice, trust_domain)
    }

    /// Begins a session and returns its number. An older session of the same node ends. `None`: no such node was admitted.
    pub(crate) fn connect(&mut self, name: &str, greeting: Greeting, wake: Arc<Notify>) -> Option<u64> {
        let (name, _) = self.nodes.get_key_value(name)?;
        let name = name.clone();
        self.sessions += 1;
        let Greeting { subscribe, held, inbound, mut instances, jobs, capacity, bounds, leases, protocol, from, at } =
            greeting;
        self.end_session(&name);
        self.recall_bounds(&name, &bounds);
        self.recall_leases(&name, &leases);
        let known: Vec<_> = held.iter().map(|(subject, _)| subject.clone()).collect();
        // Of bounds that a stream may have lost, it is not known which are in force, so they are sent again.
        let certain = |subject: &Subject| match subject {
            Subject::Scale(id) => !self.scaled.get(id).is_some_and(|scaled| scaled.grants.are_uncertain(&name)),
            _ => true,
        };
        let unknown = Version::of(&[]);
        let version = |(subject, version): &(Subject, Version)| if certain(subject) { *version } else { unknown };
        let sent = held.iter().map(|held| (held.0.clone(), Some(version(held)))).collect();
        let mut session = Session::new(self.sessions, protocol, sent, known.iter().cloned().collect(), wake);
        session.tell_issuer(&self.issuer, Duration::ZERO);
        trust::tell_revoked(&name, &mut session, &self.revoked);
        let node = self.nodes.get_mut(&name)?;
        node.counters.streams += 1;
        node.last_session = self.sessions;
        node.away_since = None;
        node.in_force = held.iter().cloned().collect();
        node.rejected.clear();
        node.withdrawn.values_mut().for_each(|said| *said = None);
        // It may be another process, with certificates of its own. It says which.
        node.certificates = None;
        let moved = (node.present, node.inbound) != (true, inbound);
        node.inbound = inbound;
        node.present = true;
        (node.claimed, node.images) = capacity.map_or((None, BTreeSet::new()), |(offer, images)| (Some(offer), images));
        node.cap();
        node.session = Some(session);
        self.located(&name, from, at);
        self.offer(&name);
        self.adopt(&name, &held);
        let foreign: Vec<_> = instances.keys().filter(|id| !self.may_report(&name, id)).cloned().collect();
        for id in foreign {
            // What ran here until the node was taken for lost may still be draining. It counts for nothing.
            instances.remove(&id);
        }
        let number = self.sessions;
        self.subscribe(&name, number, subscribe, &[]);
        self.refresh(&name);
        let Some(node) = self.nodes.get_mut(&name) else { return Some(number) };
        let before = mem::replace(&mut node.instances, instances);
        let mut affected: BTreeSet<FunctionId> = before.keys().chain(node.instances.keys()).cloned().collect();
        affected.retain(|id| ready(before.get(id)) != ready(node.instances.get(id)));
        if moved {
            affected.extend(node.hosted.iter().cloned());
        }
        self.assign_reported_jobs(&name, &jobs);
        self.endpoints_changed(affected.iter());
        if self.awaited.remove(&name) && self.awaited.is_empty() {
            self.stop_awaiting();
        }
        self.place_jobs();
        Some(number)
    }

    /// Ends a session. The node's endpoints stay for the grace period; see [`State::forget`].
    pub(crate) fn disconnect(&mut self, name: &str, number: u64) {
        if self.session(name, number).is_some() {
            self.end_session(name);
        }
    }

    /// Withdraws a node that has not reconnected since the session `number`: its endpoints go, and what it hosted is placed elsewhere.
    ///
    /// Where half of all nodes or more are away at a time, it is rather this control plane that is cut off. A node would come back to find its
    /// functions with the one that was there before it. So [`Patience::Again`] leaves everything as it is, and is to be asked again later.
    #[must_use]
    pub(crate) fn forget(&mut self, name: &str, number: u64, patience: Patience) -> Forgotten {
        let Some((key, node)) = self.nodes.get_key_value(name) else { return Forgotten::Yes };
        if node.session.is_some() || node.last_session != number {
            return Forgotten::Yes;
        }
        let present = self.nodes.values().filter(|node| node.present);
        let (all, away) = present.fold((0, 0), |(all, away), node| (all + 1, away + u32::from(node.session.is_none())));
        if patience == Patience::Again && away >= MANY && 2 * away >= all {
            tracing::warn!(
                node = name,
                away,
                all,
                "many nodes are away at a time; their functions stay where they are for now"
            );
            return Forgotten::NotYet;
        }
        let name = key.clone();
        let Some(node) = self.nodes.get_mut(&name) else { return Forgotten::Yes };
        node.present = false;
        node.instances.clear();
        let affected: Vec<_> = node.hosted.iter().cloned().collect();
        self.endpoints_changed(affected.iter());
        let moved = self.withdraw(&name);
        self.abandoned.extend(moved);
        self.place_jobs();
        Forgotten::Yes
    }

    /// Takes in a node's report of all its instances of `function`.
    pub(crate) fn report(&mut self, name: &str, number: u64, function: FunctionId, instances: Vec<Instance>) {
        if self.session(name, number).is_none() || !self.may_report(name, &function) {
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
            self.endpoints_changed([&function]);
        }
        self.instances_changed(&function, name);
    }

    /// Whether a node may say anything about a function: it hosts it, or has said that instances of it are still there. Otherwise what it says is
    /// refused.
    fn may_report(&mut self, name: &str, id: &FunctionId) -> bool {
        let Some(node) = self.nodes.get_mut(name) else { return false };
        let may = node.hosted.contains(id) || node.instances.contains_key(id);
        if !may {
            node.refuse(name, id);
        }
        may
    }

    /// How long a certificate for `identity` on the node is valid; `None`: the node hosts nothing with that identity.
    pub(crate) fn may_sign(&self, name: &str, identity: &SpiffeId) -> Option<Duration> {
        let node = self.nodes.get(name)?;
        let mut functions = self.compiled.by_identity.get(identity).into_iter().flatten();
        // A node that connects to the outside for its own functions only is asked by nobody else.
        let hosted = functions.any(|id| node.hosted.contains(id) && self.carrier(id) != Some(Carrier::Callers));
        let gateway = node.admission.gateway && self.compiled.gateway.as_ref() == Some(identity);
        (hosted || gateway).then_some(self.compiled.svid_lifetime)
    }

    pub(crate) fn signed(&mut self, name: &str, identity: SpiffeId, not_after: u64) {
        self.issued.insert((identity, name.into()), not_after);
    }

    pub(crate) fn counters(&self, name: &str) -> Option<Counters> {
        Some(self.nodes.get(name)?.counters)
    }

    /// Time goes on. Whoever has waited for the lock comes with an earlier time than who got it meanwhile.
    fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    fn is_job(&self, id: &FunctionId) -> bool {
        self.compiled.functions.get(id).is_some_and(|function| function.job.is_some())
    }

    fn session(&mut self, name: &str, number: u64) -> Option<&mut Session> {
        self.nodes.get_mut(name)?.session.as_mut().filter(|session| session.number == number)
    }
}

impl Node {
    fn new(admission: Admission) -> Self {
        Self {
            admission,
            inbound: None,
            addresses: BTreeSet::new(),
            from: None,
            present: false,
            cordoned: false,
            behind: false,
            capacity: None,
            claimed: None,
            limits: CapacityLimits::default(),
            images: BTreeSet::new(),
            instances: BTreeMap::new(),
            hosted: BTreeSet::new(),
            session: None,
            last_session: 0,
            in_force: HashMap::new(),
            rejected: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            counters: Counters::default(),
            certificates: None,
            proof: None,
            away_since: None,
        }
    }

    /// Caps what the node says to offer.
    fn cap(&mut self) {
        self.capacity = self.claimed.map(|claimed| self.limits.cap(&claimed));
    }

    /// Counts something that the node asked for or reported and that is not its own. The log has the first one, and then ever fewer.
    fn refuse(&mut self, name: &str, what: &dyn std::fmt::Display) {
        self.counters.refused += 1;
        let refused = self.counters.refused;
        if refused.is_power_of_two() {
            tracing::warn!(node = name, %what, refused, "refused: a node may ask for its own part only, and report on what it hosts");
        }
    }
}

fn ready(instances: Option<&Vec<Instance>>) -> u32 {
    let ready = instances.into_iter().flatten().filter(|instance| instance.state == InstanceState::Ready);
    ready.count().try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
