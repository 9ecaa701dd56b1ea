//! Functions and the nodes that have them already: nodes that come back to the control plane.

use super::{FunctionPlacement, Scheduler};
use leno_model::FunctionId;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Scheduler {
    /// Puts a function that is on no node on one that has it already. Returns whether it is there
    /// now.
    pub(crate) fn adopt(&mut self, id: &FunctionId, name: &Arc<str>) -> bool {
        let fits = self.nodes.get(name).is_some_and(|node| !node.state.drained);
        let admits = |placed: &FunctionPlacement| placed.demand.only.as_ref().is_none_or(|only| **only == **name);
        let free = self.functions.get(id).is_some_and(|placed| placed.nodes.is_empty() && admits(placed));
        if fits && free {
            self.keep(id, name);
        }
        self.is_on(id, name)
    }

    pub(crate) fn keep(&mut self, id: &FunctionId, name: &Arc<str>) {
        let Some(placed) = self.functions.get_mut(id) else { return };
        placed.awaited = false;
        placed.leaving.remove(name);
        placed.nodes.push(name.clone());
        self.with_node(name, |node| {
            node.functions.entry(id.clone()).or_insert(0);
        });
        self.settle(id);
    }

    /// Lets a node that came back hold a function that was placed on other nodes, until one of them
    /// does. Returns whether the node holds it now.
    pub(crate) fn leave_later(&mut self, id: &FunctionId, name: &Arc<str>) -> bool {
        let Some(placed) = self.functions.get_mut(id) else { return false };
        if !self.nodes.contains_key(name) || placed.nodes.is_empty() || placed.nodes.contains(name) {
            return false;
        }
        placed.leaving.insert(name.clone());
        let instance = placed.demand.instance;
        self.reserve_first(id, name, &instance, 0);
        self.note_moving(id);
        true
    }

    /// Ends the wait for nodes that may have functions. Returns the functions that were waiting.
    pub(crate) fn stop_awaiting(&mut self) -> BTreeSet<FunctionId> {
        let waiting = |placed: &FunctionPlacement| placed.awaited;
        let waited: BTreeSet<_> =
            self.functions.iter().filter(|(_, placed)| waiting(placed)).map(|(id, _)| id.clone()).collect();
        for id in &waited {
            if let Some(placed) = self.functions.get_mut(id) {
                placed.awaited = false;
            }
            self.settle(id);
        }
        waited
    }
}
