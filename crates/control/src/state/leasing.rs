//! The shares of rate limits on each node.

use super::effect::Effect;
use super::hosting::Hosting;
use super::nodes::Nodes;
use crate::bounds::Delivery;
use crate::definitions::CompiledDefinitions;
use crate::leases::{Leases, TAKEN};
use leno_model::FunctionId;
use leno_wire::{Lease, LimitDemand, Subject};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The rate limits that are divided between nodes.
#[derive(Default)]
pub(super) struct Leasing {
    leases: HashMap<FunctionId, Leases>,
    /// Functions whose limits may have to be divided anew.
    dividing: BTreeSet<FunctionId>,
    /// When nodes last requested another term of their leases, also of nodes that are gone.
    renewed: BTreeMap<Arc<str>, Duration>,
}

impl Leasing {
    /// Stores the rate limits of a function. `awaiting`: nodes of an earlier process may still
    /// return.
    pub(super) fn define(&mut self, id: &FunctionId, compiled: &CompiledDefinitions, awaiting: bool, now: Duration) {
        let limits = compiled.functions.get(id).map(|function| &function.limits[..]).unwrap_or_default();
        if limits.is_empty() && !self.leases.contains_key(id) {
            return;
        }
        // Leases of an earlier process may be in use for a term.
        let earlier = awaiting && now < TAKEN;
        let new = || if earlier { Leases::frozen(TAKEN) } else { Leases::default() };
        self.leases.entry(id.clone()).or_insert_with(new).define(limits);
        self.drop_unused(id, compiled);
    }

    /// Divides the rate limits of a function between the nodes that host it and share them.
    pub(super) fn divide(&mut self, id: &FunctionId, hosts: &[Arc<str>], now: Duration) -> Option<Effect> {
        let leases = self.leases.get_mut(id)?;
        self.dividing.insert(id.clone());
        leases.divide(hosts, now).then(|| Effect::Announce(Subject::Quota(id.clone())))
    }

    /// Divides all limits anew for which it is time, and frees the shares of silent nodes.
    pub(super) fn tick(
        &mut self,
        compiled: &CompiledDefinitions,
        hosting: &Hosting,
        nodes: &Nodes,
        now: Duration,
    ) -> Vec<Effect> {
        for (id, name) in self.silent_holders(nodes, now) {
            if let Some(leases) = self.leases.get_mut(&id) {
                leases.forget(&name);
            }
        }
        let mut effects = Vec::new();
        for id in self.dividing.iter().cloned().collect::<Vec<_>>() {
            effects.extend(self.divide(&id, &hosting.limited_hosts(&id, nodes), now));
            self.drop_unused(&id, compiled);
            let rests = |leases: &Leases| leases.rests(now) && leases.holders().all(|name| hosting.is_host(&id, name));
            if self.leases.get(&id).is_none_or(rests) {
                self.dividing.remove(&id);
            }
        }
        effects
    }

    /// Nodes whose term is over, with the functions of which they still have shares.
    fn silent_holders(&self, nodes: &Nodes, now: Duration) -> Vec<(FunctionId, Arc<str>)> {
        let silent = |name: &Arc<str>| {
            let renewed = self.renewed.get(name).copied().unwrap_or_default();
            now >= renewed + TAKEN && nodes.all.get(name).is_none_or(|node| node.session.is_none())
        };
        let holders = |(id, leases): (&FunctionId, &Leases)| {
            leases.holders().filter(|name| silent(name)).map(|name| (id.clone(), name.clone())).collect::<Vec<_>>()
        };
        // `dividing` has each function of which a node that no longer hosts it still holds a share.
        self.dividing.iter().filter_map(|id| self.leases.get_key_value(id)).flat_map(holders).collect()
    }

    /// A node requests another term.
    pub(super) fn renew(&mut self, name: Arc<str>, now: Duration) {
        self.renewed.insert(name, now);
    }

    /// Adds a node's report on the demand for rate limits.
    pub(super) fn demand(&mut self, name: &Arc<str>, demands: Vec<LimitDemand>, nodes: &mut Nodes) {
        for LimitDemand { function, limit, admitted, refused } in demands {
            if nodes.may_report(name, &function)
                && let Some(leases) = self.leases.get_mut(&function)
            {
                leases.report(name, &limit, admitted, refused);
                self.dividing.insert(function);
            }
        }
    }

    /// The shares of a node.
    pub(super) fn shares(&self, id: &FunctionId, name: &str) -> Option<Lease> {
        self.leases.get(id)?.of(name)
    }

    /// Shares were sent to a node.
    pub(super) fn sent(&mut self, id: &FunctionId, name: &Arc<str>, delivery: Delivery) {
        if let Some(leases) = self.leases.get_mut(id) {
            leases.sent(name, delivery);
        }
    }

    /// A node has applied shares, or rejected them.
    pub(super) fn answered(&mut self, id: &FunctionId, name: &str, delivery: Delivery, accepted: bool) -> Effect {
        if let Some(leases) = self.leases.get_mut(id) {
            leases.answered(name, delivery, accepted);
        }
        Effect::DivideLimits(id.clone())
    }

    /// A node has no shares of a function any more.
    pub(super) fn gone(
        &mut self,
        id: &FunctionId,
        name: &str,
        (compiled, hosting, nodes): (&CompiledDefinitions, &Hosting, &Nodes),
        now: Duration,
    ) -> Option<Effect> {
        let leases = self.leases.get_mut(id).filter(|_| !hosting.is_host(id, name))?;
        leases.forget(name);
        let effect = self.divide(id, &hosting.limited_hosts(id, nodes), now);
        self.drop_unused(id, compiled);
        effect
    }

    /// Stores the shares that a node had before it connected.
    pub(super) fn restore(&mut self, name: &Arc<str>, leases: &[(FunctionId, Lease)], now: Duration) {
        for (id, lease) in leases {
            if let Some(leases) = self.leases.get_mut(id) {
                leases.recall(name, lease, now);
            }
        }
    }

    /// Drops the leases of a removed function once no node can hold any.
    fn drop_unused(&mut self, id: &FunctionId, compiled: &CompiledDefinitions) {
        let limited = compiled.functions.get(id).is_some_and(|function| !function.limits.is_empty());
        if !limited && self.leases.get(id).is_some_and(|leases| leases.holders().next().is_none()) {
            self.leases.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_an_undefined_function_have_no_leases() {
        let (mut leasing, id) = (Leasing::default(), "shop/checkout".parse().unwrap());
        leasing.define(&id, &CompiledDefinitions::default(), false, Duration::ZERO);
        assert_eq!(leasing.divide(&id, &["one".into()], Duration::ZERO), None);
        assert_eq!(leasing.shares(&id, "one"), None);
        assert_eq!(
            leasing.tick(&CompiledDefinitions::default(), &Hosting::default(), &Nodes::default(), Duration::ZERO),
            []
        );
    }
}
