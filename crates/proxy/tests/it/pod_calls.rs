//! Connections that programs of pods open: Services, their endpoints, and what refuses them.

use crate::mesh::{Builder, Mesh};
use crate::pods::TestPod;
use crate::raw::{self, Raw};
use crate::upstream::{self, echo};
use leno_model::{AppProtocol, Destination, EndpointPort, Service, ServiceEndpoint, ServicePort};
use leno_proxy::destinations::{AddressBook, NodePlace};
use leno_testkit::eventually_async;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;

/// A control plane that notes the addresses of which it is asked.
#[derive(Clone, Default)]
struct AskedAddresses(Arc<Mutex<Vec<IpAddr>>>);

impl AddressBook for AskedAddresses {
    fn subscribe(&self, address: IpAddr) {
        self.0.lock().unwrap().push(address);
    }

    fn unsubscribe(&self, _: Vec<IpAddr>) {}

    fn is_connected(&self) -> bool {
        true
    }
}

/// A pod whose calls arrive at a Service, because its listener has the address that they call.
async fn caller(program: SocketAddr) -> (Mesh, TestPod, AskedAddresses) {
    let mesh = Builder::new().function("web", AppProtocol::Http1, program).start();
    let web = TestPod::start(&mesh, "web", program, |_| ());
    let asked = AskedAddresses::default();
    mesh.node.destinations.begin(NodePlace { node: "here".to_owned(), zone: None }, Box::new(asked.clone()));
    (mesh, web, asked)
}

fn publish(mesh: &Mesh, web: &TestPod, endpoints: &[SocketAddr]) {
    let port = ServicePort { name: "http".to_owned(), number: web.outbound.port(), app_protocol: None };
    let name: leno_model::ServiceName = "shop/callee".parse().unwrap();
    for endpoint in endpoints {
        let ports = endpoints.iter().filter(|other| other.ip() == endpoint.ip());
        let ports = ports.map(|port| EndpointPort { name: "http".to_owned(), number: port.port() });
        let part = ServiceEndpoint {
            ports: ports.collect(),
            is_terminating: false,
            node: None,
            zone: None,
            for_zones: Vec::new(),
            for_nodes: Vec::new(),
            pod: None,
        };
        mesh.node.destinations.set_endpoint(name.clone(), endpoint.ip(), vec![part]);
    }
    let service = Service { name, ports: vec![port], affinity: None, node_local: false, distribution: None };
    mesh.node.destinations.set(web.outbound.ip(), Some(Destination::Service(service)));
}

async fn get(called: SocketAddr) -> String {
    // The node accepts it before it has a callee, and may reset it at once.
    let Ok(stream) = TcpStream::connect(called).await else { return String::new() };
    let mut raw = Raw(stream);
    raw.send("GET / HTTP/1.1\r\nhost: callee\r\nconnection: close\r\n\r\n").await;
    raw.rest().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_reaches_an_endpoint_of_the_service_and_passes_over_those_that_refuse() {
    let program = upstream::http1(echo).await;
    let (mesh, web, asked) = caller(program.address).await;
    let calling = tokio::spawn(get(web.outbound));
    eventually_async("the node asks", || !asked.0.lock().unwrap().is_empty()).await;
    // Two of the endpoints have no listener.
    let closed = |last: u8| SocketAddr::from(([127, 0, 0, last], program.address.port()));
    let endpoints = [program.address, closed(77), closed(78)];
    publish(&mesh, &web, &endpoints);
    assert_eq!(raw::status(&calling.await.unwrap()), 200);
    for _ in 0..8 {
        assert_eq!(raw::status(&get(web.outbound).await), 200);
    }
    assert_eq!(*asked.0.lock().unwrap(), [web.outbound.ip()]);
    let calls: u64 = mesh.node.destinations.calls().values().sum();
    assert_eq!(calls, 9);
    // All that is left refuses.
    mesh.node.destinations.set_endpoint("shop/callee".parse().unwrap(), program.address.ip(), Vec::new());
    assert_eq!(get(web.outbound).await, "");
    // It has no endpoint any more.
    for last in [77, 78] {
        mesh.node.destinations.set_endpoint("shop/callee".parse().unwrap(), closed(last).ip(), Vec::new());
    }
    assert_eq!(get(web.outbound).await, "");
}
