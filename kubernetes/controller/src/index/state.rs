//! The index: a function of the objects there are, whatever the order in which they came.

use crate::api::{Change, Object, ObjectKey};
use crate::index::changes::Changes;
use crate::index::endpoint::EndpointSliceObject;
use crate::index::labels::{MeshLabels, NamespaceObject};
use crate::index::node::{Node, NodeObject};
use crate::index::pod::{PodObject, Template};
use crate::index::pool::ValuePool;
use crate::index::service::ServiceObject;
use crate::index::services::ServiceIndex;
use crate::index::uncaptured::{PodFault, UncapturedReason};
use crate::index::workload::Members;
use leno_model::{FunctionId, Pod, PodMode, PodRefusal, PodUid};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use tracing::warn;

/// A change of objects that the index reads.
#[derive(Clone, Debug)]
pub enum Event {
    /// Of namespaces.
    Namespaces(Change<NamespaceObject>),
    /// Of nodes.
    Nodes(Change<NodeObject>),
    /// Of pods.
    Pods(Change<PodObject>),
    /// Of Services.
    Services(Change<ServiceObject>),
    /// Of EndpointSlices.
    EndpointSlices(Change<EndpointSliceObject>),
}

/// The part of a cluster that the controller keeps. Pods that are not enrolled are kept too,
/// because a label may enrol them at any time; those of a workload share all but their names and
/// addresses.
#[derive(Debug)]
pub struct Index {
    namespaces: BTreeMap<String, Namespace>,
    nodes: BTreeMap<String, Node>,
    services: ServiceIndex,
    shared: SharedValues,
    /// Kinds of which all objects have come.
    complete: Complete,
    steps: Steps,
    nodes_gone: BTreeSet<String>,
    enforced: Option<BTreeSet<String>>,
}

impl Default for Index {
    fn default() -> Self {
        let (namespaces, nodes, services, shared, complete, steps, nodes_gone) = Default::default();
        // Nodes may still have a list from before, so they get the first one even if it is empty.
        let enforced = Some(BTreeSet::new());
        Self { namespaces, nodes, services, shared, complete, steps, nodes_gone, enforced }
    }
}

#[derive(Debug, Default)]
struct Complete {
    namespaces: bool,
    nodes: bool,
    pods: bool,
}

/// The functions, and the steps of pods that have yet to be taken.
#[derive(Debug, Default)]
struct Steps {
    members: HashMap<FunctionId, Members>,
    dirty: HashSet<FunctionId>,
    pods: BTreeMap<PodUid, Option<(Arc<str>, Pod)>>,
    left_alone: BTreeMap<ObjectKey, UncapturedReason>,
    unenrolled: BTreeMap<PodUid, Arc<str>>,
}

/// Values that many pods have in common.
#[derive(Debug, Default)]
struct SharedValues {
    templates: ValuePool<Template>,
    nodes: ValuePool<str>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// `None`: the namespace is not there, or has not come yet.
    labels: Option<MeshLabels>,
    pods: HashMap<Box<str>, Entry>,
    /// How many of them a label of the pod makes enforced.
    strict: usize,
}

impl Namespace {
    /// Whether new pods may have to wait for their capture.
    fn is_enforced(&self) -> bool {
        self.labels.is_some_and(|labels| labels.enforced) || self.strict > 0
    }
}

#[derive(Clone, Debug)]
struct Entry {
    uid: PodUid,
    template: Arc<Template>,
    node: Option<Arc<str>>,
    addresses: Box<[IpAddr]>,
    created: u64,
    terminated: bool,
}

impl Entry {
    /// The mode, if the pod is enrolled and has not ended.
    fn mode(&self, namespace: MeshLabels) -> Option<PodMode> {
        let mesh = self.template.mesh;
        (!self.terminated && mesh.enrols(namespace)).then(|| mesh.mode(namespace))
    }

    fn refusal(&self, mode: PodMode) -> Option<PodRefusal> {
        if self.template.host_network {
            Some(PodRefusal::HostNetwork)
        } else {
            (self.template.net_admin && mode == PodMode::Enforced).then_some(PodRefusal::NetAdmin)
        }
    }

    /// Whether a label of the pod makes it enforced.
    fn is_strict(&self, namespace: MeshLabels) -> bool {
        self.template.mesh.enforced && self.mode(namespace).is_some()
    }

