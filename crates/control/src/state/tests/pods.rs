//! Pods: each is sent to its own node, which hosts its function.

use super::*;
use crate::admission::Admission;
use leno_model::{Pod, PodMode, PodPort, PodUid, Pods, Run};

const UIDS: [&str; 8] = ["p-0", "p-1", "p-2", "p-3", "p-4", "p-5", "p-6", "p-7"];

pub(super) fn uid(text: &str) -> PodUid {
    text.parse().unwrap()
}

pub(super) fn pod(name: &str, function: &str, port: u16) -> Pod {
    Pod {
        uid: uid(name),
        namespace: "a".to_owned(),
        name: name.to_owned(),
        function: configs::function(function),
        service_account: None,
        addresses: vec![IpAddr::from([10, 0, 0, 1])],
        mode: PodMode::Permissive,
        ports: vec![PodPort { name: None, number: port }],
        probes: Vec::new(),
        refused: None,
    }
}

/// The same function as pods.
pub(super) fn of_pods(config: FunctionConfig) -> FunctionConfig {
    let (mode, ports, other_accounts) = (PodMode::Enforced, Vec::new(), Vec::new());
    let run = Run::Pods(Pods { service_account: "default".to_owned(), mode, ports, other_accounts });
    let identity = run.identity(&configs::DOMAIN.parse().unwrap(), &config.id);
    FunctionConfig { run, identity, ..config }
}

impl World {
    /// Adds, replaces, moves or removes a pod.
    pub(super) fn change_pod(&mut self, random: &mut Random) {
        if random.one_in(8) {
            let names = ["a", "b", "c"].into_iter().filter(|_| random.one_in(2)).map(str::to_owned);
            let names: BTreeSet<_> = names.collect();
            self.state.set_enforced_namespaces(Content::new(&names).unwrap());
            self.enforced = Some(names);
        }
        let name = UIDS[random.below(UIDS.len())];
        if random.one_in(3) {
            self.pods.remove(name);
            return self.state.remove_pod(&uid(name));
        }
        let node = NODES[random.below(NODES.len())];
        let function = FUNCTIONS[random.below(FUNCTIONS.len())];
        self.put_pod(node, pod(name, function, random.below(3) as u16));
    }

    pub(super) fn put_pod(&mut self, node: &'static str, pod: Pod) {
        self.state.put_pod(node, &pod, Content::new(&pod).unwrap());
        self.pods.insert(pod.uid.to_string(), (node, pod));
    }

    /// Whether a node hosts a function by its placement and its pods.
    pub(super) fn hosts(&self, name: &str, id: &FunctionId) -> bool {
        let placement = &self.placements[name];
        match self.configs.get(id).map(|config| &config.run) {
            Some(Run::Pods(_)) if *placement == Placement::Pods => {
                self.pods.values().any(|(node, pod)| *node == name && pod.function == *id)
            }
            Some(Run::Pods(_)) => false,
            _ => placement.hosts(id),
        }
    }
}

pub(super) fn world() -> World {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut world = World::new(&bundle);
    let limited = |mut config: FunctionConfig| {
        config.callees.clear();
        of_pods(config)
    };
    let configs = FUNCTIONS.map(|name| limited(configs::config(name, &[], 1)));
    world.configs = configs.into_iter().map(|config| (config.id.clone(), config)).collect();
    world.placements = NODES.map(|name| (name, Placement::Pods)).into();
    for peer in world.peers.values_mut() {
        peer.explicit.insert(Subject::Hosted);
    }
    world.restart();
    NODES.iter().for_each(|name| drop(world.come_back(name)));
    world
}

fn config(name: &str) -> Subject {
    Subject::FunctionConfig(configs::function(name))
}

#[test]
fn a_pod_is_one_small_message_to_its_node_and_nothing_to_others() {
    let mut world = world();
    let [one, two, three] = NODES;
    world.put_pod(one, pod("p-0", "a/one", 80));
    assert_eq!(world.accept_all(one), [config("a/one"), Subject::Pod(uid("p-0"))], "its function comes first");
    let counters = |world: &World| NODES.map(|name| world.state.counters(name).unwrap());
    let before = counters(&world);
    world.put_pod(one, pod("p-1", "a/one", 80));
    assert_eq!(world.accept_all(one), [Subject::Pod(uid("p-1"))]);
    assert_eq!((world.accept_all(two), world.accept_all(three)), (vec![], vec![]));
    let after = counters(&world);
    assert_eq!((after[0].messages, &after[1..]), (before[0].messages + 1, &before[1..]));
    let bytes = after[0].bytes - before[0].bytes;
    assert!(bytes < 300, "{bytes} bytes for a pod");
    // The same again, as a watch that starts anew lists it.
    world.put_pod(one, pod("p-1", "a/one", 80));
    assert_eq!(world.accept_all(one), []);
    world.put_pod(one, pod("p-1", "a/one", 81));
    assert_eq!(world.accept_all(one), [Subject::Pod(uid("p-1"))], "it changed");
}

#[test]
fn a_node_may_certify_the_account_of_a_pod_that_its_function_does_not_have() {
    let mut world = world();
    let [one, two, _] = NODES;
    let identity = |name: &str| format!("spiffe://{}/ns/a/sa/{name}", configs::DOMAIN).parse().unwrap();
    let may_sign = |world: &World, node, name: &str| world.state.may_sign(node, &identity(name)).is_some();
    world.put_pod(one, Pod { service_account: Some("own".to_owned()), ..pod("p-0", "a/one", 80) });
    world.put_pod(two, pod("p-1", "a/one", 80));
    let of_nodes = |world: &World| [one, two].map(|node| may_sign(world, node, "own"));
    assert_eq!(of_nodes(&world), [true, false]);
    assert!(!may_sign(&world, one, "other"));
    world.state.remove_pod(&uid("p-0"));
    assert_eq!(of_nodes(&world), [false, false]);
}

