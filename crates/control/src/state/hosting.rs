//! Hosting: which nodes host each function.

use super::effect::Effect;
use super::jobs::Jobs;
use super::node::Node;
use super::nodes::{Names, Nodes};
use super::pods::Pods;
use crate::admission::Cordon;
use crate::definitions::{CompiledDefinitions, EgressPolicy, Function};
use crate::scheduler::{NodeState, Scheduler};
use leno_model::FunctionId;
use leno_wire::{Placement, Subject, Version};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

/// Functions and jobs by node. Indexed, so that an event does not touch all nodes.
#[derive(Default)]
pub(super) struct Hosting {
    hosting: HashMap<FunctionId, Names>,
    /// Nodes with [`Placement::Everything`].
    everything: Names,
    /// Nodes whose [`Placement::Only`] names a function.
    named: HashMap<FunctionId, Names>,
    /// Nodes with the egress role.
    egress: Names,
    pub exposed: BTreeSet<FunctionId>,
    /// Functions by callees.
    callers: HashMap<FunctionId, BTreeSet<FunctionId>>,
    pub scheduler: Scheduler,
    pub jobs: Jobs,
    pub pods: Pods,
    /// Definitions are older than this process, so nodes that have not reconnected yet may have
    /// functions.
    pub awaiting: bool,
    /// Nodes of an earlier process that have not come back yet. When all of them have, the wait
    /// ends.
    pub awaited: BTreeSet<Arc<str>>,
    /// Functions whose nodes stay away. Callers keep their endpoints until another node has applied
    /// the configuration, because the nodes may still serve the function.
    pub abandoned: BTreeSet<FunctionId>,
}

impl Hosting {
    pub(super) fn new(awaiting: bool) -> Self {
        Self { awaiting, ..Self::default() }
    }

