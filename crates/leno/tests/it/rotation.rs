//! `leno ca rotate`: replaces the authority of a mesh of several processes, while requests
//! continue.

use leno_testkit::cluster::load::Load;
use leno_testkit::cluster::{self, MESH, Node, Place, control};
use leno_testkit::control::{Control, text};
use leno_testkit::mesh::{ALLOW_ALL, echo_function, policy};
use leno_testkit::{EtcdServer, curl, eventually};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};

/// Two functions on several nodes, one of which calls the other: each request needs two handshakes
/// between nodes.
fn documents() -> String {
    let front =
        echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [back]\n  scale: {min: 2, max: 2}");
    let back = echo_function("back", "  scale: {min: 2, max: 2}");
    let rules = "  authorization: {rules: [{name: front, action: allow, from: [{identities: [test/front]}]}]}";
    format!("{front}{back}{}{}", policy("open", "front", ALLOW_ALL), policy("inner", "back", rules))
}

/// A gateway and three nodes that host functions.
struct Fleet {
    control: Control,
    gateway: Node,
    nodes: Vec<Node>,
}

impl Fleet {
    fn start() -> Self {
        let control = control();
        let gateway = Node::join(&control, "edge", &["--only-gateway"]);
        let place = Place::here();
        let join = |name| Node::join_at(&place, &control, name, &[], &["--offer-instances", "2"]);
        let nodes = ["one", "two", "three"].map(join).into();
        control.apply(&documents());
        eventually("an answer", || gateway.get("/call/back/").filter(|answer| answer.status == 200));
        Self { control, gateway, nodes }
    }

    fn all(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().chain([&self.gateway])
    }

    fn authority(&self) -> Value {
        let (status, authority) = self.control.get("/v1/authority");
        assert_eq!(status, 200, "{authority}");
        authority
    }

    /// SHA-256 of the root of the current certificates.
    fn root(&self) -> String {
        let roots = self.authority()["roots"].as_array().cloned().unwrap();
        let signs = roots.into_iter().find(|root| root["signs"] == true).unwrap();
        signs["sha256"].as_str().unwrap().to_owned()
    }

    fn phase(&self) -> Option<String> {
        let (status, authority) = self.control.try_get("/v1/authority")?;
        (status == 200).then(|| authority["phase"].as_str().unwrap_or("none").to_owned())
    }

    /// Starts `leno ca rotate`.
    fn rotate(&self, arguments: &[&str]) -> Rotating {
        Rotating(self.control.begin(&[&["ca", "rotate"], arguments].concat()))
    }
}

struct Rotating(Child);

impl Rotating {
    fn wait(self) -> Output {
        self.0.wait_with_output().unwrap()
    }

    /// Waits for its end. The mesh must have another authority.
    fn done(self) -> String {
        let output = self.wait();
        assert!(output.status.success(), "{output:?}");
        let text = text(&output);
        assert!(text.contains("the rotation is over"), "{text}");
        text
    }
}

/// SHA-256 of the roots that a node stores for its next start.
fn kept_roots(node: &Node) -> Vec<String> {
    let roots = fs::read_to_string(node.folder.path().join("state/roots.pem")).unwrap();
    let sections = roots.split_inclusive("-----END CERTIFICATE-----").filter(|section| section.contains("BEGIN"));
    let sha256 = |section: &str| {
        let file = node.folder.path().join("root.pem");
        fs::write(&file, section.trim_start()).unwrap();
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]).arg(file);
        let output = openssl.output().expect("openssl is installed");
        let text = text(&output);
        text.split_once('=').unwrap().1.trim().replace(':', "").to_lowercase()
    };
    sections.map(sha256).collect()
}

