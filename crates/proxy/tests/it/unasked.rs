//! Responses without a request. The node gives them to no other request, and takes them for no
//! other verdict.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh};
use crate::raw::{Raw, server};
use crate::upstream::{Answer, Http1, Upstream, connect_http1, echo, empty, http1};
use http::Request;
use leno_model::{AppProtocol, Authorizer, AuthorizerProtocol};
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// The head of the next request, and its path; `None`: the connection has ended.
async fn next(raw: &mut Raw) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(raw.0.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap().split(' ').nth(1)?.to_owned())
}

fn response(status: u16, text: &str) -> String {
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{text}", text.len())
}

/// Allows paths below `/good`. Repeats each answer when the connection's next request has arrived,
/// before the answer to that request.
async fn late_authorizer() -> SocketAddr {
    server(|mut raw| async move {
        let mut last = String::new();
        while let Some(path) = next(&mut raw).await {
            raw.send(std::mem::take(&mut last)).await;
            last = response(if path.starts_with("/good") { 200 } else { 403 }, "");
            raw.send(&last).await;
        }
    })
    .await
}

/// Makes `authz` the external authorizer of requests to `web`.
fn asks(builder: Builder) -> Builder {
    builder.call("web", "authz").config("web", |config| {
        let name = "test/externalAuthorization/late".to_owned();
        let only = leno_policy::spec::Authorizer { name: name.clone(), only: vec![], headers: vec![], audit: false };
        config.inbound.authorizers.push(only);
        config.authorizers.push(Authorizer {
            name,
            authority: "authz".into(),
            protocol: AuthorizerProtocol::Http,
            path_prefix: String::new(),
            timeout: Duration::from_secs(20),
            status_on_error: 503,
            shown: Some(vec![]),
            upstream_headers: vec![],
            raw_headers: false,
            client_headers: vec![],
            cache: None,
            audit: false,
        });
    })
}

async fn get(client: &mut Http1, path: &str) -> Answer {
    client.send(Request::get(path).header("host", "web").body(empty()).unwrap()).await
}

async fn denied_stays_denied(mesh: &Mesh, web: &Upstream) {
    let mut client = connect_http1(mesh.gateway()).await;
    for number in 1..=20 {
        assert_eq!(get(&mut client, "/good").await.status, 200);
        assert_eq!(get(&mut client, "/bad").await.status, 403, "question {number}");
        assert_eq!(web.requests(), number);
    }
}

#[tokio::test]
async fn a_late_second_answer_of_an_authorizer_does_not_decide_the_next_question() {
    let web = http1(echo).await;
    let builder = Builder::new().function("web", AppProtocol::Http1, web.address).function(
        "authz",
        AppProtocol::Http1,
        late_authorizer().await,
    );
    denied_stays_denied(&asks(builder).start(), &web).await;
}

#[tokio::test]
async fn nor_does_one_on_another_node() {
    let web = http1(echo).await;
    let other = Builder::new().function("authz", AppProtocol::Http1, late_authorizer().await).start();
    let builder = Builder::new().with(&other).function("web", AppProtocol::Http1, web.address);
    let mesh = asks(builder).start();
    mesh.knows("authz", &[(&other, 1)]);
    denied_stays_denied(&mesh, &web).await;
}

