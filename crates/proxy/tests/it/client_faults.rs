//! A client's fault gets a status for client faults, and counts against no instance: a client that
//! uploads slowly, breaks off or sends nonsense causes no ejection.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh, breaker, retry};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, channel, connect_h2, connect_http1, echo, empty, full};
use bytes::Bytes;
use http::Request;
use hyper::body::Frame;
use leno_model::AppProtocol;
use leno_policy::spec::{Outlier, RetryOn};
use leno_testkit::eventually_async;

/// One failure ejects the only instance, for longer than a test lasts.
async fn mesh(protocol: AppProtocol, mtls: bool, retries: bool, timeout_ms: u64) -> (Mesh, Upstream) {
    let upstream = match protocol {
        AppProtocol::Http1 => upstream::http1(echo).await,
        AppProtocol::H2c | AppProtocol::Grpc => upstream::h2c(echo).await,
        AppProtocol::Chain => panic!("a message in memory goes to no socket"),
    };
    let outlier = Outlier {
        consecutive_5xx: 1,
        consecutive_gateway: 1,
        interval_ms: 600_000,
        base_ejection_ms: 600_000,
        max_ejection_percent: 100,
    };
    let builder = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("callee", protocol, upstream.address)
        .call("caller", "callee")
        .plan("callee", |target| {
            target.timeout_ms = timeout_ms;
            target.breaker = Some(leno_policy::spec::Breaker { outlier: Some(outlier), ..breaker() });
            target.retry = retries.then(|| retry(&[RetryOn::ServerError, RetryOn::Reset, RetryOn::Timeout]));
        });
    let mesh = if mtls { builder.mtls().start() } else { builder.start() };
    (mesh, upstream)
}

/// All ways to an instance: from the gateway, by local delivery, and through a TLS hop.
const WAYS: [(AppProtocol, bool); 4] =
    [(AppProtocol::Http1, false), (AppProtocol::H2c, false), (AppProtocol::Http1, true), (AppProtocol::H2c, true)];

/// Checks that the instance is not ejected.
async fn expect_no_ejection(mesh: &Mesh) {
    let request = Request::post("/").header("host", "callee").body(full("whole")).unwrap();
    let reply = connect_http1(mesh.gateway()).await.send(request).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert!(!mesh.metrics().contains("leno_ejections_total{"), "{}", mesh.metrics());
}

/// Checks the records of all hops of the exchange with this status.
async fn expect_told(mesh: &Mesh, status: u16, flag: &str) {
    let of_status = || {
        let told = mesh.node.telemetry.ring.latest(100);
        told.into_iter().filter(|told| told.response.status == status).collect::<Vec<_>>()
    };
    eventually_async("the record of the exchange", || !of_status().is_empty()).await;
    for told in of_status() {
        assert_eq!(told.response.flag.as_deref(), Some(flag), "{} {:?}", told.hop, told.response);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upload_is_the_clients_doing() {
    for ((protocol, mtls), retries) in WAYS.into_iter().zip([false, true, false, true]) {
        let (mesh, upstream) = mesh(protocol, mtls, retries, 300).await;
        let field = format!("proxy-authorization: {}\r\n", basic(&mesh.mint("caller")));
        for (listener, target, field) in [(mesh.gateway(), "/", ""), (mesh.outbound(), "http://callee/", &field)] {
            let mut raw = Raw::connect(listener).await;
            let head = format!("POST {target} HTTP/1.1\r\nhost: callee\r\n{field}content-length: 10\r\n\r\nhalf");
            raw.send(head).await;
            let head = raw.head().await;
            assert_eq!(raw::status(&head), 408, "{protocol:?} {head}");
        }
        // The same over HTTP/2, where other streams share the connection.
        let mut client = connect_h2(mesh.gateway()).await;
        let (sender, body) = channel();
        sender.send(Frame::data(Bytes::from_static(b"half"))).await.unwrap();
        let slow = client.send_request(Request::post("http://callee/").body(body).unwrap()).await.unwrap();
        assert_eq!(slow.status(), 408);
        assert_eq!(upstream.requests(), 3, "a slow upload is no reason to try again");
        expect_told(&mesh, 408, "SI").await;
        expect_no_ejection(&mesh).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_chunk_is_the_clients_doing() {
    for (protocol, mtls) in WAYS {
        let (mesh, _upstream) = mesh(protocol, mtls, true, 30_000).await;
        let field = format!("proxy-authorization: {}\r\n", basic(&mesh.mint("caller")));
        for (listener, target, field) in [(mesh.gateway(), "/", ""), (mesh.outbound(), "http://callee/", &field)] {
            let mut raw = Raw::connect(listener).await;
            raw.send(format!("POST {target} HTTP/1.1\r\nhost: callee\r\n{field}transfer-encoding: chunked\r\n\r\n"))
                .await;
            raw.send("4\r\ngood\r\n").await;
            raw.send("nonsense\r\n").await;
            let head = raw.head().await;
            assert_eq!(raw::status(&head), 400, "{protocol:?} {head}");
        }
        expect_told(&mesh, 400, "DC").await;
        expect_no_ejection(&mesh).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_breaks_off_ejects_nobody() {
    for (protocol, mtls) in WAYS {
        let (mesh, upstream) = mesh(protocol, mtls, true, 30_000).await;
        let field = format!("proxy-authorization: {}\r\n", basic(&mesh.mint("caller")));
        for (listener, target, field) in [(mesh.gateway(), "/", ""), (mesh.outbound(), "http://callee/", &field)] {
            let before = upstream.requests();
            let mut raw = Raw::connect(listener).await;
            let head = format!("POST {target} HTTP/1.1\r\nhost: callee\r\n{field}content-length: 10\r\n\r\nhalf");
            raw.send(head).await;
            eventually_async("the requests to arrive upstream", || upstream.requests() > before).await;
            drop(raw);
        }
        // A stream is reset, and its connection goes on.
        let before = upstream.requests();
        let mut client = connect_h2(mesh.gateway()).await;
        let (sender, body) = channel();
        sender.send(Frame::data(Bytes::from_static(b"half"))).await.unwrap();
        let request = client.send_request(Request::post("http://callee/").body(body).unwrap());
        let request = tokio::spawn(request);
        eventually_async("the requests to arrive upstream", || upstream.requests() > before).await;
        request.abort();
        drop(sender);
        let other = client.send_request(Request::get("http://callee/").body(empty()).unwrap()).await.unwrap();
        assert_eq!(other.status(), 200);
        eventually_async("the record of the exchange", || {
            mesh.node.telemetry.ring.latest(100).iter().any(|told| told.response.flag.is_some())
        })
        .await;
        expect_no_ejection(&mesh).await;
    }
}

/// An instance that has received the whole body and does not answer is itself late.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_has_it_all_is_late_by_itself() {
    let never = upstream::http1(|request: Request<hyper::body::Incoming>| async move {
        let _ = http_body_util::BodyExt::collect(request.into_body()).await;
        std::future::pending::<()>().await;
        unreachable!()
    })
    .await;
    let mesh = Builder::new()
        .function("callee", AppProtocol::Http1, never.address)
        .plan("callee", |target| target.timeout_ms = 300)
        .start();
    let request = Request::post("/").header("host", "callee").body(full("whole")).unwrap();
    assert_eq!(connect_http1(mesh.gateway()).await.send(request).await.status, 504);
    expect_told(&mesh, 504, "UT").await;
}
