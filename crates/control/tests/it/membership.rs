//! Access to the control plane, the way of a machine to become a node, and the end of a membership.

use crate::support::configs::{config, function, identity};
use crate::support::*;
use leno_agent::{Agent, BACKOFF, Change, JoinFailure, JoinOptions, Options, SignFailure, channel, enrol};
use leno_control::{Control, Cordon, Store, TokenGrant, Transaction};
use leno_identity::{
    Authority, AuthorityFile, KeyRequest, Membership, MembershipMark, SpiffeId, SvidStore, client_config, server_name,
};
use leno_testkit::eventually_async;
use leno_wire::v1::discovery_client::DiscoveryClient;
use leno_wire::v1::identity_client::IdentityClient;
use leno_wire::v1::status_client::StatusClient;
use leno_wire::{JoinToken, Resource, Subject, v1};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tonic::Code;

const FRONTEND: &str = "orders/frontend";

fn kept_authority(path: &std::path::Path) -> Authority {
    let file = AuthorityFile::new(path, b"correct horse battery", &"orders.example".parse().unwrap()).unwrap();
    file.open().unwrap().remove(0)
}

fn published() -> Control {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    control
}

fn token(control: &Control, node: Option<&str>) -> JoinToken {
    let expires = SystemTime::now() + Duration::from_secs(600);
    let grant = TokenGrant {
        node: node.map(str::to_owned),
        admission: everything(),
        addresses: Vec::new(),
        expires,
        limits: Default::default(),
    };
    // As it reaches the node: in a text.
    control.grant(grant, Transaction::default()).unwrap().reveal().parse().unwrap()
}

fn joins(served: &TestServer, token: &JoinToken, name: &str) -> JoinOptions {
    let control = vec![served.address.to_string()];
    JoinOptions { control, token: token.clone(), name: name.to_owned(), address: None }
}

async fn refusal(options: &JoinOptions) -> String {
    match patient(enrol(options, BACKOFF)).await.unwrap_err() {
        JoinFailure::Refused(reason) => reason,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_machine_joins_with_a_token_and_hosts_functions_with_its_certificate() {
    let control = published();
    let served = TestServer::start(&control).await;
    let token = token(&control, None);
    let member = patient(enrol(&joins(&served, &token, "one"), BACKOFF)).await.unwrap();
    assert_eq!(member.identity().as_str(), "spiffe://orders.example/ns/leno-nodes/sa/one");
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Mesh, Subject::Hosted]);
    assert_eq!(accepted(&mut updates).await.len(), 3);
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    let request = KeyRequest::new(&frontend).unwrap();
    agent.sign(&frontend, request.csr().to_vec()).await.unwrap();
    // Its own certificate is renewed without a token.
    let renewed = member.svids().renew(member.identity(), |csr| agent.sign(member.identity(), csr)).await.unwrap();
    assert_eq!(renewed.id(), member.identity());
    // The token is used up.
    assert!(refusal(&joins(&served, &token, "two")).await.contains("was used"));
}

#[tokio::test]
async fn what_a_join_is_refused_for() {
    let control = published();
    let served = TestServer::start(&control).await;
    let _one = patient(enrol(&joins(&served, &token(&control, None), "one"), BACKOFF)).await.unwrap();
    let again = refusal(&joins(&served, &token(&control, None), "one")).await;
    assert!(again.contains("there is a node `one` already"), "{again}");
    let other = refusal(&joins(&served, &token(&control, Some("two")), "three")).await;
    assert!(other.contains("for a node of another name"), "{other}");
    let name = refusal(&joins(&served, &token(&control, None), "No Name")).await;
    assert!(name.contains("is not a node name"), "{name}");
    let elsewhere = JoinOptions { address: "10.1.2.3".parse().ok(), ..joins(&served, &token(&control, None), "four") };
    let address = refusal(&elsewhere).await;
    assert!(address.contains("does not allow the address 10.1.2.3"), "{address}");
    // A token of another mesh, that is, of another root: the machine sends nothing, because the
    // token names another control plane.
    let stranger = published();
    let options = joins(&served, &token(&stranger, None), "five");
    let attempt = tokio::time::timeout(Duration::from_millis(500), enrol(&options, BACKOFF)).await;
    assert!(attempt.is_err(), "it is tried again, as if nobody were there");
    let names: Vec<_> = control.status().nodes.into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["one"]);
}

