//! Addresses that pods call: each node gets those for which it asked, and their endpoints.

use super::*;
use crate::state::destinations::DestinationChanges;
use leno_model::{Destination, EndpointPort, MeshPod, PodMode, Service, ServiceEndpoint, ServiceName, ServicePort};
use leno_wire::encoding::EncodingError;

const CALLED: [&str; 3] = ["10.96.0.1", "10.96.0.2", "fd00::1"];
const BEHIND: [&str; 3] = ["10.9.0.1", "10.9.0.2", "fd09::1"];

/// The Services that were published.
#[derive(Default)]
pub(super) struct Services {
    are_known: bool,
    services: BTreeMap<ServiceName, (Service, Vec<IpAddr>)>,
    endpoints: BTreeMap<(ServiceName, IpAddr), BTreeMap<Vec<EndpointPort>, ServiceEndpoint>>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

fn service(of: &ServiceName, port: u16) -> Service {
    let ports = vec![ServicePort { name: "http".to_owned(), number: port, app_protocol: None }];
    Service { name: of.clone(), ports, affinity: None, node_local: false, distribution: None }
}

fn endpoint(port: u16) -> ServiceEndpoint {
    ServiceEndpoint {
        ports: vec![EndpointPort { name: "http".to_owned(), number: port }],
        is_terminating: false,
        node: Some("elsewhere".to_owned()),
        zone: None,
        for_zones: Vec::new(),
        for_nodes: Vec::new(),
        pod: None,
    }
}

impl World {
    /// Adds, replaces or removes Services and endpoints.
    pub(super) fn change_services(&mut self, random: &mut Random) {
        let mut changes = DestinationChanges::default();
        let of = [name("a/web"), name("b/web")];
        let of = &of[random.below(2)];
        if random.one_in(2) {
            let addresses: Vec<IpAddr> =
                CALLED.iter().filter(|_| random.one_in(2)).map(|address| ip(address)).collect();
            let taken = |address| {
                self.services.services.iter().any(|(other, (_, addresses))| other != of && addresses.contains(address))
            };
            let is_free = !addresses.iter().any(taken);
            let new = (is_free && !random.one_in(4)).then(|| (service(of, random.below(2) as u16), addresses));
            match &new {
                Some(new) => drop(self.services.services.insert(of.clone(), new.clone())),
                None => drop(self.services.services.remove(of)),
            }
            changes.services.insert(of.clone(), new);
        }
        let address = ip(BEHIND[random.below(BEHIND.len())]);
        let mut new = endpoint(random.below(2) as u16);
        let parts = self.services.endpoints.entry((of.clone(), address)).or_default();
        let key = new.ports.clone();
        if random.one_in(3) {
            parts.remove(&key);
            changes.endpoints.insert((of.clone(), address, key), None);
        } else {
            new.is_terminating = random.one_in(2);
            parts.insert(key.clone(), new.clone());
            changes.endpoints.insert((of.clone(), address, key), Some(new));
        }
        self.services.are_known = true;
        self.state.change_destinations(changes);
    }

    /// A pod of the node calls an address, or has not called it for long.
    pub(super) fn call(&mut self, node: &'static str, random: &mut Random) {
        let subject = Subject::Destination(ip(CALLED[random.below(CALLED.len())]));
        if self.placements[node] != Placement::Pods {
            return;
        }
        let peer = self.peers.get_mut(node).unwrap();
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        if random.one_in(3) {
            peer.explicit.remove(&subject);
            remove.push(subject);
        } else {
            peer.explicit.insert(subject.clone());
            add.push(subject);
        }
        if let Some(session) = peer.session {
            self.state.subscribe(node, session, add, &remove);
        }
    }

    /// The node captures no pods any more.
    pub(super) fn call_nothing(&mut self, node: &'static str) {
        let explicit = &mut self.peers.get_mut(node).unwrap().explicit;
        explicit.retain(|subject| !matches!(subject, Subject::Destination(_)));
    }

    fn called(&self, address: &IpAddr) -> Option<&ServiceName> {
        let (name, _) = self.services.services.iter().find(|(_, (_, addresses))| addresses.contains(address))?;
        Some(name)
    }

    pub(super) fn called_endpoints(&self, explicit: &BTreeSet<Subject>) -> BTreeSet<Subject> {
        let mut all = BTreeSet::new();
        for subject in explicit {
            let Subject::Destination(called) = subject else { continue };
            let Some(name) = self.called(called) else { continue };
            let behind = self.services.endpoints.keys().filter(|(service, _)| service == name);
            let behind = behind.filter(|(_, address)| address.is_ipv4() == called.is_ipv4());
            all.extend(behind.map(|(_, address)| Subject::ServiceEndpoint(name.clone(), *address)));
        }
        all
    }

    pub(super) fn service_content(&self, subject: &Subject) -> Option<Result<Content, EncodingError>> {
        match subject {
            Subject::Destination(address) => {
                let (service, _) = &self.services.services[self.called(address)?];
                Some(Content::new(&Destination::Service(service.clone())))
            }
            Subject::ServiceEndpoint(service, address) => {
                let parts: Vec<_> = self.services.endpoints[&(service.clone(), *address)].values().cloned().collect();
                (!parts.is_empty()).then(|| Content::new(&parts))
            }
            _ => None,
        }
    }

