//! Unusual methods, targets and bodies: they get the same verdict on one node, between two, over
//! HTTP/2 and at the gateway.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw::{exchange, server, status};
use crate::upstream::{self, connect_h2, echo, empty, full, http1};
use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::BodyExt;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// A request line without the version, a body, the status of the response, and the request line
/// that the function sees.
const TABLE: &[(&str, &str, u16, &str)] = &[
    ("GET /p", "", 200, "GET /p"),
    ("GET /p", "body", 200, "GET /p"),
    ("HEAD /p", "body", 200, ""),
    ("DELETE /p", "body", 200, "DELETE /p"),
    ("OPTIONS *", "", 200, "OPTIONS *"),
    ("OPTIONS *", "body", 200, "OPTIONS *"),
    ("OPTIONS /p", "", 200, "OPTIONS /p"),
    ("GET *", "", 400, ""),
    ("GET http://callee/p?q", "", 200, "GET /p?q"),
    ("GET http://callee", "", 200, "GET /"),
    ("GET http://callee?q", "", 200, "GET /?q"),
    ("FOO /p", "", 200, "FOO /p"),
    ("FOO /p", "body", 200, "FOO /p"),
    ("get /p", "", 200, "get /p"),
    ("M-SEARCH /p", "", 200, "M-SEARCH /p"),
    ("PROPFIND /p", "body", 200, "PROPFIND /p"),
    ("TRACE /p", "", 405, ""),
    ("TRACE /p", "body", 405, ""),
    ("AVERYLONGMETHODTHATNOBODYIMPLEMENTS /p", "", 501, ""),
    ("CONNECT /p", "", 400, ""),
    ("CONNECT /p", "body", 400, ""),
    ("CONNECT *", "", 400, ""),
    ("CONNECT http://callee/p", "", 400, ""),
    ("CONNECT http://callee:80/", "body", 400, ""),
    ("CONNECT callee:80", "body", 400, ""),
];

/// A node with a caller that may call only the callee.
fn caller() -> Builder {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    Builder::new().function("caller", AppProtocol::Http1, nowhere)
}

