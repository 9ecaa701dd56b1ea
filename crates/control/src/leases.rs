//! Divides the rate limits of a function between its nodes.
//!
//! At no moment may the nodes' shares of a limit exceed the limit together. They move as bounds do
//! ([`Grants`]): one is lowered first, and another is raised when the first node has acknowledged.
//! The share of a node that is cut off stays taken until the node's term is over, because until
//! then the node may use it.

use crate::bounds::{Delivery, Grants};
use leno_policy::quota::PARTS;
use leno_wire::{Bounds, Lease, LimitShare};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long the control plane waits before it gives a silent node's shares to others: a term, and
/// the maximum drift of clocks within it.
pub(crate) const TAKEN: Duration = Duration::from_secs(11);
/// Interval between divisions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of units into which a limit is divided. They divide [`PARTS`].
const UNITS: u32 = 720;
/// One in so many units is divided evenly, so that a node can admit requests before its demand is
/// known.
const FLOOR: u32 = 40;
/// Shares that would change by less than one in so many parts of the limit stay.
const HYSTERESIS: u32 = 50;

/// The limits of one function on all nodes.
#[derive(Default)]
pub(crate) struct Leases {
    /// The shares, as bounds: a limit's number takes the place of a revision's.
    grants: Grants,
    /// Each limit that the function has ever had. If a removed limit comes back, a node may still
    /// hold a share of it.
    limits: BTreeMap<String, Limit>,
    demands: BTreeMap<Arc<str>, BTreeMap<u32, Demand>>,
    divided: Duration,
    /// Until then, a node may hold shares that an earlier control plane has granted.
    frozen_until: Duration,
}

struct Limit {
    number: u32,
    /// Requests of the whole limit; 0: the function has no such limit any more.
    capacity: u32,
    /// The nodes between which it was last divided, and the share that each should have.
    nodes: Vec<Arc<str>>,
    aim: Vec<u32>,
    /// Nodes that were sent a share.
    opened: BTreeSet<Arc<str>>,
    /// Shares of it have moved, so a node's new share may be used up.
    moved: bool,
}

#[derive(Clone, Copy, Default)]
struct Demand {
    admitted: u64,
    refused: u64,
    /// Requests since the last division, and those of earlier ones, fading.
    recent: f64,
    /// Whether requests were refused since the last division.
    short: bool,
}

impl Leases {
    /// For a function whose limits an earlier control plane may have divided: nodes get no new
    /// shares before `until`.
    pub(crate) fn frozen(until: Duration) -> Self {
        Self { frozen_until: until, ..Self::default() }
    }

    /// Sets the limits of the function, with the requests of each.
    pub(crate) fn define(&mut self, limits: &[(String, u32)]) {
        self.limits.values_mut().for_each(|limit| limit.capacity = 0);
        for (name, capacity) in limits {
            let number = self.limits.len() as u32;
            let moved = self.frozen_until > Duration::ZERO;
            let (nodes, aim, opened) = Default::default();
            let new = || Limit { number, capacity: 0, nodes, aim, opened, moved };
            self.limits.entry(name.clone()).or_insert_with(new).capacity = *capacity;
        }
    }

    /// Adds a node's totals of a limit. They begin when the node gets the function.
    pub(crate) fn report(&mut self, name: &Arc<str>, limit: &str, admitted: u64, refused: u64) {
        let Some(limit) = self.limits.get(limit) else { return };
        let demand = self.demands.entry(name.clone()).or_default().entry(limit.number).or_default();
        let again = admitted < demand.admitted || refused < demand.refused;
        let (before_admitted, before_refused) = if again { (0, 0) } else { (demand.admitted, demand.refused) };
        demand.recent += (admitted - before_admitted) as f64 + (refused - before_refused) as f64;
        demand.short |= refused > before_refused;
        (demand.admitted, demand.refused) = (admitted, refused);
    }

    /// Divides the limits between these nodes. Returns whether any node's shares have changed.
    pub(crate) fn divide(&mut self, nodes: &[Arc<str>], now: Duration) -> bool {
        let mut targets: BTreeMap<Arc<str>, Vec<Bounds>> = nodes.iter().map(|name| (name.clone(), vec![])).collect();
        let due = now >= self.divided + INTERVAL;
        let mut maxima = BTreeMap::new();
        let frozen = now < self.frozen_until;
        let mut limits = std::mem::take(&mut self.limits);
        for limit in limits.values_mut() {
            maxima.insert(limit.number, PARTS);
            if limit.capacity == 0 {
                continue;
            }
            if !frozen && let Some(aim) = self.aim(limit, nodes, due) {
                (limit.aim, limit.nodes) = (aim, nodes.to_vec());
            }
            for (at, name) in nodes.iter().enumerate() {
                let held = || self.grants.highest(name, limit.number);
                let most = if frozen { held() } else { limit.aim.get(at).copied().unwrap_or(0) };
                if let Some(target) = targets.get_mut(name) {
                    target.push(Bounds { revision: limit.number, least: 0, most });
                }
            }
        }
        self.limits = limits;
        if due {
            self.divided = now;
            for demand in self.demands.values_mut().flat_map(BTreeMap::values_mut) {
                (demand.recent, demand.short) = (demand.recent / 2.0, false);
            }
        }
        let changed = self.grants.set(&targets, &maxima);
        for limit in self.limits.values_mut() {
            // A node may have used the part that its share loses.
            limit.moved |= limit.opened.iter().any(|name| {
                let sent = self.grants.highest(name, limit.number);
                let now = self.grants.of(name).unwrap_or_default().iter().find(|now| now.revision == limit.number);
                now.map_or(0, |now| now.most) != sent
            });
        }
        !changed.is_empty()
    }

