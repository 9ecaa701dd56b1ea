//! The TLS gateway: ALPN selects the protocol, and header fields report it to the callee.

use crate::mesh::{Builder, Mesh};
use crate::upstream::{self, answer, echo, empty};
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::{AppProtocol, GatewayTls, TrustedProxies};
use leno_policy::spec::Cidr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

async fn mesh() -> (Mesh, rustls::pki_types::CertificateDer<'static>) {
    mesh_with(|builder| builder).await
}

pub(crate) async fn mesh_with(
    change: impl FnOnce(Builder) -> Builder,
) -> (Mesh, rustls::pki_types::CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["web".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tls = GatewayTls {
        listen: "127.0.0.1:0".parse().unwrap(),
        certificate: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
        further: Vec::new(),
    };
    std::fs::write(&tls.certificate, made.cert.pem()).unwrap();
    std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    let upstream = upstream::http1(echo).await;
    let mesh = change(Builder::new().function("web", AppProtocol::Http1, upstream.address).https(tls)).start();
    (mesh, made.cert.der().clone())
}

async fn connect(
    mesh: &Mesh,
    root: &rustls::pki_types::CertificateDer<'static>,
    alpn: &[&[u8]],
) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(mesh.handle.addresses.gateway_https.unwrap()).await.unwrap();
    handshake(stream, root, alpn).await
}

pub(crate) async fn handshake(
    stream: TcpStream,
    root: &rustls::pki_types::CertificateDer<'static>,
    alpn: &[&[u8]],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config)).connect("web".try_into().unwrap(), stream).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_are_served_over_tls() {
    let (mesh, root) = mesh().await;
    let stream = connect(&mesh, &root, &[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let reply = answer(sender.send_request(Request::get("https://web/").body(empty()).unwrap()).await.unwrap()).await;
    assert!(reply.text.contains("\nx-forwarded-proto: https\n"), "{}", reply.text);
    for alpn in [&[&b"http/1.1"[..]][..], &[]] {
        let stream = connect(&mesh, &root, alpn).await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("/").header("host", "web").body(empty()).unwrap();
        let reply = answer(sender.send_request(request).await.unwrap()).await;
        assert!(reply.status == 200 && reply.text.contains("\nx-forwarded-proto: https\n"), "{}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_requests_are_redirected_on_request() {
    let proxies = TrustedProxies::Addresses(vec![Cidr { address: "127.0.0.1".parse().unwrap(), prefix: 32 }]);
    let (mesh, root) = mesh_with(|mut builder| {
        (builder.mesh.https_redirect, builder.mesh.trusted_proxies) = (Some(8443), proxies);
        builder
    })
    .await;
    let plain = mesh.handle.addresses.gateway_http.unwrap();
    let ask = async |head: &str| crate::raw::exchange(plain, &format!("{head}connection: close\r\n\r\n")).await;
    let cases = [
        ("GET /a/b?c=%20d HTTP/1.1\r\nhost: web\r\n", "https://web:8443/a/b?c=%20d"),
        ("POST / HTTP/1.1\r\nhost: web:8080\r\ncontent-length: 0\r\n", "https://web:8443/"),
        ("GET /x HTTP/1.1\r\nhost: [::1]:8080\r\n", "https://[::1]:8443/x"),
        ("GET /nowhere HTTP/1.1\r\nhost: other\r\nx-forwarded-proto: http\r\n", "https://other:8443/nowhere"),
    ];
    for (head, location) in cases {
        let reply = ask(head).await;
        assert!(reply.starts_with("HTTP/1.1 308 ") && reply.contains(&format!("location: {location}\r\n")), "{reply}");
    }
    let malformed = ask("GET / HTTP/1.1\r\nhost: a b\r\n").await;
    assert!(malformed.starts_with("HTTP/1.1 400 "), "{malformed}");
    let behind = ask("GET / HTTP/1.1\r\nhost: web\r\nx-forwarded-proto: https\r\n").await;
    assert!(behind.starts_with("HTTP/1.1 200 "), "the trusted proxy's client used HTTPS: {behind}");
    let stream = connect(&mesh, &root, &[b"http/1.1"]).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/").header("host", "web").body(empty()).unwrap();
    assert_eq!(answer(sender.send_request(request).await.unwrap()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_is_not_served_there() {
    let (mesh, _) = mesh().await;
    let reply =
        crate::raw::exchange(mesh.handle.addresses.gateway_https.unwrap(), "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("use https://"), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_agreed_on_is_spoken() {
    let (mesh, root) = mesh().await;
    let mut stream = connect(&mesh, &root, &[b"h2"]).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    // An error ends the reply as well.
    let _ = stream.read_to_end(&mut reply).await;
    assert!(!reply.windows(8).any(|bytes| bytes == b"HTTP/1.1"), "{}", String::from_utf8_lossy(&reply));
}
