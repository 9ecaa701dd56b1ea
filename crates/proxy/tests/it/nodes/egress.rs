//! Calls to external services through an egress node.

use super::relays::echo_server;
use super::{caller, closed};
use crate::mesh::{Builder, Mesh, allow_all, node_name, spiffe};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, connect_http1, echo, empty, full};
use crate::websocket::{HANDSHAKE, parrot};
use http::{Request, Response};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use leno_model::{AppProtocol, Egress, EgressPort, EgressProtocol, EgressTls, Run};
use leno_policy::spec::{Action, AuthorizationRule, Cidr, Matches, Operation, PathMatch, Source, StringMatch, Target};
use leno_testkit::eventually_async;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) fn block(address: Ipv4Addr) -> Cidr {
    Cidr { address: IpAddr::V4(address), prefix: 32 }
}

/// A rule for this caller and port.
fn only(name: &str, port: u16) -> AuthorizationRule {
    let identities = Matches { any: vec![StringMatch::Exact(spiffe(name).to_string())], none: vec![] };
    let operation = Operation { ports: Matches { any: vec![port], none: vec![] }, ..Operation::default() };
    AuthorizationRule {
        name: "test/only".into(),
        action: Action::Allow,
        from: vec![Source { identities, ..Source::default() }],
        to: vec![operation],
        when: vec![],
        audit: false,
    }
}

/// An egress node for these ports of an address.
pub(crate) fn carrier(address: Ipv4Addr, ports: &[(u16, EgressProtocol)], rule: AuthorizationRule) -> Builder {
    let ports =
        ports.iter().map(|(number, protocol)| EgressPort { number: *number, protocol: *protocol, http2: false });
    let egress = Egress {
        hosts: Vec::new(),
        addresses: vec![block(address)],
        resolves_to: Vec::new(),
        ports: ports.collect(),
        tls: EgressTls::default(),
        credentials: Vec::new(),
        connect_timeout: Duration::from_secs(2),
        trace_context: false,
        by_egress_nodes: true,
    };
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    Builder::new().function("callee", AppProtocol::Http1, nowhere).addresses("callee", &[]).config("callee", |config| {
        config.run = Run::Egress(egress);
        config.inbound.authorization.pop();
        config.inbound.authorization.push(rule);
        config.expose.clear();
    })
}

/// A node with a caller that may call the address.
fn here(there: &Mesh, address: Ipv4Addr) -> Builder {
    caller().with(there).config("caller", |config| config.callees[0].addresses = vec![block(address)])
}

async fn get(mesh: &Mesh, at: SocketAddr, more: (&str, &str)) -> upstream::Answer {
    let basic = crate::hops::basic(&mesh.mint("caller"));
    let request = Request::get(format!("http://{at}/p?q=1")).header("host", at.to_string());
    let request = request.header("proxy-authorization", basic).header(more.0, more.1).body(empty()).unwrap();
    connect_http1(mesh.outbound()).await.send(request).await
}

