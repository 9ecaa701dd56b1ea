//! Functions that lack nodes, or that rebalancing moves: the reasons, and the events.

use super::State;
use super::effect::Effect;
use super::event_log::{EventLog, HasOwner};
use crate::admission::Cordon;
use crate::definitions::Function;
use crate::scheduler::{JailUse, Move};
use crate::status::PlacementEvent;
use leno_model::FunctionId;
use std::collections::BTreeMap;

/// The functions that lack nodes, and the last events.
#[derive(Default)]
pub(super) struct PlacementLog {
    problems: BTreeMap<FunctionId, String>,
    events: EventLog<PlacementEvent>,
}

impl PlacementLog {
    /// Records an event.
    pub(super) fn record(&mut self, event: PlacementEvent) {
        tracing::info!(function = %event.function, load = event.load, "{}", event.reason);
        self.events.record(event);
    }
}

impl HasOwner for PlacementEvent {
    fn owner(&self) -> &str {
        &self.function.namespace
    }
}

impl State {
    /// Why a function is on no node, or on fewer than it needs; `None`: it lacks none.
    pub(super) fn placement_problem(&self, id: &FunctionId, function: &Function) -> Option<String> {
        let demand = &function.demand;
        // Pods are the platform's: a function without any lacks no node.
        let is_unplaced = !function.has_pods && self.hosting.hosts(id).next().is_none();
        if let Some(name) = demand.only.as_ref().filter(|_| is_unplaced) {
            let why = match self.nodes.all.get(&**name) {
                None => "which is no node of this mesh",
                Some(node) if node.session.is_none() => "which is away",
                Some(node) if node.cordon != Cordon::Open => "which is cordoned",
                Some(node) if node.behind => "which does not acknowledge its configuration",
                Some(_) => "which has no capacity for it",
            };
            return Some(format!("its volumes are on node {name}, {why}"));
        }
        let mut offers = self.nodes.all.values().filter(|node| node.present && node.capacity.is_some());
        if is_unplaced && demand.jails == JailUse::Required && offers.all(|node| node.without_jails) {
            return Some("it has to be in a jail (`isolation: strict`), and no node can make one".to_owned());
        }
        if is_unplaced {
            return Some("no node has a place for it".to_owned());
        }
        let is_short = self.hosting.scheduler.is_short(id);
        (is_short && matches!(demand.jails, JailUse::FixedPort | JailUse::SharedPort)).then(|| {
            "its `port` is fixed, so a node without jails has one instance of it; more need further nodes, or jails"
                .to_owned()
        })
    }

    /// Records which functions lack nodes since the last time, and which do not any more.
    pub(crate) fn note_placement_problems(&mut self, now_ms: u64) {
        let functions = &self.catalog.compiled.functions;
        let concerned = self.hosting.scheduler.short().filter_map(|id| Some((id, functions.get(id)?)));
        let problem =
            |(id, function): (&FunctionId, &Function)| Some((id.clone(), self.placement_problem(id, function)?));
        let problems: BTreeMap<FunctionId, String> = concerned.filter_map(problem).collect();
        if problems == self.placement_log.problems {
            return;
        }
        let new = problems.iter().filter(|(id, reason)| self.placement_log.problems.get(*id) != Some(reason));
        let mut events: Vec<_> = new.map(|(id, reason)| (id.clone(), reason.clone())).collect();
        let solved = self.placement_log.problems.keys().filter(|id| !problems.contains_key(*id));
        for id in solved.filter(|id| functions.contains_key(*id)) {
            let nodes: Vec<&str> = self.hosting.hosts(id).map(|name| &**name).collect();
            events.push((id.clone(), format!("it has its nodes again: {}", nodes.join(", "))));
        }
        self.placement_log.problems = problems;
        for (function, reason) in events {
            self.placement_log.record(PlacementEvent { at_ms: now_ms, function, reason, load: None });
        }
    }

    /// Moves functions to nodes that have come, each with an event. Call it about twice a second.
    pub(crate) fn rebalance(&mut self, now_ms: u64) {
        if self.hosting.awaiting {
            return;
        }
        for Move { function, from, to, ranks: [before, after] } in self.hosting.scheduler.rebalance() {
            let reason = format!("it moves from node {from} to node {to}, which has more room");
            let full = |name, (share, functions)| format!("{name} has {functions} functions and uses {} %", share / 10);
            let load = Some(format!("{}; {}", full(&from, before), full(&to, after)));
            self.placement_log.record(PlacementEvent { at_ms: now_ms, function: function.clone(), reason, load });
            self.carry_out([Effect::Moved(vec![function])]);
        }
    }

    /// The last placement events, oldest first.
    pub(crate) fn placement_events(&self) -> Vec<PlacementEvent> {
        self.placement_log.events.all()
    }
}
