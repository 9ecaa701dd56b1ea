use super::*;
use crate::api::BrokenObject;
use crate::index::endpoint::{Conditions, EndpointPlace};
use crate::index::service::{Protocol, ServiceKind, ServicePort, TargetPort, TrafficDistribution};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn all<K>(objects: Vec<K>) -> Change<K> {
    Change::Replaced { objects, broken: Vec::new() }
}

fn service(name: &str, spec: Value) -> ServiceObject {
    object(json!({ "metadata": { "namespace": "shop", "name": name }, "spec": spec }))
}

fn slice(name: &str, service: Option<&str>, ports: Value, endpoints: Value) -> EndpointSliceObject {
    let labels = service.map_or(json!({}), |service| json!({ "kubernetes.io/service-name": service }));
    object(json!({
        "metadata": { "namespace": "shop", "name": name, "labels": labels },
        "ports": ports, "endpoints": endpoints,
    }))
}

fn index(services: Vec<ServiceObject>, slices: Vec<EndpointSliceObject>) -> (ServiceIndex, ServiceChanges) {
    let mut index = ServiceIndex::default();
    index.change_slices(all(slices));
    assert_eq!(index.take(), None, "the Services are yet to come");
    index.change_services(all(services));
    let changes = index.take().unwrap();
    (index, changes)
}

#[test]
fn a_service_has_what_its_callers_need() {
    let cluster =
        |addresses: &[&str]| ServiceKind::Cluster(addresses.iter().map(|address| address.parse().unwrap()).collect());
    let plain =
        Service { kind: cluster(&[]), ports: Box::default(), affinity: None, is_node_local: false, distribution: None };
    let of = |change: &dyn Fn(&mut Service)| {
        let mut service = plain.clone();
        change(&mut service);
        service
    };
    let port = |name: &str, number, protocol, app_protocol: Option<&str>, target| ServicePort {
        name: name.into(),
        number,
        protocol,
        app_protocol: app_protocol.map(Into::into),
        target,
    };
    let cases = [
        (json!({}), plain.clone()),
        (json!({ "clusterIPs": ["10.96.0.9", "fd00::9"] }), of(&|it| it.kind = cluster(&["10.96.0.9", "fd00::9"]))),
        (json!({ "clusterIPs": ["None"], "ports": null }), of(&|it| it.kind = ServiceKind::Headless)),
        (
            json!({ "type": "ExternalName", "externalName": "db.example.com" }),
            of(&|it| it.kind = ServiceKind::External("db.example.com".into())),
        ),
        (
            json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } } }),
            of(&|it| it.affinity = Some(Duration::from_secs(60))),
        ),
        (json!({ "sessionAffinity": "ClientIP" }), of(&|it| it.affinity = Some(Duration::from_secs(10_800)))),
        (json!({ "sessionAffinity": "None" }), plain.clone()),
        (json!({ "internalTrafficPolicy": "Local" }), of(&|it| it.is_node_local = true)),
        (json!({ "internalTrafficPolicy": "Cluster" }), plain.clone()),
        (
            json!({ "trafficDistribution": "PreferClose" }),
            of(&|it| it.distribution = Some(TrafficDistribution::SameZone)),
        ),
        (
            json!({ "trafficDistribution": "PreferSameNode" }),
            of(&|it| it.distribution = Some(TrafficDistribution::SameNode)),
        ),
        (json!({ "trafficDistribution": "PreferNobody" }), plain.clone()),
        (
            json!({ "ports": [
                { "name": "web", "port": 80, "targetPort": "http", "appProtocol": "kubernetes.io/h2c" },
                { "name": "dns", "port": 53, "protocol": "UDP" },
                { "name": "sctp", "port": 54, "protocol": "SCTP", "targetPort": 5454, "nodePort": 30_000 },
            ] }),
            of(&|it| {
                it.ports = Box::new([
                    port("web", 80, Protocol::Tcp, Some("kubernetes.io/h2c"), TargetPort::Name("http".into())),
                    port("dns", 53, Protocol::Udp, None, TargetPort::Number(53)),
                    port("sctp", 54, Protocol::Sctp, None, TargetPort::Number(5454)),
                ]);
            }),
        ),
    ];
    for (spec, expected) in cases {
        let (_, changes) = index(vec![service("web", spec.clone())], vec![]);
        assert_eq!(changes.services, BTreeMap::from([(key("web"), Some(expected))]), "{spec}");
    }
}