/// Object keys of S3 and their signatures depend on the exact bytes of the path, both on the node
/// itself and on an egress node.
#[tokio::test(flavor = "multi_thread")]
async fn paths_go_out_as_they_came_where_the_external_asks_for_that() {
    let external = upstream::http1(|request| async move { Response::new(full(request.uri().to_string())) }).await;
    let (at, local) = (external.address, Ipv4Addr::LOCALHOST);
    let no_admin = |config: &mut leno_model::FunctionConfig| {
        let paths = Matches { any: vec![PathMatch::Text(StringMatch::Prefix("/admin".into()))], none: vec![] };
        let to = vec![Operation { paths, ..Operation::default() }];
        config.inbound.authorization.insert(0, AuthorizationRule { action: Action::Deny, to, ..allow_all() });
    };
    let as_received = |target: &mut Target| target.as_received = true;
    let carrier = || carrier(local, &[(at.port(), EgressProtocol::Http)], allow_all()).config("callee", no_admin);
    let there = carrier().plan("callee", as_received).start();
    let away = here(&there, local).plan("callee", as_received).start();
    away.knows("callee", &[(&there, 1)]);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let alone = carrier().function("caller", AppProtocol::Http1, nowhere).call("caller", "callee");
    let alone = alone.config("caller", |config| config.callees[0].addresses = vec![block(local)]);
    let alone = alone.plan("callee", as_received).start();
    for mesh in [&away, &alone] {
        for (target, status) in [
            ("/bucket/a//b.txt?X-Amz-Signature=%2B%2f", 200),
            ("/bucket/a%2Bb%7Ec/caf%c3%a9", 200),
            ("/@scope%2fname", 200),
            ("/bucket/../key", 200),
            ("/bucket/..%2fadmin", 403),
            ("//admin", 403),
            ("/bucket/%00", 400),
        ] {
            let basic = crate::hops::basic(&mesh.mint("caller"));
            let request = Request::get(format!("http://{at}{target}")).header("host", at.to_string());
            let request = request.header("proxy-authorization", basic).body(empty()).unwrap();
            let reply = connect_http1(mesh.outbound()).await.send(request).await;
            assert_eq!(reply.status, status, "{target}: {}", reply.text);
            assert!(status != 200 || reply.text == target, "{target}: {}", reply.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_carrier_judges_and_goes_out_and_nothing_of_the_mesh_goes_along() {
    let external = upstream::http1(echo).await;
    let (at, local) = (external.address, Ipv4Addr::LOCALHOST);
    let there = carrier(local, &[(at.port(), EgressProtocol::Http)], only("caller", at.port())).start();
    let here = here(&there, local).start();
    here.knows("callee", &[(&there, 1)]);
    let reply = get(&here, at, ("x-request-id", "to-the-service")).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    for field in ["x-leno", "x-forwarded", "x-request-id", "traceparent"] {
        assert!(!reply.text.contains(field), "{}", reply.text);
    }
    assert!(reply.text.contains(&format!("host: {at}\n")), "{}", reply.text);
    let outbound = here.told("to-the-service", 1).await.remove(0);
    assert_eq!(outbound.node, Some(node_name(there.inbound())));
    let inbound = there.told("to-the-service", 1).await.remove(0);
    assert_eq!(inbound.peer.identity.as_deref(), Some(&*spiffe("caller").to_string()));
    assert_eq!(inbound.attempts[0].endpoint, Some(at.to_string()), "where it went");
    assert_eq!(inbound.judgement.as_ref().unwrap().rule, "test/only");

    let requests = external.requests();
    assert_eq!(get(&here, at, ("x-deny", "1")).await.status, 403);
    let other = SocketAddr::new(at.ip(), 9);
    assert_eq!(get(&here, other, ("x-a", "1")).await.status, 421, "no such port");
    let stranger = SocketAddr::from(([127, 0, 0, 2], at.port()));
    assert_eq!(get(&here, stranger, ("x-a", "1")).await.status, 403, "not a callee");
    // No egress node is known, and this node does not connect to external services.
    here.knows("callee", &[]);
    assert_eq!(get(&here, at, ("x-a", "1")).await.status, 503);
    assert_eq!(external.requests(), requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_about_the_caller_who_proves_who_it_is_and_not_about_its_node() {
    let external = upstream::http1(echo).await;
    let (at, local) = (external.address, Ipv4Addr::LOCALHOST);
    let there = carrier(local, &[(at.port(), EgressProtocol::Http)], only("another", at.port())).start();
    let here = here(&there, local).start();
    here.knows("callee", &[(&there, 1)]);
    assert_eq!(get(&here, at, ("x-a", "1")).await.status, 403);
    // A node that is not an egress node cannot prove that it is one.
    let stranger = Builder::new().function("other", AppProtocol::Http1, at).with(&there).start();
    here.knows("callee", &[(&stranger, 1)]);
    assert_eq!(get(&here, at, ("x-a", "1")).await.status, 503);
    assert_eq!(external.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_carrier_is_tried_where_one_cannot_be_reached() {
    let external: Upstream = upstream::http1(|_| async { Response::new(full("external")) }).await;
    let (at, local) = (external.address, Ipv4Addr::LOCALHOST);
    let there = carrier(local, &[(at.port(), EgressProtocol::Http)], allow_all()).start();
    let here = here(&there, local).start();
    let dead = closed().await;
    here.knows_at("callee", &[(dead, 1, Default::default()), (there.inbound(), 1, Default::default())]);
    for _ in 0..10 {
        let reply = get(&here, at, ("x-a", "1")).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, "external"));
    }
    assert!(here.metrics().contains(&format!("leno_node_connect_failures_total{{node=\"{}\"}}", node_name(dead))));
}

/// Each egress node has the same document, so no other one is tried.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_the_external_does_not_have_is_refused_at_once() {
    let (local, other) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let ports = [(9, EgressProtocol::Http)];
    let first = carrier(local, &ports, allow_all()).start();
    let second = carrier(local, &ports, allow_all()).with(&first).start();
    let here = here(&first, other).start();
    here.knows("callee", &[(&first, 1), (&second, 1)]);
    let reply = get(&here, SocketAddr::from((other, 9)), ("x-request-id", "no-such-address")).await;
    assert_eq!(reply.status, 421, "{}", reply.text);
    let told = here.told("no-such-address", 1).await.remove(0);
    assert_eq!(told.attempts.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_goes_out_through_the_carrier() {
    let external = upstream::http1(parrot).await;
    let (at, local) = (external.address, Ipv4Addr::LOCALHOST);
    let there = carrier(local, &[(at.port(), EgressProtocol::Http)], allow_all()).start();
    let here = here(&there, local).start();
    here.knows("callee", &[(&there, 1)]);
    let mut raw = Raw::connect(here.outbound()).await;
    let basic = crate::hops::basic(&here.mint("caller"));
    let handshake = HANDSHAKE.replace("host: callee", &format!("host: {at}"));
    raw.send(format!("GET http://{at}/chat HTTP/1.1\r\nproxy-authorization: {basic}\r\n{handshake}\r\n")).await;
    assert_eq!(raw::status(&raw.head().await), 101);
    raw.until("hello ").await;
    raw.send("one two three").await;
    raw.until("one two three").await;
    raw.0.shutdown().await.unwrap();
    assert_eq!(raw.rest().await, " bye");
}

/// Opens a connection without requests as a caller's sidecar does.
async fn open(there: &Mesh, here: &Mesh, target: &str, name: Option<&str>) -> (u16, Option<Upgraded>) {
    let mut client = there.as_sidecar(here, &spiffe("caller"), "callee").await;
    let request = Request::connect(target);
    let request = name.into_iter().fold(request, |request, name| request.header("x-leno-server-name", name));
    let response = client.send_request(request.body(empty()).unwrap()).await.unwrap();
    match response.status().as_u16() {
        200 => (200, Some(hyper::upgrade::on(response).await.unwrap())),
        status => (status, None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_carrier_judges_connections_without_requests_and_connects_to_what_was_called() {
    let local = Ipv4Addr::LOCALHOST;
    let served = echo_server().await;
    let number = served.port();
    let there = carrier(local, &[(number, EgressProtocol::Tcp), (443, EgressProtocol::Tls)], only("caller", number));
    let there = there.start();
    let here = here(&there, local).start();
    let (status, stream) = open(&there, &here, &format!("{local}:{number}"), None).await;
    assert_eq!(status, 200);
    let mut stream = TokioIo::new(stream.unwrap());
    stream.write_all(b"\0\x04PING\0\0").await.unwrap();
    let mut back = [0; 8];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"\0\x04PING\0\0", "framed, with its end");
    drop(stream);
    let last = || there.node.telemetry.flows(None).flows.into_iter().rfind(|flow| flow.kind == "connection");
    eventually_async("the record of the exchange", || last().is_some()).await;
    let flow = last().unwrap();
    assert_eq!((flow.verdict.as_str(), flow.rule.as_str(), flow.sent, flow.received), ("allow", "test/only", 4, 4));
    assert_eq!((flow.host, flow.source), (served.to_string(), spiffe("caller").to_string()), "where it went");

    for (target, name, status) in [
        (format!("{local}:9"), None, 403),
        (format!("127.0.0.9:{number}"), None, 503),
        // Names of the mesh have no meaning outside of it.
        (format!("callee.shop:{number}"), None, 503),
        (format!("{local}:443"), None, 400),
        (format!("{local}:443"), Some("another.example"), 403),
    ] {
        assert_eq!(open(&there, &here, &target, name).await.0, status, "{target} {name:?}");
    }
}
