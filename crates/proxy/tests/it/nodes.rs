//! Calls between nodes: the choice of the node, its failure, and the request that reaches the
//! callee.

mod chain;
pub(crate) mod egress;
mod gateway;
mod moved;
mod relays;

use crate::hops::basic;
use crate::mesh::{Builder, Mesh, node_name, retry, spiffe};
use crate::upstream::{self, Answer, Upstream, connect_http1, echo, empty, full};
use http::{Request, Response};
use leno_model::AppProtocol;
use leno_model::Locality;
use leno_policy::spec::RetryOn;
use leno_testkit::eventually_async;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

/// Answers with its own name.
async fn named(name: &'static str) -> Upstream {
    upstream::http1(move |_| async move { Response::new(full(name)) }).await
}

fn callee(upstream: &Upstream) -> Builder {
    Builder::new().function("callee", AppProtocol::Http1, upstream.address)
}

/// A node with a caller, and without the callee.
fn caller() -> Builder {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    Builder::new().function("caller", AppProtocol::Http1, nowhere).call("caller", "callee")
}

async fn send(mesh: &Mesh, request: http::request::Builder, body: upstream::Body) -> Answer {
    let request = request.header("host", "callee").header("proxy-authorization", basic(&mesh.mint("caller")));
    connect_http1(mesh.outbound()).await.send(request.body(body).unwrap()).await
}

async fn get(mesh: &Mesh) -> Answer {
    send(mesh, Request::get("http://callee/"), empty()).await
}

/// The distinct bodies of so many responses.
async fn bodies(mesh: &Mesh, count: usize) -> BTreeSet<String> {
    let mut bodies = BTreeSet::new();
    for _ in 0..count {
        let reply = get(mesh).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        bodies.insert(reply.text);
    }
    bodies
}

