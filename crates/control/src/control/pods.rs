//! Publishes pods.

use super::Control;
use crate::state::State;
use crate::state::destinations::DestinationChanges;
use crate::status::{DeliveryState, PodHosts};
use leno_model::{Pod, PodUid};
use leno_wire::Content;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Control {
    /// The functions that have pods, each with the nodes of these. A node need not have joined.
    pub fn pod_hosts(&self) -> Arc<PodHosts> {
        self.state().pod_hosts()
    }

    /// The state of the deliveries to each node that has joined.
    pub fn deliveries(&self) -> Vec<(Arc<str>, DeliveryState)> {
        self.state().deliveries()
    }

    /// Replaces the namespaces whose pods enforce their policies. Nodes with pods remember them, so that
    /// pods of these do not start while their agent is away. Call it before [`Control::serve`] too.
    pub fn set_enforced_namespaces(&self, names: &BTreeSet<String>) {
        match Content::new(names) {
            Ok(names) => self.state().set_enforced_namespaces(names),
            Err(error) => tracing::error!(%error, "the enforced namespaces cannot be encoded"),
        }
    }

    /// Notifies nodes of pods that are not in the mesh and have yet to start, each with the name of its
    /// node: otherwise the node would wait whether they are. Disconnected nodes get no notice.
    pub fn notify_unenrolled(&self, pods: &[(String, PodUid)]) {
        if !pods.is_empty() {
            let mut state = self.state();
            pods.iter().for_each(|(node, uid)| state.unenrolled_pod(node, uid));
        }
    }

    /// Applies changes of Services and their endpoints. Nodes get no answers about addresses before the
    /// first call, which has all of them.
    pub fn change_destinations(&self, changes: DestinationChanges) {
        self.change_at_length(|state: &mut State| state.change_destinations(changes));
    }

    /// The pods that their connected nodes do not capture, each with the node and the reason.
    pub fn pod_faults(&self) -> Vec<(String, PodUid, String)> {
        self.state().pod_faults()
    }

    /// Adds and replaces pods, each with the name of its node, and removes others. A pod is sent to its
    /// node, and its node hosts its function. Call it with all pods before [`Control::serve`]: nodes
    /// that connect release the pods that this control plane does not have.
    pub fn change_pods(&self, put: Vec<(String, Pod)>, gone: &[PodUid]) {
        let encoded = put.into_iter().filter_map(|(node, pod)| match Content::new(&pod) {
            Ok(content) => Some((node, pod, content)),
            Err(error) => {
                tracing::error!(pod = %pod.uid, %error, "a pod cannot be encoded; its node does not get it");
                None
            }
        });
        let encoded: Vec<_> = encoded.collect();
        self.change_at_length(|state: &mut State| {
            gone.iter().for_each(|uid| state.remove_pod(uid));
            encoded.into_iter().for_each(|(node, pod, content)| state.put_pod(&node, &pod, content));
        });
    }
}
