//! A revoked node: exchanges between it and another node end, with codes that do not blame the
//! client. New connections with it are refused.

use crate::drain::{endless, greeter};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh, spiffe};
use crate::raw::{Raw, TIMEOUT};
use crate::renewal::status;
use crate::upstream::{self, Upstream, connect_http1, empty};
use crate::withdrawn::{expect_closed, told};
use http::Request;
use http_body_util::BodyExt;
use leno_identity::MembershipMark;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const MEMBERSHIP: MembershipMark = MembershipMark([7; 8]);
const CALLEES: [&str; 3] = ["rpc", "chat", "slow"];

/// A node with a caller, and one with its callees.
async fn nodes() -> (Mesh, Mesh, Upstream) {
    let slow = upstream::http1(|_| std::future::pending::<http::Response<upstream::Body>>()).await;
    let there = Builder::new()
        .function("rpc", AppProtocol::Grpc, endless().await.address)
        .function("chat", AppProtocol::Http1, greeter().await)
        .function("slow", AppProtocol::Http1, slow.address)
        .start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut here = Builder::new().function("caller", AppProtocol::Http1, nowhere).with(&there);
    for callee in CALLEES {
        here = here.call("caller", callee);
    }
    let here = here.start();
    for callee in CALLEES {
        here.knows(callee, &[(&there, 1)]);
    }
    (here, there, slow)
}

/// A WebSocket of the caller's instance to a function on the other node.
async fn websocket(here: &Mesh, credential: &str) -> Raw {
    let mut raw = Raw::connect(here.outbound()).await;
    let handshake = crate::websocket::HANDSHAKE.replace("host: callee", "host: chat");
    raw.send(format!("GET http://chat/ws HTTP/1.1\r\n{handshake}proxy-authorization: {credential}\r\n\r\n")).await;
    raw.until("hello").await;
    raw
}

async fn expect_service_restart(mut websocket: Raw) {
    let mut rest = Vec::new();
    timeout(TIMEOUT, websocket.0.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.starts_with(b"\x88\x22\x03\xf4ended by the mesh, connect again"), "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_with_a_revoked_callees_node_ends() {
    let (here, there, slow) = nodes().await;
    there.certify(&CALLEES, MEMBERSHIP);
    let credential = basic(&here.mint("caller"));
    let chat = websocket(&here, &credential).await;
    let ask = |callee: &str| {
        let request = Request::get(format!("http://{callee}/wait")).header("host", callee);
        let request = request.header("proxy-authorization", &credential).body(empty()).unwrap();
        let outbound = here.outbound();
        async move { connect_http1(outbound).await.send(request).await }
    };
    let waiting = tokio::spawn(ask("slow"));
    eventually_async("the requests to arrive upstream", || slow.requests() == 1).await;
    here.revoke(MEMBERSHIP);
    expect_service_restart(chat).await;
    expect_closed(&told(&here, "outbound", "/ws").await, "mutualTls", "the callee's node was revoked");
    let answer = timeout(TIMEOUT, waiting).await.unwrap().unwrap();
    assert!([502, 503].contains(&answer.status), "{}", answer.text);
    let answer = timeout(TIMEOUT, ask("slow")).await.unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text);

    // The machine joins again.
    there.certify(&CALLEES, MembershipMark([8; 8]));
    drop(websocket(&here, &credential).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_with_a_revoked_callers_node_ends() {
    let (here, there, _slow) = nodes().await;
    here.certify(&["caller"], MEMBERSHIP);
    let credential = basic(&here.mint("caller"));
    let chat = websocket(&here, &credential).await;
    let mut client = there.as_sidecar(&here, &spiffe("caller"), "rpc").await;
    let request = || Request::post("http://rpc/s/m").header("content-type", "application/grpc").body(empty()).unwrap();
    let mut call = client.send_request(request()).await.unwrap().into_body();
    assert!(call.frame().await.unwrap().unwrap().is_data());
    there.revoke(MEMBERSHIP);
    assert_eq!(status(call).await, "14");
    expect_closed(&told(&there, "inbound", "/s/m").await, "mutualTls", "the caller's node was revoked");
    // The WebSocket's client is an instance of the revoked node, which does not know yet that it
    // was revoked.
    expect_service_restart(chat).await;
    // The connection takes no new request, and no new connection is made.
    eventually_async("the connection to be closed", || client.is_closed()).await;
    let config = leno_identity::client_config(&here.node.svids, &spiffe("caller"), &spiffe("rpc")).unwrap();
    let name = leno_identity::server_name(&spiffe("rpc")).unwrap();
    let stream = TcpStream::connect(there.inbound()).await.unwrap();
    let mut stream = TlsConnector::from(config).connect(name, stream).await.unwrap();
    // A TLS 1.3 client does not wait for the server to look at its certificate.
    let refused = timeout(TIMEOUT, stream.read_u8()).await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("CertificateRevoked"), "{refused}");
}