    /// The requests for each limit on a node.
    fn demand(&self, name: &Arc<str>, number: u32) -> Demand {
        self.demands.get(name).and_then(|limits| limits.get(&number)).copied().unwrap_or_default()
    }

    /// Decides the share of a limit that each node should have.
    fn aim(&self, limit: &Limit, nodes: &[Arc<str>], due: bool) -> Option<Vec<u32>> {
        let demands: Vec<Demand> = nodes.iter().map(|name| self.demand(name, limit.number)).collect();
        let weights: Vec<f64> = demands.iter().map(|demand| demand.recent).collect();
        let wanted = || shares(limit.capacity, &weights);
        if limit.nodes != nodes {
            return Some(wanted());
        }
        if !due || demands.iter().all(|demand| !demand.short) {
            return None;
        }
        let far = |(wanted, present): (&u32, &u32)| wanted.abs_diff(*present) >= PARTS / HYSTERESIS;
        Some(wanted()).filter(|wanted| wanted.iter().zip(&limit.aim).any(far))
    }

    /// The shares of a node; `None`: it has none.
    pub(crate) fn of(&self, node: &str) -> Option<Lease> {
        let bounds = self.grants.of(node)?;
        let share = |(name, limit): (&String, &Limit)| {
            let parts = bounds.iter().find(|bounds| bounds.revision == limit.number).map_or(0, |bounds| bounds.most);
            let unused = !limit.moved && !limit.opened.contains(node);
            (parts > 0).then(|| LimitShare { limit: name.clone(), parts, unused })
        };
        Some(Lease { shares: self.limits.iter().filter_map(share).collect() })
    }

    pub(crate) fn sent(&mut self, name: &Arc<str>, delivery: Delivery) {
        let now = self.grants.of(name).unwrap_or_default();
        for limit in self.limits.values_mut() {
            if now.iter().any(|now| now.revision == limit.number && now.most > 0) {
                limit.opened.insert(name.clone());
            }
        }
        self.grants.sent(name, delivery);
    }

    pub(crate) fn answered(&mut self, name: &str, delivery: Delivery, accepted: bool) {
        if accepted {
            self.grants.in_force(name, delivery);
        } else {
            self.grants.rejected(name, delivery);
        }
    }

    /// Stores the shares of a node that has connected. Unknown shares are from an earlier control
    /// plane.
    pub(crate) fn recall(&mut self, name: &Arc<str>, lease: &Lease, now: Duration) {
        if now >= self.frozen_until {
            return;
        }
        let of = |share: &LimitShare| {
            let number = self.limits.get(&share.limit)?.number;
            Some(Bounds { revision: number, least: 0, most: share.parts.min(PARTS) })
        };
        self.grants.recall(name, lease.shares.iter().filter_map(of).collect());
    }

    /// Removes a node, which holds no share any more.
    pub(crate) fn forget(&mut self, name: &str) {
        self.limits.values_mut().for_each(|limit| limit.moved |= limit.opened.contains(name));
        self.grants.forget(name);
        self.demands.remove(name);
    }

    /// Whether another division would change nothing until the next report.
    pub(crate) fn rests(&self, now: Duration) -> bool {
        let idle = |demand: &Demand| demand.recent < 1.0 && !demand.short;
        now >= self.frozen_until && self.demands.values().flat_map(BTreeMap::values).all(idle)
    }

    /// Nodes that hold a share, or may hold one.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Arc<str>> {
        self.grants.names()
    }
}

/// Divides a limit of so many requests by the weights of nodes. The sum is [`PARTS`]; each node
/// with any weight gets a whole request, as far as there are enough.
fn shares(capacity: u32, weights: &[f64]) -> Vec<u32> {
    let count = weights.len() as u32;
    if count == 0 {
        return Vec::new();
    }
    let units = capacity.clamp(1, UNITS);
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    let mut given = vec![units / FLOOR / count; weights.len()];
    let mut left = units - given.iter().sum::<u32>();
    for at in &order {
        if given[*at] == 0 && weights[*at] > 0.0 && left > 0 {
            given[*at] = 1;
            left -= 1;
        }
    }
    let all: f64 = weights.iter().sum();
    let part = |weight: f64| if all > 0.0 { weight / all } else { 1.0 / f64::from(count) };
    let free = left;
    for at in &order {
        let more = ((f64::from(free) * part(weights[*at])) as u32).min(left);
        given[*at] += more;
        left -= more;
    }
    for at in order.iter().cycle().take(left as usize) {
        given[*at] += 1;
    }
    let (mut sum, mut before) = (0_u64, 0);
    let mut parts = Vec::with_capacity(given.len());
    for units_of in given {
        sum += u64::from(units_of);
        let until = (sum * u64::from(PARTS) / u64::from(units)) as u32;
        parts.push(until - before);
        before = until;
    }
    parts
}

#[cfg(test)]
mod tests;
