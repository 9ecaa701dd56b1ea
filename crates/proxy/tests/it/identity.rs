//! The caller's identity: proxy credentials and mutual TLS. No process can take another's identity.

use crate::hops::basic;
use crate::mesh::{Builder, Mesh, TRUST_DOMAIN, spiffe};
use crate::raw::{self, Raw};
use crate::upstream::{self, Upstream, answer, connect_h2, connect_http1, echo, empty};
use http::{HeaderValue, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_identity::{Authority, KeyRequest, SpiffeId, SvidStore, TrustDomain};
use leno_model::AppProtocol;
use leno_policy::spec::{Matches, Source, StringMatch};
use leno_testkit::eventually_async;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// `caller` may call `callee`; `stranger` may call no function.
async fn mesh() -> (Mesh, Upstream) {
    let upstream = upstream::http1(echo).await;
    let mesh = Builder::new()
        .function("caller", AppProtocol::Http1, upstream.address)
        .function("stranger", AppProtocol::Http1, upstream.address)
        .function("callee", AppProtocol::Http1, upstream.address)
        .call("caller", "callee")
        .config("callee", |config| {
            let identities = Matches { any: vec![StringMatch::Exact(spiffe("caller").to_string())], none: vec![] };
            let allow = config.inbound.authorization.last_mut().unwrap();
            allow.from = vec![Source { identities, ..Source::default() }];
        })
        .start();
    (mesh, upstream)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_credential_nobody_gets_out() {
    let (mesh, upstream) = mesh().await;
    let good = mesh.mint("caller");
    let mut wrong = good.clone();
    wrong.secret = "0".repeat(good.secret.len());
    let mut nobody = good.clone();
    nobody.user = "nobody".into();
    let mut client = connect_http1(mesh.outbound()).await;
    let fields = [None, Some(basic(&wrong)), Some(basic(&nobody)), Some("Basic !".into()), Some("Bearer x".into())];
    for field in fields {
        let mut request = Request::get("http://callee/").header("host", "callee");
        if let Some(field) = &field {
            request = request.header("proxy-authorization", field);
        }
        let reply = client.send(request.body(empty()).unwrap()).await;
        assert_eq!(reply.status, 407, "{field:?}");
        assert!(reply.headers["proxy-authenticate"].to_str().unwrap().starts_with("Basic realm="));
        let told = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
        assert_eq!((told[0].hop.as_str(), told[0].response.status, &told[0].peer.identity), ("outbound", 407, &None));
        let reply = raw::exchange(
            mesh.outbound(),
            "CONNECT callee:80 HTTP/1.1\r\nhost: callee:80\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert_eq!(raw::status(&reply), 407);
    }
    let request = Request::get("http://callee/").body(empty()).unwrap();
    assert_eq!(connect_h2(mesh.outbound()).await.send_request(request).await.unwrap().status(), 407);
    assert_eq!(upstream.connections(), 0);
}

/// A process on the same machine reaches the same listener from the same address, without a
/// credential, or with that of another function.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_process_cannot_take_a_callers_identity() {
    let (mesh, upstream) = mesh().await;
    let (caller, stranger) = (mesh.mint("caller"), mesh.mint("stranger"));
    let call =
        |field: String| Request::get("http://callee/").header("host", "callee").header("proxy-authorization", field);
    let mut own = connect_http1(mesh.outbound()).await;
    assert_eq!(own.send(call(basic(&caller)).body(empty()).unwrap()).await.status, 200);
    // With its own credential the stranger keeps its own identity, despite the header that it
    // sends.
    let claims = call(basic(&stranger)).header("x-forwarded-client-cert", format!("URI={}", spiffe("caller")));
    assert_eq!(connect_http1(mesh.outbound()).await.send(claims.body(empty()).unwrap()).await.status, 403);
    // Straight to the callee's inbound sidecar: without an SVID the connection is refused.
    let mut raw = Raw::connect(mesh.handle.addresses.inbound).await;
    raw.send("GET / HTTP/1.1\r\nhost: callee\r\n\r\n").await;
    assert!(!raw.rest().await.contains("200 OK"));
    // On the caller's own connection, the credential of each request still determines the identity.
    assert_eq!(own.send(call(basic(&stranger)).body(empty()).unwrap()).await.status, 403);
    let nameless = Request::get("http://callee/").header("host", "callee").body(empty()).unwrap();
    assert_eq!(own.send(nameless).await.status, 407);
    // After its end, the credential of an instance is invalid.
    mesh.node.credentials.revoke("caller-1");
    assert_eq!(own.send(call(basic(&caller)).body(empty()).unwrap()).await.status, 407);
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_carry_http_of_either_version() {
    let (mesh, _) = mesh().await;
    let field = basic(&mesh.mint("caller"));
    for h2 in [false, true] {
        let mut raw = Raw::connect(mesh.outbound()).await;
        raw.send(format!("CONNECT callee:80 HTTP/1.1\r\nhost: callee:80\r\nproxy-authorization: {field}\r\n\r\n"))
            .await;
        assert_eq!(raw::status(&raw.head().await), 200);
        let io = TokioIo::new(raw.0);
        let reply = if h2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            answer(sender.send_request(Request::get("http://callee/x").body(empty()).unwrap()).await.unwrap()).await
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            let request = Request::get("/x").header("host", "callee").body(empty()).unwrap();
            answer(sender.send_request(request).await.unwrap()).await
        };
        assert_eq!(reply.status, 200);
        assert!(reply.text.contains(&format!("URI={}\n", spiffe("caller"))), "{}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_in_a_tunnel_is_judged() {
    let (mesh, upstream) = mesh().await;
    let minted = mesh.mint("caller");
    let open = async || {
        let mut raw = Raw::connect(mesh.outbound()).await;
        let field = basic(&minted);
        raw.send(format!("CONNECT callee:80 HTTP/1.1\r\nhost: callee:80\r\nproxy-authorization: {field}\r\n\r\n"))
            .await;
        assert_eq!(raw::status(&raw.head().await), 200);
        raw
    };
    let mut raw = open().await;
    raw.send("GET / HTTP/1.1\r\nhost: stranger\r\n\r\n").await;
    assert_eq!(raw::status(&raw.head().await), 403, "another host than the tunnel's is another callee");
    let mut raw = open().await;
    raw.send("GET / HTTP/1.1\r\nhost: callee\r\nx-deny: 1\r\n\r\n").await;
    assert_eq!(raw::status(&raw.head().await), 403);
    // A credential of another instance in the tunnel is refused.
    let other = basic(&mesh.mint("stranger"));
    let mut raw = open().await;
    raw.send(format!("GET / HTTP/1.1\r\nhost: callee\r\nproxy-authorization: {other}\r\n\r\n")).await;
    assert_eq!(raw::status(&raw.head().await), 407);
    let mut raw = open().await;
    mesh.node.credentials.revoke("caller-1");
    raw.send("GET / HTTP/1.1\r\nhost: callee\r\n\r\n").await;
    assert_eq!(raw::status(&raw.head().await), 407);
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_to_somebody_else_is_refused_and_explained() {
    let (mesh, _) = mesh().await;
    let field = basic(&mesh.mint("caller"));
    for (number, target) in (1..).zip(["stranger:80", "example.com:443", "127.0.0.1:22"]) {
        let connect = format!(
            "CONNECT {target} HTTP/1.1\r\nhost: {target}\r\nproxy-authorization: {field}\r\nconnection: close\r\n\r\n"
        );
        let reply = raw::exchange(mesh.outbound(), connect).await;
        assert_eq!(raw::status(&reply), 403, "{target}");
        // The record follows after the response was sent.
        eventually_async("the record of the exchange", || mesh.node.telemetry.ring.latest(number).len() == number)
            .await;
        let told = &mesh.node.telemetry.ring.latest(1)[0];
        assert_eq!((told.hop.as_str(), told.response.status), ("outbound", 403));
    }
}

async fn tls(mesh: &Mesh, store: &Arc<SvidStore>, caller: &str, callee: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let config = leno_identity::client_config(store, &spiffe(caller), &spiffe(callee)).unwrap();
    let name = leno_identity::server_name(&spiffe(callee)).unwrap();
    let stream = TcpStream::connect(mesh.handle.addresses.inbound).await.unwrap();
    TlsConnector::from(config).connect(name, stream).await
}

async fn call(stream: TlsStream<TcpStream>, forged: Option<HeaderValue>) -> Result<u16, hyper::Error> {
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::get("http://callee/").body(empty()).unwrap();
    if let Some(forged) = forged {
        request.headers_mut().insert("x-forwarded-client-cert", forged);
    }
    Ok(sender.send_request(request).await?.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn inbound_wants_an_identity_of_the_mesh() {
    let (mesh, upstream) = mesh().await;
    let own = &mesh.node.svids;
    let status = call(tls(&mesh, own, "caller", "callee").await.unwrap(), None).await.unwrap();
    assert_eq!(status, 200);
    let forged = HeaderValue::try_from(format!("URI={}", spiffe("caller"))).unwrap();
    let status = call(tls(&mesh, own, "stranger", "callee").await.unwrap(), Some(forged)).await.unwrap();
    assert_eq!(status, 403);
    // The same names, signed by another authority.
    let authority = Authority::new(&TRUST_DOMAIN.parse::<TrustDomain>().unwrap()).unwrap();
    let foreign = SvidStore::new(mesh.authority.bundle().clone());
    let bundle = authority.bundle().merge(mesh.authority.bundle()).unwrap();
    foreign.set_bundle(bundle);
    let request = KeyRequest::new(&spiffe("caller")).unwrap();
    let chain = authority.sign(request.csr(), &spiffe("caller"), Duration::from_secs(3600)).unwrap();
    foreign.install(request, chain).unwrap();
    // TLS 1.3: the client sees the refusal with its first read.
    if let Ok(stream) = tls(&mesh, &foreign, "caller", "callee").await {
        assert!(call(stream, None).await.is_err());
    }
    let bare = SvidStore::new(mesh.authority.bundle().clone());
    if let Ok(stream) = tls(&mesh, &bare, "caller", "callee").await {
        assert!(call(stream, None).await.is_err());
    }
    assert_eq!(upstream.requests(), 1);
}

/// Callers may come as soon as the node has a function's configuration.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_waits_for_the_first_certificate_of_a_function() {
    let (mesh, _) = mesh().await;
    let svids = &mesh.node.svids;
    svids.remove(&spiffe("callee"));
    let mut handshake = pin!(tls(&mesh, svids, "caller", "callee"));
    assert!(timeout(Duration::from_millis(50), &mut handshake).await.is_err(), "it has not waited");
    let sign = |csr: Vec<u8>| ready(mesh.authority.sign(&csr, &spiffe("callee"), Duration::from_secs(3600)));
    svids.renew(&spiffe("callee"), sign).await.unwrap();
    assert_eq!(call(handshake.await.unwrap(), None).await.unwrap(), 200);
    // Neither a certificate that does not come, nor a function that is not here, is waited for long.
    svids.remove(&spiffe("callee"));
    assert!(tls(&mesh, svids, "caller", "callee").await.is_err());
    assert!(tls(&mesh, svids, "caller", "elsewhere").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_this_node_does_not_run_is_misdirected() {
    let (mesh, _) = mesh().await;
    let stream = tls(&mesh, &mesh.node.svids, "caller", "callee").await.unwrap();
    let mut change = mesh.node.snapshot.load().change();
    change.remove(&crate::mesh::id("callee"));
    mesh.node.snapshot.store(Arc::new(change.finish()));
    assert_eq!(call(stream, None).await.unwrap(), 421);
}

/// A rule that admits every authenticated caller means functions only.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_control_planes_call_no_function() {
    let upstream = upstream::http1(echo).await;
    // The function admits every caller.
    let mesh = Builder::new().function("callee", AppProtocol::Http1, upstream.address).start();
    let domain: TrustDomain = TRUST_DOMAIN.parse().unwrap();
    let node = SpiffeId::node(&domain, "one").unwrap();
    for identity in [node, SpiffeId::control(&domain).unwrap()] {
        let request = KeyRequest::new(&identity).unwrap();
        let chain = mesh.authority.sign(request.csr(), &identity, Duration::from_secs(60)).unwrap();
        mesh.node.svids.install(request, chain).unwrap();
        let config = leno_identity::client_config(&mesh.node.svids, &identity, &spiffe("callee")).unwrap();
        let name = leno_identity::server_name(&spiffe("callee")).unwrap();
        let stream = TcpStream::connect(mesh.handle.addresses.inbound).await.unwrap();
        let stream = TlsConnector::from(config).connect(name, stream).await.unwrap();
        assert_eq!(call(stream, None).await.unwrap(), 421, "{identity}");
    }
    assert_eq!(upstream.connections(), 0);
}
