//! The kernel's capture: pods in network namespaces, with a real interface to their node.

use super::{TestNode, function, pod};
use crate::pods::MachineCapture;
use leno_cni::protocol::{CniCommand, CniResponse};
use leno_model::{Pod, PodMode, PodPort, PodProbe, ProbeKind};
use leno_pods::CaptureOptions;
use leno_testkit::eventually;
use leno_testkit::keys::CertificateAuthority;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The last byte of the addresses of the node, of two pods, and of a machine elsewhere.
const NODE: u8 = 1;
const WEB: u8 = 2;
pub(super) const CART: u8 = 3;
const ELSEWHERE: u8 = 4;

/// A network namespace on the node's bridge.
pub(super) struct Place {
    namespace: File,
    pub(super) address: IpAddr,
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, number).into()
}

fn ip(commands: &[String]) {
    let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    ip.stdin.take().unwrap().write_all(commands.join("\n").as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success(), "{commands:?}");
}

/// Makes the calling thread a part of a node: a network with a bridge. Threads that it starts are
/// in the same network.
fn become_node() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip(&[
        "link set lo up".to_owned(),
        "link add bridge0 type bridge mcast_snooping 0".to_owned(),
        format!("addr add {}/24 dev bridge0", address(NODE)),
        "link set bridge0 up".to_owned(),
    ]);
}

