//! Calls between two functions of the same node, by local delivery or by mutual TLS. A client sees
//! no difference.

use crate::mesh::{Builder, Mesh, spiffe};
use crate::upstream::{self, Answer, Upstream, channel, connect_h2, connect_http1, echo, empty, full};
use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use leno_model::AppProtocol;
use leno_policy::spec::{Condition, ConditionKey, Matches, Protocol, RetryOn, Source, StringMatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `Basic` credentials for `proxy-authorization`.
pub(crate) fn basic(minted: &leno_proxy::credential::NewCredential) -> String {
    let text = format!("{}:{}", minted.user, minted.secret);
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
}

fn builder(upstream: &Upstream, protocol: AppProtocol, mtls: bool) -> Builder {
    let builder = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("callee", protocol, upstream.address)
        .function("stranger", AppProtocol::Http1, upstream.address)
        .call("caller", "callee")
        .call("stranger", "callee")
        .call("caller", "caller");
    if mtls { builder.mtls() } else { builder }
}

/// A request through the outbound listener, in HTTP/1.1's absolute form.
async fn call(mesh: &Mesh, caller: &str, request: http::request::Builder, body: upstream::Body) -> Answer {
    let request = request.header("host", "callee").header("proxy-authorization", basic(&mesh.mint(caller)));
    connect_http1(mesh.outbound()).await.send(request.body(body).unwrap()).await
}

fn get(path: &str) -> http::request::Builder {
    Request::get(format!("http://callee{path}"))
}

const WAYS: [bool; 2] = [false, true];

/// The record contains the normalised path, because the path as received does not show which path a
/// rule has judged.
#[tokio::test(flavor = "multi_thread")]
async fn the_path_that_was_judged_is_told() {
    let upstream = upstream::http1(echo).await;
    let mesh = builder(&upstream, AppProtocol::Http1, false).start();
    let mut client = connect_http1(mesh.gateway()).await;
    let path = "/x/..//%7Eadmin/./%6Fne?q=1";
    let request = Request::get(path).header("host", "callee").body(empty()).unwrap();
    let gateway = client.send(request).await;
    let request_id = |reply: &upstream::Answer| reply.headers["x-request-id"].to_str().unwrap().to_owned();
    let told = mesh.told(&request_id(&gateway), 1).await;
    assert_eq!(told[0].asked.path, "/~admin/one");
    for marked in [false, true] {
        let request = get(path);
        let request = if marked { request.header("x-deny", "1") } else { request };
        let reply = call(&mesh, "caller", request, empty()).await;
        assert_eq!(reply.status, if marked { 403 } else { 200 });
        let told = mesh.told(&request_id(&reply), 2).await;
        assert!(told.iter().all(|hop| hop.asked.path == "/~admin/one"), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_arrives_the_same_on_both_ways() {
    let mut seen = Vec::new();
    for mtls in WAYS {
        let upstream = upstream::http1(echo).await;
        let mesh = builder(&upstream, AppProtocol::Http1, mtls).start();
        let request = Request::post("http://callee:8080/p?q=1")
            .header("x-request-id", "given-by-the-application")
            .header("x-forwarded-client-cert", "URI=spiffe://forged")
            .header("te", "trailers");
        let reply = call(&mesh, "caller", request, full("hello")).await;
        assert_eq!((reply.status, &reply.headers["x-request-id"]), (200, &"given-by-the-application".parse().unwrap()));
        let expected = format!("x-forwarded-client-cert: By={};URI={}\n", spiffe("callee"), spiffe("caller"));
        assert!(reply.text.contains(&expected), "{}", reply.text);
        assert!(!reply.text.contains("proxy-authorization") && !reply.text.contains("x-leno"), "{}", reply.text);
        let told = mesh.told("given-by-the-application", 2).await;
        let hops: Vec<_> = told.iter().map(|told| (told.hop.as_str(), told.response.status)).collect();
        assert!(hops.contains(&("outbound", 200)) && hops.contains(&("inbound", 200)), "{hops:?}");
        let inbound = told.iter().find(|told| told.hop == "inbound").unwrap();
        assert_eq!(inbound.peer.identity.as_deref(), Some(spiffe("caller").as_str()));
        assert_eq!((inbound.response.bytes_in, inbound.asked.protocol.as_str()), (5, "http1"));
        let mut lines: Vec<_> = reply.text.lines().map(str::to_owned).collect();
        lines.sort();
        seen.push(lines);
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_are_the_same_on_both_ways() {
    for mtls in WAYS {
        let upstream = upstream::http1(echo).await;
        let only_caller = |config: &mut leno_model::FunctionConfig| {
            let allow = config.inbound.authorization.last_mut().unwrap();
            let identities = Matches { any: vec![StringMatch::Exact(spiffe("caller").to_string())], none: vec![] };
            allow.from = vec![Source { identities, ..Source::default() }];
            let quiet = Matches { any: vec![], none: vec![StringMatch::Present] };
            allow.when = vec![Condition { key: ConditionKey::Header("x-loud".into()), values: quiet }];
            config.inbound.sidecar.protocols = vec![Protocol::Http1];
            config.inbound.sidecar.ports = vec![80, 8080];
        };
        let mesh = builder(&upstream, AppProtocol::Http1, mtls).config("callee", only_caller).start();
        let status =
            async |caller: &str, request: http::request::Builder| call(&mesh, caller, request, empty()).await.status;
        assert_eq!(status("caller", get("/")).await, 200);
        assert_eq!(status("caller", Request::get("http://callee.shop:8080/")).await, 200);
        assert_eq!(status("caller", Request::get("http://callee:81/")).await, 403, "port, mtls: {mtls}");
        assert_eq!(status("caller", get("/").header("x-loud", "1")).await, 403);
        assert_eq!(status("caller", get("/").header("x-deny", "1")).await, 403);
        assert_eq!(status("stranger", get("/")).await, 403, "identity, mtls: {mtls}");
        assert_eq!(status("stranger", Request::get("http://caller/")).await, 403, "no callee, mtls: {mtls}");
        assert_eq!(upstream.requests(), 2);
        // If the caller speaks HTTP/2, the policy sees HTTP/2, regardless of the hops between.
        let request = Request::get("http://callee/").header("proxy-authorization", basic(&mesh.mint("caller")));
        let response = connect_h2(mesh.outbound()).await.send_request(request.body(empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 403, "protocol, mtls: {mtls}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_streams_through_both_ways() {
    let service = |request: Request<Incoming>| async move {
        let mut pieces = request.into_body();
        let (feed, body) = channel();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = pieces.frame().await {
                feed.send(Frame::data(frame.into_data().unwrap())).await.unwrap();
            }
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            feed.send(Frame::trailers(trailers)).await.unwrap();
        });
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    };
    for mtls in WAYS {
        let upstream = upstream::h2c(service).await;
        let mesh = builder(&upstream, AppProtocol::Grpc, mtls).start();
        let (feed, body) = channel();
        let request = Request::post("http://callee/a.B/C")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("proxy-authorization", basic(&mesh.mint("caller")))
            .body(body)
            .unwrap();
        let response = connect_h2(mesh.outbound()).await.send_request(request).await.unwrap();
        let mut pieces = response.into_body();
        for round in 0..10u8 {
            feed.send(Frame::data(Bytes::from(vec![round]))).await.unwrap();
            assert_eq!(pieces.frame().await.unwrap().unwrap().into_data().unwrap(), vec![round]);
        }
        drop(feed);
        let trailers = pieces.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_between_sidecars_are_shared() {
    let upstream = upstream::http1(echo).await;
    let mesh = builder(&upstream, AppProtocol::Http1, true).start();
    let minted = mesh.mint("caller");
    let mut client = connect_http1(mesh.outbound()).await;
    for _ in 0..10 {
        let request = get("/").header("host", "callee").header("proxy-authorization", basic(&minted));
        assert_eq!(client.send(request.body(empty()).unwrap()).await.status, 200);
    }
    assert_eq!((upstream.requests(), upstream.connections()), (10, 1));
    assert_eq!(mesh.instances.leased.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_instance_is_tried_again_by_the_caller() {
    for mtls in WAYS {
        let upstream = upstream::http1(echo).await;
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mesh = builder(&upstream, AppProtocol::Http1, mtls)
            .addresses("callee", &[closed, upstream.address])
            .plan("callee", |target| target.retry = Some(crate::mesh::retry(&[RetryOn::ConnectFailure])))
            .start();
        for _ in 0..4 {
            // The request is not idempotent; but no byte of it was sent.
            let reply = call(&mesh, "caller", Request::post("http://callee/"), full("hello")).await;
            assert_eq!(reply.status, 200, "mtls: {mtls}");
            assert!(reply.text.ends_with("hello"));
            assert!(!reply.headers.contains_key("x-leno-failure"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_was_handed_over_and_is_made_again_was_answered() {
    let turn = Arc::new(AtomicUsize::new(0));
    let upstream = upstream::http1(move |_: Request<Incoming>| {
        let status = if turn.fetch_add(1, Ordering::SeqCst) == 0 { 503 } else { 200 };
        async move { Response::builder().status(status).body(full("not empty")).unwrap() }
    })
    .await;
    let mesh = builder(&upstream, AppProtocol::Http1, false)
        .plan("callee", |target| target.retry = Some(crate::mesh::retry(&[RetryOn::GatewayError])))
        .start();
    let reply = call(&mesh, "caller", get("/"), empty()).await;
    assert_eq!(reply.status, 200);
    let request_id = reply.headers["x-request-id"].to_str().unwrap();
    let told = mesh.told(request_id, 3).await;
    let mut statuses: Vec<u16> = told.iter().map(|told| told.response.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
    assert!(told.iter().all(|told| told.response.flag.is_none()), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn local_failures_look_the_same_on_both_ways() {
    for mtls in WAYS {
        let upstream = upstream::http1(echo).await;
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mesh = builder(&upstream, AppProtocol::Http1, mtls).addresses("callee", &[closed]).start();
        let reply = call(&mesh, "caller", get("/"), empty()).await;
        assert_eq!(reply.status, 503, "mtls: {mtls}");
        assert!(!reply.headers.contains_key("x-leno-failure"));
        let request_id = reply.headers["x-request-id"].to_str().unwrap();
        for told in mesh.told(request_id, 2).await {
            assert_eq!(told.response.flag.as_deref(), Some("UF"), "{} mtls: {mtls}", told.hop);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_and_body_passes_both_ways() {
    for mtls in WAYS {
        let upstream = upstream::http1(echo).await;
        let mesh = builder(&upstream, AppProtocol::Http1, mtls).start();
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            for body in ["", "short", &"long".repeat(100_000)] {
                let request = Request::builder().method(method.clone()).uri("http://callee/x");
                let reply = call(&mesh, "caller", request, full(body.to_owned())).await;
                assert!(reply.text.starts_with(&format!("{method} /x HTTP/1.1\n")), "{}", &reply.text[..40]);
                assert!(reply.text.ends_with(&format!("\n\n{body}")), "{method} mtls: {mtls}");
            }
        }
    }
}
