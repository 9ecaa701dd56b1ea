use super::*;
use crate::api::BrokenObject;
use crate::index::Workload;
use leno_model::PodPort;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn namespace(name: &str, labels: Value) -> NamespaceObject {
    object(json!({ "metadata": { "name": name, "labels": labels } }))
}

fn pod(name: &str, more: Value) -> PodObject {
    let mut pod = json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
        "spec": { "nodeName": "one", "serviceAccountName": "web" },
        "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }] },
    });
    merge(&mut pod, more);
    object(pod)
}

fn merge(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::Object(value), Value::Object(more)) => {
            for (name, field) in more {
                merge(value.entry(name).or_insert(Value::Null), field);
            }
        }
        (value, more) => *value = more,
    }
}

fn all<K>(objects: Vec<K>) -> Change<K> {
    Change::Replaced { objects, broken: Vec::new() }
}

/// An index of a namespace with labels, and of its pods; the changes are taken.
fn index(labels: Value, pods: Vec<PodObject>) -> (Index, Changes) {
    let mut index = Index::default();
    index.apply(Event::Pods(all(pods)));
    index.apply(Event::Namespaces(all(vec![namespace("shop", labels)])));
    assert_eq!(index.take(), None, "the nodes are yet to come");
    index.apply(Event::Nodes(all(vec![])));
    let changes = index.take().unwrap();
    (index, changes)
}

fn names(changes: &Changes) -> Vec<&str> {
    changes.put.iter().map(|(_, pod)| pod.name.as_str()).collect()
}

#[test]
fn labels_of_namespace_and_pod_enrol_a_pod() {
    let label = |value: &str| json!({ "metadata": { "labels": { "leno.dev/mesh": value } } });
    let pods =
        || vec![pod("a", json!({})), pod("b", label("enabled")), pod("c", label("disabled")), pod("d", label("yes"))];
    let (mut index, changes) = index(json!({}), pods());
    assert_eq!(names(&changes), ["b"]);
    index.apply(Event::Namespaces(Change::Put(namespace("shop", json!({ "leno.dev/mesh": "enabled" })))));
    assert_eq!(names(&index.take().unwrap()), ["a", "d"]);
    assert_eq!(index.left_alone().collect::<Vec<_>>(), [(key("shop", "c"), UncapturedReason::Disabled)]);
    index.apply(Event::Namespaces(Change::Gone(key("", "shop"))));
    let gone: Vec<String> = index.take().unwrap().gone.iter().map(ToString::to_string).collect();
    assert_eq!(gone, ["uid-a", "uid-d"]);
}

#[test]
fn a_node_need_not_wait_for_pods_that_are_not_enrolled() {
    let starting = |name: &str, more: Value| {
        let mut starting = json!({ "status": { "phase": "Pending", "podIPs": [] } });
        merge(&mut starting, more);
        pod(name, starting)
    };
    let label = |label: &str, value: &str| json!({ "metadata": { "labels": { label: value } } });
    let pods = || {
        vec![
            starting("a", json!({})),
            starting("b", label("leno.dev/mesh", "enabled")),
            starting("c", label("leno.dev/mesh", "disabled")),
            starting("d", label("leno.dev/mode", "enforced")),
            starting("e", json!({ "spec": { "nodeName": "" } })),
            starting("f", json!({ "spec": { "hostNetwork": true } })),
            pod("g", json!({})),
        ]
    };
    let unenrolled = |changes: &Changes| -> Vec<String> {
        changes.unenrolled.iter().map(|(node, uid)| format!("{node} {uid}")).collect()
    };
    let (mut index, changes) = index(json!({}), pods());
    assert_eq!(unenrolled(&changes), ["one uid-a", "one uid-c"]);
    index.apply(Event::Pods(all(pods())));
    assert!(index.take().unwrap().is_empty(), "each is reported once");
    // The scheduler chooses a node.
    index.apply(Event::Pods(Change::Put(starting("e", json!({ "spec": { "nodeName": "two" } })))));
    assert_eq!(unenrolled(&index.take().unwrap()), ["two uid-e"]);
    let enforced = json!({ "leno.dev/mesh": "enabled", "leno.dev/mode": "enforced" });
    let (_, changes) = self::index(enforced, pods());
    assert_eq!(unenrolled(&changes), [""; 0], "its pods wait, with a label of their own too");
}

