//! The resources of each node, decided without sockets, clocks and files.
//!
//! A node may subscribe to its own resources only, which follow from the functions that it hosts.
//! The control plane refuses and counts its other subscriptions, and its reports about functions
//! that it does not host.
//!
//! A session is the stream of a connected node. It has the versions that were sent on it and a set
//! of subjects that may have changed. A change marks subjects in the sessions that want them and
//! wakes these sessions. [`State::next_delta`] then compares versions and composes the next
//! message. Changes that come faster than a node reads are merged, and no change waits.
//!
//! The state has six parts. The methods of a part take the other parts that they read as
//! arguments, and return the consequences for them as [`Effect`]s, which [`State::carry_out`]
//! carries out. A file imports only files before it: `effect`, `session`, `notices`, `event_log`,
//! `node`, `destinations`, `nodes`, `catalog`, `jobs`, `pods`, `hosting`, `load`, `quotas`,
//! `scaling`, `leasing`, this file, and then the events that it handles: `publishing`, `membership`,
//! `pod_events`, `destination_events`, `absence`, `reports`, `delivery`, `trust`, `placement`,
//! `listing`.
//!
//! Functions are indexed by the nodes that host them, and subjects by the nodes that want them. So
//! the cost of a change depends on the functions and nodes that it concerns, and not on how many
//! there are. These indexes are hash maps: an ordered map of ten thousand names compares some fifty
//! texts for each lookup. No decision depends on their order.

mod absence;
mod catalog;
pub(crate) mod delivery;
mod destination_events;
pub(crate) mod destinations;
mod effect;
mod event_log;
mod hosting;
mod jobs;
mod leasing;
mod listing;
mod load;
pub(crate) mod membership;
mod node;
mod nodes;
mod notices;
mod placement;
mod pod_events;
mod pods;
mod publishing;
mod quotas;
mod reports;
mod scaling;
mod session;
mod trust;

use self::catalog::Catalog;
use self::destinations::Destinations;
use self::effect::Effect;
use self::hosting::Hosting;
use self::leasing::Leasing;
use self::nodes::Nodes;
use self::placement::PlacementLog;
use self::scaling::Scaling;
use crate::definitions::CompiledDefinitions;
use crate::history::Histories;
use leno_identity::SpiffeId;
use leno_model::FunctionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The control plane's state.
pub(crate) struct State {
    catalog: Catalog,
    nodes: Nodes,
    hosting: Hosting,
    destinations: Destinations,
    scaling: Scaling,
    leasing: Leasing,
    placement_log: PlacementLog,
    /// When certificates expire, by identity and node.
    issued: BTreeMap<(SpiffeId, Arc<str>), u64>,
    /// The time of the last event, measured from any fixed moment.
    now: Duration,
}

impl State {
    pub(crate) fn new(compiled: CompiledDefinitions, histories: Histories) -> Self {
        let hosting = Hosting::new(!compiled.functions.is_empty());
        let (nodes, destinations, scaling, leasing, placement_log, issued, now) = Default::default();
        let catalog = Catalog::new(compiled, histories);
        let mut state = Self { catalog, nodes, hosting, destinations, scaling, leasing, placement_log, issued, now };
        for id in state.catalog.compiled.functions.keys().cloned().collect::<BTreeSet<_>>() {
            let effects = state.define(&id);
            state.carry_out(effects);
        }
        state
    }

    /// Carries out effects in order, each with all its consequences before the next one.
    fn carry_out(&mut self, effects: impl IntoIterator<Item = Effect>) {
        let mut todo: Vec<Effect> = effects.into_iter().collect();
        todo.reverse();
        while let Some(effect) = todo.pop() {
            let mut then = self.apply(effect);
            then.reverse();
            todo.append(&mut then);
        }
    }

