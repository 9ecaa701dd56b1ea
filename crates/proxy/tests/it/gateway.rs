//! Routes, refusals, and the fields in which the gateway describes the client.

use crate::mesh::{Builder, Mesh, id};
use crate::raw;
use crate::upstream::{self, answer, connect_h2, connect_http1, echo, empty, get};
use http::Request;
use leno_model::{AppProtocol, Expose};
use leno_policy::spec::{Issuer, TokenSource};
use leno_testkit::eventually_async;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_its_instance_and_comes_back() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let reply = get(mesh.gateway(), "/hello?x=1").await;
    assert_eq!(reply.status, 200);
    assert!(reply.text.starts_with("GET /hello?x=1 HTTP/1.1\n"), "{}", reply.text);
    assert!(reply.text.contains("\nx-forwarded-for: 127.0.0.1\n"), "{}", reply.text);
    assert!(reply.text.contains("\nx-forwarded-proto: http\n"), "{}", reply.text);
    let request_id = reply.headers["x-request-id"].to_str().unwrap();
    assert_eq!(request_id.len(), 36);
    assert!(reply.text.contains(&format!("\nx-request-id: {request_id}\n")), "{}", reply.text);
    assert_eq!(mesh.instances.leased.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_used_again_on_both_sides() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let mut client = connect_http1(mesh.gateway()).await;
    for _ in 0..20 {
        let request = Request::post("/").header("host", "web").body(upstream::full("hello")).unwrap();
        assert_eq!(client.send(request).await.status, 200);
    }
    assert_eq!((upstream.requests(), upstream.connections()), (20, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn routes() {
    let upstream = upstream::http1(echo).await;
    let expose = |host: &str, path: &str| Expose { hosts: vec![host.into()], path: path.into() };
    let mesh = Builder::new()
        .function("any", AppProtocol::Http1, upstream.address)
        .function("api", AppProtocol::Http1, upstream.address)
        .function("admin", AppProtocol::Http1, upstream.address)
        .function("suffix", AppProtocol::Http1, upstream.address)
        .config("any", |config| config.expose = vec![expose("open.example", "/")])
        .config("api", |config| config.expose = vec![expose("Shop.example", "/api"), expose("shop.example", "/v1/")])
        .config("admin", |config| config.expose = vec![expose("shop.example", "/api/admin")])
        .config("suffix", |config| config.expose = vec![expose("*.example", "/")])
        .start();
    let mut client = connect_http1(mesh.gateway()).await;
    for (host, path, function) in [
        ("shop.example", "/api", Some("api")),
        ("SHOP.example:80", "/api/x?y", Some("api")),
        ("shop.example", "/apix", Some("suffix")),
        ("shop.example", "/v1", Some("api")),
        ("shop.example", "/api/admin/x", Some("admin")),
        ("shop.example", "/api//admin/x", Some("admin")),
        ("shop.example", "/api/x/../admin/x", Some("admin")),
        ("shop.example", "/api/%61dmin", Some("admin")),
        ("shop.example", "/other", Some("suffix")),
        ("a.b.example", "/", Some("suffix")),
        ("example", "/", None),
        ("open.example", "/", Some("any")),
        ("elsewhere", "/", None),
    ] {
        let request = Request::get(path).header("host", host).body(empty()).unwrap();
        let reply = client.send(request).await;
        let status = if function.is_some() { 200 } else { 404 };
        assert_eq!(reply.status, status, "{host} {path}");
        let request_id = reply.headers["x-request-id"].to_str().unwrap();
        let told = mesh.told(request_id, 1).await;
        let target = told.first().and_then(|explanation| explanation.target.clone());
        assert_eq!(target, function.map(|name| id(name).to_string()), "{host} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_asks_for_no_instance_and_learns_nothing() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let request = Request::get("/").header("host", "web").header("x-deny", "1").body(empty()).unwrap();
    let reply = connect_http1(mesh.gateway()).await.send(request).await;
    assert_eq!(reply.status, 403);
    assert_eq!(reply.headers["content-type"], "application/json");
    let request_id = reply.headers["x-request-id"].to_str().unwrap();
    let body: serde_json::Value = serde_json::from_str(&reply.text).unwrap();
    assert_eq!(body, serde_json::json!({ "status": 403, "error": "Forbidden", "requestId": request_id }));
    assert_eq!((mesh.instances.asked.load(Ordering::Relaxed), upstream.connections()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_is_refused_in_its_own_words() {
    let upstream = upstream::h2c(echo).await;
    let mesh = Builder::new().function("web", AppProtocol::Grpc, upstream.address).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let request = |path: &str, host: &str, deny: bool| {
        let request = Request::post(format!("http://{host}{path}")).header("content-type", "application/grpc");
        let request = if deny { request.header("x-deny", "1") } else { request };
        request.body(empty()).unwrap()
    };
    let reply = answer(client.send_request(request("/a.B/C", "web", true)).await.unwrap()).await;
    assert_eq!((reply.status, &reply.headers["grpc-status"], reply.text.as_str()), (200, &"7".parse().unwrap(), ""));
    assert_eq!(reply.headers["content-type"], "application/grpc");
    assert!(reply.headers.contains_key("x-request-id"));
    let reply = answer(client.send_request(request("/a.B/C", "web", false)).await.unwrap()).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text.starts_with("POST http://web/a.B/C HTTP/2.0\n"), "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_cannot_speak_for_the_mesh() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let request = Request::get("/")
        .header("host", "web")
        .header("x-forwarded-client-cert", "URI=spiffe://forged")
        .header("x-leno-protocol", "grpc")
        .header("x-forwarded-for", "203.0.113.9")
        .header("x-real-ip", "203.0.113.9")
        .header("forwarded", "for=203.0.113.9")
        .header("x-request-id", "chosen-by-the-client")
        .header("connection", "x-private")
        .header("x-private", "1")
        .body(empty())
        .unwrap();
    let reply = connect_http1(mesh.gateway()).await.send(request).await;
    for forged in ["forged", "x-leno", "203.0.113", "chosen-by-the-client", "x-private", "connection"] {
        assert!(!reply.text.contains(forged), "{forged}: {}", reply.text);
    }
}

/// CGI and WSGI pass `X_User` and `X-User` to a function as the same variable.
#[tokio::test(flavor = "multi_thread")]
async fn twins_with_underscores_do_not_reach_a_function() {
    let upstream = upstream::http1(echo).await;
    let claim = |name: &str| (vec!["sub".to_owned()], name.to_owned());
    let issuer = Issuer {
        name: "test/issuer".into(),
        issuer: "https://login.example".into(),
        audiences: vec![],
        keys: vec![],
        sources: vec![TokenSource::Query("token".into())],
        clock_skew_ms: 0,
        forward: false,
        required: false,
        require_expiration: false,
        keys_pending: false,
        preflight: false,
        space_delimited_claims: vec![],
        claims_to_headers: vec![claim("x-user"), claim("x_role")],
    };
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .config("web", |config| config.inbound.authentication = vec![issuer])
        .start();
    let names = [
        "X_User",
        "x-user",
        "x-role",
        "X_Role",
        "X_Forwarded_Client_Cert",
        "x_leno_caller",
        "X-Leno_Caller",
        "x_request_id",
        "X_Forwarded-For",
        "Proxy",
    ];
    let fields: String = names.iter().map(|name| format!("{name}: forged\r\n")).collect();
    let request = format!("GET /seen HTTP/1.1\r\nhost: web\r\nX_Other: kept\r\n{fields}connection: close\r\n\r\n");
    let reply = raw::exchange(mesh.gateway(), request).await;
    assert_eq!(raw::status(&reply), 200, "{reply}");
    assert!(!reply.contains("forged") && reply.contains("x_other: kept"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_waits_for_an_instance() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, upstream.address).addresses("web", &[]).start();
    let instances = mesh.instances.clone();
    let waiting = tokio::spawn(get(mesh.gateway(), "/"));
    eventually_async("the request for an instance", || instances.asked.load(Ordering::Relaxed) > 2).await;
    instances.set("web", &[upstream.address]);
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_from_the_configuration_is_gone() {
    let upstream = upstream::http1(echo).await;
    let mesh = Mesh::web(upstream.address);
    let mut client = connect_http1(mesh.gateway()).await;
    let request = || Request::get("/").header("host", "web").body(empty()).unwrap();
    assert_eq!(client.send(request()).await.status, 200);
    let mut change = mesh.node.snapshot.load().change();
    change.remove(&id("web"));
    mesh.node.snapshot.store(Arc::new(change.finish()));
    assert_eq!(client.send(request()).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_named_with_the_remedy() {
    let upstream = upstream::http1(echo).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut builder = Builder::new().function("web", AppProtocol::Http1, upstream.address);
    builder.mesh.outbound = address;
    let error = builder.try_start().err().unwrap().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("configure another port"), "{error}");
}
