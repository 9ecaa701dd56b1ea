//! Outcomes of gRPC calls, and their effect on records, metrics, retries and ejection.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh, breaker, id, retry};
use crate::upstream::{self, Upstream, answer, channel, connect_h2, empty};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use leno_model::AppProtocol;
use leno_policy::spec::{Breaker, Outlier, Retry, RetryOn};
use leno_testkit::eventually_async;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// The place of a call's status.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Status {
    InHead,
    AfterHead,
    AfterMessage,
}

const PLACES: [Status; 3] = [Status::InHead, Status::AfterHead, Status::AfterMessage];

fn status(status: &str) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())])
}

/// Ends each call with the next of these statuses, and all further ones with the last.
async fn ends(place: Status, statuses: &'static [&'static str]) -> Upstream {
    let turn = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    upstream::h2c(move |_| {
        let turn = turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let end = status(statuses[turn.min(statuses.len() - 1)]);
        async move {
            let response = Response::builder().header("content-type", "application/grpc");
            if place == Status::InHead {
                let mut response = response.body(empty()).unwrap();
                response.headers_mut().extend(end);
                return response;
            }
            let (feed, body) = channel();
            tokio::spawn(async move {
                if place == Status::AfterMessage {
                    feed.send(Frame::data(Bytes::from_static(b"\0\0\0\0\0"))).await.unwrap();
                }
                feed.send(Frame::trailers(end)).await.unwrap();
            });
            response.body(body).unwrap()
        }
    })
    .await
}

fn call(host: &str) -> http::request::Builder {
    Request::post(format!("http://{host}/a.B/C")).header("content-type", "application/grpc").header("te", "trailers")
}

/// The status of a call through the gateway.
async fn called(mesh: &Mesh, host: &str) -> String {
    let request = call(host).body(empty()).unwrap();
    let reply = answer(connect_h2(mesh.gateway()).await.send_request(request).await.unwrap()).await;
    let status = reply.headers.get("grpc-status").cloned();
    let status = status.or_else(|| reply.trailers?.get("grpc-status").cloned());
    status.unwrap().to_str().unwrap().to_owned()
}

