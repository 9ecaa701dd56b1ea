//! Exchanges that are open when their permission is withdrawn, their token expires, or their
//! caller's identity ends. The node closes them, and the record gives the reason. All other
//! exchanges go on.

mod removed_functions;

use crate::hops::basic;
use crate::mesh::{Builder, Mesh, id, spiffe};
use crate::raw::{self, Raw, TIMEOUT};
use crate::tokens::{expiring_token, wants_tokens_of};
use crate::upstream::{self, Upstream, answer, channel, connect_h2, empty};
use crate::websocket::{HANDSHAKE, parrot};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use leno_identity::KeyRequest;
use leno_model::{AppProtocol, Expose};
use leno_proxy::RemovedFunctions;
use leno_telemetry::ring::Explanation;
use leno_testkit::eventually_async;
use leno_testkit::keys::TokenKey;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

type Feed = mpsc::Sender<Frame<Bytes>>;

/// An upstream whose responses the test feeds, by path.
#[derive(Clone)]
struct Feeds {
    upstream: Upstream,
    feeds: Arc<Mutex<HashMap<String, Feed>>>,
}

impl Feeds {
    async fn new(protocol: AppProtocol) -> Self {
        let feeds: Arc<Mutex<HashMap<String, Feed>>> = Arc::default();
        let known = feeds.clone();
        let serve = move |request: Request<Incoming>| {
            let (feed, body) = channel();
            known.lock().unwrap().insert(request.uri().path().to_owned(), feed);
            async move { Response::new(body) }
        };
        let upstream = match protocol {
            AppProtocol::Http1 => upstream::http1(serve).await,
            AppProtocol::H2c | AppProtocol::Grpc => upstream::h2c(serve).await,
            AppProtocol::Chain => panic!("a message in memory goes to no socket"),
        };
        Self { upstream, feeds }
    }

    async fn feed(&self, path: &str, text: &'static str) {
        let feed = self.feeds.lock().unwrap()[path].clone();
        feed.send(Frame::data(Bytes::from_static(text.as_bytes()))).await.unwrap();
    }

    /// Ends the response properly.
    fn end(&self, path: &str) {
        self.feeds.lock().unwrap().remove(path).unwrap();
    }
}

/// The functions `web` and `other`, at one upstream.
fn two(upstream: &Upstream, protocol: AppProtocol) -> Builder {
    Builder::new().function("web", protocol, upstream.address).function("other", protocol, upstream.address)
}

/// Begins a response over HTTP/1.1 and waits for its first event.
async fn listen(address: std::net::SocketAddr, head: String, feeds: &Feeds, path: &str) -> Raw {
    let mut raw = Raw::connect(address).await;
    raw.send(head).await;
    assert_eq!(raw::status(&raw.head().await), 200);
    feeds.feed(path, "data: 1\n\n").await;
    raw.until("data: 1\n\n\r\n").await;
    raw
}

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")
}

/// The next frame of a stream, or how it ended.
async fn next(body: &mut Incoming) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    timeout(TIMEOUT, body.frame()).await.expect("nothing came")
}

async fn next_text(body: &mut Incoming) -> String {
    String::from_utf8(next(body).await.unwrap().unwrap().into_data().unwrap().to_vec()).unwrap()
}

/// The code by which the stream was reset.
fn reset(error: &hyper::Error) -> Option<h2::Reason> {
    std::error::Error::source(error)?.downcast_ref::<h2::Error>()?.reason()
}

/// The record of the exchange with this path on this hop, once the exchange is over.
pub(crate) async fn told(mesh: &Mesh, hop: &str, path: &str) -> Explanation {
    let find = || {
        let all = mesh.node.telemetry.ring.latest(100);
        all.into_iter().find(|told| told.hop == hop && told.asked.path == path)
    };
    eventually_async("the record of the exchange", || find().is_some()).await;
    find().unwrap()
}

