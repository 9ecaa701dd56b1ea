//! Routes to external services, from a gateway on the node that connects to them and from another.

use super::{attach, backend, below, filtered, forbids, full, rewrite, route, to};
use crate::mesh::{Mesh, allow_all, id};
use crate::nodes::egress::carrier;
use crate::upstream::{self, Answer, connect_http1, echo, empty};
use http::Request;
use leno_model::{BackendTarget, EgressProtocol, RouteRule};
use std::net::Ipv4Addr;

async fn get(mesh: &Mesh, path: &str) -> Answer {
    let request = Request::get(path).header("host", "shop.test").body(empty()).unwrap();
    connect_http1(mesh.gateway()).await.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_sends_requests_to_an_external_whose_program_judges_them() {
    let external = upstream::http1(echo).await;
    let (local, port) = (Ipv4Addr::LOCALHOST, external.address.port());
    let carrier = |is_routed: bool| {
        carrier(local, &[(port, EgressProtocol::Http)], allow_all()).config("callee", |config| {
            config.is_routed = is_routed;
            config.inbound.authorization.insert(0, forbids("/admin"));
        })
    };
    let leads = |path: &str, new: &str| RouteRule {
        backends: vec![backend(BackendTarget::External(id("callee"), port), 1)],
        ..filtered(to(below(path), "callee"), vec![rewrite(Some("127.0.0.1"), full(new))])
    };
    let rules = route("shop/outside", vec![leads("/a", "/new"), leads("/b", "/admin")]);
    let (near, there, closed) = (carrier(true).start(), carrier(true).start(), carrier(false).start());
    let [far, refused] = [&there, &closed].map(|node| {
        let far = carrier(true).remote("callee").with(node).start();
        far.knows("callee", &[(node, 1)]);
        far
    });
    for mesh in [&near, &far, &refused] {
        attach(mesh, &[("*", rules.clone())]);
    }
    for mesh in [&near, &far] {
        let reply = get(mesh, "/a?b").await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.text.starts_with("GET /new?b HTTP/1.1\n"), "{}", reply.text);
        assert!(reply.text.contains(&format!("\nhost: 127.0.0.1:{port}\n")), "{}", reply.text);
        assert!(!reply.text.contains("x-leno") && !reply.text.contains("x-forwarded"), "{}", reply.text);
        assert_eq!(get(mesh, "/b").await.status, 403);
    }
    assert_eq!(get(&refused, "/a").await.status, 421, "the External's node knows of no route");
}
