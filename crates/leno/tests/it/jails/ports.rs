//! Fixed ports: each jail has its own network, so instances, revisions and functions share none.

use super::{EXPOSE, start};
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy, public_folder};
use std::collections::BTreeSet;
use std::process::Command;

/// Whether the node can leave port 80 to programs. If not, prints that.
fn has_port_80() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: without root, the node's own listener in a jail is at port 80");
    }
    is_root
}

fn echo(name: &str, fields: &str) -> String {
    // A longer deadline, so that a busy machine does not make sidecars refuse.
    let open = format!("{ALLOW_ALL}\n  sidecar: {{deadline: 100ms}}");
    echo_function(name, &format!("  workingDirectory: public\n  callees: []\n{fields}"))
        + &policy(&format!("{name}-in"), name, &open)
}

/// The ready instances of a function, by the ends of their addresses.
fn ready(mesh: &Mesh, function: &str, port: u16) -> BTreeSet<String> {
    let rows = mesh.instances(function).into_iter().filter(|row| row["state"] == "ready");
    let addresses = rows.map(|row| row["address"].as_str().unwrap().to_owned());
    addresses.inspect(|address| assert!(address.ends_with(&format!(":{port}")), "{address}")).collect()
}

#[test]
fn many_instances_of_many_functions_listen_on_the_same_port() {
    if !has_port_80() {
        return;
    }
    let documents = echo("web", &format!("  port: 80\n  scale: {{min: 3}}\n  concurrency: 1\n{EXPOSE}"))
        + &echo("other", "  port: 80\n  scale: {min: 2}\n  expose: [{hosts: [other.example], path: /}]");
    let mut mesh = start("strict", &documents);
    mesh.wait_for("the instances", |mesh| {
        ready(mesh, "test/web", 80).len() == 3 && ready(mesh, "test/other", 80).len() == 2
    });
    let mut answered = BTreeSet::new();
    mesh.wait_for("each to answer", |mesh| {
        let mesh = &*mesh;
        // Requests at the same time, because an instance handles one.
        std::thread::scope(|scope| {
            let requests: Vec<_> = (0..3).map(|_| scope.spawn(|| mesh.get("/"))).collect();
            for answer in requests.into_iter().map(|request| request.join().unwrap()) {
                assert_eq!(answer.status, 200, "{answer:?}");
                let environment = &answer.json()["environment"];
                assert_eq!((&environment["PORT"], &environment["LENO_FUNCTION"]), (&"80".into(), &"test/web".into()));
                answered.insert(environment["LENO_INSTANCE"].to_string());
            }
        });
        answered.len() == 3
    });
    let other = mesh.curl("/", &["--header", "host: other.example"]).json();
    assert_eq!(other["environment"]["LENO_FUNCTION"], "test/other");
}

#[test]
fn two_revisions_serve_side_by_side_on_a_fixed_port() {
    let documents = |version: u8, traffic: &str| {
        echo("web", &format!("  port: 8080\n  env: {{VERSION: \"{version}\"}}\n{EXPOSE}\n{traffic}"))
    };
    let mut mesh = start("strict", &documents(1, ""));
    let version = |mesh: &Mesh, tag: &str| {
        let answer = mesh.curl("/", &["--header", &format!("leno-tag: {tag}")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["environment"]["VERSION"].as_str().unwrap().to_owned()
    };
    assert_eq!(version(&mesh, "new"), "1");
    let canary = "  traffic: [{revision: web-00001, percent: 100, tag: old}, {latest: true, percent: 0, tag: new}]";
    mesh.write(&documents(2, canary));
    mesh.wait_for("the second revision", |mesh| version(mesh, "new") == "2");
    assert_eq!(version(&mesh, "old"), "1");
    assert_eq!(ready(&mesh, "test/web", 8080).len(), 2);
}

#[test]
fn without_jails_one_instance_has_a_fixed_port() {
    let port = leno_testkit::free_port();
    let documents = echo("web", &format!("  port: {port}\n  concurrency: 1\n{EXPOSE}"));
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let settings = "  instances: {isolation: process, accounts: node}\n";
    let mesh = Mesh::start_with_command(leno, settings, &documents, public_folder);
    mesh.line("one instance at a time: its port is fixed");
    assert_eq!(mesh.get("/").status, 200);
    assert_eq!(ready(&mesh, "test/web", port).len(), 1);
    let checked = mesh.leno(&["check", mesh.folder.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains("a node runs one instance with this port at a time"), "{said}");
}
