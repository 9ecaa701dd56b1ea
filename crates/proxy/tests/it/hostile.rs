//! Bytes that different parsers read differently. None of them may bring a second request past the
//! policy.

use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, echo};
use leno_model::{AppProtocol, Limits};
use std::fmt::Write;
use std::time::Duration;

/// A server that waits for the rest of a message soon sees the end of the connection.
const SHORT: Duration = Duration::from_millis(500);

async fn mesh() -> (Mesh, Upstream) {
    let upstream = upstream::http1(echo).await;
    let impatient = |limits: &mut Limits| {
        (limits.head_timeout, limits.idle_timeout, limits.request_timeout) = (SHORT, SHORT, SHORT);
    };
    (Builder::new().function("web", AppProtocol::Http1, upstream.address).limits(impatient).start(), upstream)
}

/// Sends the bytes of one attempt. Returns the status of the first answer (0: the connection was
/// just closed), the number of requests that reached the function, and the reply.
async fn attempt(bytes: impl AsRef<[u8]>) -> (u16, usize, String) {
    let (mesh, upstream) = mesh().await;
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(bytes).await;
    let reply = raw.rest().await;
    let status = if reply.is_empty() { 0 } else { raw::status(&reply) };
    (status, upstream.requests(), reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_heads_are_refused() {
    let attempts: &[(&str, &'static [u8])] = &[
        ("no host", b"GET / HTTP/1.1\r\n\r\n"),
        ("two hosts", b"GET / HTTP/1.1\r\nhost: web\r\nhost: web\r\n\r\n"),
        ("host with a path", b"GET / HTTP/1.1\r\nhost: web/x\r\n\r\n"),
        ("host with user information", b"GET / HTTP/1.1\r\nhost: a@web\r\n\r\n"),
        ("space before the colon", b"GET / HTTP/1.1\r\nhost : web\r\n\r\n"),
        ("space before the first field", b"GET / HTTP/1.1\r\n host: web\r\n\r\n"),
        ("obsolete line folding", b"GET / HTTP/1.1\r\nhost: web\r\nx-a: 1\r\n 2\r\n\r\n"),
        ("NUL in a value", b"GET / HTTP/1.1\r\nhost: web\r\nx-a: 1\x002\r\n\r\n"),
        ("NUL in a name", b"GET / HTTP/1.1\r\nhost: web\r\nx\0a: 1\r\n\r\n"),
        ("CR in a value", b"GET / HTTP/1.1\r\nhost: web\r\nx-a: 1\rx-b: 2\r\n\r\n"),
        ("space in a name", b"GET / HTTP/1.1\r\nhost: web\r\nx a: 1\r\n\r\n"),
        ("no colon", b"GET / HTTP/1.1\r\nhost: web\r\nnonsense\r\n\r\n"),
        ("empty name", b"GET / HTTP/1.1\r\nhost: web\r\n: x\r\n\r\n"),
        ("lower-case version", b"GET / http/1.1\r\nhost: web\r\n\r\n"),
        ("unknown version", b"GET / HTTP/1.2\r\nhost: web\r\n\r\n"),
        ("space in the target", b"GET /a b HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("no target", b"GET HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("relative target", b"GET x HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("asterisk for GET", b"GET * HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("encoded separator", b"GET /a%2fb HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("above the root", b"GET /../x HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("encoded NUL", b"GET /a%00 HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("two differing lengths", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
        ("list of lengths", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 1, 2\r\n\r\nab"),
        ("signed length", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: +1\r\n\r\na"),
        ("negative length", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: -1\r\n\r\n"),
        ("hexadecimal length", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0x1\r\n\r\na"),
        ("empty length", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: \r\n\r\n"),
        ("overflowing length", b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 18446744073709551617\r\n\r\na"),
        ("unknown coding", b"POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: gzip\r\n\r\n"),
        ("chunked not last", b"POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
        ("misspelt coding", b"POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("coding in HTTP/1.0", b"POST / HTTP/1.0\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("CONNECT", b"CONNECT web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n"),
        ("TRACE", b"TRACE / HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("empty host", b"GET / HTTP/1.1\r\nhost: \r\n\r\n"),
        ("a port without a host", b"GET / HTTP/1.1\r\nhost: :80\r\n\r\n"),
        ("fragment", b"GET /a#b HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("fragment of a query", b"GET /a?b#/../c HTTP/1.1\r\nhost: web\r\n\r\n"),
        ("no HTTP at all", b"\x80\x03\x01nonsense\r\n\r\n"),
        ("a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ];
    let attempts = attempts.iter().map(|(what, bytes)| (what, tokio::spawn(attempt(*bytes))));
    for (what, attempt) in attempts.collect::<Vec<_>>() {
        let (status, requests, reply) = attempt.await.unwrap();
        assert!(matches!(status, 0 | 400..=499 | 505), "{what}: {reply}");
        assert_eq!(requests, 0, "{what} came through");
    }
}

/// With any framing that the proxy accepts, the bytes of a body never become a request.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_smuggled() {
    let hidden = "GET /hidden HTTP/1.1\r\nhost: web\r\nx-deny: 1\r\n\r\n";
    let chunked = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
    let attempts = [
        (
            "length and coding",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "coding and length",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "coding twice",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n{chunked}"
            ),
        ),
        (
            "coding with a vertical tab",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: \x0bchunked\r\ncontent-length: 3\r\n\r\n{chunked}"
            ),
        ),
        (
            "coding in quotes",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: \"chunked\"\r\ncontent-length: 3\r\n\r\n{chunked}"
            ),
        ),
        (
            "length named by connection",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\nconnection: content-length\r\ncontent-length: {}\r\n\r\n{hidden}",
                hidden.len()
            ),
        ),
        (
            "length of a GET",
            format!("GET /seen HTTP/1.1\r\nhost: web\r\ncontent-length: {}\r\n\r\n{hidden}", hidden.len()),
        ),
        ("coding of a GET", format!("GET /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n{chunked}")),
        (
            "upgrade to h2c",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\ncontent-length: {}\r\n\r\n{hidden}",
                hidden.len()
            ),
        ),
        (
            "upgrade without a WebSocket server",
            format!("GET /seen HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n{hidden}"),
        ),
        (
            "bad chunk size",
            format!("POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{hidden}"),
        ),
        (
            "signed chunk size",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "overflowing chunk size",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n10000000000000001\r\n{hidden}"
            ),
        ),
        (
            "chunk longer than its size",
            format!("POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{hidden}\r\n0\r\n\r\n"),
        ),
        (
            "chunk without its end",
            format!("POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n1\r\na0\r\n\r\n{hidden}"),
        ),
        (
            "bare LF after a chunk size",
            format!("POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n{hidden}"),
        ),
        (
            "newline in a chunk extension",
            format!(
                "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n{hidden}"
            ),
        ),
    ];
    let attempts = attempts.map(|(what, bytes)| (what, tokio::spawn(attempt(bytes))));
    for (what, attempt) in attempts {
        let (_, requests, reply) = attempt.await.unwrap();
        // After a complete message, the rest is a proper second request: it is judged, and refused
        // because of its mark.
        assert!(requests <= 1, "{what}: {reply}");
        assert!(!reply.contains("GET /hidden HTTP/1.1\nhost"), "{what} came through: {reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_framings_are_never_passed_on() {
    let bytes = "POST /seen HTTP/1.1\r\nhost: web\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let (status, requests, reply) = attempt(bytes).await;
    // RFC 9112, 6.1: the coding may override the length. The proxy drops the length and closes the
    // connection.
    assert_eq!((status, requests), (200, 1), "{reply}");
    let seen = reply.split_once("POST /seen").unwrap().1;
    assert!(!seen.contains("content-length: 3") && seen.ends_with("hello"), "{reply}");
    assert!(reply.contains("connection: close"), "{reply}");
}

/// Policies could not read content with an unknown transfer coding, and neither could an upstream
/// that does not get the field.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_implemented_is_not_dropped_in_silence() {
    let chunks = "0\r\n\r\n";
    for codings in ["transfer-encoding: gzip, chunked", "transfer-encoding: gzip\r\ntransfer-encoding: chunked"] {
        let (status, requests, reply) =
            attempt(format!("POST / HTTP/1.1\r\nhost: web\r\n{codings}\r\n\r\n{chunks}")).await;
        assert_eq!((status, requests), (501, 0), "{codings}: {reply}");
    }
    let method = "M".repeat(33);
    let (status, requests, reply) = attempt(format!("{method} / HTTP/1.1\r\nhost: web\r\n\r\n")).await;
    assert_eq!((status, requests), (501, 0), "{reply}");
    let (status, ..) = attempt(format!("{} / HTTP/1.1\r\nhost: web\r\n\r\n", &method[1..])).await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_with_an_unknown_coding_is_not_passed_on() {
    for codings in ["gzip, chunked", "gzip", "chunked, chunked"] {
        let upstream = raw::server(move |mut raw| async move {
            raw.head().await;
            raw.send(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {codings}\r\n\r\n0\r\n\r\n")).await;
        })
        .await;
        let mesh = Builder::new().function("web", AppProtocol::Http1, upstream).start();
        assert_eq!(upstream::get(mesh.gateway(), "/").await.status, 502, "{codings}");
    }
}

/// Bytes after a CONNECT belong to its tunnel, so their syntax is not checked.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_a_tunnel_that_is_refused() {
    let connect = "CONNECT web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n";
    for next in [
        "GET / HTTP/1.1\r\nhost: web\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    ] {
        let (status, requests, reply) = attempt(connect.to_owned() + next).await;
        assert!((400..500).contains(&status), "{reply}");
        assert_eq!((requests, reply.matches("HTTP/1.1 ").count()), (0, 1), "{reply}");
    }
}

/// Blanks, line ends and extensions that another server may read differently.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_taken_by_the_letter() {
    let head = "POST /seen HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let (status, _, reply) = attempt(format!("{head}5;a=1;b=\"c d\"\r\nhello\r\n0\r\n\r\n")).await;
    assert!(status == 200 && reply.ends_with("hello"), "{reply}");
    let attempts = [
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\t;a\r\nhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "5;a\x01\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "000000000000000000005\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r\n0\n\r\n",
        "5\r\nhello\r\n0\r\n\n",
        "5\r\nhello\r\n0\r\nx-a: 1\n\r\n",
    ];
    let attempts = attempts.map(|chunks| (chunks, tokio::spawn(attempt(format!("{head}{chunks}")))));
    for (chunks, attempt) in attempts {
        let (status, _, reply) = attempt.await.unwrap();
        assert_eq!(status, 400, "{chunks:?}: {reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absolute_form_without_a_path_asks_for_the_root() {
    for (target, seen) in [("http://web?x=1", "GET /?x=1 HTTP/1.1"), ("http://web", "GET / HTTP/1.1")] {
        let request = format!("GET {target} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n");
        let (status, _, reply) = attempt(request).await;
        assert!(status == 200 && reply.contains(seen), "{target}: {reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_line_feeds_end_no_message_early() {
    // RFC 9112, 2.2 lets a recipient accept a bare LF as a line end; the proxy forwards proper line
    // ends.
    let (status, requests, reply) = attempt("GET /seen HTTP/1.1\nhost: web\nx-a: 1\n\n").await;
    assert!(status == 400 || (status == 200 && reply.contains("x-a: 1")), "{reply}");
    assert!(requests <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_limits() {
    let huge = format!("GET / HTTP/1.1\r\nhost: web\r\nx-a: {}\r\n\r\n", "a".repeat(20 * 1024));
    let (status, requests, _) = attempt(huge).await;
    assert_eq!((status, requests), (431, 0));
    let long = format!("GET /{} HTTP/1.1\r\nhost: web\r\n\r\n", "a".repeat(70 * 1024));
    let (status, requests, _) = attempt(long).await;
    assert!(matches!(status, 414 | 431), "{status}");
    assert_eq!(requests, 0);
    let mut many = "GET / HTTP/1.1\r\nhost: web\r\n".to_owned();
    for number in 0..60 {
        write!(many, "x-{number}: 1\r\n").unwrap();
    }
    let (status, requests, _) = attempt(many + "\r\n").await;
    assert_eq!((status, requests), (431, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_heads_have_the_same_limits() {
    let (mesh, upstream) = mesh().await;
    let mut client = upstream::connect_h2(mesh.gateway()).await;
    let request = http::Request::get("http://web/").header("x-a", "a".repeat(20 * 1024));
    match client.send_request(request.body(upstream::empty()).unwrap()).await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(!error.is_user(), "{error}"),
    }
    let mut request = http::Request::get("http://web/");
    for number in 0..60 {
        request = request.header(format!("x-{number}"), "1");
    }
    let mut client = upstream::connect_h2(mesh.gateway()).await;
    let response = client.send_request(request.body(upstream::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 431);
    assert_eq!(upstream.requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_cannot_smuggle_responses() {
    // Two answers to one request: the next request must not get the second one.
    let upstream = raw::server(|mut raw| async move {
        raw.head().await;
        raw.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirstHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond")
            .await;
        raw.head().await;
        raw.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nthird").await;
    })
    .await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, upstream).start();
    let mut client = upstream::connect_http1(mesh.gateway()).await;
    for _ in 0..2 {
        let request = http::Request::get("/").header("host", "web").body(upstream::empty()).unwrap();
        assert_eq!(client.send(request).await.text, "first");
    }
}
