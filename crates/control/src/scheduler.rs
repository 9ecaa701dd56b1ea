//! Decides on which nodes functions are. It has no clock and does no I/O: the same events in the
//! same order give the same placement.
//!
//! Each function is on at least one node, its home, even without instances. It is on further nodes
//! while one cannot hold its instances, and while its minimum requires several instances, which are
//! spread. A node is chosen by these criteria, in this order: the zone with the fewest nodes of the
//! function; a node that has the function's image; the node with the smallest used share; and then
//! the one with the fewest functions. A function stays where it is until its node is gone, drained
//! or too small, or until [`Scheduler::rebalance`] moves it to a node that has come.
//!
//! Nodes are ranked within their zones and functions are indexed by node, so the cost of an event
//! depends on the functions and nodes that it concerns.

mod balance;
mod demand;
mod returning;

pub(crate) use balance::Move;
pub(crate) use demand::{Demand, JailUse};

use leno_model::{FunctionId, Locality};
use leno_wire::Capacity;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Nodes over which the minimum of a function is spread. More nodes are for load only.
const SPREAD: usize = 3;
/// Number of candidates that the scheduler examines in each zone, best first, before it examines
/// all nodes.
const CANDIDATES: usize = 16;
/// Number of functions that any node may have, even if that is more than twice the average.
const SLACK: usize = 8;
/// Number of functions that the scheduler retries when a node may have free capacity.
const RETRIES: usize = 8;

/// A node's state for the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub locality: Locality,
    pub capacity: Capacity,
    /// Images that the node keeps.
    pub images: BTreeSet<String>,
    /// The node gets no further functions, and its functions move to other nodes.
    pub drained: bool,
    /// The node gets no further functions and instances, and those that it has stay.
    pub unschedulable: bool,
    /// Whether an operator has set its capacity.
    pub sized: bool,
    /// It cannot put instances into jails.
    pub without_jails: bool,
}

impl NodeState {
    /// Whether the node gets further functions.
    fn is_schedulable(&self) -> bool {
        !self.drained && !self.unschedulable
    }
}

#[derive(Default)]
pub(crate) struct Scheduler {
    nodes: BTreeMap<Arc<str>, Node>,
    /// Nodes that may get functions, by zone, best first.
    ranking: BTreeMap<Zone, BTreeSet<(Rank, Arc<str>)>>,
    images: HashMap<String, BTreeSet<Arc<str>>>,
    functions: HashMap<FunctionId, FunctionPlacement>,
    /// Functions for which the scheduler found too few nodes.
    short: BTreeSet<FunctionId>,
    /// Functions that are leaving a node.
    moving: BTreeSet<FunctionId>,
    /// Nodes to which rebalancing moves functions, each with the calls of [`Scheduler::rebalance`]
    /// until it begins.
    joined: BTreeMap<Arc<str>, u32>,
}

/// Region and zone.
type Zone = (Option<String>, Option<String>);
/// The used share in thousandths, and the number of functions.
pub(crate) type Rank = (u64, usize);

struct Node {
    state: NodeState,
    used: Capacity,
    /// The functions on the node, and for how many instances each has capacity reserved.
    functions: BTreeMap<FunctionId, u32>,
    /// Functions that rebalancing has moved away since the node came.
    moved_away: BTreeSet<FunctionId>,
}

#[derive(Default)]
struct FunctionPlacement {
    demand: Demand,
    /// The home first.
    nodes: Vec<Arc<str>>,
    /// Nodes that hold the function until another one does.
    leaving: BTreeSet<Arc<str>>,
    /// The scheduler waits, because the node that has the function may come back.
    awaited: bool,
}

impl Node {
    /// Number of further instances that fit, beside those that the function has there.
    fn free_instances(&self, demand: &Demand, reserved: u32) -> u32 {
        if self.state.unschedulable {
            return 0;
        }
        let fit = self.state.capacity.minus(&self.used).holds(&demand.instance);
        fit.min(self.most_instances(demand).saturating_sub(reserved))
    }

