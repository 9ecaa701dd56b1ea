//! The handling of SETTINGS, resets and GOAWAY from HTTP/2 upstreams.

use crate::frames::{ACK, GOAWAY, PING, RST_STREAM, SETTINGS, server};
use crate::mesh::{Builder, Mesh, retry};
use crate::upstream::{Answer, connect_http1, empty, full};
use http::Request;
use leno_model::AppProtocol;
use leno_policy::spec::RetryOn;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

const MAX_CONCURRENT_STREAMS: u16 = 3;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];

fn mesh(address: SocketAddr) -> Mesh {
    Builder::new().function("web", AppProtocol::H2c, address).start()
}

async fn send(mesh: &Mesh, method: &str, body: &'static str) -> Answer {
    let body = if body.is_empty() { empty() } else { full(body) };
    let request = Request::builder().method(method).uri("/").header("host", "web").body(body).unwrap();
    connect_http1(mesh.gateway()).await.send(request).await
}

fn request_id(answer: &Answer) -> &str {
    answer.headers["x-request-id"].to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_one_stream_gets_more_connections() {
    // The limit is in force from the beginning, or arrives after the first stream was opened.
    for later in [false, true] {
        let (gate, has_one) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (held, told) = (gate.clone(), has_one.clone());
        let (address, connections) = server(move |mut connection, number| {
            let (held, told) = (held.clone(), told.clone());
            async move {
                connection.set(MAX_CONCURRENT_STREAMS, if later { 100 } else { 1 }).await;
                while let Some((stream, _)) = connection.request().await {
                    if number == 0 {
                        connection.set(MAX_CONCURRENT_STREAMS, 1).await;
                        connection.send(PING, 0, 0, &[0; 8]).await;
                        // The PING is answered after the SETTINGS were read.
                        while !matches!(connection.next().await, Some(frame) if frame.kind == PING) {}
                        told.fetch_add(1, Ordering::SeqCst);
                        held.acquire().await.unwrap().forget();
                    }
                    connection.answer(stream).await;
                }
            }
        })
        .await;
        let mesh = Arc::new(mesh(address));
        let slow = tokio::spawn({
            let mesh = mesh.clone();
            async move { send(&mesh, "GET", "").await.status }
        });
        eventually_async("the body to arrive", || has_one.load(Ordering::SeqCst) == 1).await;
        for _ in 0..3 {
            assert_eq!(send(&mesh, "GET", "").await.status, 200);
        }
        assert_eq!(connections.load(Ordering::SeqCst), 2);
        gate.add_permits(1);
        assert_eq!(slow.await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_streams_for_a_while_is_waited_for() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let (address, connections) = server(move |mut connection, _| {
        let opened = opened.clone();
        async move {
            connection.set(MAX_CONCURRENT_STREAMS, 0).await;
            opened.acquire().await.unwrap().forget();
            connection.set(MAX_CONCURRENT_STREAMS, 100).await;
            while let Some((stream, _)) = connection.request().await {
                connection.answer(stream).await;
            }
        }
    })
    .await;
    let mesh = Arc::new(mesh(address));
    let requests: Vec<_> = (0..3)
        .map(|_| {
            let mesh = mesh.clone();
            tokio::spawn(async move { send(&mesh, "GET", "").await.status })
        })
        .collect();
    eventually_async("the lease of an instance", || mesh.instances.leased.load(Ordering::Relaxed) == 3).await;
    gate.add_permits(1);
    for request in requests {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_the_server_does_not_take_is_refused_with_the_reason() {
    let (address, _) = server(|mut connection, _| async move {
        connection.set(MAX_HEADER_LIST_SIZE, 2000).await;
        while let Some((stream, _)) = connection.request().await {
            connection.answer(stream).await;
        }
    })
    .await;
    let mesh = mesh(address);
    for (size, status) in [(100, 200), (3000, 431)] {
        let request = Request::get("/").header("host", "web").header("x-large", "v".repeat(size));
        let answer = connect_http1(mesh.gateway()).await.send(request.body(empty()).unwrap()).await;
        assert_eq!(answer.status, status);
        let told = mesh.told(request_id(&answer), 1).await.remove(0);
        let names_it = told.response.failure.unwrap_or_default().contains("SETTINGS_MAX_HEADER_LIST_SIZE");
        assert_eq!(names_it, status == 431);
    }
}

/// Answers the first `refused` requests with `how`, and counts all of them.
async fn refuses(refused: usize, how: fn(u32) -> (u8, u32, Vec<u8>)) -> (SocketAddr, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let (address, _) = server(move |mut connection, _| {
        let counted = counted.clone();
        async move {
            connection.send(SETTINGS, 0, 0, &[]).await;
            while let Some((stream, body)) = connection.request().await {
                assert!(body.is_empty() || body == b"once", "{body:?}");
                if counted.fetch_add(1, Ordering::SeqCst) < refused {
                    let (kind, on, payload) = how(stream);
                    connection.send(kind, 0, on, &payload).await;
                } else {
                    connection.answer(stream).await;
                }
            }
        }
    })
    .await;
    (address, requests)
}

fn refused_stream(stream: u32) -> (u8, u32, Vec<u8>) {
    (RST_STREAM, stream, REFUSED_STREAM.to_vec())
}

/// GOAWAY with NO_ERROR; the last stream is the one before this one.
fn goaway(stream: u32) -> (u8, u32, Vec<u8>) {
    (GOAWAY, 0, [stream.saturating_sub(2).to_be_bytes(), [0; 4]].concat())
}

fn cancelled(stream: u32) -> (u8, u32, Vec<u8>) {
    (RST_STREAM, stream, vec![0, 0, 0, 8])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_processed_is_sent_again_without_a_policy() {
    for how in [refused_stream, goaway] {
        for (method, body) in [("GET", ""), ("POST", ""), ("POST", "once"), ("PUT", "once")] {
            let (address, requests) = refuses(2, how).await;
            let mesh = mesh(address);
            let answer = send(&mesh, method, body).await;
            assert_eq!((answer.status, requests.load(Ordering::SeqCst)), (200, 3), "{method} {body}");
            let told = mesh.told(request_id(&answer), 1).await.remove(0);
            assert_eq!(told.attempts.len(), 3);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn not_for_ever_and_nothing_else() {
    for (how, count, flag) in [(refused_stream as fn(_) -> _, 4, "UR"), (goaway, 4, "UR"), (cancelled, 1, "UC")] {
        let (address, requests) = refuses(usize::MAX, how).await;
        let mesh = mesh(address);
        let answer = send(&mesh, "GET", "").await;
        assert_eq!((answer.status, requests.load(Ordering::SeqCst)), (502, count));
        let told = mesh.told(request_id(&answer), 1).await.remove(0);
        assert_eq!(told.response.flag.as_deref(), Some(flag));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_policy_comes_on_top() {
    let (address, requests) = refuses(5, refused_stream).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::H2c, address)
        .plan("web", |target| target.retry = Some(retry(&[RetryOn::RefusedStream])))
        .start();
    assert_eq!((send(&mesh, "POST", "once").await.status, requests.load(Ordering::SeqCst)), (200, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_not_processed_a_request_gets_it_again() {
    let (address, requests) = refuses(2, refused_stream).await;
    let there = Builder::new().function("web", AppProtocol::H2c, address).start();
    let gateway = Builder::new().function("web", AppProtocol::H2c, address).remote("web").with(&there).start();
    gateway.knows("web", &[(&there, 1)]);
    assert_eq!((send(&gateway, "POST", "once").await.status, requests.load(Ordering::SeqCst)), (200, 3));
}

/// Counts PINGs, and ends the first connection after `most` of them.
async fn pinged(most: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let pings = Arc::new(AtomicUsize::new(0));
    let counted = pings.clone();
    let (address, _) = server(move |mut connection, number| {
        let counted = counted.clone();
        async move {
            connection.send(SETTINGS, 0, 0, &[]).await;
            while let Some(frame) = connection.next().await {
                if frame.kind == PING && frame.flags & ACK == 0 {
                    connection.send(PING, ACK, 0, &frame.payload).await;
                    if counted.fetch_add(1, Ordering::SeqCst) + 1 == most && number == 0 {
                        let payload = [&[0; 4], &ENHANCE_YOUR_CALM, &b"too_many_pings"[..]].concat();
                        connection.send(GOAWAY, 0, 0, &payload).await;
                        return;
                    }
                }
            }
        }
    })
    .await;
    (address, pings)
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_go_out_as_often_as_the_setting_says() {
    let (address, pings) = pinged(usize::MAX).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::H2c, address)
        .limits(|limits| limits.upstream.keep_alive = Duration::from_millis(20))
        .start();
    let request = tokio::spawn(async move { send(&mesh, "GET", "").await.status });
    eventually_async("pings", || pings.load(Ordering::SeqCst) >= 3).await;
    request.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_finds_pings_too_many_has_its_requests_sent_again() {
    // The GOAWAY says that no stream was processed.
    let (address, pings) = pinged(2).await;
    let mesh = Builder::new()
        .function("web", AppProtocol::H2c, address)
        .limits(|limits| limits.upstream.keep_alive = Duration::from_millis(20))
        .start();
    let request = tokio::spawn(async move { send(&mesh, "GET", "").await.status });
    eventually_async("pings", || pings.load(Ordering::SeqCst) >= 3).await;
    request.abort();
}
