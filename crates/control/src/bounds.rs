//! Divides the instances that a function may have between nodes.
//!
//! At no moment may the nodes together have more instances than the function's maximum, also while
//! bounds move. So a node's bound is lowered first, and another's is raised when the first node has
//! acknowledged.

use leno_wire::Bounds;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The inputs of a node's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Instances that the node could have.
    pub holds: u32,
    /// Instances that it has, or that its load asks for.
    pub wants: u32,
}

/// Divides a minimum and a maximum between nodes, the home first: `(least, most)` of each. The sum
/// of the minima is `min`, if the nodes can hold it; the sum of the maxima is never above `max`. A
/// node keeps its present count, as far as possible; the rest is divided evenly.
pub(crate) fn divide(min: u32, max: u32, nodes: &[Share]) -> Vec<(u32, u32)> {
    let limits: Vec<u32> = nodes.iter().map(|node| node.holds).collect();
    let nothing = vec![0; nodes.len()];
    let least = pour(min.min(max), &nothing, &limits);
    let mut left = max - least.iter().sum::<u32>();
    let mut most = least.clone();
    for (node, most) in nodes.iter().zip(&mut most) {
        let more = node.wants.min(node.holds).saturating_sub(*most).min(left);
        *most += more;
        left -= more;
    }
    let most = pour(left, &most, &limits);
    least.into_iter().zip(most).collect()
}

/// The claim of one of several functions or nodes that share a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its minimum number of instances.
    pub least: u32,
    /// Its present number of instances.
    pub has: u32,
    /// The number of instances for its load.
    pub wants: u32,
    /// Its maximum number of instances.
    pub most: u32,
}

/// Divides a bound: first all get their minimum, then their present instances, then the instances
/// that they want, and the rest evenly.
pub(crate) fn apportion(bound: u32, claims: &[Claim]) -> Vec<u32> {
    let (mut levels, mut left) = (vec![0; claims.len()], bound);
    let steps: [fn(&Claim) -> u32; 4] =
        [|claim| claim.least, |claim| claim.has, |claim| claim.wants, |claim| claim.most];
    for step in steps {
        let limits: Vec<u32> = claims.iter().map(|claim| step(claim).min(claim.most)).collect();
        levels = pour(left, &levels, &limits);
        left = bound - levels.iter().sum::<u32>();
    }
    levels
}

/// Adds `amount` to `levels`, evenly, up to the limits. The remainder goes to the first ones.
fn pour(mut amount: u32, levels: &[u32], limits: &[u32]) -> Vec<u32> {
    let mut levels = levels.to_vec();
    loop {
        let open: Vec<usize> = (0..levels.len()).filter(|at| levels[*at] < limits[*at]).collect();
        if open.is_empty() || amount == 0 {
            return levels;
        }
        let each = (amount / open.len() as u32).max(1);
        for at in open {
            let more = each.min(limits[at] - levels[at]).min(amount);
            levels[at] += more;
            amount -= more;
        }
    }
}

/// The bounds of one function on all nodes.
#[derive(Default)]
pub(crate) struct Grants(BTreeMap<Arc<str>, Grant>);

/// The session and the nonce of a delta. Deltas of a node are acknowledged in their order.
pub(crate) type Delivery = (u64, u64);

/// The bounds of one function on one node.
#[derive(Default)]
struct Grant {
    /// Bounds that may be in force: first the last ones that were acknowledged, then those that
    /// were sent since.
    sent: VecDeque<(Delivery, Vec<Bounds>)>,
    /// Bounds that the node should have. They are sent unchanged; see [`Grants::set`].
    now: Vec<Bounds>,
}

impl Grant {
    /// Maximum number of instances of a revision that the node may have, for all bounds that may be
    /// in force.
    fn highest(&self, revision: u32) -> u32 {
        let sent = self.sent.iter().map(|(_, bounds)| most(bounds, revision));
        sent.chain([most(&self.now, revision)]).max().unwrap_or(0)
    }
}

