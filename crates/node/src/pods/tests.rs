//! Pods of a test's machine: with a capture on loopback, and with that of the kernel.

mod istio;
mod machine;

use super::*;
use crate::instances::HostedFunctions;
use leno_cni::enforced::EnforcedNamespaces;
use leno_cni::protocol::{CniCommand, CniRequest, CniResponse, VERSION, ask};
use leno_config::DocumentSet;
use leno_identity::{Authority, AuthorityPem, KeyRequest, SvidStore};
use leno_model::PodRefusal;
use leno_proxy::pods::{Binding, Dial, PodNetwork};
use leno_proxy::{FunctionEntry, Handle, Machines, NodeSnapshot, Options};
use leno_telemetry::Telemetry;
use leno_testkit::eventually_async;
use leno_testkit::keys::CertificateAuthority;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TRUST_DOMAIN: &str = "leno.local";

/// A node without a control plane.
pub(super) struct TestNode {
    pub pods: Pods,
    pub owner: watch::Sender<bool>,
    pub unenrolled: watch::Sender<VecDeque<PodUid>>,
    /// The reported faults.
    faults: Arc<Mutex<BTreeMap<PodUid, String>>>,
    _handle: Handle,
    folder: TempDir,
}

impl TestNode {
    /// Documents of Kubernetes: functions that are pods, and policies.
    pub(super) fn start(capture: Arc<dyn Capture>, documents: &str) -> Self {
        Self::start_under(&CertificateAuthority::of_trust_domain(TRUST_DOMAIN), capture, documents)
    }

    /// The same, with certificates of this root.
    pub(super) fn start_under(root: &CertificateAuthority, capture: Arc<dyn Capture>, documents: &str) -> Self {
        Self::with(root, capture, documents, false)
    }

    fn with(root: &CertificateAuthority, capture: Arc<dyn Capture>, documents: &str, releases: bool) -> Self {
        let authority = authority(root);
        let svids = SvidStore::new(authority.bundle().clone());
        let mut set = DocumentSet::of_text(Path::new("cluster.yaml"), documents);
        set.documents.kubernetes = true;
        let compiled = set.compile().unwrap();
        let mut mesh = compiled.mesh_config().clone();
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        (mesh.outbound, mesh.inbound, mesh.gateway_http, mesh.gateway_https) = (free, free, None, None);
        mesh.limits.head_timeout = Duration::from_millis(300);
        let mut change = NodeSnapshot::new(mesh).change();
        let telemetry = Telemetry::quiet(TRUST_DOMAIN);
        for id in compiled.functions() {
            let config = compiled.function_config(id).unwrap();
            let request = KeyRequest::new(&config.identity).unwrap();
            let chain = authority.sign(request.csr(), &config.identity, Duration::from_secs(3600)).unwrap();
            svids.install(request, chain).unwrap();
            let entry = FunctionEntry::load(&leno_sandbox::Engine::inline(), config);
            entry.share_in(&telemetry.namespaces);
            change.insert(Arc::new(entry));
        }
        let node = Node::new(change.finish(), Arc::new(HostedFunctions::default()), svids, telemetry);
        let options = Options { workers: 2.try_into().ok(), connections: 1000, outbound: false };
        let handle = leno_proxy::serve(&node, options).unwrap();
        let (owner, owned) = watch::channel(false);
        let folder = tempfile::tempdir().unwrap();
        let options = PodOptions {
            capture,
            socket: folder.path().join("run/cni.sock"),
            enforced: folder.path().join("enforced"),
            releases,
        };
        let faults = Arc::<Mutex<BTreeMap<PodUid, String>>>::default();
        let reported = faults.clone();
        let report: FaultReport = Box::new(move |uid, fault| {
            let mut faults = reported.lock().unwrap();
            match fault {
                Some(fault) => drop(faults.insert(uid.clone(), fault)),
                None => drop(faults.remove(uid)),
            }
        });
        let (unenrolled, receiver) = watch::channel(VecDeque::new());
        let exchange = PodExchange { report, unenrolled: receiver };
        let pods = Pods::start(options, exchange, &node, handle.interceptor.clone(), owned);
        Self { pods, owner, unenrolled, faults, _handle: handle, folder }
    }

