//! Superfluous instances end in one way: their exchanges under way complete, or learn that the mesh
//! ends them. Instances that do not serve any more are replaced.

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_testkit::curl;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

/// Two functions: one for HTTP/1.1, one for gRPC. `version` is in their environment.
fn functions(version: u32) -> String {
    let spec = |hosts: &str, more: &str| {
        format!(
            "  env: {{VERSION: \"{version}\"}}\n  timeouts: {{request: 0s}}\n  expose: [{{hosts: [{hosts}], path: /}}]\n{more}"
        )
    };
    echo_function("web", &spec("\"*\"", ""))
        + &echo_function("rpc", &spec("rpc.example", "  protocol: grpc\n"))
        + &policy("open", "web, rpc", ALLOW_ALL)
}

/// The open exchanges of clients: a response that does not end, a WebSocket, a gRPC stream, and a
/// request that waits for its response.
struct Open {
    stream: TcpStream,
    websocket: TcpStream,
    grpc: Grpc,
    waiting: JoinHandle<leno_testkit::Answer>,
}

impl Open {
    fn new(mesh: &mut Mesh) -> Self {
        let url = format!("http://127.0.0.1:{}/slow/600000", mesh.ports.gateway);
        let waiting = std::thread::spawn(move || curl(&url, &[]));
        let key = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let mut open = Self {
            stream: request(mesh, "/stream", ""),
            websocket: request(mesh, "/websocket", key),
            grpc: Grpc::open(mesh),
            waiting,
        };
        read_until(&mut open.stream, b"event");
        read_until(&mut open.websocket, b"\r\n\r\n");
        open.echo();
        mesh.wait_for("the request", |mesh| mesh.output().iter().any(|line| line.contains("pausing")));
        open
    }

    /// Sends a frame and receives its echo.
    fn echo(&mut self) {
        self.websocket.write_all(b"\x81\x85\0\0\0\0hello").unwrap();
        read_until(&mut self.websocket, b"hello");
    }

    /// Expects that the mesh has ended all of them, and has notified their clients.
    fn expect_end_by_the_mesh(mut self) {
        let rest = read_rest(&mut self.websocket);
        let close = b"\x88\x22\x03\xf4ended by the mesh, connect again";
        assert!(rest.ends_with(close), "{:?}", String::from_utf8_lossy(&rest));
        let rest = read_rest(&mut self.stream);
        assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks complete");
        assert_eq!(self.grpc.status(), "14");
        assert_eq!(self.waiting.join().unwrap().status, 503);
    }
}

fn request(mesh: &Mesh, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", mesh.ports.gateway)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: web\r\n{headers}\r\n").unwrap();
    stream
}

fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(end) {
        assert!(stream.read(&mut byte).unwrap() > 0, "it has ended: {}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
}

fn read_rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut rest).map_err(|error| assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock));
    rest
}

/// A gRPC call whose response streams.
struct Grpc {
    runtime: tokio::runtime::Runtime,
    body: Incoming,
}

impl Grpc {
    fn open(mesh: &Mesh) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let gateway = ("127.0.0.1", mesh.ports.gateway);
        let body = runtime.block_on(async {
            let stream = TokioIo::new(tokio::net::TcpStream::connect(gateway).await.unwrap());
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            let request = Request::post("http://rpc.example/stream").header("te", "trailers");
            let request = request.header("content-type", "application/grpc").body(Empty::<Bytes>::new()).unwrap();
            let mut body = sender.send_request(request).await.unwrap().into_body();
            assert!(body.frame().await.unwrap().unwrap().is_data());
            body
        });
        Self { runtime, body }
    }

    /// The status with which the call ends.
    fn status(mut self) -> String {
        self.runtime.block_on(async {
            loop {
                let frame = self.body.frame().await.expect("it ended without trailers").unwrap();
                if let Ok(trailers) = frame.into_trailers() {
                    return trailers["grpc-status"].to_str().unwrap().to_owned();
                }
            }
        })
    }
}

fn states(mesh: &Mesh, function: &str) -> Vec<String> {
    let state = |row: &serde_json::Value| row["state"].as_str().unwrap().to_owned();
    mesh.instances(function).iter().map(state).collect()
}

