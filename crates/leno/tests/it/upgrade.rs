//! `leno upgrade`: new processes replace a node and a gateway while they serve clients of every
//! kind.

mod clients;
mod ports;
mod up;
mod volumes;

use clients::{Clients, ENOUGH, connect};
use leno_testkit::cluster::load::Load;
use leno_testkit::cluster::redis::Redis;
use leno_testkit::cluster::restart::RestartedNode;
use leno_testkit::cluster::{MESH, Node, control, control_of, control_with, leno_of_nodes, nodes_of, status};
use leno_testkit::control::Control;
use leno_testkit::mesh::{ALLOW_ALL, echo_function, policy};
use leno_testkit::process::is_running;
use leno_testkit::{Answer, eventually, try_curl};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A front that calls a back; each always has an instance. `more` is in both specs.
fn application(more: &str) -> String {
    let scale = format!("  scale: {{min: 1, max: 4}}\n{more}");
    let front = echo_function("front", &format!("  expose: [{{hosts: [\"*\"], path: /}}]\n  callees: [back]\n{scale}"));
    let back = echo_function("back", &scale);
    let rules = "  authorization: {rules: [{name: front, action: allow, from: [{identities: [test/front]}]}]}";
    format!("{front}{back}{}{}", policy("open", "front", ALLOW_ALL), policy("inner", "back", rules))
}

/// A control plane, a gateway, and a node with the application.
fn start() -> (Control, RestartedNode, RestartedNode) {
    start_with(control(), "")
}

fn start_with(control: Control, more: &str) -> (Control, RestartedNode, RestartedNode) {
    let gateway = RestartedNode::of(Node::join(&control, "edge", &["--only-gateway"]));
    let node = RestartedNode::of(Node::join(&control, "one", &[]));
    control.apply(&application(more));
    eventually("an answer", || gateway.node.get("/call/back/ok").filter(|answer| answer.status == 200));
    let reported = |function: &&str| !nodes_of(&control, function).is_empty();
    eventually("the report", || ["test/front", "test/back"].iter().all(&reported).then_some(()));
    (control, gateway, node)
}

/// A connection that does not carry requests any more.
struct WebSocket(TcpStream);

impl WebSocket {
    fn open(gateway: SocketAddr) -> Self {
        let mut stream = connect(gateway).unwrap();
        let head = "GET /websocket HTTP/1.1\r\nhost: test.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
        let mut open = Self(stream);
        open.echoes("hello");
        open
    }

    fn echoes(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(back, text.as_bytes());
    }

    fn close(mut self) {
        self.0.shutdown(Shutdown::Write).unwrap();
        assert_eq!(self.0.read(&mut [0]).unwrap(), 0);
    }

    fn is_cut_off(&mut self) {
        // A close frame may come first.
        if let Err(error) = self.0.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }
}

/// Queries the control plane's status without a pause. Each time, the node must be connected and
/// have an endpoint.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Watch {
    fn start(control: &Arc<Control>) -> Self {
        let (stop, control) = (Arc::new(AtomicBool::new(false)), control.clone());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut looks = 0;
            while !stopped.load(Ordering::Relaxed) || looks < ENOUGH {
                let (_, status) = control.get("/v1/status");
                for node in status["nodes"].as_array().unwrap() {
                    assert_eq!(node["connected"], Value::Bool(true), "{node}");
                    assert!(node["rejected"].as_array().is_none_or(Vec::is_empty), "{node}");
                }
                for function in ["test/front", "test/back"] {
                    assert!(!nodes_of(&control, function).is_empty(), "{function}: {}", control.get("/v1/status").1);
                }
                // One of the two processes answers the query, unless its stream is replaced
                // meanwhile.
                let (answered, page) = control.get("/v1/logs/test/front");
                let missing: Vec<_> = page["missing"].as_array().into_iter().flatten().collect();
                assert!(
                    answered == 200 && missing.iter().all(|why| why.as_str().unwrap().contains("it is not connected")),
                    "{answered} {page}"
                );
                looks += 1;
            }
            looks
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().unwrap() >= ENOUGH);
    }
}

