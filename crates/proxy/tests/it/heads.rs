//! Unfinished heads hold a bounded amount of memory, counted for each client and instance.

use crate::mesh::Builder;
use crate::raw::{Raw, status};
use crate::upstream::{echo, http1};
use leno_model::AppProtocol;
use leno_testkit::eventually_async;
use std::net::SocketAddr;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

const HEAD: usize = 40 * 1024;
/// The node's bound on the bytes of all unfinished heads.
const MOST: usize = 32 * 1024 * 1024;

async fn from(address: &str, to: SocketAddr) -> Raw {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    Raw(socket.connect(to).await.unwrap())
}

fn half_head() -> String {
    format!("GET / HTTP/1.1\r\nhost: web\r\nx-long: {}", "a".repeat(HEAD))
}

async fn mesh() -> crate::mesh::Mesh {
    let web = http1(echo).await;
    Builder::new()
        .function("web", AppProtocol::Http1, web.address)
        .limits(|limits| (limits.head_bytes, limits.connections) = (48 * 1024, 5000))
        .connections(5000)
        .start()
}

#[tokio::test]
async fn half_sent_heads_hold_no_more_than_they_may() {
    let mesh = mesh().await;
    let mut honest = from("127.0.0.2", mesh.gateway()).await;
    honest.send(half_head()).await;
    eventually_async("the memory that heads hold", || mesh.node.admission.held() >= HEAD).await;
    let mut hoarded = Vec::new();
    for _ in 0..MOST / HEAD + 200 {
        let mut raw = from("127.0.0.3", mesh.gateway()).await;
        raw.send(half_head()).await;
        hoarded.push(raw);
    }
    eventually_async("the memory that heads hold", || mesh.node.admission.held() <= MOST).await;
    // The node has closed the oldest connection of the client that holds most, and not the honest
    // client's.
    let oldest = hoarded.remove(0);
    assert_eq!(oldest.rest().await, "");
    honest.send("\r\nconnection: close\r\n\r\n").await;
    assert_eq!(status(&honest.rest().await), 200);
    drop(hoarded);
    eventually_async("the memory that heads hold", || mesh.node.admission.held() == 0).await;
}

#[tokio::test]
async fn a_head_counts_until_its_request_begins() {
    let mesh = mesh().await;
    let mut raw = Raw::connect(mesh.gateway()).await;
    for _ in 0..3 {
        raw.send(half_head()).await;
        eventually_async("the memory that heads hold", || mesh.node.admission.held() >= HEAD).await;
        raw.send("\r\n\r\n").await;
        assert_eq!(status(&raw.head().await), 200);
        assert_eq!(mesh.node.admission.held(), 0);
        let mut body = vec![0; HEAD];
        raw.0.read_exact(&mut body).await.unwrap();
        raw.rest_of_body().await;
    }
}

#[tokio::test]
async fn so_does_a_block_of_fields_over_http2() {
    let mesh = mesh().await;
    let mut raw = Raw::connect(mesh.gateway()).await;
    raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    // HEADERS without their end, and CONTINUATION without its end.
    raw.send(b"\0\x20\0\x01\0\0\0\0\x01").await;
    raw.send([0; 0]).await;
    let literal = |length: usize| [&[0, 1, b'x', 0x7f][..], &[b'a'; 8190][..length - 4]].concat();
    raw.send(literal(8192)).await;
    raw.send(b"\0\x20\0\x09\0\0\0\0\x01").await;
    eventually_async("the memory that heads hold", || mesh.node.admission.held() == 16 * 1024).await;
    drop(raw);
    eventually_async("the memory that heads hold", || mesh.node.admission.held() == 0).await;
}
