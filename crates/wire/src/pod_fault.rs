//! Pods that a node does not capture: those that it reports, and those that are not in the mesh.

use crate::messages::MAX_REASON;
use crate::v1;
use leno_model::PodUid;
use std::collections::BTreeMap;

/// The most faults that one node reports. A node of Kubernetes has some hundred pods.
pub const MAX_POD_FAULTS: usize = 4096;

/// The pods that a node does not capture, each with the reason, at most [`MAX_REASON`] bytes.
pub type PodFaults = BTreeMap<PodUid, String>;

/// Encodes the faults of a node.
pub fn to_wire(faults: &PodFaults) -> v1::PodFaults {
    let fault = |(uid, reason): (&PodUid, &String)| v1::PodFault { uid: uid.to_string(), reason: cut(reason.clone()) };
    v1::PodFaults { faults: faults.iter().take(MAX_POD_FAULTS).map(fault).collect() }
}

/// Decodes the faults of a node. Those without a valid UID are left out.
pub fn from_wire(sent: v1::PodFaults) -> PodFaults {
    let fault = |sent: v1::PodFault| Some((sent.uid.parse().ok()?, cut(sent.reason)));
    sent.faults.into_iter().take(MAX_POD_FAULTS).filter_map(fault).collect()
}

/// Encodes pods that are not in the mesh.
pub fn unenrolled(pods: &[PodUid]) -> v1::UnenrolledPods {
    v1::UnenrolledPods { uids: pods.iter().map(ToString::to_string).collect() }
}

/// Decodes pods that are not in the mesh. Texts that are not a UID are left out.
pub fn unenrolled_pods(sent: v1::UnenrolledPods) -> Vec<PodUid> {
    sent.uids.into_iter().filter_map(|uid| uid.parse().ok()).collect()
}

fn cut(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(MAX_REASON));
    reason
}