pub(crate) fn expect_closed(told: &Explanation, policy: &str, words: &str) {
    let judgement = told.judgement.as_ref().unwrap();
    assert_eq!((judgement.verdict.as_str(), judgement.policy.as_deref()), ("deny", Some(policy)), "{told:?}");
    assert_eq!(told.response.flag.as_deref(), Some("UAEX"));
    let failure = told.response.failure.as_deref().unwrap();
    assert!(failure.contains("not permitted any more") && failure.contains(words), "{failure}");
}

pub(crate) fn no_longer_allowed(config: &mut leno_model::FunctionConfig) {
    config.inbound.authorization.retain(|rule| rule.name != "test/allow");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_over_http1_are_cut_off_and_a_short_request_ends() {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let mesh = two(&feeds.upstream, AppProtocol::Http1).start();
    let events = listen(mesh.gateway(), get("/events", "web"), &feeds, "/events").await;
    let unaffected = listen(mesh.gateway(), get("/unaffected", "other"), &feeds, "/unaffected").await;
    let short = listen(mesh.gateway(), get("/short", "web"), &feeds, "/short").await;
    mesh.change(&["web"], no_longer_allowed);
    assert_eq!(
        raw::status(
            &raw::exchange(mesh.gateway(), get("/new", "web").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n"))
                .await
        ),
        403
    );
    feeds.feed("/short", "data: 2\n\n").await;
    feeds.end("/short");
    let mut short = short;
    short.until("data: 2\n\n\r\n0\r\n\r\n").await;
    // The exchange was in flight when its permission was withdrawn, and its record shows the
    // verdict at its beginning.
    let short = told(&mesh, "gateway", "/short").await;
    assert_eq!((short.judgement.unwrap().verdict.as_str(), short.response.flag), ("allow", None));

    let rest = events.rest().await;
    assert!(!rest.contains("0\r\n\r\n"), "it looks complete: {rest:?}");
    let closed = told(&mesh, "gateway", "/events").await;
    expect_closed(&closed, "authorization", "shop/web");
    assert_eq!(closed.response.status, 200);
    let metrics = mesh.metrics();
    let counted = r#"leno_exchanges_closed_total{function="shop/web",direction="inbound",policy="authorization"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");

    let mut unaffected = unaffected;
    feeds.feed("/unaffected", "data: 2\n\n").await;
    unaffected.until("data: 2\n\n\r\n").await;
    drop(unaffected);
    eventually_async("the lease to be given back", || mesh.instances.leased.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_of_a_connection_is_reset_and_another_goes_on() {
    let feeds = Feeds::new(AppProtocol::H2c).await;
    let mesh = two(&feeds.upstream, AppProtocol::H2c).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let mut bodies = Vec::new();
    for (host, path) in [("web", "/a"), ("other", "/b")] {
        let request = Request::get(format!("http://{host}{path}")).body(empty()).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        feeds.feed(path, "one").await;
        assert_eq!(next_text(&mut body).await, "one");
        bodies.push(body);
    }
    mesh.change(&["web"], no_longer_allowed);
    let error = next(&mut bodies[0]).await.unwrap().unwrap_err();
    assert_eq!(reset(&error), Some(h2::Reason::CANCEL), "{error:?}");
    expect_closed(&told(&mesh, "gateway", "/a").await, "authorization", "shop/web");
    feeds.feed("/b", "two").await;
    assert_eq!(next_text(&mut bodies[1]).await, "two");
    feeds.end("/b");
    let rest = bodies.pop().unwrap().collect().await.unwrap();
    assert_eq!(rest.to_bytes(), "");
    let unaffected = told(&mesh, "gateway", "/b").await;
    assert_eq!((unaffected.judgement.unwrap().verdict.as_str(), unaffected.response.flag), ("allow", None));
    assert_eq!(
        answer(client.send_request(Request::get("http://web/").body(empty()).unwrap()).await.unwrap()).await.status,
        403
    );
}

fn grpc(path: &str) -> http::request::Builder {
    Request::post(format!("http://web{path}")).header("content-type", "application/grpc").header("te", "trailers")
}

async fn grpc_status(body: &mut Incoming) -> HeaderMap {
    next(body).await.unwrap().unwrap().into_trailers().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_stream_ends_with_a_status() {
    let feeds = Feeds::new(AppProtocol::Grpc).await;
    let mesh = two(&feeds.upstream, AppProtocol::Grpc).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let (_requests, body) = channel();
    let response = client.send_request(grpc("/s/m").body(body).unwrap()).await.unwrap();
    let mut body = response.into_body();
    feeds.feed("/s/m", "one").await;
    assert_eq!(next_text(&mut body).await, "one");
    mesh.change(&["web"], no_longer_allowed);
    let trailers = grpc_status(&mut body).await;
    assert_eq!(
        (&trailers["grpc-status"], &trailers["grpc-message"]),
        (&HeaderValue::from_static("7"), &HeaderValue::from_static("not permitted any more"))
    );
    let closed = told(&mesh, "gateway", "/s/m").await;
    expect_closed(&closed, "authorization", "shop/web");
    assert_eq!(closed.response.grpc_status, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_token_has_expired() {
    let feeds = Feeds::new(AppProtocol::Grpc).await;
    let key = TokenKey::default();
    let builder = Builder::new().function("web", AppProtocol::Grpc, feeds.upstream.address);
    let mesh = builder.config("web", |config| wants_tokens_of(config, &key)).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let mut streams = Vec::new();
    for (path, seconds) in [("/s/short", 2), ("/s/long", 3600)] {
        let token = format!("Bearer {}", expiring_token(&key, seconds));
        let request = grpc(path).header("authorization", token).body(empty()).unwrap();
        let mut body = client.send_request(request).await.unwrap().into_body();
        feeds.feed(path, "one").await;
        assert_eq!(next_text(&mut body).await, "one");
        streams.push(body);
    }
    assert_eq!(grpc_status(&mut streams[0]).await["grpc-status"], "16");
    let closed = told(&mesh, "gateway", "/s/short").await;
    expect_closed(&closed, "authentication", "exp: the token has expired");
    assert_eq!(closed.judgement.unwrap().rule, "p/authentication/login");
    feeds.feed("/s/long", "two").await;
    assert_eq!(next_text(&mut streams[1]).await, "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_are_closed_by_either_side() {
    let upstream = upstream::http1(parrot).await;
    // The callee withdraws its permission, or the caller's permission to call is withdrawn.
    tokio::join!(
        websocket_is_closed(&upstream, false, true),
        websocket_is_closed(&upstream, false, false),
        websocket_is_closed(&upstream, true, true),
        websocket_is_closed(&upstream, true, false),
    );
}

async fn websocket_is_closed(upstream: &Upstream, mtls: bool, callee: bool) {
    let builder = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("callee", AppProtocol::Http1, upstream.address)
        .call("caller", "callee");
    let mesh = if mtls { builder.mtls().start() } else { builder.start() };
    let field = basic(&mesh.mint("caller"));
    let mut raw = Raw::connect(mesh.outbound()).await;
    raw.send(format!("GET http://callee/chat HTTP/1.1\r\n{HANDSHAKE}proxy-authorization: {field}\r\n\r\n")).await;
    assert_eq!(raw::status(&raw.head().await), 101);
    raw.until("hello ").await;
    let (hop, policy) = match callee {
        true => {
            mesh.change(&["callee"], no_longer_allowed);
            ("inbound", "authorization")
        }
        false => {
            mesh.change(&["caller"], |config| {
                config.callees.clear();
                config.outbound.targets.clear();
            });
            ("outbound", "sidecar")
        }
    };
    // The test sends text in place of frames, and gets it back. The parrot's own words look
    // like the beginning of a frame, and its last bytes may end that frame or not.
    raw.send("still open").await;
    raw.until("still open").await;
    let rest = raw.rest().await;
    assert!(rest.is_empty(), "it is closed: {rest:?}");
    let closed = told(&mesh, hop, "/chat").await;
    expect_closed(&closed, policy, if callee { "shop/callee" } else { "shop/caller" });
    assert!(closed.response.upgraded);
    eventually_async("the lease to be given back", || mesh.instances.leased.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_an_instance_that_has_ended_are_closed() {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let builder = Builder::new()
        .function("caller", AppProtocol::Http1, feeds.upstream.address)
        .function("callee", AppProtocol::Http1, feeds.upstream.address)
        .call("caller", "callee");
    let mesh = builder.start();
    let head = |field: &str, path: &str| {
        format!("GET http://callee{path} HTTP/1.1\r\nhost: callee\r\nproxy-authorization: {field}\r\n\r\n")
    };
    let first = basic(&mesh.mint("caller"));
    let second = mesh.node.credentials.mint(&id("caller"), "caller-2").unwrap();
    mesh.node.credentials.started("caller-2", Box::new(|_, _| Ok(())));
    let revoked = listen(mesh.outbound(), head(&first, "/first"), &feeds, "/first").await;
    let mut other = listen(mesh.outbound(), head(&basic(&second), "/second"), &feeds, "/second").await;
    mesh.node.credentials.revoke("caller-1");
    assert!(!revoked.rest().await.contains("0\r\n\r\n"));
    expect_closed(&told(&mesh, "outbound", "/first").await, "mutualTls", "the instance that called has ended");
    feeds.feed("/second", "data: 2\n\n").await;
    other.until("data: 2\n\n\r\n").await;
}

/// A frame of text.
fn text_frame(text: &str) -> Vec<u8> {
    [&[0x81, text.len() as u8], text.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_is_told_by_its_last_frame() {
    let last = Arc::new(Mutex::new(Vec::new()));
    let heard = last.clone();
    // Sends one frame, and then the first half of another one on request.
    let address = raw::server(move |mut raw| {
        let heard = heard.clone();
        async move {
            let head = raw.head().await;
            raw.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
            raw.send(text_frame("hello")).await;
            if head.contains("/half") {
                raw.send(&text_frame("hello")[..3]).await;
            }
            let mut all = Vec::new();
            let _ = raw.0.read_to_end(&mut all).await;
            heard.lock().unwrap().push((head.contains("/half"), all));
        }
    })
    .await;
    let mesh = Builder::new().function("callee", AppProtocol::Http1, address).start();
    let mut clients = Vec::new();
    for path in ["/whole", "/half"] {
        let mut raw = Raw::connect(mesh.gateway()).await;
        raw.send(format!("GET {path} HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
        assert_eq!(raw::status(&raw.head().await), 101);
        let mut sent =
            [text_frame("hello"), text_frame("hello")[..if path == "/half" { 3 } else { 0 }].to_vec()].concat();
        let expected = sent.clone();
        timeout(TIMEOUT, raw.0.read_exact(&mut sent)).await.unwrap().unwrap();
        assert_eq!(sent, expected);
        clients.push(raw);
    }
    mesh.change(&["callee"], no_longer_allowed);
    let mut rest = Vec::new();
    for mut client in clients {
        let mut all = Vec::new();
        timeout(TIMEOUT, client.0.read_to_end(&mut all)).await.unwrap().unwrap();
        rest.push(all);
    }
    let close = |mask: &[u8]| {
        [&[0x88, 24 | if mask.is_empty() { 0 } else { 0x80 }], mask, b"\x03\xf0not permitted any more"].concat()
    };
    assert_eq!(rest, [close(&[]), vec![]]);
    eventually_async("the record of the exchange", || last.lock().unwrap().len() == 2).await;
    assert!(last.lock().unwrap().iter().all(|(_, heard)| *heard == close(&[0; 4])), "{last:?}");
}

/// Between nodes, the callee's node and the caller's node each close an exchange that they no
/// longer permit.
#[tokio::test(flavor = "multi_thread")]
async fn between_nodes_either_node_closes() {
    tokio::join!(one_of_two_nodes_closes(true), one_of_two_nodes_closes(false));
}

async fn one_of_two_nodes_closes(callee: bool) {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let there = Builder::new().function("callee", AppProtocol::Http1, feeds.upstream.address).start();
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let here = Builder::new().function("caller", AppProtocol::Http1, nowhere).call("caller", "callee").with(&there);
    let here = here.start();
    here.knows("callee", &[(&there, 1)]);
    let field = basic(&here.mint("caller"));
    let head = format!("GET http://callee/e HTTP/1.1\r\nhost: callee\r\nproxy-authorization: {field}\r\n\r\n");
    let events = listen(here.outbound(), head, &feeds, "/e").await;
    match callee {
        true => there.change(&["callee"], no_longer_allowed),
        false => here.change(&["caller"], |config| {
            config.callees.clear();
            config.outbound.targets.clear();
        }),
    }
    assert!(!events.rest().await.contains("0\r\n\r\n"));
    match callee {
        true => expect_closed(&told(&there, "inbound", "/e").await, "authorization", "shop/callee"),
        false => expect_closed(&told(&here, "outbound", "/e").await, "sidecar", "shop/caller"),
    }
    eventually_async("the lease to be given back", || there.instances.leased.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_the_certificate_of_its_caller() {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let there = Builder::new().function("callee", AppProtocol::Http1, feeds.upstream.address).start();
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let here = Builder::new().function("caller", AppProtocol::Http1, nowhere).with(&there).start();
    let identity = spiffe("caller");
    let request = KeyRequest::new(&identity).unwrap();
    let chain = here.authority.sign(request.csr(), &identity, Duration::from_secs(3)).unwrap();
    here.node.svids.install(request, chain).unwrap();
    let mut client = there.as_sidecar(&here, &identity, "callee").await;
    let request = Request::get("http://callee/e").body(empty()).unwrap();
    let mut body = client.send_request(request).await.unwrap().into_body();
    feeds.feed("/e", "one").await;
    assert_eq!(next_text(&mut body).await, "one");
    assert!(next(&mut body).await.unwrap().is_err());
    expect_closed(&told(&there, "inbound", "/e").await, "mutualTls", "the caller's certificate has expired");
}

/// Even the caller's node ends the stream, because the callee's node may have been revoked.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_the_certificate_of_its_callee() {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let there = Builder::new().function("callee", AppProtocol::Http1, feeds.upstream.address).start();
    let identity = spiffe("callee");
    let request = KeyRequest::new(&identity).unwrap();
    let chain = there.authority.sign(request.csr(), &identity, Duration::from_secs(3)).unwrap();
    there.node.svids.install(request, chain).unwrap();
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let here =
        Builder::new().function("caller", AppProtocol::Http1, nowhere).call("caller", "callee").with(&there).start();
    here.knows("callee", &[(&there, 1)]);
    let field = basic(&here.mint("caller"));
    let head = format!("GET http://callee/e HTTP/1.1\r\nhost: callee\r\nproxy-authorization: {field}\r\n\r\n");
    let events = listen(here.outbound(), head, &feeds, "/e").await;
    assert!(!events.rest().await.contains("0\r\n\r\n"));
    expect_closed(&told(&here, "outbound", "/e").await, "mutualTls", "the callee's sidecar has expired");
}

/// A response that has not begun can still be replaced by a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_its_response_is_refused() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let counted = bodies.clone();
    let upstream = upstream::h2c(move |request: Request<Incoming>| {
        let counted = counted.clone();
        async move {
            // A call that streams to the server only.
            let complete = request.into_body().collect().await.is_ok();
            counted.fetch_add(if complete { 100 } else { 1 }, Ordering::SeqCst);
            Response::new(empty())
        }
    })
    .await;
    let mesh = two(&upstream, AppProtocol::Grpc).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let (requests, body) = channel();
    let sent = tokio::spawn(client.send_request(grpc("/s/m").body(body).unwrap()));
    requests.send(Frame::data(Bytes::from_static(b"one"))).await.unwrap();
    eventually_async("the requests to arrive upstream", || upstream.requests() == 1).await;
    mesh.change(&["web"], no_longer_allowed);
    let response = timeout(TIMEOUT, sent).await.unwrap().unwrap().unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &HeaderValue::from_static("7")));
    expect_closed(&told(&mesh, "gateway", "/s/m").await, "authorization", "shop/web");
    eventually_async("the body to arrive", || bodies.load(Ordering::SeqCst) == 1).await;
}

/// Removes a function. Its exchanges may go on for the time `limit`.
pub(crate) fn remove(mesh: &Mesh, name: &str, limit: Duration) {
    let before = mesh.node.snapshot.load_full();
    let entry = before.functions.get(&id(name)).unwrap().clone();
    mesh.node.set_removed(RemovedFunctions::new([(entry, Instant::now() + limit)]));
    let mut change = before.change();
    change.remove(&id(name));
    mesh.node.publish(Arc::new(change.finish()));
}

/// When a function is no longer exposed, the node closes exchanges that came in there.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_exposed_no_more_is_closed() {
    let feeds = Feeds::new(AppProtocol::Http1).await;
    let mesh = two(&feeds.upstream, AppProtocol::Http1).start();
    let events = listen(mesh.gateway(), get("/events", "other"), &feeds, "/events").await;
    mesh.change(&["other"], |config| config.expose = vec![Expose { hosts: vec!["*.else".into()], path: "/".into() }]);
    assert!(!events.rest().await.contains("0\r\n\r\n"));
    expect_closed(&told(&mesh, "gateway", "/events").await, "sidecar", "nothing is exposed");
}

/// A client that does not read cannot keep its exchange open, and its further data does not reach
/// the function.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_is_cut_off() {
    let upstream = upstream::http1(|_| async {
        let (sender, body) = channel();
        tokio::spawn(async move { while sender.send(Frame::data(Bytes::from(vec![b'x'; 65536]))).await.is_ok() {} });
        Response::new(body)
    })
    .await;
    let mesh = two(&upstream, AppProtocol::Http1).start();
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(get("/flood", "web")).await;
    assert_eq!(raw::status(&raw.head().await), 200);
    eventually_async("the lease of an instance", || mesh.instances.leased.load(Ordering::Relaxed) == 1).await;
    mesh.change(&["web"], no_longer_allowed);
    eventually_async("the lease to be given back", || mesh.instances.leased.load(Ordering::Relaxed) == 0).await;
    expect_closed(&told(&mesh, "gateway", "/flood").await, "authorization", "shop/web");
    let mut left = Vec::new();
    let _ = timeout(TIMEOUT, raw.0.read_to_end(&mut left)).await.expect("it is still open");
}

/// Over HTTP/2, too, further data of such a client does not arrive.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sends_that_reads_nothing_does_not_arrive() {
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = ended.clone();
    let upstream = upstream::h2c(move |request: Request<Incoming>| {
        let counted = counted.clone();
        let (sender, body) = channel();
        tokio::spawn(async move {
            let mut requests = request.into_body();
            while let Some(Ok(_)) = requests.frame().await {}
            counted.fetch_add(1, Ordering::SeqCst);
        });
        tokio::spawn(async move { while sender.send(Frame::data(Bytes::from(vec![b'x'; 65536]))).await.is_ok() {} });
        async move { Response::new(body) }
    })
    .await;
    let mesh = two(&upstream, AppProtocol::H2c).start();
    let mut client = connect_h2(mesh.gateway()).await;
    let (requests, body) = channel();
    let request = Request::post("http://web/bidi").body(body).unwrap();
    let _unread = client.send_request(request).await.unwrap();
    mesh.change(&["web"], no_longer_allowed);
    let sending = async {
        while ended.load(Ordering::SeqCst) == 0 {
            let _ = requests.send(Frame::data(Bytes::from_static(b"x"))).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, sending).await.expect("what it sends still arrives");
}