    /// Number of instances that the node's jails permit.
    fn most_instances(&self, demand: &Demand) -> u32 {
        match (demand.jails, self.state.without_jails) {
            (JailUse::Required, true) => 0,
            (JailUse::SharedPort, _) | (JailUse::FixedPort, true) => 1,
            _ => u32::MAX,
        }
    }

    fn rank(&self) -> Rank {
        (self.used.permille_of(&self.state.capacity), self.functions.len())
    }

    fn zone(&self) -> Zone {
        (self.state.locality.region.clone(), self.state.locality.zone.clone())
    }
}

impl Scheduler {
    /// Adds or changes a node. Returns the functions whose nodes may have changed.
    pub(crate) fn set_node(&mut self, name: &Arc<str>, state: NodeState) -> BTreeSet<FunctionId> {
        if self.nodes.get(name).is_some_and(|node| node.state == state) {
            return BTreeSet::new();
        }
        self.unrank(name);
        let before = self.nodes.get(name).map(|node| node.state.images.clone()).unwrap_or_default();
        self.forget_images(name, before.difference(&state.images));
        for image in &state.images {
            self.images.entry(image.clone()).or_default().insert(name.clone());
        }
        let drained = state.drained;
        let was_schedulable = self.nodes.get(name).is_some_and(|node| node.state.is_schedulable());
        let new = Node {
            state: NodeState::default(),
            used: Capacity::default(),
            functions: BTreeMap::new(),
            moved_away: BTreeSet::new(),
        };
        let node = self.nodes.entry(name.clone()).or_insert(new);
        if !state.is_schedulable() {
            self.joined.remove(name);
        } else if !was_schedulable {
            self.joined.insert(name.clone(), balance::PROBATION);
            node.moved_away.clear();
        }
        let drains = drained && !node.state.drained;
        let returns = !drained && node.state.drained;
        let stalls = state.unschedulable != node.state.unschedulable;
        node.state = state;
        let on_it: Vec<_> = node.functions.keys().cloned().collect();
        self.rank(name);
        let mut concerned = BTreeSet::new();
        if drains {
            for id in on_it {
                if let Some(placed) = self.functions.get_mut(&id) {
                    placed.nodes.retain(|node| node != name);
                    placed.leaving.insert(name.clone());
                }
                self.settle(&id);
                concerned.insert(id);
            }
        } else if returns {
            // The functions that found no other node may stay.
            let homeless: Vec<_> = on_it.into_iter().filter(|id| self.nodes_of(id).is_empty()).collect();
            for id in homeless {
                self.keep(&id, name);
                concerned.insert(id);
            }
        }
        if stalls {
            let on_it: Vec<_> =
                self.nodes.get(name).into_iter().flat_map(|node| node.functions.keys()).cloned().collect();
            for id in on_it {
                self.settle(&id);
                concerned.insert(id);
            }
        }
        if !drained {
            concerned.extend(self.place_short(usize::MAX));
        }
        concerned
    }

    /// Removes a node that is gone. Returns the functions that were on it.
    pub(crate) fn remove_node(&mut self, name: &str) -> BTreeSet<FunctionId> {
        self.unrank(name);
        let Some(node) = self.nodes.remove(name) else { return BTreeSet::new() };
        self.joined.remove(name);
        self.forget_images(name, &node.state.images);
        for id in node.functions.keys() {
            if let Some(placed) = self.functions.get_mut(id) {
                placed.nodes.retain(|other| **other != *name);
                placed.leaving.remove(name);
            }
            self.settle(id);
        }
        node.functions.into_keys().collect()
    }

