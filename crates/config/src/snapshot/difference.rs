//! The functions that two snapshots do not have in common.

use super::{Function, Policy, Snapshot};
use leno_model::FunctionId;
use std::cell::LazyCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Functions of a snapshot that an earlier one had otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotDifference {
    /// Those that are new, or whose configuration may differ.
    pub changed: Vec<FunctionId>,
    /// Those that are gone.
    pub removed: Vec<FunctionId>,
}

impl Snapshot {
    /// The difference to an earlier snapshot; `None`: the configuration of each function may differ.
    pub fn difference(&self, before: &Self) -> Option<SnapshotDifference> {
        let common = (&self.mesh, &self.namespaces, &self.routes, &self.secrets, &self.modules);
        let was = (&before.mesh, &before.namespaces, &before.routes, &before.secrets, &before.modules);
        if common != was {
            return None;
        }
        fn name(policy: &Arc<Policy>) -> (&str, &str) {
            (&policy.namespace, &policy.name)
        }
        let is_equal = |one: &Arc<Policy>, other: &Arc<Policy>| Arc::ptr_eq(one, other) || one == other;
        let named = LazyCell::new(|| self.policies.iter().map(name).zip(0..).collect::<HashMap<_, usize>>());
        // Most policies are where they were.
        let place = |index: usize, policy: &Arc<Policy>| match self.policies.get(index) {
            Some(present) if name(present) == name(policy) => Some(index),
            _ => named.get(&name(policy)).copied(),
        };
        // The present index of each earlier policy that is the same.
        let same: Vec<Option<usize>> = before
            .policies
            .iter()
            .enumerate()
            .map(|(index, policy)| place(index, policy).filter(|index| is_equal(&self.policies[*index], policy)))
            .collect();
        let is_same = |one: &Function, was: &Function| {
            // The configuration of a caller has parts of its callees'.
            let is_alone = one.callees.is_empty() && was.callees.is_empty();
            let policies = was.policies.iter().map(|index| same.get(*index).copied().flatten());
            is_alone && policies.eq(one.policies.iter().map(|index| Some(*index))) && one.is_same_but_policies(was)
        };
        let changed =
            self.functions.iter().filter(|(id, one)| before.functions.get(*id).is_none_or(|was| !is_same(one, was)));
        let removed = before.functions.keys().filter(|id| !self.functions.contains_key(*id));
        Some(SnapshotDifference {
            changed: changed.map(|(id, _)| id.clone()).collect(),
            removed: removed.cloned().collect(),
        })
    }
}

impl Function {
    /// Whether all fields but the indices of policies are the same.
    fn is_same_but_policies(&self, other: &Self) -> bool {
        let Self {
            origin,
            labels,
            protocol,
            run,
            place,
            declared_places,
            expose,
            callees,
            concurrency,
            queue,
            scale,
            timeout,
            as_received,
            plan,
            chain,
            policies: _,
        } = self;
        (origin, labels, protocol, run, place, declared_places)
            == (&other.origin, &other.labels, &other.protocol, &other.run, &other.place, &other.declared_places)
            && (expose, callees, concurrency, queue, scale)
                == (&other.expose, &other.callees, &other.concurrency, &other.queue, &other.scale)
            && (timeout, as_received, plan, chain) == (&other.timeout, &other.as_received, &other.plan, &other.chain)
    }
}
