//! Copies of requests for other back ends.

use super::{attach, below, filtered, forbids, full, named, prefix, rewrite, route, target, to};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw;
use crate::upstream::{self, Answer, connect_http1, empty};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use leno_model::{AppProtocol, CallRoute, Mirror, RouteFilter, RouteRule};
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

fn mirror(name: &str, numerator: u32) -> RouteFilter {
    RouteFilter::Mirror(Mirror { target: target(name), numerator, denominator: 1 })
}

fn hidden(builder: Builder, names: &[&str]) -> Builder {
    names.iter().fold(builder, |builder, name| {
        builder.config(name, |config| (config.expose, config.is_routed) = (Vec::new(), true))
    })
}

fn mirrored(path: &str, copy: RouteFilter) -> RouteRule {
    filtered(to(below(path), "one"), vec![rewrite(None, prefix("/new")), copy])
}

/// How many copies of the route had this result.
fn counted(mesh: &Mesh, result: &str) -> u32 {
    let line = format!("leno_route_copies_total{{route=\"shop/copies\",result=\"{result}\"}} ");
    let text = mesh.metrics();
    let count = text.lines().find_map(|text| text.strip_prefix(&line)).map(str::to_owned);
    count.map_or(0, |count| count.parse().unwrap())
}

async fn post(mesh: &Mesh, path: &str, text: &'static str) -> Answer {
    let request = Request::post(path).header("host", "a").body(upstream::full(text)).unwrap();
    connect_http1(mesh.gateway()).await.send(request).await
}