    fn forget_images<'a>(&mut self, name: &str, images: impl IntoIterator<Item = &'a String>) {
        for image in images {
            if let Some(keepers) = self.images.get_mut(image) {
                keepers.remove(name);
                if keepers.is_empty() {
                    self.images.remove(image);
                }
            }
        }
    }

    /// Adds a function, or changes its demand; the number of instances that its load demands stays.
    /// `awaited`: a node that is not there yet may have it, so no other is chosen for now. Returns
    /// whether its nodes may have changed.
    pub(crate) fn set_function(&mut self, id: &FunctionId, demand: Demand, awaited: bool) -> bool {
        let placed = self.functions.entry(id.clone()).or_default();
        let demand = Demand { desired: placed.demand.desired, ..demand };
        if placed.demand == demand && !placed.nodes.is_empty() {
            return false;
        }
        placed.awaited = awaited && placed.nodes.is_empty();
        let instance = std::mem::replace(&mut placed.demand, demand).instance;
        if instance != placed.demand.instance {
            let on: Vec<_> = placed.nodes.iter().chain(&placed.leaving).cloned().collect();
            let now = placed.demand.instance;
            for name in on {
                self.with_node(&name, |node| {
                    let reserved = node.functions.get(id).copied().unwrap_or(0);
                    node.used = node.used.minus(&instance.times(reserved)).plus(&now.times(reserved));
                });
            }
        }
        self.leave_others(id);
        self.settle(id)
    }

    /// Takes a function from nodes that do not keep its volumes.
    fn leave_others(&mut self, id: &FunctionId) {
        let Some(placed) = self.functions.get_mut(id) else { return };
        let Some(only) = placed.demand.only.clone() else { return };
        let others: Vec<_> = placed.nodes.extract_if(.., |name| **name != *only).collect();
        placed.leaving.extend(others);
    }

    /// Sets the number of instances that the function should have for its load. Returns whether its
    /// nodes may have changed.
    pub(crate) fn set_desired(&mut self, id: &FunctionId, desired: u32) -> bool {
        let Some(placed) = self.functions.get_mut(id) else { return false };
        placed.demand.desired = desired;
        self.settle(id)
    }

    /// Whether the function has this number of instances already, and all nodes that it needs for
    /// them.
    pub(crate) fn is_settled(&self, id: &FunctionId, desired: u32) -> bool {
        self.functions.get(id).is_some_and(|placed| placed.demand.desired == desired) && !self.short.contains(id)
    }

    pub(crate) fn remove_function(&mut self, id: &FunctionId) {
        let Some(placed) = self.functions.remove(id) else { return };
        self.short.remove(id);
        self.moving.remove(id);
        for name in placed.nodes.iter().chain(&placed.leaving) {
            self.drop_from(name, id, &placed.demand.instance);
        }
        self.nodes.values_mut().for_each(|node| drop(node.moved_away.take(id)));
    }

    /// Whether a node may get an instance of a function that it does not have.
    pub(crate) fn has_capacity(&self, name: &str, demand: &Demand) -> bool {
        self.nodes.get(name).is_some_and(|node| !node.state.drained && node.free_instances(demand, 0) > 0)
    }

    /// Whether there are too few nodes for the function.
    pub(crate) fn is_short(&self, id: &FunctionId) -> bool {
        self.short.contains(id)
    }

    /// Functions for which there are too few nodes.
    pub(crate) fn short(&self) -> impl Iterator<Item = &FunctionId> {
        self.short.iter()
    }

    /// Reserves capacity on a node for instances that the function has there, or must have. Returns
    /// functions that have found a node because capacity became free.
    pub(crate) fn reserve(&mut self, id: &FunctionId, name: &str, instances: u32) -> BTreeSet<FunctionId> {
        let Some(placed) = self.functions.get(id) else { return BTreeSet::new() };
        let instance = placed.demand.instance;
        let reserved = self.nodes.get(name).and_then(|node| node.functions.get(id)).copied();
        let Some(reserved) = reserved.filter(|reserved| *reserved != instances) else { return BTreeSet::new() };
        self.with_node(name, |node| {
            node.used = node.used.minus(&instance.times(reserved)).plus(&instance.times(instances));
            node.functions.insert(id.clone(), instances);
        });
        let freed = instances < reserved;
        if freed { self.place_short(RETRIES) } else { BTreeSet::new() }
    }

    /// Takes a function from a node that it was leaving.
    pub(crate) fn left(&mut self, id: &FunctionId, name: &str) {
        let Some(placed) = self.functions.get_mut(id) else { return };
        if placed.leaving.remove(name) {
            let instance = placed.demand.instance;
            self.drop_from(name, id, &instance);
            self.note_moving(id);
        }
    }

    /// The nodes of a function, the home first, without those that it is leaving.
    pub(crate) fn nodes_of(&self, id: &FunctionId) -> &[Arc<str>] {
        self.functions.get(id).map(|placed| &*placed.nodes).unwrap_or_default()
    }

    /// The nodes that a function is leaving.
    pub(crate) fn leaving(&self, id: &FunctionId) -> impl Iterator<Item = &Arc<str>> {
        self.functions.get(id).into_iter().flat_map(|placed| &placed.leaving)
    }

    pub(crate) fn is_on(&self, id: &FunctionId, name: &str) -> bool {
        self.nodes_of(id).iter().any(|node| **node == *name)
    }

    /// Number of instances of the function that the node could hold without other functions.
    pub(crate) fn holds(&self, id: &FunctionId, name: &str) -> u32 {
        let (Some(placed), Some(node)) = (self.functions.get(id), self.nodes.get(name)) else { return 0 };
        match node.state.unschedulable {
            true => node.functions.get(id).copied().unwrap_or(0),
            false => node.state.capacity.holds(&placed.demand.instance).min(node.most_instances(&placed.demand)),
        }
    }

    /// Number of instances of all functions for which capacity is reserved on the node.
    pub(crate) fn reserved_on(&self, name: &str) -> u32 {
        self.nodes.get(name).map_or(0, |node| node.used.instances)
    }

    fn place_short(&mut self, most: usize) -> BTreeSet<FunctionId> {
        let short: Vec<_> = self.short.iter().take(most).cloned().collect();
        short.into_iter().filter(|id| self.settle(id)).collect()
    }

    /// Adds nodes that the function needs and removes those that it does not need any more. Returns
    /// whether any changed.
    fn settle(&mut self, id: &FunctionId) -> bool {
        let changed = self.choose_nodes(id);
        self.note_moving(id);
        changed
    }

    fn choose_nodes(&mut self, id: &FunctionId) -> bool {
        let Some(placed) = self.functions.get(id) else { return false };
        if placed.awaited {
            return false;
        }
        let demand = placed.demand.clone();
        let needed = demand.least.max(demand.desired).max(1);
        let spread = if demand.single { 1 } else { (demand.least as usize).clamp(1, SPREAD) };
        let (mut changed, mut short) = (false, false);
        loop {
            let placed = self.nodes_of(id);
            let enough = self.held(id, None) >= u64::from(needed);
            let may_grow = if demand.single { placed.is_empty() } else { placed.len() < needed as usize };
            if placed.len() >= spread && (enough || !may_grow) {
                break;
            }
            let Some(chosen) = self.choose(id, &demand) else {
                short = true;
                break;
            };
            if let Some(placed) = self.functions.get_mut(id) {
                placed.leaving.remove(&chosen);
                placed.nodes.push(chosen.clone());
            }
            // Until the number of instances is known, the scheduler reserves the capacity of one
            // required instance, so that the next function does not get it.
            let first = u32::from(self.nodes_of(id).len() <= demand.least as usize);
            self.reserve_first(id, &chosen, &demand.instance, first);
            changed = true;
        }
        changed |= self.leave_surplus(id, spread, needed);
        if short {
            self.short.insert(id.clone());
        } else {
            self.short.remove(id);
        }
        changed
    }

    /// Reserves capacity on a node that a function comes to.
    fn reserve_first(&mut self, id: &FunctionId, name: &str, instance: &Capacity, first: u32) {
        self.with_node(name, |node| {
            if let Entry::Vacant(vacant) = node.functions.entry(id.clone()) {
                vacant.insert(first);
                node.used = node.used.plus(&instance.times(first));
            }
        });
    }

    /// Number of instances that the function has or could have on its nodes, apart from `without`.
    fn held(&self, id: &FunctionId, without: Option<&str>) -> u64 {
        let Some(placed) = self.functions.get(id) else { return 0 };
        let on = placed.nodes.iter().filter(|name| without != Some(&***name));
        let of = |name: &Arc<str>| {
            let node = self.nodes.get(name)?;
            let reserved = node.functions.get(id).copied().unwrap_or(0);
            Some(u64::from(reserved) + u64::from(node.free_instances(&placed.demand, reserved)))
        };
        on.filter_map(of).sum()
    }

    /// Removes the function from a node without instances if the others could hold twice the needed
    /// instances. With less, it would soon be placed there again.
    fn leave_surplus(&mut self, id: &FunctionId, spread: usize, needed: u32) -> bool {
        let nodes = self.nodes_of(id);
        if nodes.len() <= spread {
            return false;
        }
        let idle = |name: &&Arc<str>| self.nodes.get(&***name).is_some_and(|node| node.functions.get(id) == Some(&0));
        let enough = |name: &&Arc<str>| self.held(id, Some(&***name)) >= 2 * u64::from(needed);
        let Some(surplus) = nodes.iter().rev().filter(idle).find(enough).cloned() else { return false };
        if let Some(placed) = self.functions.get_mut(id) {
            placed.nodes.retain(|name| *name != surplus);
            placed.leaving.insert(surplus);
        }
        true
    }

    /// The best node that does not have the function yet and has capacity for an instance.
    fn choose(&self, id: &FunctionId, demand: &Demand) -> Option<Arc<str>> {
        let has = self.nodes_of(id);
        let fits = |name: &Arc<str>| {
            let node = self.nodes.get(name)?;
            let admits = demand.only.as_ref().is_none_or(|only| **only == **name);
            let free = !node.state.drained && !has.contains(name) && node.free_instances(demand, 0) > 0;
            (admits && free).then_some(node)
        };
        let in_zone = |zone: &Zone| {
            has.iter().filter(|name| self.nodes.get(&***name).is_some_and(|node| node.zone() == *zone)).count()
        };
        let keeps = |name: &Arc<str>| {
            demand.image.as_ref().and_then(|image| self.images.get(image)).is_some_and(|keepers| keepers.contains(name))
        };
        let most = self.fair_share();
        let cost = |name: &Arc<str>| {
            let node = fits(name)?;
            let is_over = !node.state.sized && node.functions.len() > most;
            Some((is_over, in_zone(&node.zone()), !keeps(name), node.rank(), name.clone()))
        };
        let best = |candidates: &mut dyn Iterator<Item = &Arc<str>>| candidates.filter_map(cost).min();
        let ranked = self.ranking.values().flat_map(|zone| zone.iter().take(CANDIDATES).map(|(_, name)| name));
        let keepers = demand.image.as_ref().and_then(|image| self.images.get(image));
        let keepers = keepers.into_iter().flat_map(|keepers| keepers.iter().take(CANDIDATES));
        let chosen = best(&mut ranked.chain(keepers)).filter(|(is_over, ..)| !is_over);
        // Possibly only nodes of a low rank have capacity for an instance of this size.
        chosen.or_else(|| best(&mut self.nodes.keys())).map(|(.., name)| name)
    }

    /// Maximum number of functions on a node whose capacity no operator has set, as long as others
    /// have free capacity. Otherwise the node that claims to be the largest would get most
    /// functions.
    fn fair_share(&self) -> usize {
        let placed: usize = self.nodes.values().map(|node| node.functions.len()).sum();
        2 * (placed / self.nodes.len().max(1)) + SLACK
    }

    fn drop_from(&mut self, name: &str, id: &FunctionId, instance: &Capacity) {
        self.with_node(name, |node| {
            let reserved = node.functions.remove(id).unwrap_or(0);
            node.used = node.used.minus(&instance.times(reserved));
        });
    }

    fn with_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        self.unrank(name);
        if let Some(node) = self.nodes.get_mut(name) {
            change(node);
        }
        self.rank(name);
    }

    fn unrank(&mut self, name: &str) {
        let Some((name, node)) = self.nodes.get_key_value(name) else { return };
        let zone = node.zone();
        if let Some(ranked) = self.ranking.get_mut(&zone) {
            ranked.remove(&(node.rank(), name.clone()));
            if ranked.is_empty() {
                self.ranking.remove(&zone);
            }
        }
    }

    fn rank(&mut self, name: &str) {
        let Some((name, node)) = self.nodes.get_key_value(name) else { return };
        if node.state.is_schedulable() {
            self.ranking.entry(node.zone()).or_default().insert((node.rank(), name.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
