//! What nodes know, asked through the control plane: real nodes, a gateway and a control plane.

use leno_testkit::cluster::{MESH, Node, control, documents};
use leno_testkit::control::{Control, text};
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::echo_function;
use leno_testkit::{EtcdServer, eventually};
use serde_json::Value;

/// The rows that a listing prints.
fn rows(control: &Control, what: &str) -> Vec<Value> {
    let listed = control.leno(&["get", what, "--json"]);
    assert!(listed.status.success(), "{listed:?}");
    serde_json::from_slice(&listed.stdout).unwrap()
}

fn row(control: &Control, what: &str, field: &str, name: &str) -> Option<Value> {
    rows(control, what).into_iter().find(|row| row[field] == name)
}

/// Two nodes and a gateway, and a request that came to `test/front` and was allowed.
fn cluster() -> (Control, Node, [Node; 2], String) {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let nodes = ["one", "two"].map(|name| Node::join(&control, name, &[]));
    control.apply(&documents());
    let answer = eventually("an answer", || gateway.get("/hello").filter(|answer| answer.status == 200));
    let id = answer.header("x-request-id").unwrap().to_owned();
    (control, gateway, nodes, id)
}

#[test]
fn requests_instances_and_events_are_known_from_anywhere() {
    let (control, _gateway, nodes, id) = cluster();
    let told = text(&control.leno(&["explain", &id]));
    assert!(told.contains("gateway -> test/front") && told.contains("on node edge"), "{told}");
    assert!(told.contains("inbound -> test/front"), "{told}");
    let hops: Value = serde_json::from_slice(&control.leno(&["explain", &id, "--json"]).stdout).unwrap();
    let by: Vec<&str> = hops.as_array().unwrap().iter().filter_map(|hop| hop["recorded_by"].as_str()).collect();
    assert_eq!((by.len(), by[0]), (2, "edge"), "{hops}");
    let host = by[1].to_owned();

    let flows = text(&control.leno(&["observe", "--last", "1000", "--function", "test/front", "--json"]));
    let flows: Vec<Value> = flows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_request: Vec<&str> =
        flows.iter().filter(|flow| flow["request_id"] == *id).filter_map(|flow| flow["node"].as_str()).collect();
    assert_eq!(of_request, ["edge", &*host], "{flows:?}");
    let instance = row(&control, "instances", "function", "test/front").unwrap();
    assert_eq!((&instance["node"], &instance["state"]), (&Value::from(host.clone()), &"ready".into()), "{instance}");
    let scaled = rows(&control, "events").into_iter().find(|row| row["function"] == "test/front").unwrap();
    assert_eq!((&scaled["kind"], &scaled["node"]), (&"scale".into(), &host.clone().into()), "{scaled}");
    assert_eq!(row(&control, "functions", "function", "test/front").unwrap()["state"], "ready");

    // The gateway's node counts no request that the other one judged.
    let graph = control.leno(&["graph", "-o", "json"]);
    let graph: Value = serde_json::from_slice(&graph.stdout).unwrap_or_else(|error| panic!("{error}: {graph:?}"));
    let edges = graph["edges"].as_array().unwrap();
    let arriving = edges.iter().find(|edge| edge["source"] == "gateway" && edge["target"] == "test/front").unwrap();
    assert_eq!(arriving["status"], "active", "{graph}");
    let judged = flows.iter().filter(|flow| flow["kind"] == "inbound" || flow["kind"] == "gateway");
    let judged = judged.filter(|flow| flow["node"] == *host && flow["target"] == "test/front").count();
    // Before the function was placed, requests may have failed at the gateway.
    let [all, failed] = ["rate", "failed"].map(|count| arriving[count].as_f64().unwrap());
    assert_eq!(all - failed, judged as f64, "{graph}");
    let tree = text(&control.leno(&["graph", "test/front"]));
    assert!(tree.starts_with("gateway\n└─ test/front  "), "{tree}");

    let table = text(&control.leno(&["top", "--once", "edges"]));
    assert!(table.starts_with("CALLER ") && table.contains("\ngateway "), "{table}");

    // A token sees its namespaces alone.
    let token = |namespace: &str| {
        text(&control.leno(&["token", "create", "--role", "reader", "--namespace", namespace])).trim().to_owned()
    };
    let (own, other) = (token("test"), token("other"));
    let count = |token: &str, path: &str| {
        let (status, page) = control.get_as(token, path);
        assert_eq!(status, 200, "{page}");
        page["rows"].as_array().unwrap().len()
    };
    let request = format!("/v1/requests/{id}");
    let views = ["instances", "events", "flows", "functions", "edges", "rules"].map(|view| format!("/v1/{view}"));
    for path in views.iter().chain([&request]) {
        assert!(count(&own, path) > 0 && count(&other, path) == 0, "{path}");
    }

    // A node that does not answer is named.
    nodes[0].pause();
    let listed = control.leno(&["get", "instances"]);
    nodes[0].resume();
    let missing = String::from_utf8(listed.stderr.clone()).unwrap();
    assert!(listed.status.success() && missing.contains("node one: it "), "{listed:?}");
    let unknown = control.leno(&["explain", "no-such-request"]);
    assert!(!unknown.status.success());
}