#[test]
fn a_pod_may_tighten_the_mode_and_not_relax_it() {
    let label = |value: &str| json!({ "metadata": { "labels": { "leno.dev/mode": value } } });
    let modes = |namespace: &str| {
        let pods = ["permissive", "enforced", "enforce"].map(|mode| pod(mode, label(mode))).to_vec();
        let labels = json!({ "leno.dev/mesh": "enabled", "leno.dev/mode": namespace });
        let (_, changes) = index(labels, pods);
        let mut modes: Vec<_> = changes.put.into_iter().map(|(_, pod)| (pod.name, pod.mode.to_string())).collect();
        modes.sort();
        modes.into_iter().map(|(_, mode)| mode).collect::<Vec<_>>()
    };
    assert_eq!(modes("permissive"), ["enforced", "enforced", "permissive"]);
    assert_eq!(modes("enforced"), ["enforced"; 3]);
    assert_eq!(modes("Enforced"), ["enforced"; 3], "an unknown mode is the stricter one");
}

#[test]
fn a_namespace_with_an_enforced_pod_counts_as_enforced() {
    let labels =
        |mesh: &str| json!({ "metadata": { "labels": { "leno.dev/mesh": mesh, "leno.dev/mode": "enforced" } } });
    let enforced = |index: &mut Index| index.take().unwrap().enforced.map(Vec::from_iter);
    let shop = || Some(vec!["shop".to_owned()]);
    let (mut index, changes) = index(json!({}), vec![pod("a", labels("disabled")), pod("b", json!({}))]);
    assert_eq!(changes.enforced, Some([].into()), "nodes may have a list from before");
    index.apply(Event::Pods(Change::Put(pod("c", labels("enabled")))));
    assert_eq!(enforced(&mut index), shop());
    index.apply(Event::Pods(Change::Put(pod("d", labels("enabled")))));
    index.apply(Event::Pods(Change::Gone(key("shop", "c"))));
    assert_eq!(enforced(&mut index), None, "another one is there");
    index.apply(Event::Pods(Change::Gone(key("shop", "d"))));
    assert_eq!(enforced(&mut index), Some(vec![]));
    // Its namespace enrols a pod.
    index.apply(Event::Pods(Change::Put(pod(
        "e",
        json!({ "metadata": { "labels": { "leno.dev/mode": "enforced" } } }),
    ))));
    assert_eq!(enforced(&mut index), None);
    index.apply(Event::Namespaces(Change::Put(namespace("shop", json!({ "leno.dev/mesh": "enabled" })))));
    assert_eq!(enforced(&mut index), shop());
}

#[test]
fn what_is_left_alone_has_its_reason() {
    use UncapturedReason::{HostNetwork, NetAdmin, NoAddress, NoNode, Terminated};
    let admin =
        |add: &str| json!({ "spec": { "containers": [{ "securityContext": { "capabilities": { "add": [add] } } }] } });
    let cases = [
        (json!({ "spec": { "hostNetwork": true } }), Some(HostNetwork), Some(HostNetwork)),
        (
            json!({ "spec": { "initContainers": [{ "securityContext": { "privileged": true } }] } }),
            None,
            Some(NetAdmin),
        ),
        (admin("NET_ADMIN"), None, Some(NetAdmin)),
        (admin("cap_net_admin"), None, Some(NetAdmin)),
        (admin("ALL"), None, Some(NetAdmin)),
        (admin("NET_BIND_SERVICE"), None, None),
        (json!({ "spec": { "nodeName": "" } }), Some(NoNode), Some(NoNode)),
        (json!({ "status": { "podIPs": [] } }), Some(NoAddress), Some(NoAddress)),
        (json!({ "status": { "phase": "Succeeded" } }), Some(Terminated), Some(Terminated)),
        (json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), None, None),
    ];
    for (more, permissive, enforced) in cases {
        for (mode, reason) in [("permissive", permissive), ("enforced", enforced)] {
            let labels = json!({ "leno.dev/mesh": "enabled", "leno.dev/mode": mode });
            let (index, changes) = index(labels, vec![pod("a", more.clone())]);
            let found = index.left_alone().next().map(|(_, reason)| reason);
            assert_eq!(found, reason, "{more} in mode {mode}");
            let said: Vec<UncapturedReason> = changes.left_alone.into_values().collect();
            assert_eq!(said, Vec::from_iter(reason.clone().filter(UncapturedReason::lasts)), "{more} in mode {mode}");
            let sent = !matches!(reason, Some(NoNode | Terminated));
            assert_eq!(changes.put.len(), usize::from(sent), "{more}");
            let refused = changes.put.first().and_then(|(_, pod)| pod.refused);
            assert_eq!(refused.is_some(), matches!(reason, Some(HostNetwork | NetAdmin)));
        }
    }
}

