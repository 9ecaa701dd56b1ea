//! A node and a control plane of another release, for which frozen payloads stand in.

use crate::support::configs::{DOMAIN, function};
use crate::support::*;
use leno_agent::{Change, Update};
use leno_control::{Control, Store};
use leno_identity::{Authority, KeyRequest, Membership, SpiffeId, SvidStore, control_server_config};
use leno_wire::v1::discovery_server::{Discovery, DiscoveryServer};
use leno_wire::v1::{self, from_node, to_node};
use leno_wire::{Resource, Subject, Version};
use rmpv::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

const CHECKOUT: &str = "shop/checkout";

/// A control plane of a later release, simulated: it sends the messages of the test, and passes on
/// the messages of nodes.
struct Later {
    address: SocketAddr,
    /// Of a node of this release.
    member: Membership,
    nodes: mpsc::Receiver<Conversation>,
}

struct Conversation {
    from_node: Streaming<v1::FromNode>,
    to_node: mpsc::Sender<Result<v1::ToNode, Status>>,
}

struct Service(mpsc::Sender<Conversation>);

#[tonic::async_trait]
impl Discovery for Service {
    type DeltasStream = ReceiverStream<Result<v1::ToNode, Status>>;

    async fn deltas(&self, request: Request<Streaming<v1::FromNode>>) -> Result<Response<Self::DeltasStream>, Status> {
        let (to_node, queue) = mpsc::channel(4);
        self.0.send(Conversation { from_node: request.into_inner(), to_node }).await.unwrap();
        Ok(Response::new(ReceiverStream::new(queue)))
    }
}

impl Later {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (conversations, nodes) = mpsc::channel(4);
        let server = tonic::transport::Server::builder().add_service(DiscoveryServer::new(Service(conversations)));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        // A control plane of this release admits the node, and its authority certifies the later
        // control plane.
        let authority = Authority::new(&DOMAIN.parse().unwrap()).unwrap();
        let identity = SpiffeId::control(&DOMAIN.parse().unwrap()).unwrap();
        let (svids, request) = (SvidStore::new(authority.bundle().clone()), KeyRequest::new(&identity).unwrap());
        let chain = authority.sign(request.csr(), &identity, Duration::from_secs(600)).unwrap();
        svids.install(request, chain).unwrap();
        let control = Control::new(authority, Store::memory(), leno_control::Options::default()).unwrap();
        let member = control.admit("one", everything()).unwrap();
        let address = behind_tls(address, TlsAcceptor::from(control_server_config(&svids, &identity).unwrap())).await;
        Self { address, member, nodes }
    }

    async fn conversation(&mut self) -> Conversation {
        patient(self.nodes.recv()).await.unwrap()
    }

    /// The next stream, after its hello.
    async fn node(&mut self) -> Conversation {
        let mut conversation = self.conversation().await;
        assert!(matches!(conversation.next().await, from_node::Message::Hello(_)));
        conversation
    }
}

/// Where `plain` can be reached over TLS.
async fn behind_tls(plain: SocketAddr, acceptor: TlsAcceptor) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut far = acceptor.accept(stream).await.unwrap();
                let mut near = TcpStream::connect(plain).await.unwrap();
                // Either end may break off.
                let _ = tokio::io::copy_bidirectional(&mut far, &mut near).await;
            });
        }
    });
    address
}

impl Conversation {
    async fn next(&mut self) -> from_node::Message {
        patient(self.from_node.message()).await.unwrap().unwrap().message.unwrap()
    }

    async fn ack(&mut self) -> v1::Ack {
        loop {
            if let from_node::Message::Ack(ack) = self.next().await {
                return ack;
            }
        }
    }

    async fn send(&self, message: to_node::Message) {
        self.to_node.send(Ok(v1::ToNode { message: Some(message) })).await.unwrap();
    }

    async fn welcome(&self, protocol: u32) {
        self.send(to_node::Message::Welcome(v1::Welcome { protocol, release: "7.0.0".to_owned() })).await;
    }

    async fn config(&self, nonce: u64, payload: Vec<u8>) {
        let name = CHECKOUT.to_owned();
        let subject = Some(v1::Subject { kind: v1::Kind::Slice.into(), name });
        let version = sha256(&payload)[..16].to_vec().into();
        let resources = vec![v1::Resource { subject, version, payload: payload.into() }];
        self.send(to_node::Message::Delta(v1::Delta { nonce, resources, removed: vec![], withdrawn: vec![] })).await;
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().try_into().unwrap()
}

fn golden() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/slice-command.msgpack")).unwrap()
}

