//! Nodes that join with a credential of their platform, and their pods.

use crate::support::configs::{DOMAIN, config, function};
use crate::support::*;
use leno_agent::{Agent, BACKOFF, Change, JoinFailure, JoinOptions, PlatformJoin, Updates, enrol};
use leno_control::{
    BoxFuture, Control, JoinError, JoinVerifier, NodeChange, Store, TokenGrant, Transaction, VerifiedNode,
};
use leno_identity::{Authority, AuthorityFile, KeyRequest, Membership};
use leno_model::{FunctionConfig, Pod, PodMode, PodUid, Pods, Run};
use leno_testkit::eventually_async;
use leno_wire::{Placement, Resource, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

const CART: &str = "orders/cart";
/// As clouds name nodes: with dots, and longer than a DNS label.
const NODE: &str = "ip-10-0-0-1.a-rather-long-region-name.compute.internal.cluster.example";

/// The nodes of some credentials.
#[derive(Default)]
struct Platform {
    nodes: Mutex<BTreeMap<Vec<u8>, VerifiedNode>>,
    /// Answers that come before those of `nodes`.
    faults: Mutex<Vec<JoinError>>,
}

impl Platform {
    fn issue(&self, credential: &str, name: &str) {
        let node = VerifiedNode {
            name: name.to_owned(),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            locality: Default::default(),
        };
        self.nodes.lock().unwrap().insert(credential.as_bytes().to_vec(), node);
    }
}

impl JoinVerifier for Platform {
    fn verify<'a>(&'a self, credential: &'a [u8]) -> BoxFuture<'a, Result<VerifiedNode, JoinError>> {
        Box::pin(async move {
            if let Some(fault) = self.faults.lock().unwrap().pop() {
                return Err(fault);
            }
            let node = self.nodes.lock().unwrap().get(credential).cloned();
            node.ok_or_else(|| JoinError::Refused("the platform knows no such token".to_owned()))
        })
    }
}

/// A folder with the credential of a node and the authority of its control plane.
struct Cluster {
    folder: tempfile::TempDir,
    platform: Arc<Platform>,
}

impl Cluster {
    fn new() -> Self {
        let cluster = Self { folder: tempfile::tempdir().unwrap(), platform: Arc::default() };
        cluster.platform.issue("first-token", NODE);
        fs::write(cluster.credential(), "first-token\n").unwrap();
        cluster
    }

    fn credential(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    fn roots(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A control plane with a new authority.
    fn control(&self) -> Control {
        self.control_with(Authority::new(&DOMAIN.parse().unwrap()).unwrap())
    }

    /// A control plane with an empty store, which has the functions and pods. Its root reaches the node.
    fn control_with(&self, authority: Authority) -> Control {
        let control = Control::new(authority, Store::memory(), Default::default()).unwrap();
        fs::write(self.roots(), control.bundle().to_pem()).unwrap();
        control.publish(&definitions([of_pods(CART)])).unwrap();
        control.change_pods(vec![(NODE.to_owned(), pod("pod-1"))], &[]);
        control.set_enforced_namespaces(&["orders", "payments"].map(str::to_owned).into());
        control.set_join_verifier(self.platform.clone());
        control
    }

    fn join(&self, address: SocketAddr) -> PlatformJoin {
        let control = vec![address.to_string()];
        PlatformJoin { control, name: NODE.to_owned(), credential: self.credential(), roots: self.roots() }
    }

    /// A node that has all its resources.
    async fn node(&self, address: SocketAddr) -> (Membership, Agent, Updates) {
        let join = self.join(address);
        let membership = patient(join.enrol(BACKOFF)).await.unwrap();
        let backoff = BACKOFF.with_min_delay(Duration::from_millis(5)).with_max_delay(Duration::from_millis(50));
        let options = leno_agent::Options {
            control: join.control.clone(),
            membership: membership.clone(),
            inbound: None,
            backoff,
            rejoin: Some(join),
            oldest: 1,
        };
        let (agent, mut updates) = leno_agent::join(options).unwrap();
        agent.subscribe([Subject::Mesh, Subject::Hosted]);
        let changes = accepted(&mut updates).await;
        assert_eq!(subjects(&changes)[..2], [Subject::Mesh, config_of(CART)]);
        let enforced = BTreeSet::from(["orders".to_owned(), "payments".to_owned()]);
        let rest = [
            Resource::EnforcedNamespaces(enforced),
            Resource::Pod(Box::new(pod("pod-1"))),
            Resource::Hosted(Placement::Pods),
        ];
        assert_eq!(changes[2..], rest.map(Change::Set));
        (membership, agent, updates)
    }
}

fn of_pods(name: &str) -> FunctionConfig {
    let (mode, ports, other_accounts) = (PodMode::Enforced, Vec::new(), Vec::new());
    let run = Run::Pods(Pods { service_account: "default".to_owned(), mode, ports, other_accounts });
    let identity = run.identity(&DOMAIN.parse().unwrap(), &function(name));
    FunctionConfig { run, identity, ..config(name, &[], 1) }
}

fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.parse().unwrap(),
        namespace: "orders".to_owned(),
        name: format!("cart-{uid}"),
        function: function(CART),
        service_account: None,
        addresses: Vec::new(),
        mode: PodMode::Enforced,
        ports: Vec::new(),
        probes: Vec::new(),
        refused: None,
    }
}

/// A control plane without a platform.
fn control_plain(cluster: &Cluster) -> Control {
    let control = control();
    fs::write(cluster.roots(), control.bundle().to_pem()).unwrap();
    control
}

/// A new pod arrives, and nothing else has changed.
async fn gets_the_next_pod(control: &Control, updates: &mut Updates) {
    control.change_pods(vec![(NODE.to_owned(), pod("pod-2"))], &[]);
    let changes = accepted(updates).await;
    assert_eq!(subjects(&changes), [Subject::Pod("pod-2".parse().unwrap())], "{changes:?}");
}

#[tokio::test]
async fn a_node_that_proves_itself_hosts_the_functions_of_its_pods() {
    let cluster = Cluster::new();
    let control = cluster.control();
    let served = TestServer::start(&control).await;
    let (member, agent, mut updates) = cluster.node(served.address).await;
    let account = of_pods(CART).identity;
    let request = KeyRequest::new(&account).unwrap();
    agent.sign(&account, request.csr().to_vec()).await.unwrap();

    // It joins again with another token: the same membership, and its stream goes on.
    cluster.platform.nodes.lock().unwrap().clear();
    cluster.platform.issue("second-token", NODE);
    fs::write(cluster.credential(), "second-token").unwrap();
    let again = patient(cluster.join(served.address).enrol(BACKOFF)).await.unwrap();
    assert_eq!(again.identity(), member.identity());
    gets_the_next_pod(&control, &mut updates).await;
    assert_eq!(control.counters(NODE).unwrap().streams, 1);
    let changes: Vec<_> = control.node_events().into_iter().map(|event| event.change).collect();
    assert_eq!(changes, [NodeChange::Joined]);
}

#[tokio::test]
async fn machines_that_prove_nothing_are_refused() {
    let cluster = Cluster::new();
    let control = cluster.control();
    let served = TestServer::start(&control).await;
    let refusal = async |join: PlatformJoin| match patient(join.enrol(BACKOFF)).await.unwrap_err() {
        JoinFailure::Refused(reason) => reason,
        other => panic!("{other}"),
    };
    let own = || cluster.join(served.address);
    let other = PlatformJoin { name: "other".to_owned(), ..own() };
    assert_eq!(refusal(other).await, format!("the credential is of the node `{NODE}`"));
    fs::write(cluster.credential(), "a-stolen-token-of-another-cluster").unwrap();
    assert_eq!(refusal(own()).await, "the platform knows no such token");
    assert!(control.status().nodes.is_empty());

    // A name that a join token has made a member.
    let grant = TokenGrant {
        node: Some(NODE.to_owned()),
        admission: everything(),
        addresses: Vec::new(),
        expires: SystemTime::now() + Duration::from_secs(600),
        limits: Default::default(),
    };
    let token = control.grant(grant, Transaction::default()).unwrap();
    let options =
        JoinOptions { control: vec![served.address.to_string()], token, name: NODE.to_owned(), address: None };
    patient(enrol(&options, BACKOFF)).await.unwrap();
    fs::write(cluster.credential(), "first-token").unwrap();
    assert!(refusal(own()).await.contains("joined with a join token; revoke it first"));

    // A control plane that is not one of a platform.
    let plain = control_plain(&cluster);
    let served = TestServer::start(&plain).await;
    assert!(refusal(cluster.join(served.address)).await.contains("the join token is not valid"));
}

#[tokio::test]
async fn a_platform_that_is_away_and_files_that_come_later_are_waited_for() {
    let cluster = Cluster::new();
    let control = cluster.control();
    let served = TestServer::start(&control).await;
    let away = JoinError::Away("the API server is away".to_owned());
    cluster.platform.faults.lock().unwrap().extend([away.clone(), away]);
    fs::remove_file(cluster.credential()).unwrap();
    let join = cluster.join(served.address);
    let joining = tokio::spawn(async move { join.enrol(BACKOFF).await });
    fs::write(cluster.credential(), "first-token").unwrap();
    patient(joining).await.unwrap().unwrap();
    assert!(cluster.platform.faults.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_node_joins_a_control_plane_that_does_not_know_it_again_and_keeps_its_pods() {
    let cluster = Cluster::new();
    let kept = cluster.folder.path().join("authority");
    let kept = AuthorityFile::new(&kept, b"correct horse battery", &DOMAIN.parse().unwrap()).unwrap();
    let same_authority = || cluster.control_with(kept.open().unwrap().remove(0));
    let control = same_authority();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let (_, agent, mut updates) = cluster.node(address).await;
    let before = agent.held();
    served.stop().await;
    drop(control);

    let control = same_authority();
    let served = TestServer::start_at(&control, address).await;
    gets_the_next_pod(&control, &mut updates).await;
    assert!(before.iter().all(|held| agent.held().get(held.0) == Some(held.1)));
    // Its other requests show the new certificate too.
    let account = of_pods(CART).identity;
    agent.sign(&account, KeyRequest::new(&account).unwrap().csr().to_vec()).await.unwrap();
    served.stop().await;
    drop(control);

    // Another authority, whose root reaches the node by the file.
    let control = cluster.control();
    let _served = TestServer::start_at(&control, address).await;
    let changes = accepted(&mut updates).await;
    assert!(!subjects(&changes).contains(&Subject::Pod("pod-1".parse().unwrap())), "{changes:?}");
    connected(&agent).await;
    agent.sign(&account, KeyRequest::new(&account).unwrap().csr().to_vec()).await.unwrap();
}

#[tokio::test]
async fn a_revoked_node_joins_again_only_while_its_platform_has_it() {
    let cluster = Cluster::new();
    let control = cluster.control();
    let served = TestServer::start(&control).await;
    let (_, agent, mut updates) = cluster.node(served.address).await;
    assert!(control.revoke(NODE, Transaction::default()).unwrap());
    gets_the_next_pod(&control, &mut updates).await;

    cluster.platform.nodes.lock().unwrap().clear();
    assert!(control.revoke(NODE, Transaction::default()).unwrap());
    let reason = away(&agent).await;
    assert!(reason.contains("was revoked"), "{reason}");
    assert!(control.status().nodes.is_empty());
}

#[tokio::test]
async fn a_node_reports_the_pods_that_it_does_not_capture() {
    let cluster = Cluster::new();
    let control = cluster.control();
    let served = TestServer::start(&control).await;
    let address = served.address;
    let (_, agent, mut updates) = cluster.node(address).await;
    let uid = |text: &str| text.parse::<PodUid>().unwrap();
    let fault = |pod: &str, reason: &str| (NODE.to_owned(), uid(pod), reason.to_owned());
    let reported = async |control: &Control, expected: &[(String, PodUid, String)]| {
        eventually_async("the reports of the node", || control.pod_faults() == expected).await;
    };
    agent.report_pod(&uid("pod-1"), Some("its network cannot be entered".to_owned()));
    reported(&control, &[fault("pod-1", "its network cannot be entered")]).await;
    // A pod that is not its own.
    agent.report_pod(&uid("pod-of-another-node"), Some("no".to_owned()));
    eventually_async("the refusal", || control.counters(NODE).unwrap().refused == 1).await;
    agent.report_pod(&uid("pod-of-another-node"), None);
    // One that is refused at once.
    control.change_pods(vec![(NODE.to_owned(), pod("pod-2"))], &[]);
    next(&mut updates).await.reject_all("it has the network of its node");
    let second = fault("pod-2", "it has the network of its node");
    reported(&control, &[fault("pod-1", "its network cannot be entered"), second.clone()]).await;
    // Another stream has the reports again.
    served.stop().await;
    let served = TestServer::start_at(&control, address).await;
    eventually_async("the next stream", || control.counters(NODE).unwrap().streams == 2).await;
    reported(&control, &[fault("pod-1", "its network cannot be entered")]).await;
    agent.report_pod(&uid("pod-1"), None);
    reported(&control, &[]).await;
    drop(served);
}
