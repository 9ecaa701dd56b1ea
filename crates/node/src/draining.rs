//! Functions that were removed, but that exchanges of an earlier configuration still call.
//!
//! Such an exchange sees its snapshot to its end, and so does the instance that it is with: what that calls is judged by the snapshot that
//! both are in. So their instances, credentials and certificates stay until nothing of them is under way any more, and no longer than the
//! drain timeout.

use leno_config::FunctionId;
use leno_function::Supervisor;
use leno_proxy::{FunctionEntry, Node, NodeSnapshot};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often what has left is let go of.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// What is draining, in the order in which it was removed.
#[derive(Default)]
pub(crate) struct Draining(Vec<Removal>);

struct Removal {
    /// The last snapshot with them.
    before: Arc<NodeSnapshot>,
    functions: BTreeSet<FunctionId>,
    until: Instant,
}

impl Removal {
    /// Nobody but this, and the node for those who come, holds the snapshot or one before it, and no instance has a request.
    fn is_over(&self, node: &Node, supervisor: &Supervisor) -> bool {
        let idle = |id| supervisor.function(id).is_none_or(|function| function.is_idle());
        let unseen = || Arc::strong_count(&self.before) <= 2 && node.is_oldest(&self.before);
        self.until <= Instant::now() || unseen() && self.functions.iter().all(idle)
    }
}

impl Draining {
    /// Whether nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These functions were removed; they may stay for so long.
    pub(crate) fn add(
        &mut self,
        node: &Node,
        before: Arc<NodeSnapshot>,
        functions: BTreeSet<FunctionId>,
        limit: Duration,
    ) {
        if !functions.is_empty() {
            self.0.push(Removal { before, functions, until: Instant::now() + limit });
            self.tell(node);
        }
    }

    /// A function is there again; it does not leave.
    pub(crate) fn keep(&mut self, id: &FunctionId) {
        self.0.iter_mut().for_each(|removal| removal.functions.retain(|draining| draining != id));
    }

    /// What nobody needs any more.
    pub(crate) fn gone(&mut self, node: &Node, supervisor: &Supervisor) -> Vec<FunctionId> {
        let over: Vec<Removal> = self.0.extract_if(.., |removal| removal.is_over(node, supervisor)).collect();
        if !over.is_empty() {
            self.tell(node);
        }
        over.into_iter().flat_map(|removal| removal.functions).collect()
    }

    /// Entries of what is leaving.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<FunctionEntry>> {
        self.0.iter().flat_map(|removal| removal.functions.iter().filter_map(|id| removal.before.functions.get(id)))
    }

    fn tell(&self, node: &Node) {
        // Who was in several has the latest.
        let former = self.0.iter().rev().map(|removal| removal.before.clone()).collect();
        node.former.store(Arc::new(former));
    }
}