/// The function configuration as a later release writes it, with this field of its inbound program.
fn later(field: &str, value: Value) -> Vec<u8> {
    let mut config = rmpv::decode::read_value(&mut &*golden()).unwrap();
    let Value::Map(fields) = &mut config else { panic!("a configuration is a map") };
    let (_, inbound) = fields.iter_mut().find(|(name, _)| name.as_str() == Some("inbound")).unwrap();
    let Value::Map(fields) = inbound else { panic!("a program is a map") };
    fields.push((field.into(), value));
    let mut payload = Vec::new();
    rmpv::encode::write_value(&mut payload, &config).unwrap();
    payload
}

fn queue(update: &Update) -> u32 {
    let [Change::Set(Resource::FunctionConfig(config))] = &*update.changes else { panic!("{:?}", update.changes) };
    config.queue
}

fn held(agent: &leno_agent::Agent) -> Option<Version> {
    agent.held().get(&Subject::FunctionConfig(function(CHECKOUT))).copied()
}

#[tokio::test]
async fn a_node_refuses_what_a_later_release_uses_and_keeps_what_it_has() {
    let mut control = Later::start().await;
    let (agent, mut updates) = join_at(control.address, &control.member, 7);
    let mut node = control.node().await;
    node.welcome(1).await;

    // A function configuration without new fields has the format of this release.
    node.config(1, golden()).await;
    let update = next(&mut updates).await;
    assert_eq!(queue(&update), 1000);
    update.accept();
    assert_eq!(node.ack().await, v1::Ack { nonce: 1, rejected: vec![] });
    let before = held(&agent);
    assert!(before.is_some());

    node.config(2, later("quarantine", true.into())).await;
    let update = next(&mut updates).await;
    assert!(update.changes.is_empty(), "what cannot be read is not applied");
    update.accept();
    let ack = node.ack().await;
    let reason = format!(
        "the configuration of shop/checkout cannot be read: inbound: unknown or repeated field `quarantine` of ProgramSpec; \
         this node is of release {} and the control plane of 7.0.0",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!((ack.nonce, ack.rejected.len(), &ack.rejected[0].reason), (2, 1, &reason));
    assert_eq!(held(&agent), before, "the old version stays in force");

    // Changes of fields that both releases know continue.
    node.config(3, golden()).await;
    next(&mut updates).await.accept();
    assert_eq!(node.ack().await, v1::Ack { nonce: 3, rejected: vec![] });
}

#[tokio::test]
async fn a_node_with_pods_keeps_what_it_has_beside_a_control_plane_without() {
    let mut control = Later::start().await;
    let options = leno_agent::Options { oldest: leno_wire::PODS, ..options_at(control.address, &control.member, 7) };
    let (agent, mut updates) = leno_agent::join(options).unwrap();
    let mut node = control.conversation().await;
    let from_node::Message::Hello(hello) = node.next().await else { panic!("no hello") };
    // A control plane of the release before refuses it, and names the versions of both.
    assert_eq!(hello.protocols.unwrap().oldest, leno_wire::PODS);
    node.welcome(leno_wire::PODS).await;
    node.config(1, golden()).await;
    next(&mut updates).await.accept();
    node.ack().await;
    let before = held(&agent);
    assert!(before.is_some());
    drop(node);
    let node = control.node().await;
    node.welcome(leno_wire::PODS - 1).await;
    let wanted = format!("wants to speak version {} of the protocol", leno_wire::PODS - 1);
    let mut connection = agent.connection();
    let is_refused = |connection: &leno_agent::Connection| format!("{connection:?}").contains(&wanted);
    patient(connection.wait_for(is_refused)).await.unwrap();
    assert!(updates.try_recv().is_err());
    assert_eq!(held(&agent), before);
}

#[tokio::test]
async fn a_node_speaks_no_version_that_it_does_not_know() {
    let mut control = Later::start().await;
    let (agent, mut updates) = join_at(control.address, &control.member, 7);
    let unknown = leno_wire::PROTOCOLS.end() + 1;
    control.node().await.welcome(unknown).await;
    let wanted = format!("(release \"7.0.0\") wants to speak version {unknown} of the protocol");
    assert!(away(&agent).await.contains(&wanted));

    // Nor does a node accept a resource before it knows the version of the protocol.
    let node = control.node().await;
    node.config(1, golden()).await;
    let mut connection = agent.connection();
    let reason = |connection: &leno_agent::Connection| format!("{connection:?}").contains("begins with a welcome");
    patient(connection.wait_for(reason)).await.unwrap();
    assert!(updates.try_recv().is_err());
    assert_eq!(held(&agent), None);
}