#[test]
fn an_endpoint_has_its_state_its_place_and_its_pod() {
    let ports = json!([{ "name": "web", "port": 8080, "appProtocol": "http" }, { "name": "any", "port": null }]);
    let endpoints = json!([
        { "addresses": ["10.78.1.3"], "conditions": { "ready": false, "serving": true, "terminating": true } },
        { "addresses": ["db.example.com"] },
        {
            "addresses": ["10.78.1.2"], "conditions": {}, "nodeName": "one", "zone": "north-1",
            "hints": { "forZones": [{ "name": "north-1" }], "forNodes": [{ "name": "one" }] },
            "targetRef": { "kind": "Pod", "name": "web-1" },
        },
        { "addresses": ["fd00::2"], "targetRef": { "kind": "Machine", "name": "web-1" }, "conditions": { "ready": false } },
        { "addresses": [] },
    ]);
    let (index, changes) = index(vec![], vec![slice("web-a", Some("web"), ports, endpoints)]);
    let names = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect();
    let endpoint = |address: &str, [is_ready, is_serving, stays]: [bool; 3]| Endpoint {
        address: address.parse().unwrap(),
        conditions: Conditions { is_ready, is_serving, stays },
        ports: Arc::new([EndpointPort {
            name: "web".into(),
            number: 8080,
            protocol: Protocol::Tcp,
            app_protocol: Some("http".into()),
        }]),
        place: Arc::default(),
        pod: Box::default(),
    };
    let expected = [
        Endpoint {
            place: Arc::new(EndpointPlace {
                node: Some("one".into()),
                zone: Some("north-1".into()),
                for_zones: names(&["north-1"]),
                for_nodes: names(&["one"]),
            }),
            pod: "web-1".into(),
            ..endpoint("10.78.1.2", [true, true, true])
        },
        endpoint("10.78.1.3", [false, true, false]),
        endpoint("fd00::2", [false, false, true]),
    ];
    let found: Vec<Endpoint> = changes.endpoints[&key("web")].values().flatten().cloned().collect();
    assert_eq!(found, expected);
    assert_eq!(index.counts(), [0, 1, 3]);
}

#[test]
fn only_endpoints_that_differ_are_changes() {
    let ports = json!([{ "port": 80 }]);
    let with = |ready: bool| {
        let of = |index: usize| json!({ "addresses": [format!("10.0.0.{index}")], "conditions": { "ready": index > 0 || ready } });
        slice("a", Some("web"), ports.clone(), (0..100).map(of).collect())
    };
    let (mut index, changes) = index(vec![service("web", json!({}))], vec![with(true)]);
    assert_eq!((changes.services.len(), changes.endpoints[&key("web")].len()), (1, 100));
    index.change_slices(Change::Put(with(true)));
    index.change_services(Change::Put(service("web", json!({}))));
    assert_eq!(index.take(), None);
    index.change_slices(Change::Put(with(false)));
    let changes = index.take().unwrap().endpoints.remove(&key("web")).unwrap();
    let changes: Vec<&Endpoint> = changes.values().map(|endpoint| endpoint.as_ref().unwrap()).collect();
    assert!(matches!(changes[..], [Endpoint { conditions: Conditions { is_ready: false, .. }, .. }]), "{changes:?}");
}