#[test]
fn no_request_fails_while_a_node_and_a_gateway_are_upgraded_again_and_again() {
    let (control, mut gateway, mut node) = start();
    let control = Arc::new(control);
    let (clients, watch) = (Clients::start(gateway.node.gateway), Watch::start(&control));
    let mut processes = BTreeSet::new();
    for _ in 0..3 {
        processes.insert(node.upgrade());
        processes.insert(gateway.upgrade());
    }
    assert_eq!(processes.len(), 6);
    node.wait();
    gateway.wait();
    watch.stop();
    clients.stop();
    // Only the last process is left.
    for pid in processes.into_iter().filter(|pid| ![node.pid, gateway.pid].contains(&Some(*pid))) {
        eventually("the processes in between to end", || (!is_running(pid)).then_some(()));
    }
    // The new process accepts changes as any node does.
    control.apply(&echo_function("late", "  expose: [{hosts: [late.example], path: /}]\n  scale: {min: 1, max: 1}"));
    control.apply(&policy("late", "late", ALLOW_ALL));
    let late = || try_curl(&format!("http://{}/", gateway.node.gateway), &["--header", "host: late.example"]);
    eventually("a new function", || late().filter(|answer| answer.status == 200));
}

#[test]
fn requests_that_outlive_their_process_end_and_so_do_the_calls_that_they_make() {
    let (control, gateway, node) = start();
    outlive(&control, gateway, node);
}

#[test]
fn requests_of_instances_in_jails_outlive_their_process_too() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let control = control_with(Ipv4Addr::LOCALHOST, &MESH.replace("isolation: process", "isolation: strict"));
    let (control, gateway, node) = start_with(control, &format!("  workingDirectory: {}", folder.path().display()));
    assert_eq!(front(&node)["isolation"], "strict");
    outlive(&control, gateway, node);
}

fn outlive(control: &Control, mut gateway: RestartedNode, mut node: RestartedNode) {
    let ask = |path: &'static str| {
        let gateway = gateway.node.gateway;
        std::thread::spawn(move || try_curl(&format!("http://{gateway}{path}"), &["--max-time", "60"]))
    };
    let before = process_of(&node);
    // The instance answers the second request with a call to another function, after its process
    // has handed over.
    let requests = [ask("/slow/10000"), ask("/later/10000/back/ok")];
    let pausing = || node.log().matches("pausing").count() == 2;
    eventually("both to be under way", || pausing().then_some(()));
    node.upgrade();
    gateway.upgrade();
    assert!(!nodes_of(control, "test/front").is_empty());
    assert!(is_running(before), "it has a request");
    assert_ne!(process_of(&node), before, "each process has instances of its own");
    assert_eq!(status(gateway.node.get("/call/back/ok")), Some(200));
    for request in requests {
        assert_eq!(status(request.join().unwrap()), Some(200), "{}", node.log());
    }
    node.wait();
    gateway.wait();
    eventually("its instances to end with it", || (!is_running(before)).then_some(()));
}

/// The process of the front's instance, outside of its jail if it has one.
fn process_of(node: &RestartedNode) -> u32 {
    front(node)["pid"].as_u64().unwrap() as u32
}

/// The front's instance, in the listing of the node.
fn front(node: &RestartedNode) -> Value {
    let admin = format!("unix:{}", node.node.folder.path().join("admin.sock").display());
    let listed =
        Command::new(leno_of_nodes()).args(["get", "instances", "--json", "--admin", &admin]).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
    let front = rows.iter().find(|row| row["function"] == "test/front").unwrap_or_else(|| panic!("{rows:?}"));
    front.clone()
}

/// The instance that sent the response.
fn instance(answer: Option<Answer>) -> u32 {
    answer.unwrap().json()["pid"].as_u64().unwrap() as u32
}

