//! Bodies stream with back-pressure, and the client gets 100 Continue when the function reads the
//! body.

use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, channel, connect_h2, connect_http1, echo, empty, full};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PIECE: usize = 64 * 1024;
/// The most that sockets and flow-control windows of one exchange may hold; far below the size of
/// the response.
const IN_FLIGHT: usize = 24 * 1024 * 1024;
const TOTAL: usize = 96 * 1024 * 1024;

/// Counts how much of a response the upstream could send while the client did not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_stops_the_upstream() {
    for (h2_client, protocol) in [(false, AppProtocol::Http1), (true, AppProtocol::H2c), (true, AppProtocol::Http1)] {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = sent.clone();
        let endless = move |_: Request<Incoming>| {
            let sent = counted.clone();
            async move {
                let (feed, body) = channel();
                tokio::spawn(async move {
                    while sent.load(Ordering::Relaxed) < TOTAL
                        && feed.send(Frame::data(Bytes::from(vec![7; PIECE]))).await.is_ok()
                    {
                        sent.fetch_add(PIECE, Ordering::Relaxed);
                    }
                });
                Response::new(body)
            }
        };
        let upstream = match protocol {
            AppProtocol::Http1 => upstream::http1(endless).await,
            _ => upstream::h2c(endless).await,
        };
        let mesh = Builder::new().function("web", protocol, upstream.address).start();
        let mut body = if h2_client {
            let request = Request::get("http://web/").body(empty()).unwrap();
            connect_h2(mesh.gateway()).await.send_request(request).await.unwrap().into_body()
        } else {
            let request = Request::get("/").header("host", "web").body(empty()).unwrap();
            connect_http1(mesh.gateway()).await.0.send_request(request).await.unwrap().into_body()
        };
        // The count stops growing once all buffers are full.
        let mut before = usize::MAX;
        while before != sent.load(Ordering::Relaxed) {
            before = sent.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(
            before < IN_FLIGHT,
            "{before} bytes were taken from the upstream for a client that reads nothing, h2: {h2_client}, {protocol:?}"
        );
        let mut received = 0;
        while let Some(frame) = body.frame().await {
            received += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(received, TOTAL);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_does_not_read_stops_the_client() {
    for h2_client in [false, true] {
        let (go, reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (gate, count) = (go.clone(), reading.clone());
        let slow = move |request: Request<Incoming>| {
            let (gate, count) = (gate.clone(), count.clone());
            async move {
                eventually_async("the gate to open", || gate.load(Ordering::Relaxed)).await;
                let mut body = request.into_body();
                while let Some(Ok(frame)) = body.frame().await {
                    count.fetch_add(frame.into_data().unwrap().len(), Ordering::Relaxed);
                }
                Response::new(full("done"))
            }
        };
        let upstream = upstream::http1(slow).await;
        let mesh = Mesh::web(upstream.address);
        let sent = Arc::new(AtomicUsize::new(0));
        let (feed, body) = channel();
        let counted = sent.clone();
        tokio::spawn(async move {
            while counted.load(Ordering::Relaxed) < TOTAL {
                feed.send(Frame::data(Bytes::from(vec![7; PIECE]))).await.unwrap();
                counted.fetch_add(PIECE, Ordering::Relaxed);
            }
        });
        let (gateway, release) = (mesh.gateway(), go.clone());
        let exchange = tokio::spawn(async move {
            let response = if h2_client {
                let request = Request::post("http://web/").body(body).unwrap();
                connect_h2(gateway).await.send_request(request).await.unwrap()
            } else {
                let request = Request::post("/").header("host", "web").body(body).unwrap();
                connect_http1(gateway).await.0.send_request(request).await.unwrap()
            };
            response.status().as_u16()
        });
        eventually_async("the body to arrive", || sent.load(Ordering::Relaxed) > 0).await;
        let mut before = usize::MAX;
        while before != sent.load(Ordering::Relaxed) {
            before = sent.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(before < IN_FLIGHT, "{before} bytes were taken from the client for an upstream that reads nothing");
        release.store(true, Ordering::Relaxed);
        assert_eq!(exchange.await.unwrap(), 200);
        assert_eq!(reading.load(Ordering::Relaxed), TOTAL);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn continue_is_said_when_the_body_is_wanted() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("POST / HTTP/1.1\r\nhost: web\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").await;
    assert_eq!(raw.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    raw.send("hello").await;
    let head = raw.head().await;
    assert_eq!(raw::status(&head), 200);
    let body = raw.until("hello").await;
    assert!(!body.contains("expect"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_not_told_to_continue() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let head = "POST / HTTP/1.1\r\nhost: web\r\nx-deny: 1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(head).await;
    assert_eq!(raw::status(&raw.head().await), 403);
    assert_eq!(upstream.connections(), 0);
}

/// The answer comes while the client is still sending. The client must receive it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upload_gets_its_answer() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    for _ in 0..20 {
        let request = Request::post("/").header("host", "web").header("x-deny", "1");
        let reply = connect_http1(mesh.gateway()).await.send(request.body(full(vec![7; 8 << 20])).unwrap()).await;
        assert_eq!(reply.status, 403);
        let request = Request::post("http://web/").header("x-deny", "1").body(full(vec![7; 8 << 20])).unwrap();
        let response = connect_h2(mesh.gateway()).await.send_request(request).await.unwrap();
        assert_eq!(response.status(), 403);
    }
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_expectation_is_refused() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let reply =
        raw::exchange(mesh.gateway(), "GET / HTTP/1.1\r\nhost: web\r\nexpect: coffee\r\nconnection: close\r\n\r\n")
            .await;
    assert_eq!(raw::status(&reply), 417);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_is_noticed_upstream() {
    let upstream = upstream::http1(|_| async {
        std::future::pending::<()>().await;
        Response::new(empty())
    })
    .await;
    let mesh = Mesh::web(upstream.address);
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    eventually_async("the lease of an instance", || mesh.instances.leased.load(Ordering::Relaxed) == 1).await;
    drop(raw);
    eventually_async("the lease to be given back", || mesh.instances.leased.load(Ordering::Relaxed) == 0).await;
    eventually_async("the record of the exchange", || !mesh.node.telemetry.ring.latest(1).is_empty()).await;
    assert_eq!(mesh.node.telemetry.ring.latest(1)[0].response.flag.as_deref(), Some("DC"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_breaks_off_breaks_off_for_the_client_too() {
    let upstream = raw::server(|mut raw| async move {
        raw.head().await;
        raw.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbeginning").await;
    })
    .await;
    let mesh = Mesh::web(upstream);
    let reply = raw::exchange(mesh.gateway(), "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    assert!(reply.ends_with("beginning") && raw::status(&reply) == 200, "{reply}");
    let request = Request::get("http://web/").body(empty()).unwrap();
    let response = connect_h2(mesh.gateway()).await.send_request(request).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    eventually_async("the record of the exchange", || mesh.node.telemetry.ring.latest(2).len() == 2).await;
    for told in mesh.node.telemetry.ring.latest(2) {
        assert_eq!(told.response.flag.as_deref(), Some("UC"));
    }
}
