//! How many instances of a function each node may have, and must.
//!
//! Nodes report the load of their functions. The control plane sums it up, lets the autoscaler decide how many instances there should be in the whole
//! mesh, and divides them between the function's nodes. A node scales by itself within its bounds, so no burst waits for the control plane.

use super::State;
use crate::bounds::{self, Claim, Delivery, Grants, Share};
use crate::definitions::ScaledRevision;
use leno_autoscaler::Autoscaler;
use leno_config::FunctionId;
use leno_config::slice::Metric;
use leno_wire::{Bounds, Load, Observation, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How a function is scaled over nodes.
#[derive(Default)]
pub(super) struct Scaled {
    pub grants: Grants,
    /// Its share of the instances of its namespace; `None`: its own maxima are all that bounds it.
    pub share: Option<u32>,
    /// Instances that nodes may have, as its namespace counts them.
    pub granted: u32,
    revisions: BTreeMap<u32, MeshLoad>,
}

impl Scaled {
    /// What the function would have of its namespace's instances.
    pub(super) fn claim(&self) -> Claim {
        self.revisions.values().map(MeshLoad::claim).fold(Claim::default(), |one, other| Claim {
            least: one.least.saturating_add(other.least),
            has: one.has.saturating_add(other.has),
            wants: one.wants.saturating_add(other.wants),
            most: one.most.saturating_add(other.most),
        })
    }

    /// Instances of its revisions that nodes may have. Those of revisions that were replaced are about to end.
    pub(super) fn may_have(&self) -> u32 {
        self.revisions.keys().map(|revision| self.grants.total(*revision)).fold(0, u32::saturating_add)
    }

    /// Whether it could use more than its share.
    pub(super) fn is_short(&self) -> bool {
        let Some(share) = self.share else { return false };
        let Claim { wants, most, .. } = self.claim();
        wants > share && most > share
    }
}

/// The most that a report of a node counts: instances, where the node does not say how many it offers; requests in the node's buffer; requests that its
/// instances handle; and seconds of requests since the last report.
const MAX_INSTANCES: u32 = 10_000;
const MAX_WAITING: u32 = 16_384;
const MAX_IN_FLIGHT: u32 = 1_000_000;
const MAX_SECONDS: f64 = 1e7;

/// A report as far as a node with so many instances can have such a load.
fn plausible(mut load: Load, instances: u32) -> Load {
    load.starting = load.starting.min(instances);
    load.seen.ready = load.seen.ready.min(instances);
    load.seen.waiting = load.seen.waiting.min(MAX_WAITING);
    load.seen.in_flight = load.seen.in_flight.min(MAX_IN_FLIGHT);
    load
}

/// The load of one revision in the whole mesh.
struct MeshLoad {
    settings: ScaledRevision,
    autoscaler: Autoscaler,
    /// The last report of each node.
    nodes: BTreeMap<Arc<str>, Load>,
    request_seconds: f64,
    requests: u64,
}

impl MeshLoad {
    fn new(settings: ScaledRevision, now: Duration) -> Self {
        let autoscaler = Autoscaler::new(settings.scale, settings.concurrency, now);
        Self { settings, autoscaler, nodes: BTreeMap::new(), request_seconds: 0.0, requests: 0 }
    }

    /// Takes in a node's report. Its first totals are only the baseline: what was before them, nobody knows.
    fn report(&mut self, name: &Arc<str>, load: Load) {
        if let Some(before) = self.nodes.get(name) {
            let again =
                load.seen.requests < before.seen.requests || load.seen.request_seconds < before.seen.request_seconds;
            let before = if again { Observation::default() } else { before.seen };
            let seconds = load.seen.request_seconds - before.request_seconds;
            self.request_seconds += seconds.clamp(0.0, MAX_SECONDS);
            let requests = load.seen.requests.saturating_sub(before.requests);
            self.requests = self.requests.saturating_add(requests);
        }
        self.nodes.insert(name.clone(), load);
    }

    fn decide(&mut self, now: Duration) -> u32 {
        let sum = |of: fn(&Load) -> u32| self.nodes.values().map(of).fold(0, u32::saturating_add);
        let seen = Observation {
            ready: sum(|load| load.seen.ready),
            in_flight: sum(|load| load.seen.in_flight),
            waiting: sum(|load| load.seen.waiting),
            request_seconds: self.request_seconds,
            requests: self.requests,
        };
        self.autoscaler.decide(now, &seen).desired
    }

    fn instances_on(&self, name: &str) -> u32 {
        self.nodes.get(name).map_or(0, |load| load.seen.ready.saturating_add(load.starting))
    }

    /// Instances that a node has, or that its requests ask for right now.
    fn wants(&self, name: &str) -> u32 {
        let Some(load) = self.nodes.get(name) else { return 0 };
        let present = f64::from(load.seen.in_flight) + f64::from(load.seen.waiting);
        let one = match (self.settings.concurrency, self.settings.scale.metric) {
            (0, Metric::Concurrency) => self.settings.scale.per_instance.max(1.0),
            (0, Metric::Rps) => f64::INFINITY,
            (limit, _) => f64::from(limit),
        };
        let asked = if load.seen.waiting == 0 { 0 } else { ((present / one).ceil() as u32).max(1) };
        self.instances_on(name).max(asked)
    }

    /// What the revision would have of its function's instances.
    fn claim(&self) -> Claim {
        let sum = |of: &dyn Fn(&str) -> u32| self.nodes.keys().map(|name| of(name)).fold(0, u32::saturating_add);
        Claim {
            least: self.settings.scale.min,
            has: sum(&|name| self.instances_on(name)),
            wants: sum(&|name| self.wants(name)),
            most: self.settings.scale.max,
        }
    }

    fn rests(&self) -> bool {
        self.autoscaler.rests() && self.nodes.values().all(|load| load.seen.in_flight == 0 && load.seen.waiting == 0)
    }
}

impl State {
    /// Takes in the settings of a function that was defined, or forgets them.
    pub(super) fn define_scale(&mut self, id: &FunctionId) {
        self.define_quota(id);
        let settings = self.compiled.functions.get(id).map(|function| function.scaled.clone()).unwrap_or_default();
        if settings.is_empty() {
            self.scaled.remove(id);
            self.active.remove(id);
            return;
        }
        let now = self.now;
        let scaled = self.scaled.entry(id.clone()).or_default();
        scaled.revisions.retain(|number, _| settings.iter().any(|revision| revision.number == *number));
        for revision in settings {
            let load = scaled.revisions.entry(revision.number).or_insert_with(|| MeshLoad::new(revision.clone(), now));
            load.autoscaler.configure(revision.scale, revision.concurrency);
            load.settings = revision;
        }
    }

    /// Takes in a node's report on the load of its functions. `now` is measured from any fixed moment.
    pub(crate) fn load(&mut self, name: &str, number: u64, loads: Vec<Load>, now: Duration) {
        if self.session(name, number).is_none() {
            return;
        }
        self.advance(now);
        let Some((name, _)) = self.nodes.get_key_value(name) else { return };
        let name = name.clone();
        let most =
            self.nodes.get(&name).and_then(|node| node.capacity).map_or(MAX_INSTANCES, |capacity| capacity.instances);
        let mut concerned = BTreeSet::new();
        for load in loads.into_iter().map(|load| plausible(load, most)) {
            if !self.may_report(&name, &load.function) {
                continue;
            }
            let id = load.function.clone();
            let revisions = self.scaled.get_mut(&id).map(|scaled| &mut scaled.revisions);
            if let Some(revision) = revisions.and_then(|revisions| revisions.get_mut(&load.revision)) {
                revision.report(&name, load);
                concerned.insert(id);
            }
        }
        for id in concerned {
            if self.is_scheduled(&name) {
                self.active.insert(id.clone());
                if let Some(desired) = self.desire(&id) {
                    self.place_desired(&id, desired);
                }
            }
        }
    }

    /// Decides anew for functions that have any load. Call it about twice a second.
    pub(crate) fn scale(&mut self, now: Duration) {
        self.advance(now);
        for id in self.active.iter().cloned().collect::<Vec<_>>() {
            // Nothing was reported, so there is nothing to place or to divide unless time alone asks for another number.
            if let Some(desired) = self.desire(&id)
                && (!self.scheduler.is_settled(&id, desired) || self.is_short(&id))
            {
                self.place_desired(&id, desired);
            }
            let rests = |scaled: &super::Scaled| scaled.revisions.values().all(MeshLoad::rests);
            if self.scaled.get(&id).is_none_or(rests) {
                self.active.remove(&id);
            }
        }
    }

    /// Whether any function has load.
    pub(crate) fn scales(&self) -> bool {
        !self.active.is_empty()
    }

    /// The instances that a function should have by its load; `None`: it is not scaled.
    fn desire(&mut self, id: &FunctionId) -> Option<u32> {
        let now = self.now;
        let Scaled { revisions, share, .. } = self.scaled.get_mut(id)?;
        let desired = revisions.values_mut().map(|load| load.decide(now)).fold(0, u32::saturating_add);
        Some(share.map_or(desired, |share| desired.min(share)))
    }

    fn place_desired(&mut self, id: &FunctionId, desired: u32) {
        let mut moved = self.reserve(id);
        if self.scheduler.set_desired(id, desired) {
            moved.insert(id.clone());
        }
        self.moved(moved);
        self.rebalance(id);
        self.leave_idle_nodes(id);
    }

    /// Reserves room for the instances of a function on its nodes. Returns functions that have moved because room was freed.
    fn reserve(&mut self, id: &FunctionId) -> BTreeSet<FunctionId> {
        let Some(scaled) = self.scaled.get(id) else { return BTreeSet::new() };
        let names = self.scheduler.nodes_of(id).iter().chain(self.scheduler.leaving(id));
        let instances = |name: &Arc<str>| {
            let running = scaled.revisions.values().map(|load| load.instances_on(name)).fold(0, u32::saturating_add);
            (name.clone(), running.max(scaled.grants.least_on(name)))
        };
        let reserved: Vec<_> = names.map(instances).collect();
        reserved.into_iter().flat_map(|(name, instances)| self.scheduler.reserve(id, &name, instances)).collect()
    }

    /// Divides the instances of a function between its nodes, and has changed bounds delivered; also those of functions whose share depends on it.
    pub(super) fn rebalance(&mut self, id: &FunctionId) {
        let changed = self.share_out(id);
        changed.iter().filter(|other| *other != id).for_each(|other| self.rebalance_one(other));
        self.rebalance_one(id);
        self.waiting_beside(id).iter().for_each(|other| self.rebalance_one(other));
    }

    fn rebalance_one(&mut self, id: &FunctionId) {
        let allowance = self.allowance(id);
        let served = self.serves_elsewhere(id);
        let Some(scaled) = self.scaled.get_mut(id) else { return };
        let nodes = self.scheduler.nodes_of(id);
        let mut targets: BTreeMap<Arc<str>, Vec<Bounds>> = nodes.iter().map(|name| (name.clone(), vec![])).collect();
        // Nodes that the function is leaving keep their bounds until another node has it.
        let staying = self.scheduler.leaving(id).filter(|_| !served);
        let staying: BTreeMap<_, _> =
            staying.map(|name| (name.clone(), scaled.grants.of(name).unwrap_or_default().to_vec())).collect();
        let mut maxima: BTreeMap<u32, u32> =
            scaled.revisions.iter().map(|(number, load)| (*number, load.settings.scale.max)).collect();
        if let Some(allowance) = allowance {
            let claims: Vec<Claim> = scaled.revisions.values().map(MeshLoad::claim).collect();
            maxima = maxima.into_keys().zip(bounds::apportion(allowance, &claims)).collect();
        }
        for (number, load) in &scaled.revisions {
            let (scale, max) = (load.settings.scale, maxima[number]);
            let kept = staying.values().flatten().filter(|bounds| bounds.revision == *number);
            let kept: u64 = kept.map(|bounds| u64::from(bounds.most)).sum();
            let max = u32::try_from(u64::from(max).saturating_sub(kept)).unwrap_or(0);
            let share = |name: &Arc<str>| Share {
                holds: self.scheduler.holds(id, name).min(load.settings.per_node),
                wants: load.wants(name),
            };
            let shares: Vec<_> = nodes.iter().map(share).collect();
            for (name, (least, most)) in nodes.iter().zip(bounds::divide(scale.min, max, &shares)) {
                if let Some(target) = targets.get_mut(name) {
                    target.push(Bounds { revision: *number, least, most });
                }
            }
        }
        targets.extend(staying);
        let changed = !scaled.grants.set(&targets, &maxima).is_empty();
        self.count_granted(id);
        if changed {
            self.announce(&BTreeSet::from([Subject::Scale(id.clone())]));
        }
        let moved = self.reserve(id);
        // Room was freed, so others may have found a node. None of them is this one.
        if !moved.is_empty() {
            self.moved(moved);
        }
    }

    /// A node has put bounds into force, or refused them.
    pub(super) fn bounds_answered(&mut self, id: &FunctionId, name: &str, delivery: Delivery, accepted: bool) {
        let Some(scaled) = self.scaled.get_mut(id) else { return };
        if accepted {
            scaled.grants.in_force(name, delivery);
        } else {
            scaled.grants.rejected(name, delivery);
        }
    }

    /// A node has no bounds of a function any more.
    pub(super) fn bounds_gone(&mut self, id: &FunctionId, name: &str) {
        if self.index.hosting(id).all(|hosting| **hosting != *name)
            && let Some(scaled) = self.scaled.get_mut(id)
        {
            scaled.grants.forget(name);
            self.rebalance(id);
        }
    }

    /// A node has reported other instances of a function.
    pub(super) fn instances_changed(&mut self, id: &FunctionId, name: &str) {
        if self.scheduler.leaving(id).any(|leaving| **leaving == *name) {
            self.leave_idle_nodes(id);
        }
    }

    /// Takes a function from nodes that it is leaving, as soon as another node has it and no instance is left on them.
    pub(super) fn leave_idle_nodes(&mut self, id: &FunctionId) {
        if !self.serves_elsewhere(id) {
            return;
        }
        let idle = |name: &&Arc<str>| {
            let may_start = self.scaled.get(id).is_some_and(|scaled| scaled.grants.may_have_instances(name));
            let has = self.nodes.get(&***name).is_some_and(|node| node.instances.contains_key(id));
            !may_start && !has
        };
        let left: Vec<_> = self.scheduler.leaving(id).filter(idle).cloned().collect();
        if left.is_empty() {
            return;
        }
        for name in &left {
            self.scheduler.left(id, name);
            self.forget_load(id, name);
        }
        self.moved([id.clone()]);
    }

    /// A node hosts the function no more.
    pub(super) fn forget_bounds(&mut self, id: &FunctionId, name: &str) {
        if let Some(scaled) = self.scaled.get_mut(id) {
            scaled.grants.forget(name);
        }
        self.forget_load(id, name);
    }

    pub(super) fn forget_load(&mut self, id: &FunctionId, name: &str) {
        for load in self.scaled.get_mut(id).into_iter().flat_map(|scaled| scaled.revisions.values_mut()) {
            load.nodes.remove(name);
        }
    }

    /// A node that has connected says which bounds it has in force.
    pub(super) fn recall_bounds(&mut self, name: &Arc<str>, bounds: &[(FunctionId, Vec<Bounds>)]) {
        for (id, bounds) in bounds.iter().filter(|_| self.is_scheduled(name)).cloned().collect::<Vec<_>>() {
            if let Some(scaled) = self.scaled.get_mut(&id) {
                scaled.grants.recall(name, bounds);
                self.count_granted(&id);
            }
        }
    }
}
