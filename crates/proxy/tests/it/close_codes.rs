//! The codes with which open exchanges are closed. A client gets a refusal only if its own
//! permission was withdrawn.

use crate::drain::{endless, greeter};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh, spiffe};
use crate::raw::{Raw, TIMEOUT};
use crate::renewal::status;
use crate::upstream::{self, connect_h2, echo, empty};
use crate::websocket::HANDSHAKE;
use crate::withdrawn::{no_longer_allowed, remove};
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use leno_model::{AppProtocol, Expose};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

const REFUSED: &[u8] = b"\x88\x18\x03\xf0not permitted any more";
const ENDED: &[u8] = b"\x88\x22\x03\xf4ended by the mesh, connect again";

async fn websocket(address: SocketAddr, more: &str) -> Raw {
    let mut raw = Raw::connect(address).await;
    let handshake = HANDSHAKE.replace("host: callee", "host: chat");
    raw.send(format!("GET http://chat/ HTTP/1.1\r\n{handshake}{more}\r\n")).await;
    raw.until("hello").await;
    raw
}

async fn last_frame(mut websocket: Raw) -> Vec<u8> {
    let mut rest = Vec::new();
    timeout(TIMEOUT, websocket.0.read_to_end(&mut rest)).await.unwrap().unwrap();
    rest
}

async fn call(mesh: &Mesh) -> Incoming {
    let request = Request::post("http://rpc/s/m").header("content-type", "application/grpc").body(empty()).unwrap();
    let mut body = connect_h2(mesh.gateway()).await.send_request(request).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_refusal_looks_like_one() {
    let (chat, rpc) = (greeter().await, endless().await);
    let mut ends = Vec::new();
    for (cause, frame, expected) in [
        ("refused", REFUSED, "7"),
        ("removed", ENDED, "14"),
        ("moved", ENDED, "14"),
        ("no longer exposed", ENDED, "12"),
    ] {
        let mesh = Builder::new()
            .function("chat", AppProtocol::Http1, chat)
            .function("rpc", AppProtocol::Grpc, rpc.address)
            .start();
        let (websocket, call) = (websocket(mesh.gateway(), "").await, call(&mesh).await);
        for name in ["chat", "rpc"] {
            match cause {
                "refused" => mesh.change(&[name], no_longer_allowed),
                "removed" => remove(&mesh, name, Duration::from_millis(100)),
                "moved" => {
                    let mut change = mesh.node.snapshot.load().change();
                    change.remove(&crate::mesh::id(name));
                    mesh.node.publish(Arc::new(change.finish()));
                }
                _ => mesh.change(&[name], |config| {
                    config.expose = vec![Expose { hosts: vec!["elsewhere".into()], path: "/".into() }];
                }),
            }
        }
        ends.push(tokio::spawn(async move {
            assert_eq!(last_frame(websocket).await, frame, "{cause}");
            assert_eq!(status(call).await, expected, "{cause}");
            drop(mesh);
        }));
    }
    for end in ends {
        end.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_calling_instance_is_no_refusal() {
    let chat = greeter().await;
    let mesh = Builder::new()
        .function("chat", AppProtocol::Http1, chat)
        .function("caller", AppProtocol::Http1, chat)
        .call("caller", "chat")
        .start();
    let credential = format!("proxy-authorization: {}\r\n", basic(&mesh.mint("caller")));
    let websocket = websocket(mesh.outbound(), &credential).await;
    mesh.node.credentials.revoke("caller-1");
    assert_eq!(last_frame(websocket).await, ENDED);
}

/// Requests for a function that the node no longer has after a change.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_node_does_not_have_any_more_is_unavailable() {
    let upstream = upstream::http1(echo).await;
    let functions = || {
        Builder::new()
            .function("callee", AppProtocol::Http1, upstream.address)
            .function("caller", AppProtocol::Http1, upstream.address)
            .call("caller", "callee")
    };
    let there = functions().start();
    let here = functions().with(&there).start();
    let mut sidecar = there.as_sidecar(&here, &spiffe("caller"), "callee").await;
    let credential = basic(&there.mint("caller"));
    let mut change = there.node.snapshot.load().change();
    change.remove(&crate::mesh::id("callee")).remove(&crate::mesh::id("caller"));
    there.node.snapshot.store(Arc::new(change.finish()));
    let grpc = || Request::post("http://callee/s/m").header("content-type", "application/grpc");
    let response = sidecar.send_request(grpc().body(empty()).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"14".parse().unwrap()));
    // The caller's own function was removed, and its instance has a valid credential.
    let request = grpc().header("proxy-authorization", &credential).body(empty()).unwrap();
    let response = connect_h2(there.outbound()).await.send_request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"14".parse().unwrap()));
    let request = Request::get("http://callee/").header("proxy-authorization", credential).body(empty()).unwrap();
    assert_eq!(connect_h2(there.outbound()).await.send_request(request).await.unwrap().status(), 503);
    // A request without a credential gets 407.
    let response = connect_h2(there.outbound()).await.send_request(grpc().body(empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 407);
}