#[tokio::test]
async fn nobody_is_served_without_a_nodes_certificate() {
    let control = published();
    let served = TestServer::start(&control).await;
    let addresses = [served.address.to_string()];
    let nobody = channel::joining(&addresses, control.bundle().trust_domain(), token(&control, None).pin()).unwrap();
    assert_eq!(codes(nobody).await, [Code::Unauthenticated; 3]);
    assert!(control.status().nodes.is_empty());
}

#[tokio::test]
async fn those_without_a_certificate_take_no_nodes_place() {
    let control = published();
    let served = TestServer::start(&control).await;
    let pin = token(&control, None).pin();
    let config = leno_identity::joining_client_config(control.bundle().trust_domain(), pin).unwrap();
    let name = server_name(&SpiffeId::control(control.bundle().trust_domain()).unwrap()).unwrap();
    let mut guests = Vec::new();
    let refused = loop {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let mut guest = TlsConnector::from(config.clone()).connect(name.clone(), stream).await.unwrap();
        // The server sends its settings first to a client that it serves.
        let greeted = patient(tokio::io::AsyncReadExt::read_u8(&mut guest)).await.is_ok();
        if !greeted || guests.len() > 1000 {
            break !greeted;
        }
        guests.push(guest);
    };
    assert!(refused, "{} are served", guests.len());
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
}

#[tokio::test]
async fn what_anybody_may_send_is_small() {
    let control = published();
    let served = TestServer::start(&control).await;
    let addresses = [served.address.to_string()];
    let nobody = channel::joining(&addresses, control.bundle().trust_domain(), token(&control, None).pin()).unwrap();
    let sign = v1::SignRequest { identity: identity(FRONTEND), csr: vec![0; 1 << 20].into(), candidate: false };
    let error = IdentityClient::new(nobody).sign(sign).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_keep_the_control_plane_from_stopping() {
    let control = published();
    let served = TestServer::start(&control).await;
    let addresses = [served.address.to_string()];
    let nobody = channel::joining(&addresses, control.bundle().trust_domain(), token(&control, None).pin()).unwrap();
    let mut client = tonic::client::Grpc::new(nobody);
    client.ready().await.unwrap();
    let asking = tokio::spawn(async move {
        let codec = tonic_prost::ProstCodec::<v1::JoinRequest, v1::JoinResponse>::default();
        let path = "/leno.v1.Membership/Join".parse().unwrap();
        client.client_streaming(tonic::Request::new(tokio_stream::pending()), path, codec).await.map(drop)
    });
    // This connection was accepted after the first one, so that one was accepted too.
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
    patient(served.stop()).await;
    asking.abort();
}

/// The answers to a client that asks for everything.
async fn codes(channel: tonic::transport::Channel) -> [Code; 3] {
    let (_keep, outgoing) = tokio::sync::mpsc::channel(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let deltas = DiscoveryClient::new(channel.clone()).deltas(outgoing).await.map(drop);
    let sign = v1::SignRequest { identity: identity(FRONTEND), csr: Default::default(), candidate: false };
    let signed = IdentityClient::new(channel.clone()).sign(sign).await.map(drop);
    let listed = StatusClient::new(channel).list(v1::ListRequest {}).await.map(drop);
    [deltas, signed, listed].map(|answer| answer.unwrap_err().code())
}

/// A TLS handshake with the certificate that `store` has for `identity`. The server's refusal
/// arrives with the first read.
async fn handshake(address: SocketAddr, store: &Arc<SvidStore>, identity: &SpiffeId) -> std::io::Result<()> {
    let control = SpiffeId::control(&"orders.example".parse().unwrap()).unwrap();
    let config = client_config(store, identity, &control).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = TlsConnector::from(config).connect(server_name(&control).unwrap(), stream).await?;
    let mut byte = [0];
    tokio::io::AsyncReadExt::read(&mut stream, &mut byte).await.map(drop)
}

#[tokio::test]
async fn a_functions_certificate_is_no_nodes_and_a_strangers_is_none() {
    let control = published();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    member.svids().renew(&frontend, |csr| agent.sign(&frontend, csr)).await.unwrap();
    let of_function = channel_as(&served, member.svids(), &frontend);
    assert_eq!(codes(of_function).await, [Code::PermissionDenied; 3]);

    // An authority of the same name with another root.
    let stranger = Authority::new(&"orders.example".parse().unwrap()).unwrap();
    let store = SvidStore::new(control.bundle().merge(stranger.bundle()).unwrap());
    let request = KeyRequest::new(member.identity()).unwrap();
    let chain = stranger.sign(request.csr(), member.identity(), Duration::from_secs(60)).unwrap();
    store.install(request, chain).unwrap();
    let error = patient(handshake(served.address, &store, member.identity())).await.unwrap_err();
    assert!(error.to_string().contains("UnknownCA"), "{error}");
}

/// A client with another identity than a node's.
fn channel_as(served: &TestServer, store: &Arc<SvidStore>, identity: &SpiffeId) -> tonic::transport::Channel {
    let control = SpiffeId::control(&"orders.example".parse().unwrap()).unwrap();
    let config = client_config(store, identity, &control).unwrap();
    let (address, name) = (served.address, server_name(&control).unwrap());
    tonic::transport::Endpoint::from_static("http://control").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let (config, name) = (config.clone(), name.clone());
            async move {
                let stream = TcpStream::connect(address).await?;
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                std::io::Result::Ok(hyper_util::rt::TokioIo::new(stream))
            }
        },
    ))
}

