//! Routes of calls between functions, on one node and on several.

use super::authorizers::asks;
use super::{backend, below, filtered, forbids, full, named, rewrite, route, set, target, to};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh, allow_all};
use crate::upstream::{Answer, connect_http1, empty};
use http::Request;
use leno_model::{AppProtocol, CallRoute, FieldMatch, HttpRoute, RouteFilter, RouteMatch, RouteRule, ValuePattern};
use std::net::SocketAddr;

/// A caller that may call `stock` and `spare`, and a function `other` that it may not call.
async fn functions() -> Builder {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let (stock, spare, other) = (named("stock").await, named("spare").await, named("other").await);
    Builder::new()
        .function("caller", AppProtocol::Http1, nowhere)
        .function("stock", AppProtocol::Http1, stock.address)
        .function("spare", AppProtocol::Http1, spare.address)
        .function("other", AppProtocol::Http1, other.address)
        .call("caller", "stock")
        .call("caller", "spare")
        .config("stock", |config| config.inbound.authorization.insert(0, forbids("/admin")))
        .config("caller", |config| config.outbound.authorization = vec![forbids("/private"), allow_all()])
}

/// Has the caller's calls to `stock` follow these routes.
fn follows(mesh: &Mesh, routes: &[HttpRoute]) {
    let calls: Vec<_> = routes.iter().map(|route| CallRoute { route: route.clone(), port: None }).collect();
    mesh.change(&["caller"], |config| config.callees[0].routes = calls.clone().into());
}

async fn call(mesh: &Mesh, request: http::request::Builder, host: &str) -> Answer {
    let request = request.header("host", host).header("proxy-authorization", basic(&mesh.mint("caller")));
    connect_http1(mesh.outbound()).await.send(request.body(empty()).unwrap()).await
}

async fn get(mesh: &Mesh, path: &str) -> Answer {
    call(mesh, Request::get(format!("http://stock{path}")), "stock").await
}

