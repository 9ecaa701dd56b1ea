//! Routes of connections without HTTP, from a gateway on the node that connects to an External and
//! from another.

use super::publish;
use crate::mesh::{Mesh, allow_all, id};
use crate::nodes::egress::carrier;
use crate::raw::TIMEOUT;
use leno_model::{EgressProtocol, GatewayRoutes, PortRange, StreamBackend, StreamListener, StreamRoute};
use leno_policy::spec::{Action, AuthorizationRule, Cidr, Matches, Source};
use leno_testkit::free_port;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// An address of this machine from which no connection is allowed.
const FORBIDDEN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Refuses clients with this address.
fn refuses(address: Ipv4Addr) -> AuthorizationRule {
    let addresses = Matches { any: vec![Cidr { address: address.into(), prefix: 32 }], none: Vec::new() };
    AuthorizationRule {
        name: "test/refuses".to_owned(),
        action: Action::Deny,
        from: vec![Source { addresses, ..Source::default() }],
        ..allow_all()
    }
}

/// Sends the received bytes back, in upper case.
async fn shouts() -> u16 {
    let listener = TcpListener::bind((LOCAL, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all.to_ascii_uppercase()).await.unwrap();
            });
        }
    });
    port
}

/// Opens a port whose route has these back ends.
fn lead(mesh: &Mesh, backends: Vec<StreamBackend>) -> u16 {
    let port = free_port();
    let route = StreamRoute { name: "shop/tcp".to_owned(), hosts: vec!["*".to_owned()], backends };
    let listener = StreamListener {
        name: "shop/edge/tcp".to_owned(),
        port,
        tls: None,
        host: None,
        certificates: Vec::new(),
        routes: vec![route],
    };
    publish(mesh, &GatewayRoutes { streams: vec![listener], ..GatewayRoutes::default() });
    assert!(mesh.handle.ports.set(&mesh.node.snapshot.load(), true).is_empty());
    port
}

/// The bytes that come back; none: the connection was closed.
async fn sent_from(client: Ipv4Addr, port: u16, text: &str) -> String {
    let exchange = async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((client, 0))).unwrap();
        let connected = socket.connect(SocketAddr::from((LOCAL, port))).await;
        if connected.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset) {
            return String::new();
        }
        let mut stream = connected.unwrap();
        let mut answer = Vec::new();
        // It may be closed already.
        if stream.write_all(text.as_bytes()).await.is_ok() && stream.shutdown().await.is_ok() {
            let _ = stream.read_to_end(&mut answer).await;
        }
        String::from_utf8(answer).unwrap()
    };
    timeout(TIMEOUT, exchange).await.expect("nothing ended the connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_follow_routes_and_their_back_end_judges_the_client() {
    let port = shouts().await;
    let carrier = |is_routed: bool| {
        let mut builder = carrier(LOCAL, &[(port, EgressProtocol::Tcp)], allow_all()).config("callee", |config| {
            config.is_routed = is_routed;
            config.inbound.authorization.insert(0, refuses(FORBIDDEN));
        });
        builder.mesh.gateway_ports = vec![PortRange { first: 1, last: u16::MAX }];
        builder
    };
    let (near, there, closed) = (carrier(true).start(), carrier(true).start(), carrier(false).start());
    let [far, refused] = [&there, &closed].map(|node| {
        let far = carrier(true).remote("callee").with(node).start();
        far.knows("callee", &[(node, 1)]);
        far
    });
    let backend = |target: Option<&str>, weight| StreamBackend {
        target: target.map(id),
        port,
        tls: false,
        host: LOCAL.to_string(),
        weight,
    };
    let ports = [&near, &far, &refused].map(|mesh| lead(mesh, vec![backend(Some("callee"), 1), backend(None, 0)]));
    for port in &ports[..2] {
        assert_eq!(sent_from(LOCAL, *port, "ping").await, "PING");
        assert_eq!(sent_from(FORBIDDEN, *port, "ping").await, "", "the client's address is judged");
    }
    assert_eq!(sent_from(LOCAL, ports[2], "ping").await, "", "the External's node knows of no route");
    // The share of a back end that does not exist is closed, and so is everything without a back end.
    let shares = lead(&near, vec![backend(Some("callee"), 1), backend(None, 1)]);
    let mut answers = Vec::new();
    while answers.len() < 200 && !(answers.contains(&"PING".to_owned()) && answers.contains(&String::new())) {
        answers.push(sent_from(LOCAL, shares, "ping").await);
    }
    assert!(answers.len() < 200, "both get a share");
    let none = lead(&near, vec![backend(Some("callee"), 0)]);
    assert_eq!(sent_from(LOCAL, none, "ping").await, "");
}
