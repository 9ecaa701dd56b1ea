//! The pods of nodes.

use crate::status::PodHosts;
use leno_identity::SpiffeId;
use leno_model::{FunctionId, Pod, PodMode, PodUid};
use leno_wire::Content;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// All pods. Indexed, so that the cost of a change does not depend on the number of others.
#[derive(Default)]
pub(super) struct Pods {
    all: HashMap<PodUid, PodRecord>,
    /// The pods of each node, also of nodes that have not joined.
    nodes: HashMap<Arc<str>, BTreeSet<PodUid>>,
    /// The number of pods of each function on each node.
    functions: HashMap<FunctionId, BTreeMap<Arc<str>, u32>>,
    /// The nodes of each function, once they were asked for since they changed.
    hosts: OnceCell<Arc<PodHosts>>,
    /// Pods by address.
    addresses: HashMap<IpAddr, PodUid>,
    /// The namespaces whose pods enforce their policies, as nodes get them; `None`: they are not known.
    pub enforced: Option<Content>,
}

/// A pod, in the form in which its node gets it.
pub(super) struct PodRecord {
    pub node: Arc<str>,
    pub function: FunctionId,
    /// Its service account, in the namespace of its function.
    pub account: Option<Box<str>>,
    pub addresses: Box<[IpAddr]>,
    pub mode: PodMode,
    /// Its node captures it.
    pub is_captured: bool,
    content: Content,
}

impl Pods {
    /// Adds a pod or replaces it. Returns the pod from before.
    pub(super) fn put(&mut self, node: &str, pod: &Pod, content: Content) -> Option<PodRecord> {
        let Pod { uid, function, service_account, .. } = pod;
        let (function, account) = (function.clone(), service_account.as_deref().map(Into::into));
        let before = self.remove(uid);
        let node = self.nodes.get_key_value(node).map_or_else(|| node.into(), |(name, _)| name.clone());
        self.nodes.entry(node.clone()).or_default().insert(uid.clone());
        let count = self.functions.entry(function.clone()).or_default().entry(node.clone()).or_default();
        *count += 1;
        if *count == 1 {
            self.hosts.take();
        }
        self.addresses.extend(pod.addresses.iter().map(|address| (*address, uid.clone())));
        let record = PodRecord {
            node,
            function,
            account,
            addresses: pod.addresses.as_slice().into(),
            mode: pod.mode,
            is_captured: pod.refused.is_none(),
            content,
        };
        self.all.insert(uid.clone(), record);
        before
    }

    /// Removes a pod. Returns it, if it was there.
    pub(super) fn remove(&mut self, uid: &PodUid) -> Option<PodRecord> {
        let record = self.all.remove(uid)?;
        for address in &record.addresses {
            // A later pod may have it by now.
            if self.addresses.get(address) == Some(uid) {
                self.addresses.remove(address);
            }
        }
        if let Some(pods) = self.nodes.get_mut(&record.node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.nodes.remove(&record.node);
            }
        }
        if let Some(nodes) = self.functions.get_mut(&record.function) {
            if let Some(pods) = nodes.get_mut(&record.node) {
                *pods -= 1;
                if *pods == 0 {
                    nodes.remove(&record.node);
                    self.hosts.take();
                }
            }
            if nodes.is_empty() {
                self.functions.remove(&record.function);
            }
        }
        Some(record)
    }

    /// Whether the pod is on this node, of this function, and has this content.
    pub(super) fn is_same(&self, uid: &PodUid, (node, function): (&str, &FunctionId), content: &Content) -> bool {
        self.all.get(uid).is_some_and(|pod| *pod.node == *node && pod.function == *function && pod.content == *content)
    }

    /// A pod as its node gets it; `None`: the node has no such pod.
    pub(super) fn content(&self, uid: &PodUid, node: &str) -> Option<&Content> {
        self.all.get(uid).filter(|pod| *pod.node == *node).map(|pod| &pod.content)
    }

    /// The pod that has an address.
    pub(super) fn at(&self, address: IpAddr) -> Option<&PodRecord> {
        self.all.get(self.addresses.get(&address)?)
    }

    /// The pods of a node.
    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = &PodUid> {
        self.nodes.get(node).into_iter().flatten()
    }

    /// Whether a node has a pod with the service account that this identity names.
    pub(super) fn has_account(&self, node: &str, identity: &SpiffeId) -> bool {
        let (namespace, name) = (identity.namespace(), identity.name());
        let mut pods = self.of_node(node).filter_map(|uid| self.all.get(uid));
        pods.any(|pod| name.is_some() && pod.account.as_deref() == name && namespace == Some(&*pod.function.namespace))
    }

    /// The functions that have pods on a node.
    pub(super) fn functions_on(&self, node: &str) -> BTreeSet<&FunctionId> {
        self.of_node(node).filter_map(|uid| self.all.get(uid)).map(|pod| &pod.function).collect()
    }

    /// The nodes that have pods of a function.
    pub(super) fn nodes_of(&self, id: &FunctionId) -> impl Iterator<Item = &Arc<str>> {
        self.functions.get(id).into_iter().flat_map(BTreeMap::keys)
    }

    /// The functions that have pods, each with the nodes of these.
    pub(super) fn hosts(&self) -> Arc<PodHosts> {
        let all = || self.functions.iter().map(|(id, nodes)| (id.clone(), nodes.keys().cloned().collect())).collect();
        self.hosts.get_or_init(|| Arc::new(all())).clone()
    }

    /// Whether a node has pods of a function.
    pub(super) fn is_on(&self, id: &FunctionId, node: &str) -> bool {
        self.functions.get(id).is_some_and(|nodes| nodes.contains_key(node))
    }
}