    /// Applies one effect to the part that it concerns. Returns the effects that follow from it.
    fn apply(&mut self, effect: Effect) -> Vec<Effect> {
        let Self { catalog: Catalog { compiled, .. }, nodes, hosting, scaling, leasing, now, .. } = self;
        match effect {
            Effect::Announce(subject) => nodes.announce(&subject),
            Effect::Rehost(ids) => return self.rehost(&ids),
            Effect::Moved(ids) => {
                // Endpoints come first, of all functions, because those of a namespace share their
                // instances: a node has its instances until no other one sends requests there.
                let moving = ids.iter().filter(|id| hosting.scheduler.is_moving(id));
                let mut then: Vec<_> = moving.map(Effect::endpoints).collect();
                // A function that stays on its node may have left another node long ago.
                let follow = |id: &FunctionId| [Effect::Rebalance(id.clone()), Effect::LeaveIdleNodes(id.clone())];
                then.extend(ids.iter().flat_map(follow));
                return [Effect::Rehost(ids)].into_iter().chain(then).collect();
            }
            Effect::Unhosted(id, name) => scaling.unhosted(&id, &name),
            Effect::ForgetLoad(id, name) => scaling.forget_load(&id, &name),
            Effect::Rebalance(id) => return scaling.rebalance(&id, *now),
            Effect::DivideInstances(id) => return scaling.divide(&id, hosting, nodes),
            Effect::DivideWaiting(id) => return scaling.divide_waiting(&id),
            Effect::LeaveIdleNodes(id) => return scaling.leave_idle_nodes(&id, hosting, nodes).into_iter().collect(),
            Effect::DivideLimits(id) => {
                return leasing.divide(&id, &hosting.limited_hosts(&id, nodes), *now).into_iter().collect();
            }
            Effect::PlaceJobs => return hosting.place_jobs(compiled, nodes),
        }
        Vec::new()
    }

    /// Recomputes which nodes host these functions.
    fn rehost(&mut self, ids: &[FunctionId]) -> Vec<Effect> {
        self.follow(ids, |state| {
            let Self { catalog, nodes, hosting, .. } = state;
            ids.iter().flat_map(|id| hosting.update(id, &catalog.compiled, nodes)).collect()
        })
    }

    /// Makes a change that concerns these functions, and then changes the subjects that nodes want
    /// accordingly. The change must not come here again for one of them.
    fn follow(&mut self, ids: &[FunctionId], change: impl FnOnce(&mut Self) -> Vec<Effect>) -> Vec<Effect> {
        let called = |state: &Self, id| state.catalog.compiled.callees_on_callers_nodes(id);
        let wanted = |state: &Self, id| state.hosting.wanted_for(id, &state.catalog.compiled, &state.nodes);
        let mut callees: BTreeSet<_> = ids.iter().flat_map(|id| called(self, id)).collect();
        let before: Vec<_> = ids.iter().map(|id| wanted(self, id)).collect();
        let mut effects = change(self);
        for (id, before) in ids.iter().zip(before) {
            let after = wanted(self, id);
            self.nodes.rewant(before, after);
            callees.extend(called(self, id));
        }
        // The nodes of callers connect to these callees, so they move with the callers.
        if !callees.is_empty() {
            effects.push(Effect::Rehost(callees.into_iter().collect()));
        }
        effects
    }

    /// Passes on the present definition of a function, or its removal. Only within
    /// [`State::follow`].
    fn define(&mut self, id: &FunctionId) -> Vec<Effect> {
        let Self { catalog: Catalog { compiled, .. }, nodes, hosting, scaling, leasing, now, .. } = self;
        let function = compiled.functions.get(id);
        hosting.define(id, function);
        scaling.define(id, function, *now);
        leasing.define(id, compiled, hosting.awaiting, *now);
        let endpoints = hosting.scheduler.is_moving(id).then(|| Effect::endpoints(id));
        endpoints.into_iter().chain(hosting.update(id, compiled, nodes)).collect()
    }

    /// Recomputes the subjects that a node wants.
    fn refresh(&mut self, name: &str) {
        let Self { catalog, nodes, hosting, destinations, .. } = self;
        nodes.refresh(name, (&catalog.compiled, destinations), &hosting.exposed, hosting.pods.of_node(name));
    }

    /// Passes the present capacity of a node to the scheduler.
    fn offer(&mut self, name: &Arc<str>) {
        let effects = self.hosting.offer(name, &self.nodes);
        self.carry_out(effects);
    }

    /// Announces the endpoints of functions.
    fn announce_endpoints<'a>(&mut self, ids: impl IntoIterator<Item = &'a FunctionId>) {
        self.carry_out(ids.into_iter().map(Effect::endpoints));
    }

    /// Continues the moves that may have waited for a node to know new endpoints.
    fn continue_moves(&mut self) {
        let effects = self.hosting.leave(self.hosting.scheduler.moving());
        self.carry_out(effects);
    }

    /// The name of a node, if the session is its present one.
    fn connected(&mut self, name: &str, number: u64) -> Option<Arc<str>> {
        self.nodes.session(name, number)?;
        self.nodes.name(name)
    }

    /// Advances the time. A caller that has waited for the lock may bring an earlier time than the
    /// last one.
    fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }
}

#[cfg(test)]
mod tests;
