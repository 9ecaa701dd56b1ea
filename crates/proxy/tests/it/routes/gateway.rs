//! Routes of the gateway.

use super::{
    at, attach, backend, below, field, filtered, forbids, full, named, prefix, publish, rewrite, route, set, target, to,
};
use crate::mesh::{Builder, Mesh, id};
use crate::raw;
use crate::upstream::{self, Answer, answer, channel, connect_h2, connect_http1, echo, empty};
use crate::websocket;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Frame;
use leno_model::{
    AppProtocol, AttachedRoute, Attachment, Backend, BackendTarget, Cors, Expose, FieldMatch, GatewayRoutes,
    HeaderModifier, HttpRouteKind, PathPattern, Redirect, RouteFilter, RouteListener, RouteMatch, RouteRule,
    ValuePattern,
};
use leno_telemetry::ring::Explanation;
use leno_testkit::eventually_async;
use std::time::Duration;

/// Functions `one`, `two` and `three`, which are exposed nowhere but where a test exposes them.
async fn three() -> Mesh {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let builder = Builder::new()
        .function("one", AppProtocol::Http1, one.address)
        .function("two", AppProtocol::Http1, two.address)
        .function("three", AppProtocol::Http1, three.address);
    let hidden = ["one", "two", "three"].into_iter().fold(builder, |builder, name| {
        builder.config(name, |config| (config.expose, config.is_routed) = (Vec::new(), true))
    });
    hidden
        .config("three", |config| {
            config.expose = vec![Expose { hosts: vec!["shop.example".into(), "*.example".into()], path: "/".into() }];
        })
        .config("two", |config| config.inbound.authorization.insert(0, forbids("/admin")))
        .start()
}

async fn ask(mesh: &Mesh, request: http::request::Builder) -> Answer {
    connect_http1(mesh.gateway()).await.send(request.body(empty()).unwrap()).await
}

async fn get(mesh: &Mesh, host: &str, path: &str) -> Answer {
    ask(mesh, Request::get(path).header("host", host)).await
}

fn function(answer: &Answer) -> &str {
    answer.headers.get("x-function").map_or("", |name| name.to_str().unwrap())
}

