//! Removed functions that exchanges of an earlier configuration still call.
//!
//! Such an exchange keeps its snapshot to its end, and so does the instance that handles it: the instance's calls are judged by the last snapshot
//! that contains its function. So the instances, credentials and certificates of removed functions stay until nothing uses them, but no longer than
//! the drain timeout.

use leno_config::FunctionId;
use leno_function::Supervisor;
use leno_proxy::{FunctionEntry, Node, NodeSnapshot};
use std::collections::BTreeSet;
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
    functions: BTreeSet<FunctionId>,
    until: Instant,
}

impl Removal {
    /// Whether the time is up, or nothing uses the functions. The latter means that only this list and [`Node::former`] hold the snapshot, nobody
    /// holds an older one, and no instance has a request.
    fn is_over(&self, node: &Node, supervisor: &Supervisor) -> bool {
        let idle = |id| supervisor.function(id).is_none_or(|function| function.is_idle());
        let unseen = || Arc::strong_count(&self.before) <= 2 && node.is_oldest(&self.before);
        self.until <= Instant::now() || unseen() && self.functions.iter().all(idle)
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
        if !functions.is_empty() {
            self.0.push(Removal { before, functions, until: Instant::now() + limit });
            self.publish_former(node);
        }
    }

    /// Stops draining a function that was added again.
    pub(crate) fn keep(&mut self, id: &FunctionId) {
        self.0.iter_mut().for_each(|removal| removal.functions.retain(|draining| draining != id));
    }

    /// Removes the functions that have drained, and returns them.
    pub(crate) fn take_drained(&mut self, node: &Node, supervisor: &Supervisor) -> Vec<FunctionId> {
        let over: Vec<Removal> = self.0.extract_if(.., |removal| removal.is_over(node, supervisor)).collect();
        if !over.is_empty() {
            self.publish_former(node);
        }
        over.into_iter().flat_map(|removal| removal.functions).collect()
    }

    /// The entries of all draining functions.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<FunctionEntry>> {
        self.0.iter().flat_map(|removal| removal.functions.iter().filter_map(|id| removal.before.functions.get(id)))
    }

    fn publish_former(&self, node: &Node) {
        // The newest snapshot comes first: a function that was in several is found in its latest one.
        let former = self.0.iter().rev().map(|removal| removal.before.clone()).collect();
        node.former.store(Arc::new(former));
    }
}
