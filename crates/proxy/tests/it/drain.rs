//! Draining: no new exchange begins, and open ones end in time.

use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, answer, connect_h2, empty, full};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Frame;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

async fn gated() -> (Upstream, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let waiting = gate.clone();
    let upstream = upstream::http1(move |_| {
        let waiting = waiting.clone();
        async move {
            waiting.acquire().await.unwrap().forget();
            Response::new(full("ok"))
        }
    })
    .await;
    (upstream, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn exchanges_under_way_end_and_nothing_new_begins() {
    let (upstream, gate) = gated().await;
    let mesh = Mesh::web(upstream.address);
    let gateway = mesh.gateway();
    let mut idle = Raw::connect(gateway).await;
    idle.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    eventually_async("the requests to arrive upstream", || upstream.requests() == 1).await;
    gate.add_permits(1);
    idle.until("ok").await;
    let mut busy = Raw::connect(gateway).await;
    busy.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    let mut h2 = connect_h2(gateway).await;
    let request = Request::get("http://web/").body(empty()).unwrap();
    let streaming = tokio::spawn(h2.send_request(request));
    eventually_async("the requests to arrive upstream", || upstream.requests() == 3).await;
    let drained = tokio::spawn(mesh.handle.drain());
    assert_eq!(idle.rest().await, "", "an idle connection is closed at once");
    until_refused(gateway).await;
    assert!(!drained.is_finished());
    gate.add_permits(2);
    let reply = busy.rest().await;
    assert!(raw::status(&reply) == 200 && reply.ends_with("ok"), "{reply}");
    assert!(reply.contains("connection: close"), "{reply}");
    assert_eq!(answer(streaming.await.unwrap().unwrap()).await.text, "ok");
    drained.await.unwrap();
}

/// Waits until no socket listens at the address any more.
async fn until_refused(address: std::net::SocketAddr) {
    for _ in 0..1000 {
        if TcpStream::connect(address).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("connections are still accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_ended_and_learns_it() {
    let (upstream, _gate) = gated().await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.drain_timeout = Duration::from_millis(300))
        .workers(2)
        .start();
    let mut stuck = Raw::connect(mesh.gateway()).await;
    stuck.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    eventually_async("the requests to arrive upstream", || upstream.requests() == 1).await;
    mesh.handle.drain().await;
    assert_eq!(raw::status(&stuck.rest().await), 503);
}

/// An HTTP/2 function that begins a response and never ends it.
pub(crate) async fn endless() -> Upstream {
    upstream::h2c(|_| async {
        let (sender, body) = upstream::channel();
        tokio::spawn(async move {
            while sender.send(Frame::data(Bytes::from_static(b"\0\0\0\0\x05event"))).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    })
    .await
}

/// Opens WebSockets, sends one frame with a greeting, and then stays silent.
pub(crate) async fn greeter() -> SocketAddr {
    const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                            sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\u{1}\u{5}hello";
    raw::server(|mut client| async move {
        client.head().await;
        client.send(SWITCHED).await;
        client.rest().await;
    })
    .await
}

/// A client without fault must not mistake the end of the node, or of an instance, for a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn streams_learn_that_the_mesh_ends_them() {
    for end in ["drain", "hand-over", "instance"] {
        let (chat, rpc) = (greeter().await, endless().await);
        let mesh = Builder::new()
            .function("web", AppProtocol::Http1, chat)
            .function("rpc", AppProtocol::Grpc, rpc.address)
            .limits(|limits| limits.drain_timeout = Duration::from_millis(300))
            .start();
        let mut websocket = Raw::connect(mesh.gateway()).await;
        websocket.send(format!("GET /chat HTTP/1.1\r\n{}\r\n", crate::websocket::HANDSHAKE)).await;
        websocket.until("hello").await;
        let mut h2 = connect_h2(mesh.gateway()).await;
        let call = Request::post("http://rpc/s/m").header("content-type", "application/grpc").header("te", "trailers");
        let mut call = h2.send_request(call.body(empty()).unwrap()).await.unwrap().into_body();
        assert!(call.frame().await.unwrap().unwrap().is_data());
        let node = mesh.node.clone();
        match end {
            "drain" => mesh.handle.drain().await,
            "hand-over" => mesh.handle.hand_over().await,
            _ => {
                for (name, address) in [("web-1", chat), ("rpc-1", rpc.address)] {
                    node.terminating.add(name, address);
                    node.end_requests(name);
                }
            }
        }
        let (mut rest, close) = (Vec::new(), b"\x88\x22\x03\xf4ended by the mesh, connect again");
        tokio::time::timeout(raw::TIMEOUT, websocket.0.read_to_end(&mut rest)).await.unwrap().unwrap();
        assert_eq!(rest, close, "{end}");
        let trailers = loop {
            let frame = call.frame().await.expect(end).unwrap();
            match frame.into_trailers() {
                Ok(trailers) => break trailers,
                Err(_) => continue,
            }
        };
        assert_eq!(trailers["grpc-status"], "14", "{end}");
        let counted = r#"leno_exchanges_closed_total{function="shop/rpc",direction="inbound",policy="drain"} 1"#;
        eventually_async("the metric", || {
            node.telemetry.exposition(node.policy_state.entries()).finish().contains(counted)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_may_end_by_itself() {
    let upstream = upstream::http1(crate::websocket::parrot).await;
    let mesh = Mesh::web(upstream.address);
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(format!("GET /chat HTTP/1.1\r\n{}\r\n", crate::websocket::HANDSHAKE)).await;
    raw.until("hello ").await;
    let drained = tokio::spawn(mesh.handle.drain());
    raw.send("one").await;
    raw.until("one").await;
    assert!(!drained.is_finished());
    drop(raw);
    drained.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_share_one_port() {
    let upstream = upstream::http1(crate::upstream::echo).await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, upstream.address).workers(4).start();
    for _ in 0..40 {
        assert_eq!(upstream::get(mesh.gateway(), "/").await.status, 200);
    }
    assert!(upstream.connections() > 1, "each worker has connections of its own");
    mesh.handle.drain().await;
}
