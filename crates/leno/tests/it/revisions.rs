//! Revisions from the view of a user of `leno up`: changing documents, real processes, real
//! sockets.

mod declared;

use leno_testkit::control::text;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{curl, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// A longer deadline, so that a busy machine does not make sidecars refuse.
const PATIENT: &str = "  sidecar: {deadline: 100ms}";

/// The echo function with this environment, and further fields.
fn documents(environment: &str, fields: &str) -> String {
    echo_function("echo", &format!("  expose: [{{hosts: [\"*\"], path: /}}]\n  env: {{{environment}}}\n{fields}"))
        + &policy("open", "echo", &format!("{ALLOW_ALL}\n{PATIENT}"))
}

/// One connection to the gateway.
struct Client(BufReader<TcpStream>);

/// A response.
struct Answer {
    status: u16,
    /// The variable `VERSION` of the instance.
    version: String,
}

impl Client {
    fn new(mesh: &Mesh) -> Self {
        Self(BufReader::new(TcpStream::connect(("127.0.0.1", mesh.ports.gateway)).unwrap()))
    }

    /// A request that clients and proxies must not repeat.
    fn post(&mut self, headers: &str) -> Answer {
        let request = format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n{headers}\r\nbody");
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
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        Answer { status, version: body["environment"]["VERSION"].as_str().unwrap_or_default().to_owned() }
    }
}

/// The numbers of 1000 requests that versions 1 and 2 got. All must succeed.
fn shares(mesh: &Mesh) -> [usize; 2] {
    let mut client = Client::new(mesh);
    let mut counts = [0; 2];
    for _ in 0..1000 {
        let answer = client.post("");
        assert_eq!(answer.status, 200);
        counts[usize::from(answer.version == "2")] += 1;
    }
    counts
}

#[test]
fn traffic_is_divided_by_percentage_tag_and_header() {
    let mut mesh = Mesh::start(&documents("VERSION: 1", ""));
    let mut client = Client::new(&mesh);
    assert_eq!(client.post("").version, "1");
    assert_eq!(mesh.instances("test/echo")[0]["instance"], "test/echo-00001/1");

    let traffic = "  traffic:\n  - {revision: echo-00001, percent: 70}\n  \
                   - {latest: true, percent: 30, tag: new, headers: {x-group: staff}}";
    mesh.write(&documents("VERSION: 2", traffic));
    mesh.wait_for("the tag to be known", |_| client.post("leno-tag: new\r\n").version == "2");
    let [old, new] = shares(&mesh);
    // Seven standard deviations of 1000 such decisions are 10 percentage points.
    assert!((200..400).contains(&new), "{old} to {new}");
    for _ in 0..20 {
        assert_eq!(client.post("leno-tag: new\r\n").version, "2");
        assert_eq!(client.post("x-group: staff\r\n").version, "2");
    }
    let of_new = mesh.log_lines("revision", "echo-00002", new);
    assert_eq!(of_new[0]["target"], "test/echo");

    // A revision that does not exist is refused, and the configuration in force stays.
    mesh.write(&documents("VERSION: 3", "  traffic: [{revision: echo-00009, percent: 100}]"));
    mesh.wait_for("the refusal", |mesh| mesh.output().iter().any(|line| line.contains("has no revision `echo-00009`")));
    assert_eq!(client.post("leno-tag: new\r\n").version, "2");

    // All traffic goes back to the first revision, while requests continue. The second one ends.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let mut client = Client::new(&mesh);
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        assert_eq!(client.post("").status, 200);
                    }
                })
            })
            .collect();
        mesh.write(&documents("VERSION: 2", "  traffic: [{revision: echo-00001, percent: 100}]"));
        while !clients.iter().any(|client| client.is_finished())
            && mesh.instances("test/echo").iter().any(|instance| instance["instance"] != "test/echo-00001/1")
        {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    assert_eq!(shares(&mesh), [1000, 0]);
}

