//! The bounds of a namespace on a node: open requests and connections.

use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, answer, connect_h2, echo, empty, get};
use crate::websocket::{HANDSHAKE, parrot};
use http::{Request, Response};
use hyper::body::Incoming;
use leno_model::AppProtocol;
use leno_model::NamespaceBounds;
use leno_namespaces::Resource;
use leno_testkit::eventually_async;
use std::net::SocketAddr;

async fn slow(request: Request<Incoming>) -> Response<upstream::Body> {
    match request.uri().path() {
        "/slow" => std::future::pending().await,
        _ => echo(request).await,
    }
}

fn mesh(web: SocketAddr, bounds: NamespaceBounds) -> Mesh {
    Builder::new().function("web", AppProtocol::Http1, web).bounds(bounds).start()
}

/// A connection on which a request waits for ever.
async fn stuck(mesh: &Mesh) -> Raw {
    let mut client = Raw::connect(mesh.gateway()).await;
    client.send("GET /slow HTTP/1.1\r\nhost: web\r\n\r\n").await;
    client
}

fn used(mesh: &Mesh, resource: Resource) -> u64 {
    mesh.node.telemetry.namespaces.of("shop").count(resource).used()
}

/// The flag and the reason of a refused request.
async fn refused(mesh: &Mesh) -> (String, String) {
    let reply = get(mesh.gateway(), "/").await;
    assert_eq!(reply.status, 503);
    let told = &mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await[0];
    (told.response.flag.clone().unwrap(), told.response.failure.clone().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_so_many_open_requests_and_more_are_refused_with_the_bound() {
    let upstream = upstream::http1(slow).await;
    let mesh = mesh(upstream.address, NamespaceBounds { open_requests: Some(2), ..NamespaceBounds::default() });
    let stuck = [stuck(&mesh).await, stuck(&mesh).await];
    eventually_async("the open requests", || used(&mesh, Resource::OpenRequests) == 2).await;
    let (flag, reason) = refused(&mesh).await;
    assert_eq!(
        (&*flag, &*reason),
        ("UO", "namespace shop has all that its bound `openRequests` allows on this node: 2")
    );
    drop(stuck);
    eventually_async("the end of all requests", || used(&mesh, Resource::OpenRequests) == 0).await;
    assert_eq!(get(mesh.gateway(), "/").await.status, 200);
    eventually_async("the end of all requests", || used(&mesh, Resource::OpenRequests) == 0).await;
    let metrics = mesh.metrics();
    let line = "leno_namespace_refused_total{namespace=\"shop\",resource=\"open_requests\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_one_connection_count_as_well() {
    let upstream = upstream::http1(slow).await;
    let mesh = mesh(upstream.address, NamespaceBounds { open_requests: Some(3), ..NamespaceBounds::default() });
    let mut client = connect_h2(mesh.gateway()).await;
    let request = |path: &str| Request::get(format!("http://web{path}")).body(empty()).unwrap();
    let open: Vec<_> = (0..3).map(|_| tokio::spawn(client.send_request(request("/slow")))).collect();
    eventually_async("the open requests", || used(&mesh, Resource::OpenRequests) == 3).await;
    assert_eq!(answer(client.send_request(request("/")).await.unwrap()).await.status, 503);
    open.iter().for_each(tokio::task::JoinHandle::abort);
    eventually_async("the end of all requests", || used(&mesh, Resource::OpenRequests) == 0).await;
    assert_eq!(answer(client.send_request(request("/")).await.unwrap()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_instances_count_and_idle_ones_of_the_namespace_make_room() {
    let upstream = upstream::http1(slow).await;
    let mesh = mesh(upstream.address, NamespaceBounds { connections: Some(2), ..NamespaceBounds::default() });
    for _ in 0..3 {
        assert_eq!(get(mesh.gateway(), "/").await.status, 200);
    }
    assert!(used(&mesh, Resource::Connections) <= 2, "one idle connection is used again");
    let stuck = [stuck(&mesh).await, stuck(&mesh).await];
    eventually_async("the requests to arrive upstream", || upstream.requests() == 5).await;
    let (flag, reason) = refused(&mesh).await;
    assert_eq!(
        (&*flag, &*reason),
        ("UO", "namespace shop has all that its bound `connections` allows on this node: 2")
    );
    drop(stuck);
    eventually_async("the end of all connections", || used(&mesh, Resource::Connections) == 0).await;
    assert_eq!(get(mesh.gateway(), "/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_counts_until_it_ends() {
    let upstream = upstream::http1(parrot).await;
    let mesh = mesh(upstream.address, NamespaceBounds { connections: Some(1), ..NamespaceBounds::default() });
    let mut client = Raw::connect(mesh.gateway()).await;
    client.send(format!("GET / HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
    assert_eq!(raw::status(&client.head().await), 101);
    assert_eq!(used(&mesh, Resource::Connections), 1);
    assert_eq!(get(mesh.gateway(), "/").await.status, 503);
    let open = || mesh.node.admission.scrape().open("gateway");
    assert!(open() >= 1, "a client's tunnel is still one of the connections at the gateway");
    drop(client);
    eventually_async("the end of all connections", || used(&mesh, Resource::Connections) == 0 && open() == 0).await;
}
