//! Proof of the peer: the node sends nothing to an instance or a caller before it has proved which
//! process it is.

use crate::mesh::{Builder, Mesh, id};
use crate::raw::{self, Raw};
use crate::upstream::{self, connect_http1, echo, empty};
use http::Request;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::AsyncReadExt;

/// A server that accepts connections, and counts them and their bytes.
async fn eavesdropper() -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (bytes, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (read, closed) = (bytes.clone(), connections.clone());
    let address = raw::server(move |Raw(mut stream)| {
        let (read, closed) = (read.clone(), closed.clone());
        async move {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut piece).await {
                read.fetch_add(count, Ordering::SeqCst);
            }
            closed.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    (address, bytes, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_the_instance_gets_no_byte() {
    for protocol in [AppProtocol::Http1, AppProtocol::H2c, AppProtocol::Grpc] {
        let (address, bytes, closed) = eavesdropper().await;
        let mesh = Builder::new().function("web", protocol, address).start();
        *mesh.instances.stranger.lock().unwrap() = Some("port 1 is held by process 2".to_owned());
        let request = Request::post("http://web/").header("host", "web").header("authorization", "Bearer secret");
        let reply = connect_http1(mesh.gateway()).await.send(request.body(upstream::full("secret")).unwrap()).await;
        assert_eq!(reply.status, 503, "{protocol:?}");
        let told = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
        let failure = format!("{:?}", told[0]);
        assert!(failure.contains("port 1 is held by process 2; nothing was sent"), "{failure}");
        // The end of the connection comes after all its bytes were read.
        eventually_async("the connection to be closed", || closed.load(Ordering::SeqCst) > 0).await;
        assert_eq!(bytes.load(Ordering::SeqCst), 0, "{protocol:?}");
    }
}

fn web() -> Request<upstream::Body> {
    Request::get("http://web/").header("host", "web").body(empty()).unwrap()
}

/// A server that closes each connection after its response: the next request needs a new
/// connection, with a new proof.
#[tokio::test(flavor = "multi_thread")]
async fn each_connection_is_proven_anew() {
    let upstream = upstream::http1(|_| async {
        let mut response = http::Response::new(upstream::full("ok"));
        response.headers_mut().insert("connection", http::HeaderValue::from_static("close"));
        response
    })
    .await;
    let mesh = Mesh::web(upstream.address);
    let mut client = connect_http1(mesh.gateway()).await;
    assert_eq!(client.send(web()).await.status, 200);
    *mesh.instances.stranger.lock().unwrap() = Some("somebody".to_owned());
    assert_eq!(client.send(web()).await.status, 503);
    assert_eq!(upstream.requests(), 1);
    *mesh.instances.stranger.lock().unwrap() = None;
    assert_eq!(client.send(web()).await.status, 200);
}

fn basic(minted: &leno_proxy::credential::NewCredential) -> String {
    use base64::Engine as _;
    let pair = format!("{}:{}", minted.user, minted.secret);
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_is_of_no_use_to_another_process() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("callee", AppProtocol::Http1, upstream.address)
        .call("caller", "callee")
        .start();
    let minted = mesh.node.credentials.mint(&id("caller"), "caller-1").unwrap();
    let asked = Arc::<std::sync::Mutex<Vec<(SocketAddr, SocketAddr)>>>::default();
    let noted = asked.clone();
    mesh.node.credentials.started(
        "caller-1",
        Box::new(move |near, far| {
            noted.lock().unwrap().push((near, far));
            Err(leno_proxy::instances::Unproven("it was opened by process 77".to_owned()))
        }),
    );
    let request = || {
        let request = Request::get("http://callee/").header("host", "callee");
        request.header("proxy-authorization", basic(&minted)).body(empty()).unwrap()
    };
    let mut client = connect_http1(mesh.outbound()).await;
    let reply = client.send(request()).await;
    assert_eq!(reply.status, 403);
    let told = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
    let failure = format!("{:?}", told[0]);
    assert!(failure.contains("it was opened by process 77"), "{failure}");
    assert_eq!(upstream.connections(), 0);
    let (near, far) = asked.lock().unwrap()[0];
    assert_eq!(far, mesh.outbound());
    assert!(near.ip().is_loopback() && near.port() != 0);

    let connect = format!(
        "CONNECT callee:80 HTTP/1.1\r\nhost: callee:80\r\nproxy-authorization: {}\r\nconnection: close\r\n\r\n",
        basic(&minted)
    );
    assert_eq!(raw::status(&raw::exchange(mesh.outbound(), connect).await), 403);
    let mut h2 = upstream::connect_h2(mesh.outbound()).await;
    let request = Request::get("http://callee/").header("proxy-authorization", basic(&minted)).body(empty()).unwrap();
    assert_eq!(h2.send_request(request).await.unwrap().status(), 403);
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_proven_once_for_each_connection() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("callee", AppProtocol::Http1, upstream.address)
        .call("caller", "callee")
        .start();
    let minted = mesh.node.credentials.mint(&id("caller"), "caller-1").unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let count = asked.clone();
    let opened = Box::new(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    mesh.node.credentials.started("caller-1", opened);
    for connections in 1..=2 {
        let mut client = connect_http1(mesh.outbound()).await;
        for _ in 0..5 {
            let request = Request::get("http://callee/").header("host", "callee");
            let request = request.header("proxy-authorization", basic(&minted)).body(empty()).unwrap();
            assert_eq!(client.send(request).await.status, 200);
        }
        assert_eq!(asked.load(Ordering::SeqCst), connections);
    }
}

/// A process that may share a port would receive a part of its connections.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_share_the_nodes_ports() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, upstream.address).workers(2).start();
    let addresses = mesh.handle.addresses;
    for address in [addresses.gateway_http.unwrap(), addresses.outbound.unwrap(), addresses.inbound] {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        let shared = socket.bind(&address.into()).and_then(|()| socket.listen(1));
        assert_eq!(shared.unwrap_err().kind(), std::io::ErrorKind::AddrInUse, "{address}");
    }
    // All workers accept: each of many connections that are open at once is served.
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = connect_http1(mesh.gateway()).await;
        assert_eq!(client.send(web()).await.status, 200);
        clients.push(client);
    }
}
