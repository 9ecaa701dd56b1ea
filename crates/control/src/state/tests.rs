//! Random histories. After any events in any order, each node has in the end exactly the resources
//! that it should have.

mod destinations;
mod egress;
mod jobs;
mod machines;
mod pods;
mod removals;
mod scheduled;

use super::delivery::Next;
use super::membership::{Departure, Hello, Wait};
use super::node::ready;
use super::*;
use crate::admission::Admission;
use crate::definitions::Definitions;
use crate::history::Histories;
use leno_model::{FunctionConfig, InstanceState};
use leno_wire::{
    Bounds, Capacity, Content, Endpoint, Instance, NodeOffer, Placement, Resource, Subject, Version, messages, v1,
};
use std::collections::VecDeque;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use crate::configs;
use leno_identity::{Authority, TrustBundle};
use std::time::SystemTime;

const NODES: [&str; 3] = ["one", "two", "three"];
const FUNCTIONS: [&str; 6] = ["a/one", "a/two", "a/three", "b/one", "b/two", "b/three"];

/// A small generator (xorshift64*), so that a failing history can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// The node's end of the protocol.
#[derive(Default)]
struct Peer {
    session: Option<u64>,
    explicit: BTreeSet<Subject>,
    held: BTreeMap<Subject, Version>,
    /// Resources that the node refused and was not offered anew since.
    refused: BTreeMap<Subject, Version>,
    instances: BTreeMap<FunctionId, Vec<Instance>>,
    /// Deltas that the node has read and not answered.
    read: Vec<v1::Delta>,
}

struct World {
    state: State,
    bundle: TrustBundle,
    configs: BTreeMap<FunctionId, leno_model::FunctionConfig>,
    placements: BTreeMap<&'static str, Placement>,
    peers: BTreeMap<&'static str, Peer>,
    /// By UID, with their nodes.
    pods: BTreeMap<String, (&'static str, leno_model::Pod)>,
    enforced: Option<BTreeSet<String>>,
    services: destinations::Services,
}

impl World {
    fn new(bundle: &TrustBundle) -> Self {
        let mut state = State::new(CompiledDefinitions::nothing(bundle).unwrap(), Histories::default());
        for name in NODES {
            state.admit(
                name,
                Admission {
                    placement: Placement::Everything,
                    gateway: true,
                    locality: Default::default(),
                    egress: false,
                },
            );
        }
        Self {
            state,
            bundle: bundle.clone(),
            configs: BTreeMap::new(),
            placements: NODES.map(|name| (name, Placement::Everything)).into(),
            peers: NODES.map(|name| (name, Peer::default())).into(),
            pods: BTreeMap::new(),
            enforced: None,
            services: destinations::Services::default(),
        }
    }

    fn step(&mut self, random: &mut Random) {
        let name = NODES[random.below(NODES.len())];
        match random.below(14) {
            0 | 1 => self.publish(random),
            2 => self.place(name, random),
            3 => self.connect(name),
            4 => self.disconnect(name, random),
            5 => self.subscribe(name, random),
            6 => self.report(name, random),
            7 | 8 => drop(self.read(name)),
            9 | 10 => self.change_pod(random),
            11 => self.change_services(random),
            12 => self.call(name, random),
            _ => self.answer(name, random),
        }
    }

