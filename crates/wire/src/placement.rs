//! The placement of a node.

use leno_model::FunctionId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The functions that a node hosts. It is a rule rather than a list, so functions that come and go
/// do not change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// All functions, present and future.
    Everything,
    /// The functions of this set, as far as they exist.
    Only(BTreeSet<FunctionId>),
    /// The functions that the control plane's scheduler places on the node, within the bounds that
    /// it delivers with them.
    Scheduled,
    /// The functions whose pods Kubernetes has placed on the node.
    Pods,
}

impl Placement {
    /// Whether the placement covers `function`, whatever a scheduler decides.
    pub fn hosts(&self, function: &FunctionId) -> bool {
        match self {
            Self::Everything => true,
            Self::Only(functions) => functions.contains(function),
            Self::Scheduled | Self::Pods => false,
        }
    }
    /// Whether the node shares the rate limits of its functions with other nodes, by leases of the
    /// control plane.
    pub fn shares_limits(&self) -> bool {
        matches!(self, Self::Scheduled | Self::Pods)
    }
}