#[test]
fn an_endpoint_of_two_slices_has_the_better_state() {
    let with = |name: &str, ready: bool, pod: &str| {
        let endpoint = json!([{ "addresses": ["10.0.0.1"], "conditions": { "ready": ready }, "targetRef": { "kind": "Pod", "name": pod } }]);
        slice(name, Some("web"), json!([{ "port": 80 }]), endpoint)
    };
    let mut of_both = BTreeSet::new();
    for slices in [[with("a", false, "x"), with("b", true, "y")], [with("b", true, "y"), with("a", false, "x")]] {
        let (mut index, _) = index(vec![], vec![]);
        slices.into_iter().for_each(|slice| index.change_slices(Change::Put(slice)));
        of_both.insert(format!("{:?}", index.take()));
        index.change_slices(Change::Gone(key("b")));
        let changes = index.take().unwrap();
        let left: Vec<&str> = changes.endpoints[&key("web")].values().flatten().map(|it| &*it.pod).collect();
        assert_eq!(left, ["x"]);
    }
    assert_eq!(of_both.len(), 1, "{of_both:?}");
    assert!(of_both.pop_first().unwrap().contains("\"y\""));
}

#[test]
fn a_broken_object_stays_as_it_was() {
    let broken = |kind, name| BrokenObject { kind, key: key(name), field: "spec".to_owned(), message: String::new() };
    let endpoint = json!([{ "addresses": ["10.0.0.1"] }]);
    let services = vec![service("web", json!({ "clusterIPs": ["None"] }))];
    let (mut index, _) = index(services, vec![slice("a", Some("web"), json!([{ "port": 80 }]), endpoint)]);
    index.change_services(Change::Broken(broken("Service", "web")));
    index.change_slices(Change::Broken(broken("EndpointSlice", "a")));
    index.change_services(Change::Replaced { objects: vec![], broken: vec![broken("Service", "web")] });
    index.change_slices(Change::Replaced { objects: vec![], broken: vec![broken("EndpointSlice", "a")] });
    assert_eq!(index.take(), None);
    index.change_services(all(vec![]));
    index.change_slices(all(vec![]));
    let changes = index.take().unwrap();
    assert_eq!(changes.services[&key("web")], None);
    assert!(changes.endpoints[&key("web")].values().all(Option::is_none));
    assert!(index.slices.is_empty() && index.owners.is_empty());
    drop(changes);
    assert_eq!((index.values.ports.used(), index.values.places.used()), (0, 0));
}

/// A step: a new state of one object, or its end.
#[derive(Clone, Debug)]
enum Step {
    Service(u8, Option<u8>),
    Slice { name: u8, state: Option<SliceState> },
}

/// The Service that has the slice, its port, and the address and conditions of each endpoint.
type SliceState = (u8, u8, Vec<(u8, u8)>);

fn steps() -> impl Strategy<Value = Vec<(Step, bool, bool)>> {
    let endpoints = proptest::collection::vec((0..4_u8, 0..8_u8), 0..4);
    let step = prop_oneof![
        1 => (0..3_u8, proptest::option::weighted(0.7, 0..3_u8)).prop_map(|(name, kind)| Step::Service(name, kind)),
        4 => (0..4_u8, proptest::option::weighted(0.8, (0..4_u8, 0..2_u8, endpoints)))
            .prop_map(|(name, state)| Step::Slice { name, state }),
    ];
    // Each step comes with two choices: whether its event waits, and whether a list replaces it.
    proptest::collection::vec((step, any::<bool>(), proptest::bool::weighted(0.1)), 1..60)
}

/// A change of Services, or of slices.
#[derive(Clone, Debug)]
enum ObjectChange {
    Services(Change<ServiceObject>),
    Slices(Change<EndpointSliceObject>),
}

#[derive(Debug, Default)]
struct World {
    services: BTreeMap<String, ServiceObject>,
    slices: BTreeMap<String, EndpointSliceObject>,
}

