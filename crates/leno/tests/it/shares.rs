//! Instances of one namespace cannot use up the log or the connections of others on a node.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use std::fs;
use std::time::Instant;

fn document(kind: &str, name: &str, namespace: &str, command: &[&str], spec: &str) -> String {
    let command = serde_json::to_string(command).unwrap();
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         command: {command}\n{spec}"
    )
}

/// Bytes of the flood's lines in the node's log.
fn flooded(mesh: &Mesh) -> usize {
    mesh.output().iter().filter(|line| line.contains("flood flood")).map(String::len).sum()
}

#[test]
fn an_instance_that_writes_without_end_fills_no_log_and_hides_no_other_line() {
    let flood = "while :; do echo \"flood flood flood flood flood flood flood flood flood flood\"; done";
    let quiet = "i=0; while :; do i=$((i+1)); echo \"quiet line $i.\"; sleep 0.05; done";
    let job = |name, namespace, script| document("Job", name, namespace, &["/bin/sh", "-c", script], "");
    let begin = Instant::now();
    let mut mesh = Mesh::start(&(job("flood", "hostile", flood) + &job("quiet", "calm", quiet)));
    let said = |line: &&String| line.contains("of hostile/flood left out in") && line.contains(" lines (");
    mesh.wait_for("what is left out to be said", |mesh| mesh.output().iter().find(said).is_some());
    let lines = mesh.output().len();
    mesh.wait_for("it to be said again", |mesh| mesh.output()[lines..].iter().find(said).is_some());
    // The default rate since the start, and the burst of four seconds.
    let (written, seconds) = (flooded(&mesh), begin.elapsed().as_secs_f64());
    assert!(written as f64 <= (seconds + 4.0) * f64::from(1 << 20), "{written} bytes in {seconds} s");
    let output = mesh.output();
    let number = |line: &String| line.split_once("quiet line ")?.1.strip_suffix('.')?.parse::<usize>().ok();
    let numbers: Vec<usize> = output.iter().filter_map(number).collect();
    assert!(numbers.len() > 20 && numbers.iter().copied().eq(1..=numbers.len()), "{numbers:?}");
    let metrics = mesh.metrics(&["leno_log_bytes_dropped_total{namespace=\"hostile\",source=\"output\"}"]);
    assert!(!metrics.contains("dropped_total{namespace=\"calm\""), "{metrics}");
    let rows = mesh.leno(&["get", "namespaces", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    let row = rows.as_array().unwrap().iter().find(|row| row["namespace"] == "hostile").unwrap();
    assert_eq!(row["instances"], "1/500");
    match row["unenforced_limits"].as_str() {
        Some(reason) => eprintln!("\n*** NOT tested: no control groups for namespaces: {reason} ***\n"),
        None => assert!(row["pids"].as_str().is_some_and(|pids| pids.ends_with("/4096")), "{row}"),
    }
    assert!(row["log_bytes_dropped"].as_u64().unwrap() > 0, "{row}");
    let told = mesh.leno(&["logs", "hostile/flood", "--tail", "5"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert_eq!(told.lines().filter(|line| line.contains("flood flood")).count(), 5, "{told}");
}

/// Opens as many connections as it can, for requests that never get a response.
const HOARD: &str = "
import socket, time
kept = []
while True:
    try:
        one = socket.create_connection(('silent', 80), timeout=5)
        one.sendall(b'GET / HTTP/1.1\\r\\nhost: silent\\r\\n\\r\\n')
        kept.append(one)
        print('opened', len(kept), flush=True)
    except OSError:
        time.sleep(0.02)
";

/// Accepts connections and answers nothing.
const SILENT: &str = "
import os, socket
listener = socket.create_server(('', int(os.environ['PORT'])), backlog=1000)
kept = []
while True:
    kept.append(listener.accept())
";

#[test]
fn connections_of_one_jail_leave_the_gateway_and_others_what_they_need() {
    if !std::process::Command::new("/usr/bin/python3")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("\n*** NOT tested: there is no python3 ***\n");
        return;
    }
    let hostile =
        |kind, name, program, spec| document(kind, name, "hostile", &["/usr/bin/python3", "-c", program], spec);
    let documents = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
        + &policy("open", "echo", ALLOW_ALL)
        + &hostile("Function", "silent", SILENT, "")
        + &hostile("Job", "hoard", HOARD, "  callees: [silent]\n")
        + &policy("open", "silent", ALLOW_ALL).replace("namespace: test", "namespace: hostile");
    let mut mesh =
        Mesh::start_with_descriptors("-n 400", "  instances: {isolation: auto, accounts: node}\n", &documents);
    // The node refuses more: the jail has all connections that its namespace may have.
    mesh.metrics(&["leno_namespace_refused_total{namespace=\"hostile\",resource=\"connections\"}"]);
    let open = |mesh: &Mesh| mesh.output().iter().filter(|line| line.contains("| opened ")).count();
    mesh.wait_for("some connections", |mesh| open(mesh) > 10);
    for _ in 0..20 {
        assert_eq!(mesh.get("/good").status, 200, "another namespace's function");
        assert_eq!(mesh.admin("/healthz").status, 200, "health");
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", mesh.pid())).map_or(0, Iterator::count);
    assert!(descriptors < 300, "{descriptors} descriptors");
}

#[test]
fn a_request_does_not_come_back_to_its_gateway_for_ever() {
    let at = |port: u16| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: loop, namespace: test}}\nspec:\n  external: \
             {{addresses: [\"127.0.0.1:{port}\"]}}\n  expose: [{{path: /}}]\n{}",
            policy("open", "loop", ALLOW_ALL)
        )
    };
    let mut mesh = Mesh::start(&at(1));
    mesh.write(&at(mesh.ports.gateway));
    let (log, mut sent) = (mesh.folder.path().join("access.log"), 0);
    mesh.wait_for("the change", |mesh| {
        sent += 1;
        assert!([502, 503].contains(&mesh.get("/").status));
        fs::read_to_string(&log).is_ok_and(|lines| lines.contains("requests would come back for ever"))
    });
    assert_eq!(mesh.log_lines("target", "test/loop", sent).len(), sent, "none was made of another");
}
