//! Both ends of tunnels, on loopback.

use super::*;
use crate::state::function::FunctionEntry;
use crate::state::instances::{Acquire, Instances, Lease};
use crate::state::node::Node;
use crate::state::pods::{Binding, BoundSocket, Dial};
use crate::state::snapshot::NodeSnapshot;
use crate::{Handle, Options, PodListeners, serve};
use leno_config::DocumentSet;
use leno_http::failure::Unavailable;
use leno_identity::{Authority, AuthorityPem, KeyRequest, SpiffeId, SvidStore};
use leno_model::{FunctionId, Pod, PodMode};
use leno_runtime::random::Random;
use leno_runtime::schedule;
use leno_telemetry::Telemetry;
use leno_testkit::keys::CertificateAuthority;
use std::cell::Cell;
use std::future::Future;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TRUST_DOMAIN: &str = "leno.local";

/// An address for each pod: all are called at the same port.
fn pod_address() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let [high, low] = ((std::process::id() % 0xff00) as u16 + 0x100).to_be_bytes();
    SocketAddr::from(([127, high, low, NUMBER.fetch_add(1, Ordering::Relaxed)], TUNNELS))
}

/// The network of a pod, and the program in it.
struct Loopback {
    address: IpAddr,
    program: SocketAddr,
    /// Connections out of the pod.
    opened: AtomicUsize,
}

impl PodNetwork for Loopback {
    fn bind_out(&self, destination: SocketAddr) -> Binding {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let address = self.address;
        Box::pin(async move {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(address, 0))?;
            let local = socket.local_addr()?;
            Ok(BoundSocket { local, dial: Box::pin(socket.connect(destination)), known: Box::new(()) })
        })
    }

    fn connect_in(&self, _: SocketAddr, _: SocketAddr) -> Dial {
        Box::pin(TcpStream::connect(self.program))
    }

    fn is_of_node(&self, _: IpAddr) -> bool {
        false
    }
}

struct NoInstances;

impl Instances for NoInstances {
    fn try_acquire(&self, _: &FunctionId, _: u32, _: &[SocketAddr]) -> Option<Lease> {
        None
    }

    fn acquire<'a>(
        &'a self,
        _: &'a FunctionId,
        _: u32,
        _: &'a [SocketAddr],
        _: Option<tokio::time::Instant>,
    ) -> Acquire<'a> {
        Box::pin(async { Err(Unavailable::Unknown) })
    }

    fn count(&self, _: &FunctionId) -> u32 {
        0
    }
}

fn identity(name: &str) -> SpiffeId {
    format!("spiffe://{TRUST_DOMAIN}/ns/shop/sa/{name}").parse().unwrap()
}

/// A node with `web`, which every pod may call, and `vault`, which only `web` may call.
fn node(authority: &Authority) -> Arc<Node> {
    let function = |name: &str, mode: &str| {
        format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: {name}, namespace: shop}}, spec: {{pods: {{serviceAccount: {name}, mode: {mode}}}}}}}\n---\n"
        )
    };
    let rule = "{apiVersion: leno.dev/v1alpha1, kind: Policy, metadata: {name: callers, namespace: shop}, spec: {functions: [vault], authorization: {rules: [{name: web, from: [{identities: [web]}]}]}}}\n";
    let text = [function("web", "permissive"), function("vault", "enforced"), rule.to_owned()].concat();
    let mut set = DocumentSet::of_text(Path::new("cluster.yaml"), &text);
    set.documents.kubernetes = true;
    let compiled = set.compile().unwrap();
    let mut mesh = compiled.mesh_config().clone();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    (mesh.outbound, mesh.inbound, mesh.gateway_http, mesh.gateway_https) = (free, free, None, None);
    let mut change = NodeSnapshot::new(mesh).change();
    let telemetry = Telemetry::quiet(TRUST_DOMAIN);
    let svids = SvidStore::new(authority.bundle().clone());
    for id in compiled.functions() {
        let config = compiled.function_config(id).unwrap();
        let request = KeyRequest::new(&config.identity).unwrap();
        let chain = authority.sign(request.csr(), &config.identity, Duration::from_secs(3600)).unwrap();
        svids.install(request, chain).unwrap();
        let entry = FunctionEntry::load(&leno_sandbox::Engine::inline(), config);
        entry.share_in(&telemetry.namespaces);
        change.insert(Arc::new(entry));
    }
    Node::new(change.finish(), Arc::new(NoInstances), svids, telemetry)
}

