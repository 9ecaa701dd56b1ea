//! The control plane goes away and comes back, with and without its memory.

use crate::support::configs::{config, delivered, function, identity};
use crate::support::*;
use leno_agent::{Change, Identities, SignFailure};
use leno_identity::{SpiffeId, SvidStore};
use leno_testkit::eventually_async;
use leno_wire::{Resource, Subject};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

const FRONTEND: &str = "orders/frontend";
const ORDERS: &str = "orders/order-service";

#[tokio::test]
async fn after_a_reconnect_nothing_is_sent_again() {
    let first = control();
    let before = definitions([config(FRONTEND, &[ORDERS], 1), config(ORDERS, &[], 1)]);
    first.publish(&before).unwrap();
    let served = TestServer::start(&first).await;
    let address = served.address;
    let member = first.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Mesh, Subject::Hosted]);
    assert_eq!(accepted(&mut updates).await.len(), 5);
    let held = agent.held();
    eventually_async("the acknowledgement", || first.counters("one").unwrap().acks == 1).await;
    served.stop().await;
    away(&agent).await;
    assert_eq!(agent.held(), held, "it keeps what it has");

    let served = TestServer::start_at(&first, address).await;
    connected(&agent).await;
    eventually_async("the stream to begin", || first.counters("one").unwrap().streams == 2).await;
    // The next thing that it hears of is the next change.
    first.publish(&definitions([config(FRONTEND, &[ORDERS], 2), config(ORDERS, &[], 1)])).unwrap();
    assert_eq!(
        accepted(&mut updates).await,
        [Change::Set(Resource::FunctionConfig(Box::new(delivered(config(FRONTEND, &[ORDERS], 2)))))]
    );
    let counters = first.counters("one").unwrap();
    assert_eq!((counters.messages, counters.resources, counters.removals), (2, 5 + 1, 0));
    served.stop().await;
}

#[tokio::test]
async fn changes_that_a_node_missed_come_as_one_difference() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Mesh, Subject::Hosted]);
    accepted(&mut updates).await;
    served.stop().await;
    away(&agent).await;

    control.publish(&definitions([config(FRONTEND, &[], 2), config(ORDERS, &[], 1)])).unwrap();
    control.publish(&definitions([config(FRONTEND, &[], 3)])).unwrap();
    let _served = TestServer::start_at(&control, address).await;
    let changes = accepted(&mut updates).await;
    let expected = [
        Change::Set(Resource::FunctionConfig(Box::new(delivered(config(FRONTEND, &[], 3))))),
        Change::Removed(config_of(ORDERS)),
    ];
    assert_eq!(changes, expected);
}

#[tokio::test]
async fn what_was_not_in_force_is_sent_again() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    let unanswered = next(&mut updates).await;
    served.stop().await;
    away(&agent).await;
    let _served = TestServer::start_at(&control, address).await;
    let again = next(&mut updates).await;
    assert_eq!(again.changes, unanswered.changes);
    // The answer to the old update reaches no stream any more; the resources that the update put
    // into force count all the same.
    unanswered.accept();
    assert_eq!(agent.held().len(), 2);
    again.accept();
    eventually_async("the acknowledgement", || control.counters("one").unwrap().acks == 1).await;
}

#[tokio::test]
async fn subscriptions_and_reports_made_while_it_is_away_arrive() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.report(&function(ORDERS), instances(2));
    eventually_async("the status of the instances", || control.status().functions[1].instances.len() == 2).await;
    served.stop().await;
    away(&agent).await;

    agent.subscribe([Subject::Hosted]);
    agent.report(&function(FRONTEND), instances(1));
    agent.report(&function(ORDERS), vec![]);
    let _served = TestServer::start_at(&control, address).await;
    assert_eq!(subjects(&accepted(&mut updates).await), [config_of(FRONTEND), config_of(ORDERS), Subject::Hosted]);
    let count = |index: usize| control.status().functions[index].instances.len();
    eventually_async("the count of streams", || (count(0), count(1)) == (1, 0)).await;
}

#[tokio::test]
async fn identities_last_while_it_is_away_and_are_renewed_when_it_is_back() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    let store = SvidStore::new(control.bundle().as_ref().clone());
    let identities = Identities::new(agent.clone(), store.clone());
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    let wanted = BTreeSet::from([frontend.clone()]);
    assert_eq!(identities.pass(&wanted).await.renewed, wanted);
    let first = store.current(&frontend).unwrap();
    let known = control.status().identities;
    assert_eq!((known.len(), &known[0].identity, known[0].node.as_str()), (1, &frontend, "one"));
    assert_eq!(known[0].not_after, first.not_after().as_secs());
    served.stop().await;
    away(&agent).await;

    // If an identity is wanted and has a certificate, nothing happens. If one is wanted and
    // refused, the other one continues.
    assert_eq!(identities.pass(&wanted).await, Default::default());
    let more = BTreeSet::from([frontend.clone(), identity(ORDERS).parse().unwrap()]);
    let failed = identities.pass(&more).await.failed;
    assert_eq!(failed.len(), 1);
    assert!(failed[0].1.starts_with("the control plane is away"), "{failed:?}");
    assert_eq!(store.current(&frontend).unwrap().chain(), first.chain());

    // Another process with another root: the bundle no longer covers the certificate, so it is
    // renewed at once.
    let second = crate::support::control();
    second.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
    let _served = TestServer::start_at(&second, address).await;
    let member = second.admit("one", everything()).unwrap();
    let (agent, mut updates) = join_at(address, &member);
    agent.subscribe([Subject::Bundle]);
    let changes = accepted(&mut updates).await;
    let [Change::Set(Resource::Bundle(bundle))] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(*bundle, *second.bundle());
    store.set_bundle(bundle.clone());
    let identities = Identities::new(agent, store.clone());
    assert_eq!(identities.pass(&wanted).await.renewed, wanted);
    assert_ne!(store.current(&frontend).unwrap().chain(), first.chain());
    // Certificates of identities that are not wanted any more are removed.
    assert_eq!(identities.pass(&BTreeSet::new()).await, Default::default());
    assert!(store.current(&frontend).is_none());
}

