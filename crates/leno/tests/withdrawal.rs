//! A permission that is withdrawn is not in force any more within seconds, though the control plane that the nodes are connected to hangs.

#[path = "api/mod.rs"]
mod api;
mod cluster;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../../control/tests/support/etcd.rs"]
mod etcd;
mod mesh;

use api::{Control, function};
use cluster::{MESH, Node, Place, control, documents, eventually};
use serde_json::Value;
use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The promise is 5 s. The rest is for a machine that has other things to do.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_withdrawal_is_heard_though_the_leader_of_before_hangs() {
    let etcd = etcd::Server::start();
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

    first.signal("-STOP");
    eventually("the other one to lead", || second.try_get("/v1/status").filter(|(status, _)| *status == 200));
    let nobody = documents().replace("name: everything, action: allow", "name: nobody, action: deny");
    second.eventually("the withdrawal to be taken", |control| {
        control.leno_with(&["apply", "-f", "-"], &nobody).status.success()
    });
    let begin = Instant::now();
    eventually("a refusal", || gateway.get("/").filter(|answer| answer.status == 403));
    let took = begin.elapsed();
    first.signal("-CONT");
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