    /// Asks as the CNI plug-in does.
    pub(super) async fn ask(&self, command: CniCommand, pod: &Pod, network: Option<&Path>) -> CniResponse {
        let socket = self.folder.path().join("run/cni.sock");
        eventually_async("the socket", || socket.exists()).await;
        let request = CniRequest {
            version: VERSION,
            command,
            container_id: "sandbox".to_owned(),
            netns: network.map(Path::to_owned),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: Some(pod.uid.to_string()),
            addresses: Vec::new(),
        };
        let asked = tokio::task::spawn_blocking(move || ask(&socket, &request, Duration::from_secs(30)));
        asked.await.unwrap().unwrap()
    }

    pub(super) fn deliver(&self, pods: &[&Pod]) {
        self.pods.follow(pods.iter().map(|pod| (pod.uid.clone(), Some((*pod).clone()))).collect());
    }

    fn states(&self, pod: &Pod) -> Vec<InstanceState> {
        self.pods.instances(&pod.function).into_iter().map(|instance| instance.state).collect()
    }
}

/// The authority of the mesh with this root.
fn authority(root: &CertificateAuthority) -> Authority {
    let pem = AuthorityPem { certificate: root.pem(), key: root.key_pem().into(), roots: root.pem() };
    pem.open(&TRUST_DOMAIN.parse().unwrap()).unwrap()
}

/// The document of a function that is pods, in the namespace `shop`.
pub(super) fn function(name: &str, mode: PodMode) -> String {
    format!(
        "{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: {name}, namespace: shop}}, spec: {{pods: {{serviceAccount: {name}, mode: {mode}}}}}}}\n---\n"
    )
}

pub(super) fn pod(name: &str, number: u8, mode: PodMode) -> Pod {
    Pod {
        uid: format!("6f0e6d1c-2a54-4c2b-9c43-{number:012}").parse().unwrap(),
        namespace: "shop".to_owned(),
        name: format!("{name}-{number}"),
        function: FunctionId::new("shop", name).unwrap(),
        service_account: Some(name.to_owned()),
        addresses: Vec::new(),
        mode,
        ports: Vec::new(),
        probes: Vec::new(),
        refused: None,
    }
}

/// Captures pods on loopback.
#[derive(Default)]
struct LoopbackCapture {
    captured: Mutex<BTreeMap<PodUid, Arc<LoopbackPod>>>,
    /// Why nothing is captured now.
    fault: Mutex<Option<String>>,
    attempts: AtomicUsize,
    kept: Mutex<Option<BTreeSet<PodUid>>>,
}

struct LoopbackPod {
    outbound: TcpListener,
    inbound: TcpListener,
    network: Option<PathBuf>,
    modes: Mutex<Vec<PodMode>>,
    stopped: AtomicUsize,
    released: AtomicUsize,
    /// Another process has its connections.
    handed_over: AtomicBool,
}

/// Each program answers `hello`.
struct LoopbackNetwork(SocketAddr);

impl Capture for LoopbackCapture {
    fn enrol(&self, pod: &Pod, network: Option<&Path>) -> io::Result<Arc<dyn PodHandle>> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if let Some(fault) = self.fault.lock().unwrap().clone() {
            return Err(io::Error::other(fault));
        }
        let listen = || TcpListener::bind("127.0.0.1:0");
        let captured = Arc::new(LoopbackPod {
            outbound: listen()?,
            inbound: listen()?,
            network: network.map(Path::to_owned),
            modes: Mutex::new(vec![pod.mode]),
            stopped: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            handed_over: AtomicBool::new(false),
        });
        self.captured.lock().unwrap().insert(pod.uid.clone(), captured.clone());
        Ok(Arc::new(LoopbackCaptured(captured)))
    }

    fn caller(&self, _: SocketAddr) -> Option<PodUid> {
        None
    }

    fn stop_others(&self, _: &BTreeSet<PodUid>) {}

    fn release_others(&self, pods: &BTreeSet<PodUid>) -> bool {
        // The first attempt fails.
        self.kept.lock().unwrap().replace(pods.clone()).is_some()
    }
}

