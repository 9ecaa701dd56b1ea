//! Which nodes host a function, and which want to know of it.

use super::State;
use crate::definitions::{Carrier, Compiled, Function};
use crate::scheduler::NodeState;
use leno_config::FunctionId;
use leno_wire::{Endpoint, Placement, Subject, Version};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

type Names = BTreeSet<Arc<str>>;

/// Knows nodes by what they host and want, so that an event need not look at all of them.
#[derive(Default)]
pub(super) struct Index {
    hosting: HashMap<FunctionId, Names>,
    /// Nodes with [`Placement::Everything`].
    everything: Names,
    /// Nodes whose [`Placement::Only`] names a function.
    named: HashMap<FunctionId, Names>,
    /// Connected nodes that subscribed to [`Subject::Routes`].
    gateways: Names,
    /// Nodes with the egress role.
    egress: Names,
    exposed: BTreeSet<FunctionId>,
    /// Functions by callees.
    callers: HashMap<FunctionId, BTreeSet<FunctionId>>,
    /// Connected nodes by what they want.
    interest: HashMap<Subject, Names>,
}

impl Index {
    /// Takes in another placement of a node. Returns the functions that may move.
    pub(super) fn place<I: Iterator<Item = FunctionId>>(
        &mut self,
        name: &Arc<str>,
        before: &Placement,
        after: &Placement,
        all: impl FnOnce() -> I,
    ) -> Vec<FunctionId> {
        if before == after {
            return Vec::new();
        }
        let mut moved = BTreeSet::new();
        if let Placement::Only(functions) = before {
            for id in functions {
                remove(&mut self.named, id, name);
            }
            moved.extend(functions.iter().cloned());
        }
        if let Placement::Only(functions) = after {
            for id in functions {
                self.named.entry(id.clone()).or_default().insert(name.clone());
            }
            moved.extend(functions.iter().cloned());
        }
        let had_everything = self.everything.remove(name);
        if *after == Placement::Everything {
            self.everything.insert(name.clone());
        }
        if had_everything || *after == Placement::Everything {
            moved.extend(all());
        }
        moved.into_iter().collect()
    }

    fn define(&mut self, id: &FunctionId, function: &Function) {
        if function.exposed {
            self.exposed.insert(id.clone());
        }
        for callee in &function.callees {
            self.callers.entry(callee.clone()).or_default().insert(id.clone());
        }
    }

    /// Forgets what a function that is about to change or go is known for.
    pub(super) fn forget_definition(&mut self, id: &FunctionId, compiled: &Compiled) {
        self.exposed.remove(id);
        for callee in compiled.functions.get(id).into_iter().flat_map(|function| &function.callees) {
            if let Some(callers) = self.callers.get_mut(callee) {
                callers.remove(id);
                if callers.is_empty() {
                    self.callers.remove(callee);
                }
            }
        }
    }

    pub(super) fn set_gateway(&mut self, name: &Arc<str>, routes: bool) {
        if routes {
            self.gateways.insert(name.clone())
        } else {
            self.gateways.remove(name)
        };
    }

    pub(super) fn set_egress(&mut self, name: &Arc<str>, egress: bool) {
        if egress {
            self.egress.insert(name.clone())
        } else {
            self.egress.remove(name)
        };
    }

    pub(super) fn exposed(&self) -> impl Iterator<Item = &FunctionId> {
        self.exposed.iter()
    }

    /// The nodes that host a function.
    pub(super) fn hosting(&self, id: &FunctionId) -> impl Iterator<Item = &Arc<str>> {
        self.hosting.get(id).into_iter().flatten()
    }

    /// The connected nodes that want a subject.
    pub(super) fn interested(&self, subject: &Subject) -> impl Iterator<Item = &Arc<str>> {
        self.interest.get(subject).into_iter().flatten()
    }

    pub(super) fn gain_interest(&mut self, subject: &Subject, name: &Arc<str>) {
        self.interest.entry(subject.clone()).or_default().insert(name.clone());
    }

    pub(super) fn lose_interest(&mut self, subject: &Subject, name: &str) {
        if let Some(names) = self.interest.get_mut(subject) {
            names.remove(name);
            if names.is_empty() {
                self.interest.remove(subject);
            }
        }
    }
}

fn remove(of: &mut HashMap<FunctionId, Names>, id: &FunctionId, name: &str) {
    if let Some(names) = of.get_mut(id) {
        names.remove(name);
        if names.is_empty() {
            of.remove(id);
        }
    }
}