/// Presents the certificate in this file to the control plane's listener. Returns whether the
/// listener refused it because of its root.
fn is_refused(control: &Control, identity: &Path) -> bool {
    let refusals = || control.output().matches("no trusted root has signed the peer's certificate").count();
    let (before, identity) = (refusals(), identity.display().to_string());
    let curl = Command::new("curl")
        .args(["--silent", "--insecure", "--http2", "--max-time", "20", "--noproxy", "*", "--output", "/dev/null"])
        .args(["--write-out", "%{http_code}", "--cert", &identity, "--key", &identity])
        .arg(format!("https://{}/", control.nodes()))
        .output()
        .unwrap();
    // A client that the listener accepts gets a response, though not one of gRPC. The listener logs
    // the refusal of others.
    if text(&curl) != "000" {
        return false;
    }
    eventually("the refusal", || (refusals() > before).then_some(true))
}

#[test]
fn requests_go_on_while_the_authority_is_replaced_and_the_old_root_counts_nowhere() {
    let fleet = Fleet::start();
    let before = fleet.root();
    // A certificate of the old root.
    let old = fleet.nodes[0].folder.path().join("old.pem");
    fs::copy(fleet.nodes[0].folder.path().join("state/node.pem"), &old).unwrap();
    assert!(!is_refused(&fleet.control, &old));

    let load = Load::start_at(&fleet.gateway, "/call/back/");
    let drill = fleet.rotate(&["--drill"]).wait();
    assert!(drill.status.success() && text(&drill).contains("every node takes"), "{drill:?}");
    assert_eq!(fleet.root(), before);
    fleet.rotate(&[]).done();
    let requests = load.stop();
    assert!(requests > 0);

    let after = fleet.root();
    assert_ne!(before, after);
    eventually("the new root alone in each node's files", || {
        fleet.all().all(|node| kept_roots(node) == [after.clone()]).then_some(())
    });
    assert!(is_refused(&fleet.control, &old));
    let (_, status) = fleet.control.get("/v1/status");
    for node in status["nodes"].as_array().unwrap() {
        let issuers = node["certificates"]["issuers"].as_array().unwrap();
        assert_eq!(issuers, &[fleet.authority()["signs"].clone()], "{node}");
    }
    // The control plane removes the old key, which it does not need any more.
    let keys = || fs::read_to_string(fleet.control.path("ca.pem")).unwrap().matches("BEGIN ENCRYPTED").count();
    eventually("one key in the file", || (keys() == 1).then_some(()));
    let status = text(&fleet.control.leno(&["ca", "status"]));
    assert!(status.contains(&after) && !status.contains(&before) && status.contains("rotation   none"), "{status}");
    let audit = text(&fleet.control.leno(&["get", "audit"]));
    assert!(audit.contains("rotation: drill") && audit.contains("rotation: begin"), "{audit}");
}

#[test]
fn requests_go_on_while_the_control_plane_is_killed_in_each_phase() {
    let mut fleet = Fleet::start();
    let load = Load::start_at(&fleet.gateway, "/call/back/");
    for phase in ["trust", "renew", "withdraw"] {
        // A phase may be over before the test sees it.
        loop {
            let before = fleet.root();
            let rotating = fleet.rotate(&[]);
            let seen = eventually("the phase, or the end", || {
                let now = fleet.phase()?;
                let over = now == "none" && fleet.root() != before;
                (now == phase || over).then_some(now == phase)
            });
            if seen {
                fleet.control.kill();
                fleet.control.start_again();
            }
            rotating.done();
            assert_ne!(fleet.root(), before);
            if seen {
                break;
            }
        }
    }
    load.stop();
    let after = fleet.root();
    eventually("one root in each node's files", || {
        fleet.all().all(|node| kept_roots(node) == [after.clone()]).then_some(())
    });
}

