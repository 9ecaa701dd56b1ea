//! Upgrades: bytes both ways, half-closed ends, and the record of it.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, echo, empty, until};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_config::slice::AppProtocol;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Switches protocols, says hello, returns every byte, and says bye when the client's half has ended.
pub async fn parrot(mut request: Request<Incoming>) -> Response<upstream::Body> {
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

pub const HANDSHAKE: &str = "host: callee\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Talks, and sees the end of the conversation.
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
    until(|| mesh.node.telemetry.ring.latest(10).len() == hops).await;
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
        // As browsers and most libraries do it: in a tunnel.
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
    // The server's settings have to be there first; hyper reads them in a task of its own, which wakes nobody here.
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