impl State {
    /// Makes a change that concerns these functions, and then changes what nodes want accordingly. The change must not come here again for one of them.
    pub(super) fn follow<R>(&mut self, ids: &[FunctionId], change: impl FnOnce(&mut Self) -> R) -> R {
        let mut outside: BTreeSet<_> = ids.iter().flat_map(|id| self.outside_callees(id)).collect();
        let before: Vec<_> = ids.iter().map(|id| self.brought(id)).collect();
        let result = change(self);
        for (id, before) in ids.iter().zip(before) {
            let after = self.brought(id);
            self.rewant(before, after);
            outside.extend(self.outside_callees(id));
        }
        // What callers' own nodes connect to is where callers are.
        if !outside.is_empty() {
            self.rehost(&outside.into_iter().collect::<Vec<_>>());
        }
        result
    }

    /// Takes in how a function is defined now, or that it is not. Only within [`State::follow`].
    pub(super) fn define(&mut self, id: &FunctionId) {
        match self.compiled.functions.get(id) {
            Some(function) => {
                self.index.define(id, function);
                if function.outside.is_some() || function.job.is_some() {
                    self.scheduler.remove_function(id);
                } else {
                    self.scheduler.set_function(id, function.demand.clone(), self.awaiting);
                }
            }
            None => {
                self.abandoned.remove(id);
                self.scheduler.remove_function(id);
            }
        }
        self.define_scale(id);
        self.define_limits(id);
        self.update_hosting(id);
    }

    /// Recomputes which nodes host these functions.
    pub(super) fn rehost(&mut self, ids: &[FunctionId]) {
        self.follow(ids, |state| ids.iter().for_each(|id| state.update_hosting(id)));
    }

    /// The scheduler may have moved these functions.
    pub(super) fn moved(&mut self, ids: impl IntoIterator<Item = FunctionId>) {
        let ids: Vec<_> = ids.into_iter().collect();
        self.rehost(&ids);
        for id in &ids {
            self.rebalance(id);
            // One that goes on where it was may have left another node long ago.
            self.leave_idle_nodes(id);
        }
    }

    fn update_hosting(&mut self, id: &FunctionId) {
        let now = self.hosts_of(id);
        let before = self.index.hosting.remove(id).unwrap_or_default();
        for name in before.difference(&now) {
            if let Some(node) = self.nodes.get_mut(name) {
                node.hosted.remove(id);
            }
            self.forget_bounds(id, name);
        }
        let new: Vec<_> = now.difference(&before).cloned().collect();
        for name in &new {
            if let Some(node) = self.nodes.get_mut(name) {
                node.hosted.insert(id.clone());
            }
        }
        let fewer = !before.is_subset(&now);
        if !now.is_empty() {
            self.index.hosting.insert(id.clone(), now);
        }
        // Callers need not know of a new node before it takes requests.
        if fewer || new.iter().any(|name| self.takes_requests(name, id)) {
            self.endpoints_changed([id]);
        }
        self.divide_limits(id);
    }

    fn hosts_of(&self, id: &FunctionId) -> Names {
        let Some(function) = self.compiled.functions.get(id) else { return Names::new() };
        if function.job.is_some() {
            return self.jobs.node_of(id).into_iter().filter(|name| self.can_host_job(name, id)).collect();
        }
        if function.outside == Some(Carrier::EgressNodes) {
            return self.index.egress.clone();
        }
        let mut names = self.index.everything.clone();
        names.extend(self.index.named.get(id).into_iter().flatten().cloned());
        names.extend(self.scheduler.nodes_of(id).iter().chain(self.scheduler.leaving(id)).cloned());
        if function.outside == Some(Carrier::Callers) {
            let callers = self.index.callers.get(id).into_iter().flatten();
            let nodes = callers.flat_map(|caller| self.index.hosting(caller));
            names.extend(nodes.filter(|name| self.is_scheduled(name)).cloned());
        }
        names
    }

    fn can_host_job(&self, name: &str, id: &FunctionId) -> bool {
        self.nodes
            .get(name)
            .is_some_and(|node| node.admission.placement.hosts(id) || node.admission.placement == Placement::Scheduled)
    }