fn pod(function: &str, network: Arc<Loopback>) -> Arc<ServedPod> {
    let pod = Pod {
        uid: format!("uid-of-{function}").parse().unwrap(),
        namespace: "shop".to_owned(),
        name: format!("{function}-1"),
        function: FunctionId::new("shop", function).unwrap(),
        service_account: Some(function.to_owned()),
        addresses: Vec::new(),
        mode: PodMode::Permissive,
        ports: Vec::new(),
        probes: Vec::new(),
        refused: None,
    };
    ServedPod::new(pod, network)
}

fn network(program: SocketAddr) -> Arc<Loopback> {
    Arc::new(Loopback { address: [127, 0, 0, 1].into(), program, opened: AtomicUsize::default() })
}

/// Two nodes: a worker of the one with the pod `web`, and the other one with a pod that is called.
struct Ends {
    worker: Rc<Worker>,
    web: Arc<ServedPod>,
    network: Arc<Loopback>,
    callee: Arc<Node>,
}

impl Ends {
    fn new() -> Self {
        Self::of(Authority::new(&TRUST_DOMAIN.parse().unwrap()).unwrap())
    }

    fn of(authority: Authority) -> Self {
        let worker = Worker::new(node(&authority), Random::from_system().unwrap());
        let network = network(([127, 0, 0, 1], 1).into());
        let (web, callee) = (pod("web", network.clone()), node(&authority));
        Self { worker, web, network, callee }
    }

    /// Serves a pod of the other node.
    fn serve(&self, function: &str, program: SocketAddr, listener: TcpListener) -> Handle {
        let handle =
            serve(&self.callee, Options { workers: 1.try_into().ok(), connections: 1000, outbound: false }).unwrap();
        let pod = pod(function, network(program));
        handle.interceptor.serve_pod(PodListeners { pod, outbound: Vec::new(), inbound: vec![listener] });
        handle
    }

    fn target(&self, address: SocketAddr, identities: &[&str]) -> Target {
        let identities = identities.iter().map(|name| identity(name).to_string().into()).collect();
        Target { address: SocketAddr::new(address.ip(), 25), identities, service: Some("mail.shop.svc".into()) }
    }

    async fn connect(&self, target: &Target) -> Result<PodTunnel, TunnelError> {
        connect(&self.worker, &self.web, target).await
    }

    fn opened(&self) -> usize {
        self.network.opened.load(Ordering::SeqCst)
    }
}

/// Greets, and returns all bytes.
async fn program() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                stream.write_all(b"220 ready\r\n").await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

async fn expect_greeting(stream: &mut (impl AsyncRead + Unpin)) {
    let mut line = [0; 11];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"220 ready\r\n");
}

fn block_on(test: impl Future<Output = ()> + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = Rc::new(Cell::new(false));
    let place = done.clone();
    runtime.block_on(schedule::run(async move {
        test.await;
        place.set(true);
    }));
    assert!(done.get(), "it panicked");
}

#[test]
fn tunnels_share_connections_and_a_copied_one_ends_as_its_ends_do() {
    block_on(async {
        let (ends, address) = (Ends::new(), pod_address());
        let _handle = ends.serve("web", program().await, TcpListener::bind(address).unwrap());
        let target = ends.target(address, &["other", "web"]);
        let mut open = Vec::new();
        for _ in 0..100 {
            let mut tunnel = ends.connect(&target).await.unwrap();
            expect_greeting(&mut tunnel).await;
            open.push(tunnel);
        }
        assert_eq!(ends.opened(), 1);
        open.push(ends.connect(&target).await.unwrap());
        assert_eq!(ends.opened(), 2, "the first one has as many as it may");
        drop(open);
        let far = ends.connect(&target).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let mut heard = String::new();
        let talk = async {
            client.write_all(b"hello").await.unwrap();
            client.shutdown().await.unwrap();
            client.read_to_string(&mut heard).await.unwrap();
        };
        let (copied, ()) = tokio::join!(far.copy(&ends.worker, near), talk);
        assert_eq!((copied, &*heard), ((Ok(()), [5, 16]), "220 ready\r\nhello"));
    });
}

#[test]
fn a_connection_that_its_callee_drains_takes_no_more_and_no_call_fails() {
    block_on(async {
        let (ends, address) = (Ends::new(), pod_address());
        let listener = TcpListener::bind(address).unwrap();
        let parent = ends.serve("web", program().await, listener.try_clone().unwrap());
        let target = ends.target(address, &["web"]);
        let mut open = ends.connect(&target).await.unwrap();
        expect_greeting(&mut open).await;
        let _child = ends.serve("web", program().await, listener);
        let drained = tokio::spawn(parent.hand_over());
        while ends.opened() == 1 {
            expect_greeting(&mut ends.connect(&target).await.unwrap()).await;
        }
        open.write_all(b"still").await.unwrap();
        let mut echoed = [0; 5];
        open.read_exact(&mut echoed).await.unwrap();
        open.shutdown().await.unwrap();
        assert_eq!(open.read(&mut echoed).await.unwrap(), 0);
        drained.await.unwrap();
    });
}

