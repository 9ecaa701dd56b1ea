//! Upgrades: bytes in both directions, half-closed connections, and the record.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, echo, empty};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Switches protocols, sends a greeting, returns every byte, and says bye when the client has ended
/// its direction.
pub(crate) async fn parrot(mut request: Request<Incoming>) -> Response<upstream::Body> {
    if request.headers().get("upgrade").is_none_or(|upgrade| upgrade != "websocket") {
        return Response::builder().status(400).body(empty()).unwrap();
    }
    assert_eq!(request.headers()["sec-websocket-version"], "13");
    assert!(request.headers().contains_key("sec-websocket-key"));
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        stream.write_all(b"hello ").await.unwrap();
        let mut piece = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut piece).await {
            stream.write_all(&piece[..count]).await.unwrap();
        }
        stream.write_all(b" bye").await.unwrap();
        stream.shutdown().await.unwrap();
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        .body(empty())
        .unwrap()
}

pub(crate) const HANDSHAKE: &str = "host: callee\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Exchanges messages, and waits for the end of the connection.
async fn converse(mut raw: Raw) {
    let head = raw.head().await;
    assert_eq!(raw::status(&head), 101, "{head}");
    let head = head.to_lowercase();
    assert!(head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"), "{head}");
    raw.until("hello ").await;
    raw.send("one two three").await;
    raw.until("one two three").await;
    raw.0.shutdown().await.unwrap();
    assert_eq!(raw.rest().await, " bye");
}

async fn expect_record(mesh: &Mesh, hops: usize) {
    eventually_async("the record of the exchange", || mesh.node.telemetry.ring.latest(10).len() == hops).await;
    for told in mesh.node.telemetry.ring.latest(10) {
        assert_eq!((told.response.status, told.response.upgraded), (101, true), "{}", told.hop);
        assert_eq!((told.response.bytes_in, told.response.bytes_out), (13, 23), "{}", told.hop);
        assert_eq!(told.asked.protocol, "websocket", "{}", told.hop);
    }
    assert_eq!(mesh.instances.leased.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn through_the_gateway() {
    let upstream = upstream::http1(parrot).await;
    let mesh = Builder::new().function("callee", AppProtocol::Http1, upstream.address).start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(format!("GET /chat HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
    converse(raw).await;
    expect_record(&mesh, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_both_sidecars() {
    for mtls in [false, true] {
        let upstream = upstream::http1(parrot).await;
        let builder = Builder::new()
            .function("caller", AppProtocol::Http1, upstream.address)
            .function("callee", AppProtocol::Http1, upstream.address)
            .call("caller", "callee");
        let mesh = if mtls { builder.mtls().start() } else { builder.start() };
        let field = basic(&mesh.mint("caller"));
        let mut raw = Raw::connect(mesh.outbound()).await;
        raw.send(format!("GET http://callee/chat HTTP/1.1\r\n{HANDSHAKE}proxy-authorization: {field}\r\n\r\n")).await;
        converse(raw).await;
        expect_record(&mesh, 2).await;
        // In a tunnel, as browsers and most libraries do it.
        let mut raw = Raw::connect(mesh.outbound()).await;
        raw.send(format!("CONNECT callee:80 HTTP/1.1\r\nhost: callee:80\r\nproxy-authorization: {field}\r\n\r\n"))
            .await;
        assert_eq!(raw::status(&raw.head().await), 200);
        raw.send(format!("GET /chat HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
        converse(raw).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2() {
    let upstream = upstream::http1(parrot).await;
    let mesh = Builder::new().function("callee", AppProtocol::Http1, upstream.address).start();
    let stream = TcpStream::connect(mesh.gateway()).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, mut connection) = handshake.await.unwrap();
    // The server's settings have to arrive first. hyper reads them in a separate task, which does
    // not wake this one.
    while !connection.is_extended_connect_protocol_enabled() {
        let ended = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut connection).poll(cx).is_ready())).await;
        assert!(!ended, "the connection is gone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::spawn(connection);
    let request = Request::connect("http://callee/chat")
        .extension(hyper::ext::Protocol::from_static("websocket"))
        .header("sec-websocket-version", "13")
        .body(empty())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("upgrade") && !response.headers().contains_key("connection"));
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"one two three").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "hello one two three bye");
    expect_record(&mesh, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_switch_answers_as_usual() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new().function("callee", AppProtocol::Http1, upstream.address).start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(format!("GET /chat HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
    assert_eq!(raw::status(&raw.head().await), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_handshake_switches_nothing() {
    let upstream = upstream::http1(parrot).await;
    let mesh = Builder::new().function("callee", AppProtocol::Http1, upstream.address).start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(format!("GET /chat HTTP/1.1\r\n{HANDSHAKE}x-deny: 1\r\n\r\n")).await;
    assert_eq!(raw::status(&raw.head().await), 403);
    assert_eq!(upstream.connections(), 0);
}

/// Answers every request with this head, and echoes the bytes after it.
async fn switches(head: &'static str) -> (std::net::SocketAddr, std::sync::Arc<std::sync::Mutex<String>>) {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let heard = seen.clone();
    let address = raw::server(move |mut raw| {
        let heard = heard.clone();
        async move {
            raw.head().await;
            raw.send(head).await;
            let mut piece = [0; 1024];
            while let Ok(count @ 1..) = raw.0.read(&mut piece).await {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..count]));
                raw.send(&piece[..count]).await;
            }
        }
    })
    .await;
    (address, seen)
}

/// A denied request, to be sent through a tunnel.
const SECOND: &str = "GET /denied HTTP/1.1\r\nhost: callee\r\nx-deny: 1\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_function_cannot_open_a_tunnel_that_was_not_asked_for() {
    let plain = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let none = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
    for head in [plain, none] {
        let (address, seen) = switches(head).await;
        for mtls in [false, true] {
            let builder = Builder::new()
                .function("caller", AppProtocol::Http1, address)
                .function("callee", AppProtocol::Http1, address)
                .call("caller", "callee");
            let mesh = if mtls { builder.mtls().start() } else { builder.start() };
            let field = format!("proxy-authorization: {}\r\n", basic(&mesh.mint("caller")));
            // No upgrade, an upgrade to another protocol, and one without the field that requests
            // it.
            for fields in ["", "connection: upgrade\r\nupgrade: h2c\r\n", "upgrade: websocket\r\n"] {
                for (listener, target, field) in
                    [(mesh.gateway(), "/", ""), (mesh.outbound(), "http://callee/", field.as_str())]
                {
                    let mut raw = Raw::connect(listener).await;
                    raw.send(format!("GET {target} HTTP/1.1\r\nhost: callee\r\n{fields}{field}\r\n")).await;
                    let head = raw.head().await;
                    assert_eq!(raw::status(&head), 502, "{fields:?} {head}");
                    raw.send(SECOND).await;
                    raw.0.shutdown().await.unwrap();
                    raw.rest().await;
                }
            }
            let told = mesh.node.telemetry.ring.latest(100);
            assert!(told.iter().all(|told| !told.response.upgraded && told.response.status != 101));
        }
        assert_eq!(*seen.lock().unwrap(), "", "bytes went where no verdict sent them");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_opens_no_tunnel_to_another_protocol() {
    for head in [
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket, h2c\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ] {
        let (address, seen) = switches(head).await;
        let mesh = Builder::new().function("callee", AppProtocol::Http1, address).start();
        let mut raw = Raw::connect(mesh.gateway()).await;
        raw.send(format!("GET /chat HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
        let head = raw.head().await;
        assert_eq!(raw::status(&head), 502, "{head}");
        raw.send(SECOND).await;
        drop(raw);
        // The record of the second request may come before this one or after it.
        let told = || mesh.node.telemetry.ring.latest(10);
        eventually_async("the record of the exchange", || {
            told().iter().any(|told| told.response.flag.as_deref() == Some("UPE"))
        })
        .await;
        assert_eq!(*seen.lock().unwrap(), "");
    }
}

/// HTTP/2 has no status 101 (RFC 9113, 8.6). The node must not translate it to the 200 that opens a
/// tunnel there.
#[tokio::test(flavor = "multi_thread")]
async fn over_http2_nobody_switches_protocols() {
    let (address, _) = switches("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
    let mesh = Builder::new().function("callee", AppProtocol::Http1, address).start();
    let mut client = upstream::connect_h2(mesh.gateway()).await;
    let request = Request::get("http://callee/").body(empty()).unwrap();
    assert_eq!(client.send_request(request).await.unwrap().status(), 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_final_statuses_are_passed_on() {
    for (head, status) in [
        ("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204),
        ("HTTP/1.1 599 Odd\r\ncontent-length: 0\r\n\r\n", 599),
        ("HTTP/1.1 600 Beyond\r\ncontent-length: 0\r\n\r\n", 502),
        ("HTTP/1.1 999 Beyond\r\ncontent-length: 0\r\n\r\n", 502),
    ] {
        let (address, _) = switches(head).await;
        let mesh = Builder::new().function("callee", AppProtocol::Http1, address).start();
        let mut raw = Raw::connect(mesh.gateway()).await;
        raw.send("GET / HTTP/1.1\r\nhost: callee\r\nconnection: close\r\n\r\n").await;
        let answer = raw.rest().await;
        let hint = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        let last = answer.strip_prefix(hint).unwrap_or(&answer);
        assert_eq!((raw::status(last), last != answer), (status, head.starts_with(hint)), "{head} {answer}");
        assert!(!last.contains("link:"), "{answer}");
    }
}
