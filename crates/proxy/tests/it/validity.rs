//! The proxy sends only valid messages: no client's message breaks a connection that others share.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw;
use crate::upstream::{self, channel, connect_h2, echo, empty};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::{AppProtocol, Expose};
use leno_policy::spec::{Issuer, TokenSource};
use leno_testkit::eventually_async;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;

fn mesh(protocol: AppProtocol, address: std::net::SocketAddr) -> Mesh {
    Builder::new()
        .function("caller", AppProtocol::Http1, address)
        .function("callee", protocol, address)
        .call("caller", "callee")
        .start()
}

#[tokio::test(flavor = "multi_thread")]
async fn blanks_around_values_end_at_the_proxy() {
    for (protocol, upstream) in
        [(AppProtocol::Http1, upstream::http1(echo).await), (AppProtocol::H2c, upstream::h2c(echo).await)]
    {
        let mesh = mesh(protocol, upstream.address);
        let mut client = connect_h2(mesh.gateway()).await;
        let request = Request::get("http://callee/")
            .header("x-before", " \ta")
            .header("x-after", "b\t ")
            .header("x-within", "c d")
            .header("x-blank", " \t ");
        let reply = upstream::answer(client.send_request(request.body(empty()).unwrap()).await.unwrap()).await;
        assert_eq!(reply.status, 200);
        for line in ["x-before: a", "x-after: b", "x-within: c d", "x-blank: "] {
            assert!(reply.text.contains(&format!("\n{line}\n")), "{protocol:?} {line} {:?}", reply.text);
        }
        assert_eq!(upstream.connections(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_are_one_or_none() {
    let upstream = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, upstream.address);
    let mut client = connect_h2(mesh.gateway()).await;
    let request = |lengths: &[&'static str]| {
        let mut request = Request::get("http://callee/").body(empty()).unwrap();
        for length in lengths {
            request.headers_mut().append("content-length", HeaderValue::from_static(length));
        }
        request
    };
    let reply = upstream::answer(client.send_request(request(&["0", "0"])).await.unwrap()).await;
    assert_eq!((reply.status, reply.text.matches("\ncontent-length:").count()), (200, 1), "{}", reply.text);
    // The library may reset the stream before the proxy sees it.
    let differing = client.send_request(request(&["0", "5"])).await;
    assert!(differing.is_err() || differing.is_ok_and(|reply| reply.status() == 400));
    assert_eq!(upstream.requests(), 1, "it reached the function");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_always_there() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("callee", AppProtocol::Http1, upstream.address)
        .config("callee", |config| config.expose = vec![Expose { hosts: vec!["*".into()], path: "/".into() }])
        .start();
    let answer = raw::exchange(mesh.gateway(), "GET / HTTP/1.0\r\n\r\n").await;
    assert!(answer.contains("\nhost: localhost\n"), "{answer}");
}

/// Over HTTP/2 a client may ask for a tunnel of any protocol. The node opens only WebSockets at an
/// instance.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_tunnels_reach_no_instance() {
    let upstream = upstream::h2c(echo).await;
    let mesh = mesh(AppProtocol::H2c, upstream.address);
    for listener in [mesh.gateway(), mesh.outbound()] {
        let stream = TcpStream::connect(listener).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, mut connection) = handshake.await.unwrap();
        while !connection.is_extended_connect_protocol_enabled() {
            let ended = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut connection).poll(cx).is_ready())).await;
            assert!(!ended, "the connection is gone");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::spawn(connection);
        for (protocol, status) in [("connect-udp", 405), ("connect-ip", 405), ("websocket", 502)] {
            let request = Request::connect("http://callee/x")
                .extension(hyper::ext::Protocol::from_static(protocol))
                .header("sec-websocket-version", "13")
                .header("proxy-authorization", basic(&mesh.mint("caller")))
                .body(empty())
                .unwrap();
            assert_eq!(sender.send_request(request).await.unwrap().status(), status, "{protocol}");
        }
    }
    assert_eq!(upstream.requests(), 0);
}

fn trailers(extra: &'static str) -> HeaderMap {
    let names = [
        "content-length",
        "host",
        "authorization",
        "cookie",
        "set-cookie",
        "content-type",
        "x-forwarded-client-cert",
        "x_forwarded_client_cert",
        "x-leno-protocol",
        "x-request-id",
        extra,
    ];
    let mut trailers: HeaderMap =
        names.map(|name| (name.parse().unwrap(), HeaderValue::from_static("forged"))).into_iter().collect();
    trailers.insert("x-checksum", HeaderValue::from_static(" 42 "));
    trailers
}

/// Answers with the names of the request's trailers, and with trailers in the response.
async fn trailing(request: Request<Incoming>) -> Response<upstream::Body> {
    let body = request.into_body().collect().await.unwrap();
    let fields = body.trailers().into_iter().flatten();
    let seen: Vec<String> = fields.map(|(name, value)| format!("{name}={value:?}")).collect();
    let (sender, body) = channel();
    tokio::spawn(async move {
        sender.send(Frame::data(Bytes::from(seen.join(",")))).await.unwrap();
        sender.send(Frame::trailers(trailers("grpc-status"))).await.unwrap();
    });
    Response::new(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_say_nothing_that_belongs_into_a_head() {
    let upstream = upstream::h2c(trailing).await;
    let mesh = Builder::new()
        .function("callee", AppProtocol::H2c, upstream.address)
        .config("callee", |config| {
            config.inbound.authentication.push(Issuer {
                name: "p/authentication/login".into(),
                issuer: "https://login.example".into(),
                audiences: vec![],
                keys: vec![],
                keys_pending: false,
                sources: vec![TokenSource::Header { name: "authorization".into(), prefix: "Bearer ".into() }],
                clock_skew_ms: 0,
                forward: false,
                required: false,
                require_expiration: false,
                preflight: false,
                space_delimited_claims: vec![],
                claims_to_headers: vec![(vec!["sub".into()], "x-user".into())],
            });
        })
        .start();
    let mut client = connect_h2(mesh.gateway()).await;
    let (sender, body) = channel();
    tokio::spawn(async move {
        sender.send(Frame::data(Bytes::from_static(b"whole"))).await.unwrap();
        sender.send(Frame::trailers(trailers("x_user"))).await.unwrap();
    });
    let response = client.send_request(Request::post("http://callee/").body(body).unwrap()).await.unwrap();
    let reply = upstream::answer(response).await;
    assert_eq!((reply.status, reply.text.as_str()), (200, "x-checksum=\"42\""));
    let mut names: Vec<String> = reply.trailers.unwrap().keys().map(ToString::to_string).collect();
    names.sort();
    assert_eq!(names, ["grpc-status", "x-checksum"]);
    eventually_async("the record of the exchange", || mesh.node.telemetry.ring.latest(1).len() == 1).await;
}