    /// Replaces the placement of a node. Returns the functions that may move.
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
        if [before, after].contains(&&Placement::Pods) {
            moved.extend(self.pods.functions_on(name).into_iter().cloned());
        }
        moved.into_iter().collect()
    }

    pub(super) fn set_egress(&mut self, name: &Arc<str>, egress: bool) {
        if egress {
            self.egress.insert(name.clone())
        } else {
            self.egress.remove(name)
        };
    }

    /// Stores how a function is defined; `None`: it was removed.
    pub(super) fn define(&mut self, id: &FunctionId, function: Option<&Function>) {
        let Some(function) = function else {
            self.abandoned.remove(id);
            self.scheduler.remove_function(id);
            return;
        };
        if function.exposed {
            self.exposed.insert(id.clone());
        }
        for callee in &function.callees {
            self.callers.entry(callee.clone()).or_default().insert(id.clone());
        }
        if function.egress.is_some() || function.job.is_some() || function.has_pods {
            self.scheduler.remove_function(id);
        } else {
            self.scheduler.set_function(id, function.demand.clone(), self.awaiting);
        }
    }

    /// Forgets the definition of a function that is about to change or go.
    pub(super) fn forget_definition(&mut self, id: &FunctionId, compiled: &CompiledDefinitions) {
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

    /// The nodes that host a function.
    pub(super) fn hosts(&self, id: &FunctionId) -> impl Iterator<Item = &Arc<str>> {
        self.hosting.get(id).into_iter().flatten()
    }

    pub(super) fn is_host(&self, id: &FunctionId, name: &str) -> bool {
        self.hosting.get(id).is_some_and(|hosting| hosting.contains(name))
    }

    /// The nodes that host a function and share its rate limits.
    pub(super) fn limited_hosts(&self, id: &FunctionId, nodes: &Nodes) -> Vec<Arc<str>> {
        self.hosts(id).filter(|name| nodes.shares_limits(name)).cloned().collect()
    }

    /// Recomputes which nodes host a function.
    pub(super) fn update(&mut self, id: &FunctionId, compiled: &CompiledDefinitions, nodes: &mut Nodes) -> Vec<Effect> {
        let now = self.compute_hosts(id, compiled, nodes);
        let before = self.hosting.remove(id).unwrap_or_default();
        let mut effects = Vec::new();
        for name in before.difference(&now) {
            if let Some(node) = nodes.all.get_mut(name) {
                node.hosted.remove(id);
            }
            effects.push(Effect::Unhosted(id.clone(), name.clone()));
        }
        let new: Vec<_> = now.difference(&before).cloned().collect();
        for name in &new {
            if let Some(node) = nodes.all.get_mut(name) {
                node.hosted.insert(id.clone());
            }
        }
        let fewer = !before.is_subset(&now);
        if !now.is_empty() {
            self.hosting.insert(id.clone(), now);
        }
        // Callers get a new node as an endpoint only once it takes requests.
        if fewer || new.iter().any(|name| self.takes_requests(name, id, compiled, nodes)) {
            effects.push(Effect::endpoints(id));
        }
        effects.push(Effect::DivideLimits(id.clone()));
        effects
    }

    fn compute_hosts(&self, id: &FunctionId, compiled: &CompiledDefinitions, nodes: &Nodes) -> Names {
        let Some(function) = compiled.functions.get(id) else { return Names::new() };
        if function.job.is_some() {
            let can_run = |name: &Arc<str>| nodes.all.get(name).is_some_and(|node| node.may_run(id));
            return self.jobs.node_of(id).into_iter().filter(can_run).collect();
        }
        if function.egress == Some(EgressPolicy::EgressNodes) {
            return self.egress.clone();
        }
        if function.has_pods {
            return self.pods.nodes_of(id).filter_map(|name| self.with_pods(name, nodes)).collect();
        }
        let mut names = self.everything.clone();
        names.extend(self.named.get(id).into_iter().flatten().cloned());
        names.extend(self.scheduler.nodes_of(id).iter().chain(self.scheduler.leaving(id)).cloned());
        if function.egress == Some(EgressPolicy::Callers) {
            let callers = self.callers.get(id).into_iter().flatten();
            let hosts = callers.flat_map(|caller| self.hosts(caller));
            names.extend(hosts.filter(|name| nodes.is_scheduled(name)).cloned());
            // A route leads to it, so gateways call it too.
            let gateways = nodes.all.iter().filter(|(_, node)| function.exposed && node.admission.gateway);
            names.extend(gateways.map(|(name, _)| name).filter(|name| nodes.is_scheduled(name)).cloned());
        }
        names
    }

    /// The node, if it hosts the functions of its pods.
    fn with_pods(&self, name: &str, nodes: &Nodes) -> Option<Arc<str>> {
        nodes.all.get_key_value(name).filter(|(_, node)| node.has_pods()).map(|(name, _)| name.clone())
    }

    /// Recomputes whether one node hosts a function of pods. The cost does not depend on the other
    /// nodes.
    pub(super) fn update_on(
        &mut self,
        (id, name): (&FunctionId, &str),
        compiled: &CompiledDefinitions,
        nodes: &mut Nodes,
    ) -> Vec<Effect> {
        let has_pods = compiled.functions.get(id).is_some_and(|function| function.has_pods);
        let is_host = self.is_host(id, name);
        let Some(name) = self.with_pods(name, nodes).filter(|_| has_pods) else { return Vec::new() };
        if is_host == self.pods.is_on(id, &name) {
            return Vec::new();
        }
        let Some(node) = nodes.all.get_mut(&name) else { return Vec::new() };
        let mut effects = vec![Effect::endpoints(id), Effect::DivideLimits(id.clone())];
        if is_host {
            node.hosted.remove(id);
            remove(&mut self.hosting, id, &name);
            effects.push(Effect::Unhosted(id.clone(), name));
        } else {
            node.hosted.insert(id.clone());
            self.hosting.entry(id.clone()).or_default().insert(name);
        }
        effects
    }

    /// The subjects that a connected node wants because of a function.
    pub(super) fn wanted_on(
        &self,
        (id, name): (&FunctionId, &str),
        compiled: &CompiledDefinitions,
        nodes: &Nodes,
    ) -> BTreeMap<Arc<str>, Vec<Subject>> {
        let subjects = |(name, node): (&Arc<str>, &Node)| {
            let session = node.session.as_ref()?;
            Some((name.clone(), nodes.subjects_of(name, self.is_host(id, name), (id, compiled), &session.explicit)))
        };
        nodes.all.get_key_value(name).and_then(subjects).into_iter().collect()
    }

    /// The subjects that each connected node wants because of a function.
    pub(super) fn wanted_for(
        &self,
        id: &FunctionId,
        compiled: &CompiledDefinitions,
        nodes: &Nodes,
    ) -> BTreeMap<Arc<str>, Vec<Subject>> {
        let exposed = self.exposed.contains(id);
        let gateways = nodes.gateways.iter().filter(|_| exposed);
        let names: BTreeSet<_> = self.hosts(id).chain(gateways).collect();
        names.into_iter().flat_map(|name| self.wanted_on((id, name), compiled, nodes)).collect()
    }

    /// Passes the present capacity of a node to the scheduler.
    pub(super) fn offer(&mut self, name: &Arc<str>, nodes: &Nodes) -> Vec<Effect> {
        let Some(node) = nodes.all.get(name) else { return Vec::new() };
        match node.capacity {
            Some(capacity) if node.present && node.is_scheduled() => {
                let state = NodeState {
                    locality: node.admission.locality.clone(),
                    capacity,
                    images: node.images.clone(),
                    drained: node.cordon == Cordon::Drained,
                    unschedulable: node.behind || node.cordon == Cordon::Cordoned,
                    sized: !node.limits.are_default(),
                    without_jails: node.without_jails,
                };
                Effect::moved(self.scheduler.set_node(name, state)).into_iter().collect()
            }
            _ => self.withdraw(name).1,
        }
    }

    /// Takes all functions from a node that the scheduler placed there. Returns them too.
    pub(super) fn withdraw(&mut self, name: &Arc<str>) -> (BTreeSet<FunctionId>, Vec<Effect>) {
        let moved = self.scheduler.remove_node(name);
        let forgotten = moved.iter().map(|id| Effect::ForgetLoad(id.clone(), name.clone()));
        let effects = forgotten.chain(Effect::moved(moved.clone())).collect();
        (moved, effects)
    }

    /// Keeps functions that are on no node on a node that has connected and has their
    /// configuration. It must have the version of today: a node that names the version, a hash, has
    /// seen it. Otherwise any node could get any function by claiming to have it.
    ///
    /// Functions that were placed on another node in the meantime leave this node only when the other
    /// one serves them and no node sends requests here any more.
    pub(super) fn adopt(
        &mut self,
        name: &Arc<str>,
        held: &[(Subject, Version)],
        compiled: &CompiledDefinitions,
        nodes: &Nodes,
    ) -> Vec<Effect> {
        if !nodes.is_scheduled(name) {
            return Vec::new();
        }
        let current = |subject, version| compiled.contents.get(subject).is_some_and(|it| it.version == version);
        let held = held.iter().filter_map(|(subject, version)| match subject {
            Subject::FunctionConfig(id) if current(subject, *version) => Some(id.clone()),
            _ => None,
        });
        let was_host = |id: &FunctionId| {
            let absence = nodes.all.get(name).and_then(|node| node.absence.as_ref());
            self.abandoned.contains(id) || absence.is_some_and(|absence| absence.hosted.contains(id))
        };
        let mut adopted = Vec::new();
        for id in held {
            let is_called = was_host(&id) && !self.is_handed_over(&id, nodes);
            if self.scheduler.adopt(&id, name) || is_called && self.scheduler.leave_later(&id, name) {
                adopted.push(id);
            }
        }
        Effect::moved(adopted).into_iter().collect()
    }

    /// Ends the wait for nodes of an earlier process to reconnect, as far as functions are
    /// concerned. Jobs may wait longer ([`Jobs::stop_awaiting`]).
    pub(super) fn stop_awaiting(&mut self, compiled: &CompiledDefinitions) -> Vec<Effect> {
        self.awaited.clear();
        let mut effects = Vec::new();
        if mem::take(&mut self.awaiting) {
            let waited = self.scheduler.stop_awaiting();
            // Endpoints that no node has confirmed go now.
            effects.extend(compiled.functions.keys().map(Effect::endpoints));
            self.abandoned.extend(waited.iter().cloned());
            effects.extend(Effect::moved(waited));
        }
        effects.push(Effect::PlaceJobs);
        effects
    }

    /// Assigns a node to each job that needs one.
    pub(super) fn place_jobs(&mut self, compiled: &CompiledDefinitions, nodes: &Nodes) -> Vec<Effect> {
        let placed = self.jobs.place(compiled, nodes, &mut self.scheduler);
        placed.into_iter().map(|id| Effect::Rehost(vec![id])).collect()
    }

    /// Whether a node gets requests of a function. A node that the scheduler has chosen gets them
    /// once it has the configuration; one that the function is leaving gets them until then. The
    /// same holds for egress nodes, and for those of them that are drained.
    pub(super) fn takes_requests(
        &self,
        name: &str,
        id: &FunctionId,
        compiled: &CompiledDefinitions,
        nodes: &Nodes,
    ) -> bool {
        if compiled.is_on_egress_nodes(id) {
            let drained = |name: &str| nodes.all.get(name).is_some_and(|node| node.cordon == Cordon::Drained);
            let mut others = self.hosts(id);
            let mut another = || others.any(|other| !drained(other) && nodes.has_in_force(other, id));
            return nodes.has_in_force(name, id) && (!drained(name) || !another());
        }
        if !nodes.is_scheduled(name) {
            return true;
        }
        if self.scheduler.is_on(id, name) {
            self.serves(name, id, nodes)
        } else {
            nodes.has_in_force(name, id) && !self.is_served(id, nodes)
        }
    }

    /// Whether a node that the function is not leaving serves it.
    fn is_served(&self, id: &FunctionId, nodes: &Nodes) -> bool {
        self.scheduler.nodes_of(id).iter().any(|name| self.serves(name, id, nodes))
    }

    /// Whether a node of the function has applied its configuration. While the function is leaving
    /// another node, its new node needs a certificate too: no call could reach it without.
    fn serves(&self, name: &str, id: &FunctionId, nodes: &Nodes) -> bool {
        let is_certified = || nodes.all.get(name).is_some_and(|node| node.certified.contains(id));
        nodes.has_in_force(name, id) && (!self.scheduler.is_moving(id) || is_certified())
    }

    /// Whether no node sends requests of a function to the nodes that it is leaving any more:
    /// another one serves it, and all connected nodes have its present endpoints. Until then, the
    /// function keeps its instances there. While nodes of an earlier process are awaited, others
    /// may keep endpoints of before.
    pub(super) fn is_handed_over(&self, id: &FunctionId, nodes: &Nodes) -> bool {
        !self.awaiting && self.is_served(id, nodes) && nodes.have_answered(&Subject::Endpoints(id.clone()))
    }

    /// What follows for functions that are leaving a node, when other nodes may have come to know
    /// that.
    pub(super) fn leave<'a>(&self, ids: impl IntoIterator<Item = &'a FunctionId>) -> Vec<Effect> {
        let leaving = ids.into_iter().filter(|id| self.scheduler.is_moving(id));
        leaving.flat_map(|id| [Effect::Rebalance(id.clone()), Effect::LeaveIdleNodes(id.clone())]).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_nodes_ends_once() {
        let (mut hosting, compiled) = (Hosting::new(true), CompiledDefinitions::default());
        hosting.awaited.insert("one".into());
        assert_eq!(hosting.stop_awaiting(&compiled), [Effect::PlaceJobs]);
        assert!(!hosting.awaiting && hosting.awaited.is_empty());
    }

    #[test]
    fn a_placement_moves_only_the_functions_that_it_names() {
        let (id, other): (FunctionId, FunctionId) = ("a/one".parse().unwrap(), "a/two".parse().unwrap());
        let (mut hosting, name) = (Hosting::default(), "one".into());
        let [none, one] = [BTreeSet::new(), BTreeSet::from([id.clone()])].map(Placement::Only);
        let all = || [id.clone(), other.clone()].into_iter();
        assert_eq!(hosting.place(&name, &none, &one, all), std::slice::from_ref(&id));
        assert_eq!(hosting.place(&name, &one, &one, all), []);
        assert_eq!(hosting.place(&name, &one, &Placement::Everything, all), [id.clone(), other.clone()]);
        assert_eq!(hosting.place(&name, &Placement::Everything, &none, all), [id.clone(), other.clone()]);
    }
}
