//! Connections of pods: callers, judgement, and the bytes that reach the program.

mod identity;
mod kept;

use crate::mesh::{Builder, Mesh, id, spiffe};
use crate::raw::{self, Raw};
use crate::upstream::{self, answer, channel, echo, empty, full};
use crate::websocket::{HANDSHAKE, parrot};
use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::{AppProtocol, Pod, PodMode, PodPort, PodProbe, ProbeKind};
use leno_policy::spec::{Matches, Source, StringMatch};
use leno_proxy::PodListeners;
use leno_proxy::pods::{Binding, BoundSocket, Dial, PodNetwork, ServedPod};
use leno_testkit::eventually_async;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The address of the kubelet, and one of a client elsewhere.
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

/// A pod on loopback.
pub(crate) struct TestPod {
    pub outbound: SocketAddr,
    pub inbound: SocketAddr,
    served: Arc<ServedPod>,
    network: Arc<LoopbackNetwork>,
    pod: Mutex<Pod>,
}

/// A network of a pod: its program listens at another port than the one that clients call, and all
/// of its calls may go to one destination.
struct LoopbackNetwork {
    address: IpAddr,
    program: SocketAddr,
    destination: Mutex<Option<SocketAddr>>,
    /// Connections to the program.
    dialled: AtomicUsize,
}

pub(crate) async fn connect_from(address: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(address, 0))?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl PodNetwork for LoopbackNetwork {
    fn bind_out(&self, called: SocketAddr) -> Binding {
        let (address, destination) = (self.address, *self.destination.lock().unwrap());
        Box::pin(async move {
            let destination = destination.unwrap_or(called);
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(address, 0))?;
            let local = socket.local_addr()?;
            let dial: Dial = Box::pin(socket.connect(destination));
            Ok(BoundSocket { local, dial, known: Box::new(()) })
        })
    }

    fn connect_in(&self, _: SocketAddr, client: SocketAddr) -> Dial {
        self.dialled.fetch_add(1, Ordering::SeqCst);
        Box::pin(connect_from(client.ip(), self.program))
    }

    fn is_of_node(&self, address: IpAddr) -> bool {
        address == NODE
    }
}

impl TestPod {
    pub(crate) fn start(mesh: &Mesh, function: &str, program: SocketAddr, change: impl FnOnce(&mut Pod)) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), mesh, function, program, change)
    }

    pub(crate) fn start_at(
        called: SocketAddr,
        mesh: &Mesh,
        function: &str,
        program: SocketAddr,
        change: impl FnOnce(&mut Pod),
    ) -> Self {
        let listen = |address: SocketAddr| std::net::TcpListener::bind(address).unwrap();
        let (outbound, inbound) = (listen(([127, 0, 0, 1], 0).into()), listen(called));
        let addresses = [&outbound, &inbound].map(|listener| listener.local_addr().unwrap());
        let mut pod = Pod {
            uid: format!("uid-of-{function}").parse().unwrap(),
            namespace: "shop".to_owned(),
            name: format!("{function}-1"),
            function: id(function),
            service_account: Some(function.to_owned()),
            addresses: Vec::new(),
            mode: PodMode::Permissive,
            ports: Vec::new(),
            probes: Vec::new(),
            refused: None,
        };
        change(&mut pod);
        let network = Arc::new(LoopbackNetwork {
            address: "127.0.0.5".parse().unwrap(),
            program,
            destination: Mutex::default(),
            dialled: AtomicUsize::default(),
        });
        let served = ServedPod::new(pod.clone(), network.clone());
        let listeners = PodListeners { pod: served.clone(), outbound: vec![outbound], inbound: vec![inbound] };
        mesh.handle.interceptor.serve_pod(listeners);
        Self { outbound: addresses[0], inbound: addresses[1], served, network, pod: pod.into() }
    }

    /// Changes the pod's settings while it is served.
    fn set(&self, change: impl FnOnce(&mut Pod)) {
        let mut pod = self.pod.lock().unwrap();
        change(&mut pod);
        self.served.set(pod.clone());
    }

    pub(crate) fn dialled(&self) -> usize {
        self.network.dialled.load(Ordering::SeqCst)
    }

    /// A connection of a program in this pod to another one.
    async fn call(&self, callee: &TestPod) -> Raw {
        *self.network.destination.lock().unwrap() = Some(callee.inbound);
        Raw::connect(self.outbound).await
    }

    async fn connect(&self, from: IpAddr) -> Raw {
        Raw(connect_from(from, self.inbound).await.unwrap())
    }

    async fn get(&self, from: IpAddr, path: &str) -> String {
        let mut raw = self.connect(from).await;
        raw.send(format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n")).await;
        raw.rest().await
    }
}