#[test]
fn a_failing_function_is_told_with_its_reason_and_waited_for() {
    let control = control();
    let _node = Node::join(&control, "one", &[]);
    let wait = |documents: &str, timeout: &str| {
        control.leno_with(&["apply", "-f", "-", "--wait", "--timeout", timeout], documents)
    };
    let good = wait(&echo_function("good", "  scale: {min: 1}"), "5m");
    assert!(good.status.success() && text(&good).contains("test/good ready"), "{good:?}");
    let broken = "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: broken, namespace: test}\nspec: {command: \
                  [/bin/sh, -c, exit 9], scale: {min: 1}}\n";
    let failed = wait(broken, "5m");
    let told = String::from_utf8(failed.stderr.clone()).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(told.contains("test/broken failed: ") && told.contains("exit status: 9 (node one)"), "{told}");
    let function = row(&control, "functions", "function", "test/broken").unwrap();
    assert!(function["reason"].as_str().unwrap().contains("exit status: 9"), "{function}");
    let event = rows(&control, "events").into_iter().find(|row| row["kind"] == "failed").unwrap();
    assert_eq!((&event["function"], &event["node"]), (&"test/broken".into(), &"one".into()), "{event}");
    // It waits for a start that takes long, for as long as the user wants.
    let slow = broken.replace("name: broken", "name: slow").replace("exit 9", "exec sleep 1000");
    let late = wait(&slow, "1s");
    let told = String::from_utf8(late.stderr.clone()).unwrap();
    assert!(!late.status.success() && told.contains("not ready within 1s: test/slow starting"), "{told}");
}

#[test]
fn the_output_of_an_ended_job_is_there() {
    let control = control();
    let _node = Node::join(&control, "one", &[]);
    let first = control.path("first");
    let job = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: report, namespace: test}}\nspec:\n  command: [/bin/sh, -c, \
         \"[ -e {0} ] || {{ touch {0}; exit 1; }}; echo the report\"]\n",
        first.display()
    );
    control.apply(&job);
    eventually("the end of the job", || {
        let job = row(&control, "jobs", "job", "test/report")?;
        (job["state"] == "succeeded").then(|| {
            // Times are numbers, and the reason of the first failure is none of the success.
            assert!(job["end"].as_f64().unwrap() >= job["start"].as_f64().unwrap(), "{job}");
            assert_eq!((&job["failed"], &job["reason"]), (&1.into(), &Value::Null));
        })
    });
    let (_, status) = control.get("/v1/status");
    assert!(status["jobs"][0]["ended"].is_f64(), "{status}");
    let logs = text(&control.leno(&["logs", "test/report"]));
    assert!(logs.contains("the report"), "{logs}");
}

#[test]
fn a_follower_answers_reads_as_the_leader_does() {
    let server = EtcdServer::start();
    let authority = tempfile::tempdir().unwrap();
    let path = |name: &str| authority.path().join(name).display().to_string();
    let (mesh, ca, passphrase, etcd) = (path("mesh.yaml"), path("ca.pem"), path("passphrase"), server.address());
    std::fs::write(&mesh, MESH).unwrap();
    std::fs::write(&passphrase, "correct horse battery").unwrap();
    // The lease outlives the test.
    let arguments =
        ["--etcd", &*etcd, "--etcd-lease", "600", "--mesh", &*mesh, "--ca", &*ca, "--ca-passphrase", &*passphrase];
    let mut leader = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let follower = Control::start_following(&leader, &arguments);
    let _node = Node::join(&leader, "one", &[]);
    leader.apply(&echo_function("echo", "  scale: {min: 1}"));
    follower.eventually("the follower to know the instance", |follower| {
        let (status, page) = follower.get("/v1/instances");
        status == 200 && page["rows"][0]["function"] == "test/echo"
    });
    let (status, told) = follower.get("/v1/status");
    assert_eq!((status, &told["nodes"][0]["name"]), (200, &"one".into()), "{told}");
    assert_eq!(told["nodes"][0]["release"], env!("CARGO_PKG_VERSION"));
    assert!(text(&follower.leno(&["get", "nodes"])).contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(follower.get_as("leno_nobody", "/v1/status").0, 401);
    let change = serde_json::json!({ "apply": [{ "name": "x", "text": echo_function("late", "") }] });
    assert_eq!(follower.post(&follower.token(), "/v1/changes", &change).0, 421, "changes are redirected");

    // The certificate of the leader's API is renewed: no read fails, before and after it is in use.
    let renewed = CertificateAuthority::default();
    let (certificate, key) = renewed.issue(&["127.0.0.1", "localhost"]);
    leader.write("data/api.key", &key.serialize_pem());
    leader.write("data/api.pem", &(certificate.pem() + &renewed.pem()));
    let read = || {
        let (status, told) = follower.get("/v1/status");
        assert_eq!(status, 200, "{told}");
    };
    leader.eventually("the new certificate to be in use", |leader| {
        read();
        leader.output().contains("was read again")
    });
    (0..5).for_each(|_| read());

    // The previous process of the same control plane is dead, which its lock proves.
    leader.kill();
    leader.start_again();
    // While the new process takes over its own lease, there is no leader for a moment.
    assert!(!follower.ready().unwrap().starts_with("leads"), "no other one may take the lease");
    leader.eventually("the node to come back", |leader| leader.get("/v1/status").1["nodes"][0]["connected"] == true);
    follower.eventually("the follower to reach it", |follower| follower.get("/v1/status").0 == 200);
}
