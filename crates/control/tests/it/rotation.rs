//! The authority of a running mesh is replaced.

use crate::support::configs::{DOMAIN, config, identity};
use crate::support::*;
use leno_agent::{BACKOFF, Change, Identities, JoinOptions, channel, enrol};
use leno_control::{Authorities, Control, Phase, Store, TokenGrant, Transaction};
use leno_identity::{Authority, AuthorityFile, AuthorityKeyId, CertificateDer, Membership, SpiffeId, SvidStore};
use leno_testkit::eventually_async;
use leno_wire::v1::discovery_client::DiscoveryClient;
use leno_wire::v1::{self, from_node, to_node};
use leno_wire::{JoinToken, Resource, Subject};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

const FRONTEND: &str = "orders/frontend";

/// A mesh whose authority is in a file.
struct Mesh {
    folder: TempDir,
    control: Option<Control>,
    served: Option<TestServer>,
}

impl Mesh {
    async fn start() -> Self {
        let mut mesh = Self { folder: tempfile::tempdir().unwrap(), control: None, served: None };
        mesh.begin("127.0.0.1:0".parse().unwrap()).await;
        mesh
    }

    async fn begin(&mut self, at: SocketAddr) {
        let authorities =
            Authorities { held: self.file().open().unwrap(), file: Some("ca.pem".to_owned()), replace: false };
        let store = loop {
            // Connections that end may hold the store a little longer.
            match Store::open(&self.path("store")) {
                Ok(store) => break store,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let control = Control::with_authorities(authorities, store, Default::default()).unwrap();
        control.publish(&definitions([config(FRONTEND, &[], 1)])).unwrap();
        self.served = Some(TestServer::start_at(&control, at).await);
        self.control = Some(control);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self) -> AuthorityFile {
        file(&self.path("ca.pem"))
    }

    /// Ends the control plane, and starts another one with the same files at the same address.
    async fn restart(&mut self) {
        let served = self.served.take().unwrap();
        let address = served.address;
        served.stop().await;
        self.control = None;
        self.begin(address).await;
    }

    fn control(&self) -> &Control {
        self.control.as_ref().unwrap()
    }

    fn served(&self) -> &TestServer {
        self.served.as_ref().unwrap()
    }

    fn token(&self) -> JoinToken {
        let expires = SystemTime::now() + Duration::from_secs(600);
        let grant = TokenGrant {
            node: None,
            admission: everything(),
            addresses: Vec::new(),
            expires,
            limits: Default::default(),
        };
        self.control().grant(grant, Transaction::default()).unwrap().reveal().parse().unwrap()
    }

    fn joins(&self, token: &JoinToken, name: &str) -> JoinOptions {
        let control = vec![self.served().address.to_string()];
        JoinOptions { control, token: token.clone(), name: name.to_owned(), address: None }
    }

    async fn member(&self, name: &str) -> Membership {
        patient(enrol(&self.joins(&self.token(), name), BACKOFF)).await.unwrap()
    }

    fn rotate(&self, drill: bool) {
        let control = self.control();
        let candidate = self.file().successor(&control.authorities()[0]).unwrap();
        control.rotate(candidate, drill, BTreeSet::new()).unwrap();
    }

    fn phase(&self) -> Option<Phase> {
        self.control().authority_status().phase
    }

    fn signs(&self) -> String {
        self.control().authority_status().signs
    }

    fn waits_for(&self) -> Vec<String> {
        self.control().authority_status().waiting.into_keys().collect()
    }
}

fn file(path: &Path) -> AuthorityFile {
    AuthorityFile::new(path, b"correct horse battery", &DOMAIN.parse().unwrap()).unwrap()
}

/// A node of this release, which handles roots and certificates as a real node does.
struct Node {
    member: Membership,
    /// While it is set, the node does not answer updates.
    paused: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Node {
    fn start(mesh: &Mesh, member: Membership) -> Self {
        let (agent, mut updates) = join_at(mesh.served().address, &member, 1);
        agent.subscribe([Subject::Bundle]);
        let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
        let (wanted, is_wanted) = watch::channel(BTreeSet::from([frontend, member.identity().clone()]));
        let keeping = tokio::spawn(Identities::new(agent, member.svids().clone()).keep(is_wanted));
        let (svids, paused) = (member.svids().clone(), Arc::new(AtomicBool::new(false)));
        let pause = paused.clone();
        let applying = tokio::spawn(async move {
            while let Some(update) = updates.recv().await {
                while pause.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                for change in &update.changes {
                    if let Change::Set(Resource::Bundle(bundle)) = change {
                        svids.set_bundle(bundle.clone());
                    }
                }
                update.accept();
                wanted.send_modify(|_| ());
            }
        });
        Self { member, paused, tasks: vec![keeping, applying] }
    }

    fn issuers(&self) -> Vec<String> {
        self.member.svids().issuers().iter().map(AuthorityKeyId::to_string).collect()
    }

    fn roots(&self) -> Vec<Vec<u8>> {
        self.member.svids().bundle().roots().map(|root| root.to_vec()).collect()
    }

    /// Its stream ends.
    fn leave(self) -> Membership {
        self.tasks.into_iter().for_each(|task| task.abort());
        self.member
    }
}

/// A node of an earlier release, simulated, which only accepts the updates that the test lets it
/// accept.
struct Earlier {
    to_control: mpsc::Sender<v1::FromNode>,
    from_control: Streaming<v1::ToNode>,
}

impl Earlier {
    async fn open(mesh: &Mesh, member: &Membership) -> Self {
        let (to_control, outgoing) = mpsc::channel(16);
        let channel = channel::of_member(&[mesh.served().address.to_string()], member).unwrap();
        let response = DiscoveryClient::new(channel).deltas(ReceiverStream::new(outgoing)).await.unwrap();
        let node = Self { to_control, from_control: response.into_inner() };
        node.send(from_node::Message::Hello(v1::Hello {
            release: "0.0.9".to_owned(),
            protocols: Some(v1::Protocols { oldest: 1, newest: 1 }),
            subscribe: vec![v1::Subject { kind: v1::Kind::Bundle.into(), name: String::new() }],
            ..Default::default()
        }))
        .await;
        node
    }

    async fn send(&self, message: from_node::Message) {
        self.to_control.send(v1::FromNode { message: Some(message) }).await.unwrap();
    }

    /// Takes the next roots and acknowledges them, and reads other messages that a node of that
    /// release knows.
    async fn take_roots(&mut self) -> usize {
        let (nonce, payload) = self.see_roots().await;
        self.send(from_node::Message::Ack(v1::Ack { nonce, rejected: Vec::new() })).await;
        let value = rmpv::decode::read_value(&mut &*payload).unwrap();
        let rmpv::Value::Map(fields) = value else { panic!("a bundle is a map") };
        assert_eq!(fields.len(), 2, "nothing in it that a release of before refuses");
        fields.iter().find(|(name, _)| name.as_str() == Some("roots")).unwrap().1.as_array().unwrap().len()
    }

    async fn see_roots(&mut self) -> (u64, Vec<u8>) {
        loop {
            let message = patient(self.from_control.message()).await.unwrap().unwrap().message;
            match message.expect("no message that it does not know") {
                to_node::Message::Delta(delta) => return (delta.nonce, delta.resources[0].payload.to_vec()),
                to_node::Message::Welcome(_) | to_node::Message::Renewed(_) => {}
                other => panic!("{other:?} is not of version 1"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_change_to_another_authority_and_the_first_is_refused_afterwards() {
    let mesh = Mesh::start().await;
    let nodes = [mesh.member("one").await, mesh.member("two").await].map(|member| Node::start(&mesh, member));
    let (first, before) = (mesh.signs(), nodes[0].roots());
    eventually_async("certificates of the authority in force", || {
        nodes.iter().all(|node| node.issuers() == [first.clone()])
    })
    .await;
    let old = {
        // A copy of the earlier state: a separate store, which no task renews.
        let svids = SvidStore::new(nodes[0].member.svids().bundle().as_ref().clone());
        let agent = join_at(mesh.served().address, &nodes[0].member, 1).0;
        let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
        svids.renew(&frontend, |csr| agent.sign(&frontend, csr)).await.unwrap();
        (svids, frontend)
    };
    let early = mesh.token();
    mesh.rotate(false);
    eventually_async("the end of the rotation", || mesh.phase().is_none()).await;
    let second = mesh.signs();
    assert_ne!(first, second);
    for node in &nodes {
        assert_eq!(node.issuers(), std::slice::from_ref(&second));
        assert_eq!(node.roots().len(), 1);
        assert_ne!(node.roots(), before, "the first root is in no bundle");
    }
    let last = mesh.control().authority_status().last.unwrap();
    assert!(!last.drill && !last.aborted && last.failed.is_empty());

    // A certificate of the first root is refused by nodes and by the control plane.
    let chain = old.0.current(&old.1).unwrap().chain().to_vec();
    let refused = mesh.control().bundle();
    let request = leno_identity::KeyRequest::new(&old.1).unwrap();
    let error = SvidStore::new(refused.as_ref().clone()).install(request, chain).unwrap_err().to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    old.0.set_bundle(refused.as_ref().clone());
    let name = leno_identity::server_name(&SpiffeId::control(refused.trust_domain()).unwrap()).unwrap();
    let config = leno_identity::client_config(&old.0, &old.1, &SpiffeId::control(refused.trust_domain()).unwrap());
    let stream = tokio::net::TcpStream::connect(mesh.served().address).await.unwrap();
    let connected = tokio_rustls::TlsConnector::from(config.unwrap()).connect(name, stream).await;
    let read = async { tokio::io::AsyncReadExt::read_u8(&mut connected?).await };
    let error = patient(read).await.unwrap_err().to_string();
    assert!(error.contains("UnknownCA"), "{error}");

    // A join token holds the hash of the first root, which the control plane shows no more.
    let address = [mesh.served().address.to_string()];
    let guest = channel::joining(&address, &DOMAIN.parse().unwrap(), early.pin()).unwrap();
    let mut guest = v1::membership_client::MembershipClient::new(guest);
    let status = patient(guest.settings(v1::SettingsRequest {})).await.unwrap_err();
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&status);
    while let Some(error) = cause {
        text.push_str(&error.to_string());
        cause = error.source();
    }
    assert!(text.contains("or older than a new root?"), "{text}");
    let _three = mesh.member("three").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_outlasts_the_control_plane_in_each_phase() {
    let mut mesh = Mesh::start().await;
    let (first, token) = (mesh.signs(), mesh.token());
    let node = Node::start(&mesh, mesh.member("one").await);
    let earlier = mesh.member("two").await;
    mesh.rotate(false);
    let second = mesh.file().successor(&mesh.control().authorities()[0]).unwrap().key_id().to_string();

    // The node of an earlier release is away, so this phase lasts.
    eventually_async("the rotation to wait for two", || mesh.waits_for() == ["two"]).await;
    mesh.restart().await;
    eventually_async("the rotation to wait for two", || mesh.waits_for() == ["two"] && node.roots().len() == 2).await;
    assert_eq!((mesh.phase(), mesh.signs()), (Some(Phase::Trust), first.clone()));
    // A token of before is good until the end.
    let three = Node::start(&mesh, patient(enrol(&mesh.joins(&token, "three"), BACKOFF)).await.unwrap());
    let is_there = |name: &str| mesh.control().status().nodes.iter().any(|node| node.name == name && node.connected);
    eventually_async("the rotation to wait for two", || is_there("three") && mesh.waits_for() == ["two"]).await;
    three.paused.store(true, Ordering::Relaxed);

    let mut hand = Earlier::open(&mesh, &earlier).await;
    assert_eq!(hand.take_roots().await, 2);
    // The node does not report which certificates it has renewed, so this phase lasts too.
    eventually_async("the phase renew to wait for two", || {
        mesh.phase() == Some(Phase::Renew) && mesh.waits_for() == ["two"]
    })
    .await;
    eventually_async("certificates of the authority in force", || node.issuers() == [second.clone()]).await;
    mesh.restart().await;
    assert_eq!((mesh.phase(), mesh.signs()), (Some(Phase::Renew), second.clone()));
    assert_eq!(mesh.control().bundle().roots().count(), 2);
    // A node that only knows the first root can still come, regardless of the issuer of its
    // certificate.
    let late = patient(enrol(&mesh.joins(&mesh.token(), "four"), BACKOFF)).await.unwrap();
    assert_eq!(
        late.svids().issuers().iter().map(AuthorityKeyId::to_string).collect::<Vec<_>>(),
        std::slice::from_ref(&second)
    );
    let mut hand = Earlier::open(&mesh, &earlier).await;
    assert_eq!(hand.take_roots().await, 2);
    mesh.control().rotate_without(&BTreeSet::from(["two".to_owned(), "four".to_owned()])).unwrap();

    // Now the rotation does not wait for that node, but for one that does not answer.
    eventually_async("the phase withdraw to wait for three", || {
        mesh.phase() == Some(Phase::Withdraw) && mesh.waits_for() == ["three"]
    })
    .await;
    mesh.restart().await;
    eventually_async("the phase withdraw to wait for three", || {
        mesh.phase() == Some(Phase::Withdraw) && mesh.waits_for() == ["three"]
    })
    .await;
    assert_eq!((mesh.signs(), mesh.control().bundle().roots().count()), (second.clone(), 1));
    assert!(mesh.control().abort_rotation().unwrap_err().to_string().contains("too late"));
    three.paused.store(false, Ordering::Relaxed);
    eventually_async("the end of the rotation", || mesh.phase().is_none()).await;
    assert_eq!(mesh.signs(), second);
    eventually_async("the other root to go", || node.roots().len() == 1 && node.issuers() == [second.clone()]).await;
    // Two keys are in the file until it is rewritten; after a restart the control plane knows which
    // one counts.
    mesh.restart().await;
    assert_eq!((mesh.signs(), mesh.control().bundle().roots().count()), (second, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_not_waited_for_has_to_join_again() {
    let mut mesh = Mesh::start().await;
    let node = Node::start(&mesh, mesh.member("one").await);
    mesh.rotate(false);
    mesh.control().abort_rotation().unwrap();
    eventually_async("the end of the rotation", || mesh.phase().is_none()).await;
    // It has gone back at once, because the candidate had signed no certificate.
    assert_eq!(node.roots().len(), 1);
    let two = mesh.member("two").await;
    mesh.rotate(false);
    mesh.control().rotate_without(&BTreeSet::from(["two".to_owned()])).unwrap();
    eventually_async("the end of the rotation", || mesh.phase().is_none()).await;
    let second = mesh.signs();
    assert_eq!(node.issuers(), std::slice::from_ref(&second));
    // It was not waited for, and knows the first root only.
    let agent = join_at(mesh.served().address, &two, 1).0;
    assert!(away(&agent).await.contains("UnknownIssuer"));
    mesh.restart().await;
    assert_eq!(mesh.signs(), second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_goes_back() {
    let mesh = Mesh::start().await;
    let first = mesh.signs();
    let node = Node::start(&mesh, mesh.member("one").await);
    eventually_async("certificates of the authority in force", || node.issuers() == [first.clone()]).await;
    let earlier = mesh.member("two").await;
    let mut hand = Earlier::open(&mesh, &earlier).await;
    assert_eq!(hand.take_roots().await, 1);
    mesh.rotate(false);
    assert_eq!(hand.take_roots().await, 2);
    eventually_async("the phase renew", || mesh.phase() == Some(Phase::Renew) && node.issuers() != [first.clone()])
        .await;
    mesh.control().abort_rotation().unwrap();
    eventually_async("certificates of the authority in force", || node.issuers() == [first.clone()]).await;
    assert_eq!((mesh.phase(), mesh.signs()), (Some(Phase::Renew), first.clone()));
    mesh.control().rotate_without(&BTreeSet::from(["two".to_owned()])).unwrap();
    eventually_async("the end of the rotation on the node", || mesh.phase().is_none() && node.roots().len() == 1).await;
    assert!(mesh.control().authority_status().last.unwrap().aborted);
    assert!(mesh.control().abort_rotation().unwrap_err().to_string().contains("no rotation"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drill_proves_the_candidate_and_changes_no_certificate() {
    let mesh = Mesh::start().await;
    let first = mesh.signs();
    let node = Node::start(&mesh, mesh.member("one").await);
    eventually_async("certificates of the authority in force", || node.issuers() == [first.clone()]).await;
    mesh.rotate(true);
    let busy = mesh.control().rotate(Authority::new(&DOMAIN.parse().unwrap()).unwrap(), false, BTreeSet::new());
    assert!(busy.unwrap_err().to_string().contains("a drill is under way"));
    eventually_async("the end of the rotation", || mesh.phase().is_none()).await;
    let last = mesh.control().authority_status().last.unwrap();
    assert!(last.drill && last.failed.is_empty(), "{last:?}");
    eventually_async("the other root to go", || node.roots().len() == 1).await;
    assert_eq!((mesh.signs(), node.issuers()), (first.clone(), vec![first.clone()]));

    // With a node that is away.
    let away = Node::start(&mesh, mesh.member("two").await);
    eventually_async("certificates of the authority in force", || away.issuers() == [first.clone()]).await;
    away.leave();
    let is_away = || mesh.control().status().nodes.iter().any(|node| node.name == "two" && !node.connected);
    eventually_async("the end of the rotation", is_away).await;
    mesh.rotate(true);
    eventually_async("the end of the rotation", || mesh.phase().is_none()).await;
    let last = mesh.control().authority_status().last.unwrap();
    assert_eq!(last.failed.keys().collect::<Vec<_>>(), ["two"]);
    assert!(last.failed["two"].contains("away"));
    assert_eq!(mesh.signs(), first);
}

#[tokio::test]
async fn nothing_is_signed_by_a_candidate_but_a_nodes_own_proof() {
    let mesh = Mesh::start().await;
    let (one, _two) = (mesh.member("one").await, mesh.member("two").await);
    let channel = channel::of_member(&[mesh.served().address.to_string()], &one).unwrap();
    let mut client = v1::identity_client::IdentityClient::new(channel);
    let request = |identity: &SpiffeId| {
        let csr = leno_identity::KeyRequest::new(identity).unwrap().csr().to_vec().into();
        v1::SignRequest { identity: identity.to_string(), csr, candidate: true }
    };
    let none = client.sign(request(one.identity())).await.unwrap_err();
    assert_eq!(none.code(), Code::FailedPrecondition);
    mesh.rotate(false);
    let chain = client.sign(request(one.identity())).await.unwrap().into_inner().chain;
    let leaf = CertificateDer::from(chain[0].to_vec());
    let candidate = mesh.file().successor(&mesh.control().authorities()[0]).unwrap();
    assert_eq!(AuthorityKeyId::of(&leaf), *candidate.key_id());
    let left = leno_identity::not_after(&leaf).unwrap().as_secs()
        - SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(left <= 300, "it is for minutes: {left}");
    let frontend: SpiffeId = identity(FRONTEND).parse().unwrap();
    let two = SpiffeId::node(&DOMAIN.parse().unwrap(), "two").unwrap();
    for other in [&frontend, &two] {
        assert_eq!(client.sign(request(other)).await.unwrap_err().code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn a_control_plane_does_not_lead_with_an_authority_that_is_not_the_meshs() {
    let mut mesh = Mesh::start().await;
    let copy = mesh.path("copy.pem");
    std::fs::copy(mesh.path("ca.pem"), &copy).unwrap();
    let _one = mesh.member("one").await;
    mesh.rotate(false);
    mesh.served.take().unwrap().stop().await;
    mesh.control = None;
    let open = |path: &Path, replace: bool| {
        let file = file(path);
        let (held, name) = (file.open().unwrap(), path.display().to_string());
        let authorities = Authorities { held, file: Some(name), replace };
        let store = Store::open(&mesh.path("store")).unwrap();
        Control::with_authorities(authorities, store, Default::default())
    };
    // A file from before the rotation, another file, and none at all.
    let error = open(&copy, false).unwrap_err().to_string();
    assert!(error.contains("copy.pem does not have the authority") && error.contains("is changing"), "{error}");
    let error = open(&mesh.path("other.pem"), false).unwrap_err().to_string();
    assert!(error.contains("of this mesh") && error.contains("copy the file"), "{error}");
    let authority = Authority::new(&DOMAIN.parse().unwrap()).unwrap();
    let error = Control::new(authority, Store::open(&mesh.path("store")).unwrap(), Default::default()).unwrap_err();
    assert!(error.to_string().contains("--authority"), "{error}");
    assert_eq!(open(&mesh.path("ca.pem"), false).unwrap().authority_status().phase, Some(Phase::Trust));
    // It succeeds if replacing the authority was requested.
    let replaced = open(&mesh.path("other.pem"), true).unwrap();
    let status = replaced.authority_status();
    assert_eq!((status.phase, status.roots.len()), (None, 1), "the lost one is not trusted");
    drop(replaced);
    assert!(open(&mesh.path("other.pem"), false).is_ok());
}

#[tokio::test]
async fn keys_in_memory_are_lost_with_the_process_and_nodes_join_again() {
    let folder = tempfile::tempdir().unwrap();
    let open = || control_with(Store::open(&folder.path().join("store")).unwrap(), Default::default());
    let control = open();
    let member = control.admit("one", everything()).unwrap();
    let candidate = Authority::new(&DOMAIN.parse().unwrap()).unwrap();
    control.rotate(candidate, false, BTreeSet::new()).unwrap();
    let status = control.authority_status();
    assert_eq!((status.phase, status.file, status.roots.len()), (Some(Phase::Trust), None, 2));
    drop(control);
    let control = open();
    let status = control.authority_status();
    assert_eq!((status.phase, status.roots.len()), (None, 2), "the new root and the one of before");
    let served = TestServer::start(&control).await;
    let agent = join_at(served.address, &member, 1).0;
    assert!(away(&agent).await.contains("UnknownIssuer"));
}

#[test]
fn an_authority_that_expires_soon_is_told() {
    /// So many days before now.
    #[derive(Debug)]
    struct Ago(AtomicU64);
    impl leno_identity::TimeProvider for Ago {
        fn current_time(&self) -> Option<leno_identity::UnixTime> {
            let now = leno_identity::UnixTime::now().as_secs() - self.0.load(Ordering::Relaxed) * 86_400;
            Some(leno_identity::UnixTime::since_unix_epoch(Duration::from_secs(now)))
        }
    }
    let warnings = |days| {
        let clock = Arc::new(Ago(AtomicU64::new(days)));
        let authority = Authority::with_clock(&DOMAIN.parse().unwrap(), clock.clone()).unwrap();
        clock.0.store(0, Ordering::Relaxed);
        Control::new(authority, Store::memory(), Default::default()).unwrap().authority_status().warnings
    };
    // A root lasts three years.
    assert!(warnings(0).is_empty() && warnings(3 * 365 - 31).is_empty());
    let soon = warnings(3 * 365 - 29);
    assert!(soon.len() == 1 && soon[0].contains("expires in 2") && soon[0].contains("leno ca rotate"), "{soon:?}");
}
