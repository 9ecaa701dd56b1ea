//! Rebalancing: moves functions to nodes that have come, from nodes that are fuller.
//!
//! A move leaves its new node no fuller than the previous one was, by a margin, and a function never
//! comes back to a node that it has left for another one. So no move is ever undone, and rebalancing
//! ends.

use super::{Node, Rank, Scheduler, Zone};
use leno_model::FunctionId;
use std::cmp::Reverse;
use std::sync::Arc;

/// Calls of [`Scheduler::rebalance`] until functions move to a node that has come: about five
/// seconds. A node that comes and goes gets none.
pub(super) const PROBATION: u32 = 10;
/// Maximum number of functions that leave a node at a time, in the whole mesh. Rebalancing moves
/// one at a time to each node.
const MAX_MOVING: usize = 8;
/// Minimum difference, in thousandths, between the used share of the previous node before a move
/// and that of the new node after it.
const MIN_RELIEF: u64 = 100;

/// A function that moves to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub function: FunctionId,
    pub from: Arc<str>,
    pub to: Arc<str>,
    /// The ranks of both nodes before the move.
    pub ranks: [Rank; 2],
}

/// A node with its name.
type Named<'a> = (&'a Arc<str>, &'a Node);

impl Scheduler {
    /// Begins the next moves to nodes that have come. Call it about twice a second.
    pub(crate) fn rebalance(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut due = Vec::new();
        for (name, left) in &mut self.joined {
            *left = left.saturating_sub(1);
            due.extend((*left == 0).then(|| name.clone()));
        }
        for to in due {
            if self.moving.len() >= MAX_MOVING {
                break;
            }
            if self.moving.iter().any(|id| self.is_on(id, &to)) {
                continue;
            }
            match self.best_move(&to) {
                Some(best) => {
                    self.carry_out(&best);
                    moves.push(best);
                }
                None => drop(self.joined.remove(&to)),
            }
        }
        moves
    }

    /// Functions that are leaving a node.
    pub(crate) fn moving(&self) -> impl Iterator<Item = &FunctionId> {
        self.moving.iter()
    }

    /// Whether a function is leaving a node.
    pub(crate) fn is_moving(&self, id: &FunctionId) -> bool {
        self.moving.contains(id)
    }

    /// Notes whether a function is leaving a node.
    pub(super) fn note_moving(&mut self, id: &FunctionId) {
        if self.leaving(id).next().is_some() {
            self.moving.insert(id.clone());
        } else {
            self.moving.remove(id);
        }
    }

    /// The move to this node that relieves the fullest other node best; `None`: no move improves
    /// the balance.
    fn best_move(&self, to: &Arc<str>) -> Option<Move> {
        let target = self.nodes.get_key_value(to)?;
        let mut sources: Vec<_> =
            self.nodes.iter().filter(|(name, node)| *name != to && node.state.is_schedulable()).collect();
        sources.sort_by_key(|(_, node)| Reverse(node.rank()));
        sources.into_iter().find_map(|source| {
            let functions = source.1.functions.iter();
            let (_, id) =
                functions.filter_map(|(id, count)| Some((self.cost(id, *count, source, target)?, id))).min()?;
            let ranks = [source.1.rank(), target.1.rank()];
            Some(Move { function: id.clone(), from: source.0.clone(), to: to.clone(), ranks })
        })
    }

    /// The cost of a move, by which moves are compared: whether it only evens out the number of
    /// functions, and the used share of the fuller node after it. `None`: the function stays.
    fn cost(&self, id: &FunctionId, reserved: u32, source: Named<'_>, target: Named<'_>) -> Option<(bool, u64)> {
        let placed = self.functions.get(id)?;
        if !self.may_move(id, reserved, source, target) {
            return None;
        }
        let ((_, source), (_, target)) = (source, target);
        let moved = placed.demand.instance.times(reserved);
        let left = source.used.minus(&moved).permille_of(&source.state.capacity);
        let got = target.used.plus(&moved).permille_of(&target.state.capacity);
        let ((share, functions), (_, fewer)) = (source.rank(), target.rank());
        let relieves = got.saturating_add(MIN_RELIEF) <= share;
        // One function in ten, and at least two, so that the new node has no more than the other.
        let evens_out = got <= share && functions.saturating_sub(fewer) >= (functions / 10).max(2);
        (relieves || evens_out).then(|| (!relieves, left.max(got)))
    }

    /// Whether the rules of placement allow the move: the target has capacity and the image, the
    /// function spans as many zones, and its instances keep no state.
    fn may_move(&self, id: &FunctionId, reserved: u32, source: Named<'_>, target: Named<'_>) -> bool {
        let Some(placed) = self.functions.get(id) else { return false };
        let ((from, source), (to, target)) = (source, target);
        let demand = &placed.demand;
        let in_zone = |zone: &Zone| {
            let others = placed.nodes.iter().filter(|name| *name != from);
            others.filter(|name| self.nodes.get(*name).is_some_and(|node| node.zone() == *zone)).count()
        };
        let is_over = || !target.state.sized && target.functions.len() > self.fair_share();
        demand.only.is_none()
            && !demand.stateful
            && placed.leaving.is_empty()
            && placed.nodes.contains(from)
            && !placed.nodes.contains(to)
            && !target.moved_away.contains(id)
            && demand.image.as_ref().is_none_or(|image| target.state.images.contains(image))
            && target.free_instances(demand, 0) >= reserved.max(1)
            && in_zone(&target.zone()) <= in_zone(&source.zone())
            && !is_over()
    }

    fn carry_out(&mut self, Move { function: id, from, to, .. }: &Move) {
        let Some(placed) = self.functions.get_mut(id) else { return };
        let Some(node) = placed.nodes.iter_mut().find(|node| *node == from) else { return };
        *node = to.clone();
        placed.leaving.insert(from.clone());
        if let Some(previous) = self.nodes.get_mut(from) {
            previous.moved_away.insert(id.clone());
        }
        let (instance, first) = (placed.demand.instance, u32::from(placed.demand.least > 0));
        self.reserve_first(id, to, &instance, first);
        self.note_moving(id);
    }
}
