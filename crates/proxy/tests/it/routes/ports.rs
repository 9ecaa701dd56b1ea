//! Ports that Gateway documents open, and the certificates of their listeners.

use super::{below, publish, route, to};
use crate::mesh::{Builder, Mesh};
use crate::raw::{Raw, TIMEOUT};
use crate::upstream::{self, echo};
use leno_model::{
    AppProtocol, AttachedRoute, Attachment, GatewayRoutes, PortRange, RouteListener, SecretBytes, StoredKey,
};
use leno_proxy::PortError;
use leno_testkit::{eventually_async, free_port};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// A function `web`, which is exposed at the ports of the Mesh document.
async fn mesh() -> Mesh {
    let web = upstream::http1(echo).await;
    let mut builder = Builder::new().workers(2).function("web", AppProtocol::Http1, web.address);
    builder.mesh.gateway_ports = vec![PortRange { first: 1, last: u16::MAX }];
    builder.config("web", |config| config.is_routed = true).start()
}

fn listener(name: &str, port: u16, certificates: &[&str]) -> RouteListener {
    RouteListener {
        name: format!("shop/edge/{name}"),
        port,
        tls: !certificates.is_empty(),
        host: None,
        opened: true,
        certificates: certificates.iter().map(ToString::to_string).collect(),
    }
}

