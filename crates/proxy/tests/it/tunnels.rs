//! Tunnels to pods (HBONE): identities, refusals, and the bytes that reach the program.

use crate::mesh::{Mesh, TRUST_DOMAIN, spiffe};
use crate::pods::{CLIENT, TestPod, connect_from, mesh};
use crate::raw::{self, TIMEOUT, greeting_server};
use crate::upstream::{self, Body, echo, empty};
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_identity::{
    Authority, KeyRequest, MembershipMark, SpiffeId, SvidStore, TimeProvider, UnixTime, tunnel_client_config,
};
use leno_model::{AppProtocol, PodMode, PodPort};
use leno_testkit::eventually_async;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

const HBONE: u16 = 15008;

/// An address of this process for each pod: all of them are called at the same port.
fn pod_address() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let [high, low] = ((std::process::id() % 0xff00) as u16 + 0x100).to_be_bytes();
    SocketAddr::from(([127, high, low, NUMBER.fetch_add(1, Ordering::Relaxed)], HBONE))
}

fn start(mesh: &Mesh, function: &str, program: SocketAddr) -> TestPod {
    TestPod::start_at(pod_address(), mesh, function, program, |_| ())
}

/// The TLS configuration of a client with this identity, which the mesh's authority has signed.
fn config(mesh: &Mesh, identity: &SpiffeId, callee: &str) -> Arc<ClientConfig> {
    let store = SvidStore::new(mesh.authority.bundle().clone());
    let request = KeyRequest::new(identity).unwrap();
    let chain = mesh.authority.sign(request.csr(), identity, Duration::from_secs(3600)).unwrap();
    store.install(request, chain).unwrap();
    tunnel_client_config(&store, identity, vec![spiffe("other"), spiffe(callee)]).unwrap()
}

async fn shake_hands(
    pod: &TestPod,
    config: Arc<ClientConfig>,
    server_name: &'static str,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = connect_from(CLIENT, pod.inbound).await?;
    TlsConnector::from(config).connect(ServerName::try_from(server_name).unwrap(), stream).await
}

/// Why a pod refuses the client.
async fn refusal(pod: &TestPod, config: Arc<ClientConfig>) -> String {
    let error = match shake_hands(pod, config, "203.0.113.1").await {
        // The client ends its part of the handshake first.
        Ok(mut stream) => timeout(TIMEOUT, stream.read_u8()).await.unwrap().unwrap_err(),
        Err(error) => error,
    };
    leno_identity::handshake_failure(&error).unwrap_or_else(|| error.to_string())
}

/// A connection that carries tunnels.
struct Tunnels(SendRequest<Body>);

impl Tunnels {
    /// Connects to a pod.
    async fn open(pod: &TestPod, config: Arc<ClientConfig>, server_name: &'static str) -> io::Result<Self> {
        let stream = shake_hands(pod, config, server_name).await?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    async fn of(mesh: &Mesh, caller: &str, pod: &TestPod, callee: &str) -> Self {
        Self::open(pod, config(mesh, &spiffe(caller), callee), "203.0.113.1").await.unwrap()
    }

    /// The tunnel, or the answer in place of it.
    async fn connect(&self, authority: &str) -> Result<TokioIo<Upgraded>, (StatusCode, HeaderMap)> {
        let request = Request::builder().method(Method::CONNECT).uri(authority);
        // None of them proves anything.
        let request = request
            .header("baggage", "k8s.namespace.name=shop,service.name=web")
            .header("forwarded", "for=1.2.3.4;host=web.shop.svc.cluster.local")
            .header("x-forwarded-client-cert", format!("URI={}", spiffe("web")));
        let mut response = self.0.clone().send_request(request.body(empty()).unwrap()).await.unwrap();
        match response.status() {
            StatusCode::OK => Ok(TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())),
            status => Err((status, response.headers().clone())),
        }
    }

    async fn refused(&self, authority: &str) -> String {
        let (status, headers) = self.connect(authority).await.expect_err("it is open");
        assert!(headers.contains_key("x-request-id"), "{headers:?}");
        format!("{} {}", status.as_u16(), headers["proxy-status"].to_str().unwrap())
    }
}

fn at(pod: &TestPod, port: u16) -> String {
    SocketAddr::new(pod.inbound.ip(), port).to_string()
}