    /// The pod as its node needs it, if it is enrolled and has a node.
    fn pod(&self, name: &str, namespace: MeshLabels) -> Option<(Arc<str>, Pod)> {
        let mode = self.mode(namespace)?;
        let pod = Pod {
            uid: self.uid.clone(),
            namespace: self.template.function.namespace.clone(),
            name: name.to_owned(),
            function: self.template.function.clone(),
            service_account: Some(self.template.account.clone()),
            addresses: self.addresses.to_vec(),
            mode,
            ports: self.template.ports.clone(),
            probes: self.template.probes.clone(),
            refused: self.refusal(mode),
        };
        Some((self.node.clone()?, pod))
    }

    /// Its node, if the pod is not enrolled there and has yet to start.
    fn unenrolled(&self, namespace: MeshLabels) -> Option<&Arc<str>> {
        let Self { template, addresses, terminated, .. } = self;
        let starts = addresses.is_empty() && !terminated && !template.host_network;
        let is_out = !template.mesh.enrols(namespace) && template.mesh.mode(namespace) == PodMode::Permissive;
        self.node.as_ref().filter(|_| starts && is_out)
    }

    fn left_alone(&self, namespace: MeshLabels) -> Option<UncapturedReason> {
        if self.template.mesh.mesh == Some(false) {
            return (namespace.mesh == Some(true)).then_some(UncapturedReason::Disabled);
        }
        if self.terminated {
            return self.template.mesh.enrols(namespace).then_some(UncapturedReason::Terminated);
        }
        match self.refusal(self.mode(namespace)?) {
            Some(PodRefusal::HostNetwork) => Some(UncapturedReason::HostNetwork),
            Some(PodRefusal::NetAdmin) => Some(UncapturedReason::NetAdmin),
            None if self.node.is_none() => Some(UncapturedReason::NoNode),
            None => self.addresses.is_empty().then_some(UncapturedReason::NoAddress),
        }
    }
}