#[tokio::test]
async fn a_circuit_breaker_full_of_idle_connections_does_not_stop_a_question() {
    let web = http1(echo).await;
    let authz = http1(|request| async move {
        let mut response = http::Response::new(empty());
        if !request.uri().path().starts_with("/good") {
            *response.status_mut() = http::StatusCode::FORBIDDEN;
        }
        response
    })
    .await;
    let builder = Builder::new().function("web", AppProtocol::Http1, web.address).function(
        "authz",
        AppProtocol::Http1,
        authz.address,
    );
    let mesh = asks(builder)
        .plan("authz", |target| {
            target.breaker = Some(leno_policy::spec::Breaker { max_connections: 1, ..crate::mesh::breaker() });
        })
        .start();
    let credential = basic(&mesh.mint("web"));
    let mut caller = connect_http1(mesh.outbound()).await;
    let mut client = connect_http1(mesh.gateway()).await;
    for _ in 0..5 {
        // The function's own call leaves an idle connection behind. No second one is allowed.
        let call = Request::get("http://authz/good").header("host", "authz").header("proxy-authorization", &credential);
        assert_eq!(caller.send(call.body(empty()).unwrap()).await.status, 200);
        assert_eq!(get(&mut client, "/good").await.status, 200);
        assert_eq!(get(&mut client, "/bad").await.status, 403);
    }
}

#[tokio::test]
async fn two_answers_in_one_write_answer_one_request() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let address = server(move |mut raw| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            while let Some(path) = next(&mut raw).await {
                raw.send(response(200, &path) + &response(200, "unasked")).await;
            }
        }
    })
    .await;
    let mesh = Mesh::web(address);
    let mut client = connect_http1(mesh.gateway()).await;
    for number in 1..=10 {
        let path = format!("/{number}");
        assert_eq!(get(&mut client, &path).await.text, path);
        assert_eq!(connections.load(Ordering::SeqCst), number, "no connection is used again");
    }
}

#[tokio::test]
async fn what_comes_while_a_connection_is_idle_ends_it() {
    for unasked in [response(200, "unasked"), "x".to_owned(), "\r\n".to_owned(), "HTTP/1.1 103 x\r\n\r\n".repeat(100)] {
        let closed = Arc::new(AtomicUsize::new(0));
        let (counted, late) = (closed.clone(), unasked.clone());
        let address = server(move |mut raw| {
            let (counted, late) = (counted.clone(), late.clone());
            async move {
                let Some(path) = next(&mut raw).await else { return };
                raw.send(response(200, &path)).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                raw.send(late).await;
                assert_eq!(next(&mut raw).await, None, "it was used again");
                counted.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await;
        let mesh = Mesh::web(address);
        let mut client = connect_http1(mesh.gateway()).await;
        for number in 1..=3 {
            let path = format!("/{number}");
            assert_eq!(get(&mut client, &path).await.text, path, "{unasked:?}");
            eventually_async("the connection to be closed", || closed.load(Ordering::SeqCst) == number).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_has_answered_out_of_turn_gets_one_request_on_each_connection() {
    // The server repeats each answer when the next request has arrived. The node then cannot see
    // which request an answer belongs to.
    let address = server(|mut raw| async move {
        let mut last = String::new();
        // Otherwise the kernel delays the second answer until the next request has arrived.
        raw.0.set_nodelay(true).unwrap();
        while let Some(path) = next(&mut raw).await {
            raw.send(std::mem::take(&mut last)).await;
            last = response(200, &path);
            raw.send(&last).await;
        }
    })
    .await;
    let mesh = Mesh::web(address);
    let mut client = connect_http1(mesh.gateway()).await;
    assert_eq!(get(&mut client, "/1").await.text, "/1");
    get(&mut client, "/2").await;
    for number in 3..=20 {
        let path = format!("/{number}");
        assert_eq!(get(&mut client, &path).await.text, path);
    }
}

#[tokio::test]
async fn a_response_before_the_request_is_nobody_elses() {
    let address = server(|mut raw| async move {
        raw.send(response(200, "early")).await;
        while let Some(path) = next(&mut raw).await {
            raw.send(response(200, &path)).await;
        }
    })
    .await;
    let mesh = Mesh::web(address);
    let mut client = connect_http1(mesh.gateway()).await;
    for number in 1..=20 {
        let path = format!("/{number}");
        let answer = get(&mut client, &path).await;
        assert!(answer.status == 502 || answer.text == "early" || answer.text == path, "{path}: {answer:?}");
    }
}
