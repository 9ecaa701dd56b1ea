//! Consequences of a change for other parts of the state.

use leno_model::FunctionId;
use leno_wire::Subject;
use std::sync::Arc;

/// A consequence of a change. Parts return effects instead of calling each other;
/// [`super::State::carry_out`] carries them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Send a changed resource to the nodes that want it.
    Announce(Subject),
    /// Recompute which nodes host these functions.
    Rehost(Vec<FunctionId>),
    /// The scheduler has moved these functions: recompute their nodes, bounds and idle nodes.
    Moved(Vec<FunctionId>),
    /// A node has stopped hosting a function: forget its bounds and load there.
    Unhosted(FunctionId, Arc<str>),
    /// The scheduler has taken a function from a node: forget its load there.
    ForgetLoad(FunctionId, Arc<str>),
    /// Divide the instances of a function, and those of its namespace.
    Rebalance(FunctionId),
    /// Divide the instances of a function between its nodes.
    DivideInstances(FunctionId),
    /// Divide the instances of functions that wait until this one of their namespace has fewer.
    DivideWaiting(FunctionId),
    /// Take a function from the idle nodes that it is leaving.
    LeaveIdleNodes(FunctionId),
    /// Divide the rate limits of a function between its nodes.
    DivideLimits(FunctionId),
    /// Assign a node to each job that needs one.
    PlaceJobs,
}

impl Effect {
    /// Endpoints of a function have changed.
    pub(super) fn endpoints(id: &FunctionId) -> Self {
        Self::Announce(Subject::Endpoints(id.clone()))
    }

    /// The scheduler may have moved functions; without any, nothing follows.
    pub(super) fn moved(ids: impl IntoIterator<Item = FunctionId>) -> Option<Self> {
        let ids: Vec<_> = ids.into_iter().collect();
        (!ids.is_empty()).then_some(Self::Moved(ids))
    }
}
