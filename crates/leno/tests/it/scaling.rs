//! Scaling from the view of a user of `leno up`: real processes, real sockets.

use leno_testkit::curl;
use leno_testkit::mesh::{self, ALLOW_ALL, Mesh, echo_function, policy};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const EXPOSED: &str = "  expose: [{hosts: [\"*\"], path: /}]";

/// A longer deadline, so that a busy machine does not make sidecars refuse.
const PATIENT: &str = "  sidecar: {deadline: 100ms}";

/// Allows all requests.
fn open(function: &str) -> String {
    policy(&format!("{function}-open"), function, &format!("{ALLOW_ALL}\n{PATIENT}"))
}

/// One connection to the gateway.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(mesh: &Mesh) -> Self {
        Self::to(mesh.ports.gateway)
    }

    fn to(port: u16) -> Self {
        Self(BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap()))
    }

    /// A request that clients and proxies must not repeat; returns the status.
    fn post(&mut self, path: &str) -> u16 {
        let request = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nbody");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                None if line.is_empty() => break,
                None => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(_) => {}
            }
        }
        self.0.read_exact(&mut vec![0; length]).unwrap();
        status
    }
}

/// The row of `leno get functions`.
fn function(mesh: &Mesh, name: &str) -> Value {
    let rows = mesh.admin("/functions").json();
    rows.as_array().unwrap().iter().find(|row| row["function"] == name).unwrap().clone()
}

#[test]
fn a_flood_of_denied_requests_starts_nothing_and_queues_nothing() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 400;
    let narrow = policy(
        "narrow",
        "echo",
        &format!("  authorization: {{rules: [{{name: one, to: [{{paths: [/allowed]}}]}}]}}\n{PATIENT}"),
    );
    let mesh = Mesh::start(&(echo_function("echo", EXPOSED) + &narrow));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::new(&mesh);
                for _ in 0..REQUESTS {
                    // On a machine that is too busy for its sandbox, the sidecar also denies
                    // because of its deadline.
                    assert!(matches!(client.post("/denied"), 403 | 500));
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(function(&mesh, "test/echo")["waiting"], 0);
        }
    });
    let row = function(&mesh, "test/echo");
    assert_eq!((&row["desired"], &row["reason"]), (&Value::from(0), &Value::Null), "{row}");
    assert_eq!(mesh.admin("/events").json(), Value::Array(vec![]));
    assert!(mesh.instances("test/echo").is_empty());
    let metrics = mesh.metrics(&["leno_decisions_total{function=\"test/echo\""]);
    assert!(!metrics.contains("leno_autoscaler_desired_instances{"), "{metrics}");

    // The same function starts for an allowed request.
    assert_eq!(Client::new(&mesh).post("/allowed"), 200);
    let events = mesh.admin("/events").json();
    assert_eq!((&events[0]["from"], &events[0]["to"]), (&Value::from(0), &Value::from(1)), "{events}");
    assert_eq!(events[0]["reason"], "a request waits");
    let metrics = mesh.admin("/metrics").body;
    for line in [
        "leno_autoscaler_desired_instances{function=\"test/echo\",revision=\"echo-00001\"} 1",
        "leno_autoscaler_ready_instances{function=\"test/echo\",revision=\"echo-00001\"} 1",
        "leno_autoscaler_decisions_total{function=\"test/echo\",revision=\"echo-00001\",direction=\"up\"} 1",
    ] {
        assert!(metrics.contains(line), "no {line}: {metrics}");
    }
    let table = String::from_utf8(mesh.leno(&["get", "events"]).stdout).unwrap();
    assert!(table.contains("a request waits"), "{table}");
}

