//! The protocol itself: the clients that may use it, and the treatment of clients that violate it.

use crate::support::configs::{config, function, identity};
use crate::support::*;
use leno_agent::{BACKOFF, JoinOptions, enrol};
use leno_control::{Control, TokenGrant, Transaction};
use leno_identity::Membership;
use leno_model::{OutputQuery, OutputStream};
use leno_testkit::eventually_async;
use leno_wire::v1::discovery_client::DiscoveryClient;
use leno_wire::v1::from_node::Message;
use leno_wire::v1::status_client::StatusClient;
use leno_wire::v1::{self, ToNode};
use leno_wire::{Answer, Question, Subject};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

const FRONTEND: &str = "orders/frontend";

/// A client by hand.
fn channel(served: &TestServer, member: &Membership) -> Channel {
    leno_agent::channel::of_member(&[served.address.to_string()], member).unwrap()
}

/// A node by hand.
struct RawNode {
    to_control: mpsc::Sender<v1::FromNode>,
    from_control: Streaming<ToNode>,
}

impl RawNode {
    async fn open(served: &TestServer, member: &Membership) -> Self {
        let (to_control, outgoing) = mpsc::channel(16);
        let response = DiscoveryClient::new(channel(served, member)).deltas(ReceiverStream::new(outgoing)).await;
        let response = response.unwrap();
        Self { to_control, from_control: response.into_inner() }
    }

    async fn hello(served: &TestServer, member: &Membership, hello: v1::Hello) -> Self {
        let node = Self::open(served, member).await;
        node.send(Message::Hello(hello)).await;
        node
    }