#[tokio::test]
async fn a_revoked_node_loses_its_stream_and_gets_nothing_more() {
    let control = published();
    let served = TestServer::start(&control).await;
    let member = patient(enrol(&joins(&served, &token(&control, None), "one"), BACKOFF)).await.unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
    assert!(control.revoke("one", Transaction::default()).unwrap());
    let reason = away(&agent).await;
    assert!(reason.contains("was revoked"), "{reason}");
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    let request = KeyRequest::new(&frontend).unwrap();
    for identity in [&frontend, member.identity()] {
        let error = agent.sign(identity, request.csr().to_vec()).await.unwrap_err();
        let SignFailure::Refused(reason) = error else { panic!("{error}") };
        assert!(reason.contains("was revoked"), "{reason}");
    }
    assert!(control.status().nodes.is_empty());
    assert!(!control.revoke("one", Transaction::default()).unwrap());
    // Its name is free again, for a machine with another token.
    let again = patient(enrol(&joins(&served, &token(&control, None), "one"), BACKOFF)).await.unwrap();
    // The revoked node's certificate is not that machine's, though it names the same node.
    let (other, _updates) = node(&served, &again, 1);
    connected(&other).await;
    assert_eq!(codes(channel_as(&served, member.svids(), member.identity())).await, [Code::PermissionDenied; 3]);
    for identity in [&frontend, member.identity()] {
        agent.sign(identity, KeyRequest::new(identity).unwrap().csr().to_vec()).await.unwrap_err();
        let csr = KeyRequest::new(identity).unwrap().csr().to_vec();
        other.sign(identity, csr).await.unwrap();
    }
}

#[tokio::test]
async fn members_and_unused_tokens_outlast_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (path, ca) = (folder.path().join("store"), folder.path().join("ca.pem"));
    let start = || {
        let authority = kept_authority(&ca);
        let control = Control::new(authority, Store::open(&path).unwrap(), Default::default()).unwrap();
        control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
        control
    };
    let control = start();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let (used, unused, revoked) = (token(&control, None), token(&control, None), token(&control, None));
    let member = patient(enrol(&joins(&served, &used, "one"), BACKOFF)).await.unwrap();
    let _gone = patient(enrol(&joins(&served, &revoked, "gone"), BACKOFF)).await.unwrap();
    assert!(control.revoke("gone", Transaction::default()).unwrap());
    assert!(control.cordon("one", Cordon::Drained, Transaction::default()).unwrap());
    served.stop().await;
    drop(control);

    let control = start();
    let served = TestServer::start_at(&control, address).await;
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
    let _two = patient(enrol(&joins(&served, &unused, "two"), BACKOFF)).await.unwrap();
    assert!(refusal(&joins(&served, &used, "three")).await.contains("was used"));
    let nodes: Vec<_> = control.status().nodes.into_iter().map(|node| (node.name, node.cordoned)).collect();
    assert_eq!(nodes, [("one".to_owned(), true), ("two".to_owned(), false)]);
}