    fn subscribe_to(&mut self, node: &'static str, called: &str) {
        let session = self.peers[node].session.unwrap();
        self.state.subscribe(node, session, vec![Subject::Destination(ip(called))], &[]);
    }

    fn publish_endpoint(&mut self, service: &str, address: &str, new: Option<ServiceEndpoint>) {
        let key = (name(service), ip(address), endpoint(8080).ports);
        let changes = DestinationChanges { endpoints: [(key, new)].into(), ..DestinationChanges::default() };
        self.state.change_destinations(changes);
    }
}

#[test]
fn an_endpoint_is_one_small_message_to_callers_and_nothing_to_others() {
    let mut world = pods::world();
    let [one, two, three] = NODES;
    world.subscribe_to(one, CALLED[0]);
    world.subscribe_to(two, CALLED[0]);
    assert_eq!(world.accept_all(one), [], "Services are not known yet");
    let mut changes = DestinationChanges::default();
    changes.services.insert(name("a/web"), Some((service(&name("a/web"), 80), vec![ip(CALLED[0]), ip(CALLED[2])])));
    world.state.change_destinations(changes);
    let called = Subject::Destination(ip(CALLED[0]));
    let behind = |address| Subject::ServiceEndpoint(name("a/web"), ip(address));
    assert_eq!((world.accept_all(one), world.accept_all(two)), (vec![called.clone()], vec![called.clone()]));

    // A pod of the mesh begins, becomes ready, changes its mode, and ends.
    let counters = |world: &World| NODES.map(|name| world.state.counters(name).unwrap());
    let mut pod = leno_model::Pod { service_account: Some("default".to_owned()), ..pods::pod("p-0", "a/one", 80) };
    pod.addresses = vec![ip("10.244.1.7"), ip("fd00:10:244:1::7")];
    world.put_pod(three, pod.clone());
    world.accept_all(three);
    let before = counters(&world);
    world.publish_endpoint("a/web", "10.244.1.7", Some(endpoint(8080)));
    world.publish_endpoint("a/web", "fd00:10:244:1::7", Some(endpoint(8080)));
    assert_eq!((world.accept_all(one), world.accept_all(three)), (vec![behind("10.244.1.7")], vec![]));
    let after = counters(&world);
    assert_eq!((after[0].messages, after[2].bytes), (before[0].messages + 1, before[2].bytes));
    let bytes = after[0].bytes - before[0].bytes;
    assert!(bytes < 400, "{bytes} bytes for an endpoint");
    let content =
        world.state.destinations.endpoint(&name("a/web"), ip("10.244.1.7"), world.state.pod_at(ip("10.244.1.7")));
    let parts: Vec<ServiceEndpoint> = leno_wire::encoding::from_bytes(&content.unwrap().payload).unwrap();
    let identity = world.configs[&configs::function("a/one")].identity.clone();
    assert_eq!(parts[0].pod, Some(MeshPod { node: three.to_owned(), identity, mode: PodMode::Permissive }));
    world.put_pod(three, leno_model::Pod { mode: PodMode::Enforced, ..pod });
    assert_eq!(world.accept_all(one), [behind("10.244.1.7")]);
    world.state.remove_pod(&pods::uid("p-0"));
    assert_eq!(world.accept_all(one), [behind("10.244.1.7")], "something else may have its address");
    world.publish_endpoint("a/web", "10.244.1.7", None);
    assert_eq!(world.accept_all(one), [behind("10.244.1.7")]);
    assert!(!world.peers[one].held.contains_key(&behind("10.244.1.7")));
}

#[test]
fn an_address_may_mean_a_pod_or_nothing_yet() {
    let mut world = pods::world();
    let [one, two, _] = NODES;
    world.state.change_destinations(DestinationChanges::default());
    world.subscribe_to(one, "10.244.1.7");
    let called = Subject::Destination(ip("10.244.1.7"));
    assert_eq!(world.accept_all(one), std::slice::from_ref(&called), "nothing of the mesh");
    assert!(!world.peers[one].held.contains_key(&called));
    let mut pod = leno_model::Pod { service_account: Some("default".to_owned()), ..pods::pod("p-0", "a/one", 80) };
    pod.addresses = vec![ip("10.244.1.7")];
    world.put_pod(two, pod);
    assert_eq!(world.accept_all(one), std::slice::from_ref(&called));
    assert!(world.peers[one].held.contains_key(&called));
    // A node may ask for a bounded number of addresses, and of nothing but addresses.
    let session = world.peers[one].session.unwrap();
    let many = (0..9000_u32).map(|number| Subject::Destination(IpAddr::from((10 << 24 | number).to_be_bytes())));
    world.state.subscribe(one, session, many.collect(), &[]);
    world.state.subscribe(one, session, vec![Subject::ServiceEndpoint(name("a/web"), ip(BEHIND[0]))], &[]);
    assert_eq!(world.state.counters(one).unwrap().refused, 9000 - 8191 + 1);
}