impl Index {
    /// Takes a change.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Namespaces(change) => self.change_namespaces(change),
            Event::Nodes(change) => self.change_nodes(change),
            Event::Pods(change) => self.change_pods(change),
            Event::Services(change) => self.services.change_services(change),
            Event::EndpointSlices(change) => self.services.change_slices(change),
        }
    }

    /// The changes since the last call; `None` until all namespaces, nodes and pods have come, so
    /// that an index that has only begun ends no capture.
    pub fn take(&mut self) -> Option<Changes> {
        let Complete { namespaces, nodes, pods } = self.complete;
        if !(namespaces && nodes && pods) {
            return None;
        }
        let mut changes = Changes {
            nodes_gone: std::mem::take(&mut self.nodes_gone).into_iter().collect(),
            enforced: self.enforced.take(),
            left_alone: std::mem::take(&mut self.steps.left_alone),
            services: self.services.take(),
            ..Changes::default()
        };
        let unenrolled = std::mem::take(&mut self.steps.unenrolled);
        changes.unenrolled.extend(unenrolled.into_iter().map(|(uid, node)| (node.to_string(), uid)));
        for (uid, pod) in std::mem::take(&mut self.steps.pods) {
            match pod {
                Some((node, pod)) => changes.put.push((node.to_string(), pod)),
                None => changes.gone.push(uid),
            }
        }
        for function in std::mem::take(&mut self.steps.dirty) {
            let Some(members) = self.steps.members.get_mut(&function) else { continue };
            let changed = members.changed();
            if members.is_empty() {
                self.steps.members.remove(&function);
            }
            if let Some(workload) = changed {
                changes.workloads.insert(function, workload);
            }
        }
        Some(changes)
    }

    /// Enrolled pods that are not captured, each with the reason.
    pub fn left_alone(&self) -> impl Iterator<Item = (ObjectKey, UncapturedReason)> {
        self.namespaces.iter().flat_map(|(namespace, state)| {
            let labels = state.labels.unwrap_or_default();
            state.pods.iter().filter_map(move |(name, entry)| {
                let key = || ObjectKey { namespace: namespace.clone(), name: name.to_string() };
                entry.left_alone(labels).map(|reason| (key(), reason))
            })
        })
    }

    /// How many pods are enrolled, and those that are not captured. `reported`: the reasons of agents;
    /// `is_away`: whether the agent of a node is connected to no controller.
    pub fn faults(
        &self,
        reported: &BTreeMap<PodUid, String>,
        is_away: impl Fn(&str) -> bool,
    ) -> (usize, Vec<PodFault>) {
        let (mut enrolled, mut faults) = (0, Vec::new());
        for (namespace, state) in &self.namespaces {
            let labels = state.labels.unwrap_or_default();
            for (name, entry) in &state.pods {
                let (Some(_), Some(node)) = (entry.mode(labels), &entry.node) else { continue };
                enrolled += 1;
                let failed = || reported.get(&entry.uid).cloned().map(UncapturedReason::CaptureFailed);
                let away = || is_away(node).then(|| UncapturedReason::NoAgent(node.to_string()));
                let lasting = entry.left_alone(labels).filter(UncapturedReason::is_fault);
                let Some(reason) = lasting.or_else(failed).or_else(away) else { continue };
                faults.push(PodFault {
                    pod: ObjectKey { namespace: namespace.clone(), name: name.to_string() },
                    uid: entry.uid.clone(),
                    function: entry.template.function.clone(),
                    reason,
                });
            }
        }
        faults.sort_by(|one, other| one.pod.cmp(&other.pod));
        (enrolled, faults)
    }

    /// A node of the cluster.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// How many pods there are, enrolled or not.
    pub fn pods(&self) -> usize {
        self.namespaces.values().map(|namespace| namespace.pods.len()).sum()
    }

    /// How many Services there are, how many EndpointSlices, and how many endpoints in these.
    pub fn services(&self) -> [usize; 3] {
        self.services.counts()
    }

    fn change_namespaces(&mut self, change: Change<NamespaceObject>) {
        match change {
            Change::Replaced { objects, broken } => {
                let present: HashSet<&str> = objects
                    .iter()
                    .map(|object| object.metadata().name.as_str())
                    .chain(broken.iter().map(|object| object.key.name.as_str()))
                    .collect();
                let there = self.namespaces.iter().filter(|(_, state)| state.labels.is_some());
                let gone: Vec<String> =
                    there.map(|(name, _)| name.clone()).filter(|name| !present.contains(name.as_str())).collect();
                for name in gone {
                    self.label_namespace(&name, None);
                }
                for object in objects {
                    self.label_namespace(&object.metadata().name, Some(object.labels()));
                }
                self.complete.namespaces = true;
            }
            Change::Put(object) => self.label_namespace(&object.metadata().name, Some(object.labels())),
            Change::Broken(_) => {}
            Change::Gone(key) => self.label_namespace(&key.name, None),
        }
    }

    fn label_namespace(&mut self, name: &str, labels: Option<MeshLabels>) {
        let namespace = self.namespaces.entry(name.to_owned()).or_default();
        let was_enforced = namespace.is_enforced();
        let before = std::mem::replace(&mut namespace.labels, labels);
        let (old, new) = (before.unwrap_or_default(), labels.unwrap_or_default());
        if old != new {
            for (pod, entry) in &namespace.pods {
                self.steps.step(pod, Some((entry, old)), Some((entry, new)));
            }
            namespace.strict = namespace.pods.values().filter(|entry| entry.is_strict(new)).count();
        }
        let is_enforced = namespace.is_enforced();
        if labels.is_none() && namespace.pods.is_empty() {
            self.namespaces.remove(name);
        }
        if was_enforced != is_enforced {
            self.change_enforced();
        }
    }

    fn change_enforced(&mut self) {
        let enforced = self.namespaces.iter().filter(|(_, state)| state.is_enforced());
        self.enforced = Some(enforced.map(|(name, _)| name.clone()).collect());
    }

    fn change_nodes(&mut self, change: Change<NodeObject>) {
        match change {
            Change::Replaced { objects, broken } => {
                let mut gone = std::mem::take(&mut self.nodes);
                for object in broken {
                    if let Some(node) = gone.remove(&object.key.name) {
                        self.nodes.insert(object.key.name, node);
                    }
                }
                for object in objects {
                    gone.remove(&object.metadata().name);
                    self.put_node(&object);
                }
                self.nodes_gone.extend(gone.into_keys());
                self.complete.nodes = true;
            }
            Change::Put(object) => self.put_node(&object),
            Change::Broken(_) => {}
            Change::Gone(key) => {
                if self.nodes.remove(&key.name).is_some() {
                    self.nodes_gone.insert(key.name);
                }
            }
        }
    }

    fn put_node(&mut self, object: &NodeObject) {
        let name = &object.metadata().name;
        self.nodes_gone.remove(name);
        self.nodes.insert(name.clone(), object.node());
    }

    fn change_pods(&mut self, change: Change<PodObject>) {
        match change {
            Change::Replaced { objects, broken } => {
                let present: HashSet<ObjectKey> = objects
                    .iter()
                    .map(|object| object.metadata().key())
                    .chain(broken.into_iter().map(|object| object.key))
                    .collect();
                let keys = self.namespaces.iter().flat_map(|(namespace, state)| {
                    state.pods.keys().map(|name| ObjectKey { namespace: namespace.clone(), name: name.to_string() })
                });
                let gone: Vec<ObjectKey> = keys.filter(|key| !present.contains(key)).collect();
                for key in gone {
                    self.replace_pod(&key, None);
                }
                for object in objects {
                    self.put_pod(&object);
                }
                self.complete.pods = true;
            }
            Change::Put(object) => self.put_pod(&object),
            Change::Broken(_) => {}
            Change::Gone(key) => self.replace_pod(&key, None),
        }
    }

    fn put_pod(&mut self, object: &PodObject) {
        let key = object.metadata().key();
        let (Some(uid), Some(template)) = (object.uid(), object.template()) else {
            warn!(
                "Pod {key}: its UID or its namespace has a form that Kubernetes does not allow; it is left as it was"
            );
            return;
        };
        let entry = Entry {
            uid,
            template: self.shared.templates.share(template),
            node: object.node().map(|name| self.shared.nodes.share(name)),
            addresses: object.addresses().collect(),
            created: object.created(),
            terminated: object.terminated(),
        };
        self.replace_pod(&key, Some(entry));
    }

    fn replace_pod(&mut self, key: &ObjectKey, entry: Option<Entry>) {
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        let labels = namespace.labels.unwrap_or_default();
        let before = match &entry {
            Some(entry) => namespace.pods.insert(key.name.as_str().into(), entry.clone()),
            None => namespace.pods.remove(key.name.as_str()),
        };
        let (was, is) = (before.as_ref().map(|entry| (entry, labels)), entry.as_ref().map(|entry| (entry, labels)));
        self.steps.step(&key.name, was, is);
        let was_enforced = namespace.is_enforced();
        let is_strict = |standing: Standing<'_>| standing.is_some_and(|(entry, labels)| entry.is_strict(labels));
        namespace.strict = namespace.strict + usize::from(is_strict(is)) - usize::from(is_strict(was));
        let is_enforced = namespace.is_enforced();
        if namespace.labels.is_none() && namespace.pods.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        if was_enforced != is_enforced {
            self.change_enforced();
        }
    }
}