impl LoopbackCapture {
    fn of(&self, pod: &Pod) -> Option<Arc<LoopbackPod>> {
        self.captured.lock().unwrap().get(&pod.uid).cloned()
    }
}

struct LoopbackCaptured(Arc<LoopbackPod>);

impl PodHandle for LoopbackCaptured {
    fn listeners(&self) -> io::Result<(Vec<TcpListener>, Vec<TcpListener>)> {
        Ok((vec![self.0.outbound.try_clone()?], vec![self.0.inbound.try_clone()?]))
    }

    fn network(&self, _: &Arc<Machines>) -> io::Result<Arc<dyn PodNetwork>> {
        let program = TcpListener::bind("127.0.0.1:0")?;
        let address = program.local_addr()?;
        std::thread::spawn(move || {
            for stream in program.incoming() {
                let mut stream = stream.unwrap();
                let _ = io::Write::write_all(&mut stream, b"hello");
                std::thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
            }
        });
        Ok(Arc::new(LoopbackNetwork(address)))
    }

    fn follow_interfaces(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    fn set(&self, pod: &Pod) -> io::Result<()> {
        self.0.modes.lock().unwrap().push(pod.mode);
        Ok(())
    }

    fn is_handed_over(&self) -> bool {
        self.0.handed_over.load(Ordering::SeqCst)
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        vec![("udp", 3)]
    }

    fn stop(&self) -> io::Result<()> {
        self.0.stopped.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn leave(&self) -> io::Result<()> {
        Ok(())
    }

    fn release(&self) -> io::Result<()> {
        self.0.released.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl PodNetwork for LoopbackNetwork {
    fn bind_out(&self, _: SocketAddr) -> Binding {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn connect_in(&self, _: SocketAddr, _: SocketAddr) -> Dial {
        Box::pin(TcpStream::connect(self.0))
    }

    fn is_of_node(&self, _: IpAddr) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_captured_followed_and_released() {
    let capture = Arc::<LoopbackCapture>::default();
    let node = TestNode::start(capture.clone(), &function("cart", PodMode::Permissive));
    let mut cart = pod("cart", 1, PodMode::Permissive);
    node.deliver(&[&cart]);
    assert_eq!(node.states(&cart), [InstanceState::Starting]);
    // Another process owns the node.
    assert_eq!(capture.attempts.load(Ordering::SeqCst), 0);
    node.owner.send_replace(true);
    eventually_async("the capture", || node.states(&cart) == [InstanceState::Ready]).await;
    assert!(node.pods.take_changed().contains(&cart.function));
    let captured = capture.of(&cart).unwrap();
    let mut stream = TcpStream::connect(captured.inbound.local_addr().unwrap()).await.unwrap();
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"hello");

    let domain = "leno.local".parse().unwrap();
    let identities = || node.pods.identities(&domain).into_iter().map(|id| id.to_string()).collect::<Vec<_>>();
    assert_eq!(identities(), ["spiffe://leno.local/ns/shop/sa/cart"]);

    cart.mode = PodMode::Enforced;
    cart.addresses = vec![[10, 0, 0, 1].into()];
    cart.service_account = Some("other".to_owned());
    node.deliver(&[&cart]);
    eventually_async("the other mode", || captured.modes.lock().unwrap().last() == Some(&PodMode::Enforced)).await;
    assert_eq!(node.pods.instances(&cart.function)[0].address.ip(), cart.addresses[0]);
    assert_eq!(capture.attempts.load(Ordering::SeqCst), 1);
    assert_eq!(identities(), ["spiffe://leno.local/ns/shop/sa/other"]);

    node.pods.follow(vec![(cart.uid.clone(), None)]);
    assert_eq!((node.states(&cart), identities().len()), (vec![], 0));
    eventually_async("the end of the capture", || captured.stopped.load(Ordering::SeqCst) == 1).await;
    // The open connection goes on, and only then the pod is released.
    stream.write_all(b"more").await.unwrap();
    assert_eq!(captured.released.load(Ordering::SeqCst), 0);
    drop(stream);
    eventually_async("the release", || captured.released.load(Ordering::SeqCst) == 1).await;

    node.pods.complete();
    eventually_async("a look at the pods of earlier processes", || capture.kept.lock().unwrap().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_fails_is_tried_again() {
    let capture = Arc::<LoopbackCapture>::default();
    *capture.fault.lock().unwrap() = Some("no process of the pod runs".to_owned());
    let node = TestNode::start(capture.clone(), &function("cart", PodMode::Enforced));
    node.owner.send_replace(true);
    let cart = pod("cart", 1, PodMode::Enforced);
    node.deliver(&[&cart]);
    eventually_async("two attempts", || capture.attempts.load(Ordering::SeqCst) > 1).await;
    let refused = node.ask(CniCommand::Check, &cart, None).await;
    assert_eq!(refused, CniResponse::Refused { reason: "no process of the pod runs".to_owned() });
    assert_eq!(node.faults.lock().unwrap()[&cart.uid], "no process of the pod runs");
    *capture.fault.lock().unwrap() = None;
    eventually_async("the capture", || node.states(&cart) == [InstanceState::Ready]).await;
    assert_eq!(node.ask(CniCommand::Check, &cart, None).await, CniResponse::Captured);
    assert!(node.faults.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_fails_before_it_has_a_pod_changes_nothing() {
    let capture = Arc::<LoopbackCapture>::default();
    let node = TestNode::start(capture.clone(), &function("cart", PodMode::Permissive));
    let (first, second) = (pod("cart", 1, PodMode::Permissive), pod("cart", 2, PodMode::Permissive));
    node.owner.send_replace(true);
    node.deliver(&[&first, &second]);
    eventually_async("the captures", || node.states(&first) == [InstanceState::Ready; 2]).await;
    capture.of(&second).unwrap().handed_over.store(true, Ordering::SeqCst);
    node.owner.send_replace(false);
    tokio::task::yield_now().await;
    node.owner.send_replace(true);
    eventually_async("the capture of a pod that the child had", || {
        !capture.of(&second).unwrap().handed_over.load(Ordering::SeqCst)
    })
    .await;
    assert_eq!(capture.attempts.load(Ordering::SeqCst), 3);
    let address = capture.of(&first).unwrap().inbound.local_addr().unwrap();
    let mut greeting = [0; 5];
    TcpStream::connect(address).await.unwrap().read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plug_in_waits_for_the_control_plane_and_the_capture() {
    let capture = Arc::<LoopbackCapture>::default();
    let documents = [function("cart", PodMode::Permissive), function("vault", PodMode::Enforced)].concat();
    let node = TestNode::start(capture.clone(), &documents);
    node.owner.send_replace(true);
    let (cart, other) = (pod("cart", 1, PodMode::Permissive), pod("cart", 2, PodMode::Permissive));
    let path = Path::new("/run/netns/a");
    let (answer, ()) = tokio::join!(node.ask(CniCommand::Add, &cart, Some(path)), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        node.deliver(&[&cart]);
    });
    assert_eq!(answer, CniResponse::Captured);
    let first = capture.of(&cart).unwrap();
    assert_eq!(first.network.as_deref(), Some(path));
    assert_eq!(node.ask(CniCommand::Add, &other, Some(path)).await, CniResponse::NotEnrolled);

    // The runtime makes the sandbox anew.
    assert_eq!(node.ask(CniCommand::Del, &cart, None).await, CniResponse::Captured);
    assert_eq!(first.released.load(Ordering::SeqCst), 1);
    assert_eq!(node.ask(CniCommand::Check, &cart, None).await, CniResponse::NotEnrolled);
    let path = Path::new("/run/netns/b");
    assert_eq!(node.ask(CniCommand::Add, &cart, Some(path)).await, CniResponse::Captured);
    assert_eq!(capture.of(&cart).unwrap().network.as_deref(), Some(path));

    // A pod that cannot be captured starts only in a permissive namespace.
    *capture.fault.lock().unwrap() = Some("the kernel lacks something".to_owned());
    let mut vault = pod("vault", 3, PodMode::Enforced);
    vault.namespace = "bank".to_owned();
    node.deliver(&[&other, &vault]);
    assert_eq!(node.ask(CniCommand::Add, &other, Some(path)).await, CniResponse::NotEnrolled);
    let refused = |reason: &str| CniResponse::Refused { reason: reason.to_owned() };
    assert_eq!(node.ask(CniCommand::Add, &vault, Some(path)).await, refused("the kernel lacks something"));
    // One that is not to be captured does not start in an enforced namespace.
    vault.refused = Some(PodRefusal::NetAdmin);
    node.deliver(&[&vault]);
    let reason = "the pod can change its network (NET_ADMIN)";
    assert_eq!(node.ask(CniCommand::Add, &vault, Some(path)).await, refused(reason));
    let states = || node.pods.status().into_iter().map(|pod| (pod.state, pod.reason)).collect::<Vec<_>>();
    assert!(states().contains(&(PodState::Refused, Some(reason.to_owned()))), "{:?}", states());
    eventually_async("the report", || node.faults.lock().unwrap().get(&vault.uid).is_some_and(|it| it == reason)).await;
    // Of an enforced namespace, an unknown pod does not start either.
    node.pods.follow(vec![(vault.uid.clone(), None)]);
    assert!(!node.faults.lock().unwrap().contains_key(&vault.uid));
    assert_eq!(node.ask(CniCommand::Add, &vault, Some(path)).await, CniResponse::NotEnrolled);
    node.pods.set_enforced(["bank".to_owned()].into());
    let reason = "namespace bank is enforced, and the control plane has not delivered the pod within 500ms";
    assert_eq!(node.ask(CniCommand::Add, &vault, Some(path)).await, refused(reason));
    // The control plane says that it is not in the mesh.
    let (answer, ()) = tokio::join!(node.ask(CniCommand::Add, &vault, Some(path)), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        node.unenrolled.send_modify(|pods| pods.push_back(vault.uid.clone()));
    });
    assert_eq!(answer, CniResponse::NotEnrolled);
    let no_network = node.ask(CniCommand::Add, &other, None).await;
    assert_eq!(no_network, refused("the runtime names no network namespace (CNI_NETNS)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_about_to_be_removed_releases_all_pods() {
    let capture = Arc::new(LoopbackCapture::default());
    let node = TestNode::with(
        &CertificateAuthority::of_trust_domain(TRUST_DOMAIN),
        capture.clone(),
        &function("cart", PodMode::Enforced),
        true,
    );
    let list = node.folder.path().join("enforced");
    eventually_async("the empty list", || EnforcedNamespaces::read(&list).is_ok_and(|it| it.is_some())).await;
    let pod = pod("cart", 1, PodMode::Enforced);
    node.pods.set_enforced(["shop".to_owned()].into());
    node.deliver(&[&pod]);
    node.owner.send_replace(true);
    node.pods.set_alone();
    node.pods.complete();
    assert_eq!(node.ask(CniCommand::Add, &pod, Some(Path::new("/proc/self/ns/net"))).await, CniResponse::NotEnrolled);
    // The first attempt fails, so the node is ready after the second one.
    eventually_async("readiness", || node.pods.is_ready()).await;
    assert_eq!(capture.kept.lock().unwrap().take(), Some(BTreeSet::new()));
    assert!(capture.of(&pod).is_none() && node.pods.functions().is_empty());
    assert_eq!(EnforcedNamespaces::read(&list).unwrap(), Some(EnforcedNamespaces::default()));
}