#[tokio::test]
async fn after_a_restart_endpoints_stay_until_their_node_could_come_back_but_not_those_of_a_revoked_one() {
    const ORDERS: &str = "orders/order-service";
    let folder = tempfile::tempdir().unwrap();
    let (path, ca) = (folder.path().join("store"), folder.path().join("ca.pem"));
    let start = || {
        let authority = kept_authority(&ca);
        // Nodes are awaited for longer than the test takes.
        let options = leno_control::Options { node_grace: TIMEOUT };
        let control = Control::new(authority, Store::open(&path).unwrap(), options).unwrap();
        control.publish(&definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)])).unwrap();
        control
    };
    let control = start();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let join = async |name| patient(enrol(&joins(&served, &token(&control, None), name), BACKOFF)).await.unwrap();
    let (caller, host) = (join("caller").await, join("host").await);
    let (host_agent, _host_updates) = node(&served, &host, 2);
    connected(&host_agent).await;
    eventually_async("the stream to begin", || control.counters("host").unwrap().streams == 1).await;
    let (agent, mut updates) = node(&served, &caller, 1);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    let endpoints = Subject::Endpoints(function(ORDERS));
    let before = agent.held().get(&endpoints).copied();
    assert!(before.is_some());
    drop(host_agent);
    served.stop().await;
    drop(control);

    let control = start();
    let _served = TestServer::start_at(&control, address).await;
    eventually_async("the stream to begin", || {
        control.counters("caller").is_some_and(|counters| counters.streams == 1)
    })
    .await;
    // The next thing that it hears of is the next change.
    control.publish(&definitions([config(FRONTEND, &[ORDERS], 2), config(ORDERS, &[], 1)])).unwrap();
    let changed = accepted(&mut updates).await;
    assert!(
        changed.iter().all(|change| change.subject() == Subject::FunctionConfig(function(FRONTEND))),
        "{changed:?}"
    );
    assert_eq!(agent.held().get(&endpoints).copied(), before);
    assert!(control.revoke("host", Transaction::default()).unwrap());
    let changed = accepted(&mut updates).await;
    assert!(changed.contains(&Change::Set(Resource::Endpoints(function(ORDERS), vec![]))), "{changed:?}");
}

/// The membership that the certificate is of which a node gets for a function.
async fn membership_of(agent: &Agent) -> Option<MembershipMark> {
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    let request = KeyRequest::new(&frontend).unwrap();
    MembershipMark::of(&agent.sign(&frontend, request.csr().to_vec()).await.unwrap()[0])
}

/// Nodes refuse the certificates of a node that is revoked or replaced: connected nodes at once,
/// others when they connect. The control plane reads revocations from its store.
#[tokio::test]
async fn nodes_hear_of_memberships_that_end() {
    let folder = tempfile::tempdir().unwrap();
    let (path, ca) = (folder.path().join("store"), folder.path().join("ca.pem"));
    let start = || {
        let control = Control::new(kept_authority(&ca), Store::open(&path).unwrap(), Default::default()).unwrap();
        control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
        control
    };
    let control = start();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let join = async |name, token| patient(enrol(&joins(&served, &token, name), BACKOFF)).await.unwrap();
    let revoked = join("one", token(&control, None)).await;
    let witness = join("witness", token(&control, None)).await;
    let (witness_agent, _updates) = node(&served, &witness, 1);
    connected(&witness_agent).await;
    let (agent, _updates) = node(&served, &revoked, 2);
    let first = membership_of(&agent).await;
    assert!(first.is_some() && first == revoked.svids().current(revoked.identity()).map(of_svid).unwrap());
    let mut heard = witness_agent.revocations();
    assert!(!witness.svids().is_revoked(first));
    assert!(control.revoke("one", Transaction::default()).unwrap());
    patient(heard.changed()).await.unwrap();
    assert!(witness.svids().is_revoked(first));

    // The next machine with the name has another membership, until a further machine replaces it.
    let next = join("one", token(&control, None)).await;
    let (agent, _updates) = node(&served, &next, 3);
    let second = membership_of(&agent).await;
    assert!(second.is_some() && second != first && !witness.svids().is_revoked(second));
    let replaced_by = join("one", token(&control, Some("one"))).await;
    patient(heard.changed()).await.unwrap();
    assert!(witness.svids().is_revoked(first) && witness.svids().is_revoked(second));
    let third = replaced_by.svids().current(replaced_by.identity()).map(of_svid).unwrap();
    assert!(third.is_some() && !witness.svids().is_revoked(third));

    // A node that joins later, and the control plane after a restart.
    drop(witness_agent);
    served.stop().await;
    drop(control);
    let control = start();
    let served = TestServer::start_at(&control, address).await;
    let (agent, _updates) = node(&served, &replaced_by, 4);
    let mut heard = agent.revocations();
    patient(heard.changed()).await.unwrap();
    let svids = replaced_by.svids();
    assert_eq!([first, second, third].map(|mark| svids.is_revoked(mark)), [true, true, false]);
}