    fn publish(&mut self, random: &mut Random) {
        let function = FUNCTIONS[random.below(FUNCTIONS.len())];
        if random.one_in(3) {
            self.configs.remove(&configs::function(function));
        } else {
            let callees: Vec<_> = FUNCTIONS.into_iter().filter(|_| random.one_in(3)).collect();
            let mut config = configs::config(function, &callees, random.below(4) as u32);
            if random.one_in(3) {
                config = configs::exposed(config);
            }
            if random.one_in(3) {
                config = pods::of_pods(config);
            }
            self.configs.insert(config.id.clone(), config.clone());
            // One function alone, or all at once: both must have the same result.
            let history = self.state.histories().record_one(&config, 0).unwrap();
            let resolved = history.config_for_delivery(&config).unwrap();
            if random.one_in(2)
                && let Ok(prepared) = self.state.prepare_put(&resolved, &configs::DOMAIN.parse().unwrap())
            {
                self.state.put(prepared, history);
                return;
            }
        }
        let definitions = Definitions {
            mesh: configs::mesh(),
            configs: self.configs.clone(),
            routes: Default::default(),
            modules: BTreeMap::new(),
            permissions: Default::default(),
            secrets: None,
        };
        let histories = self.state.histories().record_publication(&definitions.configs, 0).unwrap();
        self.state.publish(
            CompiledDefinitions::new(&definitions, &definitions.modules, &histories, &self.bundle).unwrap(),
            histories,
        );
    }

    fn place(&mut self, name: &'static str, random: &mut Random) {
        let placement = match random.below(3) {
            0 => Placement::Everything,
            1 => Placement::Pods,
            _ => Placement::Only(FUNCTIONS.into_iter().filter(|_| random.one_in(2)).map(configs::function).collect()),
        };
        if placement != Placement::Pods {
            self.call_nothing(name);
        }
        self.placements.insert(name, placement.clone());
        self.state.admit(name, Admission { placement, gateway: true, locality: Default::default(), egress: false });
    }

    fn connect(&mut self, name: &'static str) {
        // If a function is removed, its instances have ended.
        let mut instances = self.peers[name].instances.clone();
        instances.retain(|id, _| self.hosts(name, id) && self.configs.contains_key(id));
        let port = 1000 + NODES.iter().position(|other| *other == name).unwrap() as u16;
        let peer = self.peers.get_mut(name).unwrap();
        peer.read.clear();
        peer.refused.clear();
        peer.instances = instances;
        let greeting = Hello {
            subscribe: peer.explicit.iter().cloned().collect(),
            held: peer.held.iter().map(|(subject, version)| (subject.clone(), *version)).collect(),
            inbound: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            instances: peer.instances.clone(),
            protocol: leno_wire::PODS,
            ..Hello::default()
        };
        peer.session = self.state.connect(name, greeting, Arc::default());
    }

    fn disconnect(&mut self, name: &'static str, random: &mut Random) {
        let peer = self.peers.get_mut(name).unwrap();
        let Some(session) = peer.session.take() else { return };
        peer.read.clear();
        if random.one_in(4) {
            // The process was restarted, and has no state.
            *peer = Peer { explicit: mem::take(&mut peer.explicit), ..Peer::default() };
        }
        self.state.disconnect(name, session);
        if random.one_in(2) {
            let _ = self.state.forget(name, session, Wait::Last);
        }
    }

    fn subscribe(&mut self, name: &'static str, random: &mut Random) {
        let peer = self.peers.get_mut(name).unwrap();
        let mut any = || match random.below(6) {
            0 => Subject::Mesh,
            1 => Subject::Hosted,
            2 => Subject::Routes,
            3 => Subject::Bundle,
            4 => Subject::FunctionConfig(configs::function(FUNCTIONS[random.below(FUNCTIONS.len())])),
            _ => Subject::Endpoints(configs::function(FUNCTIONS[random.below(FUNCTIONS.len())])),
        };
        let (add, remove) = (any(), any());
        peer.explicit.remove(&remove);
        // Function configurations and endpoints follow from the placement alone.
        if !matches!(add, Subject::FunctionConfig(_) | Subject::Endpoints(_)) {
            peer.explicit.insert(add.clone());
        }
        if let Some(session) = peer.session {
            self.state.subscribe(name, session, vec![add], &[remove]);
        }
    }

