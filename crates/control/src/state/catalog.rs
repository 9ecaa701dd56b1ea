//! The definitions in force: functions, their revisions and rollouts, and removed functions.

use crate::active_rollouts::ActiveRollouts;
use crate::definitions::CompiledDefinitions;
use crate::history::{Candidate, Histories, History};
use crate::rollout::Verdict;
use crate::status::RolloutEvent;
use leno_config::Permissions;
use leno_config::permissions::Policies;
use leno_model::FunctionId;
use leno_wire::{Subject, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Maximum number of stored decisions on rollouts.
const MAX_EVENTS: usize = 100;
/// Maximum number of removed functions with stored policies. Nodes close the open exchanges of
/// further ones.
const MAX_REMOVED: usize = 65_536;

/// All definitions.
pub(super) struct Catalog {
    pub compiled: CompiledDefinitions,
    /// The revisions with which `compiled` was resolved.
    histories: Histories,
    pub rollouts: ActiveRollouts,
    /// The last decisions on rollouts, oldest first.
    events: VecDeque<RolloutEvent>,
    /// Removed functions whose callers are still permitted: all policies that the function had are
    /// still defined. Nodes drain them, and close the open exchanges of other removed functions.
    removals: BTreeMap<FunctionId, Removal>,
}

struct Removal {
    /// The last version of the function's configuration.
    version: Version,
    policies: Policies,
    /// The nodes that drain it.
    nodes: BTreeSet<Arc<str>>,
}

impl Catalog {
    pub(super) fn new(compiled: CompiledDefinitions, histories: Histories) -> Self {
        let (mut rollouts, events, removals) = (ActiveRollouts::default(), VecDeque::new(), BTreeMap::new());
        rollouts.follow_all(&histories);
        Self { compiled, histories, rollouts, events, removals }
    }

    pub(super) fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Replaces the revisions of all functions.
    pub(super) fn set_histories(&mut self, histories: Histories) {
        self.rollouts.follow_all(&histories);
        self.histories = histories;
    }

    /// Replaces the revisions of one function.
    pub(super) fn set_history(&mut self, id: &FunctionId, history: History) {
        self.rollouts.follow(id, &history);
        self.histories.0.insert(id.clone(), history);
    }

    /// Removes a function. Returns whether it was defined.
    pub(super) fn remove(&mut self, id: &FunctionId) -> bool {
        self.rollouts.forget(id);
        self.histories.0.remove(id);
        self.compiled.remove(id)
    }

    /// Rollouts that have a decision due.
    pub(super) fn decisions(&self, now_ms: u64) -> Vec<(FunctionId, Candidate, Verdict)> {
        let functions = &self.compiled.functions;
        self.rollouts.decisions(now_ms, |id| functions.get(id)?.revisions.plan.rollout.as_ref())
    }

    /// Records a decision on a rollout.
    pub(super) fn record(&mut self, event: RolloutEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The last decisions on rollouts, oldest first.
    pub(super) fn events(&self) -> Vec<RolloutEvent> {
        self.events.iter().cloned().collect()
    }

    /// Stores the policies of a function that is about to be removed. The permissions have to be
    /// the previous ones.
    pub(super) fn prepare_removal(&mut self, id: &FunctionId) {
        let content = self.compiled.contents.get(&Subject::FunctionConfig(id.clone()));
        if let (Some(content), Some(policies)) = (content, self.compiled.permissions.of(id)) {
            let removal = Removal { version: content.version, policies, nodes: BTreeSet::new() };
            self.removals.insert(id.clone(), removal);
        }
    }

    /// Replaces the policies. Returns the removed functions whose policies have changed, each with
    /// the nodes that drain it.
    pub(super) fn set_permissions(&mut self, permissions: Permissions) -> Vec<(FunctionId, BTreeSet<Arc<str>>)> {
        self.compiled.permissions = permissions;
        let Self { removals, compiled, .. } = self;
        removals.retain(|id, _| !compiled.functions.contains_key(id));
        let ended = removals.extract_if(.., |_, removal| !compiled.permissions.contain(&removal.policies));
        let mut ended: Vec<_> = ended.collect();
        while removals.len() > MAX_REMOVED {
            ended.extend(removals.pop_first());
        }
        ended.into_iter().map(|(id, removal)| (id, removal.nodes)).collect()
    }

    /// The last version of a function that `name` is to stop hosting, if its callers are still
    /// permitted: it is defined for other nodes, or the node drains it.
    pub(super) fn drain(&mut self, id: &FunctionId, name: &Arc<str>) -> Option<Version> {
        if let Some(content) = self.compiled.contents.get(&Subject::FunctionConfig(id.clone())) {
            return Some(content.version);
        }
        let removal = self.removals.get_mut(id)?;
        removal.nodes.insert(name.clone());
        Some(removal.version)
    }
}
