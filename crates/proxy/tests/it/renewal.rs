//! Exchanges between nodes outlive the certificates that they began with, for a bounded time. When
//! that time is over, the client gets a code that does not blame it.

use crate::drain::{endless, greeter};
use crate::hops::basic;
use crate::mesh::{Builder, Mesh, spiffe};
use crate::raw::{self, Raw};
use crate::upstream::empty;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use leno_identity::KeyRequest;
use leno_model::AppProtocol;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// Two nodes, of which the one with the callees has certificates of three seconds.
struct Nodes {
    here: Mesh,
    there: Mesh,
}

impl Nodes {
    async fn new(lifetime: Duration) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let there = Builder::new()
            .function("rpc", AppProtocol::Grpc, endless().await.address)
            .function("chat", AppProtocol::Http1, greeter().await)
            .stream_lifetime(lifetime)
            .start();
        let here = Builder::new()
            .function("caller", AppProtocol::Http1, nowhere)
            .call("caller", "rpc")
            .call("caller", "chat")
            .with(&there)
            .stream_lifetime(lifetime)
            .start();
        here.knows("rpc", &[(&there, 1)]);
        here.knows("chat", &[(&there, 1)]);
        let nodes = Self { here, there };
        nodes.certify(Duration::from_secs(3));
        nodes
    }

    fn certify(&self, lifetime: Duration) {
        for (mesh, name) in [(&self.there, "rpc"), (&self.there, "chat"), (&self.here, "caller")] {
            let identity = spiffe(name);
            let request = KeyRequest::new(&identity).unwrap();
            let chain = mesh.authority.sign(request.csr(), &identity, lifetime).unwrap();
            mesh.node.svids.install(request, chain).unwrap();
        }
    }

    /// A gRPC call whose response streams, from the caller's sidecar.
    async fn call(&self) -> Incoming {
        let mut client = self.there.as_sidecar(&self.here, &spiffe("caller"), "rpc").await;
        let request = Request::post("http://rpc/s/m").header("content-type", "application/grpc");
        let mut body = client.send_request(request.body(empty()).unwrap()).await.unwrap().into_body();
        assert!(body.frame().await.unwrap().unwrap().is_data());
        body
    }

    /// A WebSocket of the caller's instance.
    async fn websocket(&self) -> Raw {
        let mut raw = Raw::connect(self.here.outbound()).await;
        let credential = basic(&self.here.mint("caller"));
        let handshake = crate::websocket::HANDSHAKE.replace("host: callee", "host: chat");
        let head = format!("GET http://chat/ HTTP/1.1\r\n{handshake}proxy-authorization: {credential}\r\n\r\n");
        raw.send(head).await;
        raw.until("hello").await;
        raw
    }
}

/// The gRPC status with which the call ends.
pub(crate) async fn status(mut call: Incoming) -> String {
    let ended = async {
        loop {
            if let Ok(trailers) = call.frame().await.expect("no trailers").unwrap().into_trailers() {
                return trailers["grpc-status"].to_str().unwrap().to_owned();
            }
        }
    };
    timeout(raw::TIMEOUT, ended).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_between_nodes_outlives_its_certificates_for_a_bounded_time() {
    let lasting = Nodes::new(Duration::from_secs(3600)).await;
    let (mut goes_on, mut talks_on) = (lasting.call().await, lasting.websocket().await);
    let brief = Nodes::new(Duration::ZERO).await;
    let (call, mut websocket) = (brief.call().await, brief.websocket().await);
    // The exchanges that may not go on end after the others began, so the certificates of all of
    // them have expired by then.
    assert_eq!(status(call).await, "14");
    let mut rest = Vec::new();
    timeout(raw::TIMEOUT, websocket.0.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.starts_with(b"\x88\x22\x03\xf4ended by the mesh, connect again"), "{rest:?}");

    lasting.certify(Duration::from_secs(3600));
    for _ in 0..3 {
        assert!(timeout(raw::TIMEOUT, goes_on.frame()).await.unwrap().unwrap().unwrap().is_data());
    }
    let silent = timeout(Duration::from_millis(100), talks_on.0.read_u8()).await;
    assert!(silent.is_err(), "it has ended: {silent:?}");
    // New connections use the new certificates.
    drop(lasting.call().await);
    drop(lasting.websocket().await);
}
