//! Listeners of Gateway documents that a node cannot serve, as it reports them.

use crate::messages::MAX_REASON;
use crate::v1;

/// The most faults that one node reports.
pub const MAX_LISTENER_FAULTS: usize = 256;
/// Longest name of a listener: three names of Kubernetes and two slashes.
const MAX_NAME: usize = 3 * 253 + 2;

/// A listener that a node cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFault {
    /// `namespace/gateway/listener`.
    pub listener: String,
    /// The missing part.
    pub kind: ListenerFaultKind,
    /// The reason, at most [`MAX_REASON`] bytes.
    pub reason: String,
}

/// The part that a node lacks to serve a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerFaultKind {
    /// The port cannot be opened.
    Port,
    /// A certificate or its key cannot be used.
    Certificate,
}

/// Encodes the faults of a node.
pub fn to_wire(faults: &[ListenerFault]) -> v1::ListenerFaults {
    let fault = |ListenerFault { listener, kind, reason }: &ListenerFault| v1::ListenerFault {
        listener: listener.clone(),
        kind: match kind {
            ListenerFaultKind::Port => v1::ListenerFaultKind::Port.into(),
            ListenerFaultKind::Certificate => v1::ListenerFaultKind::Certificate.into(),
        },
        reason: reason.clone(),
    };
    v1::ListenerFaults { faults: faults.iter().take(MAX_LISTENER_FAULTS).map(fault).collect() }
}

/// Decodes the faults of a node. Those of an unknown kind are left out.
pub fn from_wire(sent: v1::ListenerFaults) -> Vec<ListenerFault> {
    let cut = |mut text: String, most: usize| {
        text.truncate(text.floor_char_boundary(most));
        text
    };
    let fault = |sent: v1::ListenerFault| {
        let kind = match sent.kind() {
            v1::ListenerFaultKind::Port => ListenerFaultKind::Port,
            v1::ListenerFaultKind::Certificate => ListenerFaultKind::Certificate,
            v1::ListenerFaultKind::Unspecified => return None,
        };
        Some(ListenerFault { listener: cut(sent.listener, MAX_NAME), kind, reason: cut(sent.reason, MAX_REASON) })
    };
    sent.faults.into_iter().take(MAX_LISTENER_FAULTS).filter_map(fault).collect()
}
