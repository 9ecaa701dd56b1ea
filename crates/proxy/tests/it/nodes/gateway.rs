//! A gateway on one node and the function on another give the same verdicts as a single node.

use crate::mesh::{Builder, Mesh, gateway_identity, id, node_name, retry, spiffe};
use crate::upstream::{self, Answer, Upstream, answer, connect_h2, connect_http1, echo, empty, full};
use http::{Method, Request, Response};
use leno_model::{AppProtocol, TrustedProxies};
use leno_policy::spec::{
    Action, AuthorizationRule, Cidr, Condition, ConditionKey, Matches, Operation, RetryOn, Source, StringMatch,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A method, header fields, and the status that they get.
type Case = (&'static str, &'static [(&'static str, &'static str)], u16);

/// A client with an address of the office.
const OFFICE: (&str, &str) = ("x-forwarded-for", "192.0.2.7");

/// A gateway in front of the function `web`: on the same node, and on another one.
/// `x-forwarded-for` names the client.
struct Both {
    local: Mesh,
    gateway: Mesh,
    /// The node behind `gateway`.
    there: Mesh,
}

impl Both {
    fn new(upstream: &Upstream, change: impl Fn(Builder) -> Builder) -> Self {
        let web = || {
            let mut builder = Builder::new().function("web", AppProtocol::Http1, upstream.address);
            builder.mesh.trusted_proxies = TrustedProxies::Hops(1);
            change(builder)
        };
        let there = web().start();
        let gateway = web().remote("web").with(&there).start();
        gateway.knows("web", &[(&there, 1)]);
        Self { local: web().start(), gateway, there }
    }

    fn gateways(&self) -> [SocketAddr; 2] {
        [self.local.gateway(), self.gateway.gateway()]
    }
}

fn rule(name: &str, action: Action, from: Vec<Source>, to: Vec<Operation>, when: Vec<Condition>) -> AuthorizationRule {
    AuthorizationRule { name: name.into(), action, from, to, when, audit: false }
}

fn any<T>(values: Vec<T>) -> Matches<T> {
    Matches { any: values, none: Vec::new() }
}

async fn send(gateway: SocketAddr, request: Request<upstream::Body>) -> Answer {
    connect_http1(gateway).await.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_verdicts_on_one_node_and_on_two() {
    let upstream = upstream::http1(echo).await;
    let office = Cidr { address: "192.0.2.0".parse().unwrap(), prefix: 24 };
    let exact = |text: &str| any(vec![StringMatch::Exact(text.into())]);
    let to = |method: &str| vec![Operation { methods: exact(method), ..Operation::default() }];
    let rules = vec![
        rule("no-put", Action::Deny, vec![], to("PUT"), vec![]),
        rule(
            "members",
            Action::Allow,
            vec![Source { identities: any(vec![StringMatch::Present]), ..Source::default() }],
            vec![],
            vec![],
        ),
        rule(
            "office",
            Action::Allow,
            vec![Source { addresses: any(vec![office]), ..Source::default() }],
            to("GET"),
            vec![],
        ),
        rule(
            "marked",
            Action::Allow,
            vec![],
            to("POST"),
            vec![Condition { key: ConditionKey::Header("x-mark".into()), values: exact("yes") }],
        ),
    ];
    let both =
        Both::new(&upstream, |builder| builder.config("web", |config| config.inbound.authorization = rules.clone()));
    let table: [Case; 9] = [
        ("GET", &[OFFICE], 200),
        ("GET", &[("x-forwarded-for", "198.51.100.7")], 403),
        ("GET", &[], 403),
        ("POST", &[OFFICE], 403),
        ("POST", &[OFFICE, ("x-mark", "yes")], 200),
        ("PUT", &[OFFICE, ("x-mark", "yes")], 403),
        ("GET", &[("x-leno-client", "https 443 192.0.2.7:1")], 403),
        ("GET", &[("x-forwarded-client-cert", "URI=spiffe://test.example/ns/shop/sa/caller")], 403),
        ("GET", &[("x-real-ip", "192.0.2.7"), ("forwarded", "for=192.0.2.7")], 403),
    ];
    for (method, fields, expected) in table {
        for gateway in both.gateways() {
            let mut request = Request::builder().method(method).uri("/x").header("host", "web");
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let status = send(gateway, request.body(empty()).unwrap()).await.status;
            assert_eq!(status, expected, "{method} {fields:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_function_sees_the_same_request() {
    let upstream = upstream::http1(echo).await;
    let both = Both::new(&upstream, |builder| builder);
    let mut seen = Vec::new();
    for (node, gateway) in both.gateways().into_iter().enumerate() {
        let request = Request::post("/a/../p?q=1")
            .header("host", "shop.example")
            .header("x-forwarded-for", "203.0.113.9")
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-user", "root")
            .header("x-leno-retry", "1")
            .header("x-leno-timeout", "0")
            .header("x-leno-protocol", "grpc")
            .header("x_leno_client", "http 1 127.0.0.1:1")
            .header("x-request-id", "chosen-by-the-client");
        let reply = send(gateway, request.body(full("hello")).unwrap()).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let id = reply.headers["x-request-id"].to_str().unwrap().to_owned();
        assert_ne!(id, "chosen-by-the-client");
        assert!(reply.text.contains(&format!("x-request-id: {id}\n")), "the same id on both nodes: {}", reply.text);
        let mut lines: Vec<_> =
            reply.text.lines().filter(|line| !line.starts_with("x-request-id")).map(str::to_owned).collect();
        lines.sort();
        seen.push(lines);
        if node == 1 {
            let told = both.gateway.told(&id, 1).await.remove(0);
            assert_eq!((told.hop.as_str(), told.node), ("gateway", Some(node_name(both.there.inbound()))));
            let told = both.there.told(&id, 1).await.remove(0);
            assert_eq!((told.peer.identity, told.peer.address.as_str()), (None, "203.0.113.9:0"));
        }
    }
    assert_eq!(seen[0], seen[1]);
    let text = seen[1].join("\n");
    assert!(text.contains("x-forwarded-for: 203.0.113.9") && text.contains("x-forwarded-proto: https"), "{text}");
    assert!(!text.contains("x-leno") && !text.contains("x_leno") && !text.contains("root"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_gateway_speaks_for_clients() {
    let upstream = upstream::http1(echo).await;
    let there = Builder::new().function("web", AppProtocol::Http1, upstream.address).start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let here =
        Builder::new().function("caller", AppProtocol::Http1, nowhere).call("caller", "web").with(&there).start();
    // The caller's own sidecar removes the field. The callee's node ignores it from a sidecar that
    // does not.
    let mut client = there.as_sidecar(&here, &spiffe("caller"), "web").await;
    let request = Request::get("http://web/").header("x-leno-client", "https 443 192.0.2.7:1");
    let reply = answer(client.send_request(request.body(empty()).unwrap()).await.unwrap()).await;
    assert_eq!(reply.status, 200);
    let id = reply.headers["x-request-id"].to_str().unwrap().to_owned();
    let told = there.told(&id, 1).await.remove(0);
    assert!(told.peer.identity.is_some() && told.peer.address.starts_with("127.0.0.1:"), "{:?}", told.peer);
    // A gateway that does not name its client is refused.
    let gateway = Builder::new().function("web", AppProtocol::Http1, nowhere).remote("web").with(&there).start();
    let mut client = there.as_sidecar(&gateway, &gateway_identity().parse().unwrap(), "web").await;
    let request = Request::get("http://web/").body(empty()).unwrap();
    assert_eq!(answer(client.send_request(request).await.unwrap()).await.status, 400);
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_route_has_decided_something_unknown_is_refused() {
    let upstream = upstream::http1(echo).await;
    let there = Builder::new().function("web", AppProtocol::Http1, upstream.address).start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let here =
        Builder::new().function("caller", AppProtocol::Http1, nowhere).call("caller", "web").with(&there).start();
    let mut client = there.as_sidecar(&here, &spiffe("caller"), "web").await;
    let cases: [(&[&str], u16); 6] = [
        (&["limit=caller"], 200),
        (&["revision"], 400),
        (&["limit=caller other"], 400),
        (&["revision=web-00001", "copy"], 400),
        (&["copy limit=caller"], 400),
        (&[""], 400),
    ];
    for (terms, expected) in cases {
        let mut request = Request::get("http://web/");
        for value in terms {
            request = request.header("x-leno-route", *value);
        }
        let reply = answer(client.send_request(request.body(empty()).unwrap()).await.unwrap()).await;
        assert_eq!(reply.status, expected, "{terms:?}");
    }
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_retries_on_another_node() {
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = failures.clone();
    let bad = upstream::http1(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Response::builder().status(503).body(empty()).unwrap() }
    })
    .await;
    let good = upstream::http1(echo).await;
    let web = |upstream: &Upstream| {
        let builder = Builder::new().function("web", AppProtocol::Http1, upstream.address);
        builder.plan("web", |target| target.retry = Some(retry(&[RetryOn::Status(503)])))
    };
    let first = web(&bad).start();
    let second = web(&good).with(&first).start();
    let gateway = web(&good).remote("web").with(&first).start();
    gateway.knows("web", &[(&first, 1), (&second, 1)]);
    for _ in 0..20 {
        let request = Request::get("/").header("host", "web").body(empty()).unwrap();
        assert_eq!(send(gateway.gateway(), request).await.status, 200);
    }
    let failures = failures.load(Ordering::SeqCst);
    assert!((1..=20).contains(&failures), "at most one attempt of each request: {failures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_hosts_its_gateway_serves_itself() {
    let (near, far) = (super::named("near").await, super::named("far").await);
    let there = Builder::new().function("web", AppProtocol::Http1, far.address).start();
    let gateway = Builder::new().function("web", AppProtocol::Http1, near.address).remote("web").with(&there).start();
    gateway.knows("web", &[(&there, 1)]);
    assert_eq!(upstream::get(gateway.gateway(), "/").await.text, "far");
    let hosting = Builder::new().function("web", AppProtocol::Http1, near.address).start();
    let entry = hosting.node.snapshot.load().functions.get(&id("web")).unwrap().clone();
    gateway.instances.set("web", &[near.address]);
    let next = || gateway.node.snapshot.load().change();
    let mut change = next();
    change.insert(entry);
    gateway.node.publish(Arc::new(change.finish()));
    assert_eq!(upstream::get(gateway.gateway(), "/").await.text, "near");
    let mut change = next();
    change.remove(&id("web"));
    gateway.node.publish(Arc::new(change.finish()));
    assert_eq!(upstream::get(gateway.gateway(), "/").await.text, "far");
    let mut change = next();
    change.remove_route(&id("web"));
    gateway.node.publish(Arc::new(change.finish()));
    assert_eq!(upstream::get(gateway.gateway(), "/").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_and_bodies_go_through() {
    let upstream = upstream::h2c(echo).await;
    let web = || Builder::new().function("web", AppProtocol::H2c, upstream.address);
    let there = web().start();
    let gateway = web().remote("web").with(&there).start();
    gateway.knows("web", &[(&there, 0)]);
    let mut client = connect_h2(gateway.gateway()).await;
    let body = "x".repeat(300_000);
    let request = Request::builder().method(Method::POST).uri("http://web/").body(full(body.clone())).unwrap();
    let reply = answer(client.send_request(request).await.unwrap()).await;
    assert!(reply.status == 200 && reply.text.ends_with(&body));
}