fn ejecting() -> Breaker {
    let outlier = Outlier {
        consecutive_5xx: 3,
        consecutive_gateway: 0,
        interval_ms: 60_000,
        base_ejection_ms: 60_000,
        max_ejection_percent: 100,
    };
    Breaker { outlier: Some(outlier), ..breaker() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_whose_calls_fail_is_left_out() {
    for (place, statuses) in PLACES.into_iter().flat_map(|place| [(place, &["14"]), (place, &["13"])]) {
        let (bad, good) = (ends(place, statuses).await, ends(place, &["0"]).await);
        let mesh = Builder::new()
            .function("web", AppProtocol::Grpc, bad.address)
            .addresses("web", &[bad.address, good.address])
            .plan("web", |target| target.breaker = Some(ejecting()))
            .start();
        for _ in 0..20 {
            called(&mesh, "web").await;
        }
        assert_eq!((bad.requests(), good.requests()), (3, 17), "{place:?} {statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_calls_fail_is_left_out() {
    for place in PLACES {
        let (bad, good) = (ends(place, &["14"]).await, ends(place, &["0"]).await);
        let web = |upstream: &Upstream| Builder::new().function("web", AppProtocol::Grpc, upstream.address);
        let fails = web(&bad).start();
        let works = web(&good).with(&fails).start();
        let gateway = web(&bad).plan("web", |target| target.breaker = Some(ejecting()));
        let gateway = gateway.remote("web").with(&fails).start();
        gateway.knows("web", &[(&fails, 1), (&works, 1)]);
        for _ in 0..20 {
            called(&gateway, "web").await;
        }
        assert_eq!((bad.requests(), good.requests()), (3, 17), "{place:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_blame_the_caller_leave_no_endpoint_out() {
    for place in PLACES {
        let upstream = ends(place, &["3", "5", "7", "8", "9", "16", "1"]).await;
        let mesh = Builder::new()
            .function("web", AppProtocol::Grpc, upstream.address)
            .plan("web", |target| target.breaker = Some(ejecting()))
            .start();
        for _ in 0..12 {
            called(&mesh, "web").await;
        }
        assert_eq!(upstream.requests(), 12, "{place:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_message_are_tried_again() {
    for (on, place) in [RetryOn::Grpc(14), RetryOn::GatewayError].into_iter().flat_map(|on| PLACES.map(|it| (on, it))) {
        let upstream = ends(place, &["14", "0"]).await;
        let plan = Retry { non_idempotent: true, ..retry(&[on]) };
        let mesh = Builder::new()
            .function("web", AppProtocol::Grpc, upstream.address)
            .plan("web", move |target| target.retry = Some(plan.clone()))
            .start();
        let expected = if place == Status::AfterMessage { ("14", 1) } else { ("0", 2) };
        assert_eq!((called(&mesh, "web").await.as_str(), upstream.requests()), expected, "{on:?} {place:?}");
    }
}

/// Ways to the function `callee`: through the gateway, by local delivery on the node, and from
/// sidecar to sidecar.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Gateway,
    HandedOver,
    Hop,
}

const WAYS: [Way; 3] = [Way::Gateway, Way::HandedOver, Way::Hop];

impl Way {
    fn mesh(self, upstream: SocketAddr, change: impl Fn(Builder) -> Builder) -> Mesh {
        let builder = Builder::new().function("caller", AppProtocol::Http1, upstream).call("caller", "callee");
        let builder = change(builder.function("callee", AppProtocol::Grpc, upstream));
        if self == Self::Hop { builder.mtls().start() } else { builder.start() }
    }

    async fn send(self, mesh: &Mesh, request: http::request::Builder, body: upstream::Body) -> Incoming {
        self.response(mesh, request, body).await.into_body()
    }

    async fn response(self, mesh: &Mesh, request: http::request::Builder, body: upstream::Body) -> Response<Incoming> {
        let (to, request) = match self {
            Self::Gateway => (mesh.gateway(), request),
            _ => (mesh.outbound(), request.header("proxy-authorization", basic(&mesh.mint("caller")))),
        };
        let response = connect_h2(to).await.send_request(request.body(body).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{self:?}");
        response
    }
}

async fn message(body: &mut Incoming) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

async fn end(body: &mut Incoming) -> HeaderMap {
    body.frame().await.unwrap().unwrap().into_trailers().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_time_is_over_after_the_head_ends_with_that_status() {
    let quiet = |_| async {
        let (feed, body) = channel();
        tokio::spawn(async move {
            feed.send(Frame::data(Bytes::from_static(b"one"))).await.unwrap();
            feed.closed().await;
        });
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    };
    let upstream = upstream::h2c(quiet).await;
    for (way, by_client) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let limit = if by_client { 0 } else { 300 };
        let mesh = way.mesh(upstream.address, |builder| builder.plan("callee", move |it| it.timeout_ms = limit));
        let request = if by_client { call("callee").header("grpc-timeout", "300m") } else { call("callee") };
        let (_open, requests) = channel();
        let mut body = way.send(&mesh, request, requests).await;
        assert_eq!(message(&mut body).await, "one");
        assert_eq!(end(&mut body).await["grpc-status"], "4", "{way:?}, by the client: {by_client}");
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_mesh_ends_has_the_type_of_its_request() {
    let silent = upstream::h2c(|_| std::future::pending()).await;
    for (way, kind) in WAYS.into_iter().flat_map(|way| [(way, ""), (way, "+json"), (way, "+proto"), (way, ";a=b")]) {
        let kind = format!("application/grpc{kind}");
        let mesh = way.mesh(silent.address, |builder| builder);
        for (field, value, status) in [("grpc-timeout", "100m", "4"), ("x-deny", "1", "7")] {
            let call = Request::post("http://callee/a.B/C").header("content-type", &kind).header(field, value);
            let response = way.response(&mesh, call, empty()).await;
            let fields = ["grpc-status", "content-type"].map(|name| &response.headers()[name]);
            assert_eq!(fields, [status, &kind], "{way:?}");
        }
    }
}

/// Answers one call with a head and a message. Then ends the connection, with or without GOAWAY.
async fn leaves(goes: Arc<Notify>, says: bool) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let goes = goes.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let Some(Ok((_request, mut respond))) = connection.accept().await else { return };
                let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                let mut sends = respond.send_response(head, false).unwrap();
                sends.send_data(Bytes::from_static(b"one"), false).unwrap();
                tokio::select! {
                    _ = connection.accept() => {}
                    () = goes.notified() => {}
                }
                if says {
                    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                    let _ = poll_fn(|cx| connection.poll_closed(cx)).await;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_connection_ends_after_the_head_is_unavailable() {
    for (way, says) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let goes = Arc::new(Notify::new());
        let address = leaves(goes.clone(), says).await;
        let mesh = way.mesh(address, |builder| {
            builder.plan("callee", |target| {
                target.breaker = Some(Breaker {
                    outlier: Some(Outlier { consecutive_5xx: 1, ..ejecting().outlier.unwrap() }),
                    ..breaker()
                });
            })
        });
        let (_open, requests) = channel();
        let mut body = way.send(&mesh, call("callee"), requests).await;
        assert_eq!(message(&mut body).await, "one");
        goes.notify_one();
        assert_eq!(end(&mut body).await["grpc-status"], "14", "{way:?}, says: {says}");
        let target = mesh.node.policy_state.health.get(&id("callee"));
        eventually_async("the ejection", || target.ejected(address, std::time::Instant::now())).await;
    }
}
