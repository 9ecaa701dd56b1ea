//! HTTP/1.1 and HTTP/2 on either side, in all four combinations.

use crate::mesh::{Builder, Mesh};
use crate::raw::{self, Raw};
use crate::upstream::{self, Answer, Upstream, answer, channel, connect_h2, connect_http1, echo, empty, full};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use leno_model::AppProtocol;

/// A mesh in front of `handler`, with an upstream of either version.
async fn mesh<F, R>(h2_upstream: bool, handler: F) -> (Mesh, Upstream)
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<upstream::Body>> + Send + 'static,
{
    let (upstream, protocol) = match h2_upstream {
        true => (upstream::h2c(handler).await, AppProtocol::H2c),
        false => (upstream::http1(handler).await, AppProtocol::Http1),
    };
    (Builder::new().function("web", protocol, upstream.address).start(), upstream)
}

async fn send(mesh: &Mesh, h2_client: bool, request: http::request::Builder, body: upstream::Body) -> Answer {
    if h2_client {
        let mut request = request.body(body).unwrap();
        *request.uri_mut() = format!("http://web{}", request.uri()).parse().unwrap();
        answer(connect_h2(mesh.gateway()).await.send_request(request).await.unwrap()).await
    } else {
        connect_http1(mesh.gateway()).await.send(request.header("host", "web").body(body).unwrap()).await
    }
}