    fn report(&mut self, name: &'static str, random: &mut Random) {
        let function = configs::function(FUNCTIONS[random.below(FUNCTIONS.len())]);
        let instance = |id| Instance {
            id,
            state: if id == 0 { InstanceState::Starting } else { InstanceState::Ready },
            address: SocketAddr::from(([127, 0, 0, 1], 9000)),
            pid: None,
            restarts: 0,
            since: SystemTime::UNIX_EPOCH,
        };
        let instances: Vec<_> = (0..random.below(4) as u64).map(instance).collect();
        let hosts = self.hosts(name, &function) && self.configs.contains_key(&function);
        let peer = self.peers.get_mut(name).unwrap();
        // Reports about other functions are refused.
        if !hosts {
            if let Some(session) = peer.session
                && !peer.instances.contains_key(&function)
            {
                self.state.report(name, session, function, instances);
            }
            return;
        }
        if instances.is_empty() {
            peer.instances.remove(&function);
        } else {
            peer.instances.insert(function.clone(), instances.clone());
        }
        if let Some(session) = peer.session {
            self.state.report(name, session, function, instances);
        }
    }

    /// Reads a delta. Returns whether there was one.
    fn read(&mut self, name: &'static str) -> bool {
        let peer = self.peers.get_mut(name).unwrap();
        let Some(session) = peer.session else { return false };
        match self.state.next_delta(name, session) {
            Next::Send(v1::ToNode { message: Some(v1::to_node::Message::Delta(delta)) }) => peer.read.push(delta),
            Next::Wait => return false,
            Next::Send(v1::ToNode { message: Some(v1::to_node::Message::Machines(_)) }) => return self.read(name),
            Next::Send(_) | Next::Ended => panic!("{name} has the only session"),
        }
        true
    }

    fn answer(&mut self, name: &'static str, random: &mut Random) {
        self.answer_unless(name, || random.one_in(8));
    }

    fn answer_unless(&mut self, name: &'static str, mut refuses: impl FnMut() -> bool) {
        let peer = self.peers.get_mut(name).unwrap();
        let Some(session) = peer.session else { return };
        if peer.read.is_empty() {
            return;
        }
        let delta = peer.read.remove(0);
        let mut rejected = Vec::new();
        for resource in &delta.resources {
            let subject = messages::subject(resource.subject.as_ref()).unwrap();
            let version = messages::version(&resource.version).unwrap();
            let content = Resource::decode(&subject, &resource.payload).unwrap();
            assert_eq!(content.subject(), subject);
            if refuses() {
                peer.refused.insert(subject.clone(), version);
                rejected.push((subject, "no".to_owned()));
            } else {
                peer.refused.remove(&subject);
                peer.held.insert(subject, version);
            }
        }
        for subject in messages::subjects(&delta.removed).unwrap() {
            peer.refused.remove(&subject);
            peer.held.remove(&subject);
        }
        self.state.acknowledge(name, session, delta.nonce, rejected);
    }

    /// All nodes read and answer until no message is left.
    fn settle(&mut self, random: &mut Random) {
        for name in NODES {
            if self.peers[name].session.is_none() {
                self.connect(name);
            }
        }
        for name in NODES {
            while self.read(name) || !self.peers[name].read.is_empty() {
                self.answer(name, random);
            }
        }
    }

    fn check(&self, history: u64) {
        for name in NODES {
            let peer = &self.peers[name];
            let expected = self.expected(name);
            for (subject, version) in &expected {
                let refused = peer.refused.get(subject) == Some(version);
                assert!(
                    refused || peer.held.get(subject) == Some(version),
                    "history {history}: {name} misses {subject}"
                );
            }
            for subject in peer.held.keys() {
                assert!(expected.contains_key(subject), "history {history}: {name} still has {subject}");
            }
            let status = self.state.status().nodes.into_iter().find(|node| node.name == name).unwrap();
            let refused: Vec<_> =
                status.rejected.iter().map(|rejected| (&rejected.subject, &rejected.version)).collect();
            assert_eq!(refused, peer.refused.iter().collect::<Vec<_>>(), "history {history}: {name}");
        }
    }

