//! The number of instances of each function on each node.
//!
//! Nodes report the load of their functions. The control plane sums it up, the autoscaler decides
//! how many instances there should be in the whole mesh, and the control plane divides them between
//! the function's nodes. A node scales by itself within its bounds, so no burst waits for the
//! control plane.

use super::effect::Effect;
use super::hosting::Hosting;
use super::load::{FunctionLoad, MAX_INSTANCES, RevisionLoad, plausible};
use super::nodes::Nodes;
use super::quotas::{Loads, Quotas};
use crate::bounds::{self, Claim, Delivery, Share};
use crate::definitions::Function;
use crate::scheduler::Scheduler;
use leno_model::FunctionId;
use leno_wire::{Bounds, Load, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Loads, bounds and quotas of functions.
#[derive(Default)]
pub(super) struct Scaling {
    loads: Loads,
    quotas: Quotas,
    /// Functions that have any load.
    active: BTreeSet<FunctionId>,
}

impl Scaling {
    /// Stores how a function is defined; `None`: it was removed.
    pub(super) fn define(&mut self, id: &FunctionId, function: Option<&Function>, now: Duration) {
        self.quotas.define(id, function, &mut self.loads);
        match function.map(|function| &function.scaled[..]).unwrap_or_default() {
            [] => {
                self.loads.remove(id);
                self.active.remove(id);
            }
            revisions => self.loads.entry(id.clone()).or_default().configure(revisions, now),
        }
    }

    /// Adds a node's report on the load of its functions. Returns those functions.
    pub(super) fn report(&mut self, name: &Arc<str>, loads: Vec<Load>, nodes: &mut Nodes) -> BTreeSet<FunctionId> {
        let capacity = nodes.all.get(name).and_then(|node| node.capacity);
        let most = capacity.map_or(MAX_INSTANCES, |capacity| capacity.instances);
        let mut concerned = BTreeSet::new();
        for load in loads.into_iter().map(|load| plausible(load, most)) {
            if !nodes.may_report(name, &load.function) {
                continue;
            }
            let id = load.function.clone();
            let revisions = self.loads.get_mut(&id).map(|of| &mut of.revisions);
            if let Some(revision) = revisions.and_then(|revisions| revisions.get_mut(&load.revision)) {
                revision.report(name, load);
                concerned.insert(id);
            }
        }
        if !nodes.is_scheduled(name) {
            concerned.clear();
        }
        self.active.extend(concerned.iter().cloned());
        concerned
    }

    /// The functions with any load.
    pub(super) fn active(&self) -> Vec<FunctionId> {
        self.active.iter().cloned().collect()
    }

    /// Whether any function has load.
    pub(super) fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Ends the activity of a function without load.
    pub(super) fn rest(&mut self, id: &FunctionId) {
        if self.loads.get(id).is_none_or(FunctionLoad::rests) {
            self.active.remove(id);
        }
    }

    /// Decides how many instances a function should have, and places them. With `is_tick`, no
    /// report has arrived: nothing follows unless time alone demands another number.
    pub(super) fn decide(
        &mut self,
        id: &FunctionId,
        now: Duration,
        is_tick: bool,
        scheduler: &mut Scheduler,
    ) -> Vec<Effect> {
        let Some(load) = self.loads.get_mut(id) else { return Vec::new() };
        let desired = load.decide(now);
        if is_tick && scheduler.is_settled(id, desired) && !load.is_short() {
            return Vec::new();
        }
        let mut moved = self.reserve(id, scheduler);
        if scheduler.set_desired(id, desired) {
            moved.insert(id.clone());
        }
        let then = [Effect::Rebalance(id.clone()), Effect::LeaveIdleNodes(id.clone())];
        Effect::moved(moved).into_iter().chain(then).collect()
    }

    /// Reserves capacity for the instances of a function on its nodes. Returns functions that have
    /// moved because capacity became free.
    fn reserve(&self, id: &FunctionId, scheduler: &mut Scheduler) -> BTreeSet<FunctionId> {
        let Some(load) = self.loads.get(id) else { return BTreeSet::new() };
        let names = scheduler.nodes_of(id).iter().chain(scheduler.leaving(id));
        let reserved: Vec<_> = names.map(|name| (name.clone(), load.reserved_on(name))).collect();
        reserved.into_iter().flat_map(|(name, instances)| scheduler.reserve(id, &name, instances)).collect()
    }

    /// Divides the instances of a function, and of those whose share depends on it.
    pub(super) fn rebalance(&mut self, id: &FunctionId, now: Duration) -> Vec<Effect> {
        let changed = self.quotas.share_out(id, &mut self.loads, now);
        let others = changed.into_iter().filter(|other| other != id).map(Effect::DivideInstances);
        others.chain([Effect::DivideInstances(id.clone()), Effect::DivideWaiting(id.clone())]).collect()
    }

    /// Divides the instances of functions that wait until this one has fewer.
    pub(super) fn divide_waiting(&self, id: &FunctionId) -> Vec<Effect> {
        self.quotas.waiting_beside(id).cloned().map(Effect::DivideInstances).collect()
    }

    /// Divides the instances of a function between its nodes, and announces changed bounds.
    pub(super) fn divide(&mut self, id: &FunctionId, hosting: &mut Hosting, nodes: &Nodes) -> Vec<Effect> {
        let allowance = self.quotas.allowance(id, &mut self.loads);
        let Some(load) = self.loads.get_mut(id) else { return Vec::new() };
        let (targets, maxima) = targets(load, allowance, id, hosting, nodes);
        let changed = !load.grants.set(&targets, &maxima).is_empty();
        self.quotas.count_granted(id, &mut self.loads);
        let announced = changed.then(|| Effect::Announce(Subject::Scale(id.clone())));
        // Capacity became free, so other functions may have found a node. None of them is this one.
        let moved = Effect::moved(self.reserve(id, &mut hosting.scheduler));
        announced.into_iter().chain(moved).collect()
    }

    /// The bounds of a function on a node.
    pub(super) fn bounds(&self, id: &FunctionId, name: &str) -> Option<&[Bounds]> {
        self.loads.get(id)?.grants.of(name)
    }

    /// The most instances of a function on a node; `None`: the function is not scaled.
    pub(super) fn most_on(&self, id: &FunctionId, name: &str) -> Option<u32> {
        let bounds = self.loads.get(id)?.grants.of(name).unwrap_or_default();
        Some(bounds.iter().map(|of| of.most).fold(0, u32::saturating_add))
    }

    /// Whether the function has left a node, which is to have no bounds of it.
    pub(super) fn has_left(&self, id: &FunctionId, name: &str) -> bool {
        self.bounds(id, name).is_some_and(<[Bounds]>::is_empty)
    }

    /// Whether a lost stream leaves it unknown which bounds of a function a node has applied.
    pub(super) fn are_uncertain(&self, id: &FunctionId, name: &str) -> bool {
        self.loads.get(id).is_some_and(|load| load.grants.are_uncertain(name))
    }

    /// Bounds were sent to a node.
    pub(super) fn sent(&mut self, id: &FunctionId, name: &str, delivery: Delivery) {
        if let Some(load) = self.loads.get_mut(id) {
            load.grants.sent(name, delivery);
        }
    }

    /// A node has applied bounds, or rejected them.
    pub(super) fn answered(&mut self, id: &FunctionId, name: &str, delivery: Delivery, accepted: bool) {
        match self.loads.get_mut(id) {
            Some(load) if accepted => load.grants.in_force(name, delivery),
            Some(load) => load.grants.rejected(name, delivery),
            None => {}
        }
    }

    /// A node has no bounds of a function any more.
    pub(super) fn gone(&mut self, id: &FunctionId, name: &str, hosting: &Hosting) -> Option<Effect> {
        let load = self.loads.get_mut(id).filter(|_| !hosting.is_host(id, name))?;
        load.grants.forget(name);
        Some(Effect::Rebalance(id.clone()))
    }

    /// Forgets a node. Without this, its reported instances of functions that other nodes host
    /// would count against their maxima forever.
    pub(super) fn forget_node(&mut self, name: &str) -> Vec<Effect> {
        let ids: BTreeSet<_> = self.loads.keys().cloned().collect();
        let forgotten =
            ids.into_iter().filter(|id| self.loads.get_mut(id).is_some_and(|load| load.grants.forget(name)));
        forgotten.map(Effect::Rebalance).collect()
    }

    /// Takes a function from nodes that it is leaving, once they get no requests and have no
    /// instance.
    pub(super) fn leave_idle_nodes(&mut self, id: &FunctionId, hosting: &mut Hosting, nodes: &Nodes) -> Option<Effect> {
        if !hosting.is_handed_over(id, nodes) {
            return None;
        }
        let idle = |name: &&Arc<str>| {
            let may_start = self.loads.get(id).is_some_and(|load| load.grants.may_have_instances(name));
            let has = nodes.all.get(&***name).is_some_and(|node| node.instances.contains_key(id));
            !may_start && !has
        };
        let left: Vec<_> = hosting.scheduler.leaving(id).filter(idle).cloned().collect();
        for name in &left {
            hosting.scheduler.left(id, name);
            self.forget_load(id, name);
        }
        (!left.is_empty()).then(|| Effect::Moved(vec![id.clone()]))
    }

    /// A node has stopped hosting a function.
    pub(super) fn unhosted(&mut self, id: &FunctionId, name: &str) {
        if let Some(load) = self.loads.get_mut(id) {
            load.grants.forget(name);
            load.forget_load(name);
        }
    }

    pub(super) fn forget_load(&mut self, id: &FunctionId, name: &str) {
        if let Some(load) = self.loads.get_mut(id) {
            load.forget_load(name);
        }
    }

    /// Stores the bounds that a node has applied before it connected.
    pub(super) fn restore(&mut self, name: &Arc<str>, bounds: &[(FunctionId, Vec<Bounds>)]) {
        for (id, bounds) in bounds {
            if let Some(load) = self.loads.get_mut(id) {
                load.grants.recall(name, bounds.clone());
                self.quotas.count_granted(id, &mut self.loads);
            }
        }
    }
}

/// The bounds that the nodes of a function should have, and the maximum of each revision.
fn targets(
    load: &FunctionLoad,
    allowance: Option<u32>,
    id: &FunctionId,
    hosting: &Hosting,
    nodes: &Nodes,
) -> (BTreeMap<Arc<str>, Vec<Bounds>>, BTreeMap<u32, u32>) {
    let scheduler = &hosting.scheduler;
    let names = scheduler.nodes_of(id);
    let mut targets: BTreeMap<Arc<str>, Vec<Bounds>> = names.iter().map(|name| (name.clone(), vec![])).collect();
    // Nodes that the function is leaving keep their bounds until they get no requests.
    let staying = scheduler.leaving(id).filter(|_| !hosting.is_handed_over(id, nodes));
    let mut staying: BTreeMap<_, _> =
        staying.map(|name| (name.clone(), load.grants.of(name).unwrap_or_default().to_vec())).collect();
    let mut maxima: BTreeMap<u32, u32> =
        load.revisions.iter().map(|(number, load)| (*number, load.settings.scale.max)).collect();
    if let Some(allowance) = allowance {
        let claims: Vec<Claim> = load.revisions.values().map(RevisionLoad::claim).collect();
        maxima = maxima.into_keys().zip(bounds::apportion(allowance, &claims)).collect();
    }
    for (number, load) in &load.revisions {
        let (scale, mut max) = (load.settings.scale, maxima[number]);
        // A node that came back has said what it has.
        for bounds in staying.values_mut().flatten().filter(|bounds| bounds.revision == *number) {
            bounds.most = bounds.most.min(max);
            max -= bounds.most;
        }
        let share = |name: &Arc<str>| Share { holds: scheduler.holds(id, name), wants: load.wants(name) };
        let shares: Vec<_> = names.iter().map(share).collect();
        for (name, (least, most)) in names.iter().zip(bounds::divide(scale.min, max, &shares)) {
            if let Some(target) = targets.get_mut(name) {
                target.push(Bounds { revision: *number, least, most });
            }
        }
    }
    targets.extend(staying);
    (targets, maxima)
}