#[test]
fn a_change_lets_what_is_under_way_go_on_until_the_drain_timeout() {
    let mut mesh = Mesh::start(&functions(1));
    let mut open = Open::new(&mut mesh);
    mesh.write(&functions(2));
    for function in ["test/web", "test/rpc"] {
        mesh.wait_for("the change", |mesh| {
            let states = states(mesh, function);
            ["draining", "ready"].iter().all(|state| states.iter().any(|other| other == state))
        });
    }
    assert_eq!(mesh.get("/new").json()["environment"]["VERSION"], "2");
    open.echo();
    read_until(&mut open.stream, b"event");
    // A change of the setting also applies to instances that already drain.
    mesh.write_mesh("  limits: {drainTimeout: 1s}\n");
    open.expect_end_by_the_mesh();
    for line in mesh.log_lines("target", "test/web", 3) {
        if line["path"] != "/new" {
            assert_eq!(line["flags"], "DT", "{line}");
            assert!(line.to_string().contains("drain timeout is over"), "{line}");
        }
    }
    mesh.metrics(&[r#"leno_exchanges_closed_total{function="test/rpc",direction="inbound",policy="drain"} 1"#]);
    mesh.wait_for("the old instances to end", |mesh| states(mesh, "test/web") == ["ready"]);
}

#[test]
fn fewer_instances_and_a_node_that_stops_end_in_the_same_way() {
    for stops in [false, true] {
        let mut mesh = Mesh::start_with("  limits: {drainTimeout: 1s}\n", &functions(1));
        let open = Open::new(&mut mesh);
        if stops {
            mesh.terminate();
        } else {
            // The instances end when their function becomes external.
            let external = "  external: {addresses: [\"127.0.0.1:1\"]}";
            let documents = functions(1);
            let lines = documents.lines().filter(|line| !line.contains("env:"));
            let lines = lines.map(|line| if line.contains("command:") { external } else { line });
            mesh.write(&lines.collect::<Vec<_>>().join("\n"));
        }
        open.expect_end_by_the_mesh();
        if stops {
            assert!(mesh.wait().success());
        }
    }
}

#[test]
fn a_node_that_stops_takes_calls_until_the_last_answer_and_waits_for_no_idle_connection() {
    let caller = "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [callee]";
    let documents =
        echo_function("caller", caller) + &echo_function("callee", "") + &policy("open", "caller, callee", ALLOW_ALL);
    // Longer than any test waits.
    let mut mesh = Mesh::start_with("  limits: {drainTimeout: 10m}\n", &documents);
    let call = r#"[{"method":"GET","host":"callee","path":"/ok","headers":[],"http2":true,"keep":true}]"#;
    let url = format!("http://127.0.0.1:{}", mesh.ports.gateway);
    assert_eq!(curl(&format!("{url}/send"), &["--data", call]).body, "[200]");
    let later = std::thread::spawn(move || curl(&format!("{url}/later/2000/callee/ok"), &[]));
    mesh.line("pausing");
    mesh.terminate();
    mesh.line("another signal");
    let answer = later.join().unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(mesh.wait().success());
}

#[test]
fn a_second_signal_does_not_wait_for_requests() {
    let mut mesh = Mesh::start_with("  limits: {drainTimeout: 10m}\n", &functions(1));
    let _open = Open::new(&mut mesh);
    mesh.terminate();
    mesh.wait_for("the end to begin", |mesh| mesh.output().iter().any(|line| line.contains("another signal")));
    mesh.terminate();
    assert!(mesh.wait().success());
}

/// A function with frequent probes.
fn watched(spec: &str) -> String {
    let liveness = "  liveness: {interval: 200ms, failures: 2}\n  expose: [{hosts: [\"*\"], path: /}]\n";
    echo_function("web", &format!("{liveness}{spec}")) + &policy("open", "web", ALLOW_ALL)
}

/// Sends requests until another process answers. All must succeed.
fn until_replaced(mesh: &mut Mesh, before: &serde_json::Value) {
    mesh.wait_for("another instance", |mesh| {
        let answer = mesh.get("/");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["pid"] != *before
    });
    let events: Vec<serde_json::Value> =
        serde_json::from_slice(&mesh.leno(&["get", "events", "--json"]).stdout).unwrap();
    let event = events.iter().find(|event| event["kind"] == "unhealthy").expect("no event");
    assert!(event["reason"].as_str().unwrap().contains("test/web-00001/1 is replaced"), "{event}");
    mesh.metrics(&[r#"leno_instances_unhealthy_total{function="test/web",revision="web-00001"} 1"#]);
}

#[test]
fn an_instance_that_takes_no_connection_any_more_is_replaced_without_a_failed_request() {
    let mut mesh = Mesh::start(&watched(""));
    let before = mesh.get("/").json()["pid"].clone();
    assert_eq!(mesh.get("/deaf").status, 200);
    until_replaced(&mut mesh, &before);
}

#[test]
fn an_instance_that_says_that_it_is_not_ready_is_replaced_and_shown() {
    let mut mesh = Mesh::start(&watched("  readiness: {http: /healthz}\n"));
    let before = mesh.get("/").json()["pid"].clone();
    // It may complete its open requests.
    let url = format!("http://127.0.0.1:{}/slow/3000", mesh.ports.gateway);
    let slow = std::thread::spawn(move || curl(&url, &[]));
    mesh.wait_for("the request", |mesh| mesh.output().iter().any(|line| line.contains("pausing")));
    assert_eq!(mesh.get("/sick").status, 200);
    mesh.wait_for("it to be shown", |mesh| {
        let lost = mesh.instances("test/web").into_iter().find(|row| row["state"] == "unhealthy");
        lost.is_some_and(|row| row["reason"].as_str().unwrap().contains("it answered 503"))
    });
    until_replaced(&mut mesh, &before);
    assert_eq!(slow.join().unwrap().status, 200);
}

#[test]
fn an_instance_that_hangs_is_replaced_after_requests_that_time_out() {
    let mut mesh = Mesh::start(&watched("  timeouts: {request: 1s, grace: 0s}\n"));
    let before = mesh.get("/").json()["pid"].clone();
    let stopped = std::process::Command::new("kill").args(["-STOP", &before.to_string()]).status().unwrap();
    assert!(stopped.success());
    // The kernel still accepts connections for it, and the node has no other probe.
    mesh.wait_for("another instance", |mesh| {
        let answer = mesh.get("/");
        assert!([200, 504].contains(&answer.status), "{answer:?}");
        answer.status == 200
    });
    until_replaced(&mut mesh, &before);
}
