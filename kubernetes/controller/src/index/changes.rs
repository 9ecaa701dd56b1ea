//! Changes of the index, for the control plane.

use crate::api::ObjectKey;
use crate::index::services::ServiceChanges;
use crate::index::uncaptured::UncapturedReason;
use crate::index::workload::Workload;
use leno_model::{FunctionId, Pod, PodUid};
use std::collections::{BTreeMap, BTreeSet};

/// The difference between two states of the index. The first is that to an empty one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Pods that are new or differ, with their nodes. A pod comes before it has an address, because
    /// its node captures it before it gets one.
    pub put: Vec<(String, Pod)>,
    /// Pods that are gone, have ended, or are no longer enrolled.
    pub gone: Vec<PodUid>,
    /// Workloads that are new or differ; `None`: no enrolled pod has the function any more.
    pub workloads: BTreeMap<FunctionId, Option<Workload>>,
    /// Nodes that are gone.
    pub nodes_gone: Vec<String>,
    /// All namespaces with `leno.dev/mode: enforced`, or with an enrolled pod that has this label, if
    /// the set has changed.
    pub enforced: Option<BTreeSet<String>>,
    /// Pods that are newly left alone, for reasons that last.
    pub left_alone: BTreeMap<ObjectKey, UncapturedReason>,
    /// Pods that are not enrolled and have yet to start, with their nodes. Those of enforced namespaces
    /// are not among them.
    pub unenrolled: Vec<(String, PodUid)>,
    /// Services and endpoints. `None`: they are the same, or not all of them have come yet.
    pub services: Option<ServiceChanges>,
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
