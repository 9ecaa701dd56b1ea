//! Pods that begin, change and end.

use super::State;
use super::node::Node;
use crate::status::PodHosts;
use leno_identity::SpiffeId;
use leno_model::{FunctionId, MeshPod, Pod, PodUid};
use leno_wire::{Content, PodFaults, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

impl State {
    /// Adds a pod of a node, or replaces it.
    pub(crate) fn put_pod(&mut self, node: &str, pod: &Pod, content: Content) {
        let Pod { uid, function, .. } = pod;
        if self.hosting.pods.is_same(uid, (node, function), &content) {
            return;
        }
        let before = self.hosting.pods.put(node, pod, content);
        let had = before.iter().flat_map(|before| &before.addresses).copied();
        let addresses: BTreeSet<IpAddr> = had.chain(pod.addresses.iter().copied()).collect();
        addresses.into_iter().for_each(|address| self.announce_address(address));
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

    /// The functions that have pods, each with the nodes of these. A node need not have joined.
    pub(crate) fn pod_hosts(&self) -> Arc<PodHosts> {
        self.hosting.pods.hosts()
    }

    /// Removes a pod.
    pub(crate) fn remove_pod(&mut self, uid: &PodUid) {
        let Some(pod) = self.hosting.pods.remove(uid) else { return };
        pod.addresses.iter().for_each(|address| self.announce_address(*address));
        if let Some(node) = self.nodes.all.get_mut(&pod.node) {
            node.pod_faults.remove(uid);
        }
        self.host_pods(&pod.function, &pod.node);
        self.want_pod(&pod.node, uid, false);
    }

    /// Notifies the connected node of a pod that is not in the mesh.
    pub(crate) fn unenrolled_pod(&mut self, node: &str, uid: &PodUid) {
        let Some(name) = self.nodes.name(node).filter(|name| self.nodes.gets_pods(name)) else { return };
        if let Some(session) = self.nodes.all.get_mut(&name).and_then(|node| node.session.as_mut()) {
            session.notify_unenrolled(uid);
        }
    }

    /// Replaces the namespaces whose pods enforce their policies.
    pub(crate) fn set_enforced_namespaces(&mut self, names: Content) {
        if self.hosting.pods.enforced.as_ref() != Some(&names) {
            self.hosting.pods.enforced = Some(names);
            self.nodes.announce(&Subject::EnforcedNamespaces);
        }
    }

    /// Stores the pods that a node does not capture, without those that it does not have.
    pub(crate) fn cannot_capture(&mut self, name: &str, number: u64, mut faults: PodFaults) {
        if self.nodes.session(name, number).is_none() {
            return;
        }
        let Some(node) = self.nodes.all.get_mut(name) else { return };
        faults.retain(|uid, _| {
            let has = self.hosting.pods.content(uid, name).is_some();
            if !has {
                node.refuse(name, &format_args!("a report on the pod {uid}"));
            }
            has
        });
        node.pod_faults = faults;
    }

    /// The pods that their connected nodes do not capture, each with the node and the reason.
    pub(crate) fn pod_faults(&self) -> Vec<(String, PodUid, String)> {
        let connected = self.nodes.all.iter().filter(|(_, node)| node.session.is_some());
        let of = |(name, node): (&Arc<str>, &Node)| -> Vec<_> {
            let rejected = node.rejected.iter().filter_map(|(subject, (_, reason))| match subject {
                Subject::Pod(uid) => Some((uid, reason)),
                _ => None,
            });
            // A later report replaces the reason of a rejection.
            let faults: BTreeMap<_, _> = rejected.chain(&node.pod_faults).collect();
            faults.into_iter().map(|(uid, reason)| (name.to_string(), uid.clone(), reason.clone())).collect()
        };
        connected.flat_map(of).collect()
    }

    /// The pod of the mesh that has an address, as callers get it; `None`: nothing that a node captures
    /// has it.
    pub(super) fn pod_at(&self, address: IpAddr) -> Option<MeshPod> {
        let pod = self.hosting.pods.at(address).filter(|pod| pod.is_captured)?;
        let trust_domain = self.catalog.compiled.gateway.as_ref()?.trust_domain().parse().ok()?;
        let identity = SpiffeId::function(&trust_domain, &pod.function.namespace, pod.account.as_deref()?).ok()?;
        Some(MeshPod { node: pod.node.to_string(), identity, mode: pod.mode })
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
