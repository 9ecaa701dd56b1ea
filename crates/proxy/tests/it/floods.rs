//! Endless data that carries no message: the node closes the connection, and serves other requests
//! meanwhile.

use crate::mesh::{Builder, Mesh};
use crate::raw::{Raw, server};
use crate::upstream::{Answer, connect_http1, echo, empty, http1};
use http::Request;
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HINT: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";

/// A server that answers with `first`, and then with `again` until the node closes the connection.
/// Counts the closed connections.
async fn flood(first: &'static [u8], again: Vec<u8>) -> (SocketAddr, Arc<AtomicUsize>) {
    let cut_off = Arc::new(AtomicUsize::new(0));
    let (counted, again) = (cut_off.clone(), Arc::new(again.repeat(1 + 16 * 1024 / again.len())));
    let address = server(move |mut raw: Raw| {
        let (counted, again) = (counted.clone(), again.clone());
        async move {
            raw.0.read_u8().await.unwrap();
            raw.send(first).await;
            while raw.0.write_all(&again).await.is_ok() {}
            counted.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    (address, cut_off)
}

/// `web` floods, `other` does not.
async fn mesh(protocol: AppProtocol, address: SocketAddr) -> Mesh {
    let other = http1(echo).await;
    Builder::new().function("web", protocol, address).function("other", AppProtocol::Http1, other.address).start()
}

async fn get(mesh: &Mesh, host: &str) -> Answer {
    let request = Request::get("/").header("host", host).body(empty()).unwrap();
    connect_http1(mesh.gateway()).await.send(request).await
}

async fn is_cut_off(protocol: AppProtocol, first: &'static [u8], again: Vec<u8>) {
    let (address, cut_off) = flood(first, again).await;
    let mesh = mesh(protocol, address).await;
    let (flooded, other) = tokio::join!(get(&mesh, "web"), async {
        let mut answers = Vec::new();
        for _ in 0..20 {
            answers.push(get(&mesh, "other").await.status);
        }
        answers
    });
    assert_eq!(flooded.status, 502, "{}", flooded.text);
    assert_eq!(other, [200; 20]);
    eventually_async("the connection to be closed", || cut_off.load(Ordering::SeqCst) > 0).await;
}

#[tokio::test]
async fn interim_responses_without_an_end_are_a_bad_gateway() {
    is_cut_off(AppProtocol::Http1, b"", HINT.into()).await;
    is_cut_off(AppProtocol::Http1, b"", b"HTTP/1.1 100 \r\n\r\n".to_vec()).await;
    is_cut_off(AppProtocol::Http1, b"", format!("HTTP/1.1 199 x\r\nx: {}\r\n\r\n", "y".repeat(8000)).into()).await;
}

#[tokio::test]
async fn a_few_are_not() {
    let address = server(|mut raw| async move {
        loop {
            raw.head().await;
            raw.send(HINT.repeat(50) + "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let mesh = Mesh::web(address);
    let mut client = connect_http1(mesh.gateway()).await;
    for _ in 0..5 {
        let answer = client.send(Request::get("/").header("host", "web").body(empty()).unwrap()).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, "ok"));
    }
}

#[tokio::test]
async fn a_large_body_is_no_flood() {
    let address = server(|mut raw| async move {
        raw.head().await;
        raw.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n").await;
        raw.send(vec![b'x'; 3_000_000]).await;
    })
    .await;
    let answer = get(&Mesh::web(address), "web").await;
    assert_eq!((answer.status, answer.text.len()), (200, 3_000_000));
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
    [&head, payload].concat()
}

#[tokio::test]
async fn http2_frames_that_carry_nothing_are_a_bad_gateway() {
    // An empty SETTINGS frame begins the connection.
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let (end_headers, status) = (4, |status: &[u8]| [&[0x08, 3], status].concat());
    for again in [
        frame(1, end_headers, 1, &status(b"103")),
        frame(4, 0, 0, &[]),
        frame(6, 0, 0, &[0; 8]),
        frame(2, 0, 1, &[0, 0, 0, 0, 1]),
        frame(99, 0, 0, &[0; 20]),
    ] {
        is_cut_off(AppProtocol::H2c, SETTINGS, again).await;
    }
    is_cut_off(AppProtocol::H2c, SETTINGS, frame(1, 0, 1, &status(b"200"))).await;
}

#[tokio::test]
async fn a_client_that_floods_is_cut_off() {
    let web = http1(echo).await;
    let mesh = Mesh::web(web.address);
    for again in [frame(6, 0, 0, &[0; 8]), frame(4, 0, 0, &[]), frame(8, 0, 0, &[0, 0, 0, 1]), frame(99, 0, 0, &[])] {
        let mut raw = Raw::connect(mesh.gateway()).await;
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        raw.send(frame(4, 0, 0, &[])).await;
        let (mut read, mut write) = raw.0.into_split();
        let reading = tokio::spawn(async move { while let Ok(1..) = read.read(&mut [0; 4096]).await {} });
        let many = again.repeat(1000);
        while write.write_all(&many).await.is_ok() {}
        reading.await.unwrap();
        assert_eq!(get(&mesh, "web").await.status, 200);
    }
}