/// One node with both functions; and one that reaches the callee on another node by mutual TLS. The
/// callee speaks this protocol.
async fn meshes(protocol: AppProtocol) -> [(&'static str, Mesh, Option<Mesh>); 2] {
    let callee = match protocol {
        AppProtocol::Http1 => http1(echo).await,
        _ => upstream::h2c(echo).await,
    };
    let one = caller().function("callee", protocol, callee.address).call("caller", "callee").start();
    let other = Builder::new().function("callee", protocol, callee.address).start();
    let two = caller().with(&other).call("caller", "callee").start();
    two.knows("callee", &[(&other, 1)]);
    [("one node", one, None), ("two nodes", two, Some(other))]
}

fn text(line: &str, body: &str, credential: &str) -> String {
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    format!("{line} HTTP/1.1\r\nhost: callee\r\nconnection: close\r\n{credential}{length}\r\n{body}")
}

fn check(place: &str, (line, body, expected, seen): (&str, &str, u16, &str), answer: &str) {
    assert_eq!(status(answer), expected, "{place}: {line} {body:?}: {answer}");
    let is_seen =
        answer.contains(&format!("\r\n\r\n{seen} ")) || seen.is_empty() || answer.contains(&format!("\n{seen} "));
    assert!(is_seen, "{place}: {line}: {answer}");
}

#[tokio::test]
async fn unusual_requests_mean_the_same_everywhere() {
    for (place, mesh, _other) in meshes(AppProtocol::Http1).await {
        let credential = format!("proxy-authorization: {}\r\n", basic(&mesh.mint("caller")));
        for row in TABLE {
            check(place, *row, &exchange(mesh.outbound(), text(row.0, row.1, &credential)).await);
        }
    }
    let callee = http1(echo).await;
    let gateway = Builder::new().function("callee", AppProtocol::Http1, callee.address).start();
    for row in TABLE {
        check("gateway", *row, &exchange(gateway.gateway(), text(row.0, row.1, "")).await);
    }
    let answer = exchange(gateway.gateway(), text("CONNECT callee:80", "", "")).await;
    assert_eq!(status(&answer), 405, "tunnels are for functions");
}

#[tokio::test]
async fn and_over_http2() {
    for protocol in [AppProtocol::Http1, AppProtocol::H2c] {
        for (place, mesh, _other) in meshes(protocol).await {
            let credential = basic(&mesh.mint("caller"));
            for (line, body, expected, seen) in TABLE {
                let (method, target) = line.split_once(' ').unwrap();
                // HTTP/2 has one form of targets. A CONNECT has none of these.
                if method == "CONNECT" || target.starts_with("http:") || *line == "GET *" {
                    continue;
                }
                // The function of this test answers HEAD with content, which is malformed.
                if method == "HEAD" && protocol == AppProtocol::H2c {
                    continue;
                }
                let mut parts = http::uri::Parts::default();
                parts.scheme = Some(http::uri::Scheme::HTTP);
                parts.authority = Some("callee".parse().unwrap());
                parts.path_and_query = Some(target.parse().unwrap());
                let mut request = Request::new(if body.is_empty() { empty() } else { full(*body) });
                *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
                *request.uri_mut() = http::Uri::from_parts(parts).unwrap();
                request.headers_mut().insert("proxy-authorization", credential.parse().unwrap());
                let response = connect_h2(mesh.outbound()).await.send_request(request).await;
                let response = response.unwrap_or_else(|error| panic!("{place}: {line} {body:?}: {error:?}"));
                let answer = upstream::answer(response).await;
                assert_eq!(answer.status, *expected, "{place}: {line} {body:?}: {}", answer.text);
                let (seen_method, seen_target) = seen.split_once(' ').unwrap_or(("", ""));
                let first = answer.text.lines().next().unwrap_or_default().to_owned();
                let is_seen = first.starts_with(&format!("{seen_method} ")) && first.contains(seen_target);
                assert!(seen.is_empty() || is_seen, "{place}: {line}: {first}");
            }
        }
    }
}

/// An HTTP/2 client that sends given frames.
async fn h2_client(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

fn post(host: &str, headers: &[(&'static str, &str)]) -> Request<()> {
    let mut request = Request::post(format!("http://{host}/")).body(()).unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    request
}

/// The name that the HTTP/2 library accepts, and HTTP does not.
fn quoted() -> HeaderName {
    HeaderName::from_lowercase(b"x\"y").unwrap()
}

#[tokio::test]
async fn a_field_name_that_is_no_token_is_refused() {
    let web = http1(echo).await;
    let mesh = Mesh::web(web.address);
    let mut client = h2_client(mesh.gateway()).await;
    let mut request = post("web", &[]);
    request.headers_mut().insert(quoted(), HeaderValue::from_static("1"));
    let (response, _) = client.send_request(request, true).unwrap();
    assert_eq!(response.await.unwrap().status(), 400);
    assert_eq!(web.requests(), 0);
    // In trailers, the field is removed.
    let (response, mut body) = client.send_request(post("web", &[]), false).unwrap();
    body.send_data("x".into(), false).unwrap();
    body.send_trailers(HeaderMap::from_iter([(quoted(), HeaderValue::from_static("1"))])).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn nor_may_a_function_answer_with_one() {
    let address = h2_server(|mut respond| async move {
        let mut response = http::Response::new(());
        response.headers_mut().insert(quoted(), HeaderValue::from_static("1"));
        let _ = respond.send_response(response, true);
    })
    .await;
    let mesh = Builder::new().function("web", AppProtocol::H2c, address).start();
    assert_eq!(upstream::get(mesh.gateway(), "/").await.status, 502);
}

/// An HTTP/2 server that answers with given frames.
async fn h2_server<F, R>(answer: F) -> SocketAddr
where
    F: Fn(h2::server::SendResponse<Bytes>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    server(move |raw| {
        let answer = answer.clone();
        async move {
            let mut connection = h2::server::handshake(raw.0).await.unwrap();
            while let Some(Ok((_, respond))) = connection.accept().await {
                tokio::spawn(answer(respond));
            }
        }
    })
    .await
}

/// Counts the request bodies that an HTTP/1.1 server has received completely.
async fn counting() -> (SocketAddr, Arc<AtomicUsize>) {
    let whole = Arc::new(AtomicUsize::new(0));
    let counted = whole.clone();
    let address = server(move |mut raw| {
        let counted = counted.clone();
        async move {
            loop {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = raw.0.read_u8().await else { return };
                    head.push(byte);
                }
                let head = String::from_utf8(head).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                if raw.0.read_exact(&mut body).await.is_err() {
                    return;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                raw.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    })
    .await;
    (address, whole)
}

#[tokio::test]
async fn a_length_that_does_not_agree_with_the_data_is_never_a_whole_request() {
    let (address, whole) = counting().await;
    let one = caller().function("callee", AppProtocol::Http1, address).call("caller", "callee").start();
    let other = Builder::new().function("callee", AppProtocol::Http1, address).start();
    let two = caller().with(&other).call("caller", "callee").start();
    two.knows("callee", &[(&other, 1)]);
    for (place, mesh) in [("one node", &one), ("two nodes", &two)] {
        let credential = basic(&mesh.mint("caller"));
        for (length, pieces) in [
            ("0", &["x"][..]),
            ("3", &["abcd"]),
            ("3", &["ab", "cd"]),
            ("3", &["abc", "d"]),
            ("3", &["a", "b", "c", "d"]),
            ("3", &["ab"]),
            ("400", &["x"]),
        ] {
            let before = whole.load(Ordering::SeqCst);
            let mut client = h2_client(mesh.outbound()).await;
            let request = post("callee", &[("content-length", length), ("proxy-authorization", &credential)]);
            let (response, mut body) = client.send_request(request, false).unwrap();
            for (index, piece) in pieces.iter().enumerate() {
                // Each in a separate frame and turn.
                tokio::task::yield_now().await;
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                let _ = body.send_data(Bytes::from_static(piece.as_bytes()), index + 1 == pieces.len());
            }
            let answer = response.await.map(|response| response.status().as_u16());
            assert!(answer.as_ref().map_or(true, |status| *status >= 400), "{place}: {length} {pieces:?}: {answer:?}");
            assert_eq!(whole.load(Ordering::SeqCst), before, "{place}: {length} {pieces:?}");
        }
        for (length, pieces) in [("0", &[""][..]), ("3", &["abc"]), ("3", &["abc", ""]), ("3", &["a", "", "bc", ""])] {
            let mut client = h2_client(mesh.outbound()).await;
            let request = post("callee", &[("content-length", length), ("proxy-authorization", &credential)]);
            let (response, mut body) = client.send_request(request, false).unwrap();
            for (index, piece) in pieces.iter().enumerate() {
                body.send_data(Bytes::from_static(piece.as_bytes()), index + 1 == pieces.len()).unwrap();
            }
            assert_eq!(response.await.unwrap().status(), 200, "{place}: {length} {pieces:?}");
        }
    }
}

#[tokio::test]
async fn nor_ever_a_whole_response() {
    for (length, pieces) in
        [("0", &["x"][..]), ("3", &["abcd"]), ("3", &["abc", "d"]), ("3", &["a", "bcd"]), ("3", &["ab"])]
    {
        let address = h2_server(move |mut respond| async move {
            let response = http::Response::builder().header("content-length", length).body(()).unwrap();
            let mut body = respond.send_response(response, false).unwrap();
            for (index, piece) in pieces.iter().enumerate() {
                let _ = body.send_data(Bytes::from_static(piece.as_bytes()), index + 1 == pieces.len());
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
        let mesh = Builder::new().function("web", AppProtocol::H2c, address).start();
        let answer = exchange(mesh.gateway(), "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(status(head) == 502 || body.len() < 3, "{length} {pieces:?}: {answer}");
    }
    // A response to HEAD, and 304, contain the length that the body would have.
    let address = h2_server(|mut respond| async move {
        let response = http::Response::builder().header("content-length", "300").body(()).unwrap();
        let _ = respond.send_response(response, true);
    })
    .await;
    let mesh = Builder::new().function("web", AppProtocol::H2c, address).start();
    let answer = exchange(mesh.gateway(), "HEAD / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("content-length: 300"), "{answer}");
    eventually_async("the metric", || mesh.metrics().contains("leno_")).await;
}

/// The server closes while the upload is under way, so that writes to it fail. Its answer can be
/// read all the same. Mostly a reset ends such a connection. The reset may have cut off an answer
/// without a length, so such an answer must not look complete.
#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_wins_over_a_broken_upload() {
    for answer in ["connection: close\r\n\r\ntoo large", "content-length: 9\r\n\r\ntoo large"] {
        let address = server(move |mut raw| async move {
            raw.until("\r\n\r\n").await;
            raw.send(format!("HTTP/1.1 413 Content Too Large\r\n{answer}")).await;
        })
        .await;
        for hop in [false, true] {
            let builder = Builder::new()
                .function("caller", AppProtocol::Http1, address)
                .function("web", AppProtocol::Http1, address)
                .call("caller", "web");
            let mesh = if hop { builder.mtls().start() } else { builder.start() };
            for number in 0..15 {
                let request = Request::post("http://web/");
                let (to, request) = match hop {
                    true => (mesh.outbound(), request.header("proxy-authorization", basic(&mesh.mint("caller")))),
                    false => (mesh.gateway(), request),
                };
                let request = request.body(full(vec![0; 8 << 20])).unwrap();
                let reply = connect_h2(to).await.send_request(request).await.unwrap();
                assert_eq!(reply.status(), 413, "{answer:?}, hop: {hop}, {number}");
                let body = reply.into_body().collect().await.map(|body| body.to_bytes());
                match answer.starts_with("content-length") {
                    true => assert_eq!(body.unwrap(), "too large", "hop: {hop}, {number}"),
                    false => assert!(body.is_err() || body.unwrap() == "too large", "hop: {hop}, {number}"),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_length_that_a_reset_ends_is_not_complete() {
    for reads_all in [true, false] {
        let address = server(move |mut raw| async move {
            raw.until(if reads_all { "whole" } else { "\r\n\r\n" }).await;
            raw.send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhalf of it").await;
            socket2::SockRef::from(&raw.0).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        })
        .await;
        for hop in [false, true] {
            let builder = Builder::new()
                .function("caller", AppProtocol::Http1, address)
                .function("web", AppProtocol::Http1, address)
                .call("caller", "web");
            let mesh = if hop { builder.mtls().start() } else { builder.start() };
            let credential = basic(&mesh.mint("caller"));
            let request = format!(
                "POST http://web/ HTTP/1.1\r\nhost: web\r\nproxy-authorization: {credential}\r\ncontent-length: 5\r\n\r\nwhole"
            );
            let reply = exchange(mesh.outbound(), request).await;
            assert!(status(&reply) == 502 || !reply.ends_with("0\r\n\r\n"), "hop: {hop}, {reads_all}: {reply}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_without_an_answer_fails_at_once() {
    let address = server(|mut raw| async move {
        raw.until("\r\n\r\n").await;
    })
    .await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, address).start();
    let request = Request::post("http://web/").body(full(vec![0; 8 << 20])).unwrap();
    let reply = upstream::answer(connect_h2(mesh.gateway()).await.send_request(request).await.unwrap()).await;
    assert_eq!(reply.status, 502);
}
