//! Which shares of rate limits each node has.

use super::State;
use crate::bounds::Delivery;
use crate::leases::{Leases, TAKEN};
use leno_config::FunctionId;
use leno_wire::{Lease, LimitDemand, Subject};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl State {
    /// Takes in the rate limits of a function that was defined, or that it has none any more.
    pub(super) fn define_limits(&mut self, id: &FunctionId) {
        let limits = self.compiled.functions.get(id).map(|function| function.limits.clone()).unwrap_or_default();
        if limits.is_empty() && !self.leased.contains_key(id) {
            return;
        }
        // What an earlier process has leased may be in use for a term.
        let earlier = self.awaiting && self.now < TAKEN;
        let new = || if earlier { Leases::frozen(TAKEN) } else { Leases::default() };
        self.leased.entry(id.clone()).or_insert_with(new).define(&limits);
        self.drop_unused_leases(id);
    }

    /// Divides the rate limits of a function between the scheduled nodes that host it, and has changed shares delivered.
    pub(super) fn divide_limits(&mut self, id: &FunctionId) {
        let nodes: Vec<_> = self.index.hosting(id).filter(|name| self.is_scheduled(name)).cloned().collect();
        let now = self.now;
        let Some(leases) = self.leased.get_mut(id) else { return };
        self.dividing.insert(id.clone());
        if leases.divide(&nodes, now) {
            self.announce(&BTreeSet::from([Subject::Quota(id.clone())]));
        }
    }

    /// Divides all limits anew for which it is time, and frees the shares of nodes that are silent. Call it about twice a second. `now` is measured
    /// from the start of the control plane.
    pub(crate) fn lease(&mut self, now: Duration) {
        self.advance(now);
        let now = self.now;
        for (id, name) in self.silent_holders() {
            if let Some(leases) = self.leased.get_mut(&id) {
                leases.forget(&name);
            }
        }
        for id in self.dividing.iter().cloned().collect::<Vec<_>>() {
            self.divide_limits(&id);
            self.drop_unused_leases(&id);
            let hosts = |name: &Arc<str>| self.index.hosting(&id).any(|hosting| hosting == name);
            let rests = |leases: &Leases| leases.rests(now) && leases.holders().all(hosts);
            if self.leased.get(&id).is_none_or(rests) {
                self.dividing.remove(&id);
            }
        }
    }

    /// Nodes whose term is over, with the functions of which they still have shares.
    fn silent_holders(&self) -> Vec<(FunctionId, Arc<str>)> {
        let silent = |name: &Arc<str>| {
            let renewed = self.renewed.get(name).copied().unwrap_or_default();
            self.now >= renewed + TAKEN && self.nodes.get(name).is_none_or(|node| node.session.is_none())
        };
        let of = |(id, leases): (&FunctionId, &Leases)| {
            leases.holders().filter(|name| silent(name)).map(|name| (id.clone(), name.clone())).collect::<Vec<_>>()
        };
        // A function that still has a node which no longer hosts it is among these.
        self.dividing.iter().filter_map(|id| self.leased.get_key_value(id)).flat_map(of).collect()
    }

    /// A node asks for another term. Returns whether it gets one: the stream is its own.
    pub(crate) fn renew(&mut self, name: &str, number: u64, now: Duration) -> bool {
        let known = self.nodes.get_key_value(name).map(|(name, _)| name.clone());
        let (Some(name), true) = (known, self.session(name, number).is_some()) else { return false };
        self.advance(now);
        self.renewed.insert(name, self.now);
        true
    }

    /// Takes in what was asked of rate limits on a node.
    pub(crate) fn demand(&mut self, name: &str, number: u64, demands: Vec<LimitDemand>) {
        let known = self.nodes.get_key_value(name).map(|(name, _)| name.clone());
        let (Some(name), true) = (known, self.session(name, number).is_some()) else { return };
        for LimitDemand { function, limit, admitted, refused } in demands {
            if self.may_report(&name, &function)
                && let Some(leases) = self.leased.get_mut(&function)
            {
                leases.report(&name, &limit, admitted, refused);
                self.dividing.insert(function);
            }
        }
    }

    /// A node has put shares into force, or refused them.
    pub(super) fn lease_answered(&mut self, id: &FunctionId, name: &str, delivery: Delivery, accepted: bool) {
        if let Some(leases) = self.leased.get_mut(id) {
            leases.answered(name, delivery, accepted);
        }
        self.divide_limits(id);
    }

    /// A node has no shares of a function any more.
    pub(super) fn lease_gone(&mut self, id: &FunctionId, name: &str) {
        if self.index.hosting(id).all(|hosting| **hosting != *name)
            && let Some(leases) = self.leased.get_mut(id)
        {
            leases.forget(name);
            self.divide_limits(id);
            self.drop_unused_leases(id);
        }
    }

    /// A node that has connected says which shares it has.
    pub(super) fn recall_leases(&mut self, name: &Arc<str>, leases: &[(FunctionId, Lease)]) {
        let now = self.now;
        for (id, lease) in leases.iter().filter(|_| self.is_scheduled(name)).collect::<Vec<_>>() {
            if let Some(leases) = self.leased.get_mut(id) {
                leases.recall(name, lease, now);
            }
        }
    }

    /// A function that is gone keeps its leases until no node can hold any.
    fn drop_unused_leases(&mut self, id: &FunctionId) {
        let limited = self.compiled.functions.get(id).is_some_and(|function| !function.limits.is_empty());
        if !limited && self.leased.get(id).is_some_and(|leases| leases.holders().next().is_none()) {
            self.leased.remove(id);
        }
    }
}