/// An address at which no process listens.
async fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_another_node_arrives_as_one_within_the_node() {
    let upstream = upstream::http1(echo).await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    here.knows("callee", &[(&there, 1)]);
    let request = Request::post("http://callee:8080/p?q=1")
        .header("x-request-id", "from-node-to-node")
        .header("x-forwarded-client-cert", "URI=spiffe://forged")
        .header("x-leno-client", "https 443 192.0.2.1:1")
        .header("x-leno-timeout", "1");
    let reply = send(&here, request, full("hello")).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let expected = format!("x-forwarded-client-cert: By={};URI={}\n", spiffe("callee"), spiffe("caller"));
    assert!(reply.text.contains(&expected) && reply.text.ends_with("hello"), "{}", reply.text);
    assert!(!reply.text.contains("x-leno") && !reply.text.contains("proxy-authorization"), "{}", reply.text);

    let outbound = here.told("from-node-to-node", 1).await.remove(0);
    assert_eq!(outbound.node, Some(node_name(there.inbound())));
    assert_eq!(outbound.attempts.len(), 1);
    let inbound = there.told("from-node-to-node", 1).await.remove(0);
    assert_eq!(
        (inbound.hop.as_str(), inbound.peer.identity.as_deref()),
        ("inbound", Some(&*spiffe("caller").to_string()))
    );
    assert_eq!((inbound.response.bytes_in, inbound.asked.protocol.as_str()), (5, "http1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callees_node_refuses_what_its_rules_do_not_allow_and_starts_nothing() {
    let upstream = upstream::http1(echo).await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    here.knows("callee", &[(&there, 0)]);
    let reply = send(&here, Request::get("http://callee/").header("x-deny", "1"), empty()).await;
    assert_eq!((reply.status, upstream.requests()), (403, 0));
    assert_eq!(there.instances.asked.load(Ordering::Relaxed), 0);
    assert_eq!(get(&here).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_hosts_it() {
    let upstream = named("there").await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    assert_eq!(get(&here).await.status, 503);
    here.knows("callee", &[(&there, 1)]);
    assert_eq!(get(&here).await.status, 200);
    here.knows("callee", &[]);
    assert_eq!(get(&here).await.status, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_here_comes_before_one_elsewhere_and_that_before_a_cold_start() {
    let (local, remote) = (named("here").await, named("there").await);
    let there = callee(&remote).start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let here =
        callee(&local).with(&there).function("caller", AppProtocol::Http1, nowhere).call("caller", "callee").start();
    here.knows("callee", &[(&there, 1)]);
    assert_eq!(bodies(&here, 8).await, BTreeSet::from(["here".to_owned()]));
    here.instances.set("callee", &[]);
    assert_eq!(bodies(&here, 8).await, BTreeSet::from(["there".to_owned()]));
    // No node has an instance. This node hosts the function, and starts one.
    here.knows("callee", &[(&there, 0)]);
    let asked = here.instances.asked.load(Ordering::Relaxed);
    let (reply, ()) = tokio::join!(get(&here), async {
        eventually_async("the request for an instance", || here.instances.asked.load(Ordering::Relaxed) > asked).await;
        here.instances.set("callee", &[local.address]);
    });
    assert_eq!((reply.status, reply.text.as_str()), (200, "here"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nearest_nodes_are_chosen_and_share_the_requests() {
    let at = |region: &str, zone: &str| Locality { region: Some(region.into()), zone: Some(zone.into()) };
    let mut there = Vec::new();
    for name in ["a1", "a2", "b", "far"] {
        let builder = callee(&named(name).await);
        there.push(match there.first() {
            Some(first) => builder.with(first).start(),
            None => builder.start(),
        });
    }
    let here = caller().with(&there[0]).locality(at("eu", "a")).start();
    let tell = |ready: [u32; 4]| {
        let localities = [at("eu", "a"), at("eu", "a"), at("eu", "b"), at("us", "a")];
        let places = there.iter().zip(ready).zip(localities);
        let places: Vec<_> = places.map(|((mesh, ready), locality)| (mesh.inbound(), ready, locality)).collect();
        here.knows_at("callee", &places);
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    tell([1, 1, 1, 1]);
    assert_eq!(bodies(&here, 60).await, set(&["a1", "a2"]));
    tell([0, 0, 1, 1]);
    assert_eq!(bodies(&here, 10).await, set(&["b"]));
    tell([0, 0, 0, 1]);
    assert_eq!(bodies(&here, 10).await, set(&["far"]));
    tell([0, 0, 0, 0]);
    assert_eq!(bodies(&here, 60).await, set(&["a1", "a2"]), "the nearest homes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_refuses_connections_costs_no_request_and_no_retry_policy() {
    let upstream = named("there").await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    let dead = closed().await;
    here.knows_at("callee", &[(dead, 5, Locality::default()), (there.inbound(), 1, Locality::default())]);
    for number in 0..20 {
        let request = Request::post("http://callee/").header("x-request-id", format!("request-{number}"));
        let reply = send(&here, request, full("a body that is sent once")).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, "there"));
    }
    let mut tries = 0;
    for number in 0..20 {
        let told = here.told(&format!("request-{number}"), 1).await.remove(0);
        tries += told.attempts.iter().filter(|attempt| attempt.endpoint == Some(dead.to_string())).count();
        assert_eq!(told.node, Some(node_name(there.inbound())));
    }
    assert!((1..20).contains(&tries), "it is avoided once it is known: {tries}");
    let counted = format!("leno_node_connect_failures_total{{node=\"{}\"}} {tries}\n", node_name(dead));
    assert!(here.metrics().contains(&counted), "{}", here.metrics());
    assert_eq!(upstream.requests(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_is_tried_although_it_refused() {
    let upstream = named("there").await;
    let there = callee(&upstream).start();
    let here = caller().with(&there).start();
    let dead = closed().await;
    here.knows_at("callee", &[(dead, 1, Locality::default())]);
    assert_eq!(get(&here).await.status, 503);
    // Another process listens there. Without the callee's certificate, it receives no request.
    let listener = TcpListener::bind(dead).await.unwrap();
    let accepted = Arc::new(AtomicBool::new(false));
    let flag = accepted.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            flag.store(true, Ordering::SeqCst);
            drop(stream);
        }
    });
    assert_eq!(get(&here).await.status, 503);
    assert!(accepted.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_function_of_the_mesh_cannot_stand_in_for_the_callee() {
    let upstream = named("impostor").await;
    let impostor = Builder::new().function("other", AppProtocol::Http1, upstream.address).start();
    let here = caller().with(&impostor).start();
    here.knows("callee", &[(&impostor, 1)]);
    assert_eq!((get(&here).await.status, upstream.requests()), (503, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_goes_to_another_node_when_one_dies_in_the_middle() {
    // Reads the request, and closes the connection.
    let dying = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let instance = dying.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = dying.accept().await {
            let mut buffer = [0; 1024];
            stream.readable().await.unwrap();
            let _ = stream.try_read(&mut buffer);
        }
    });
    let good = named("good").await;
    let bad = Builder::new().function("callee", AppProtocol::Http1, instance).start();
    let there = callee(&good).with(&bad).start();
    let here = caller().with(&bad).plan("callee", |target| target.retry = Some(retry(&[RetryOn::Reset]))).start();
    here.knows("callee", &[(&bad, 1), (&there, 1)]);
    let mut retried = 0;
    for number in 0..20 {
        let name = format!("request-{number}");
        let reply = send(&here, Request::get("http://callee/").header("x-request-id", &name), empty()).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, "good"));
        let told = here.told(&name, 1).await.remove(0);
        let endpoints: Vec<_> = told.attempts.iter().filter_map(|attempt| attempt.endpoint.clone()).collect();
        match &endpoints[..] {
            [only] => assert_eq!(*only, there.inbound().to_string()),
            [first, second] => {
                assert_eq!([first, second], [&bad.inbound().to_string(), &there.inbound().to_string()]);
                retried += 1;
            }
            more => panic!("{more:?}"),
        }
    }
    assert!(retried > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_change_under_load_and_no_request_fails() {
    let upstream = named("there").await;
    let first = callee(&upstream).start();
    let second = callee(&upstream).with(&first).start();
    let here = Arc::new(caller().with(&first).workers(2).start());
    here.knows("callee", &[(&first, 1)]);
    let over = Arc::new(AtomicBool::new(false));
    let load = (0..8).map(|_| {
        let (here, over) = (here.clone(), over.clone());
        tokio::spawn(async move {
            let credential = basic(&here.mint("caller"));
            let mut client = connect_http1(here.outbound()).await;
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                let request = Request::get("http://callee/").header("host", "callee");
                let request = request.header("proxy-authorization", &credential).body(empty()).unwrap();
                assert_eq!(client.send(request).await.status, 200);
                count += 1;
            }
            count
        })
    });
    // Each credential of the caller revokes the previous one.
    let load = load.take(1).collect::<Vec<_>>();
    let others: Vec<_> = [&first, &second].map(|mesh| mesh.node.snapshot.load().version).into();
    for round in 0..300 {
        let both = [(&first, round % 3), (&second, (round + 1) % 2)];
        here.knows("callee", &both[..if round % 5 == 0 { 1 } else { 2 }]);
        tokio::task::yield_now().await;
    }
    eventually_async("the requests to arrive upstream", || upstream.requests() > 200).await;
    over.store(true, Ordering::Relaxed);
    for task in load {
        assert!(task.await.unwrap() > 0);
    }
    assert_eq!(others, [&first, &second].map(|mesh| mesh.node.snapshot.load().version));
}