/// A mesh with `web`, which everybody may call, and `callee`, which only `web` may call.
pub(crate) fn mesh(protocol: AppProtocol, program: SocketAddr) -> Mesh {
    let only_web = Matches { any: vec![StringMatch::Exact(spiffe("web").to_string())], none: vec![] };
    Builder::new()
        .function("web", protocol, program)
        .function("callee", protocol, program)
        .config("callee", |config| {
            let allow = config.inbound.authorization.last_mut().unwrap();
            allow.from = vec![Source { identities: only_web, ..Source::default() }];
        })
        .plan("web", |target| target.as_received = true)
        .limits(|limits| limits.head_timeout = Duration::from_millis(300))
        .start()
}

fn records(mesh: &Mesh) -> usize {
    mesh.node.telemetry.ring.latest(100).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callee_knows_a_pod_of_its_node_and_nobody_else() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let (web, callee) = (
        TestPod::start(&mesh, "web", program.address, |_| ()),
        TestPod::start(&mesh, "callee", program.address, |pod| pod.mode = PodMode::Enforced),
    );
    let mut raw = web.call(&callee).await;
    let request = "GET /a HTTP/1.1\r\nhost: callee\r\nx-forwarded-client-cert: URI=spiffe://test.example/ns/shop/sa/forged\r\nconnection: close\r\n\r\n";
    raw.send(request).await;
    let answer = raw.rest().await;
    assert_eq!(raw::status(&answer), 200, "{answer}");
    assert!(answer.contains(&format!("By={};URI={}\n", spiffe("callee"), spiffe("web"))), "{answer}");
    // The callee itself may not call itself, and a client without an identity may not either.
    let mut own = callee.call(&callee).await;
    own.send(request).await;
    for answer in [own.rest().await, callee.get(CLIENT, "/a").await, callee.get(NODE, "/a").await] {
        assert_eq!(raw::status(&answer), 403, "{answer}");
    }
    assert_eq!(callee.dialled(), 1);
    let marked = mesh.node.telemetry.ring.latest(10);
    let peers: Vec<_> = marked.iter().filter_map(|told| told.peer.identity.as_deref()).collect();
    assert_eq!(peers.len(), 2, "{marked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permissive_pod_gets_requests_as_they_came() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "web", program.address, |_| ());
    let fields = "host: Any.Host:81\r\nx-forwarded-for: 1.2.3.4\r\nforwarded: for=1.2.3.4\r\nuser-agent: u\r\ntraceparent: 00-1\r\naccept: */*\r\n";
    let target = "/a//b/%2e/c?q=%2F&x=%41";
    let mut raw = pod.connect(CLIENT).await;
    raw.send(format!("DELETE {target} HTTP/1.1\r\n{fields}\r\n")).await;
    let head = raw.head().await;
    assert_eq!(raw::status(&head), 200);
    let seen = raw.until("\n\n").await;
    assert!(seen.starts_with(&format!("DELETE {target} HTTP/1.1\n")), "{seen}");
    let mut seen: Vec<_> = seen.lines().skip(1).filter(|line| !line.is_empty()).collect();
    let mut sent: Vec<_> = fields.lines().collect();
    // The one field that the node adds.
    seen.retain(|line| !line.starts_with("x-request-id: "));
    seen.sort_unstable();
    sent.sort_unstable();
    assert_eq!(seen, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_sees_its_client() {
    let program = raw::server(|mut raw| async move {
        let address = raw.0.peer_addr().unwrap().ip();
        raw.head().await;
        raw.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{address}", address.to_string().len())).await;
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program);
    let pod = TestPod::start(&mesh, "web", program, |_| ());
    for client in [CLIENT, NODE] {
        let answer = pod.get(client, "/").await;
        assert!(answer.ends_with(&format!("\r\n\r\n{client}")), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_the_protocol_of_its_client() {
    let trailers = || [("grpc-status".parse().unwrap(), "0".parse().unwrap())].into_iter().collect();
    let program = upstream::h2c(move |request: Request<Incoming>| async move {
        assert_eq!(request.headers()["te"], "trailers");
        let (feed, body) = channel();
        tokio::spawn(async move {
            feed.send(Frame::data(Bytes::from_static(b"\0\0\0\0\0"))).await.unwrap();
            feed.send(Frame::trailers(trailers())).await.unwrap();
        });
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    })
    .await;
    // The function's protocol says nothing about a pod.
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "web", program.address, |_| ());
    let stream = connect_from(CLIENT, pod.inbound).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let call = |deny: bool| {
        let call =
            Request::post("http://web/a.B/C").header("content-type", "application/grpc").header("te", "trailers");
        let call = if deny { call.header("x-deny", "1") } else { call };
        call.body(full("\0\0\0\0\0")).unwrap()
    };
    for _ in 0..2 {
        let answered = answer(sender.send_request(call(false)).await.unwrap()).await;
        assert_eq!((answered.status, answered.trailers.unwrap()["grpc-status"].to_str().unwrap()), (200, "0"));
    }
    let denied = answer(sender.send_request(call(true)).await.unwrap()).await;
    assert_eq!(denied.headers["grpc-status"], "7");
    assert_eq!((program.requests(), program.connections()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_pass() {
    let program = upstream::http1(parrot).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "web", program.address, |_| ());
    let mut raw = pod.connect(CLIENT).await;
    raw.send(format!("GET /chat HTTP/1.1\r\n{HANDSHAKE}\r\n")).await;
    assert_eq!(raw::status(&raw.head().await), 101);
    raw.until("hello ").await;
    raw.send("one two").await;
    raw.until("one two").await;
    raw.0.shutdown().await.unwrap();
    assert_eq!(raw.rest().await, " bye");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permissive_pod_takes_tunnels_and_other_protocols() {
    let program = raw::server(|mut raw| async move {
        let head = raw.head().await;
        let switched = match head.contains("upgrade: tcp\r\n") {
            true => "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n",
            false => "HTTP/1.1 200 Connected\r\n\r\n",
        };
        raw.send(switched).await;
        raw.send(head.lines().next().unwrap_or_default()).await;
        raw.until("bytes").await;
        raw.send(" and bytes").await;
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program);
    let pod = TestPod::start(&mesh, "web", program, |_| ());
    for request in ["CONNECT a.example:443 HTTP/1.1", "POST /attach HTTP/1.1"] {
        let upgrade = if request.starts_with("POST") { "connection: upgrade\r\nupgrade: tcp\r\n" } else { "" };
        let sent = format!("{request}\r\nhost: a.example:443\r\n{upgrade}\r\n");
        let mut raw = pod.connect(CLIENT).await;
        raw.send(&sent).await;
        let head = raw.head().await;
        assert_eq!(head.contains("upgrade: tcp\r\n"), !upgrade.is_empty(), "{head}");
        raw.until(request).await;
        raw.send("bytes").await;
        assert_eq!(raw.rest().await, " and bytes");
        // A rule refuses it like any other request.
        let mut denied = pod.connect(CLIENT).await;
        denied.send(sent.replace("host:", "x-deny: 1\r\nhost:")).await;
        assert_eq!(raw::status(&denied.head().await), 403);
    }
    pod.set(|it| it.mode = PodMode::Enforced);
    let mut raw = pod.connect(CLIENT).await;
    raw.send("CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\n\r\n").await;
    assert_eq!(raw::status(&raw.head().await), 405);
    assert_eq!(pod.dialled(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permissive_pod_takes_tunnels_over_http2() {
    let program = upstream::h2c(|mut request: Request<Incoming>| async move {
        assert_eq!((request.method(), request.uri().to_string()), (&Method::CONNECT, "a.example:443".to_owned()));
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut tunnel, mut piece) = (TokioIo::new(upgraded.await.unwrap()), [0; 64]);
            while let Ok(count @ 1..) = tunnel.read(&mut piece).await {
                tunnel.write_all(&piece[..count]).await.unwrap();
            }
            tunnel.write_all(b" bye").await.unwrap();
            tunnel.shutdown().await.unwrap();
        });
        Response::new(empty())
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "web", program.address, |_| ());
    let stream = connect_from(CLIENT, pod.inbound).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let connect = |mark: &str| {
        Request::builder().method(Method::CONNECT).uri("a.example:443").header(mark, "1").body(empty()).unwrap()
    };
    let mut response = sender.send_request(connect("x-mark")).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut tunnel = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    tunnel.write_all(b"bytes").await.unwrap();
    let mut echoed = [0; 5];
    tunnel.read_exact(&mut echoed).await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut rest = String::new();
    tunnel.read_to_string(&mut rest).await.unwrap();
    assert_eq!((&echoed, &*rest), (b"bytes", " bye"));
    // A rule refuses it like any other request.
    assert_eq!(sender.send_request(connect("x-deny")).await.unwrap().status(), 403);
    pod.set(|it| it.mode = PodMode::Enforced);
    assert_eq!(sender.send_request(connect("x-mark")).await.unwrap().status(), 405);
    assert_eq!(program.requests(), 1);
}

/// Greets its client, and then returns each byte.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_speak_first() {
    let program = raw::greeting_server().await;
    let mesh = mesh(AppProtocol::Http1, program);
    let (web, callee) =
        (TestPod::start(&mesh, "web", program, |_| ()), TestPod::start(&mesh, "callee", program, |_| ()));
    let mut raw = web.call(&callee).await;
    raw.until("220 ready\r\n").await;
    raw.send("EHLO a\r\n").await;
    raw.until("EHLO a\r\n").await;
    raw.0.shutdown().await.unwrap();
    assert_eq!(raw.rest().await, "");
    let counted = || format!("{:?}", mesh.node.telemetry.connections.scrape());
    eventually_async("the count of the connection", || counted().contains("opened: 1, closed: 1, refused: 0")).await;
    assert!(counted().contains(r#"name: "web""#), "{}", counted());
    // The program hears nothing of a client that may not call it.
    for client in [CLIENT, NODE] {
        assert_eq!(callee.connect(client).await.rest().await, "");
    }
    let mut speaking = callee.connect(CLIENT).await;
    speaking.send("EHLO a\r\n").await;
    assert_eq!(speaking.rest().await, "");
    assert_eq!(callee.dialled(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_is_judged_however_late_it_begins() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "web", program.address, |_| ());
    for (marked, status) in [("", 200), ("x-deny: 1\r\n", 403)] {
        let before = pod.dialled();
        let mut raw = pod.connect(CLIENT).await;
        // The node has given up waiting for the client.
        eventually_async("a connection to the program", || pod.dialled() > before).await;
        raw.send(format!("GET / HTTP/1.1\r\nhost: web\r\n{marked}connection: close\r\n\r\n")).await;
        assert_eq!(raw::status(&raw.rest().await), status);
    }
    assert_eq!(program.requests(), 1);
    let mut slow = pod.connect(CLIENT).await;
    slow.send("GE").await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    slow.send("T / HTTP/1.1\r\nhost: web\r\nx-deny: 1\r\nconnection: close\r\n\r\n").await;
    assert_eq!(raw::status(&slow.rest().await), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_pieces_never_reaches_the_program_unjudged() {
    let read = Arc::new(Mutex::new(String::new()));
    let heard = read.clone();
    let program = raw::server(move |mut raw| {
        let heard = heard.clone();
        async move {
            let mut piece = [0; 64];
            while let Ok(count @ 1..) = raw.0.read(&mut piece).await {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..count]));
            }
        }
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program);
    let pod = TestPod::start(&mesh, "web", program, |_| ());
    let mut raw = pod.connect(CLIENT).await;
    raw.send("FOO").await;
    eventually_async("the first piece", || *read.lock().unwrap() == "FOO").await;
    raw.send(" / HTTP/1.1\r\nhost: web\r\nx-deny: 1\r\n\r\n").await;
    assert_eq!(raw.rest().await, "");
    assert_eq!(*read.lock().unwrap(), "FOO");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_with_the_name_of_http_waits_for_its_client() {
    let program = raw::greeting_server().await;
    let mesh = mesh(AppProtocol::Http1, program);
    let pod = TestPod::start(&mesh, "web", program, |_| ());
    let port = |name: &str| PodPort { name: Some(name.to_owned()), number: pod.inbound.port() };
    pod.set(|it| it.ports = vec![port("http-web")]);
    let waiting = pod.connect(CLIENT).await;
    // The worker has accepted the first connection when it answers the second one.
    let answered = pod.get(CLIENT, "/").await;
    assert_eq!(raw::status(&answered), 502, "{answered}");
    pod.set(|it| it.ports = vec![port("smtp")]);
    pod.connect(CLIENT).await.until("220 ready\r\n").await;
    assert_eq!(pod.dialled(), 2, "the first client has not spoken");
    drop(waiting);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_passes_as_it_came() {
    let program = raw::server(|mut raw| async move {
        let mut hello = [0; 64];
        let count = raw.0.read(&mut hello).await.unwrap();
        raw.send(&hello[..count]).await;
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program);
    let (web, callee) =
        (TestPod::start(&mesh, "web", program, |_| ()), TestPod::start(&mesh, "callee", program, |_| ()));
    // Permissive pods also take a hello that cannot be read.
    let hello = [0x16, 3, 1, 0, 4, 9, 0, 0, 0];
    for (mut raw, passes) in [(web.connect(CLIENT).await, true), (callee.connect(CLIENT).await, false)] {
        raw.send(hello).await;
        assert_eq!(raw.rest().await.is_empty(), !passes);
    }
    assert_eq!(callee.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_probes_of_the_kubelet_pass_unjudged() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "callee", program.address, |pod| pod.mode = PodMode::Enforced);
    let probe = |kind, path: Option<&str>| PodProbe { kind, port: pod.inbound.port(), path: path.map(str::to_owned) };
    let probes = vec![probe(ProbeKind::Http, Some("/healthz?full")), probe(ProbeKind::Tcp, None)];
    pod.set(|it| it.probes = probes);
    let probed = pod.get(NODE, "/healthz?full").await;
    assert_eq!(raw::status(&probed), 200, "{probed}");
    assert!(!probed.contains("x-request-id"), "{probed}");
    // A connection without a byte.
    drop(pod.connect(NODE).await);
    eventually_async("the second probe", || pod.dialled() == 2).await;
    assert_eq!(records(&mesh), 0);
    for (client, path) in [(CLIENT, "/healthz?full"), (NODE, "/healthz"), (NODE, "/healthz/x")] {
        assert_eq!(raw::status(&pod.get(client, path).await), 403, "{client} {path}");
    }
    let mut post = pod.connect(NODE).await;
    post.send("POST /healthz?full HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(raw::status(&post.head().await), 403);
    // A connection may carry a probe, and then another request.
    post.send("GET /healthz?full HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (mut raw, request) = (pod.connect(NODE).await, "host: a\r\n\r\n");
    raw.send(format!("GET /healthz?full HTTP/1.1\r\n{request}")).await;
    assert_eq!(raw::status(&raw.head().await), 200);
    raw.rest_of_body().await;
    raw.send(format!("GET /other HTTP/1.1\r\n{request}")).await;
    assert_eq!(raw::status(&raw.head().await), 403);
    eventually_async("the records of the others", || records(&mesh) == 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_over_grpc_pass() {
    let program = upstream::h2c(|_| async {
        Response::builder().header("content-type", "application/grpc").header("grpc-status", "0").body(empty()).unwrap()
    })
    .await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let pod = TestPod::start(&mesh, "callee", program.address, |_| ());
    pod.set(|it| it.probes.push(PodProbe { kind: ProbeKind::Grpc, port: pod.inbound.port(), path: None }));
    for (client, method, status) in [(NODE, "Check", "0"), (NODE, "Watch", "7"), (CLIENT, "Check", "7")] {
        let stream = connect_from(client, pod.inbound).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let call = Request::post(format!("http://callee/grpc.health.v1.Health/{method}"));
        let call = call.header("content-type", "application/grpc").header("te", "trailers");
        let answered = answer(sender.send_request(call.body(full("\0\0\0\0\0")).unwrap()).await.unwrap()).await;
        assert_eq!(answered.headers["grpc-status"], status, "{client} {method}");
    }
    assert_eq!(program.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_function_only_a_permissive_pod_is_reached() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    let web = TestPod::start(&mesh, "unknown", program.address, |_| ());
    assert_eq!(raw::status(&web.get(CLIENT, "/").await), 200);
    let enforced = TestPod::start(&mesh, "unknown", program.address, |pod| pod.mode = PodMode::Enforced);
    assert_eq!(enforced.get(CLIENT, "/").await, "");
    assert_eq!(enforced.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_ends_closes_its_listeners_and_no_connection() {
    let program = raw::greeting_server().await;
    let mesh = mesh(AppProtocol::Http1, program);
    let pod = TestPod::start(&mesh, "web", program, |_| ());
    let mut open = pod.connect(CLIENT).await;
    open.until("220 ready\r\n").await;
    pod.served.end();
    let mut closed = false;
    while !closed {
        closed = TcpStream::connect(pod.inbound).await.is_err();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    open.send("more").await;
    open.until("more").await;
}
