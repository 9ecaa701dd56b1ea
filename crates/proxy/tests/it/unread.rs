//! Heads that the HTTP libraries refuse by themselves: the node answers them with a reason, and
//! records and counts them like every other refusal.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, echo};
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::time::Duration;

async fn mesh() -> (Mesh, Upstream) {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("web", AppProtocol::Http1, upstream.address)
        .call("caller", "web")
        .start();
    (mesh, upstream)
}

/// The answer's JSON.
fn body(reply: &str) -> serde_json::Value {
    let body = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {reply:?}")).1;
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {reply:?}"))
}

/// Checks that an answer gives the reason, and that its record and the metrics agree.
async fn expect_refusal(mesh: &Mesh, reply: &str, status: u16, reason: &str, path: &str) {
    assert_eq!(raw::status(reply), status, "{reply}");
    let (body, head) = (body(reply), reply.to_ascii_lowercase());
    assert!(body["error"].as_str().unwrap().contains(reason), "{reason}: {body}");
    assert_eq!(body["status"], status);
    let id = body["requestId"].as_str().unwrap();
    assert!(head.contains(&format!("x-request-id: {id}\r\n")) && head.contains("connection: close\r\n"), "{head}");
    let told = mesh.told(id, 1).await.remove(0);
    assert_eq!(told.response.status, status, "{told:?}");
    let flag = if status == 408 { "SI" } else { "DPE" };
    assert_eq!(told.response.flag.as_deref(), Some(flag), "{told:?}");
    assert!(told.response.failure.as_deref().unwrap().contains(reason), "{told:?}");
    assert_eq!(told.asked.path, path, "{told:?}");
    let metrics = mesh.metrics();
    let counted = metrics.lines().any(|line| {
        line.starts_with("istio_requests_total{")
            && line.contains(&format!("response_code=\"{status}\""))
            && line.contains(&format!("response_flags=\"{flag}\""))
    });
    assert!(counted, "{metrics}");
}

const LINE: &str = "request line";
const NAME: &str = "field name";
const VALUE: &str = "field value";
const CHARACTER: &str = "request target has a character";
const LENGTH: &str = "Content-Length";
const FRAMING: &str = "Transfer-Encoding";