#[test]
fn without_the_new_fields_a_new_revision_replaces_the_old_one_when_it_is_ready() {
    let mut mesh = Mesh::start(&documents("VERSION: 1", ""));
    let mut client = Client::new(&mesh);
    assert_eq!(client.post("").version, "1");
    mesh.write(&documents("VERSION: 2", ""));
    mesh.wait_for("the second version", |_| {
        let answer = client.post("");
        assert_eq!(answer.status, 200);
        answer.version == "2"
    });
    assert!(mesh.instances("test/echo").iter().any(|row| row["instance"].as_str().unwrap().contains("echo-00002/")));
    // The new revision never becomes ready, and the old one stays.
    mesh.write(&documents("VERSION: 3, PORT_IS: wrong", "  readiness: {http: /status/500}\n  timeouts: {startup: 1s}"));
    mesh.wait_for("the third to be tried", |mesh| {
        mesh.instances("test/echo").iter().any(|row| row["instance"].as_str().unwrap().contains("echo-00003/"))
    });
    for _ in 0..50 {
        assert_eq!(client.post("").version, "2");
    }

    // Every view says which one serves, and the alert has the way back.
    let row = |name: &str| revision(&mesh, name).unwrap();
    let failing = eventually("the reason", || Some(row("echo-00003")).filter(|row| row["problem"].is_string()));
    let shares = |row: &Value| (row["percent"].as_u64(), row["served"].as_u64());
    assert_eq!([&failing, &row("echo-00002")].map(shares), [(Some(100), Some(0)), (Some(0), Some(100))], "{failing}");
    let serves = "; 100 % still served by echo-00002";
    let problem = failing["problem"].as_str().unwrap();
    assert!(problem.starts_with("cannot start: ") && problem.ends_with(serves), "{problem}");
    assert_eq!(row("echo-00002")["problem"], Value::Null);
    for listing in
        [&["get", "functions"][..], &["get", "revisions"], &["describe", "function", "test/echo"], &["top", "--once"]]
    {
        let shown = text(&mesh.leno(listing));
        assert!(shown.contains("cannot start: ") && shown.contains(serves), "{listing:?}: {shown}");
    }
    let alerts = mesh.admin("/alerts").json();
    let alert = alerts.as_array().unwrap().iter().find(|alert| alert["kind"] == "failing").unwrap();
    let condition = alert["text"].as_str().unwrap();
    assert!(condition.starts_with("revision echo-00003 cannot start: ") && condition.ends_with(serves), "{alert}");
    let back = "leno promote test/echo echo-00002";
    assert!(alert["fix"].as_str().unwrap().contains(back), "{alert}");
    // The command works: here it prints the change of the document.
    let promoted = text(&mesh.leno(&back.split(' ').skip(1).collect::<Vec<_>>()));
    assert!(promoted.contains("revision: echo-00002"), "{promoted}");
    let traffic = "  traffic: [{revision: echo-00002, percent: 100}]";
    mesh.write(&documents(
        "VERSION: 3, PORT_IS: wrong",
        &format!("  readiness: {{http: /status/500}}\n  timeouts: {{startup: 1s}}\n{traffic}"),
    ));
    eventually("the second to have its share again", || {
        (shares(&row("echo-00002")) == (Some(100), Some(100))).then_some(())
    });
}

const ROLLOUT: &str = "  rollout: {steps: [20, 50], interval: 1s, maxErrorRate: 10, minRequests: 20}";

/// Sends requests from several clients until `done`. All must get a response. Returns their
/// statuses and versions.
fn load(mesh: &mut Mesh, what: &str, mut done: impl FnMut(&mut Mesh) -> bool) -> Vec<Answer> {
    let stop = AtomicBool::new(false);
    let clients: Vec<_> = (0..3).map(|_| Client::new(mesh)).collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        answers.push(client.post(""));
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    answers
                })
            })
            .collect();
        mesh.wait_for(what, |mesh| done(mesh) || clients.iter().any(|client| client.is_finished()));
        stop.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// The row of `leno get revisions`.
fn revision(mesh: &Mesh, name: &str) -> Option<Value> {
    let listed = mesh.leno(&["get", "revisions", "--json"]);
    let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    rows.into_iter().find(|row| row["revision"] == name)
}