fn of_svid(svid: Arc<leno_identity::Svid>) -> Option<MembershipMark> {
    MembershipMark::of(&svid.chain()[0])
}

#[tokio::test]
async fn an_address_that_the_certificate_does_not_confirm_is_refused() {
    let control = published();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let options = Options {
        control: vec![served.address.to_string()],
        membership: member,
        inbound: Some("10.9.8.7:15006".parse().unwrap()),
        backoff: BACKOFF,
        rejoin: None,
        oldest: 1,
    };
    let (agent, _updates) = leno_agent::join(options).unwrap();
    let reason = away(&agent).await;
    assert!(reason.contains("10.9.8.7:15006 is not at an address that this node's certificate confirms"), "{reason}");
}

#[tokio::test]
async fn a_control_plane_that_is_away_is_left_for_another() {
    let control = published();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let served = TestServer::start(&control).await;
    let addresses = vec![gone.to_string(), served.address.to_string()];
    let options = JoinOptions { control: addresses.clone(), ..joins(&served, &token(&control, None), "one") };
    let member: Membership = patient(enrol(&options, BACKOFF)).await.unwrap();
    let inbound = Some("127.0.0.1:1".parse().unwrap());
    let (agent, _updates) = leno_agent::join(Options {
        control: addresses,
        membership: member,
        inbound,
        backoff: BACKOFF,
        rejoin: None,
        oldest: 1,
    })
    .unwrap();
    connected(&agent).await;
    agent.report(&function(FRONTEND), instances(1));
    eventually_async("the reports to arrive", || control.counters("one").is_some_and(|counters| counters.reports == 1))
        .await;
}

#[tokio::test]
async fn a_connection_that_never_begins_tls_keeps_nobody_out() {
    let control = published();
    let served = TestServer::start(&control).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
    served.stop().await;
    drop(silent);
}

#[tokio::test]
async fn machines_that_want_to_join_again_and_again_are_told_to_wait() {
    let control = published();
    let served = TestServer::start(&control).await;
    let addresses = [served.address.to_string()];
    let known = token(&control, None);
    let guest = channel::joining(&addresses, control.bundle().trust_domain(), known.pin()).unwrap();
    let mut guest = v1::membership_client::MembershipClient::new(guest);
    let mut join = async |secret: &[u8]| {
        let (csr, name) = (vec![0; 64].into(), "one".to_owned());
        guest.join(v1::JoinRequest { secret: secret.to_vec().into(), name, csr, address: String::new() }).await
    };
    let mut codes = Vec::new();
    while codes.len() < 200 && codes.last() != Some(&Code::Unavailable) {
        codes.push(join(&[7; 16]).await.unwrap_err().code());
    }
    assert_eq!((codes[0], codes.last()), (Code::PermissionDenied, Some(&Code::Unavailable)), "{}", codes.len());
    // A node tries again after that, and joins when its address has waited.
    let member = patient(enrol(&joins(&served, &known, "one"), BACKOFF)).await.unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    connected(&agent).await;
}