#[test]
fn pods_that_are_not_captured_have_a_reason() {
    let labels = json!({ "leno.dev/mesh": "enabled", "leno.dev/mode": "enforced" });
    let privileged = json!({ "spec": { "containers": [{ "securityContext": { "privileged": true } }] } });
    let pods = vec![
        pod("a", json!({})),
        pod("b", json!({ "spec": { "hostNetwork": true } })),
        pod("c", privileged),
        pod("d", json!({ "metadata": { "labels": { "leno.dev/mesh": "disabled" } } })),
        pod("e", json!({ "status": { "phase": "Failed" } })),
        pod("f", json!({ "spec": { "nodeName": "two" } })),
        pod("g", json!({ "spec": { "nodeName": "" } })),
    ];
    let (index, _) = index(labels, pods);
    // The agent also reports pods that it must not capture.
    let reported = ["a", "b"].map(|name| (format!("uid-{name}").parse().unwrap(), "no kernel".to_owned()));
    let (enrolled, faults) = index.faults(&reported.into(), |node| node == "two");
    assert_eq!(enrolled, 4);
    let faults: Vec<String> = faults.iter().map(|fault| format!("{} {}", fault.pod, fault.reason.word())).collect();
    assert_eq!(faults, ["shop/a CaptureFailed", "shop/b HostNetwork", "shop/c NetAdmin", "shop/f NoAgent"]);
    let (_, none) = index.faults(&BTreeMap::new(), |_| false);
    assert_eq!(none.len(), 2);
}

#[test]
fn a_pod_has_its_ports_and_the_requests_of_the_kubelet() {
    let containers = json!({ "spec": {
        "containers": [{
            "ports": [{ "name": "web", "containerPort": 8080 }, { "containerPort": 53, "protocol": "UDP" }],
            "livenessProbe": { "httpGet": { "path": "/live", "port": "web", "scheme": "HTTPS" } },
            "readinessProbe": { "tcpSocket": { "port": 8080 } },
            "startupProbe": { "exec": { "command": ["true"] } },
            "lifecycle": { "preStop": { "httpGet": { "path": "stop", "port": 8080 } }, "postStart": { "sleep": { "seconds": 1 } } },
        }],
        "initContainers": [
            { "restartPolicy": "Always", "ports": [{ "containerPort": 9090 }], "livenessProbe": { "grpc": { "port": 9090 } } },
            { "ports": [{ "containerPort": 7070 }] },
        ],
    } });
    let elsewhere =
        json!({ "spec": { "containers": [{ "livenessProbe": { "httpGet": { "host": "10.9.9.9", "port": 80 } } }] } });
    let labels = json!({ "leno.dev/mesh": "enabled" });
    let (_, changes) = index(labels, vec![pod("a", containers), pod("b", elsewhere)]);
    let probes = |index: usize| {
        let probes: &Vec<leno_model::PodProbe> = &changes.put[index].1.probes;
        serde_json::to_value(probes).unwrap()
    };
    assert_eq!(
        probes(0),
        json!([
            { "kind": "https", "port": 8080, "path": "/live" },
            { "kind": "tcp", "port": 8080, "path": null },
            { "kind": "http", "port": 8080, "path": "/stop" },
            { "kind": "grpc", "port": 9090, "path": null },
        ])
    );
    assert_eq!(probes(1), json!([]));
    let port = |name: Option<&str>, number| PodPort { name: name.map(str::to_owned), number };
    assert_eq!(changes.put[0].1.ports, [port(Some("web"), 8080), port(None, 9090)]);
}