/// An upstream that keeps the requests that it gets.
async fn keeping(status: u16) -> (upstream::Upstream, Arc<Mutex<Vec<String>>>) {
    let kept: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = kept.clone();
    let upstream = upstream::http1(move |request| {
        let keep = keep.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            keep.lock().unwrap().push(format!("{} {} {}", head.method, head.uri, String::from_utf8_lossy(&body)));
            Response::builder().status(status).header("x-function", "copy").body(upstream::full("unseen")).unwrap()
        }
    })
    .await;
    (upstream, kept)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_a_call_of_its_own_and_changes_nothing_for_its_request() {
    let (copies, kept) = keeping(500).await;
    let one = named("one").await;
    let builder = Builder::new()
        .function("one", AppProtocol::Http1, one.address)
        .function("two", AppProtocol::Http1, copies.address)
        .config("two", |config| config.inbound.authorization.insert(0, forbids("/new/secret")));
    let mesh = hidden(builder, &["one", "two"]).start();
    let rules =
        vec![mirrored("/all", mirror("two", 1)), mirrored("/none", mirror("two", 0)), to(below("/plain"), "one")];
    attach(&mesh, &[("*", route("shop/copies", rules))]);
    for (path, copied) in [("/all/a", true), ("/none/a", false), ("/plain", false), ("/all/b", true)] {
        let before = kept.lock().unwrap().len();
        let reply = post(&mesh, path, "hello").await;
        assert_eq!((reply.status, &reply.headers["x-function"]), (200, &"one".parse().unwrap()), "{path}");
        assert!(reply.text.ends_with("hello"), "{}", reply.text);
        if copied {
            eventually_async("the copy", || kept.lock().unwrap().len() > before).await;
            let hops = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 2).await;
            let copy = hops.iter().find(|hop| hop.route.as_ref().is_some_and(|route| route.copy)).unwrap();
            assert_eq!((copy.target.as_deref(), copy.response.status), (Some("shop/two"), 500));
        }
    }
    assert_eq!(*kept.lock().unwrap(), ["POST /new/a hello", "POST /new/b hello"]);
    eventually_async("both to be counted", || counted(&mesh, "sent") == 2).await;
    // The copy is refused, and its request is not.
    let reply = post(&mesh, "/all/secret", "hello").await;
    assert_eq!(reply.status, 200);
    let hops = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 2).await;
    let copy = hops.iter().find(|hop| hop.route.as_ref().is_some_and(|route| route.copy)).unwrap();
    assert_eq!(copy.judgement.as_ref().unwrap().verdict, "deny");
    assert_eq!(kept.lock().unwrap().len(), 2);
    // A request that is refused has no copy.
    mesh.change(&["one"], |config| config.inbound.authorization.insert(0, forbids("/new/b")));
    assert_eq!(post(&mesh, "/all/b", "hello").await.status, 403);
    assert_eq!(post(&mesh, "/all/a", "hello").await.status, 200);
    eventually_async("the last copy", || kept.lock().unwrap().len() == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_instance_starts_for_a_copy() {
    let one = named("one").await;
    let builder = Builder::new()
        .function("one", AppProtocol::Http1, one.address)
        .function("two", AppProtocol::Http1, one.address)
        .addresses("two", &[]);
    let mesh = hidden(builder, &["one", "two"]).start();
    let rules = vec![mirrored("/all", mirror("two", 1)), mirrored("/gone", mirror("elsewhere", 1))];
    attach(&mesh, &[("*", route("shop/copies", rules))]);
    for (path, result) in [("/all", "no_instance"), ("/gone", "no_back_end")] {
        let before = mesh.instances.asked.load(Ordering::Relaxed);
        assert_eq!(post(&mesh, path, "hello").await.status, 200);
        assert_eq!(counted(&mesh, result), 1);
        assert_eq!(mesh.instances.asked.load(Ordering::Relaxed), before + 1, "one asks, and two does not");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_cannot_follow_is_cut() {
    let one = named("one").await;
    let stuck: SocketAddr = raw::server(|stream| async move {
        let _open = stream;
        std::future::pending().await
    })
    .await;
    let builder =
        Builder::new().function("one", AppProtocol::Http1, one.address).function("two", AppProtocol::Http1, stuck);
    let mesh = hidden(builder, &["one", "two"]).start();
    attach(&mesh, &[("*", route("shop/copies", vec![mirrored("/all", mirror("two", 1))]))]);
    let long = "x".repeat(32 << 20);
    let request = Request::post("/all").header("host", "a").body(upstream::full(long.clone())).unwrap();
    let reply = connect_http1(mesh.gateway()).await.send(request).await;
    assert_eq!((reply.status, reply.text.ends_with(&long)), (200, true));
    eventually_async("the copy to be cut", || counted(&mesh, "cut") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_calls_go_to_callees_only_and_to_other_nodes_too() {
    let (copies, kept) = keeping(200).await;
    let stock = named("stock").await;
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let there = Builder::new().function("copy", AppProtocol::Http1, copies.address).start();
    let here = Builder::new()
        .function("caller", AppProtocol::Http1, nowhere)
        .function("stock", AppProtocol::Http1, stock.address)
        .function("other", AppProtocol::Http1, copies.address)
        .call("caller", "stock")
        .call("caller", "copy")
        .with(&there)
        .start();
    here.knows("copy", &[(&there, 1)]);
    here.change(&["caller"], |config| {
        let copied = |path: &str, name: &str| {
            filtered(to(below(path), "stock"), vec![rewrite(None, full("/new")), mirror(name, 1)])
        };
        let route = route("shop/copies", vec![copied("/a", "copy"), copied("/b", "other")]);
        config.callees[0].routes = [CallRoute { route, port: None }].into();
    });
    let call = async |path: &str| {
        let request = Request::builder().method(Method::GET).uri(format!("http://stock{path}")).header("host", "stock");
        let request = request.header("proxy-authorization", basic(&here.mint("caller"))).body(empty()).unwrap();
        connect_http1(here.outbound()).await.send(request).await
    };
    let reply = call("/b").await;
    assert_eq!(reply.status, 200);
    let hops = here.told(reply.headers["x-request-id"].to_str().unwrap(), 3).await;
    let copy = hops.iter().find(|hop| hop.route.as_ref().is_some_and(|route| route.copy)).unwrap();
    assert_eq!((copy.response.status, copy.route.as_ref().unwrap().backend.as_deref()), (403, Some("shop/other")));
    assert_eq!(call("/a").await.status, 200);
    eventually_async("the copy on the other node", || !kept.lock().unwrap().is_empty()).await;
    assert_eq!(*kept.lock().unwrap(), ["GET /new "]);
    // The other node has lost its last instance, and the caller's node does not know it yet.
    there.instances.set("copy", &[]);
    assert_eq!(call("/a").await.status, 200);
    eventually_async("the refused copy", || counted(&here, "sent") == 3).await;
    assert_eq!(kept.lock().unwrap().len(), 1);
}