/// A pod, and the labels of its namespace.
type Standing<'a> = Option<(&'a Entry, MeshLabels)>;

impl Steps {
    /// Notes the step of a pod from one standing to the next.
    fn step(&mut self, name: &str, before: Standing<'_>, after: Standing<'_>) {
        let member = |standing: Standing<'_>| {
            let (entry, namespace) = standing?;
            Some((entry.template.clone(), entry.mode(namespace)?, entry.created))
        };
        let (was, is) = (member(before), member(after));
        if was != is {
            if let Some((template, mode, created)) = was {
                self.members(&template).remove(&template, mode, created);
            }
            if let Some((template, mode, created)) = is {
                self.members(&template).add(&template, mode, created);
            }
        }
        let pod = |standing: Standing<'_>| standing.and_then(|(entry, namespace)| entry.pod(name, namespace));
        let (was, is) = (pod(before), pod(after));
        if was != is {
            if let Some((_, pod)) = was {
                self.pods.insert(pod.uid, None);
            }
            if let Some((node, pod)) = is {
                self.pods.insert(pod.uid.clone(), Some((node, pod)));
            }
        }
        let unenrolled = |standing: Standing<'_>| {
            let (entry, namespace) = standing?;
            Some((entry.uid.clone(), entry.unenrolled(namespace)?.clone()))
        };
        let (was, is) = (unenrolled(before), unenrolled(after));
        if was != is {
            was.iter().for_each(|(uid, _)| drop(self.unenrolled.remove(uid)));
            self.unenrolled.extend(is);
        }
        let left_alone = |standing: Standing<'_>| standing.and_then(|(entry, namespace)| entry.left_alone(namespace));
        let (was, is) = (left_alone(before), left_alone(after));
        if was != is {
            let Some((entry, _)) = after.or(before) else { return };
            let key = ObjectKey { namespace: entry.template.function.namespace.clone(), name: name.to_owned() };
            match is.filter(UncapturedReason::lasts) {
                Some(reason) => drop(self.left_alone.insert(key, reason)),
                None => drop(self.left_alone.remove(&key)),
            }
        }
    }

    /// The pods of a function, which are about to change.
    fn members(&mut self, template: &Template) -> &mut Members {
        self.dirty.insert(template.function.clone());
        self.members.entry(template.function.clone()).or_default()
    }
}

#[cfg(test)]
mod tests;
