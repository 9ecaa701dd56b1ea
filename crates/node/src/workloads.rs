//! The reconciler's view of the instances of functions: processes that the supervisor runs, and pods
//! that Kubernetes runs.

use leno_model::FunctionId;
use leno_supervisor::Supervisor;
use leno_wire::Instance;
use std::collections::BTreeSet;
use tokio::sync::watch;

/// Instances of functions on this node, whose changes the node reports.
pub(crate) trait Workloads: Send + Sync {
    /// A counter that rises whenever an instance changes its state.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The functions with such a change since the last call.
    fn take_changed(&self) -> BTreeSet<FunctionId>;

    /// The functions that have instances, or had some.
    fn functions(&self) -> BTreeSet<FunctionId>;

    /// The instances of a function in the control plane's format.
    fn instances(&self, function: &FunctionId) -> Vec<Instance>;
}

impl Workloads for Supervisor {
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes()
    }

    fn take_changed(&self) -> BTreeSet<FunctionId> {
        self.take_changed()
    }

    fn functions(&self) -> BTreeSet<FunctionId> {
        self.status().into_iter().map(|status| status.function).collect()
    }

    fn instances(&self, function: &FunctionId) -> Vec<Instance> {
        let report = |status: leno_supervisor::InstanceStatus| Instance {
            id: status.id.number,
            state: status.state,
            address: status.address,
            pid: status.pid,
            restarts: status.restarts,
            since: status.since,
        };
        self.instances(function).into_iter().map(report).collect()
    }
}