    pub(super) fn is_scheduled(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| node.admission.placement == Placement::Scheduled)
    }

    fn outside_callees(&self, id: &FunctionId) -> Vec<FunctionId> {
        let callees = self.compiled.functions.get(id).into_iter().flat_map(|function| &function.callees);
        callees.filter(|callee| self.carrier(callee) == Some(Carrier::Callers)).cloned().collect()
    }

    /// Who connects to a function that is outside of the mesh.
    pub(super) fn carrier(&self, id: &FunctionId) -> Option<Carrier> {
        self.compiled.functions.get(id)?.outside
    }

    /// Whether egress nodes connect to it.
    fn is_carried(&self, id: &FunctionId) -> bool {
        self.carrier(id) == Some(Carrier::EgressNodes)
    }

    /// What egress nodes connect to.
    pub(super) fn carried(&self) -> Vec<FunctionId> {
        self.compiled.functions.keys().filter(|id| self.is_carried(id)).cloned().collect()
    }

    /// What the function makes each connected node want.
    fn brought(&self, id: &FunctionId) -> BTreeMap<Arc<str>, Vec<Subject>> {
        let exposed = self.index.exposed.contains(id);
        let gateways = self.index.gateways.iter().filter(|_| exposed);
        let hosting = self.index.hosting.get(id);
        let names: BTreeSet<_> = hosting.into_iter().flatten().chain(gateways).collect();
        let of = |name: &Arc<str>| {
            let session = self.nodes.get(name)?.session.as_ref()?;
            let hosts = hosting.is_some_and(|hosting| hosting.contains(name));
            Some((name.clone(), self.brought_to(name, hosts, id, &session.explicit)))
        };
        names.into_iter().filter_map(of).collect()
    }

    /// The subjects that a node with these subscriptions wants because of a function.
    pub(super) fn brought_to(
        &self,
        name: &str,
        hosts: bool,
        id: &FunctionId,
        explicit: &BTreeSet<Subject>,
    ) -> Vec<Subject> {
        let Some(function) = self.compiled.functions.get(id) else { return Vec::new() };
        let mut brought = function.brings(id, hosts, explicit);
        if brought.contains(&Subject::Slice(id.clone())) {
            brought.extend(function.delivered());
        }
        if hosts && explicit.contains(&Subject::Hosted) && self.is_scheduled(name) && !function.scaled.is_empty() {
            brought.push(Subject::Scale(id.clone()));
        }
        if hosts && explicit.contains(&Subject::Hosted) && self.is_scheduled(name) && !function.limits.is_empty() {
            brought.push(Subject::Quota(id.clone()));
        }
        brought
    }

    /// Tells the scheduler what a node offers now, if anything.
    pub(super) fn offer(&mut self, name: &Arc<str>) {
        let Some(node) = self.nodes.get(name) else { return };
        match node.capacity {
            Some(capacity) if node.present && node.admission.placement == Placement::Scheduled => {
                let state = NodeState {
                    locality: node.admission.locality.clone(),
                    capacity,
                    images: node.images.clone(),
                    cordoned: node.cordoned,
                    behind: node.behind,
                    sized: !node.limits.are_default(),
                };
                let moved = self.scheduler.set_node(name, state);
                self.moved(moved);
            }
            _ => drop(self.withdraw(name)),
        }
    }

    /// Has everything placed elsewhere that the scheduler placed on a node. Returns what that was.
    pub(super) fn withdraw(&mut self, name: &str) -> BTreeSet<FunctionId> {
        let moved = self.scheduler.remove_node(name);
        for id in &moved {
            self.forget_load(id, name);
        }
        self.moved(moved.clone());
        moved
    }

    /// Takes in what a node reports to offer.
    pub(crate) fn offers(
        &mut self,
        name: &str,
        number: u64,
        (capacity, images): (leno_wire::Capacity, BTreeSet<String>),
    ) {
        if self.session(name, number).is_none() {
            return;
        }
        let Some((name, _)) = self.nodes.get_key_value(name) else { return };
        let name = name.clone();
        if let Some(node) = self.nodes.get_mut(&name) {
            (node.claimed, node.images) = (Some(capacity), images);
            node.cap();
        }
        self.offer(&name);
        self.place_jobs();
    }

    /// A node that has connected has these resources from before. Functions that are on no node stay on it, if it has their slice of today: who names
    /// its version, a hash, has seen it. Otherwise any node could have everything by asking at the right moment.
    pub(super) fn adopt(&mut self, name: &Arc<str>, held: &[(Subject, Version)]) {
        if !self.is_scheduled(name) {
            return;
        }
        let contents = &self.compiled.contents;
        let current = |subject, version| contents.get(subject).is_some_and(|content| content.version == version);
        let slices = held.iter().filter_map(|(subject, version)| match subject {
            Subject::Slice(id) if current(subject, *version) => Some(id.clone()),
            _ => None,
        });
        let slices: Vec<_> = slices.collect();
        let adopted: Vec<_> = slices.into_iter().filter(|id| self.scheduler.adopt(id, name)).collect();
        self.moved(adopted);
    }

    /// Ends the wait for nodes of an earlier process to reconnect.
    pub(crate) fn stop_awaiting(&mut self) {
        self.awaited.clear();
        if mem::take(&mut self.awaiting) {
            let waited = self.scheduler.stop_awaiting();
            // Endpoints that nobody has confirmed go now.
            let all: Vec<_> = self.compiled.functions.keys().cloned().collect();
            self.endpoints_changed(all.iter());
            self.abandoned.extend(waited.iter().cloned());
            self.moved(waited);
        }
        self.stop_awaiting_jobs();
    }

    /// The endpoints of a function as node `name` sees them. The node itself is left out, because it knows its own instances sooner and better.
    pub(super) fn endpoints(&self, name: &str, id: &FunctionId) -> Vec<Endpoint> {
        // Nobody can call a job, and what a caller's own node connects to is on no other.
        let callable = |function: &Function| function.job.is_none() && function.outside != Some(Carrier::Callers);
        let callable = self.compiled.functions.get(id).is_some_and(callable);
        let carried = self.is_carried(id);
        let others = self.index.hosting(id).filter(|other| callable && ***other != *name);
        let endpoint = |other: &Arc<str>| {
            let node = self.nodes.get(other).filter(|node| node.present && self.takes_requests(other, id))?;
            // A node that connects to the outside is ready without an instance.
            let ready = if carried { 1 } else { self.ready_on(other, id, node) };
            let locality = node.admission.locality.clone();
            Some(Endpoint { node: other.to_string(), address: node.inbound?, ready, locality })
        };
        others.filter_map(endpoint).collect()
    }

    /// The ready instances of a function on a node, no more than the node may have.
    fn ready_on(&self, name: &Arc<str>, id: &FunctionId, node: &super::Node) -> u32 {
        let bounds = self.scaled.get(id).filter(|_| self.is_scheduled(name)).map(|scaled| scaled.grants.of(name));
        let most =
            bounds.map(|bounds| bounds.unwrap_or_default().iter().map(|of| of.most).fold(0, u32::saturating_add));
        super::ready(node.instances.get(id)).min(most.unwrap_or(u32::MAX))
    }

    /// A node that the scheduler has chosen gets requests once it has the slice. One that the function is leaving gets them until then. So it is with
    /// nodes that connect to the outside, and those of them that are cordoned.
    fn takes_requests(&self, name: &Arc<str>, id: &FunctionId) -> bool {
        if self.is_carried(id) {
            let cordoned = |name: &str| self.nodes.get(name).is_some_and(|node| node.cordoned);
            let mut others = self.index.hosting(id);
            let mut elsewhere = || others.any(|other| !cordoned(other) && self.has_in_force(other, id));
            return self.has_in_force(name, id) && (!cordoned(name) || !elsewhere());
        }
        if !self.is_scheduled(name) {
            return true;
        }
        if self.scheduler.is_on(id, name) { self.has_in_force(name, id) } else { !self.serves_elsewhere(id) }
    }

    fn has_in_force(&self, name: &str, id: &FunctionId) -> bool {
        self.nodes.get(name).is_some_and(|node| node.present && node.in_force.contains_key(&Subject::Slice(id.clone())))
    }

    /// Whether a node that the function is not leaving has it in force.
    pub(super) fn serves_elsewhere(&self, id: &FunctionId) -> bool {
        self.scheduler.nodes_of(id).iter().any(|name| self.has_in_force(name, id))
    }

    /// A node has put the slice of a function into force. Returns whether the function's instances may be divided anew.
    pub(super) fn slice_in_force(&mut self, id: &FunctionId, name: &str) -> bool {
        let scheduled = self.is_scheduled(name);
        self.abandoned.remove(id);
        if scheduled || self.is_carried(id) {
            self.endpoints_changed([id]);
        }
        scheduled && !self.is_carried(id)
    }
}
