//! Removed functions that exchanges of an earlier configuration still call.
//!
//! Such an exchange keeps its snapshot to its end, and so does the instance that handles it: the
//! instance's calls are judged by the last function configuration of its function. So the
//! instances, credentials and certificates of removed functions stay until nothing uses them, but
//! no longer than the drain timeout. The proxy then closes the exchanges that are still open. Where
//! the permission went with the function, they have [`leno_proxy::GRACE`].

use leno_model::FunctionId;
use leno_proxy::{FunctionEntry, GRACE, Node, NodeSnapshot, RemovedFunctions};
use leno_supervisor::Supervisor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Interval between checks for functions that have drained.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Draining functions, in the order of their removal.
#[derive(Default)]
pub(crate) struct Draining(Vec<Removal>);

struct Removal {
    /// The last snapshot that contains the functions.
    before: Arc<NodeSnapshot>,
    /// When the open exchanges of each are closed.
    functions: BTreeMap<FunctionId, Instant>,
}

impl Removal {
    /// Whether the functions are unused: no exchange holds a snapshot with them, and no instance
    /// has a request.
    fn is_unused(&self, node: &Node, supervisor: &Supervisor) -> bool {
        let idle = |id| supervisor.function(id).is_none_or(|function| function.is_idle());
        node.is_unseen(&self.before) && self.functions.keys().all(idle)
    }

    fn entries(&self) -> impl Iterator<Item = (&Arc<FunctionEntry>, Instant)> {
        self.functions.iter().filter_map(|(id, until)| Some((self.before.functions.get(id)?, *until)))
    }
}

impl Draining {
    /// Whether nothing is draining.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins to drain functions that were removed. They stay for `limit` at most.
    pub(crate) fn add(
        &mut self,
        node: &Node,
        before: Arc<NodeSnapshot>,
        functions: BTreeSet<FunctionId>,
        limit: Duration,
    ) {
        if functions.is_empty() {
            return;
        }
        // A limit that the clock cannot represent counts as none.
        let until = Instant::now().checked_add(limit).unwrap_or_else(|| Instant::now() + FOREVER);
        self.0.push(Removal { before, functions: functions.into_iter().map(|id| (id, until)).collect() });
        self.publish(node);
    }

    /// Gives removed functions no longer than the grace of a withdrawn permission.
    pub(crate) fn withdraw(&mut self, node: &Node, functions: &BTreeSet<FunctionId>) {
        let latest = Instant::now() + GRACE;
        let of_removal = |removal: &Removal| removal.functions.keys().any(|id| functions.contains(id));
        if !self.0.iter().any(of_removal) {
            return;
        }
        let draining = self.0.iter_mut().flat_map(|removal| &mut removal.functions);
        draining.filter(|(id, _)| functions.contains(id)).for_each(|(_, until)| *until = latest.min(*until));
        self.publish(node);
    }

    /// Stops draining a function that was added again.
    pub(crate) fn keep(&mut self, id: &FunctionId) {
        self.0.iter_mut().for_each(|removal| removal.functions.retain(|draining, _| draining != id));
    }

    /// Removes the functions that have drained, or whose time is up, and returns them.
    pub(crate) fn take_drained(&mut self, node: &Node, supervisor: &Supervisor) -> Vec<FunctionId> {
        let now = Instant::now();
        let mut over = BTreeMap::new();
        for removal in &mut self.0 {
            if removal.is_unused(node, supervisor) {
                over.append(&mut removal.functions);
            }
            over.extend(removal.functions.extract_if(.., |_, until| *until <= now));
        }
        let before = self.0.len();
        self.0.retain(|removal| !removal.functions.is_empty());
        if !over.is_empty() || self.0.len() < before {
            self.publish(node);
        }
        over.into_keys().collect()
    }

    /// The entries of all draining functions.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<FunctionEntry>> {
        self.0.iter().flat_map(Removal::entries).map(|(entry, _)| entry)
    }

    fn publish(&self, node: &Node) {
        // The newest comes last: of a function that was removed several times, that one counts.
        let entries = self.0.iter().flat_map(Removal::entries).map(|(entry, until)| (entry.clone(), until));
        node.set_removed(RemovedFunctions::new(entries));
    }
}

/// Some hundred years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
