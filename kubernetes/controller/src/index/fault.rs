//! Pods of the mesh that are not captured, each with the reason.

use crate::api::ObjectKey;
use crate::index::left_alone::LeftAlone;
use leno_model::{FunctionId, PodUid};
use std::fmt;

/// A pod of the mesh that is not captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFault {
    /// Its name.
    pub pod: ObjectKey,
    /// The UID by which its node knows it.
    pub uid: PodUid,
    /// Its function.
    pub function: FunctionId,
    /// Why.
    pub reason: FaultReason,
}

/// Why a pod is not captured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultReason {
    /// It has the network of its node.
    HostNetwork,
    /// It can change its network, and its mode is `enforced`.
    NetAdmin,
    /// Its node cannot capture it, and says why.
    CaptureFailed(String),
    /// The agent of this node is connected to no controller.
    NoAgent(String),
}

impl FaultReason {
    /// The reason, if it lasts until the pod or a label is changed, and no label asks for it.
    pub(crate) fn of(left_alone: LeftAlone) -> Option<Self> {
        match left_alone {
            LeftAlone::HostNetwork => Some(Self::HostNetwork),
            LeftAlone::NetAdmin => Some(Self::NetAdmin),
            LeftAlone::Disabled | LeftAlone::NoNode | LeftAlone::NoAddress | LeftAlone::Terminated => None,
        }
    }

    /// The reason as one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::HostNetwork => "HostNetwork",
            Self::NetAdmin => "NetAdmin",
            Self::CaptureFailed(_) => "CaptureFailed",
            Self::NoAgent(_) => "NoAgent",
        }
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostNetwork => LeftAlone::HostNetwork.fmt(f),
            Self::NetAdmin => LeftAlone::NetAdmin.fmt(f),
            Self::CaptureFailed(reason) => f.write_str(reason),
            Self::NoAgent(node) => write!(f, "the agent of its node {node} is connected to no controller"),
        }
    }
}
