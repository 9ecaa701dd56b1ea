//! Retries: which requests are repeated, which are not, and the requests that the circuit breaker
//! admits.

use crate::mesh::{Builder, Mesh, breaker, retry};
use crate::raw::Raw;
use crate::upstream::{self, Upstream, channel, connect_http1, empty, full, get};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use leno_model::AppProtocol;
use leno_policy::spec::{Breaker, Outlier, Retry, RetryOn};
use leno_testkit::eventually_async;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Answers with these statuses, one after the other, and with the last one for ever; a 200 echoes
/// the request's body.
async fn answers(statuses: &'static [u16]) -> Upstream {
    let turn = Arc::new(AtomicUsize::new(0));
    upstream::http1(move |request: Request<Incoming>| {
        let turn = turn.fetch_add(1, Ordering::SeqCst);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Response::builder().status(statuses[turn.min(statuses.len() - 1)]).body(full(body)).unwrap()
        }
    })
    .await
}

fn mesh(upstream: &Upstream, retry: Retry) -> Mesh {
    Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .plan("web", move |target| target.retry = Some(retry.clone()))
        .start()
}

async fn send(mesh: &Mesh, method: Method, body: upstream::Body) -> (u16, String) {
    let request = Request::builder().method(method).uri("/").header("host", "web").body(body).unwrap();
    let reply = connect_http1(mesh.gateway()).await.send(request).await;
    (reply.status, reply.text)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_matrix() {
    use RetryOn::*;
    let on = |on: &[RetryOn]| retry(on);
    let anyway = |on: &[RetryOn]| Retry { non_idempotent: true, ..retry(on) };
    let cases: [(&'static [u16], Retry, Method, u16, usize); 12] = [
        (&[503, 200], on(&[GatewayError]), Method::GET, 200, 2),
        (&[503, 502, 200], on(&[GatewayError]), Method::PUT, 200, 3),
        (&[503], on(&[GatewayError]), Method::GET, 503, 3),
        (&[503, 200], on(&[GatewayError]), Method::POST, 503, 1),
        (&[503, 200], anyway(&[GatewayError]), Method::POST, 200, 2),
        (&[500, 200], on(&[GatewayError]), Method::GET, 500, 1),
        (&[500, 200], on(&[ServerError]), Method::GET, 200, 2),
        (&[409, 200], on(&[Status(409)]), Method::DELETE, 200, 2),
        (&[409, 200], on(&[ServerError]), Method::GET, 409, 1),
        (&[503, 200], on(&[ConnectFailure, Reset, RefusedStream, Timeout]), Method::GET, 503, 1),
        (&[200], on(&[ServerError]), Method::GET, 200, 1),
        (&[503, 200], Retry { attempts: 0, ..retry(&[ServerError]) }, Method::GET, 503, 1),
    ];
    for (statuses, retry, method, status, requests) in cases {
        let upstream = answers(statuses).await;
        let mesh = mesh(&upstream, retry.clone());
        let (seen, text) = send(&mesh, method.clone(), full("hello")).await;
        assert_eq!((seen, upstream.requests()), (status, requests), "{statuses:?} {method} {:?}", retry.on);
        assert_eq!(text, "hello", "the body came along each time");
        assert_eq!(mesh.instances.leased.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_to_keep_is_sent_once() {
    let upstream = answers(&[503, 200]).await;
    let mesh = mesh(&upstream, Retry { non_idempotent: true, ..retry(&[RetryOn::ServerError]) });
    let (status, text) = send(&mesh, Method::POST, full(vec![b'a'; 200_000])).await;
    assert_eq!((status, text.len(), upstream.requests()), (503, 200_000, 1));
    let (status, text) = send(&mesh, Method::POST, full(vec![b'a'; 60_000])).await;
    assert_eq!((status, text.len()), (200, 60_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_body_is_sent_again_from_its_beginning() {
    let upstream = answers(&[503, 503, 200]).await;
    let mesh = mesh(&upstream, retry(&[RetryOn::ServerError]));
    let (feed, body) = channel();
    tokio::spawn(async move {
        for piece in ["one ", "two ", "three"] {
            feed.send(Frame::data(Bytes::from_static(piece.as_bytes()))).await.unwrap();
        }
    });
    let (status, text) = send(&mesh, Method::PUT, body).await;
    assert_eq!((status, text.as_str(), upstream.requests()), (200, "one two three", 3));
}

/// Closes the first `broken` connections after the request's head, without an answer.
async fn breaks(broken: usize) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let address = crate::raw::server(move |mut raw: Raw| {
        let turn = seen.fetch_add(1, Ordering::SeqCst);
        async move {
            raw.head().await;
            if turn >= broken {
                raw.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
            }
        }
    })
    .await;
    (address, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connections() {
    for (retry, method, status, connections) in [
        (retry(&[RetryOn::Reset]), Method::GET, 200, 2),
        (retry(&[RetryOn::Reset]), Method::POST, 502, 1),
        (Retry { non_idempotent: true, ..retry(&[RetryOn::Reset]) }, Method::POST, 200, 2),
        (retry(&[RetryOn::ConnectFailure]), Method::GET, 502, 1),
    ] {
        let (address, count) = breaks(1).await;
        let mesh = Builder::new()
            .function("web", AppProtocol::Http1, address)
            .plan("web", |target| target.retry = Some(retry.clone()))
            .start();
        assert_eq!(send(&mesh, method.clone(), empty()).await.0, status, "{method} {:?}", retry.on);
        assert_eq!(count.load(Ordering::SeqCst), connections, "{method} {:?}", retry.on);
    }
}

/// The instance closes an idle connection at the moment of a new request. This is not a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_connection_is_replaced_without_any_plan() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let address = crate::raw::server(move |mut raw: Raw| {
        let turn = seen.fetch_add(1, Ordering::SeqCst);
        async move {
            raw.head().await;
            raw.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            if turn == 0 {
                // The next request on this connection gets no answer.
                raw.head().await;
            } else {
                raw.head().await;
                raw.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
        }
    })
    .await;
    let mesh = Mesh::web(address);
    assert_eq!(get(mesh.gateway(), "/").await.status, 200);
    // The connection is idle for long enough to be suspect.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(get(mesh.gateway(), "/").await.status, 200);
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_tries() {
    let turn = Arc::new(AtomicUsize::new(0));
    let slow_once = move |_: Request<Incoming>| {
        let turn = turn.fetch_add(1, Ordering::SeqCst);
        async move {
            if turn == 0 {
                std::future::pending::<()>().await;
            }
            Response::new(full("ok"))
        }
    };
    let upstream = upstream::http1(slow_once).await;
    let mesh = mesh(&upstream, Retry { per_try_timeout_ms: 200, ..retry(&[RetryOn::Timeout]) });
    assert_eq!(send(&mesh, Method::GET, empty()).await, (200, "ok".into()));
    assert_eq!(upstream.requests(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tries_together_have_one_limit() {
    let upstream = upstream::http1(|_| std::future::pending::<Response<upstream::Body>>()).await;
    let patient = Retry { per_try_timeout_ms: 150, attempts: 100, ..retry(&[RetryOn::Timeout]) };
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .plan("web", move |target| (target.retry, target.timeout_ms) = (Some(patient.clone()), 500))
        .start();
    assert_eq!(send(&mesh, Method::GET, empty()).await.0, 504);
    assert!((2..20).contains(&upstream.requests()), "{}", upstream.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_is_tried_first() {
    let (bad, good) = (answers(&[503]).await, answers(&[200]).await);
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, bad.address)
        .addresses("web", &[bad.address, good.address])
        .plan("web", |target| target.retry = Some(retry(&[RetryOn::ServerError])))
        .start();
    for _ in 0..10 {
        assert_eq!(send(&mesh, Method::GET, empty()).await.0, 200);
    }
    assert_eq!(good.requests(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_have_a_budget() {
    let upstream = answers(&[503]).await;
    let mesh = mesh(&upstream, Retry { budget_percent: 0, budget_min: 0, ..retry(&[RetryOn::ServerError]) });
    assert_eq!(send(&mesh, Method::GET, empty()).await.0, 503);
    assert_eq!(upstream.requests(), 1);
}

/// An upstream that answers when the test lets it.
async fn gated() -> (Upstream, Arc<tokio::sync::Semaphore>) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
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
async fn requests_beyond_the_breakers_limit_are_refused() {
    let (upstream, gate) = gated().await;
    let mut limits = breaker();
    limits.max_requests = 2;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .plan("web", |target| target.breaker = Some(limits.clone()))
        .start();
    let gateway = mesh.gateway();
    let under_way: Vec<_> = (0..2).map(|_| tokio::spawn(get(gateway, "/"))).collect();
    eventually_async("the requests to arrive upstream", || upstream.requests() == 2).await;
    assert_eq!(get(gateway, "/").await.status, 503);
    gate.add_permits(3);
    for exchange in under_way {
        assert_eq!(exchange.await.unwrap().status, 200);
    }
    assert_eq!(get(gateway, "/").await.status, 200);
    assert_eq!(upstream.requests(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_waiting_requests_are_limited() {
    let (upstream, gate) = gated().await;
    let mut limits = breaker();
    (limits.max_connections, limits.max_pending) = (1, 1);
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .plan("web", |target| target.breaker = Some(limits.clone()))
        .start();
    let gateway = mesh.gateway();
    let first = tokio::spawn(get(gateway, "/"));
    eventually_async("the requests to arrive upstream", || upstream.requests() == 1).await;
    let second = tokio::spawn(get(gateway, "/"));
    let target = mesh.node.policy_state.health.get(&crate::mesh::id("web"));
    eventually_async("the pending request", || target.load(1, std::time::Instant::now()).pending == 1).await;
    assert_eq!(get(gateway, "/").await.status, 503);
    gate.add_permits(2);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
    assert_eq!((upstream.requests(), upstream.connections()), (2, 1));
}

/// Ejects an endpoint for a minute after so many 5xx.
fn ejecting_after(consecutive_5xx: u32) -> Breaker {
    let outlier = Outlier {
        consecutive_5xx,
        consecutive_gateway: 0,
        interval_ms: 60_000,
        base_ejection_ms: 60_000,
        max_ejection_percent: 100,
    };
    Breaker { outlier: Some(outlier), ..breaker() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_keeps_failing_is_left_out() {
    let (bad, good) = (answers(&[500]).await, answers(&[200]).await);
    let limits = ejecting_after(2);
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, bad.address)
        .addresses("web", &[bad.address, good.address])
        .plan("web", |target| target.breaker = Some(limits.clone()))
        .start();
    for _ in 0..20 {
        send(&mesh, Method::GET, empty()).await;
    }
    assert_eq!((bad.requests(), good.requests()), (2, 18));
    mesh.instances.set("web", &[bad.address]);
    assert_eq!(send(&mesh, Method::GET, empty()).await.0, 503);
    assert_eq!(bad.requests(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_instance_is_waited_for_when_the_idle_one_is_left_out() {
    let (bad, good) = (answers(&[500]).await, answers(&[200]).await);
    let limits = ejecting_after(1);
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, bad.address)
        .addresses("web", &[bad.address])
        .plan("web", |target| target.breaker = Some(limits.clone()))
        .start();
    assert_eq!(get(mesh.gateway(), "/").await.status, 500);
    mesh.instances.set("web", &[bad.address, good.address]);
    mesh.instances.busy.lock().unwrap().push(good.address);
    let waiting = tokio::spawn(get(mesh.gateway(), "/"));
    let target = mesh.node.policy_state.health.get(&crate::mesh::id("web"));
    eventually_async("the pending request", || target.load(1, std::time::Instant::now()).pending == 1).await;
    mesh.instances.busy.lock().unwrap().clear();
    assert_eq!(waiting.await.unwrap().status, 200);
    assert_eq!((bad.requests(), good.requests()), (1, 1));
    // All instances are busy, and the ejected one is the first with capacity again. The request
    // waits for the other one.
    mesh.instances.busy.lock().unwrap().extend([bad.address, good.address]);
    let waiting = tokio::spawn(get(mesh.gateway(), "/"));
    eventually_async("the pending request", || target.load(1, std::time::Instant::now()).pending == 1).await;
    mesh.instances.busy.lock().unwrap().retain(|address| *address == good.address);
    eventually_async("the request for an instance", || mesh.instances.asked_without(bad.address)).await;
    mesh.instances.busy.lock().unwrap().clear();
    assert_eq!(waiting.await.unwrap().status, 200);
    assert_eq!((bad.requests(), good.requests()), (1, 2));
}