#[test]
fn the_callers_identity_survives_the_buffering_of_a_cold_start() {
    const REQUESTS: usize = 6;
    let documents = echo_function("caller", &format!("{EXPOSED}\n  callees: [callee]"))
        + &open("caller")
        + &echo_function("callee", "  concurrency: 1\n  scale: {max: 2}")
        + &policy(
            "callee-policy",
            "callee",
            &format!("  authorization: {{rules: [{{from: [{{identities: [test/caller]}}]}}]}}\n{PATIENT}"),
        );
    // The callee becomes ready when the test allows it.
    let program = format!("command: [\"{}\"]\n  concurrency: 1", mesh::echo().display());
    let gated = format!(
        "command: [sh, -c, \"while [ ! -e gate ]; do sleep 0.02; done; exec {}\"]\n  concurrency: 1",
        mesh::echo().display()
    );
    assert!(documents.contains(&program));
    let mut mesh = Mesh::start(&documents.replace(&program, &gated));
    let calls: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let url = format!("http://127.0.0.1:{}/call/callee/{number}", mesh.ports.gateway);
            std::thread::spawn(move || curl(&url, &[]))
        })
        .collect();
    mesh.wait_for("all requests to be buffered", |mesh| function(mesh, "test/callee")["waiting"] == REQUESTS);
    let row = function(&mesh, "test/callee");
    assert_eq!((&row["desired"], &row["ready"]), (&Value::from(2), &Value::from(0)), "{row}");
    std::fs::write(mesh.folder.path().join("gate"), "").unwrap();
    for call in calls {
        let answer = call.join().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let identity = &answer.json()["headers"]["x-forwarded-client-cert"][0];
        let expected = "By=spiffe://test.example/ns/test/sa/callee;URI=spiffe://test.example/ns/test/sa/caller";
        assert_eq!(identity, expected);
    }
    let lines = mesh.log_lines("target", "test/callee", REQUESTS);
    let known = |line: &&Value| line["source"] == "spiffe://test.example/ns/test/sa/caller";
    assert!(lines.iter().filter(known).count() >= REQUESTS, "{lines:?}");
}

#[test]
fn no_request_fails_while_the_function_scales_down_and_up() {
    const CLIENTS: usize = 4;
    const CYCLES: usize = 6;
    let scaled = |count: u32| {
        echo_function("echo", &format!("{EXPOSED}\n  scale: {{min: {count}, max: {count}}}")) + &open("echo")
    };
    let mut mesh = Mesh::start(&scaled(5));
    mesh.wait_for("five instances", |mesh| function(mesh, "test/echo")["ready"] == 5);
    let (port, stop, served) = (mesh.ports.gateway, Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            std::thread::spawn(move || {
                let mut client = Client::to(port);
                while !stop.load(Ordering::SeqCst) {
                    // Some requests take long enough to be open when their instance starts to
                    // drain.
                    let path = if number % 2 == 0 { "/quick" } else { "/slow/20" };
                    assert_eq!(client.post(path), 200);
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..CYCLES {
        for count in [1, 5] {
            mesh.write(&scaled(count));
            mesh.wait_for("the new number of instances", |mesh| function(mesh, "test/echo")["ready"] == count);
            let before = served.load(Ordering::SeqCst);
            mesh.wait_for("some requests", |_| {
                served.load(Ordering::SeqCst) > before + 10 || clients.iter().any(|client| client.is_finished())
            });
        }
    }
    stop.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_full_queue_is_told_with_the_time_to_come_back() {
    let documents =
        echo_function("echo", &format!("{EXPOSED}\n  concurrency: 1\n  queue: 1\n  scale: {{max: 1}}")) + &open("echo");
    let mut mesh = Mesh::start(&documents);
    assert_eq!(mesh.get("/").status, 200);
    let url = format!("http://127.0.0.1:{}/slow/3000", mesh.ports.gateway);
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || curl(&url, &[]).status)
        })
        .collect();
    mesh.wait_for("one to wait", |mesh| function(mesh, "test/echo")["waiting"] == 1);
    let refused = mesh.get("/");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
    for slow in slow {
        assert_eq!(slow.join().unwrap(), 200);
    }
}

#[test]
fn instances_of_a_node_that_was_killed_are_ended_by_the_next() {
    // A jail ends with its node.
    let documents = echo_function("echo", &format!("{EXPOSED}\n  isolation: process")) + &open("echo");
    let mut killed = Mesh::start(&documents);
    assert_eq!(killed.get("/").status, 200);
    let pid = killed.instances("test/echo")[0]["pid"].as_u64().unwrap();
    let runs = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
    };
    let grouped = !killed.output().iter().any(|line| line.contains("no control groups for instances"));
    killed.kill();
    assert!(runs());
    let mut next = Mesh::start(&documents);
    if grouped {
        next.wait_for("the instance to be ended", |_| !runs());
    } else {
        // Without cgroup v2, the node cannot make groups.
        assert!(std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    }
}