#[test]
fn a_static_pod_has_the_uid_that_its_node_knows() {
    let mirror = json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "0f1e", "other": "x" } } });
    let (_, changes) = index(json!({ "leno.dev/mesh": "enabled" }), vec![pod("a", mirror)]);
    assert_eq!(changes.put[0].1.uid.as_str(), "0f1e");
}

#[test]
fn a_workload_is_what_its_pods_share() {
    let labels = json!({ "leno.dev/mesh": "enabled" });
    let member = |name: &str, account: &str, track: &str| {
        let second = name.as_bytes()[0] - b'a';
        pod(
            name,
            json!({
                "metadata": { "creationTimestamp": format!("2026-11-28T09:00:0{second}Z"), "labels": { "leno.dev/function": "web", "app": "web", "track": track, "pod-template-hash": name } },
                "spec": { "serviceAccountName": account },
            }),
        )
    };
    let (mut index, changes) =
        index(labels, vec![member("a", "old", "one"), member("b", "new", "one"), member("c", "new", "two")]);
    let function: FunctionId = "shop/web".parse().unwrap();
    let expected = |account: &str, others: &[&str], labels: Value| Workload {
        service_account: account.to_owned(),
        other_accounts: others.iter().map(|other| (*other).to_owned()).collect(),
        mode: PodMode::Permissive,
        ports: Vec::new(),
        labels: object(labels),
    };
    let shared = json!({ "app": "web", "leno.dev/function": "web" });
    assert_eq!(changes.workloads[&function], Some(expected("old", &["new"], shared)), "the oldest pod counts");
    index.apply(Event::Pods(Change::Gone(key("shop", "c"))));
    let shared = json!({ "app": "web", "leno.dev/function": "web", "track": "one" });
    assert_eq!(index.take().unwrap().workloads[&function], Some(expected("old", &["new"], shared)));
    index.apply(Event::Pods(Change::Put(member("b", "new", "one"))));
    assert!(index.take().unwrap().is_empty(), "nothing differs");
    index.apply(Event::Pods(all(vec![])));
    assert_eq!(index.take().unwrap().workloads[&function], None);
    assert!(index.steps.members.is_empty() && index.shared.templates.used() == 0 && index.shared.nodes.used() == 0);
}

#[test]
fn a_label_gives_a_workload_no_other_account() {
    let at = |second: u8| format!("2026-11-28T09:00:0{second}Z");
    let own = |name: &str, second: u8, account: &str| {
        let owner = json!([{ "kind": "StatefulSet", "name": "web", "controller": true }]);
        let metadata = json!({ "creationTimestamp": at(second), "ownerReferences": owner });
        pod(name, json!({ "metadata": metadata, "spec": { "serviceAccountName": account } }))
    };
    let labelled = |name: &str, second: u8, account: &str| {
        let metadata = json!({ "creationTimestamp": at(second), "labels": { "leno.dev/function": "web" } });
        pod(name, json!({ "metadata": metadata, "spec": { "serviceAccountName": account } }))
    };
    let pods =
        vec![labelled("x", 0, "evil"), labelled("y", 0, "evil"), own("web-0", 2, "web"), own("web-1", 3, "next")];
    let (mut index, changes) = index(json!({ "leno.dev/mesh": "enabled" }), pods);
    let function: FunctionId = "shop/web".parse().unwrap();
    let accounts = |workload: &Option<Workload>| {
        let workload = workload.clone().unwrap();
        [vec![workload.service_account], workload.other_accounts].concat()
    };
    assert_eq!(accounts(&changes.workloads[&function]), ["web", "evil", "next"]);
    let of_pods: BTreeSet<_> =
        changes.put.iter().map(|(_, pod)| (pod.name.as_str(), pod.service_account.as_deref().unwrap())).collect();
    assert_eq!(of_pods, [("x", "evil"), ("y", "evil"), ("web-0", "web"), ("web-1", "next")].into());
    index.apply(Event::Pods(Change::Gone(key("shop", "web-0"))));
    assert_eq!(accounts(&index.take().unwrap().workloads[&function]), ["next", "evil"], "as at the end of a rollout");
    index.apply(Event::Pods(Change::Gone(key("shop", "web-1"))));
    assert_eq!(accounts(&index.take().unwrap().workloads[&function]), ["evil"], "the function is this workload");
}

