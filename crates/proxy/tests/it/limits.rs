//! Peers that are slow, silent, or too fast.

use crate::mesh::Builder;
use crate::raw::{self, Raw};
use crate::upstream::{self, answer, channel, connect_h2, connect_http1, echo, empty, get};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(600);

async fn never(_: Request<Incoming>) -> Response<upstream::Body> {
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_trickles_is_cut_off() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| (limits.head_timeout, limits.idle_timeout) = (SHORT, LONG))
        .start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("GET / HTTP/1.1\r\nhost: web\r\nx-a: ").await;
    let (mut from, mut to) = raw.0.into_split();
    let trickle = tokio::spawn(async move {
        while tokio::io::AsyncWriteExt::write_all(&mut to, b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut reply = Vec::new();
    // An error ends the reply as well: bytes were on their way when the connection was closed.
    let _ = tokio::time::timeout(raw::TIMEOUT, from.read_to_end(&mut reply)).await.expect("it was never cut off");
    trickle.await.unwrap();
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_closed_but_not_one_between_requests() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| (limits.head_timeout, limits.idle_timeout) = (LONG, SHORT))
        .start();
    assert_eq!(Raw::connect(mesh.gateway()).await.rest().await, "");
    let mut kept = Raw::connect(mesh.gateway()).await;
    kept.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    assert_eq!(raw::status(&kept.head().await), 200);
    kept.rest().await;
    let mut h2 = connect_h2(mesh.gateway()).await;
    let request = Request::get("http://web/").body(empty()).unwrap();
    assert_eq!(answer(h2.send_request(request).await.unwrap()).await.status, 200);
    eventually_async("the connection to be closed", || h2.is_closed()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_on_heads_does_not_count_the_time_between_requests() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| (limits.head_timeout, limits.idle_timeout) = (SHORT, LONG))
        .start();
    let mut client = connect_http1(mesh.gateway()).await;
    for _ in 0..2 {
        let request = Request::get("/").header("host", "web").body(empty()).unwrap();
        assert_eq!(client.send(request).await.status, 200);
        tokio::time::sleep(SHORT * 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_has_its_time() {
    let upstream = upstream::http1(never).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.request_timeout = LONG)
        .plan("web", |target| target.timeout_ms = 200)
        .start();
    let reply = get(mesh.gateway(), "/").await;
    assert_eq!(reply.status, 504);
    let told = &mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await[0];
    assert_eq!(told.response.flag.as_deref(), Some("UT"));
    assert_eq!(mesh.instances.leased.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mesh_has_a_limit_for_functions_that_set_none() {
    let upstream = upstream::h2c(never).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Grpc, upstream.address)
        .limits(|limits| limits.request_timeout = SHORT)
        .start();
    let request = Request::post("http://web/a/b").header("content-type", "application/grpc").body(empty()).unwrap();
    let reply = answer(connect_h2(mesh.gateway()).await.send_request(request).await.unwrap()).await;
    assert_eq!((reply.status, &reply.headers["grpc-status"]), (200, &"4".parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_may_have_no_limit_where_the_mesh_has_one() {
    let slow = |_: Request<Incoming>| async {
        tokio::time::sleep(SHORT * 3).await;
        Response::new(empty())
    };
    let upstream = upstream::http1(slow).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.request_timeout = SHORT)
        .plan("web", |target| target.timeout_ms = 0)
        .start();
    assert_eq!(get(mesh.gateway(), "/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_end_is_ended() {
    let endless = |_: Request<Incoming>| async {
        let (feed, body) = channel();
        tokio::spawn(async move {
            let _ = feed.send(hyper::body::Frame::data("beginning".into())).await;
            feed.closed().await;
        });
        Response::new(body)
    };
    let upstream = upstream::http1(endless).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.request_timeout = SHORT)
        .start();
    let reply = raw::exchange(mesh.gateway(), "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    assert!(reply.contains("beginning") && !reply.ends_with("0\r\n\r\n"), "{reply}");
    eventually_async("the lease to be given back", || mesh.instances.leased.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_trickles_in_is_ended() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.request_timeout = SHORT)
        .start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 100\r\n\r\na").await;
    assert_eq!(raw::status(&raw.rest().await), 408);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_too_many_connections_the_oldest_that_asks_nothing_is_closed() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, upstream.address).connections(2).start();
    let request = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
    let mut idle = Raw::connect(mesh.gateway()).await;
    idle.send(request).await;
    idle.head().await;
    let silent = Raw::connect(mesh.gateway()).await;
    let mut third = Raw::connect(mesh.gateway()).await;
    assert_eq!(silent.rest().await, "", "it has asked nothing at all");
    third.send(request).await;
    assert_eq!(raw::status(&third.head().await), 200);
    // The function reads on, so both connections are busy.
    for busy in [&mut idle, &mut third] {
        busy.rest_of_body().await;
        busy.send("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 1\r\n\r\n").await;
    }
    eventually_async("the requests to arrive upstream", || upstream.requests() == 4).await;
    assert_eq!(raw::exchange(mesh.gateway(), request).await, "", "there is no capacity");
    for busy in [&mut idle, &mut third] {
        busy.send("x").await;
        assert_eq!(raw::status(&busy.head().await), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_one_address_keep_nobody_out() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.connections_per_address = 20)
        .workers(2)
        .start();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(Raw::connect(mesh.gateway()).await);
        if silent.len() % 10 == 0 {
            assert_eq!(get(mesh.gateway(), "/").await.status, 200);
        }
    }
    drop(silent);
}

/// Most frames that the client of [`many_small_frames_are_a_legal_body`] is ahead of the function.
/// The gateway's HTTP/2 library bounds the frames that wait to be read.
const AHEAD: usize = 5_000;

/// Frames of one byte each, to a function that reads them and to one that does not (RFC 9113, 6.9:
/// the client may send as much as fits into the window).
#[tokio::test(flavor = "multi_thread")]
async fn many_small_frames_are_a_legal_body() {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let count = move |request: Request<Incoming>| {
        let read = counter.clone();
        async move {
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, bytes::Bytes::len);
                read.fetch_add(length, Ordering::Relaxed);
                bytes += length;
            }
            Response::new(upstream::full(bytes.to_string()))
        }
    };
    let deaf = upstream::http1(never).await;
    let prompt = upstream::http1(count.clone()).await;
    let streaming = upstream::h2c(count).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, prompt.address)
        .function("stream", AppProtocol::Grpc, streaming.address)
        .function("deaf", AppProtocol::Http1, deaf.address)
        // On a busy machine, so many frames take longer than the usual limit of a request.
        .limits(|limits| limits.request_timeout = LONG)
        .start();
    for host in ["web", "stream"] {
        read.store(0, Ordering::Relaxed);
        assert_eq!(small_frames(mesh.gateway(), host, 60_000, Some(&read)).await, "60000", "{host}");
    }
    assert_eq!(small_frames(mesh.gateway(), "deaf", 10_000, None).await, "it goes on");
}

/// Sends `count` frames of one byte on one stream, at most [`AHEAD`] ahead of the function, which
/// counts them in `read`. Returns the response. `None`: the function does not read, and the
/// connection has to answer another request.
async fn small_frames(address: std::net::SocketAddr, host: &str, count: usize, read: Option<&AtomicUsize>) -> String {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let _connection = tokio::spawn(connection);
    let request = Request::post(format!("http://{host}/")).body(()).unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    for sent in 0..count {
        if let Some(read) = read {
            eventually_async("the function to read", || sent < read.load(Ordering::Relaxed) + AHEAD).await;
        }
        body.reserve_capacity(1);
        let ready = std::future::poll_fn(|cx| body.poll_capacity(cx));
        match tokio::time::timeout(raw::TIMEOUT, ready).await.expect("the window stays shut") {
            Some(Ok(_)) if body.send_data(bytes::Bytes::from_static(b"x"), false).is_ok() => {}
            other => return format!("the connection ended after {sent} frames: {other:?}"),
        }
    }
    if read.is_none() {
        // A fault of the frames shows before this request is answered.
        let mut client = client.ready().await.unwrap();
        let request = Request::post("http://web/").body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let end = tokio::time::timeout(raw::TIMEOUT, response).await.expect("no answer");
        return end.map_or_else(|error| error.to_string(), |_| "it goes on".to_owned());
    }
    body.send_data(bytes::Bytes::new(), true).unwrap();
    let response = tokio::time::timeout(raw::TIMEOUT, response).await.expect("no answer").unwrap();
    let (mut body, mut text) = (response.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        text.extend_from_slice(&data);
    }
    String::from_utf8(text).unwrap()
}

/// Thousands of streams, each reset at once (CVE-2023-44487): the connection ends, and the node
/// still serves others.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_reset_ends_the_connection() {
    let upstream = upstream::http1(never).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .function("well", AppProtocol::Http1, upstream::http1(echo).await.address)
        .start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    raw.send(frame(4, 0, 0, &[])).await;
    let mut flood = Vec::new();
    for stream in (1..20_001u32).step_by(2) {
        // :method GET, :scheme http, :path /, :authority web
        let block = [0x82, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];
        flood.extend(frame(1, 5, stream, &block));
        flood.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    raw.send(flood).await;
    let mut end = Vec::new();
    // An error ends the reply as well: the node closed the connection with unread bytes.
    let _ = tokio::time::timeout(raw::TIMEOUT, raw.0.read_to_end(&mut end)).await.expect("it goes on");
    assert!(upstream.requests() < 10_000, "{} requests were forwarded", upstream.requests());
    let request = Request::get("/").header("host", "well").body(empty()).unwrap();
    assert_eq!(connect_http1(mesh.gateway()).await.send(request).await.status, 200);
    eventually_async("the lease to be given back", || mesh.instances.leased.load(Ordering::Relaxed) == 0).await;
}

/// One HTTP/2 frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