#[test]
fn a_node_that_is_away_is_told_by_the_drill_and_waited_for_until_it_is_said_otherwise() {
    let mut fleet = Fleet::start();
    let before = fleet.root();
    fleet.nodes[2].kill();
    eventually("it to be missed", || {
        let (_, status) = fleet.control.get("/v1/status");
        let nodes = status["nodes"].as_array().cloned().unwrap();
        nodes.iter().any(|node| node["name"] == "three" && node["connected"] == false).then_some(())
    });
    let drill = fleet.rotate(&["--drill"]).wait();
    assert!(!drill.status.success() && text(&drill).contains("three would fail: it is away"), "{drill:?}");
    assert_eq!(fleet.root(), before);
    assert_eq!(fleet.authority()["roots"].as_array().unwrap().len(), 1, "the candidate is withdrawn");

    let load = Load::start_at(&fleet.gateway, "/call/back/");
    let rotating = fleet.rotate(&[]);
    let waits = || {
        let authority = fleet.authority();
        let waiting: Vec<String> = authority["waiting"].as_object().unwrap().keys().cloned().collect();
        (waiting == ["three"]).then_some(())
    };
    eventually("the node to be waited for", waits);
    let told = text(&fleet.control.leno(&["ca", "status"]));
    assert!(told.contains("waiting for three: it is away") && told.contains("1 of 3"), "{told}");
    let unknown = fleet.control.leno(&["ca", "rotate", "--without", "nobody"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no node `nobody`"), "{unknown:?}");
    // The node comes back, and gets the new root before it ends again.
    fleet.nodes[2].start_again();
    rotating.done();
    let second = fleet.root();
    assert_ne!(second, before);

    // The rotation continues without it, so it has to join again.
    fleet.nodes[2].kill();
    fleet.rotate(&["--without", "three"]).done();
    load.stop();
    assert_ne!(fleet.root(), second);
    let three = &mut fleet.nodes[2];
    three.process = cluster::spawn(three.folder.path(), &three.command, &three.arguments);
    three.wait_for("to be refused", |three| three.has_said("UnknownIssuer"));
    let back = Node::join(&fleet.control, "three", &[]);
    assert!(back.has_said("joined as"));
}

#[test]
fn an_intermediate_under_somebody_elses_root_takes_over() {
    let fleet = Fleet::start();
    let path = |name: &str| fleet.control.path(name).display().to_string();
    let file = ["--trust-domain", "test.example", "--ca", "ca.pem", "--ca-passphrase", "passphrase", "--successor"];
    let request = fleet.control.leno(&[&["ca", "request"][..], &file].concat());
    assert!(request.status.success(), "{request:?}");
    fleet.control.write("request.pem", &text(&request));
    // Before the request is signed, the rotation has no new authority.
    let refused = fleet.rotate(&[]).wait();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("still missing"), "{refused:?}");
    fleet
        .control
        .write("extensions", "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\n");
    let openssl = |arguments: &[&str]| {
        let done = Command::new("openssl").args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let (key, root, chain) = (path("root.key"), path("root.pem"), path("signed.pem"));
    let usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"];
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "20"];
    openssl(&[&["req", "-x509", "-subj", "/CN=Somebody", "-keyout", &key, "-out", &root][..], &curve, &usage].concat());
    let extensions = path("extensions");
    let signs = ["x509", "-req", "-in", &path("request.pem"), "-CA", &root, "-CAkey", &key, "-days", "10"];
    openssl(&[&signs[..], &["-extfile", &extensions, "-out", &chain]].concat());
    let both = fs::read_to_string(&chain).unwrap() + &fs::read_to_string(&root).unwrap();
    fleet.control.write("chain.pem", &both);
    let installed = fleet.control.leno(&[&["ca", "install", "--chain", "chain.pem"][..], &file].concat());
    assert!(text(&installed).contains("`leno ca rotate` changes to it"), "{installed:?}");

    let load = Load::start_at(&fleet.gateway, "/call/back/");
    fleet.rotate(&[]).done();
    load.stop();
    let after = fleet.root();
    eventually("somebody's root in each node's files", || {
        fleet.all().all(|node| kept_roots(node) == [after.clone()]).then_some(())
    });
    // A root of 20 days is not late before its last five, and metrics tell the time left.
    let status = fleet.control.leno(&["ca", "status"]);
    assert!(!String::from_utf8_lossy(&status.stderr).contains("expires in"), "{status:?}");
    assert!(!fleet.control.ready().unwrap().contains("expires in"));
    let (_, metrics) = fleet.control.get("/metrics");
    let metrics = metrics.as_str().unwrap();
    let left = |name: &str| {
        let line =
            metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{metrics}"));
        line.split_once(' ').unwrap().1.parse::<i64>().unwrap() / 86_400
    };
    assert_eq!(left("citadel_server_root_cert_expiry_seconds"), 19);
    assert_eq!(left("citadel_server_cert_chain_expiry_seconds"), 9);
    let socket = fleet.nodes[0].folder.path().join("admin.sock").display().to_string();
    let own = curl("http://admin/metrics", &["--unix-socket", &socket]).body;
    assert!(own.contains("istio_agent_cert_expiry_seconds{resource_name=\"ROOTCA\"}"), "{own}");
}

#[test]
fn another_control_plane_goes_on_with_a_rotation_if_it_has_the_file() {
    let server = EtcdServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (mesh, passphrase, address) = (path("mesh.yaml"), path("passphrase"), server.address());
    fs::write(&mesh, MESH).unwrap();
    fs::write(&passphrase, "correct horse battery").unwrap();
    let files = [path("first.pem"), path("second.pem")];
    let arguments = |file| {
        ["--etcd", &*address, "--etcd-lease", "2", "--mesh", &*mesh, "--ca", file, "--ca-passphrase", &*passphrase]
    };
    let mut first = Control::start(tempfile::tempdir().unwrap(), &arguments(&files[0]));
    fs::copy(&files[0], &files[1]).unwrap();
    let second = Control::start_following(&first, &arguments(&files[1]));
    let (place, other) = (Place::here(), second.nodes());
    let join = |name| Node::join_at(&place, &first, name, &[], &["--control", &*other]);
    let (_one, mut two) = (join("one"), join("two"));
    // The rotation waits for this one.
    two.kill();
    let begun = first.leno(&["ca", "rotate", "--detach"]);
    assert!(begun.status.success(), "{begun:?}");
    let waiting = |control: &Control| {
        let (status, authority) = control.get("/v1/authority");
        (status == 200).then(|| authority["waiting"].as_object().unwrap().keys().cloned().collect::<Vec<_>>())
    };
    eventually("the node to be waited for", || (waiting(&first)? == ["two"]).then_some(()));
    first.kill();
    second.eventually("it to say why it does not lead", |second| {
        let output = second.output();
        output.contains("this control plane cannot lead") && output.contains("to which the mesh is changing")
    });
    fs::copy(&files[0], &files[1]).unwrap();
    second.eventually("it to lead", |second| second.ready().is_some_and(|ready| ready.starts_with("leads")));
    eventually("the node to be waited for", || (waiting(&second)? == ["two"]).then_some(()));
    let done = second.leno(&["ca", "rotate", "--without", "two"]);
    assert!(done.status.success() && text(&done).contains("other control planes of this mesh need"), "{done:?}");
}

#[test]
fn who_may_rotate() {
    let control = control();
    for (role, namespace, may_see) in [("reader", None, true), ("editor", None, true), ("admin", Some("test"), false)] {
        let mut arguments = vec!["token", "create", "--role", role];
        arguments.extend(namespace.into_iter().flat_map(|namespace| ["--namespace", namespace]));
        let token = text(&control.leno(&arguments)).trim().to_owned();
        for action in ["begin", "drill", "abort", "without"] {
            let body = serde_json::json!({ "action": action });
            assert_eq!(control.post(&token, "/v1/authority/rotation", &body).0, 403, "{role} {action}");
        }
        for path in ["/v1/authority", "/metrics"] {
            assert_eq!(control.get_as(&token, path).0, if may_see { 200 } else { 403 }, "{role} {path}");
        }
    }
    let token = control.token();
    let abort = control.post(&token, "/v1/authority/rotation", &serde_json::json!({ "action": "abort" }));
    assert_eq!(abort.0, 409, "{}", abort.1);
    let bad = control.post(&token, "/v1/authority/rotation", &serde_json::json!({ "action": "destroy" }));
    assert_eq!(bad.0, 400, "{}", bad.1);
}
