//! A withdrawn permission ceases within seconds, even if the control plane to which the nodes are
//! connected hangs.

use leno_testkit::cluster::{MESH, Node, Place, control, documents};
use leno_testkit::control::{Control, function};
use leno_testkit::{EtcdServer, TIMEOUT, eventually};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// The promise is 5 s. The rest allows for a busy machine.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_withdrawal_is_heard_though_the_leader_of_before_hangs() {
    let etcd = EtcdServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (mesh, ca, passphrase, url) = (path("mesh.yaml"), path("ca.pem"), path("passphrase"), etcd.address());
    fs::write(&mesh, MESH).unwrap();
    fs::write(&passphrase, "correct horse battery").unwrap();
    let arguments = ["--etcd", &url, "--etcd-lease", "2", "--mesh", &mesh, "--ca", &ca, "--ca-passphrase", &passphrase];
    let first = Control::start_serving(tempfile::tempdir().unwrap(), &arguments, Ipv4Addr::LOCALHOST);
    let second = Control::start_following(&first, &arguments);
    let other = second.nodes();
    let more = ["--control", &*other];
    let gateway = Node::join_at(&Place::here(), &first, "edge", &["--only-gateway"], &more);
    let _node = Node::join_at(&Place::here(), &first, "one", &[], &more);
    first.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));

    first.pause();
    eventually("the other one to lead", || second.leads().then_some(()));
    let nobody = documents().replace("name: everything, action: allow", "name: nobody, action: deny");
    second.eventually("the withdrawal to be taken", |control| {
        control.leno_with(&["apply", "-f", "-"], &nobody).status.success()
    });
    let begin = Instant::now();
    eventually("a refusal", || gateway.get("/").filter(|answer| answer.status == 403));
    let took = begin.elapsed();
    first.resume();
    eprintln!("it was in force after {took:?}");
    assert!(took < SOON, "{took:?}");
}

#[test]
fn a_withdrawal_is_in_force_beside_a_long_load_and_is_not_undone_by_it() {
    const MANY: usize = 800;
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let node = Node::join(&control, "one", &[]);
    control.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    let in_force = || {
        let listed = node.leno(&["get", "functions", "--json"]);
        let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        rows.iter().filter(|row| row["function"].as_str().is_some_and(|name| name.starts_with("many/"))).count()
    };
    let many: Vec<String> = (0..MANY).map(|number| function(&format!("f{number}"), "many")).collect();
    control.apply(&many.join("---\n"));
    control.apply(&documents().replace("name: everything, action: allow", "name: nobody, action: deny"));
    eventually("a refusal", || gateway.get("/").filter(|answer| answer.status == 403));
    eprintln!("{} of {MANY} functions were in force before the withdrawal", in_force());
    eventually("all functions", || Some(in_force()).filter(|count| *count == MANY));
    assert_eq!(gateway.get("/").unwrap().status, 403, "what took long was loaded beside what came later");
}

/// A WebSocket through a gateway.
struct WebSocket {
    stream: TcpStream,
    /// The request ID, the same on both nodes.
    id: String,
}

impl WebSocket {
    /// Opens a WebSocket, and checks that a frame is echoed.
    fn open(gateway: &Node) -> Self {
        let mut stream = TcpStream::connect(gateway.gateway).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
            .write_all(
                b"GET /websocket HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\
                  \x81\x85\0\0\0\0hello",
            )
            .unwrap();
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(b"hello") {
            assert!(stream.read(&mut byte).unwrap() > 0, "it has ended: {}", String::from_utf8_lossy(&read));
            read.push(byte[0]);
        }
        let text = String::from_utf8_lossy(&read).to_lowercase();
        let id = text.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap().to_owned();
        Self { stream, id }
    }

    /// The bytes up to the end of the stream.
    fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = self
            .stream
            .read_to_end(&mut rest)
            .map_err(|error| assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock));
        rest
    }

    /// Expects that the mesh ends it, and that this node records this reason.
    fn expect_end_by(self, node: &Node, reason: &str) {
        let id = self.id.clone();
        let rest = self.rest();
        let close = b"\x88\x22\x03\xf4ended by the mesh, connect again";
        assert!(rest.ends_with(close), "{:?}", String::from_utf8_lossy(&rest));
        eventually(reason, || {
            let told = node.leno(&["explain", &id]);
            String::from_utf8_lossy(&told.stdout).contains(reason).then_some(())
        });
    }
}

/// The process of a revoked node continues: the other nodes end their open exchanges with it.
#[test]
fn a_revoked_nodes_streams_end_on_all_other_nodes() {
    let mut control = control();
    let gateways = ["edge", "border"].map(|name| Node::join(&control, name, &["--only-gateway"]));
    let one = Node::join(&control, "one", &[]);
    control.apply(&documents());
    gateways.iter().for_each(|gateway| {
        eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    });
    let begin = Instant::now();
    // The revoked node is a gateway, the caller's node. The control plane that gets the command
    // reads it from its store.
    let (revoked, kept) = (WebSocket::open(&gateways[1]), WebSocket::open(&gateways[0]));
    control.kill();
    control.start_again();
    assert!(control.leno(&["nodes", "revoke", "border"]).status.success());
    revoked.expect_end_by(&one, "the caller's node was revoked");
    eventually("no way in", || gateways[1].get("/").filter(|answer| answer.status == 503));

    // The callee's node.
    assert!(control.leno(&["nodes", "revoke", "one"]).status.success());
    kept.expect_end_by(&gateways[0], "the callee's node was revoked");
    eprintln!("all took {:?}", begin.elapsed());

    // A machine that joins under the name of the revoked gateway does not lift the revocation of
    // that gateway.
    let again = Node::join(&control, "border", &["--only-gateway"]);
    let _two = Node::join(&control, "two", &[]);
    eventually("an answer", || again.get("/").filter(|answer| answer.status == 200));
    assert_eq!(gateways[1].get("/").unwrap().status, 503);
}

/// A node that was unreachable learns of a revocation when it comes back, also from a restarted
/// control plane.
#[test]
fn a_revocation_is_learnt_by_a_node_that_was_away() {
    let mut control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _one = Node::join(&control, "one", &[]);
    control.apply(&documents());
    eventually("an answer", || gateway.get("/").filter(|answer| answer.status == 200));
    let open = WebSocket::open(&gateway);
    gateway.pause();
    let connected = || {
        let (_, status) = control.get("/v1/status");
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().any(|node| node["name"] == "edge" && node["connected"] == Value::Bool(true))
    };
    eventually("it to be missed", || (!connected()).then_some(()));
    assert!(control.leno(&["nodes", "revoke", "one"]).status.success());
    control.kill();
    control.start_again();
    gateway.resume();
    open.rest();
    eventually("nothing to serve it", || gateway.get("/").filter(|answer| answer.status == 503));
}
