//! Requests by old endpoints: to nodes that a function has left.

use super::{bodies, callee, caller, get, named, send};
use crate::mesh::{Builder, Mesh};
use crate::upstream::{self, Upstream, echo, empty, full};
use crate::withdrawn::remove;
use http::{Request, Response, StatusCode};
use leno_model::AppProtocol;
use leno_proxy::RemovedFunctions;
use leno_testkit::eventually_async;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Two nodes with the callee, and one that calls it.
struct Nodes {
    left: Mesh,
    there: Mesh,
    here: Mesh,
    upstreams: [Upstream; 2],
}

impl Nodes {
    async fn new() -> Self {
        let upstreams = [named("left").await, named("there").await];
        let left = callee(&upstreams[0]).start();
        let there = callee(&upstreams[1]).with(&left).start();
        let here = caller().with(&left).start();
        here.knows("callee", &[(&left, 1), (&there, 1)]);
        assert_eq!(bodies(&here, 20).await.len(), 2, "both nodes serve it");
        Self { left, there, here, upstreams }
    }

    /// Sends requests of both kinds. Returns how many had to be sent again.
    async fn load(&self) -> usize {
        let mut again = 0;
        for number in 0..30 {
            let name = format!("request-{number}");
            let (request, body) = match number % 2 {
                0 => (Request::get("http://callee/"), empty()),
                _ => (Request::post("http://callee/"), full("body")),
            };
            let reply = send(&self.here, request.header("x-request-id", &name), body).await;
            assert_eq!((reply.status, reply.text.as_str()), (200, "there"), "{name}");
            let told = self.here.told(&name, 1).await.remove(0);
            again += told.attempts.len() - 1;
        }
        again
    }
}

/// The node has connections for the function, so no handshake tells that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_node_that_does_not_host_the_callee_any_more_goes_to_another() {
    let nodes = Nodes::new().await;
    remove(&nodes.left, "callee", Duration::from_secs(600));
    nodes.left.node.set_removed(RemovedFunctions::default());
    let before = nodes.upstreams[0].requests();
    assert!(nodes.load().await > 0, "no request went to the node that it has left");
    assert_eq!(nodes.upstreams[0].requests(), before);
    // No other node has it.
    nodes.here.knows("callee", &[(&nodes.left, 1)]);
    let reply = send(&nodes.here, Request::get("http://callee/").header("x-request-id", "nowhere"), empty()).await;
    assert_eq!(reply.status, 503);
    let told = nodes.here.told("nowhere", 1).await.remove(0);
    assert_eq!(told.response.flag.as_deref(), Some("UH"));
}

/// The function has left the node, which still has its configuration, and starts no instance.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_node_that_the_callee_is_leaving_goes_to_another() {
    let nodes = Nodes::new().await;
    nodes.left.instances.set("callee", &[]);
    nodes.left.instances.have_left.store(true, Ordering::Relaxed);
    assert!(nodes.load().await > 0, "no request went to the node that it has left");
    nodes.here.knows("callee", &[(&nodes.left, 1)]);
    assert_eq!(get(&nodes.here).await.status, 503);
    drop(nodes.there);
}

/// The caller's node is the one that the callee has left. No other node has an instance yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_the_node_that_the_callee_has_left_starts_an_instance_elsewhere() {
    let (local, remote) = (named("here").await, named("there").await);
    let there = callee(&remote).start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let here =
        callee(&local).with(&there).function("caller", AppProtocol::Http1, nowhere).call("caller", "callee").start();
    here.knows("callee", &[(&there, 0)]);
    here.instances.set("callee", &[]);
    here.instances.have_left.store(true, Ordering::Relaxed);
    assert_eq!(bodies(&here, 8).await, BTreeSet::from(["there".to_owned()]));
}

/// The other node has dropped the function, and this one may start an instance.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_another_node_does_not_take_comes_back_to_this_one() {
    let (local, remote) = (upstream::http1(echo).await, named("left").await);
    let left = callee(&remote).start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let here =
        callee(&local).with(&left).function("caller", AppProtocol::Http1, nowhere).call("caller", "callee").start();
    here.instances.set("callee", &[]);
    here.knows("callee", &[(&left, 1)]);
    assert_eq!(get(&here).await.text, "left");
    remove(&left, "callee", Duration::from_secs(600));
    left.node.set_removed(RemovedFunctions::default());
    for body in ["", "body"] {
        here.instances.set("callee", &[]);
        let asked = here.instances.asked.load(Ordering::Relaxed);
        let request = Request::post("http://callee/p?q=1").header("x-request-id", format!("back-{body}"));
        let sent = send(&here, request, full(body));
        let (reply, ()) = tokio::join!(sent, async {
            eventually_async("the request for an instance", || here.instances.asked.load(Ordering::Relaxed) > asked)
                .await;
            here.instances.set("callee", &[local.address]);
        });
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.text.contains("host: callee\n") && reply.text.ends_with(body), "{}", reply.text);
        assert!(!reply.text.contains("x-leno"), "{}", reply.text);
        let told = here.told(&format!("back-{body}"), 2).await;
        let outbound = told.iter().find(|told| told.hop == "outbound").unwrap();
        assert_eq!((outbound.attempts.len(), &outbound.node), (2, &None), "the other node, and this one");
    }
}

/// A function may answer 421, and cannot speak for its node.
#[tokio::test(flavor = "multi_thread")]
async fn a_functions_own_421_reaches_the_caller() {
    let upstream = upstream::http1(|_| async {
        let response = Response::builder().status(StatusCode::MISDIRECTED_REQUEST);
        response.header("x-leno-failure", "misdirected").body(full("own")).unwrap()
    });
    let upstream = upstream.await;
    let there = Builder::new().function("callee", AppProtocol::Http1, upstream.address).start();
    let here = caller().with(&there).start();
    here.knows("callee", &[(&there, 1)]);
    let reply = get(&here).await;
    assert_eq!((reply.status, reply.text.as_str(), upstream.requests()), (421, "own", 1));
}