impl Grants {
    /// Sets the bounds that nodes should have. `maxima` are the maxima of the revisions. Lower
    /// bounds hold at once, higher ones as far as no other node may still have more. Nodes without
    /// a target get no bounds: the function has left them. Returns the nodes whose bounds have changed.
    pub(crate) fn set(
        &mut self,
        targets: &BTreeMap<Arc<str>, Vec<Bounds>>,
        maxima: &BTreeMap<u32, u32>,
    ) -> Vec<Arc<str>> {
        for name in targets.keys() {
            self.0.entry(name.clone()).or_default();
        }
        let before: BTreeMap<_, _> = self.0.iter().map(|(name, grant)| (name.clone(), grant.now.clone())).collect();
        for (name, grant) in &mut self.0 {
            let Some(target) = targets.get(name).filter(|target| !target.is_empty()) else {
                grant.now.clear();
                continue;
            };
            let lowered = maxima.keys().map(|revision| {
                let most = most(&grant.now, *revision).min(most(target, *revision));
                Bounds { revision: *revision, least: least(target, *revision).min(most), most }
            });
            grant.now = lowered.collect();
        }
        for (name, target) in targets {
            for (revision, max) in maxima {
                let wanted = most(target, *revision);
                let others = self.0.iter().filter(|(other, _)| *other != name);
                let taken: u64 = others.map(|(_, grant)| u64::from(grant.highest(*revision))).sum();
                let free = u32::try_from(u64::from(*max).saturating_sub(taken)).unwrap_or(u32::MAX);
                let Some(grant) = self.0.get_mut(name) else { continue };
                if let Some(now) = grant.now.iter_mut().find(|bounds| bounds.revision == *revision) {
                    now.most = now.most.max(wanted.min(free));
                    now.least = least(target, *revision).min(now.most);
                }
            }
        }
        let changed = self.0.iter().filter(|(name, grant)| before.get(*name) != Some(&grant.now));
        changed.map(|(name, _)| name.clone()).collect()
    }

    /// The bounds that a node should have now; `None`: the function is not there.
    pub(crate) fn of(&self, name: &str) -> Option<&[Bounds]> {
        self.0.get(name).map(|grant| &*grant.now)
    }

    /// Maximum number of instances of a revision that a node may have, for all bounds that may be
    /// in force.
    pub(crate) fn highest(&self, name: &str, revision: u32) -> u32 {
        self.0.get(name).map_or(0, |grant| grant.highest(revision))
    }

    /// Maximum number of instances of a revision on all nodes together, for all bounds that may be
    /// in force.
    pub(crate) fn total(&self, revision: u32) -> u32 {
        self.0.values().map(|grant| grant.highest(revision)).fold(0, u32::saturating_add)
    }

    /// Nodes that have bounds, or may have them.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.keys()
    }

    /// Instances of all revisions that a node must have.
    pub(crate) fn least_on(&self, name: &str) -> u32 {
        self.of(name).unwrap_or_default().iter().map(|bounds| bounds.least).sum()
    }

    /// The bounds of a node were sent.
    pub(crate) fn sent(&mut self, name: &str, delivery: Delivery) {
        if let Some(grant) = self.0.get_mut(name) {
            grant.sent.push_back((delivery, grant.now.clone()));
        }
    }

    /// A node has acknowledged a delivery. Other nodes' bounds may be raised now.
    pub(crate) fn in_force(&mut self, name: &str, delivery: Delivery) {
        let Some(grant) = self.0.get_mut(name) else { return };
        if let Some(at) = grant.sent.iter().position(|(sent, _)| *sent == delivery) {
            grant.sent.drain(..at);
        }
    }

    /// A node refused a delivery and keeps its previous bounds.
    pub(crate) fn rejected(&mut self, name: &str, delivery: Delivery) {
        if let Some(grant) = self.0.get_mut(name) {
            grant.sent.retain(|(sent, _)| *sent != delivery);
        }
    }

    /// Whether it is not known which bounds the node has in force, because a stream ended before it
    /// acknowledged the last ones.
    pub(crate) fn are_uncertain(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|grant| grant.sent.len() > 1)
    }

    /// Stores the bounds that a node reports to have in force. After its restart, or after it took
    /// the node for lost, the control plane does not know them.
    pub(crate) fn recall(&mut self, name: &Arc<str>, bounds: Vec<Bounds>) {
        let grant = self.0.entry(name.clone()).or_default();
        if grant.sent.is_empty() {
            grant.now = bounds.clone();
            grant.sent.push_back(((0, 0), bounds));
        }
    }

    /// A node has the function no more. Returns whether it had bounds.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Whether a node may have instances, for any bounds that may be in force.
    pub(crate) fn may_have_instances(&self, name: &str) -> bool {
        let Some(grant) = self.0.get(name) else { return false };
        let all = grant.sent.iter().flat_map(|(_, bounds)| bounds).chain(&grant.now);
        all.map(|bounds| bounds.most).max().unwrap_or(0) > 0
    }
}

fn most(bounds: &[Bounds], revision: u32) -> u32 {
    bounds.iter().find(|bounds| bounds.revision == revision).map_or(0, |bounds| bounds.most)
}

fn least(bounds: &[Bounds], revision: u32) -> u32 {
    bounds.iter().find(|bounds| bounds.revision == revision).map_or(0, |bounds| bounds.least)
}

#[cfg(test)]
mod tests;