const COMBINATIONS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_bodies_arrive_in_all_combinations() {
    for (h2_client, h2_upstream) in COMBINATIONS {
        let (mesh, _) = mesh(h2_upstream, echo).await;
        let reply = send(&mesh, h2_client, Request::post("/p?q=1").header("x-a", "1"), full("hello")).await;
        assert_eq!(reply.status, 200);
        let first = if h2_upstream { "POST http://web/p?q=1 HTTP/2.0\n" } else { "POST /p?q=1 HTTP/1.1\n" };
        assert!(reply.text.starts_with(first), "{h2_client} {h2_upstream}: {}", reply.text);
        assert_eq!(reply.text.contains("\nhost: web\n"), !h2_upstream, "{}", reply.text);
        assert!(reply.text.contains("\nx-a: 1\n") && reply.text.ends_with("\n\nhello"), "{}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_unknown_length_arrive_with_any_method() {
    for (h2_client, h2_upstream) in COMBINATIONS {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let (mesh, _) = mesh(h2_upstream, echo).await;
            let (feed, body) = channel();
            let request = Request::builder().method(method.clone()).uri("/");
            let request = if h2_client { request } else { request.header("transfer-encoding", "chunked") };
            tokio::spawn(async move {
                for piece in ["one ", "two ", "three"] {
                    feed.send(Frame::data(Bytes::from_static(piece.as_bytes()))).await.unwrap();
                }
            });
            let reply = send(&mesh, h2_client, request, body).await;
            assert!(reply.text.ends_with("\n\none two three"), "{method} {h2_client} {h2_upstream}: {}", reply.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_without_a_body_have_none() {
    let bodiless = |request: Request<Incoming>| async move {
        let status = request.uri().path()[1..].parse::<u16>().unwrap();
        let response = Response::builder().status(status);
        if *request.method() == Method::HEAD {
            return response.header("content-length", "1234").body(empty()).unwrap();
        }
        response.body(empty()).unwrap()
    };
    for (h2_client, h2_upstream) in COMBINATIONS {
        let (mesh, upstream) = mesh(h2_upstream, bodiless).await;
        let head = send(&mesh, h2_client, Request::head("/200"), empty()).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""));
        assert_eq!(head.headers["content-length"], "1234", "{h2_client} {h2_upstream}");
        for status in [204, 304, 200] {
            let reply = send(&mesh, h2_client, Request::get(format!("/{status}")), empty()).await;
            assert_eq!((reply.status, reply.text.as_str()), (status, ""), "{h2_client} {h2_upstream}");
        }
        assert_eq!(upstream.connections(), 1, "{h2_client} {h2_upstream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_head_requests_have_no_body() {
    let (mesh, _) = mesh(false, echo).await;
    for h2_client in [false, true] {
        let reply = send(&mesh, h2_client, Request::head("/").header("x-deny", "1"), empty()).await;
        assert_eq!((reply.status, reply.text.as_str()), (403, ""));
    }
    // On one connection: the client would take a body here for the next response.
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send("HEAD / HTTP/1.1\r\nhost: web\r\nx-deny: 1\r\n\r\nHEAD / HTTP/1.1\r\nhost: web\r\nx-deny: 1\r\n\r\n")
        .await;
    assert_eq!((raw::status(&raw.head().await), raw::status(&raw.head().await)), (403, 403));
}

async fn with_trailers(request: Request<Incoming>) -> Response<upstream::Body> {
    let trailers = request.into_body().collect().await.unwrap().trailers().cloned().unwrap_or_default();
    let (feed, body) = channel();
    tokio::spawn(async move {
        let echoed = trailers.get("x-sum").cloned();
        let _ = feed.send(Frame::data(Bytes::from_static(b"body"))).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "5".parse().unwrap());
        if let Some(sum) = echoed {
            trailers.insert("x-sum", sum);
        }
        let _ = feed.send(Frame::trailers(trailers)).await;
    });
    Response::builder().header("trailer", "grpc-status, x-sum").body(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_pass_both_ways_in_all_combinations() {
    for (h2_client, h2_upstream) in COMBINATIONS {
        let (mesh, _) = mesh(h2_upstream, with_trailers).await;
        let (feed, body) = channel();
        tokio::spawn(async move {
            feed.send(Frame::data(Bytes::from_static(b"data"))).await.unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", "42".parse().unwrap());
            feed.send(Frame::trailers(trailers)).await.unwrap();
        });
        let request = Request::post("/").header("te", "trailers").header("trailer", "x-sum");
        let reply = send(&mesh, h2_client, request, body).await;
        let trailers = reply.trailers.unwrap_or_else(|| panic!("no trailers: {h2_client} {h2_upstream}"));
        assert_eq!((&trailers["grpc-status"], &trailers["x-sum"]), (&"5".parse().unwrap(), &"42".parse().unwrap()));
        let request_id = reply.headers["x-request-id"].to_str().unwrap();
        assert_eq!(mesh.told(request_id, 1).await[0].response.grpc_status, Some(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_flow_in_both_directions_at_once() {
    // The upstream answers each piece on arrival. Neither side waits for the other's end.
    let ping_pong = |request: Request<Incoming>| async move {
        let (feed, body) = channel();
        let mut pieces = request.into_body();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = pieces.frame().await {
                let data = frame.into_data().unwrap();
                if feed.send(Frame::data(data)).await.is_err() {
                    break;
                }
            }
        });
        Response::new(body)
    };
    for h2_upstream in [false, true] {
        let (mesh, _) = mesh(h2_upstream, ping_pong).await;
        let (feed, body) = channel();
        let request = Request::post("http://web/").body(body).unwrap();
        feed.send(Frame::data(Bytes::from_static(b"0"))).await.unwrap();
        let mut response = connect_h2(mesh.gateway()).await.send_request(request).await.unwrap().into_body();
        for round in 0..20u8 {
            let echoed = response.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(echoed, round.to_string());
            feed.send(Frame::data(Bytes::from((round + 1).to_string()))).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_0_clients_are_served() {
    let (mesh, _) = mesh(false, echo).await;
    let reply = raw::exchange(mesh.gateway(), "GET /old HTTP/1.0\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.0 200") || reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(reply.contains("GET /old HTTP/1.1\n"), "{reply}");
    assert!(!reply.to_lowercase().contains("transfer-encoding"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn split_cookies_become_one() {
    for h2_upstream in [false, true] {
        let (mesh, _) = mesh(h2_upstream, echo).await;
        let request = Request::get("/").header("cookie", "a=1").header("cookie", "b=2");
        let reply = send(&mesh, true, request, empty()).await;
        assert!(reply.text.contains("\ncookie: a=1; b=2\n"), "{}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let (mesh, upstream) = mesh(false, echo).await;
    let requests: String = (0..10).map(|n| format!("GET /{n} HTTP/1.1\r\nhost: web\r\n\r\n")).collect();
    let last = "GET /last HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    let replies = raw::exchange(mesh.gateway(), requests + last).await;
    let order: Vec<_> = replies.lines().filter(|line| line.starts_with("GET /")).collect();
    let expected: Vec<_> = (0..10).map(|n| format!("GET /{n} HTTP/1.1")).chain(["GET /last HTTP/1.1".into()]).collect();
    assert_eq!(order, expected);
    assert_eq!(upstream.requests(), 11);
}
