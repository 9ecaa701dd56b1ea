//! Reasons for which pods of the mesh are not captured.

use crate::api::ObjectKey;
use leno_model::{FunctionId, PodUid};
use std::fmt;

/// Why a pod of an enrolled namespace, or with the label of enrolment, is not captured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UncapturedReason {
    /// Its label excludes it.
    Disabled,
    /// It has the network of its node.
    HostNetwork,
    /// It can change its network, and its mode is `enforced`.
    NetAdmin,
    /// The scheduler has yet to choose its node.
    NoNode,
    /// It has no address yet. Its node knows it, and captures it as soon as it has a network.
    NoAddress,
    /// All its containers have ended.
    Terminated,
    /// Its node cannot capture it, and says why.
    CaptureFailed(String),
    /// The agent of this node is connected to no controller.
    NoAgent(String),
}

impl UncapturedReason {
    /// Whether the reason lasts until the pod or a label is changed.
    pub(crate) fn lasts(&self) -> bool {
        matches!(self, Self::Disabled | Self::HostNetwork | Self::NetAdmin)
    }

    /// Whether the pod should be captured: no label excludes it, and it neither begins nor has ended.
    pub(crate) fn is_fault(&self) -> bool {
        match self {
            Self::HostNetwork | Self::NetAdmin | Self::CaptureFailed(_) | Self::NoAgent(_) => true,
            Self::Disabled | Self::NoNode | Self::NoAddress | Self::Terminated => false,
        }
    }

    /// The reason as one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::HostNetwork => "HostNetwork",
            Self::NetAdmin => "NetAdmin",
            Self::NoNode => "NoNode",
            Self::NoAddress => "NoAddress",
            Self::Terminated => "Terminated",
            Self::CaptureFailed(_) => "CaptureFailed",
            Self::NoAgent(_) => "NoAgent",
        }
    }
}

impl fmt::Display for UncapturedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "label leno.dev/mesh is `disabled`",
            Self::HostNetwork => "it has the network of its node (hostNetwork)",
            Self::NetAdmin => "it can change its network (privileged, or a capability such as NET_ADMIN)",
            Self::NoNode => "it has no node yet",
            Self::NoAddress => "it has no address yet",
            Self::Terminated => "its containers have ended",
            Self::CaptureFailed(reason) => reason,
            Self::NoAgent(node) => return write!(f, "the agent of its node {node} is connected to no controller"),
        })
    }
}

/// A pod of the mesh that should be captured and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFault {
    /// Its name.
    pub pod: ObjectKey,
    /// The UID by which its node knows it.
    pub uid: PodUid,
    /// Its function.
    pub function: FunctionId,
    /// Why.
    pub reason: UncapturedReason,
}