    /// The resources that a node should have, worked out from the definitions without sessions,
    /// versions or differences.
    fn expected(&self, name: &'static str) -> BTreeMap<Subject, Version> {
        let explicit = &self.peers[name].explicit;
        let mut wanted = explicit.clone();
        for (id, config) in &self.configs {
            let hosted = explicit.contains(&Subject::Hosted) && self.hosts(name, id);
            let routed = explicit.contains(&Subject::Routes) && !config.expose.is_empty();
            if hosted {
                wanted.insert(Subject::FunctionConfig(id.clone()));
            } else if routed {
                wanted.insert(Subject::Route(id.clone()));
            }
            if routed {
                wanted.insert(Subject::Endpoints(id.clone()));
            }
            if hosted {
                wanted.extend(config.callees.iter().map(|callee| Subject::Endpoints(callee.id.clone())));
            }
        }
        if explicit.contains(&Subject::Hosted) && self.placements[name] == Placement::Pods {
            wanted.insert(Subject::EnforcedNamespaces);
            let own = self.pods.values().filter(|(node, _)| *node == name);
            wanted.extend(own.map(|(_, pod)| Subject::Pod(pod.uid.clone())));
        }
        wanted.extend(self.called_endpoints(explicit));
        wanted.into_iter().filter_map(|subject| Some((subject.clone(), self.content(name, &subject)?))).collect()
    }

    fn content(&self, name: &'static str, subject: &Subject) -> Option<Version> {
        let content = match subject {
            Subject::Mesh => (!self.state.catalog.compiled.functions.is_empty()
                || self.state.catalog.compiled.contents.contains_key(subject))
            .then(|| Content::new(&configs::mesh())),
            Subject::Bundle => Some(Content::of_bundle(&self.bundle)),
            Subject::Module(_)
            | Subject::Scale(_)
            | Subject::Quota(_)
            | Subject::Secrets(_)
            | Subject::Certificates => None,
            Subject::EnforcedNamespaces => self.enforced.as_ref().map(Content::new),
            Subject::Destination(_) | Subject::ServiceEndpoint(..) => self.service_content(subject),
            Subject::Pod(uid) => self.pods.get(uid.as_str()).map(|(_, pod)| Content::new(pod)),
            Subject::FunctionConfig(id) => self.configs.get(id).map(|config| Content::new(&self.delivered(config))),
            Subject::Route(id) => {
                let config = self.configs.get(id).map(|config| self.delivered(config));
                config.and_then(|config| leno_model::Route::of(&config)).map(|route| Content::new(&route))
            }
            Subject::Endpoints(id) => self.configs.contains_key(id).then(|| Content::new(&self.endpoints(name, id))),
            Subject::Routes => return self.state.catalog.compiled.contents.get(subject).map(|content| content.version),
            Subject::Hosted => Some(Content::new(&self.placements[name])),
        };
        content.map(|content| content.unwrap().version)
    }

    /// The configuration as it is delivered: its revision has another number if it has come to be pods.
    fn delivered(&self, config: &FunctionConfig) -> FunctionConfig {
        self.state.histories().config_for_delivery(config).unwrap()
    }

    fn endpoints(&self, name: &'static str, function: &FunctionId) -> Vec<Endpoint> {
        let mut others: Vec<_> = NODES.into_iter().enumerate().filter(|(_, other)| *other != name).collect();
        others.sort_by_key(|(_, other)| *other);
        let hosting = others.into_iter().filter(|(_, other)| self.hosts(other, function));
        let endpoint = |(index, other): (usize, &str)| Endpoint {
            node: other.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 1000 + index as u16)),
            ready: ready(self.peers[other].instances.get(function)),
            locality: Default::default(),
        };
        hosting.map(endpoint).collect()
    }
}

#[test]
fn every_history_ends_with_everybody_having_what_they_should() {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    for history in 1..=400 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(history));
        let mut world = World::new(&bundle);
        for _ in 0..4 {
            for _ in 0..random.below(40) {
                world.step(&mut random);
            }
            world.settle(&mut random);
            world.check(history);
        }
    }
}