#[test]
fn a_good_revision_takes_over_step_by_step_and_a_bad_one_is_rolled_back() {
    let mut mesh = Mesh::start(&documents("VERSION: 1", ROLLOUT));
    assert_eq!(Client::new(&mesh).post("").version, "1");

    mesh.write(&documents("VERSION: 2", ROLLOUT));
    let answers = load(&mut mesh, "the second revision to have everything", |mesh| {
        revision(mesh, "echo-00002").is_some_and(|row| row["percent"] == 100)
    });
    assert!(answers.iter().all(|answer| answer.status == 200));
    for version in ["1", "2"] {
        assert!(answers.iter().any(|answer| answer.version == version), "both have served");
    }
    let events = mesh.admin("/events").json();
    let steps = events.as_array().unwrap().iter().filter(|row| row["kind"] == "rollout");
    let steps: Vec<_> = steps.map(|row| (row["from"].as_u64(), row["to"].as_u64())).collect();
    assert_eq!(steps, [(Some(20), Some(50)), (Some(50), Some(100))], "{events}");

    mesh.write(&documents("VERSION: 3, STATUS: \"500\"", ROLLOUT));
    let answers = load(&mut mesh, "the third revision to be rolled back", |mesh| {
        revision(mesh, "echo-00003").is_some_and(|row| row["failed"].is_string())
    });
    // Only responses of the bad revision are errors.
    assert!(answers.iter().all(|answer| (answer.status == 500) == (answer.version == "3")));
    assert!(answers.iter().any(|answer| answer.version == "3"));
    let row = revision(&mesh, "echo-00003").unwrap();
    assert!(row["failed"].as_str().unwrap().contains("requests failed"), "{row}");
    mesh.wait_for("its instances to end", |mesh| {
        let instances = mesh.instances("test/echo");
        instances.iter().all(|row| row["instance"].as_str().unwrap().contains("echo-00002/"))
    });
    let mut client = Client::new(&mesh);
    for _ in 0..100 {
        let answer = client.post("");
        assert_eq!((answer.status, answer.version.as_str()), (200, "2"));
    }
    let metrics = mesh.admin("/metrics").body;
    assert!(metrics.contains("leno_autoscaler_ready_instances{function=\"test/echo\",revision=\"echo-00002\"}"));
}

#[test]
fn a_request_that_waits_for_a_revision_which_goes_is_answered_by_another() {
    let mut mesh = Mesh::start(&documents("VERSION: 1", ""));
    assert_eq!(Client::new(&mesh).post("").version, "1");
    let unready = "  readiness: {http: /status/500}\n  timeouts: {startup: 10m}\n";
    let traffic = "  traffic: [{revision: echo-00001, percent: 100}, {latest: true, tag: new}]";
    mesh.write(&documents("VERSION: 2", &format!("{unready}{traffic}")));
    mesh.wait_for("the second revision", |mesh| revision(mesh, "echo-00002").is_some());
    let url = format!("http://127.0.0.1:{}/", mesh.ports.gateway);
    let waiting = std::thread::spawn(move || curl(&url, &["--header", "leno-tag: new"]));
    mesh.wait_for("the request to wait", |mesh| {
        let rows = mesh.admin("/functions").json();
        rows.as_array().unwrap().iter().any(|row| row["function"] == "test/echo" && row["waiting"] == 1)
    });
    mesh.write(&documents("VERSION: 2", &format!("{unready}  traffic: [{{revision: echo-00001, percent: 100}}]")));
    let answer = waiting.join().unwrap();
    assert_eq!((answer.status, &answer.json()["environment"]["VERSION"]), (200, &Value::from("1")), "{answer:?}");
}

#[test]
fn a_start_without_the_named_revisions_gives_their_share_to_the_latest() {
    let traffic = "  traffic:\n  - {revision: echo-00003, percent: 90}\n  - {latest: true, percent: 10}";
    let mesh = Mesh::start(&documents("VERSION: 1", traffic));
    let mut client = Client::new(&mesh);
    for _ in 0..20 {
        let answer = client.post("");
        assert_eq!((answer.status, &*answer.version), (200, "1"));
    }
    let (lost, latest) = (revision(&mesh, "echo-00003").unwrap(), revision(&mesh, "echo-00004").unwrap());
    assert!(lost["failed"].as_str().is_some_and(|reason| reason.contains("of an earlier start")), "{lost}");
    assert_eq!((&lost["percent"], &latest["percent"]), (&Value::from(0), &Value::from(100)));
}