/// Puts listeners into force that lead all hosts below `/api` to `web`. Returns the ports that are
/// not open.
fn set(mesh: &Mesh, listeners: &[RouteListener]) -> Vec<u16> {
    let attachment = |listener: &RouteListener| Attachment {
        listener: listener.name.clone(),
        hosts: vec![listener.host.clone().unwrap_or_else(|| "*".to_owned())],
    };
    let route = AttachedRoute {
        route: route("shop/web", vec![to(below("/api"), "web")]),
        attachments: listeners.iter().map(attachment).collect(),
    };
    publish(mesh, &GatewayRoutes { listeners: listeners.to_vec(), routes: vec![route], streams: Vec::new() });
    let missing = mesh.handle.ports.set(&mesh.node.snapshot.load(), true);
    missing.into_iter().map(|(port, _)| port).collect()
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn status(port: u16, path: &str) -> String {
    let mut raw = Raw::connect(local(port)).await;
    raw.send(format!("GET {path} HTTP/1.1\r\nhost: any.example\r\n\r\n")).await;
    raw.head().await.split(' ').nth(1).unwrap().to_owned()
}

async fn is_closed(port: u16) {
    eventually_async("the port to close", || std::net::TcpStream::connect(local(port)).is_err().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_open_as_long_as_a_listener_has_it() {
    let mesh = mesh().await;
    let [one, two] = [free_port(), free_port()];
    assert!(set(&mesh, &[listener("one", one, &[]), listener("two", two, &[])]).is_empty());
    for port in [one, two] {
        assert_eq!(status(port, "/api/1").await, "200");
        // The function is exposed at the ports of the Mesh document only.
        assert_eq!(status(port, "/other").await, "404");
    }
    assert_eq!(status(mesh.gateway().port(), "/other").await, "200");
    // An idle connection of a port that closes ends, and one of another port does not.
    let mut idle = Raw::connect(local(one)).await;
    let mut other = Raw::connect(local(two)).await;
    for raw in [&mut idle, &mut other] {
        raw.send("GET /api/1 HTTP/1.1\r\nhost: any.example\r\n\r\n").await;
        raw.head().await;
        raw.rest_of_body().await;
    }
    assert!(set(&mesh, &[listener("two", two, &[])]).is_empty());
    assert_eq!(idle.rest().await, "");
    is_closed(one).await;
    other.send("GET /api/1 HTTP/1.1\r\nhost: any.example\r\n\r\n").await;
    assert!(other.head().await.starts_with("HTTP/1.1 200"));
    // It opens again.
    assert!(set(&mesh, &[listener("one", one, &[]), listener("two", two, &[])]).is_empty());
    assert_eq!(status(one, "/api/1").await, "200");
    // Without any listener, requests on open connections reach nothing.
    other.rest_of_body().await;
    assert!(set(&mesh, &[]).is_empty());
    assert_eq!(other.rest().await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_process_has_is_reported_and_tried_again() {
    let mesh = mesh().await;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (taken, free) = (other.local_addr().unwrap().port(), free_port());
    let listeners = [listener("taken", taken, &[]), listener("free", free, &[])];
    assert_eq!(set(&mesh, &listeners), [taken]);
    assert_eq!(status(free, "/api/1").await, "200");
    drop(other);
    assert!(set(&mesh, &listeners).is_empty());
    assert_eq!(status(taken, "/api/1").await, "200");
    // The parent of a hot restart passes all sockets, and a process that does not own the node opens
    // none.
    assert_eq!(mesh.handle.sockets().unwrap().len(), 3 + 2);
    let more = free_port();
    publish(
        &mesh,
        &GatewayRoutes { listeners: vec![listener("more", more, &[])], routes: Vec::new(), streams: Vec::new() },
    );
    let missing = mesh.handle.ports.set(&mesh.node.snapshot.load(), false);
    assert!(matches!(missing[..], [(port, PortError::NotYet)] if port == more), "{missing:?}");
    is_closed(taken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_the_mesh_does_not_permit_stays_closed() {
    let web = upstream::http1(echo).await;
    let mesh = Builder::new().function("web", AppProtocol::Http1, web.address).start();
    let port = free_port();
    assert!(set(&mesh, &[listener("one", port, &[])]).is_empty());
    assert!(TcpStream::connect(local(port)).await.is_err());
}

struct TestCertificate {
    der: CertificateDer<'static>,
    values: [(&'static str, String); 2],
}

fn issued(names: &[&str]) -> TestCertificate {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let values = [("tls.crt", made.cert.pem()), ("tls.key", made.signing_key.serialize_pem())];
    TestCertificate { der: made.cert.der().clone(), values }
}

fn store(mesh: &Mesh, secrets: &[(&str, &TestCertificate)]) {
    let values = secrets.iter().flat_map(|(secret, issued)| {
        issued.values.iter().map(|(key, value)| {
            let stored = StoredKey { secret: (*secret).to_owned(), key: (*key).to_owned() };
            (stored, SecretBytes::new(value.as_bytes().to_vec().into(), [0; 16]))
        })
    });
    mesh.node.listener_certificates.set(&values.collect());
}

/// The certificate that a client gets which asks for this name.
async fn shown(port: u16, name: &'static str) -> Option<CertificateDer<'static>> {
    let stream = TcpStream::connect(local(port)).await.unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let seen = Arc::new(Seen);
    let mut config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.dangerous().set_certificate_verifier(seen);
    let stream = TlsConnector::from(Arc::new(config)).connect(name.try_into().unwrap(), stream).await.ok()?;
    Some(stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned())
}

/// Takes each certificate, so that tests can look at it.
#[derive(Debug)]
struct Seen;

impl rustls::client::danger::ServerCertVerifier for Seen {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_certificate_of_the_listener_that_serves_its_name() {
    let mesh = mesh().await;
    let port = free_port();
    let [one, two, wide, broken] =
        [issued(&["a.example"]), issued(&["b.example"]), issued(&["*.wide.example"]), issued(&["c.example"])];
    let broken = TestCertificate { values: [broken.values[0].clone(), one.values[1].clone()], ..broken };
    store(&mesh, &[("shop/one", &one), ("shop/two", &two), ("shop/wide", &wide), ("shop/broken", &broken)]);
    let of = |name: &str, host: &str, secrets: &[&str]| RouteListener {
        host: Some(host.to_owned()),
        ..listener(name, port, secrets)
    };
    let listeners = [
        of("several", "*.example", &["shop/one", "shop/two"]),
        of("wide", "*.wide.example", &["shop/wide"]),
        of("broken", "c.example", &["shop/broken"]),
    ];
    assert!(set(&mesh, &listeners).is_empty());
    for (name, wanted) in [
        ("a.example", Some(&one)),
        ("b.example", Some(&two)),
        // The first one of its listener.
        ("d.example", Some(&one)),
        ("x.wide.example", Some(&wide)),
        ("c.example", None),
        // No listener serves it.
        ("else.test", None),
    ] {
        let shown = shown(port, name).await;
        assert_eq!(shown.as_ref(), wanted.map(|wanted| &wanted.der), "{name}");
    }
    let fault = mesh.node.listener_certificates.fault("shop/broken").unwrap();
    assert!(fault.contains("`tls.key`: this key does not belong to the certificate"), "{fault}");
    assert!(mesh.node.listener_certificates.fault("shop/absent").unwrap().contains("has not delivered it"));
    // A new certificate needs no new port.
    let new = issued(&["a.example"]);
    store(&mesh, &[("shop/one", &new)]);
    assert_eq!(shown(port, "a.example").await.as_ref(), Some(&new.der));
    assert_eq!(shown(port, "x.wide.example").await, None);
    // Another protocol at the same port.
    assert!(set(&mesh, &[listener("plain", port, &[])]).is_empty());
    let plain = async { while shown(port, "a.example").await.is_some() {} };
    timeout(TIMEOUT, plain).await.expect("the port still takes TLS");
    assert_eq!(status(port, "/api/1").await, "200");
}