#[test]
fn a_broken_object_stays_as_it_was() {
    let broken = |kind, key| BrokenObject { kind, key, field: "spec".to_owned(), message: "invalid type".to_owned() };
    let (mut index, _) = index(json!({ "leno.dev/mesh": "enabled" }), vec![pod("a", json!({}))]);
    index.apply(Event::Nodes(all(vec![object(json!({ "metadata": { "name": "one" } }))])));
    index.take();
    let pod = broken("Pod", key("shop", "a"));
    index.apply(Event::Pods(Change::Broken(pod.clone())));
    index.apply(Event::Pods(Change::Replaced { objects: vec![], broken: vec![pod] }));
    let namespace = broken("Namespace", key("", "shop"));
    index.apply(Event::Namespaces(Change::Replaced { objects: vec![], broken: vec![namespace] }));
    index.apply(Event::Nodes(Change::Replaced { objects: vec![], broken: vec![broken("Node", key("", "one"))] }));
    assert!(index.take().unwrap().is_empty());
    assert!(index.node("one").is_some());
    index.apply(Event::Nodes(all(vec![])));
    assert_eq!(index.take().unwrap().nodes_gone, ["one"]);
}

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
struct World {
    namespaces: BTreeMap<String, NamespaceObject>,
    nodes: BTreeMap<String, NodeObject>,
    pods: BTreeMap<ObjectKey, PodObject>,
}

/// The state of a control plane that has taken all changes.
#[derive(Debug, Default, PartialEq)]
struct ModelState {
    pods: BTreeMap<PodUid, (String, Pod)>,
    workloads: BTreeMap<FunctionId, Workload>,
    enforced: BTreeSet<String>,
}

impl ModelState {
    fn take(&mut self, index: &mut Index) {
        let Some(changes) = index.take() else { return };
        for uid in changes.gone {
            self.pods.remove(&uid);
        }
        for (node, pod) in changes.put {
            self.pods.insert(pod.uid.clone(), (node, pod));
        }
        for (function, workload) in changes.workloads {
            match workload {
                Some(workload) => drop(self.workloads.insert(function, workload)),
                None => drop(self.workloads.remove(&function)),
            }
        }
        self.enforced = changes.enforced.unwrap_or(std::mem::take(&mut self.enforced));
    }
}

/// A step of the cluster: a new state of one object, or its end.
#[derive(Clone, Debug)]
enum Step {
    Namespace(u8, Option<(u8, u8)>),
    Node(u8, bool),
    Pod { namespace: u8, name: u8, state: Option<(u8, u8, u8, u8)> },
}

fn steps() -> impl Strategy<Value = Vec<(Step, bool, bool)>> {
    let step = prop_oneof![
        1 => (0..3_u8, proptest::option::weighted(0.8, (0..3_u8, 0..3_u8))).prop_map(|(name, labels)| Step::Namespace(name, labels)),
        1 => (0..2_u8, any::<bool>()).prop_map(|(name, there)| Step::Node(name, there)),
        6 => (0..3_u8, 0..4_u8, proptest::option::weighted(0.8, (0..6_u8, 0..4_u8, 0..3_u8, 0..3_u8)))
            .prop_map(|(namespace, name, state)| Step::Pod { namespace, name, state }),
    ];
    // Each step comes with two choices: whether its event waits, and whether a list replaces it.
    proptest::collection::vec((step, any::<bool>(), proptest::bool::weighted(0.1)), 1..60)
}

