//! TCP connections without HTTP requests, such as those of Redis, to a function on another node.

use super::{callee, caller, closed};
use crate::mesh::{Builder, Mesh, id, spiffe};
use crate::raw::TIMEOUT;
use crate::upstream::{self, echo};
use crate::withdrawn::remove;
use leno_identity::{KeyRequest, MembershipMark};
use leno_model::{Command, Port, PortProtocol, Readiness, Run};
use leno_policy::spec::{Action, AuthorizationRule, Cidr, Matches, Operation, Source, StringMatch};
use leno_proxy::{FunctionEntry, RemovedFunctions};
use leno_testkit::eventually_async;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Echoes all bytes.
pub(super) async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

/// An address of this machine other than loopback, because loopback addresses lead to the node
/// itself. No packet is sent to find it.
fn own_address() -> Ipv4Addr {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("this test needs a network interface besides the loopback");
    match socket.local_addr().unwrap().ip() {
        std::net::IpAddr::V4(address) => address,
        std::net::IpAddr::V6(_) => unreachable!(),
    }
}

fn port(number: u16) -> Port {
    Port { number, protocol: PortProtocol::Tcp, splice: true }
}

/// Only this function may connect to this port.
fn only(name: &str, port: u16) -> AuthorizationRule {
    let identities = Matches { any: vec![StringMatch::Exact(spiffe(name).to_string())], none: vec![] };
    let ports = Matches { any: vec![port], none: vec![] };
    AuthorizationRule {
        name: "test/only".into(),
        action: Action::Allow,
        from: vec![Source { identities, ..Source::default() }],
        to: vec![Operation { ports, ..Operation::default() }],
        when: vec![],
        audit: false,
    }
}

/// Two nodes, and the address that the caller's instance connects to.
struct TcpPair {
    here: Mesh,
    there: Mesh,
    called: SocketAddr,
}

impl TcpPair {
    async fn new(allowed: &str) -> Self {
        let served = echo_server().await;
        let number = served.port();
        let http = upstream::http1(echo).await;
        let there = callee(&http).config("callee", |config| {
            config.run = Run::Command(command(vec![port(number)]));
            config.inbound.authorization = vec![only(allowed, number)];
        });
        let there = there.start();
        let own = own_address();
        let here = caller().with(&there).config("caller", |config| {
            config.callees[0].ports = vec![port(number)];
            config.callees[0].addresses = vec![Cidr { address: own.into(), prefix: 32 }];
        });
        let here = here.start();
        here.knows_at("callee", &[(closed().await, 9, Default::default()), (there.inbound(), 1, Default::default())]);
        let sockets = std::net::TcpListener::bind((own, number)).unwrap();
        let names = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sockets.set_nonblocking(true).unwrap();
        names.set_nonblocking(true).unwrap();
        let called = sockets.local_addr().unwrap();
        let instance = here.node.credentials.admit(&id("caller"), "caller-1");
        here.handle.interceptor.serve(instance, sockets, names, Box::new(()));
        Self { here, there, called }
    }

    /// The latest records of connections at both nodes: verdict, bytes to and from.
    async fn told(&self) -> [(String, u64, u64); 2] {
        let last = |mesh: &Mesh| {
            let flows = mesh.node.telemetry.flows(None).flows;
            let flow = flows.into_iter().rfind(|flow| flow.kind == "connection")?;
            Some((flow.verdict, flow.sent, flow.received))
        };
        eventually_async("the record of the exchange", || last(&self.here).is_some() && last(&self.there).is_some())
            .await;
        [last(&self.here).unwrap(), last(&self.there).unwrap()]
    }
}

