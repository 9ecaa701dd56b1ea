//! Reasons for which pods of the mesh are not captured.

use std::fmt;

/// Why a pod of an enrolled namespace, or with the label of enrolment, is not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftAlone {
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
}

impl LeftAlone {
    /// Whether the reason lasts until the pod or a label is changed.
    pub(crate) fn lasts(self) -> bool {
        matches!(self, Self::Disabled | Self::HostNetwork | Self::NetAdmin)
    }
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disabled => "label leno.dev/mesh is `disabled`",
            Self::HostNetwork => "it has the network of its node (hostNetwork)",
            Self::NetAdmin => "it can change its network (privileged, or a capability such as NET_ADMIN)",
            Self::NoNode => "it has no node yet",
            Self::NoAddress => "it has no address yet",
            Self::Terminated => "its containers have ended",
        })
    }
}