async fn get(tunnel: &mut TokioIo<Upgraded>, fields: &str) -> String {
    let request = format!("GET /a HTTP/1.1\r\nhost: callee\r\n{fields}connection: close\r\n\r\n");
    tunnel.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    timeout(TIMEOUT, tunnel.read_to_string(&mut response)).await.unwrap().unwrap();
    response
}

async fn reason(mesh: &Mesh, words: &str) {
    let found = || mesh.node.telemetry.flows(None).flows;
    let is_there = || found().iter().any(|flow| flow.reason.contains(words));
    eventually_async(&format!("a flow with `{words}` among {:?}", found()), is_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_a_tunnel_are_judged_by_its_certificate() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let (web, callee) = (start(&mesh, "web", program.address), start(&mesh, "callee", program.address));
    let tunnels = Tunnels::of(&mesh, "web", &callee, "callee").await;
    let mut one = tunnels.connect(&at(&callee, 80)).await.unwrap();
    let mut other = tunnels.connect(&at(&callee, 8080)).await.unwrap();
    for tunnel in [&mut one, &mut other] {
        let forged = "x-forwarded-client-cert: URI=spiffe://test.example/ns/shop/sa/forged\r\nbaggage: a=b\r\n";
        let answer = get(tunnel, forged).await;
        assert_eq!(raw::status(&answer), 200, "{answer}");
        assert!(answer.contains(&format!("By={};URI={}\n", spiffe("callee"), spiffe("web"))), "{answer}");
    }
    // One connection to the program for each tunnel.
    assert_eq!((callee.dialled(), program.connections()), (2, 2));
    // A rule about requests decides once there is one.
    let tunnels = Tunnels::of(&mesh, "other", &web, "web").await;
    let answer = get(&mut tunnels.connect(&at(&web, 80)).await.unwrap(), "x-deny: 1\r\n").await;
    assert_eq!(raw::status(&answer), 403, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whom_no_rule_allows_gets_no_tunnel() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let callee = start(&mesh, "callee", program.address);
    let tunnels = Tunnels::of(&mesh, "stranger", &callee, "callee").await;
    assert_eq!(tunnels.refused(&at(&callee, 80)).await, "401 leno; error=http_request_denied");
    reason(&mesh, "test/allow: from.identities").await;
    // The certificate of a node is that of no workload.
    let node: SpiffeId = format!("spiffe://{TRUST_DOMAIN}/ns/leno-nodes/sa/one").parse().unwrap();
    let tunnels = Tunnels::open(&callee, config(&mesh, &node, "callee"), "203.0.113.1").await.unwrap();
    assert_eq!(tunnels.refused(&at(&callee, 80)).await, "401 leno; error=http_request_denied");
    reason(&mesh, "its certificate is not that of a workload").await;
    assert_eq!(callee.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_leads_to_a_program_of_the_pod_and_nowhere_else() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let web = start(&mesh, "web", program.address);
    let tunnels = Tunnels::of(&mesh, "other", &web, "web").await;
    let tunnel = at(&web, HBONE);
    for authority in ["127.0.0.1:80", "web.shop.svc.cluster.local:80", &at(&web, 0), &tunnel, "web:80"] {
        assert_eq!(tunnels.refused(authority).await, "400 leno; error=http_request_error", "{authority}");
        reason(&mesh, &format!("it names `{authority}`")).await;
    }
    let get = Request::get(format!("http://{tunnel}/")).body(empty()).unwrap();
    assert_eq!(tunnels.0.clone().send_request(get).await.unwrap().status(), 400);
    reason(&mesh, "it is no CONNECT").await;
    assert_eq!(web.dialled(), 0);
    // Nothing listens there.
    let nobody = start(&mesh, "web", std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let tunnels = Tunnels::of(&mesh, "other", &nobody, "web").await;
    assert_eq!(tunnels.refused(&at(&nobody, 80)).await, "503 leno; error=connection_refused");
    reason(&mesh, "Connection refused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_speak_first_see_the_tunnels_client_and_both_ends() {
    let program = greeting_server().await;
    let mesh = mesh(AppProtocol::Http1, program);
    let web = start(&mesh, "web", program);
    // Whatever server name a client asks for, it gets the pod's certificate.
    let named = config(&mesh, &spiffe("other"), "web");
    let mut asks = ClientConfig::clone(&named);
    asks.enable_sni = true;
    for (config, name) in [(named, "203.0.113.1"), (Arc::new(asks), "another.example")] {
        let tunnels = Tunnels::open(&web, config, name).await.unwrap();
        let mut mail = tunnels.connect(&at(&web, 25)).await.unwrap();
        let mut line = [0; 11];
        mail.read_exact(&mut line).await.unwrap();
        mail.write_all(b"EHLO").await.unwrap();
        let mut echoed = [0; 4];
        mail.read_exact(&mut echoed).await.unwrap();
        assert_eq!((&line, &echoed), (b"220 ready\r\n", b"EHLO"));
        mail.shutdown().await.unwrap();
        assert_eq!(mail.read(&mut line).await.unwrap(), 0);
    }
    let flows = || mesh.node.telemetry.flows(None).flows;
    let is_told =
        || flows().iter().filter(|flow| flow.source == spiffe("other").as_str() && flow.sent == 4).count() == 2;
    eventually_async("the flows of the connections", is_told).await;
    let shown = raw::server(|mut raw| async move {
        let address = raw.0.peer_addr().unwrap().ip();
        raw.send(address.to_string()).await;
    });
    let shown = start(&mesh, "web", shown.await);
    let tunnels = Tunnels::of(&mesh, "other", &shown, "web").await;
    let mut seen = String::new();
    tunnels.connect(&at(&shown, 25)).await.unwrap().read_to_string(&mut seen).await.unwrap();
    assert_eq!(seen, CLIENT.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_of_either_end_is_a_reset_at_the_other() {
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let program = raw::server(move |mut raw| {
        let told = told.clone();
        async move {
            raw.send("220 ready\r\n").await;
            if raw.until("\n").await == "break\n" {
                return reset(&raw.0);
            }
            let mut piece = [0; 64];
            let broken = raw.0.read(&mut piece).await;
            told.send(broken.map_err(|error| error.kind())).unwrap();
        }
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program);
    let web = start(&mesh, "web", program);
    let tunnels = Tunnels::of(&mesh, "other", &web, "web").await;
    let mut tunnel = tunnels.connect(&at(&web, 25)).await.unwrap();
    tunnel.write_all(b"break\n").await.unwrap();
    let mut all = Vec::new();
    assert!(tunnel.read_to_end(&mut all).await.is_err(), "{all:?}");
    let mut tunnel = tunnels.connect(&at(&web, 25)).await.unwrap();
    tunnel.write_all(b"half\n").await.unwrap();
    tunnel.read_exact(&mut [0; 11]).await.unwrap();
    drop(tunnel);
    assert_eq!(heard.recv().await.unwrap(), Err(io::ErrorKind::ConnectionReset));
}

/// Has a connection end with a reset.
fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// A clock that a test sets.
#[derive(Debug)]
struct Clock(AtomicU64);

impl Clock {
    fn now() -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::SeqCst))))
    }
}

/// The configuration of a client whose clock stands still, with a certificate of this authority.
fn config_of(authority: &Authority, mesh: &Mesh, identity: &SpiffeId, lifetime: u64) -> Arc<ClientConfig> {
    let clock = Arc::new(Clock(AtomicU64::new(Clock::now())));
    let store = SvidStore::with_clock(authority.bundle().clone(), clock);
    let request = KeyRequest::new(identity).unwrap();
    let chain = authority.sign(request.csr(), identity, Duration::from_secs(lifetime)).unwrap();
    store.install(request, chain).unwrap();
    store.set_bundle(mesh.authority.bundle().clone());
    tunnel_client_config(&store, identity, vec![spiffe("web")]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_prove_nothing_are_refused_with_the_reason_on_both_sides() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let web = start(&mesh, "web", program.address);
    let other = spiffe("other");
    let end = Clock::now() + 2;
    let expires = config_of(&mesh.authority, &mesh, &other, 1);
    let own = Authority::new(&TRUST_DOMAIN.parse().unwrap()).unwrap();
    let foreign = Authority::new(&"other.example".parse().unwrap()).unwrap();
    let stranger = "spiffe://other.example/ns/shop/sa/web".parse().unwrap();
    for config in [config_of(&own, &mesh, &other, 60), config_of(&foreign, &mesh, &stranger, 60)] {
        let unknown = refusal(&web, config).await;
        assert!(unknown.contains("UnknownCA"), "{unknown}");
    }
    reason(&mesh, "no trusted root has signed the peer's certificate").await;
    let store = SvidStore::new(mesh.authority.bundle().clone());
    let none = refusal(&web, tunnel_client_config(&store, &other, vec![spiffe("web")]).unwrap()).await;
    assert!(none.contains("CertificateRequired"), "{none}");
    reason(&mesh, "no certificate").await;
    eventually_async("the end of the certificate", || Clock::now() > end).await;
    let expired = refusal(&web, expires).await;
    assert!(expired.contains("CertificateExpired"), "{expired}");
    reason(&mesh, "the peer's certificate has expired").await;
    // The client refuses a pod that has another identity.
    let expected = config(&mesh, &other, "callee");
    let refused = refusal(&web, expected).await;
    assert!(refused.contains("/sa/web` and not"), "{refused}");
    reason(&mesh, "the peer ended the handshake").await;
    // It speaks no TLS.
    let mut plain = raw::Raw(connect_from(CLIENT, web.inbound).await.unwrap());
    plain.send("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
    assert!(!plain.rest().await.contains("200"));
    assert_eq!(web.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_of_a_revoked_node_end() {
    let program = greeting_server().await;
    let mesh = mesh(AppProtocol::Http1, program);
    let web = start(&mesh, "web", program);
    let membership = MembershipMark([9; 8]);
    let store = SvidStore::new(mesh.authority.bundle().clone());
    let (request, other) = (KeyRequest::new(&spiffe("other")).unwrap(), spiffe("other"));
    let lifetime = Duration::from_secs(3600);
    let chain = mesh.authority.sign_node(request.csr(), &other, &[], membership, lifetime).unwrap();
    store.install(request, chain).unwrap();
    let config = tunnel_client_config(&store, &other, vec![spiffe("web")]).unwrap();
    let tunnels = Tunnels::open(&web, config.clone(), "203.0.113.1").await.unwrap();
    let mut mail = tunnels.connect(&at(&web, 25)).await.unwrap();
    mail.read_exact(&mut [0; 11]).await.unwrap();
    mesh.revoke(membership);
    let mut rest = Vec::new();
    assert!(timeout(TIMEOUT, mail.read_to_end(&mut rest)).await.unwrap().is_err(), "{rest:?}");
    reason(&mesh, "the other node was revoked").await;
    let request = Request::builder().method(Method::CONNECT).uri(at(&web, 25)).body(empty()).unwrap();
    assert!(tunnels.0.clone().send_request(request).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn open_tunnels_go_on_when_a_child_takes_over_and_their_connection_takes_no_more() {
    let program = greeting_server().await;
    let mesh = mesh(AppProtocol::Http1, program);
    let web = start(&mesh, "web", program);
    let tunnels = Tunnels::of(&mesh, "other", &web, "web").await;
    let mut mail = tunnels.connect(&at(&web, 25)).await.unwrap();
    mail.read_exact(&mut [0; 11]).await.unwrap();
    let authority = at(&web, 25);
    let leaving = tokio::spawn(mesh.handle.hand_over());
    let mut sender = tunnels.0.clone();
    // GOAWAY.
    while sender.ready().await.is_ok() {
        let request = Request::builder().method(Method::CONNECT).uri(&authority).body(empty()).unwrap();
        if sender.send_request(request).await.is_err() {
            break;
        }
    }
    mail.write_all(b"still").await.unwrap();
    let mut echoed = [0; 5];
    mail.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"still");
    mail.shutdown().await.unwrap();
    assert_eq!(mail.read(&mut echoed).await.unwrap(), 0);
    timeout(TIMEOUT, leaving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_declares_the_port_keeps_it() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start_at(pod_address(), &mesh, "web", program.address, |pod| {
        pod.mode = PodMode::Enforced;
        pod.ports = vec![PodPort { name: None, number: HBONE }];
    });
    let mut plain = raw::Raw(connect_from(CLIENT, pod.inbound).await.unwrap());
    plain.send("GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
    assert_eq!(raw::status(&plain.rest().await), 200);
}