/// A control plane after a restart, and three nodes that have not come back yet. The first one's
/// function calls those of the others.
fn caller_and_two_hosts() -> World {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut world = World::new(&bundle);
    world.configs = [configs::config("a/one", &["a/two"], 1), configs::config("a/two", &[], 1)]
        .map(|config| (config.id.clone(), config))
        .into();
    let hosted = NODES.into_iter().zip(["a/one", "a/two", "a/two"]);
    world.placements = hosted.map(|(name, id)| (name, Placement::Only([configs::function(id)].into()))).collect();
    for peer in world.peers.values_mut() {
        peer.explicit.insert(Subject::Hosted);
    }
    world.restart();
    NODES.iter().for_each(|name| drop(world.come_back(name)));
    world.accept_all(NODES[0]);
    world.restart();
    world
}

impl World {
    /// Another process with the same definitions.
    fn restart(&mut self) {
        let definitions = Definitions {
            mesh: configs::mesh(),
            configs: self.configs.clone(),
            routes: Default::default(),
            modules: BTreeMap::new(),
            permissions: Default::default(),
            secrets: None,
        };
        let histories = Histories::default().record_publication(&definitions.configs, 0).unwrap();
        let compiled = CompiledDefinitions::new(&definitions, &definitions.modules, &histories, &self.bundle).unwrap();
        self.state = State::new(compiled, histories);
        for (node, pod) in self.pods.values() {
            self.state.put_pod(node, pod, Content::new(pod).unwrap());
        }
        for (name, placement) in &self.placements {
            let (placement, locality) = (placement.clone(), Default::default());
            self.state.admit(name, Admission { placement, gateway: false, locality, egress: false });
        }
        self.state.await_nodes(NODES.map(Arc::from));
    }

    fn come_back(&mut self, name: &'static str) -> Vec<Subject> {
        self.connect(name);
        self.accept_all(name)
    }

    /// Delivers all pending resources to a node, which accepts them. Returns their subjects.
    fn accept_all(&mut self, name: &'static str) -> Vec<Subject> {
        let mut told = Vec::new();
        while self.read(name) {
            let delta = self.peers[name].read.last().unwrap();
            told.extend(delta.resources.iter().map(|resource| messages::subject(resource.subject.as_ref()).unwrap()));
            told.extend(messages::subjects(&delta.removed).unwrap());
            self.answer_unless(name, || false);
        }
        told
    }
}

#[test]
fn callers_keep_endpoints_until_all_nodes_of_a_function_are_back() {
    let [caller, host, other] = NODES;
    let mut world = caller_and_two_hosts();
    assert_eq!(world.come_back(host), []);
    assert_eq!(world.come_back(caller), [], "the other one may still be there");
    assert_eq!(world.come_back(other), []);
    assert!(!world.state.hosting.awaiting);
    assert_eq!(world.accept_all(caller), [], "it has had the endpoints of both all the time");
}

#[test]
fn endpoints_of_nodes_that_do_not_come_back_end_with_the_wait_for_them() {
    let [caller, host, _] = NODES;
    let mut world = caller_and_two_hosts();
    assert_eq!((world.come_back(host), world.come_back(caller)), (vec![], vec![]));
    world.state.stop_awaiting();
    assert_eq!(world.accept_all(caller), [Subject::Endpoints(configs::function("a/two"))]);
    let left = world.state.endpoints(caller, &configs::function("a/two"));
    assert_eq!(left.iter().map(|endpoint| &*endpoint.node).collect::<Vec<_>>(), [host]);
}

#[test]
fn what_an_earlier_stream_left_unanswered_does_not_count() {
    let mut world = caller_and_two_hosts();
    let [caller, ..] = NODES;
    assert!(!world.state.is_up_to_date(caller), "it is not connected");
    world.peers.get_mut(caller).unwrap().held.clear();
    world.connect(caller);
    assert!(world.read(caller) && !world.state.is_up_to_date(caller));
    // The stream ends before its answer arrives.
    world.come_back(caller);
    let counters = world.state.counters(caller).unwrap();
    assert!(counters.acks < counters.messages && world.state.is_up_to_date(caller));
}
