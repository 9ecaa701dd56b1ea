//! Third-party clients drive the gateway of a mesh of nodes: grpc-go, grpc-java, grpcio, grpc-js,
//! Go's `net/http` and undici. Each client makes its calls, and continues while the mesh replaces
//! the function's instances and the test upgrades the gateway and the node. Java's `HttpClient` is
//! in `it/interim.rs` of the proxy's tests.
//!
//! `scripts/clients.sh` installs them.

use leno_testkit::cluster::restart::RestartedNode;
use leno_testkit::cluster::{Node, control_of};
use leno_testkit::mesh::{ALLOW_ALL, example, policy};
use leno_testkit::{Process, curl, eventually};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The cases of each client of gRPC.
const GRPC: [&str; 14] = [
    "unary",
    "large",
    "metadata",
    "server streaming",
    "client streaming",
    "bidirectional",
    "refused with details",
    "failed late with details",
    "deadline before the head",
    "deadline after the head",
    "cancel",
    "unknown method",
    "a hundred at once",
    "change",
];

/// A client process. Dropping it ends the process.
struct Client {
    name: &'static str,
    process: Process,
}

impl Client {
    fn start(name: &'static str, command: &mut Command) -> Self {
        let process = Process::spawn(command.stdin(Stdio::piped()));
        Self { name, process: process.unwrap_or_else(|error| panic!("{name}: {error}")) }
    }

    fn has_said(&self, line: &str) -> bool {
        self.process.lines().iter().any(|said| said == line)
    }

    /// Waits until the client prints this line. It must not fail before.
    fn wait_for(&mut self, line: &str) {
        eventually(&format!("{line:?} from {}", self.name), || {
            let failed = self.process.exit_status().filter(|status| !status.success());
            assert!(failed.is_none(), "{}: {failed:?}\n{}", self.name, self.process.output());
            self.has_said(line)
        });
    }
}

/// The folder with the installed clients.
fn place() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().join("clients")
}

fn start(gateway: &str) -> Vec<Client> {
    let (place, sources) = (place(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients"));
    let (host, port) = gateway.split_once(':').unwrap();
    let mut python = Command::new(place.join("python/bin/python"));
    python.arg(sources.join("python/client.py")).arg(gateway);
    let node = |file: &str| {
        let mut node = Command::new("node");
        node.arg(sources.join("node").join(file)).arg(gateway).env("LENO_CLIENTS", place.join("node"));
        node
    };
    let mut java = Command::new("java");
    java.current_dir(place.join("java")).args(["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", "classes:jars/*"]);
    java.args(["Client", host, port]);
    let go = |kind: &str| {
        let mut go = Command::new(place.join("go/client"));
        go.args([kind, gateway]);
        go
    };
    let commands = [
        ("grpc-go", "go", go("grpc")),
        ("net/http", "go", go("http")),
        ("grpcio", "python", python),
        ("grpc-js", "node", node("grpc.js")),
        ("undici", "node", node("undici.js")),
        ("grpc-java", "java", java),
    ];
    let mut started = Vec::new();
    for (name, kind, mut command) in commands {
        if place.join(kind).join("made-from").is_file() {
            started.push(Client::start(name, &mut command));
        } else {
            eprintln!("SKIPPED: {name} is not installed; scripts/clients.sh installs it, or says what it needs");
        }
    }
    started
}

/// One function for gRPC and one for HTTP/1.1.
fn functions(version: u32) -> String {
    let function = |name: &str, protocol: &str, paths: &[&str]| {
        let expose: Vec<String> = paths.iter().map(|path| format!("{{hosts: [\"*\"], path: {path}}}")).collect();
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: \
             [\"{}\"]\n  protocol: {protocol}\n  concurrency: 0\n  scale: {{min: 1, max: 1}}\n  env: {{VERSION: \"{version}\"}}\n  \
             expose: [{}]\n",
            example("calls").display(),
            expose.join(", ")
        )
    };
    let web = function("web", "http1", &["/echo", "/fields", "/quiet", "/ended"]);
    function("rpc", "grpc", &["/test.Calls"]) + &web + &policy("open", "rpc, web", ALLOW_ALL)
}

#[test]
fn clients_see_no_error_that_the_function_did_not_answer_with() {
    let control = control_of(Ipv4Addr::LOCALHOST, "  limits: {headers: 1000}\n");
    let mut gateway = RestartedNode::of(Node::join(&control, "edge", &["--only-gateway"]));
    let mut node = RestartedNode::of(Node::join(&control, "one", &[]));
    control.apply(&functions(1));
    let address = gateway.node.gateway.to_string();
    let answers_of = |version: &str| {
        let answer = curl(&format!("http://{address}/echo"), &[]);
        (answer.header("x-version") == Some(version)).then_some(())
    };
    eventually("the first version", || answers_of("1"));
    let mut clients = start(&address);
    for client in &mut clients {
        client.wait_for("steady");
    }
    control.apply(&functions(2));
    eventually("the second version", || answers_of("2"));
    gateway.upgrade();
    node.upgrade();
    for client in &mut clients {
        // If the client has ended, the reason follows below.
        let _ = client.process.take_stdin().unwrap().write_all(b"\n");
    }
    for client in &mut clients {
        client.wait_for("passed change");
        let status = client.process.wait();
        assert!(status.success(), "{}: {status}\n{}", client.name, client.process.output());
        let lacks: Vec<_> = GRPC.into_iter().filter(|case| !client.has_said(&format!("passed {case}"))).collect();
        assert!(lacks.is_empty() || !client.name.starts_with("grpc"), "{} has not tried {lacks:?}", client.name);
    }
}