async fn told(mesh: &Mesh, answer: &Answer) -> Explanation {
    mesh.told(answer.headers["x-request-id"].to_str().unwrap(), 1).await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_specific_rule_of_all_documents_has_the_request() {
    let mesh = three().await;
    let staff = FieldMatch { name: "x-group".into(), value: ValuePattern::Exact("staff".into()) };
    let marked = RouteMatch { headers: vec![staff], ..below("/api") };
    let put = RouteMatch { method: "PUT".into(), ..below("/api") };
    let regex = at(PathPattern::Regex("/[0-9]+".into()));
    attach(
        &mesh,
        &[
            ("shop.example", route("shop/a", vec![to(below("/api"), "one"), to(marked, "two")])),
            ("shop.example", route("shop/b", vec![to(at(PathPattern::Exact("/api".into())), "two"), to(put, "two")])),
            ("*.example", route("shop/c", vec![to(below("/wild"), "one"), to(regex, "one")])),
            ("blog.example", route("blog/d", vec![to(below("/post"), "one")])),
        ],
    );
    let plain = |host, path| (Request::get(path).header("host", host), host, path);
    for ((request, host, path), expected) in [
        (plain("shop.example", "/api"), "two"),
        (plain("shop.example", "/api/1"), "one"),
        (plain("shop.example", "/apis"), "three"),
        (plain("shop.example:80", "/api//x"), "one"),
        (plain("shop.example", "/"), "three"),
        (plain("other.example", "/wild"), "one"),
        (plain("other.example", "/17"), "one"),
        (plain("other.example", "/17a"), "three"),
        (plain("shop.example", "/17"), "three"),
        (plain("blog.example", "/post/1"), "one"),
        (plain("blog.example", "/wild"), ""),
        (plain("elsewhere", "/api"), ""),
        ((Request::get("/api/1").header("host", "shop.example").header("x-group", "staff"), "staff", "/api/1"), "two"),
        ((Request::put("/api/1").header("host", "shop.example"), "PUT", "/api/1"), "two"),
    ] {
        let reply = ask(&mesh, request).await;
        assert_eq!(reply.status, if expected.is_empty() { 404 } else { 200 }, "{host}{path}: {}", reply.text);
        assert_eq!(function(&reply), expected, "{host}{path}");
    }
    let shown = told(&mesh, &get(&mesh, "shop.example", "/api/1").await).await;
    let route = shown.route.unwrap();
    assert_eq!((route.name.as_str(), route.rule.as_str()), ("shop/a", "0"));
    assert_eq!((route.matched.as_str(), route.backend.as_deref()), ("path below /api", Some("shop/one")));
    assert_eq!((route.authority, route.path), (None, None));
    // Without the documents, there is only what functions expose.
    publish(&mesh, &GatewayRoutes::default());
    assert_eq!(function(&get(&mesh, "shop.example", "/api/1").await), "three");
    assert_eq!(function(&get(&mesh, "blog.example", "/post/1").await), "three");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_with_a_more_specific_host_hides_the_routes_of_others() {
    let mesh = three().await;
    let port = mesh.gateway().port();
    let listener = |name: &str, port, host: Option<&str>| RouteListener {
        name: format!("shop/edge/{name}"),
        port,
        tls: false,
        host: host.map(str::to_owned),
        opened: false,
        certificates: Vec::new(),
    };
    let attached = |name: &str, listener: &str, hosts: &[&str]| AttachedRoute {
        route: route(&format!("shop/{listener}-{name}"), vec![to(below(&format!("/{name}")), name)]),
        attachments: vec![Attachment {
            listener: format!("shop/edge/{listener}"),
            hosts: hosts.iter().map(ToString::to_string).collect(),
        }],
    };
    let routes = GatewayRoutes {
        streams: Vec::new(),
        listeners: vec![
            listener("all", port, None),
            listener("wild", port, Some("*.example")),
            listener("same", port, Some("*.example")),
            listener("exact", port, Some("shop.example")),
            listener("other", port ^ 1, Some("other.example")),
        ],
        routes: vec![
            attached("one", "all", &["*"]),
            attached("two", "wild", &["*.example"]),
            attached("one", "same", &["a.example"]),
            attached("one", "exact", &["shop.example"]),
            attached("one", "other", &["other.example"]),
        ],
    };
    publish(&mesh, &routes);
    for (host, path, expected) in [
        ("anything", "/one", "one"),
        ("anything", "/two", ""),
        ("other.example", "/two", "two"),
        ("other.example", "/one", "three"),
        ("a.example", "/one", "one"),
        ("a.example", "/two", "two"),
        ("shop.example", "/one", "one"),
        ("shop.example", "/two", "three"),
    ] {
        assert_eq!(function(&get(&mesh, host, path).await), expected, "{host}{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn back_ends_share_requests_by_weight_and_bad_ones_keep_their_share() {
    let mesh = three().await;
    let with = |path: &str, backends: Vec<Backend>| RouteRule { backends, ..to(below(path), "one") };
    let invalid = BackendTarget::Invalid("there is no function shop/gone".to_owned());
    attach(
        &mesh,
        &[(
            "a",
            route(
                "shop/shares",
                vec![
                    with("/half", vec![backend(target("one"), 1), backend(target("two"), 1)]),
                    with("/zero", vec![backend(target("one"), 0), backend(target("two"), 3)]),
                    with("/nothing", vec![backend(target("one"), 0)]),
                    with("/none", vec![]),
                    with("/bad", vec![backend(invalid, 1)]),
                    with("/unknown", vec![backend(target("elsewhere"), 1)]),
                ],
            ),
        )],
    );
    let (mut one, mut two) = (0, 0);
    for _ in 0..64 {
        match function(&get(&mesh, "a", "/half").await) {
            "one" => one += 1,
            "two" => two += 1,
            other => panic!("{other}"),
        }
        assert_eq!(function(&get(&mesh, "a", "/zero").await), "two");
    }
    assert!(one > 0 && two > 0, "{one} {two}");
    for (path, status, reason) in [
        ("/nothing", 500, "weight 0"),
        ("/none", 500, "no back ends"),
        ("/bad", 500, "there is no function shop/gone"),
        ("/unknown", 503, "no instance of this function"),
    ] {
        let reply = get(&mesh, "a", path).await;
        assert_eq!(reply.status, status, "{path}");
        let shown = told(&mesh, &reply).await;
        assert!(shown.response.failure.as_ref().unwrap().contains(reason), "{path}: {shown:?}");
        assert_eq!(shown.route.unwrap().name, "shop/shares");
        assert!(!reply.text.contains("gone"), "clients learn nothing: {}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_judged_and_sent_is_the_rewritten_request() {
    let mesh = three().await;
    let modifier = HeaderModifier {
        set: vec![field("x-set", "new")],
        add: vec![field("x-add", "second")],
        remove: vec!["x-gone".to_owned()],
    };
    let tag = |value: &str| RouteFilter::ResponseHeaders(set("x-answer", value));
    let both = vec![RouteFilter::RequestHeaders(modifier), rewrite(Some("two.example"), prefix("/new")), tag("rule")];
    let mut marked = filtered(to(below("/old"), "two"), both);
    marked.backends[0].filters = vec![RouteFilter::RequestHeaders(set("x-set", "newer")), tag("back end")];
    let admin = filtered(to(below("/hidden"), "two"), vec![rewrite(None, full("/admin"))]);
    let plain = to(below("/admin"), "two");
    attach(&mesh, &[("*", route("shop/rewrite", vec![marked, admin, plain]))]);
    for http2 in [false, true] {
        let request = |path: &str| {
            let uri = if http2 { format!("http://shop.test{path}") } else { path.to_owned() };
            let request = Request::get(uri).header("x-set", "old").header("x-add", "first").header("x-gone", "1");
            let request = if http2 { request } else { request.header("host", "shop.test") };
            request.body(empty()).unwrap()
        };
        let send = async |path: &str| match http2 {
            true => answer(connect_h2(mesh.gateway()).await.send_request(request(path)).await.unwrap()).await,
            false => connect_http1(mesh.gateway()).await.send(request(path)).await,
        };
        let reply = send("/old/a/../b?q=1").await;
        assert_eq!((reply.status, function(&reply)), (200, "two"), "{}", reply.text);
        assert!(reply.text.starts_with("GET /new/b?q=1 HTTP/1.1\n"), "{}", reply.text);
        for line in ["\nhost: two.example\n", "\nx-set: newer\n", "\nx-add: first\n", "\nx-add: second\n"] {
            assert!(reply.text.contains(line), "{line:?} {}", reply.text);
        }
        assert!(!reply.text.contains("x-gone"), "{}", reply.text);
        assert_eq!(reply.headers["x-answer"], "back end");
        let shown = told(&mesh, &reply).await;
        assert_eq!((shown.asked.authority.as_str(), shown.asked.path.as_str()), ("shop.test", "/old/b"));
        let route = shown.route.unwrap();
        assert_eq!((route.authority.as_deref(), route.path.as_deref()), (Some("two.example"), Some("/new/b")));
        // In either order: a decision on one head is not remembered for the other.
        for path in ["/old/admin", "/hidden", "/hidden/x", "/admin", "/hidden"] {
            let expected = if path == "/old/admin" { 200 } else { 403 };
            assert_eq!(send(path).await.status, expected, "{path}");
        }
        assert_eq!(send("/admin/x").await.status, 200, "the rule of the policy is about one path");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_and_preflights_need_no_back_end() {
    let mesh = three().await;
    let redirect = Redirect { scheme: Some("https".into()), host: None, path: prefix("/new"), port: None, status: 301 };
    let moved =
        RouteRule { backends: vec![], ..filtered(to(below("/old"), "one"), vec![RouteFilter::Redirect(redirect)]) };
    let cors = Cors {
        allow_origins: vec!["https://page.example".into()],
        allow_credentials: false,
        allow_methods: vec!["PUT".into()],
        allow_headers: vec!["x-a".into()],
        expose_headers: vec!["x-function".into()],
        max_age: Duration::from_secs(60),
    };
    let shared = filtered(to(below("/shared"), "one"), vec![RouteFilter::Cors(cors)]);
    attach(&mesh, &[("shop.test", route("shop/answers", vec![moved, shared]))]);
    let reply = get(&mesh, "shop.test", "/old/a?b=c").await;
    assert_eq!((reply.status, reply.text.as_str()), (301, ""));
    assert_eq!(reply.headers["location"], "https://shop.test/new/a?b=c");
    assert!(reply.headers.contains_key("x-request-id"));
    assert_eq!(told(&mesh, &reply).await.response.failure, None);
    let browser = |method: Method, origin: &str| {
        let request = Request::builder().method(method.clone()).uri("/shared").header("host", "shop.test");
        let request = request.header("origin", origin);
        if method == Method::OPTIONS { request.header("access-control-request-method", "PUT") } else { request }
    };
    let reply = ask(&mesh, browser(Method::OPTIONS, "https://page.example")).await;
    assert_eq!((reply.status, function(&reply)), (204, ""));
    assert_eq!(reply.headers["access-control-allow-origin"], "https://page.example");
    assert_eq!(reply.headers["access-control-allow-methods"], "PUT");
    let reply = ask(&mesh, browser(Method::OPTIONS, "https://other.example")).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin") && function(&reply).is_empty());
    let reply = ask(&mesh, browser(Method::PUT, "https://page.example")).await;
    assert_eq!((reply.status, function(&reply)), (200, "one"));
    assert_eq!(reply.headers["access-control-allow-origin"], "https://page.example");
    assert_eq!(reply.headers["access-control-expose-headers"], "x-function");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_path_follows_a_rule_only_if_each_reading_does() {
    let mesh = three().await;
    mesh.change(&["two"], |config| config.inbound.targets[0].as_received = true);
    let rules = vec![to(below("/files"), "two"), to(below("/one"), "one")];
    attach(&mesh, &[("*", route("shop/readings", rules))]);
    for (path, status) in
        [("/files/a%2Fb", 200), ("/files/..%2Fone", 400), ("/one/a%2Fb", 400), ("/one/x", 200), ("/files//x", 200)]
    {
        let reply = get(&mesh, "a", path).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text);
    }
    assert!(get(&mesh, "a", "/files/a%2Fb").await.text.starts_with("GET /files/a%2Fb "));
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_and_websockets_follow_routes() {
    let upstream = upstream::h2c(echo).await;
    let mesh = Builder::new()
        .function("calls", AppProtocol::Grpc, upstream.address)
        .config("calls", |config| (config.expose, config.is_routed) = (Vec::new(), true))
        .start();
    let mut grpc = route(
        "shop/calls",
        vec![
            filtered(to(at(PathPattern::Exact("/a.B/C".into())), "calls"), vec![rewrite(None, full("/a.B/D"))]),
            RouteRule { backends: vec![], ..to(below("/a.None"), "calls") },
        ],
    );
    grpc.kind = HttpRouteKind::Grpc;
    attach(&mesh, &[("*", grpc)]);
    let call = async |path: &str| {
        let request = Request::post(format!("http://shop.test{path}")).header("content-type", "application/grpc");
        let sent = connect_h2(mesh.gateway()).await.send_request(request.body(empty()).unwrap()).await;
        answer(sent.unwrap()).await
    };
    let reply = call("/a.B/C").await;
    assert!(reply.text.starts_with("POST http://shop.test/a.B/D HTTP/2.0\n"), "{}", reply.text);
    assert_eq!(call("/a.None/C").await.headers["grpc-status"], "14");
    assert_eq!(call("/a.Other/C").await.headers["grpc-status"], "12");

    let parrot = upstream::http1(websocket::parrot).await;
    let mesh = Builder::new()
        .function("talk", AppProtocol::Http1, parrot.address)
        .config("talk", |config| (config.expose, config.is_routed) = (Vec::new(), true))
        .start();
    attach(
        &mesh,
        &[("*", route("shop/talk", vec![filtered(to(below("/ws"), "talk"), vec![rewrite(None, full("/"))])]))],
    );
    let mut raw = raw::Raw::connect(mesh.gateway()).await;
    raw.send(format!("GET /ws/ HTTP/1.1\r\n{}\r\n", websocket::HANDSHAKE)).await;
    let head = raw.head().await;
    assert_eq!(raw::status(&head), 101, "{head}");
}

/// A stream that a route has let in ends when the route leads elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_exchange_ends_with_its_route() {
    let (feeds, bodies): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
    let bodies = std::sync::Arc::new(std::sync::Mutex::new(bodies));
    let upstream = upstream::http1(move |_| {
        let body = bodies.lock().unwrap().remove(0);
        async move { Response::new(body) }
    })
    .await;
    let mesh = Builder::new()
        .function("one", AppProtocol::Http1, upstream.address)
        .function("two", AppProtocol::Http1, upstream.address)
        .config("one", |config| (config.expose, config.is_routed) = (Vec::new(), true))
        .start();
    let rule = |name: &str, more: Option<RouteFilter>| {
        let filters = std::iter::once(rewrite(Some("b"), full("/b"))).chain(more);
        vec![filtered(to(below("/a"), name), filters.collect())]
    };
    let lead = |kept: Vec<RouteRule>, left: Vec<RouteRule>| {
        attach(&mesh, &[("kept.test", route("shop/kept", kept)), ("left.test", route("shop/left", left))]);
    };
    lead(rule("one", None), rule("one", None));
    let (mut exchanges, mut ids) = (Vec::new(), Vec::new());
    for (host, feed) in ["kept.test", "left.test"].into_iter().zip(&feeds) {
        let request = Request::get("/a").header("host", host).body(empty()).unwrap();
        let mut client = connect_http1(mesh.gateway()).await;
        let response = client.0.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        feed.send(Frame::data(Bytes::from_static(b"still there"))).await.unwrap();
        ids.push(response.headers()["x-request-id"].to_str().unwrap().to_owned());
        exchanges.push((client, response));
    }
    // Another header for the response is no reason to end an exchange.
    lead(rule("one", Some(RouteFilter::ResponseHeaders(set("x-a", "1")))), rule("two", None));
    eventually_async("the exchange to end", || !mesh.node.telemetry.explain(&ids[1]).is_empty()).await;
    let shown = mesh.told(&ids[1], 1).await.remove(0);
    assert!(shown.response.failure.as_ref().unwrap().contains("shop/left does not lead there any more"), "{shown:?}");
    assert_eq!(id("one").to_string(), shown.target.unwrap());
    // The other one began before, so it would have ended before.
    feeds[0].send(Frame::data(Bytes::from_static(b", and there"))).await.unwrap();
    let body = exchanges[0].1.body_mut();
    let mut text = Vec::new();
    while text.len() < "still there, and there".len() {
        text.extend_from_slice(&body.frame().await.expect("it is open").unwrap().into_data().unwrap());
    }
    assert!(mesh.node.telemetry.explain(&ids[0]).is_empty(), "it is open");
}