    async fn send(&self, message: Message) {
        self.to_control.send(v1::FromNode { message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> v1::to_node::Message {
        patient(self.from_control.message()).await.unwrap().unwrap().message.unwrap()
    }

    /// The next delta, after the welcome.
    async fn delta(&mut self) -> v1::Delta {
        loop {
            if let v1::to_node::Message::Delta(delta) = self.next().await {
                return delta;
            }
        }
    }

    async fn end(&mut self) -> Status {
        loop {
            match patient(self.from_control.message()).await {
                Ok(Some(_)) => (),
                Ok(None) => panic!("it ended without a reason"),
                Err(status) => return status,
            }
        }
    }
}

fn hello(subscribe: &[v1::Subject]) -> v1::Hello {
    v1::Hello { subscribe: subscribe.to_vec(), ..speaking(1, 1) }
}

fn speaking(oldest: u32, newest: u32) -> v1::Hello {
    let protocols = Some(v1::Protocols { oldest, newest });
    v1::Hello { release: "0.0.9".to_owned(), protocols, ..Default::default() }
}

fn subject(kind: v1::Kind, name: &str) -> v1::Subject {
    v1::Subject { kind: kind.into(), name: name.to_owned() }
}

async fn served_one() -> (Control, TestServer, Membership) {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    (control, served, member)
}

#[tokio::test]
async fn a_stream_begins_with_one_hello() {
    let (control, served, member) = served_one().await;
    let mut node = RawNode::open(&served, &member).await;
    node.send(Message::Subscribe(v1::Subscribe::default())).await;
    assert_eq!(node.end().await.code(), Code::FailedPrecondition);

    assert_eq!(control.counters("one").unwrap().streams, 0);

    let mut node = RawNode::hello(&served, &member, hello(&[])).await;
    node.send(Message::Hello(hello(&[]))).await;
    assert_eq!(node.end().await.message(), "a second hello");
}

#[tokio::test]
async fn releases_talk_if_they_share_a_version_of_the_protocol() {
    let (_control, served, member) = served_one().await;
    for (oldest, newest, shared) in
        [(1, 1, 1), (1, 9, 7), (0, 1, 1), (0, 9, 7), (2, 2, 2), (1, 2, 2), (3, 3, 3), (5, 5, 5), (7, 7, 7)]
    {
        let mut node = RawNode::hello(&served, &member, speaking(oldest, newest)).await;
        let v1::to_node::Message::Welcome(welcome) = node.next().await else { panic!("no welcome") };
        assert_eq!((welcome.protocol, welcome.release.as_str()), (shared, env!("CARGO_PKG_VERSION")));
    }
    let strangers = [
        speaking(8, 9),
        speaking(0, 0),
        speaking(9, 1),
        // A release from before versions.
        v1::Hello { protocols: None, ..speaking(0, 0) },
    ];
    for hello in strangers {
        let v1::Protocols { oldest, newest } = hello.protocols.unwrap_or_default();
        let status = RawNode::hello(&served, &member, hello).await.end().await;
        assert_eq!(status.code(), Code::FailedPrecondition);
        let text = format!(
            "the node (release \"0.0.9\") speaks versions {oldest} to {newest} of the protocol and the control plane (release {}) versions 1 to 7",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(status.message(), text);
    }
}

/// The question to a node in these tests.
fn question() -> Question {
    let (instance, previous, tail, after) = (None, false, None, Vec::new());
    Question::Output(OutputQuery {
        function: FRONTEND.parse().unwrap(),
        instance,
        previous,
        attempt: None,
        tail,
        after,
        limit: 1000,
    })
}

#[tokio::test]
async fn a_node_is_asked_and_answers_once() {
    let (control, served, member) = served_one().await;
    let mut node = RawNode::hello(&served, &member, speaking(1, 2)).await;
    node.next().await;
    let answering = async {
        let question = loop {
            // Other messages may come first, such as the signing authority.
            if let v1::to_node::Message::Question(question) = node.next().await {
                break question;
            }
        };
        let line = v1::OutputLine { instance: 3, at_ms: 7, stderr: true, text: "hello".to_owned() };
        let output = v1::Output { lines: vec![line], ..Default::default() };
        let answer = |id| v1::Answer { id, answer: Some(v1::answer::Answer::Output(output.clone())) };
        // The control plane has not asked the first of these.
        node.send(Message::Answer(answer(question.id + 1))).await;
        node.send(Message::Answer(answer(question.id))).await;
    };
    let question = question();
    let (answer, ()) = tokio::join!(control.ask("one", &question, Duration::from_secs(30)), answering);
    let Ok(Answer::Output(output)) = answer else { panic!("{answer:?}") };
    let line = &output.lines[0];
    assert_eq!((line.instance, line.stream, &*line.text), (3, OutputStream::Stderr, "hello"));
    assert_eq!(control.counters("one").unwrap().refused, 1);
}

#[tokio::test]
async fn a_node_of_an_earlier_release_is_not_asked() {
    let (control, served, member) = served_one().await;
    let mut node = RawNode::hello(&served, &member, speaking(1, 1)).await;
    node.next().await;
    let error = control.ask("one", &question(), Duration::from_secs(30)).await.unwrap_err();
    assert!(error.to_string().contains("its release does not answer such questions"), "{error}");
    // The question would have come before this.
    node.send(Message::Subscribe(v1::Subscribe { subscribe: vec![subject(v1::Kind::Mesh, "")], ..Default::default() }))
        .await;
    assert!(matches!(node.next().await, v1::to_node::Message::Delta(_)));
}

#[tokio::test]
async fn a_node_hears_of_revoked_nodes_first_if_its_release_knows_of_them() {
    let (control, served, member) = served_one().await;
    let grant = |node: &str| TokenGrant {
        node: Some(node.to_owned()),
        admission: everything(),
        addresses: Vec::new(),
        expires: SystemTime::now() + Duration::from_secs(600),
        limits: Default::default(),
    };
    let token = control.grant(grant("two"), Transaction::default()).unwrap();
    let options = JoinOptions {
        control: vec![served.address.to_string()],
        token: token.reveal().parse().unwrap(),
        name: "two".to_owned(),
        address: None,
    };
    patient(enrol(&options, BACKOFF)).await.unwrap();
    assert!(control.revoke("two", Transaction::default()).unwrap());
    for protocol in [3, 4] {
        let hello = v1::Hello { subscribe: vec![subject(v1::Kind::Mesh, "")], ..speaking(1, protocol) };
        let mut node = RawNode::hello(&served, &member, hello).await;
        let mut memberships = None;
        loop {
            match node.next().await {
                v1::to_node::Message::Delta(_) => break,
                v1::to_node::Message::Revoked(revoked) => memberships = Some(revoked.memberships.len()),
                _ => {}
            }
        }
        assert_eq!(memberships, (protocol >= 4).then_some(8));
    }
}

#[tokio::test]
async fn what_makes_no_sense_ends_the_stream() {
    let (_control, served, member) = served_one().await;
    let bad_hellos = [
        v1::Hello { inbound: "somewhere".to_owned(), ..hello(&[]) },
        v1::Hello {
            held: vec![v1::Held { subject: Some(subject(v1::Kind::Mesh, "")), version: vec![1].into() }],
            ..hello(&[])
        },
        v1::Hello { held: vec![v1::Held { subject: None, version: vec![0; 16].into() }], ..hello(&[]) },
        hello(&[subject(v1::Kind::Slice, "frontend")]),
        hello(&[subject(v1::Kind::Mesh, "name")]),
        hello(&[subject(v1::Kind::Unspecified, "")]),
        hello(&[v1::Subject { kind: 99, name: String::new() }]),
    ];
    for bad in bad_hellos {
        let text = format!("{bad:?}");
        let status = RawNode::hello(&served, &member, bad).await.end().await;
        assert_eq!(status.code(), Code::InvalidArgument, "{text}");
    }
    let instance = v1::Instance {
        state: v1::InstanceState::Ready.into(),
        address: "127.0.0.1:1".to_owned(),
        ..Default::default()
    };
    let report = |function: &str, instance| v1::Report { function: function.to_owned(), instances: vec![instance] };
    let bad_messages = [
        Message::Report(report("frontend", instance.clone())),
        Message::Report(report(FRONTEND, v1::Instance { state: 0, ..instance.clone() })),
        Message::Report(report(FRONTEND, v1::Instance { address: "localhost".to_owned(), ..instance })),
        Message::Ack(v1::Ack { nonce: 1, rejected: vec![v1::Rejection::default()] }),
        Message::Subscribe(v1::Subscribe { subscribe: vec![], unsubscribe: vec![v1::Subject::default()] }),
    ];
    for bad in bad_messages {
        let text = format!("{bad:?}");
        let mut node = RawNode::hello(&served, &member, hello(&[])).await;
        node.send(bad).await;
        assert_eq!(node.end().await.code(), Code::InvalidArgument, "{text}");
    }
}

#[tokio::test]
async fn versions_name_contents() {
    let (control, served, member) = served_one().await;
    let mut node = RawNode::hello(&served, &member, hello(&[subject(v1::Kind::Hosted, "")])).await;
    let delta = node.delta().await;
    let sent = delta.resources[0].clone();
    drop(node);

    // If the node has the version, only the other resource is sent. If it has another version, the
    // resource is sent. If the resource is gone, it is removed.
    let held = |version: bytes::Bytes, name: &str| v1::Held { subject: Some(subject(v1::Kind::Slice, name)), version };
    let both = [subject(v1::Kind::Bundle, ""), subject(v1::Kind::Hosted, "")];
    let known = v1::Hello { held: vec![held(sent.version.clone(), FRONTEND)], ..hello(&both) };
    let delta = RawNode::hello(&served, &member, known).await.delta().await;
    assert_eq!(delta.resources.iter().map(|resource| resource.subject.clone().unwrap()).collect::<Vec<_>>(), both);
    let other = v1::Hello { held: vec![held(vec![7; 16].into(), FRONTEND)], ..hello(&both[1..]) };
    assert_eq!(RawNode::hello(&served, &member, other).await.delta().await.resources[0], sent);
    let gone = v1::Hello { held: vec![held(sent.version.clone(), "orders/gone")], ..hello(&[]) };
    assert_eq!(
        RawNode::hello(&served, &member, gone).await.delta().await.removed,
        [subject(v1::Kind::Slice, "orders/gone")]
    );

    // The same content has the same version in another process.
    let second = crate::support::control();
    second.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    assert_eq!(second.status().functions[0].version, control.status().functions[0].version);
}

#[tokio::test]
async fn answers_to_nothing_change_nothing() {
    let (control, served, member) = served_one().await;
    let mut node = RawNode::hello(&served, &member, hello(&[subject(v1::Kind::Hosted, "")])).await;
    let delta = node.delta().await;
    let rejection =
        |name: &str| v1::Rejection { subject: Some(subject(v1::Kind::Slice, name)), reason: "no".to_owned() };
    node.send(Message::Ack(v1::Ack { nonce: delta.nonce + 1, rejected: vec![rejection(FRONTEND)] })).await;
    // A rejection in this delta's answer of a resource that was not in it; and then the same answer
    // again.
    node.send(Message::Ack(v1::Ack { nonce: delta.nonce, rejected: vec![rejection("orders/other")] })).await;
    node.send(Message::Ack(v1::Ack { nonce: delta.nonce, rejected: vec![rejection(FRONTEND)] })).await;
    node.send(Message::Report(v1::Report { function: FRONTEND.to_owned(), instances: vec![] })).await;
    eventually_async("the reports to arrive", || control.counters("one").unwrap().reports == 1).await;
    let counters = control.counters("one").unwrap();
    assert_eq!((counters.acks, counters.rejections), (1, 0));
    assert!(control.status().nodes[0].rejected.is_empty());
}

#[tokio::test]
async fn a_long_reason_is_cut() {
    let (control, served, member) = served_one().await;
    let mut node = RawNode::hello(&served, &member, hello(&[subject(v1::Kind::Hosted, "")])).await;
    let nonce = node.delta().await.nonce;
    let reason = "ä".repeat(100_000);
    let rejected = vec![v1::Rejection { subject: Some(subject(v1::Kind::Slice, FRONTEND)), reason }];
    node.send(Message::Ack(v1::Ack { nonce, rejected })).await;
    eventually_async("the node's rejections to change", || !control.status().nodes[0].rejected.is_empty()).await;
    assert_eq!(control.status().nodes[0].rejected[0].reason, "ä".repeat(512));
}

#[tokio::test]
async fn the_status_service_tells_what_the_control_plane_knows() {
    let (control, served, member) = served_one().await;
    let (agent, mut updates) = node(&served, &member, 7);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    agent.report(&function(FRONTEND), instances(1));
    let frontend = identity(FRONTEND).parse().unwrap();
    let request = leno_identity::KeyRequest::new(&frontend).unwrap();
    agent.sign(&frontend, request.csr().to_vec()).await.unwrap();
    eventually_async("the report and the acknowledgement", || {
        control.counters("one").unwrap().reports == 1 && control.counters("one").unwrap().acks == 1
    })
    .await;

    let list = StatusClient::new(channel(&served, &member)).list(v1::ListRequest {}).await.unwrap().into_inner();
    assert_eq!((list.functions.len(), list.nodes.len(), list.identities.len()), (1, 1, 1));
    let (function, node, issued) = (&list.functions[0], &list.nodes[0], &list.identities[0]);
    assert_eq!(
        (function.name.as_str(), function.identity.as_str(), function.version.len()),
        (FRONTEND, frontend.as_str(), 16)
    );
    let instance = function.instances[0].instance.clone().unwrap();
    assert_eq!(
        (function.instances[0].node.as_str(), instance.address.as_str(), instance.pid),
        ("one", "127.0.0.1:9001", 1)
    );
    assert_eq!((node.name.as_str(), node.connected, node.inbound.as_str()), ("one", true, "127.0.0.1:7"));
    assert_eq!(node.hosted, [FRONTEND]);
    assert_eq!(node.counters.unwrap(), control.counters("one").unwrap().into());
    assert_eq!((issued.identity.as_str(), issued.node.as_str()), (frontend.as_str(), "one"));
}

#[tokio::test]
async fn a_silent_stream_does_not_count_as_a_node() {
    let (control, served, member) = served_one().await;
    let silent = RawNode::open(&served, &member).await;
    let _speaking = RawNode::hello(&served, &member, hello(&[])).await;
    eventually_async("the node to be connected", || control.status().nodes[0].connected).await;
    assert_eq!(control.counters("one").unwrap().streams, 1);
    // Nor does it keep the control plane from stopping.
    served.stop().await;
    drop(silent);
}

#[tokio::test]
async fn a_node_that_begins_streams_again_and_again_is_told_to_wait() {
    let (control, served, member) = served_one().await;
    let client = DiscoveryClient::new(channel(&served, &member));
    let mut refused = None;
    for _ in 0..200 {
        let (to_control, outgoing) = mpsc::channel(1);
        to_control.send(v1::FromNode { message: Some(Message::Hello(hello(&[]))) }).await.unwrap();
        match client.clone().deltas(ReceiverStream::new(outgoing)).await {
            Ok(_) => {}
            Err(status) => {
                refused = Some(status);
                break;
            }
        }
    }
    let refused = refused.expect("200 streams at once are too many");
    // A node that gets this status tries again.
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("too often; try again in"), "{refused}");
    let other = control.admit("two", everything()).unwrap();
    let mut node = RawNode::hello(&served, &other, hello(&[])).await;
    assert!(matches!(node.next().await, v1::to_node::Message::Welcome(_)));
    control.publish(&definitions([config(FRONTEND, &[], 2)])).unwrap();
}

#[tokio::test]
async fn connections_of_a_node_are_bounded_and_the_newest_one_counts() {
    let (control, served, member) = served_one().await;
    let mut first = RawNode::hello(&served, &member, hello(&[])).await;
    assert!(matches!(first.next().await, v1::to_node::Message::Welcome(_)));
    let mut others = Vec::new();
    for _ in 0..24 {
        let mut status = StatusClient::new(channel(&served, &member));
        status.list(v1::ListRequest {}).await.unwrap();
        others.push(status);
    }
    first.end().await;
    eventually_async("the node to be away", || !control.status().nodes[0].connected).await;
    others.last_mut().unwrap().list(v1::ListRequest {}).await.unwrap();
}