fn command(ports: Vec<Port>) -> Command {
    Command {
        argv: vec![],
        directory: "/".into(),
        env: Default::default(),
        secrets: vec![],
        resources: Default::default(),
        isolation: Default::default(),
        read_only_paths: vec![],
        volumes: vec![],
        persistent: vec![],
        port: None,
        ports,
        readiness: Readiness::Tcp,
        liveness: None,
        startup_timeout: Duration::from_secs(1),
        container: None,
        grace: Duration::from_secs(1),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_both_ways_and_both_nodes_tell_of_it() {
    let relayed = TcpPair::new("caller").await;
    let mut stream = TcpStream::connect(relayed.called).await.unwrap();
    for message in ["PING\r\n", "and again"] {
        stream.write_all(message.as_bytes()).await.unwrap();
        let mut back = vec![0; message.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, message.as_bytes());
    }
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0, "the end arrives as an end");
    let bytes = "PING\r\nand again".len() as u64;
    for (verdict, sent, received) in relayed.told().await {
        assert_eq!((verdict.as_str(), sent, received), ("allow", bytes, bytes));
    }
    assert_eq!(relayed.there.instances.leased.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callees_node_refuses_and_starts_nothing() {
    let relayed = TcpPair::new("stranger").await;
    // The connection may be reset before the connect has returned.
    if let Ok(mut stream) = TcpStream::connect(relayed.called).await {
        assert!(stream.read_u8().await.is_err());
    }
    for (verdict, sent, received) in relayed.told().await {
        assert_eq!((verdict.as_str(), sent, received), ("deny", 0, 0));
    }
    assert_eq!(relayed.there.instances.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_withdrawn_on_the_callees_node_ends_the_connection() {
    let relayed = TcpPair::new("caller").await;
    let mut stream = TcpStream::connect(relayed.called).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    let node = &relayed.there.node;
    let snapshot = node.snapshot.load_full();
    let mut config = snapshot.functions.get(&id("callee")).unwrap().config.clone();
    config.inbound.authorization.clear();
    let mut change = snapshot.change();
    change.insert(Arc::new(FunctionEntry::load(&leno_sandbox::Engine::inline(), config)));
    node.publish(Arc::new(change.finish()));
    let broken = stream.read_u8().await.unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset, "a break is not an ordinary end");
    let [(near, ..), (verdict, sent, received)] = relayed.told().await;
    assert_eq!((near.as_str(), verdict.as_str(), sent, received), ("error", "deny", 1, 1));
}

/// A connection goes on while its removed caller or callee drains. The node that had the function
/// closes it when the time for that is over: after 5 s if a permission was withdrawn with the
/// function.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_a_removed_function_is_closed_by_the_node_that_had_it() {
    for removed in ["callee", "caller"] {
        let relayed = TcpPair::new("caller").await;
        let mut stream = TcpStream::connect(relayed.called).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        let mesh = if removed == "callee" { &relayed.there } else { &relayed.here };
        remove(mesh, removed, Duration::from_secs(600));
        stream.write_all(b"y").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'y', "{removed}");
        mesh.node.set_removed(RemovedFunctions::default());
        let broken = timeout(TIMEOUT, stream.read_u8()).await.expect(removed).unwrap_err();
        assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset, "{removed}");
        let [(here, ..), (there, ..)] = relayed.told().await;
        let by = if removed == "callee" { there } else { here };
        assert_eq!(by, "deny", "{removed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_the_certificate_of_either_end() {
    for short in ["caller", "callee"] {
        let relayed = TcpPair::new("caller").await;
        let mesh = if short == "caller" { &relayed.here } else { &relayed.there };
        let request = KeyRequest::new(&spiffe(short)).unwrap();
        let chain = mesh.authority.sign(request.csr(), &spiffe(short), Duration::from_secs(3)).unwrap();
        mesh.node.svids.install(request, chain).unwrap();
        let mut stream = TcpStream::connect(relayed.called).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        let broken = stream.read_u8().await.unwrap_err();
        assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);
        // The other node sees the certificate expire.
        let [here, there] = relayed.told().await;
        let (verdict, ..) = if short == "caller" { there } else { here };
        assert_eq!(verdict, "deny", "{short}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_when_the_node_at_either_end_is_revoked() {
    for revoked in ["caller", "callee"] {
        let relayed = TcpPair::new("caller").await;
        let (mesh, other) = match revoked {
            "caller" => (&relayed.here, &relayed.there),
            _ => (&relayed.there, &relayed.here),
        };
        mesh.certify(&[revoked], MembershipMark([7; 8]));
        let mut stream = TcpStream::connect(relayed.called).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        other.revoke(MembershipMark([7; 8]));
        let broken = timeout(TIMEOUT, stream.read_u8()).await.expect(revoked).unwrap_err();
        assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset, "{revoked}");
        let [here, there] = relayed.told().await;
        let (verdict, ..) = if revoked == "caller" { there } else { here };
        assert_eq!(verdict, "deny", "{revoked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_ports_that_serve_something_else_can_be_connected_to() {
    let http = upstream::http1(echo).await;
    let there = callee(&http).start();
    let here = Builder::new().function("caller", leno_model::AppProtocol::Http1, http.address).with(&there).start();
    let mut client = there.as_sidecar(&here, &spiffe("caller"), "callee").await;
    for (target, status) in [(format!("callee.shop:{}", http.address.port()), 403), ("callee.shop:80".to_owned(), 403)]
    {
        let request = http::Request::connect(&target).body(upstream::empty()).unwrap();
        assert_eq!(client.send_request(request).await.unwrap().status(), status, "{target}");
    }
    assert_eq!((http.connections(), there.instances.asked.load(Ordering::Relaxed)), (0, 0));
}
