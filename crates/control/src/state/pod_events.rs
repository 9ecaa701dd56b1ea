//! Pods that begin, change and end.

use super::State;
use leno_model::{FunctionId, Pod, PodUid};
use leno_wire::{Content, Subject};
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    /// Adds a pod of a node, or replaces it.
    pub(crate) fn put_pod(&mut self, node: &str, pod: &Pod, content: Content) {
        let Pod { uid, function, .. } = pod;
        if self.hosting.pods.is_same(uid, (node, function), &content) {
            return;
        }
        let before = self.hosting.pods.put(uid, (node, function.clone()), content);
        let before = before.map(|before| (before.node, before.function));
        if let Some((before_node, before_function)) = &before {
            self.host_pods(before_function, before_node);
            if **before_node != *node {
                self.want_pod(before_node, uid, false);
            }
        }
        self.host_pods(function, node);
        match before {
            Some((before_node, _)) if *before_node == *node => self.nodes.announce(&Subject::Pod(uid.clone())),
            _ => self.want_pod(node, uid, true),
        }
    }

    /// Removes a pod.
    pub(crate) fn remove_pod(&mut self, uid: &PodUid) {
        let Some(pod) = self.hosting.pods.remove(uid) else { return };
        self.host_pods(&pod.function, &pod.node);
        self.want_pod(&pod.node, uid, false);
    }

    /// Adds a pod to the subjects that its node wants, or removes it.
    fn want_pod(&mut self, node: &str, uid: &PodUid, more: bool) {
        let Some(name) = self.nodes.name(node).filter(|name| self.nodes.gets_pods(name)) else { return };
        let changes = BTreeMap::from([(name, vec![Subject::Pod(uid.clone())])]);
        let (before, after) = if more { (BTreeMap::new(), changes) } else { (changes, BTreeMap::new()) };
        self.nodes.rewant(before, after);
    }

    /// Recomputes whether a node hosts a function of pods, and the subjects that it wants because of
    /// that.
    fn host_pods(&mut self, id: &FunctionId, node: &str) {
        let wanted = |state: &Self| -> BTreeMap<Arc<str>, Vec<Subject>> {
            state.hosting.wanted_on((id, node), &state.catalog.compiled, &state.nodes)
        };
        let before = wanted(self);
        let effects = self.hosting.update_on((id, node), &self.catalog.compiled, &mut self.nodes);
        if effects.is_empty() {
            return;
        }
        let after = wanted(self);
        self.nodes.rewant(before, after);
        self.carry_out(effects);
    }
}