#[test]
fn what_fails_says_why() {
    block_on(async {
        let (ends, address, vault) = (Ends::new(), pod_address(), pod_address());
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let target = ends.target(address, &["web"]);
        let at = SocketAddr::new(address.ip(), TUNNELS);
        let error = async |target: &Target| ends.connect(target).await.unwrap_err();
        assert!(matches!(error(&target).await, TunnelError::NoAgent(found) if found == at));
        let _web = ends.serve("web", nobody, TcpListener::bind(address).unwrap());
        let unreachable = error(&target).await.to_string();
        assert!(unreachable.starts_with("no program takes it"), "{unreachable}");
        let other = error(&ends.target(address, &["vault", "other"])).await.to_string();
        let wanted =
            format!("the server is `{}` and not `{}` or `{}`", identity("web"), identity("vault"), identity("other"));
        assert!(other.contains(&wanted), "{other}");
        let _vault = ends.serve("vault", program().await, TcpListener::bind(vault).unwrap());
        let allowed = ends.target(vault, &["vault"]);
        expect_greeting(&mut ends.connect(&allowed).await.unwrap()).await;
        let vault_pod = pod("vault", network(nobody));
        let denied = connect(&ends.worker, &vault_pod, &allowed).await.unwrap_err();
        assert!(matches!(denied, TunnelError::Denied(_)), "{denied}");
        // The callee's root is another one.
        let strangers = Ends::new();
        let unknown = connect(&strangers.worker, &strangers.web, &allowed).await.unwrap_err().to_string();
        assert!(unknown.contains("no trusted root has signed the peer's certificate"), "{unknown}");
    });
}

/// A process that ends with the test.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Istio's own server of HBONE. The test needs a separate network, because the server
/// listens at all addresses.
#[test]
fn istios_server_takes_tunnels_and_is_refused_without_the_expected_identity() {
    let Some(programs) = std::env::var_os("LENO_HBONE_PROGRAMS") else {
        return eprintln!("SKIPPED: LENO_HBONE_PROGRAMS names no folder; `make conformance-hbone` sets it");
    };
    let root = CertificateAuthority::of_trust_domain(TRUST_DOMAIN);
    let pem = AuthorityPem { certificate: root.pem(), key: root.key_pem().into(), roots: root.pem() };
    let folder = tempfile::tempdir().unwrap();
    let strangers = CertificateAuthority::of_trust_domain(TRUST_DOMAIN);
    let expired = |params: &mut rcgen::CertificateParams| params.not_after = rcgen::date_time_ymd(2024, 1, 1);
    let web = identity("web").to_string();
    block_on(async move {
        let ends = Ends::of(pem.open(&TRUST_DOMAIN.parse().unwrap()).unwrap());
        let target = ends.target(([127, 0, 0, 1], 0).into(), &["web"]);
        for ((certificate, key), refusal) in [
            (root.workload(&web, |_| ()), None),
            (root.workload(identity("vault").as_str(), |_| ()), Some("and not")),
            (root.workload("spiffe://other.example/ns/shop/sa/web", |_| ()), Some("is not in the trust domain")),
            (strangers.workload(&web, |_| ()), Some("no trusted root has signed")),
            (root.workload(&web, expired), Some("has expired")),
        ] {
            let paths = ["pem", "key"].map(|kind| folder.path().join("server").with_extension(kind));
            std::fs::write(&paths[0], certificate.pem()).unwrap();
            std::fs::write(&paths[1], key.serialize_pem()).unwrap();
            let mut server = std::process::Command::new(Path::new(&programs).join("server"));
            server.args(["--port", "25", "--hbone", "15008", "--tls", "15008", "--metrics", "0"]);
            let server = server.arg("--crt").arg(&paths[0]).arg("--key").arg(&paths[1]).spawn().unwrap();
            let _server = KilledOnDrop(server);
            let mut connected = ends.connect(&target).await;
            while matches!(connected, Err(TunnelError::NoAgent(_))) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                connected = ends.connect(&target).await;
            }
            match (connected, refusal) {
                (Ok(mut tunnel), None) => {
                    tunnel.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await.unwrap();
                    let mut response = String::new();
                    tunnel.read_to_string(&mut response).await.unwrap();
                    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
                }
                (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{words}: {error}"),
                (connected, refusal) => panic!("{refusal:?}: {connected:?}"),
            }
        }
    });
}