#[test]
fn a_new_process_that_fails_or_hangs_changes_nothing() {
    let (control, gateway, mut node) = start();
    let control = Arc::new(control);
    let (clients, watch) = (Clients::start(gateway.node.gateway), Watch::start(&control));
    let before = instance(gateway.node.get("/"));
    let refusal = node.refusal(&["--binary", "/bin/false"]);
    assert!(refusal.contains("the node goes on as it is") && refusal.contains("exit status: 1"), "{refusal}");

    // A program that hangs, with a child process.
    let folder = tempfile::tempdir_in(node.node.folder.path()).unwrap();
    let (script, pids) = (folder.path().join("hangs"), folder.path().join("pids"));
    fs::write(&script, format!("#!/bin/sh\nsleep 1000 &\necho $$ $! > {}\nwait\n", pids.display())).unwrap();
    let set = |mode| fs::set_permissions(&script, fs::Permissions::from_mode(mode)).unwrap();
    set(0o755);
    let path = script.to_str().unwrap();
    let refusal = node.refusal(&["--binary", path, "--timeout", "1"]);
    assert!(refusal.contains("was not ready in time"), "{refusal}");
    let left = fs::read_to_string(&pids).unwrap();
    for pid in left.split_whitespace() {
        eventually("what was started to be gone", || (!is_running(pid.parse().unwrap())).then_some(()));
    }
    // A program that sends no valid messages.
    fs::write(&script, "#!/bin/sh\necho 'GET / HTTP/1.1' >&0\nexec sleep 1000\n").unwrap();
    let refusal = node.refusal(&["--binary", path]);
    assert!(refusal.contains("what it says makes no sense"), "{refusal}");
    set(0o757);
    let refusal = node.refusal(&["--binary", path]);
    assert!(refusal.contains("everybody may write to"), "{refusal}");
    let refusal = node.refusal(&["--binary", "/nowhere/leno"]);
    assert!(refusal.contains("/nowhere/leno"), "{refusal}");

    assert_eq!(instance(gateway.node.get("/")), before, "the same instance");
    watch.stop();
    clients.stop();
    // The node can still be upgraded.
    let clients = Clients::start(gateway.node.gateway);
    node.upgrade();
    node.wait();
    clients.stop();
    assert_eq!(status(gateway.node.get("/call/back/ok")), Some(200));
}

#[test]
fn a_rate_limit_holds_over_an_upgrade() {
    let (control, gateway, mut node) = start();
    let limit = "  authorization: {rules: [{name: everything, action: allow}]}\n  rateLimits: [{name: few, requests: 40, per: 1h}]";
    let limited =
        echo_function("limited", "  expose: [{hosts: [limited.example], path: /}]\n  scale: {min: 1, max: 1}");
    control.apply(&format!("{limited}{}", policy("few", "limited", limit)));
    let ask = || status(try_curl(&format!("http://{}/", gateway.node.gateway), &["--header", "host: limited.example"]));
    eventually("the first answer", || (ask() == Some(200)).then_some(()));
    let mut admitted = 1;
    for _ in 0..2 {
        admitted += (0..10).filter(|_| ask() == Some(200)).count();
        node.upgrade();
    }
    assert_eq!(admitted, 21, "nothing was used up by the upgrade");
    admitted += (0..60).filter(|_| ask() == Some(200)).count();
    assert_eq!(admitted, 40, "{}", node.log());
    assert_eq!(ask(), Some(429));
}

#[test]
fn what_redis_counts_holds_over_an_upgrade_and_what_does_not_end_is_cut_off() {
    let redis = Redis::start();
    let fields = format!(
        "  quotas: {{redis: {{address: \"127.0.0.1:{}\", timeout: 2s}}}}\n  limits: {{drainTimeout: 1s}}\n",
        redis.port
    );
    let (control, gateway, mut node) = start_with(control_of(Ipv4Addr::LOCALHOST, &fields), "");
    let limit = "  authorization: {rules: [{name: everything, action: allow}]}\n  rateLimits: [{name: few, requests: 40, per: 24h, algorithm: fixedWindow}]";
    let limited =
        echo_function("limited", "  expose: [{hosts: [limited.example], path: /}]\n  scale: {min: 1, max: 1}");
    control.apply(&format!("{limited}{}", policy("few", "limited", limit)));
    let ask = || status(try_curl(&format!("http://{}/", gateway.node.gateway), &["--header", "host: limited.example"]));
    eventually("the first answer", || (ask() == Some(200)).then_some(()));
    let mut admitted = 1 + (0..10).filter(|_| ask() == Some(200)).count();
    assert_eq!(admitted, 11);
    let mut open = WebSocket::open(gateway.node.gateway);
    // The old process returns the tokens that it holds ahead, or they are lost. No token admits two
    // requests.
    let clients = Clients::start(gateway.node.gateway);
    node.upgrade();
    admitted += (0..60).filter(|_| ask() == Some(200)).count();
    assert!((12..=40).contains(&admitted), "{admitted}");
    node.wait();
    eventually("all to be used", || {
        admitted += (0..10).filter(|_| ask() == Some(200)).count();
        assert!(admitted <= 40, "{admitted}");
        (ask() == Some(429)).then_some(())
    });
    clients.stop();
    open.is_cut_off();
}