#[test]
fn a_node_hosts_a_function_and_may_certify_its_account_while_it_has_a_pod() {
    let mut world = world();
    let [one, two, _] = NODES;
    let id = configs::function("a/one");
    let identity = world.configs[&id].identity.clone();
    let may_sign = |world: &World, name| world.state.may_sign(name, &identity).is_some();
    assert!(!may_sign(&world, one));
    world.put_pod(one, pod("p-0", "a/one", 80));
    world.put_pod(one, pod("p-1", "a/one", 80));
    // The account is that of all functions of the namespace.
    world.put_pod(two, pod("p-2", "a/two", 80));
    assert!(may_sign(&world, one) && may_sign(&world, two) && !may_sign(&world, NODES[2]));
    world.accept_all(one);
    world.accept_all(two);
    world.state.remove_pod(&uid("p-0"));
    assert!(may_sign(&world, one) && world.accept_all(one) == [Subject::Pod(uid("p-0"))]);
    world.state.remove_pod(&uid("p-1"));
    assert_eq!(world.accept_all(one), [config("a/one"), Subject::Pod(uid("p-1"))], "both are gone");
    assert!(!may_sign(&world, one) && may_sign(&world, two));
    // Its reports on the function are refused from now on.
    let refused = |world: &World| world.state.counters(one).unwrap().refused;
    let before = refused(&world);
    let session = world.peers[one].session.unwrap();
    world.state.report(one, session, id, Vec::new());
    assert_eq!(refused(&world), before + 1);
}

#[test]
fn a_node_that_comes_back_gets_the_differences_only() {
    let mut world = world();
    let one = NODES[0];
    world.put_pod(one, pod("p-0", "a/one", 80));
    world.put_pod(one, pod("p-1", "a/one", 80));
    world.accept_all(one);
    let session = world.peers[one].session.unwrap();
    world.state.disconnect(one, session);
    assert_eq!(world.state.forget(one, session, Wait::Last), Departure::Settled);
    world.state.remove_pod(&uid("p-1"));
    world.put_pod(one, pod("p-2", "a/one", 80));
    assert_eq!(world.come_back(one), [Subject::Pod(uid("p-2")), Subject::Pod(uid("p-1"))]);
    // A node that joins again under another placement loses its pods.
    let admission =
        Admission { placement: Placement::Scheduled, gateway: false, locality: Default::default(), egress: false };
    world.state.admit(one, admission);
    let told = world.accept_all(one);
    assert!(told.contains(&config("a/one")) && told.contains(&Subject::Pod(uid("p-0"))), "{told:?}");
}

#[test]
fn pods_may_come_before_their_node_and_before_their_function() {
    let mut world = world();
    let one = NODES[0];
    world.state.expel(one);
    world.put_pod(one, pod("p-0", "a/one", 80));
    world.put_pod(one, pod("p-1", "c/none", 80));
    let placement = world.placements[one].clone();
    world.state.admit(one, Admission { placement, gateway: false, locality: Default::default(), egress: false });
    let told = world.come_back(one);
    assert!(told.contains(&config("a/one")) && told.contains(&Subject::Pod(uid("p-1"))), "{told:?}");
    let status = world.state.status();
    let function = status.functions.iter().find(|function| function.function == configs::function("a/two")).unwrap();
    assert!(!function.unplaced && function.reason.is_none(), "a function without pods lacks no node");
}

/// The cost of a change does not depend on the pods of other nodes, and each pod has one entry.
#[test]
fn ten_thousand_pods_of_one_function() {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut world = World::new(&bundle);
    let config = of_pods(configs::config("a/one", &[], 1));
    world.configs.insert(config.id.clone(), config);
    world.restart();
    let admission =
        || Admission { placement: Placement::Pods, gateway: false, locality: Default::default(), egress: false };
    for node in 0..1000 {
        let name = format!("node-{node}");
        world.state.admit(&name, admission());
        let hello = Hello { subscribe: vec![Subject::Hosted], protocol: leno_wire::PODS, ..Hello::default() };
        world.state.connect(&name, hello, Arc::default()).unwrap();
    }
    for number in 0..10_000 {
        let pod = pod(&format!("pod-{number}"), "a/one", 80);
        world.state.put_pod(&format!("node-{}", number % 1000), &pod, Content::new(&pod).unwrap());
    }
    let of_node = |world: &World, name: &str| {
        let session = world.state.nodes.all[name].session.as_ref().unwrap();
        (session.wanted.len(), world.state.hosting.pods.of_node(name).count())
    };
    // The placement, the enforced namespaces, the configuration, and its pods.
    assert_eq!(of_node(&world, "node-7"), (13, 10));
    assert_eq!(world.state.hosting.hosts(&configs::function("a/one")).count(), 1000);
    for number in 0..10_000 {
        world.state.remove_pod(&uid(&format!("pod-{number}")));
    }
    assert_eq!(of_node(&world, "node-7"), (2, 0));
    assert_eq!(world.state.hosting.hosts(&configs::function("a/one")).count(), 0);
}
