//! Pods and the functions that they run.

use super::{configs, id};
use leno_model::{
    Destination, EndpointPort, FunctionConfig, MeshPod, Pod, PodMode, PodPort, PodProbe, PodRefusal, Pods, ProbeKind,
    Run, Service, ServiceEndpoint, ServiceName, ServicePort, TrafficDistribution,
};
use std::time::Duration;

/// A function whose instances are pods.
pub(super) fn function(mode: PodMode) -> FunctionConfig {
    let run =
        Run::Pods(Pods { service_account: "checkout".to_owned(), mode, ports: ports(), other_accounts: Vec::new() });
    FunctionConfig { run, ..configs::external() }
}

/// Pods that use all fields and variants.
pub(super) fn pods() -> [Pod; 3] {
    let kinds = [ProbeKind::Http, ProbeKind::Https, ProbeKind::Tcp, ProbeKind::Grpc];
    let path = |kind| (kind == ProbeKind::Http).then(|| "/ready?deep=1".to_owned());
    let probe = |kind| PodProbe { kind, port: 8080, path: path(kind) };
    let pod = Pod {
        uid: "7d0c1f5e-1c0b-4f39-9d2b-0f6f3f1d2a10".parse().unwrap(),
        namespace: "shop".to_owned(),
        name: "checkout-5d9c7b6f4-x2x7k".to_owned(),
        function: id("shop/checkout"),
        service_account: None,
        addresses: vec!["10.244.1.7".parse().unwrap(), "fd00:10:244:1::7".parse().unwrap()],
        mode: PodMode::Enforced,
        ports: ports(),
        probes: kinds.map(probe).to_vec(),
        refused: None,
    };
    let refused = |refused| Pod { refused: Some(refused), mode: PodMode::Permissive, ..pod.clone() };
    [refused(PodRefusal::HostNetwork), refused(PodRefusal::NetAdmin), pod]
}

/// A function whose pods have several service accounts.
pub(super) fn of_accounts() -> FunctionConfig {
    let mut config = function(PodMode::Permissive);
    if let Run::Pods(pods) = &mut config.run {
        pods.other_accounts = vec!["checkout-next".to_owned()];
    }
    config
}

/// A pod with a service account.
pub(super) fn with_account() -> Pod {
    let [_, _, pod] = pods();
    Pod { service_account: Some("checkout".to_owned()), ..pod }
}

fn ports() -> Vec<PodPort> {
    vec![PodPort { name: Some("http".to_owned()), number: 8080 }, PodPort { name: None, number: 5432 }]
}

/// The name of a Service.
pub(super) fn service() -> ServiceName {
    "shop/checkout".parse().unwrap()
}

/// Called addresses that use all fields and variants.
pub(super) fn called() -> [Destination; 3] {
    let port = |name: &str, number, app_protocol: Option<&str>| ServicePort {
        name: name.to_owned(),
        number,
        app_protocol: app_protocol.map(str::to_owned),
    };
    let plain = Service {
        name: service(),
        ports: vec![port("http", 80, Some("kubernetes.io/h2c")), port("db", 5432, None)],
        affinity: Some(Duration::from_secs(10_800)),
        node_local: true,
        distribution: Some(TrafficDistribution::SameZone),
    };
    let preferring = Service { distribution: Some(TrafficDistribution::SameNode), ..plain.clone() };
    [Destination::Service(plain), Destination::Service(preferring), Destination::Pod(mesh_pod())]
}

/// Endpoints of a Service that use all fields.
pub(super) fn endpoints() -> Vec<ServiceEndpoint> {
    let ready = ServiceEndpoint {
        ports: vec![EndpointPort { name: "http".to_owned(), number: 8080 }],
        is_terminating: false,
        node: Some("worker-1".to_owned()),
        zone: Some("eu-a".to_owned()),
        for_zones: vec!["eu-a".to_owned(), "eu-b".to_owned()],
        for_nodes: vec!["worker-1".to_owned()],
        pod: Some(mesh_pod()),
    };
    let ports = vec![EndpointPort { name: String::new(), number: 5432 }];
    vec![ServiceEndpoint { ports, is_terminating: true, pod: None, ..ready.clone() }, ready]
}

fn mesh_pod() -> MeshPod {
    let identity = "spiffe://orders.example/ns/shop/sa/checkout".parse().unwrap();
    MeshPod { node: "worker-1".to_owned(), identity, mode: PodMode::Enforced }
}