#[test]
fn a_websocket_outlives_its_processes_and_a_rotation_waits_until_they_have_ended() {
    let control = control_of(Ipv4Addr::LOCALHOST, "  limits: {drainTimeout: 10m}\n");
    let (control, mut gateway, mut node) = start_with(control, "");
    let mut open = WebSocket::open(gateway.node.gateway);
    node.upgrade();
    gateway.upgrade();
    open.echoes("after an upgrade");
    let refusal = node.refusal(&["--timeout", "1"]);
    assert!(refusal.contains("connections of the parent process are still open"), "{refusal}");

    let load = Load::start_at(&gateway.node, "/call/back/ok");
    let rotation = control.begin(&["ca", "rotate"]);
    let waiting = || {
        let (_, authority) = control.get("/v1/authority");
        let waiting = authority["waiting"].as_object()?;
        let waits =
            |node| waiting.get(node).and_then(Value::as_str).is_some_and(|why| why.contains("the parent process"));
        (waits("one") && waits("edge")).then_some(())
    };
    eventually("the old processes to be waited for", waiting);
    open.echoes("while it waits");
    open.close();
    node.wait();
    gateway.wait();
    let rotation = rotation.wait_with_output().unwrap();
    assert!(rotation.status.success(), "{rotation:?}\n{}\n{}", node.log(), gateway.log());
    load.stop();
    // The files in the state folder belong to the current process.
    let roots = |node: &RestartedNode| fs::read_to_string(node.node.folder.path().join("state/roots.pem")).unwrap();
    assert_eq!(roots(&node), roots(&gateway));
    assert_eq!(roots(&node).matches("BEGIN CERTIFICATE").count(), 1);
    // The next process takes the phase of the rotation from it.
    let load = Load::start_at(&gateway.node, "/call/back/ok");
    let rotation = control.begin(&["ca", "rotate"]);
    node.upgrade();
    gateway.upgrade();
    let rotation = rotation.wait_with_output().unwrap();
    assert!(rotation.status.success(), "{rotation:?}\n{}\n{}", node.log(), gateway.log());
    load.stop();
}

/// The old process has the exchange. The new one notifies it of withdrawn permissions.
#[test]
fn what_is_withdrawn_is_closed_in_the_old_process_too() {
    let control = control_of(Ipv4Addr::LOCALHOST, "  limits: {drainTimeout: 10m}\n");
    let (control, gateway, mut node) = start_with(control, "");
    let mut open = WebSocket::open(gateway.node.gateway);
    node.upgrade();
    open.echoes("after an upgrade");
    control.apply(&application("").replace("name: everything, action: allow", "name: nobody, action: deny"));
    open.is_cut_off();
    node.wait();
}

/// The old process gets no more updates of permissions.
#[test]
fn what_is_open_in_the_old_process_is_closed_when_the_new_one_ends() {
    let control = control_of(Ipv4Addr::LOCALHOST, "  limits: {drainTimeout: 10m}\n");
    let (_control, gateway, mut node) = start_with(control, "");
    let mut open = WebSocket::open(gateway.node.gateway);
    let new = node.upgrade();
    open.echoes("after an upgrade");
    kill_process(Pid::from_raw(new as i32).unwrap(), Signal::KILL).unwrap();
    open.is_cut_off();
    node.wait();
}

#[test]
fn what_cannot_be_handed_over_is_said() {
    let (control, gateway, node) = start();
    let job = "apiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {name: long, namespace: test}\nspec:\n  command: [sleep, \"1000\"]\n";
    control.apply(job);
    eventually("the job to run", || {
        let (_, status) = control.get("/v1/status");
        (status["jobs"][0]["state"] == "running").then_some(())
    });
    let refusal = node.refusal(&[]);
    assert!(refusal.contains("the job test/long is running"), "{refusal}");
    assert_eq!(status(gateway.node.get("/")), Some(200));
}