fn function(answer: &Answer) -> &str {
    answer.headers.get("x-function").map_or("", |name| name.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_follow_the_routes_of_their_callee() {
    for over_tls in [false, true] {
        let builder = functions().await;
        let mesh = if over_tls { builder.mtls() } else { builder }.start();
        assert_eq!(function(&get(&mesh, "/a").await), "stock");
        let changes = vec![
            RouteFilter::RequestHeaders(set("x-route", "1")),
            rewrite(Some("spare.shop"), full("/new")),
            RouteFilter::ResponseHeaders(set("x-answer", "1")),
        ];
        follows(
            &mesh,
            &[route("shop/stock", vec![filtered(to(below("/a"), "spare"), changes), to(below("/b"), "stock")])],
        );
        let reply = get(&mesh, "/a/b?c").await;
        assert_eq!((reply.status, function(&reply)), (200, "spare"), "{}", reply.text);
        assert!(reply.text.starts_with("GET /new?c HTTP/1.1\n"), "{}", reply.text);
        assert!(reply.text.contains("\nx-route: 1\n") && reply.text.contains("\nhost: spare.shop\n"), "{}", reply.text);
        assert!(!reply.text.contains("x-leno"), "{}", reply.text);
        assert_eq!(reply.headers["x-answer"], "1");
        let shown = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 2).await;
        let outbound = shown.iter().find(|hop| hop.hop == "outbound").unwrap();
        let followed = outbound.route.as_ref().unwrap();
        assert_eq!((followed.name.as_str(), followed.path.as_deref()), ("shop/stock", Some("/new")));
        assert_eq!((outbound.asked.path.as_str(), outbound.target.as_deref()), ("/a/b", Some("shop/spare")));
        let inbound = shown.iter().find(|hop| hop.hop == "inbound").unwrap();
        assert_eq!((inbound.asked.path.as_str(), inbound.route.as_ref()), ("/new", None));
        assert_eq!(function(&get(&mesh, "/b").await), "stock");
        let reply = get(&mesh, "/c").await;
        assert_eq!((reply.status, function(&reply)), (404, ""), "no rule is for it");
        let direct = call(&mesh, Request::get("http://spare/c"), "spare").await;
        assert_eq!(function(&direct), "spare", "calls to another callee follow none");
        // A change is in force at once.
        follows(&mesh, &[]);
        assert_eq!(function(&get(&mesh, "/c").await), "stock");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_leads_where_the_caller_may_not_call() {
    let mesh = functions().await.start();
    let rules = |path: &str, name: &str, new: &str| filtered(to(below(path), name), vec![rewrite(None, full(new))]);
    follows(
        &mesh,
        &[route(
            "shop/stock",
            vec![
                to(below("/other"), "other"),
                rules("/private-of-caller", "stock", "/private"),
                rules("/admin-of-stock", "stock", "/admin"),
                rules("/admin", "stock", "/plain"),
                to(below("/x"), "stock"),
            ],
        )],
    );
    let reply = get(&mesh, "/other").await;
    assert_eq!((reply.status, function(&reply)), (403, ""), "{}", reply.text);
    let shown = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await.remove(0);
    let followed = shown.route.unwrap();
    assert_eq!((followed.name.as_str(), followed.backend.as_deref()), ("shop/stock", Some("shop/other")));
    // The heads before and after a rewrite are judged apart, whichever comes first.
    for path in ["/x", "/private-of-caller", "/admin-of-stock", "/x", "/admin", "/admin-of-stock"] {
        let reply = get(&mesh, path).await;
        let expected = if path.contains("-of-") { 403 } else { 200 };
        assert_eq!(reply.status, expected, "{path}: {}", reply.text);
    }
    // An application writes no field of the mesh.
    let forged = Request::get("http://stock/x").header("x-leno-route", "revision=next");
    assert_eq!(call(&mesh, forged, "stock").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_of_calls_asks_authorizers_that_the_caller_may_call() {
    for over_tls in [false, true] {
        let builder = functions().await;
        let mesh = if over_tls { builder.mtls() } else { builder }.start();
        let rules = [("/spare", "spare"), ("/other", "other"), ("/admin", "stock")]
            .map(|(path, asked)| filtered(to(below(path), "stock"), vec![asks(asked)]));
        follows(&mesh, &[route("shop/stock", rules.to_vec())]);
        let reply = get(&mesh, "/spare").await;
        assert_eq!((reply.status, function(&reply)), (200, "stock"), "{}", reply.text);
        let shown = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 4).await;
        assert!(shown.iter().any(|hop| hop.target.as_deref() == Some("shop/spare")), "the question is a call");
        let reply = get(&mesh, "/other").await;
        assert_eq!((reply.status, function(&reply)), (503, ""), "{}", reply.text);
        assert!(
            [403, 503].contains(&get(&mesh, "/admin").await.status),
            "the authorizer's policy refuses the question"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_the_callers_namespace_take_the_place_of_the_callees() {
    let mesh = functions().await.start();
    let staff = FieldMatch { name: "x-group".into(), value: ValuePattern::Exact("staff".into()) };
    let marked = RouteMatch { headers: vec![staff], ..below("/a") };
    let producer = route("shop/stock", vec![to(below(""), "stock")]);
    let consumer = route("depot/mine", vec![to(marked, "spare")]);
    follows(&mesh, &[consumer, producer]);
    let reply = call(&mesh, Request::get("http://stock/a").header("x-group", "staff"), "stock").await;
    assert_eq!(function(&reply), "spare");
    assert_eq!(get(&mesh, "/a").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_for_one_port_is_not_for_others() {
    let mesh = functions().await.start();
    let port = |port, name: &str, to_name: &str| CallRoute { route: route(name, vec![to(below(""), to_name)]), port };
    let asks = async |expected: [&str; 3]| {
        for (host, expected) in ["stock", "stock:80", "stock:8080"].into_iter().zip(expected) {
            let reply = call(&mesh, Request::get(format!("http://{host}/a")), host).await;
            assert_eq!(function(&reply), expected, "{host}");
        }
    };
    mesh.change(&["caller"], |config| config.callees[0].routes = [port(Some(80), "shop/a", "spare")].into());
    asks(["spare", "spare", "stock"]).await;
    mesh.change(&["caller"], |config| {
        config.callees[0].routes = [port(None, "shop/a", "spare"), port(Some(8080), "depot/b", "stock")].into();
    });
    asks(["spare", "spare", "stock"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_other_nodes_follow_routes() {
    let there = functions().await.start();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let here = Builder::new()
        .function("caller", AppProtocol::Http1, nowhere)
        .call("caller", "stock")
        .call("caller", "spare")
        .with(&there)
        .start();
    for name in ["stock", "spare"] {
        // Both at once: each set replaces the one before for its function only.
        here.knows(name, &[(&there, 1)]);
    }
    let shares = RouteRule {
        backends: vec![backend(target("stock"), 0), backend(target("spare"), 1)],
        ..filtered(to(below("/a"), "stock"), vec![rewrite(None, full("/new"))])
    };
    let admin = filtered(to(below("/b"), "stock"), vec![rewrite(None, full("/admin"))]);
    follows(&here, &[route("shop/stock", vec![shares, admin])]);
    let reply = get(&here, "/a?x").await;
    assert_eq!((reply.status, function(&reply)), (200, "spare"), "{}", reply.text);
    assert!(reply.text.starts_with("GET /new?x HTTP/1.1\n") && !reply.text.contains("x-leno"), "{}", reply.text);
    assert_eq!(get(&here, "/b").await.status, 403, "the callee's node judges the rewritten head");
}