impl World {
    /// Carries out a step, and returns its event.
    fn step(&mut self, step: &Step, number: usize) -> Event {
        match step {
            Step::Namespace(name, None) => {
                let name = format!("ns{name}");
                self.namespaces.remove(&name);
                Event::Namespaces(Change::Gone(key("", &name)))
            }
            Step::Namespace(name, Some((mesh, mode))) => {
                let mesh = [None, Some("enabled"), Some("disabled")][usize::from(*mesh)];
                let mode = [None, Some("permissive"), Some("enforced")][usize::from(*mode)];
                let labels = [("leno.dev/mesh", mesh), ("leno.dev/mode", mode)];
                let labels: BTreeMap<_, _> =
                    labels.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                let object = namespace(&format!("ns{name}"), json!(labels));
                self.namespaces.insert(format!("ns{name}"), object.clone());
                Event::Namespaces(Change::Put(object))
            }
            Step::Node(name, there) => {
                let name = format!("node{name}");
                if !there {
                    self.nodes.remove(&name);
                    return Event::Nodes(Change::Gone(key("", &name)));
                }
                let node: NodeObject = object(json!({ "metadata": { "name": name } }));
                self.nodes.insert(name, node.clone());
                Event::Nodes(Change::Put(node))
            }
            Step::Pod { namespace, name, state } => {
                let key = key(&format!("ns{namespace}"), &format!("pod{name}"));
                let Some((spec, labels, node, phase)) = state else {
                    self.pods.remove(&key);
                    return Event::Pods(Change::Gone(key));
                };
                // A pod that exists keeps its UID, its node and its specification.
                let made = match self.pods.get(&key) {
                    Some(pod) if !number.is_multiple_of(4) => pod.clone(),
                    _ => pod(
                        &key.name,
                        json!({
                            "metadata": { "namespace": key.namespace, "uid": format!("uid-{number}") },
                            "spec": {
                                "nodeName": (["", "node0", "node1"][usize::from(*node)]),
                                "serviceAccountName": format!("account{}", spec % 2),
                                "hostNetwork": *spec == 5,
                                "containers": [{ "ports": [{ "containerPort": 80 + u16::from(spec % 3) }] }],
                            },
                        }),
                    ),
                };
                let pod = made.relabelled(
                    [
                        None,
                        Some(("leno.dev/mesh", "enabled")),
                        Some(("leno.dev/mesh", "disabled")),
                        Some(("leno.dev/mode", "enforced")),
                    ][usize::from(*labels)],
                    &format!("w{}", spec % 3),
                    ["Pending", "Running", "Failed"][usize::from(*phase)],
                );
                self.pods.insert(key, pod.clone());
                Event::Pods(Change::Put(pod))
            }
        }
    }

    fn list(&self, kind: &Event) -> Event {
        match kind {
            Event::Namespaces(_) => Event::Namespaces(all(self.namespaces.values().cloned().collect())),
            Event::Nodes(_) => Event::Nodes(all(self.nodes.values().cloned().collect())),
            _ => Event::Pods(all(self.pods.values().cloned().collect())),
        }
    }

    fn lists(&self) -> [Event; 3] {
        [
            Event::Nodes(all(self.nodes.values().cloned().collect())),
            Event::Pods(all(self.pods.values().cloned().collect())),
            Event::Namespaces(all(self.namespaces.values().cloned().collect())),
        ]
    }
}

proptest! {
    /// Events of one kind come in their order. Between kinds they may come in any, a list may
    /// replace those before it, and changes may be taken at any time.
    #[test]
    fn the_index_depends_on_the_objects_alone(steps in steps()) {
        let (mut world, mut index, mut taken) = (World::default(), Index::default(), ModelState::default());
        for event in world.lists() {
            index.apply(event);
        }
        let mut waiting: Vec<Event> = Vec::new();
        for (number, (step, waits, listed)) in steps.iter().enumerate() {
            let mut event = world.step(step, number);
            let kind = std::mem::discriminant(&event);
            if *listed {
                event = world.list(&event);
                waiting.retain(|waiting| std::mem::discriminant(waiting) != kind);
            }
            if *waits {
                waiting.push(event);
                continue;
            }
            let (before, rest) = waiting.into_iter().partition(|waiting| std::mem::discriminant(waiting) == kind);
            waiting = rest;
            let before: Vec<Event> = before;
            for event in before.into_iter().chain([event]) {
                index.apply(event);
            }
            if number.is_multiple_of(3) {
                taken.take(&mut index);
            }
        }
        for event in waiting {
            index.apply(event);
        }
        taken.take(&mut index);

        let (mut restarted, mut anew) = (Index::default(), ModelState::default());
        for event in world.lists() {
            restarted.apply(event);
        }
        anew.take(&mut restarted);
        prop_assert_eq!(&taken, &anew);
        let left = |index: &Index| index.left_alone().collect::<BTreeSet<_>>();
        prop_assert_eq!(left(&index), left(&restarted));
        prop_assert_eq!(index.shared.templates.used(), restarted.shared.templates.used());
        prop_assert_eq!(index.steps.members.len(), restarted.steps.members.len());
        prop_assert_eq!(index.pods(), world.pods.len());
    }
}