impl Place {
    fn new(number: u8) -> Self {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let place = Self { namespace: made.join().unwrap(), address: address(number) };
        let (target, own) = (place.path().display().to_string(), place.address);
        ip(&[
            format!("link add pod{number} type veth peer name eth0 netns {target}"),
            format!("link set pod{number} master bridge0 up"),
        ]);
        place.run(move || {
            ip(&["link set lo up".to_owned(), format!("addr add {own}/24 dev eth0"), "link set eth0 up".to_owned()]);
        });
        place
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd()).into()
    }

    pub(super) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = self.namespace.try_clone().unwrap();
        let inside = thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            job()
        });
        inside.join().unwrap()
    }

    /// Serves each connection to a port on a thread.
    fn serve(&self, port: u16, serve: fn(TcpStream)) {
        let listener = self.run(move || TcpListener::bind(("0.0.0.0", port)).unwrap());
        let serve = move |stream: TcpStream| drop(thread::spawn(move || serve(stream)));
        thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
    }

    fn connect(&self, to: &Self, port: u16) -> TcpStream {
        let to = SocketAddr::new(to.address, port);
        self.run(move || connect(to))
    }

    fn get(&self, to: &Self, path: &str) -> String {
        get(self.connect(to, 80), path)
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The response to a GET; empty: the connection was reset.
fn get(mut stream: TcpStream, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: cart\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = Vec::new();
    // If the connection is reset, the bytes before count.
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

/// Answers a GET with the client's address and the head.
fn http(mut stream: TcpStream) {
    let client = stream.peer_addr().unwrap().ip();
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let body = format!("client: {client}\n{}\n", head.join("\n"));
    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
}

/// Speaks first, and then returns each byte.
fn greeting(mut stream: TcpStream) {
    let _ = stream.write_all(b"220 ready\r\n");
    let mut from = stream.try_clone().unwrap();
    let _ = std::io::copy(&mut from, &mut stream);
}

fn read_line(stream: &TcpStream) -> String {
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

/// Whether tests can run here; otherwise prints why not.
pub(super) fn may_run() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root may make network namespaces here, and load programs into the kernel");
    }
    root
}

/// A BPF file system that no path leads to. It ends with the process.
fn pins() -> File {
    let folder = tempfile::tempdir().unwrap();
    mount(Some("bpf"), folder.path(), Some("bpf"), MsFlags::empty(), None::<&str>).unwrap();
    let pins = File::open(folder.path()).unwrap();
    umount2(folder.path(), MntFlags::MNT_DETACH).unwrap();
    pins
}

/// The node, its pods, and a machine elsewhere.
pub(super) struct Machine {
    node: TestNode,
    web: Place,
    pub(super) cart: Place,
    pub(super) elsewhere: Place,
    runtime: tokio::runtime::Runtime,
    pins: File,
}

impl Machine {
    fn start() -> Self {
        Self::start_under(&CertificateAuthority::of_trust_domain(super::TRUST_DOMAIN))
    }

    /// A machine with certificates of this root.
    pub(super) fn start_under(root: &CertificateAuthority) -> Self {
        become_node();
        let (web, cart, elsewhere) = (Place::new(WEB), Place::new(CART), Place::new(ELSEWHERE));
        for place in [&web, &cart, &elsewhere] {
            place.serve(80, http);
            place.serve(25, greeting);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let pins = pins();
        let node = process(&runtime, &pins, root);
        node.owner.send_replace(true);
        Self { node, web, cart, elsewhere, runtime, pins }
    }

    /// Captures a pod before its first program starts.
    pub(super) fn add(&self, pod: &Pod, place: &Place) {
        self.deliver(pod);
        let answer = self.runtime.block_on(self.node.ask(CniCommand::Add, pod, Some(&place.path())));
        assert_eq!(answer, CniResponse::Captured);
    }

    fn deliver(&self, pod: &Pod) {
        let _inside = self.runtime.enter();
        self.node.deliver(&[pod]);
    }

    fn remove(&self, pod: &Pod) {
        let _inside = self.runtime.enter();
        self.node.pods.follow(vec![(pod.uid.clone(), None)]);
    }
}

/// A process of the node with `web`, which is permissive, and the enforced `cart`, which only `web`
/// may call.
fn process(runtime: &tokio::runtime::Runtime, pins: &File, root: &CertificateAuthority) -> TestNode {
    let rule = "{apiVersion: leno.dev/v1alpha1, kind: Policy, metadata: {name: callers, namespace: shop}, spec: {functions: [cart], authorization: {rules: [{name: web, from: [{identities: [web]}]}]}}}\n";
    let documents = [function("web", PodMode::Permissive), function("cart", PodMode::Enforced), rule.to_owned()];
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let group = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("no cgroup2 is mounted");
    let pinned = format!("/proc/{}/fd/{}/leno", std::process::id(), pins.as_raw_fd()).into();
    let options = CaptureOptions { cgroup: group.split(' ').nth(4).unwrap().into(), pins: pinned };
    let capture = MachineCapture::start(options).unwrap();
    runtime.block_on(async { TestNode::start_under(root, Arc::new(capture), &documents.concat()) })
}

#[test]
fn pods_call_each_other_as_their_policies_allow() {
    if !may_run() {
        return;
    }
    let machine = Machine::start();
    let Machine { web, cart, elsewhere, .. } = &machine;
    let web_pod = pod("web", WEB, PodMode::Permissive);
    let mut cart_pod = pod("cart", CART, PodMode::Enforced);
    cart_pod.addresses = vec![address(CART)];
    cart_pod.ports = vec![PodPort { name: Some("http".to_owned()), number: 80 }];
    cart_pod.probes = vec![PodProbe { kind: ProbeKind::Http, port: 80, path: Some("/healthz".to_owned()) }];
    machine.add(&web_pod, web);
    machine.add(&cart_pod, cart);

    let client = |place: &Place| format!("client: {}\n", place.address);
    let allowed = web.get(cart, "/");
    assert!(allowed.starts_with("HTTP/1.1 200") && allowed.contains(&client(web)), "{allowed}");
    assert!(allowed.contains("URI=spiffe://leno.local/ns/shop/sa/web\n"), "{allowed}");
    let at_cart = SocketAddr::new(cart.address, 80);
    for denied in [elsewhere.get(cart, "/"), get(connect(at_cart), "/")] {
        assert!(denied.starts_with("HTTP/1.1 403"), "{denied}");
    }
    // The kubelet is a program of the node.
    let probed = get(connect(at_cart), "/healthz");
    assert!(probed.starts_with("HTTP/1.1 200") && probed.contains(&address(NODE).to_string()), "{probed}");
    assert!(elsewhere.get(cart, "/healthz").starts_with("HTTP/1.1 403"));

    // Programs that speak first.
    let mut mail = web.connect(cart, 25);
    assert_eq!(read_line(&mail), "220 ready\r\n");
    assert_eq!(read_line(&elsewhere.connect(cart, 25)), "");

    // Out of the mesh, and into a permissive pod.
    let head = "GET /a//b HTTP/1.1\n";
    let outside = web.get(elsewhere, "/a//b");
    assert!(outside.contains(&(client(web) + head)), "{outside}");
    let permissive = elsewhere.get(web, "/a//b");
    assert!(permissive.contains(&(client(elsewhere) + head)), "{permissive}");

    // The pod leaves the mesh while it runs. The open connection goes on.
    cart_pod.mode = PodMode::Permissive;
    machine.deliver(&cart_pod);
    mail.write_all(b"still\r\n").unwrap();
    assert_eq!(read_line(&mail), "still\r\n");
    machine.remove(&cart_pod);
    eventually("a call past the node", || elsewhere.get(cart, "/").starts_with("HTTP/1.1 200"));
    mail.write_all(b"yet\r\n").unwrap();
    assert_eq!(read_line(&mail), "yet\r\n");
}

#[test]
fn a_child_takes_the_pods_over_and_open_connections_go_on() {
    if !may_run() {
        return;
    }
    let root = CertificateAuthority::of_trust_domain(super::TRUST_DOMAIN);
    let machine = Machine::start_under(&root);
    let (web_pod, cart_pod) = (pod("web", WEB, PodMode::Permissive), pod("cart", CART, PodMode::Enforced));
    machine.add(&web_pod, &machine.web);
    machine.add(&cart_pod, &machine.cart);
    let Machine { node: parent, web, cart, elsewhere, runtime, pins } = machine;
    let mut mail = web.connect(&cart, 25);
    assert_eq!(read_line(&mail), "220 ready\r\n");

    let child = process(&runtime, &pins, &root);
    {
        let _inside = runtime.enter();
        child.deliver(&[&web_pod, &cart_pod]);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (calling, namespace, to) = (stop.clone(), elsewhere.namespace.try_clone().unwrap(), web.address);
    let load = thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let mut calls = 0;
        while !calling.load(Ordering::SeqCst) {
            let response = get(connect(SocketAddr::new(to, 80)), "/");
            assert!(response.starts_with("HTTP/1.1 200"), "call {calls}: {response}");
            calls += 1;
        }
        calls
    });
    parent.owner.send_replace(false);
    child.owner.send_replace(true);
    // The child finds the pods' networks where the CNI plug-in has told the parent.
    let capture = |pod: &Pod, place: &Place| {
        let answer = runtime.block_on(child.ask(CniCommand::Add, pod, Some(&place.path())));
        assert_eq!(answer, CniResponse::Captured);
    };
    capture(&cart_pod, &cart);
    // The parent has the caller, and the child the callee.
    for call in 0..20 {
        let response = web.get(&cart, "/");
        assert!(response.contains("URI=spiffe://leno.local/ns/shop/sa/web\n"), "call {call}: {response}");
    }
    // Connections that the parent has opened are known as long as it runs, and no longer.
    let mut waiting = web.connect(&cart, 80);
    capture(&web_pod, &web);
    runtime.block_on(parent.pods.handed_over());
    write!(waiting, "GET / HTTP/1.1\r\nhost: cart\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    let _ = waiting.read_to_string(&mut response);
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    mail.write_all(b"still\r\n").unwrap();
    assert_eq!(read_line(&mail), "still\r\n");
    // The child alone has new connections.
    drop(parent);
    for callee in [&elsewhere, &cart] {
        let response = web.get(callee, "/");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    assert!(elsewhere.get(&cart, "/").starts_with("HTTP/1.1 403"));
    stop.store(true, Ordering::SeqCst);
    assert!(load.join().unwrap() > 0);
}