impl World {
    fn step(&mut self, step: &Step) -> ObjectChange {
        match step {
            Step::Service(name, kind) => {
                let name = format!("s{name}");
                let Some(kind) = kind else {
                    self.services.remove(&name);
                    return ObjectChange::Services(Change::Gone(key(&name)));
                };
                let kinds = [json!({ "clusterIPs": ["10.96.0.1"] }), json!({ "clusterIPs": ["None"] }), json!({})];
                let service = service(&name, kinds[usize::from(*kind)].clone());
                self.services.insert(name, service.clone());
                ObjectChange::Services(Change::Put(service))
            }
            Step::Slice { name, state } => {
                let name = format!("slice{name}");
                let Some((owner, port, endpoints)) = state else {
                    self.slices.remove(&name);
                    return ObjectChange::Slices(Change::Gone(key(&name)));
                };
                let endpoint = |(address, state): &(u8, u8)| {
                    json!({ "addresses": [format!("10.0.0.{address}")], "conditions": {
                        "ready": state & 1 > 0, "serving": state & 2 > 0, "terminating": state & 4 > 0 } })
                };
                let endpoints = endpoints.iter().map(endpoint).collect();
                // A slice may belong to no Service.
                let owner = (*owner < 3).then(|| format!("s{owner}"));
                let slice = slice(&name, owner.as_deref(), json!([{ "port": 80 + u16::from(*port) }]), endpoints);
                self.slices.insert(name, slice.clone());
                ObjectChange::Slices(Change::Put(slice))
            }
        }
    }

    fn list(&self, kind: &ObjectChange) -> ObjectChange {
        match kind {
            ObjectChange::Services(_) => ObjectChange::Services(all(self.services.values().cloned().collect())),
            ObjectChange::Slices(_) => ObjectChange::Slices(all(self.slices.values().cloned().collect())),
        }
    }
}

/// The state of a reader that has taken all changes.
#[derive(Debug, Default, PartialEq)]
struct ModelState {
    services: BTreeMap<ObjectKey, Service>,
    endpoints: BTreeMap<(ObjectKey, EndpointKey), Endpoint>,
}

impl ModelState {
    fn take(&mut self, index: &mut ServiceIndex) {
        let Some(ServiceChanges { services, endpoints }) = index.take() else { return };
        for (key, service) in services {
            match service {
                Some(service) => drop(self.services.insert(key, service)),
                None => drop(self.services.remove(&key)),
            }
        }
        for (service, endpoints) in endpoints {
            for (key, endpoint) in endpoints {
                match endpoint {
                    Some(endpoint) => drop(self.endpoints.insert((service.clone(), key), endpoint)),
                    None => drop(self.endpoints.remove(&(service.clone(), key))),
                }
            }
        }
    }
}

fn apply(index: &mut ServiceIndex, change: ObjectChange) {
    match change {
        ObjectChange::Services(change) => index.change_services(change),
        ObjectChange::Slices(change) => index.change_slices(change),
    }
}

proptest! {
    /// Events of one kind come in their order. Between kinds they may come in any, a list may
    /// replace those before it, and changes may be taken at any time.
    #[test]
    fn the_index_depends_on_the_objects_alone(steps in steps()) {
        let (mut world, (mut index, _), mut taken) = (World::default(), index(vec![], vec![]), ModelState::default());
        let mut waiting: Vec<ObjectChange> = Vec::new();
        for (number, (step, waits, listed)) in steps.iter().enumerate() {
            let mut change = world.step(step);
            let kind = std::mem::discriminant(&change);
            if *listed {
                change = world.list(&change);
                waiting.retain(|waiting| std::mem::discriminant(waiting) != kind);
            }
            waiting.push(change);
            if *waits {
                continue;
            }
            let due: Vec<ObjectChange> =
                waiting.extract_if(.., |waiting| std::mem::discriminant(waiting) == kind).collect();
            due.into_iter().for_each(|change| apply(&mut index, change));
            if number.is_multiple_of(3) {
                taken.take(&mut index);
            }
        }
        waiting.into_iter().for_each(|change| apply(&mut index, change));
        taken.take(&mut index);

        let mut anew = ModelState::default();
        let (services, slices) = (world.services.into_values().collect(), world.slices.into_values().collect());
        let mut restarted = ServiceIndex::default();
        restarted.change_services(all(services));
        restarted.change_slices(all(slices));
        anew.take(&mut restarted);
        prop_assert_eq!(&taken, &anew);
        prop_assert_eq!(index.counts(), restarted.counts());
        prop_assert_eq!(index.values.ports.used(), restarted.values.ports.used());
    }
}
