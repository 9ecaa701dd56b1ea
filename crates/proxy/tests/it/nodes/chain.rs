//! Information that travels along a chain of calls: deadlines, marks of retries, and the caller's
//! cancellation.

use super::{callee, caller, named, send};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh, retry, spiffe};
use crate::upstream::{self, Upstream, answer, connect_h2, connect_http1, echo, empty};
use http::{Request, Response};
use hyper::body::Incoming;
use leno_model::AppProtocol;
use leno_policy::spec::RetryOn;
use leno_testkit::eventually_async;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Counts requests that were cancelled before their answer.
struct CancelCounter(Arc<AtomicUsize>);

impl Drop for CancelCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Never answers.
async fn silent() -> (Upstream, Arc<AtomicUsize>) {
    let abandoned = Arc::new(AtomicUsize::new(0));
    let count = abandoned.clone();
    let upstream = upstream::http1(move |_| {
        let guard = CancelCounter(count.clone());
        async move {
            let _guard = guard;
            pending::<Response<upstream::Body>>().await
        }
    });
    (upstream.await, abandoned)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callee_works_no_longer_than_its_caller_waits() {
    let (upstream, abandoned) = silent().await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    let mut client = there.as_sidecar(&here, &spiffe("caller"), "callee").await;
    let request = Request::get("http://callee/").header("x-leno-timeout", "400").body(empty()).unwrap();
    let reply = answer(client.send_request(request).await.unwrap()).await;
    assert_eq!((reply.status, &reply.headers["x-leno-failure"]), (504, &"timeout".parse().unwrap()));
    eventually_async("the call to be abandoned", || abandoned.load(Ordering::SeqCst) == 1).await;
    // Through the caller's sidecar, with its own limit.
    let here = caller().with(&there).plan("callee", |target| target.timeout_ms = 400).start();
    here.knows("callee", &[(&there, 1)]);
    assert_eq!(super::get(&here).await.status, 504);
    eventually_async("the call to be abandoned", || abandoned.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_has_gone_ends_the_chain() {
    let (upstream, abandoned) = silent().await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    here.knows("callee", &[(&there, 1)]);
    let credential = basic(&here.mint("caller"));
    let mut client = connect_http1(here.outbound()).await;
    let request = Request::get("http://callee/").header("host", "callee").header("proxy-authorization", credential);
    let sent = tokio::spawn(async move { client.send(request.body(empty()).unwrap()).await });
    eventually_async("the requests to arrive upstream", || upstream.requests() == 1).await;
    assert_eq!(abandoned.load(Ordering::SeqCst), 0);
    sent.abort();
    eventually_async("the call to be abandoned", || abandoned.load(Ordering::SeqCst) == 1).await;
    eventually_async("the lease to be given back", || there.instances.leased.load(Ordering::SeqCst) == 0).await;
}

/// A gRPC request with the client's own deadline. Returns the response.
async fn grpc(here: &Mesh, timeout: &str) -> upstream::Answer {
    let request = Request::post("http://callee/shop.Cart/Add")
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .header("proxy-authorization", basic(&here.mint("caller")));
    let mut client = connect_h2(here.outbound()).await;
    answer(client.send_request(request.body(empty()).unwrap()).await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_grpc_client_arrives_shortened_and_holds() {
    let upstream = upstream::h2c(echo).await;
    let there = Builder::new().function("callee", AppProtocol::Grpc, upstream.address).start();
    let here = caller().with(&there).start();
    here.knows("callee", &[(&there, 1)]);
    let left = |text: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix("grpc-timeout: ")).unwrap();
        line.strip_suffix('u').unwrap_or_else(|| panic!("{line}")).parse().unwrap()
    };
    let short = left(&grpc(&here, "9S").await.text);
    assert!((1..9_000_000).contains(&short), "{short}");
    // The mesh's limit of 30 seconds is shorter than the client's deadline.
    let long = left(&grpc(&here, "1H").await.text);
    assert!((9_000_000..30_000_000).contains(&long), "{long}");
    assert!(grpc(&here, "soon").await.text.contains("grpc-timeout: soon\n"), "what nobody understands is passed on");

    let (silent, abandoned) = {
        let abandoned = Arc::new(AtomicUsize::new(0));
        let count = abandoned.clone();
        let handler = move |_: Request<Incoming>| {
            let guard = CancelCounter(count.clone());
            async move {
                let _guard = guard;
                pending::<Response<upstream::Body>>().await
            }
        };
        (upstream::h2c(handler).await, abandoned)
    };
    there.instances.set("callee", &[silent.address]);
    let reply = grpc(&here, "50m").await;
    assert_eq!(reply.headers["grpc-status"], "4", "DEADLINE_EXCEEDED");
    eventually_async("the call to be abandoned", || abandoned.load(Ordering::SeqCst) == 1).await;
}

/// A function that calls the callee through its own sidecar for each request, and returns the
/// callee's answer.
async fn middle(node: Arc<OnceLock<(SocketAddr, String)>>) -> Upstream {
    upstream::http1(move |_| {
        let node = node.clone();
        async move {
            let (outbound, credential) = node.get().unwrap();
            let request = Request::get("http://callee/").header("host", "callee");
            let request = request.header("proxy-authorization", credential).body(empty()).unwrap();
            let reply = connect_http1(*outbound).await.send(request).await;
            Response::builder().status(reply.status).body(empty()).unwrap()
        }
    })
    .await
}

/// With two retries at each of two hops, the callee would get a request that always fails nine
/// times. It gets the request five times: three for the first attempt of the first hop, and one for
/// each of that hop's retries.
#[tokio::test(flavor = "multi_thread")]
async fn retries_do_not_multiply_along_a_chain() {
    for apart in [true, false] {
        let failing = upstream::http1(|_| async { Response::builder().status(503).body(empty()).unwrap() }).await;
        let last = callee(&failing).start();
        let tell = Arc::new(OnceLock::new());
        let second = middle(tell.clone()).await;
        let plan = |name: &'static str| {
            move |builder: Builder| builder.plan(name, |target| target.retry = Some(retry(&[RetryOn::Status(503)])))
        };
        let between = |builder: Builder| {
            let builder = builder.function("middle", AppProtocol::Http1, second.address).call("middle", "callee");
            plan("callee")(builder)
        };
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let first = |builder: Builder| {
            plan("middle")(builder.function("caller", AppProtocol::Http1, nowhere).call("caller", "middle"))
        };
        let (here, there) = if apart {
            let there = Arc::new(between(Builder::new()).with(&last).start());
            let here = Arc::new(first(Builder::new()).with(&last).start());
            here.knows("middle", &[(&there, 1)]);
            (here, there)
        } else {
            let both = Arc::new(first(between(Builder::new())).with(&last).start());
            (both.clone(), both)
        };
        there.knows("callee", &[(&last, 1)]);
        tell.set((there.outbound(), basic(&there.mint("middle")))).unwrap();
        let credential = basic(&here.mint("caller"));
        let request = Request::get("http://middle/").header("host", "middle").header("proxy-authorization", credential);
        let reply = connect_http1(here.outbound()).await.send(request.body(empty()).unwrap()).await;
        assert_eq!((reply.status, second.requests(), failing.requests()), (503, 3, 5), "apart: {apart}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_is_left_for_another_one_within_the_deadline() {
    // A node that accepts connections, and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = silent.local_addr().unwrap();
    let good = named("good").await;
    let there = callee(&good).start();
    let here = caller().with(&there).start();
    here.knows_at("callee", &[(dead, 1, Default::default())]);
    let first = tokio::time::timeout(Duration::from_secs(20), super::get(&here)).await.unwrap();
    assert_eq!(first.status, 503);
    here.knows_at("callee", &[(dead, 100, Default::default()), (there.inbound(), 1, Default::default())]);
    let reply = send(&here, Request::post("http://callee/"), empty()).await;
    assert_eq!((reply.status, reply.text.as_str()), (200, "good"));
    drop(silent);
}