fn join_at(
    address: std::net::SocketAddr,
    member: &leno_identity::Membership,
) -> (leno_agent::Agent, leno_agent::Updates) {
    let options = leno_agent::Options {
        control: vec![address.to_string()],
        membership: member.clone(),
        inbound: None,
        backoff: leno_agent::BACKOFF,
        rejoin: None,
        oldest: 1,
    };
    leno_agent::join(options).unwrap()
}

#[tokio::test]
async fn identities_are_kept_until_nobody_wants_them() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    let store = SvidStore::new(control.bundle().as_ref().clone());
    let (wanted, receiver) = tokio::sync::watch::channel(BTreeSet::new());
    let keeping = tokio::spawn(Identities::new(agent, store.clone()).keep(receiver));
    for function in [FRONTEND, ORDERS] {
        let id: SpiffeId = identity(function).parse().unwrap();
        wanted.send_modify(|wanted| wanted.extend([id.clone()]));
        eventually_async("the certificates to change", || store.current(&id).is_some()).await;
    }
    let frontend = identity(FRONTEND).parse().unwrap();
    wanted.send_modify(|wanted| wanted.retain(|id| *id != frontend));
    eventually_async("the certificates to change", || store.current(&frontend).is_none()).await;
    drop(wanted);
    patient(keeping).await.unwrap();
}

#[tokio::test]
async fn only_what_a_node_hosts_is_signed() {
    let control = control();
    control.publish(&definitions([config(FRONTEND, &[], 1), config(ORDERS, &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", only(&[FRONTEND])).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    let sign = async |name: &str| {
        let id: SpiffeId = name.parse().unwrap();
        let request = leno_identity::KeyRequest::new(&id).unwrap();
        agent.sign(&id, request.csr().to_vec()).await
    };
    assert_eq!(sign(&identity(FRONTEND)).await.unwrap().len(), 1);
    let gateway = SpiffeId::gateway(&"orders.example".parse().unwrap()).unwrap().to_string();
    let others = [identity(ORDERS), identity("orders/unknown"), "spiffe://orders.example".to_owned(), gateway.clone()];
    for other in &others {
        let error = sign(other).await.unwrap_err();
        let SignFailure::Refused(reason) = &error else { panic!("{other}: {error}") };
        assert!(reason.contains("hosts no function with the identity"), "{reason}");
    }
    let other: SpiffeId = identity(FRONTEND).replace("orders.example", "other.example").parse().unwrap();
    assert!(matches!(sign(other.as_str()).await.unwrap_err(), SignFailure::Refused(_)));
    // A request for one identity that contains another one.
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    let request = leno_identity::KeyRequest::new(&identity(ORDERS).parse().unwrap()).unwrap();
    let error = agent.sign(&frontend, request.csr().to_vec()).await.unwrap_err();
    assert!(error.to_string().contains("asks for more than the identity"), "{error}");
    assert!(agent.sign(&frontend, b"garbage".to_vec()).await.is_err());
    assert_eq!(control.status().identities.len(), 1);

    // A gateway has a separate identity.
    control.place("one", leno_control::Admission { gateway: true, ..only(&[]) }).unwrap();
    assert_eq!(sign(&gateway).await.unwrap().len(), 1);
    assert!(sign(&identity(FRONTEND)).await.is_err(), "it was moved away");
}

/// The child of a hot restart has ended before it opened a stream, which would have ended the
/// parent's.
#[tokio::test]
async fn a_parent_permits_nothing_when_its_child_ends_before_it_connects() {
    let log = Log::default();
    let _collected = tracing::subscriber::set_default(log.clone());
    let control = control();
    control.publish(&definitions([config("a/one", &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    agent.yield_stream(true);
    connected(&agent).await;
    agent.follow_child(None);
    let changes = accepted(&mut updates).await;
    assert!(changes.contains(&Change::Withdrawn(function("a/one"))), "{changes:?}");
    assert!(!log.contains(CHILD_HAS_STREAM), "the child has ended: {log:?}");
}

#[tokio::test]
async fn a_parent_logs_that_its_child_has_the_stream_and_not_that_the_control_plane_is_away() {
    let log = Log::default();
    let _collected = tracing::subscriber::set_default(log.clone());
    let control = control();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (parent, _updates) = node(&served, &member, 1);
    connected(&parent).await;
    parent.yield_stream(true);
    let (_child, _updates) = node(&served, &member, 1);
    eventually_async("the log", || log.contains(CHILD_HAS_STREAM)).await;
    assert!(!log.contains("the control plane is away"), "{log:?}");
}

const CHILD_HAS_STREAM: &str = "the child process of a hot restart has this node's stream";

/// Collects the messages that are logged on a thread.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn contains(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|message| message.contains(text))
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut collect = |field: &Field, value: &dyn fmt::Debug| {
            if field.name() == "message" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        };
        event.record(&mut collect);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