#[tokio::test(flavor = "multi_thread")]
async fn the_parsers_refusals_have_reasons_and_records() {
    let (mesh, upstream) = mesh().await;
    let many: String = (0..60).map(|number| format!("x-{number}: 1\r\n")).collect();
    let large = format!("GET /large HTTP/1.1\r\nhost: web\r\nx: {}\r\n\r\n", "a".repeat(20 * 1024));
    let huge = format!("GET /large HTTP/1.1\r\nhost: web\r\nx: {}\r\n\r\n", "a".repeat(90 * 1024));
    let attempts: &[(u16, &str, &str, &str)] = &[
        (400, LINE, "nonsense\r\n\r\n", ""),
        (400, LINE, "\u{80}\u{3}\u{1}nonsense\r\n\r\n", ""),
        (400, LINE, "GET\r\n\r\n", ""),
        (400, LINE, "GET  /two HTTP/1.1\r\nhost: web\r\n\r\n", ""),
        (400, LINE, "GET /a b HTTP/1.1\r\nhost: web\r\n\r\n", "/a"),
        (400, LINE, "GET /a http/1.1\r\nhost: web\r\n\r\n", "/a"),
        (400, LINE, "G\"T /a HTTP/1.1\r\nhost: web\r\n\r\n", "/a"),
        (505, "version", "GET /a HTTP/1.2\r\nhost: web\r\n\r\n", "/a"),
        (505, "version", "GET /a HTTP/3.0\r\nhost: web\r\n\r\n", "/a"),
        (505, "version", "GET /a HTTP/2\r\nhost: web\r\n\r\n", "/a"),
        (400, CHARACTER, "GET /a#b HTTP/1.1\r\nhost: web\r\n\r\n", "/a"),
        (400, CHARACTER, "GET /a\u{7f} HTTP/1.1\r\nhost: web\r\n\r\n", "/a\u{7f}"),
        (400, NAME, "GET /a?b HTTP/1.1\r\nhost : web\r\n\r\n", "/a"),
        (400, NAME, "GET /a HTTP/1.1\r\n host: web\r\n\r\n", "/a"),
        (400, NAME, "GET /a HTTP/1.1\r\nhost: web\r\n: x\r\n\r\n", "/a"),
        (400, NAME, "GET /a HTTP/1.1\r\nhost: web\r\nx\"y: 1\r\n\r\n", "/a"),
        (400, NAME, "GET /a HTTP/1.1\r\nhost: web\r\nnonsense\r\n\r\n", "/a"),
        (400, NAME, "GET /a HTTP/1.1\r\nhost: web\r\nx: 1\r\n folded\r\n\r\n", "/a"),
        (400, VALUE, "GET /a HTTP/1.1\r\nhost: web\r\nx: 1\x002\r\n\r\n", "/a"),
        (400, VALUE, "GET /a HTTP/1.1\r\nhost: web\r\nx: 1\x7f\r\n\r\n", "/a"),
        (400, VALUE, "GET /a HTTP/1.1\r\nhost: web\r\nx: 1\ry: 2\r\n\r\n", "/a"),
        (400, LENGTH, "POST /a HTTP/1.1\r\nhost: web\r\ncontent-length: +1\r\n\r\na", "/a"),
        (400, LENGTH, "POST /a HTTP/1.1\r\nhost: web\r\ncontent-length: 1, 1\r\n\r\na", "/a"),
        (400, LENGTH, "POST /a HTTP/1.1\r\nhost: web\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", "/a"),
        (400, LENGTH, "POST /a HTTP/1.1\r\nhost: web\r\ncontent-length: 18446744073709551617\r\n\r\na", "/a"),
        (400, FRAMING, "POST /a HTTP/1.1\r\nhost: web\r\ntransfer-encoding: gzip\r\n\r\n", "/a"),
        (400, FRAMING, "POST /a HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "/a"),
        (400, FRAMING, "POST /a HTTP/1.0\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "/a"),
        (431, "too many header fields", &format!("GET /a HTTP/1.1\r\nhost: web\r\n{many}\r\n"), "/a"),
        (431, "limits.headBytes", &large, "/large"),
        (431, "limits.headBytes", &huge, "/large"),
    ];
    let caller = mesh.mint("caller");
    for (status, reason, bytes, path) in attempts {
        for at_once in [true, false] {
            let mut raw = Raw::connect(mesh.gateway()).await;
            match at_once {
                true => raw.send(bytes).await,
                false => {
                    let (begin, end) = bytes.split_at(bytes.len() - 1);
                    raw.send(begin).await;
                    raw.send(end).await;
                }
            }
            expect_refusal(&mesh, &raw.rest().await, *status, reason, path).await;
        }
        // A connection that has carried a request, so that the node knows its caller.
        let mut raw = Raw::connect(mesh.outbound()).await;
        let credential = basic(&caller);
        raw.send(format!("GET http://web/ HTTP/1.1\r\nhost: web\r\nproxy-authorization: {credential}\r\n\r\n{bytes}"))
            .await;
        assert_eq!(raw::status(&raw.head().await), 200);
        raw.rest_of_body().await;
        let reply = raw.rest().await;
        expect_refusal(&mesh, &reply, *status, reason, path).await;
        let told = mesh.told(body(&reply)["requestId"].as_str().unwrap(), 1).await.remove(0);
        assert_eq!(told.peer.identity.as_deref(), Some("spiffe://test.example/ns/shop/sa/caller"), "{told:?}");
    }
    assert_eq!(upstream.requests(), attempts.len(), "nothing of it came through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_target_has_its_own_status() {
    let (mesh, _upstream) = {
        let upstream = upstream::http1(echo).await;
        let mesh = Builder::new()
            .function("web", AppProtocol::Http1, upstream.address)
            .limits(|limits| limits.head_bytes = 256 * 1024)
            .start();
        (mesh, upstream)
    };
    let path = format!("/{}", "a".repeat(70 * 1024));
    let reply = raw::exchange(mesh.gateway(), format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n")).await;
    assert_eq!(raw::status(&reply), 414, "{reply}");
    assert!(body(&reply)["error"].as_str().unwrap().contains("too long"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_head_is_answered_without_content() {
    let (mesh, _upstream) = mesh().await;
    let reply = raw::exchange(mesh.gateway(), "HEAD /a HTTP/1.1\r\nhost : web\r\n\r\n").await;
    assert!(raw::status(&reply) == 400 && reply.ends_with("\r\n\r\n"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_under_way_come_first() {
    let (mesh, _upstream) = mesh().await;
    for length in [0, 100_000] {
        let sound =
            format!("POST /sound HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n{}", "a".repeat(length));
        let mut raw = Raw::connect(mesh.gateway()).await;
        raw.send(format!("{sound}{sound}GET /a\r\n\r\n")).await;
        let reply = raw.rest().await;
        assert_eq!(reply.matches("HTTP/1.1 200 OK").count(), 2, "{reply}");
        let last = &reply[reply.rfind("HTTP/1.1 400").unwrap()..];
        expect_refusal(&mesh, last, 400, LINE, "/a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_never_end_are_answered() {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::Http1, upstream.address)
        .limits(|limits| limits.head_timeout = Duration::from_millis(200))
        .start();
    let reply = raw::exchange(mesh.gateway(), "GET /slow HTTP/1.1\r\nhost: web\r\nx: ").await;
    expect_refusal(&mesh, &reply, 408, "head of its request", "/slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_on_a_plain_port_is_answered() {
    let (mesh, _upstream) = mesh().await;
    for listener in [mesh.gateway(), mesh.outbound()] {
        let reply = raw::exchange(listener, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
        expect_refusal(&mesh, &reply, 400, "TLS on a port for plain HTTP", "").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_on_a_tls_port_is_answered() {
    let (mesh, _upstream) = mesh().await;
    let reply = raw::exchange(mesh.inbound(), "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    expect_refusal(&mesh, &reply, 400, "plain HTTP on a port for TLS", "").await;
}

/// curl, Go, nginx and Envoy pass all of these, and all read them alike.
#[tokio::test(flavor = "multi_thread")]
async fn characters_that_every_server_takes_are_passed() {
    let (mesh, _upstream) = mesh().await;
    for (target, seen) in [
        ("/?q=\"a\"", "/?q=%22a%22"),
        ("/?q=<a>`b`", "/?q=%3Ca%3E%60b%60"),
        ("/<a>`", "/%3Ca%3E%60"),
        ("/?a={b}|c^d\\e[f]", "/?a={b}|c^d\\e[f]"),
        ("/?%zz&%", "/?%zz&%"),
    ] {
        for step in [1000, 7, 1] {
            let request = format!("GET {target} HTTP/1.1\r\nhost: web\r\nx: \"<>`{{}}|^\r\nconnection: close\r\n\r\n");
            let mut raw = Raw::connect(mesh.gateway()).await;
            for piece in request.as_bytes().chunks(step) {
                raw.send(piece).await;
            }
            let reply = raw.rest().await;
            assert!(raw::status(&reply) == 200, "{target}: {reply}");
            assert!(reply.contains(&format!("GET {seen} HTTP/1.1")), "{target}: {reply}");
            assert!(reply.contains("x: \"<>`{}|^"), "{target}: {reply}");
        }
    }
}

/// Records of refusals are bounded like all others: a flood costs a client its connections, and the
/// node one record for each.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_refusals_is_counted_as_one_series() {
    let (mesh, _upstream) = mesh().await;
    for number in 0..50 {
        raw::exchange(mesh.gateway(), format!("GET /{number} HTTP/9.9\r\nhost: h{number}\r\n\r\n")).await;
    }
    let series = || mesh.metrics().lines().filter(|line| line.starts_with("istio_requests_total{")).count();
    eventually_async("the metric", || mesh.metrics().contains("response_code=\"505\"")).await;
    assert_eq!(series(), 1, "{}", mesh.metrics());
}

/// If the parser refuses a function's answer, the response has a status, a flag and a reason, like
/// a refusal by the proxy itself.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_no_http_are_protocol_errors() {
    for answer in [
        "nonsense\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx : 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: 1\x002\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\na",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ] {
        let address = raw::server(move |mut raw| async move {
            raw.head().await;
            raw.send(answer).await;
        })
        .await;
        for hop in [false, true] {
            let builder = Builder::new()
                .function("caller", AppProtocol::Http1, address)
                .function("web", AppProtocol::Http1, address)
                .call("caller", "web");
            let mesh = if hop { builder.mtls().start() } else { builder.start() };
            let credential = basic(&mesh.mint("caller"));
            let reply = raw::exchange(
                mesh.outbound(),
                format!("GET http://web/ HTTP/1.1\r\nproxy-authorization: {credential}\r\nhost: web\r\nconnection: close\r\n\r\n"),
            )
            .await;
            assert_eq!(raw::status(&reply), 502, "{answer:?}: {reply}");
            let id = body(&reply)["requestId"].as_str().unwrap().to_owned();
            for told in mesh.told(&id, 2).await {
                assert_eq!(told.response.flag.as_deref(), Some("UPE"), "{answer:?} {hop}: {told:?}");
            }
        }
    }
}
