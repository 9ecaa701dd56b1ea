//! `leno up` from a user's view: real processes, real sockets, real clients.

mod hosts;

use leno_testkit::curl;
use leno_testkit::mesh::{self, ALLOW_ALL, Mesh, echo_function, first_answer, policy};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

fn public_echo() -> String {
    echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]") + &policy("open", "echo", ALLOW_ALL)
}

#[test]
fn carries_a_request_and_keeps_its_record() {
    let mut mesh = Mesh::start(&public_echo());
    let answer = mesh.curl("/hello?x=1", &["--data", "body of the request"]);
    assert_eq!(answer.status, 200, "{answer:?}");
    let echoed = answer.json();
    assert_eq!(echoed["method"], "POST");
    assert_eq!(echoed["path"], "/hello?x=1");
    assert_eq!(echoed["length"], 19);

    let id = answer.header("x-request-id").unwrap().to_owned();
    let line = &mesh.log_lines("request_id", &id, 1)[0];
    assert_eq!(line["verdict"], "allow", "{line}");
    assert_eq!(line["rule"], "open/authorization/everything", "{line}");
    assert_eq!(line["target"], "test/echo", "{line}");
    assert_eq!(line["path"], "/hello", "{line}");

    let text = mesh.explain(&id);
    assert!(text.contains("open/authorization/everything"), "{text}");

    let metrics = mesh.metrics(&["istio_requests_total{"]);
    // At least four resources (mesh, bundle, function configuration, role of the node) in at least
    // one message.
    let counted = |name: &str| {
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&format!("leno_control_{name}_total{{node=\"local\"}} ")));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("no {name}: {metrics}"))
    };
    assert!(counted("messages") >= 1 && counted("resources") >= 4 && counted("bytes") > 500, "{metrics}");
}

#[test]
fn the_service_manager_is_told_when_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let said = || {
        let mut state = [0; 64];
        let length = manager.recv(&mut state).expect("a state");
        String::from_utf8_lossy(&state[..length]).into_owned()
    };
    let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    leno.env("NOTIFY_SOCKET", &socket);
    let mesh = Mesh::start_with_command(leno, "", &public_echo(), |_| ());
    assert_eq!(said(), "READY=1");
    drop(mesh);
    assert_eq!(said(), "STOPPING=1");
    let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    leno.args(["control", "--api", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data"]);
    let mut control = leno.arg(folder.path().join("data")).env("NOTIFY_SOCKET", &socket).spawn().unwrap();
    assert_eq!(said(), "READY=1");
    control.kill().unwrap();
    control.wait().unwrap();
}

/// A regression test: the gateway answered 404 for some milliseconds, for functions that it was
/// about to expose.
#[test]
fn the_first_answer_is_by_the_configuration() {
    for _ in 0..3 {
        let mut first = None;
        let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
        let _mesh = Mesh::start_with_command(leno, "", &public_echo(), |folder| {
            let document = std::fs::read_to_string(folder.join("mesh.yaml")).unwrap();
            let (_, gateway) = document.split_once("http: \"").unwrap();
            first = Some(first_answer(gateway.split_once('"').unwrap().0.parse().unwrap()));
        });
        assert_eq!(first.unwrap().join().unwrap(), 200);
    }
}

#[test]
fn a_denied_request_starts_no_instance_and_says_why() {
    let documents = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
        + &policy(
            "narrow",
            "echo",
            "  authorization: {rules: [{name: read-only, to: [{methods: [GET], paths: [/public/*]}]}]}",
        );
    let mut mesh = Mesh::start(&documents);
    let mut last = String::new();
    for _ in 0..50 {
        let answer = mesh.get("/private");
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(!answer.body.contains("read-only"), "the client is told which rules there are: {answer:?}");
        last = answer.header("x-request-id").unwrap().to_owned();
    }
    assert!(mesh.instances("test/echo").is_empty(), "a denied request started an instance");
    let line = &mesh.log_lines("request_id", &last, 1)[0];
    assert_eq!((line["verdict"].as_str(), line["default"].as_bool()), (Some("deny"), Some(true)), "{line}");
    assert_eq!(line["rule"], "narrow/authorization/read-only", "{line}");
    assert!(line["clause"].as_str().unwrap().contains("path"), "{line}");

    assert_eq!(mesh.get("/public/a").status, 200);
    assert_eq!(mesh.instances("test/echo").len(), 1);
}

#[test]
fn a_function_without_authorization_refuses_everything() {
    let mesh = Mesh::start(&echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]"));
    assert_eq!(mesh.get("/").status, 403);
    assert!(mesh.instances("test/echo").is_empty());
}

fn caller_and_callee() -> String {
    echo_function("caller", "  expose: [{hosts: [\"*\"], path: /}]\n  concurrency: 1\n  callees: [callee]")
        + &policy("caller-open", "caller", &format!("{ALLOW_ALL}\n  tracing: {{sampling: 100}}"))
        + &echo_function("callee", "")
        + &policy(
            "callee-policy",
            "callee",
            "  authorization: {rules: [{name: from-caller, from: [{identities: [test/caller]}], to: [{paths: [/ok]}]}]}\n  tracing: {sampling: 100}",
        )
        + &echo_function("stranger", "  expose: [{hosts: [stranger.example], path: /}]")
        + &policy("stranger-open", "stranger", ALLOW_ALL)
}

/// The same cases for each path that a call between two functions of this node can take.
fn calls_between_functions(mesh: &mut Mesh) {
    let answer = mesh.get("/call/callee/ok");
    assert_eq!(answer.status, 200, "{answer:?}");
    // The caller copies no header. Its outbound sidecar knows to which request the call belongs.
    let id = answer.header("x-request-id").unwrap().to_owned();
    let trace = mesh.log_lines("request_id", &id, 1)[0]["trace_id"].as_str().unwrap().to_owned();
    let lines = mesh.log_lines("trace_id", &trace, 3);
    let inbound = lines.iter().find(|line| line["target"] == "test/callee" && line["direction"] == "inbound").unwrap();
    assert_eq!(inbound["source"], "spiffe://test.example/ns/test/sa/caller", "{inbound}");

    assert_eq!(mesh.get("/call/callee/forbidden").status, 403, "the callee's policy");
    assert_eq!(mesh.get("/call/stranger/ok").status, 403, "not among the caller's callees");
    let from_stranger = mesh.curl("/call/callee/ok", &["--header", "host: stranger.example"]);
    assert_eq!(from_stranger.status, 403, "a stranger has no callees: {from_stranger:?}");
}

#[test]
fn calls_are_judged_on_both_sides_by_direct_hand_over() {
    calls_between_functions(&mut Mesh::start(&caller_and_callee()));
}

#[test]
fn calls_are_judged_on_both_sides_over_mutual_tls() {
    calls_between_functions(&mut Mesh::start_with("  mtls: {sameNode: always}\n", &caller_and_callee()));
}

#[test]
fn the_outbound_sidecar_wants_proof_of_identity() {
    let mesh = Mesh::start(&caller_and_callee());
    assert_eq!(mesh.get("/call/callee/ok").status, 200);
    let url = "http://callee/ok";
    let proxy = format!("http://127.0.0.1:{}", mesh.ports.outbound);
    let through = |proxy: &str| curl(url, &["--noproxy", "", "--proxy", proxy]).status;
    assert_eq!(through(&proxy), 407, "no credential");
    let environment = mesh.get("/environment").json()["environment"].clone();
    let credential = environment["HTTP_PROXY"].as_str().unwrap().to_owned();
    let secret = credential.rsplit_once('@').unwrap().0.rsplit_once(':').unwrap().1;
    assert_eq!(through(&credential.replace(secret, "guess")), 407, "a name without its secret");
    assert_eq!(mesh.get("/call/callee/ok").status, 200, "the instance's own credential");
    assert_eq!(through(&credential), 403, "the same credential in the hands of another process");
    mesh.metrics(&["leno_unproven_connections_total{function=\"test/caller\",end=\"caller\"} 1"]);
    assert!(mesh.line("a credential is refused").contains("`curl`"));
    assert!(!mesh.output().iter().any(|line| line.contains(secret)), "a log line holds a credential");
}

#[test]
fn changes_are_applied_live_and_bad_ones_refused() {
    let mut mesh = Mesh::start(&public_echo());
    assert_eq!(mesh.get("/a").status, 200);

    mesh.write(&public_echo().replace("name: everything, action: allow", "name: everything, action: alow"));
    mesh.wait_for("the refusal of a bad change", |mesh| {
        mesh.output().iter().any(|line| line.contains("app.yaml") && line.contains("alow"))
    });
    assert_eq!(mesh.get("/a").status, 200, "the old configuration stays");

    mesh.write(&public_echo().replace("name: everything, action: allow", "name: nothing, action: deny"));
    mesh.wait_for("the change to be applied", |mesh| mesh.get("/a").status == 403);
}

#[test]
fn edits_of_the_mesh_document_are_in_force_or_refused() {
    let mut mesh = Mesh::start(&public_echo());
    let long = format!("x-long: {}", "a".repeat(3000));
    assert_eq!(mesh.curl("/a", &["-H", &long]).status, 200);
    mesh.write_mesh("  limits: {headBytes: 2048}\n");
    mesh.wait_for("the limit", |mesh| mesh.curl("/a", &["-H", &long]).status == 431);

    mesh.write_mesh("  limits: {headBytes: 8192}\n  tracing: {otlp: \"http://127.0.0.1:9\"}\n");
    mesh.wait_for("the refusal", |mesh| {
        let refused = |line: &String| line.contains("mesh.yaml spec.tracing.otlp: needs a restart");
        mesh.output().iter().any(refused)
    });
    assert_eq!(mesh.curl("/a", &["-H", &long]).status, 431, "nothing of a change that is refused is in force");
}

/// A dangling link to a rule does not remove the rule.
#[test]
fn a_rule_does_not_vanish_with_what_its_link_leads_to() {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut mesh = Mesh::start(&public_echo());
    let target = elsewhere.path().join("deny");
    let rule = "  authorization: {rules: [{name: never, action: deny, to: [{paths: [/a]}]}]}\n";
    std::fs::write(&target, mesh::policy("deny", "echo", rule)).unwrap();
    std::os::unix::fs::symlink(&target, mesh.folder.path().join("deny.yaml")).unwrap();
    mesh.wait_for("the rule", |mesh| mesh.get("/a").status == 403);
    std::fs::remove_file(&target).unwrap();
    mesh.wait_for("the refusal", |mesh| {
        mesh.output().iter().any(|line| line.contains("deny.yaml: is a link to") && line.contains("which is not there"))
    });
    assert_eq!(mesh.get("/a").status, 403);
    let checked = mesh.leno(&["check", mesh.folder.path().to_str().unwrap()]);
    assert!(!checked.status.success());
}

/// A long drain timeout, for a busy machine.
const PATIENT: &str = "  limits: {drainTimeout: 60s}\n";

/// A policy for these functions.
fn everybody(functions: &str) -> String {
    policy("everybody", functions, ALLOW_ALL)
}

/// One change removes a caller and its callee, while requests are in the one, in the other, and
/// between them.
fn removed_while_at_work(mesh: &str) {
    let caller = "  expose: [{hosts: [\"*\"], path: /}]\n  concurrency: 1\n  callees: [callee]";
    let documents = echo_function("caller", caller) + &echo_function("callee", "") + &everybody("caller, callee");
    let public = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]") + &everybody("echo");
    let mut mesh = Mesh::start_with(mesh, &documents);
    assert_eq!(mesh.get("/call/callee/ok").status, 200);
    // The caller takes one request at a time: some of several requests wait for another instance.
    let url = format!("http://127.0.0.1:{}/later/2500/callee/ok", mesh.ports.gateway);
    let requests: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn({
                let url = url.clone();
                move || curl(&url, &[])
            })
        })
        .collect();
    mesh.wait_for("a request with the caller", |mesh| mesh.output().iter().any(|line| line.contains("pausing")));
    mesh.write(&public);
    mesh.wait_for("the change", |mesh| mesh.output().iter().any(|line| line.contains("functions=1")));
    for request in requests {
        let answer = request.join().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    mesh.wait_for("the instances to end", |mesh| {
        mesh.instances("test/caller").is_empty() && mesh.instances("test/callee").is_empty()
    });
    assert!(mesh.get("/after").json()["path"] == "/after", "what there is now serves");
}

#[test]
fn a_caller_and_its_callee_that_are_removed_end_what_they_began() {
    removed_while_at_work(PATIENT);
}

#[test]
fn so_they_do_over_mutual_tls() {
    removed_while_at_work(&format!("{PATIENT}  mtls: {{sameNode: always}}\n"));
}

#[test]
fn drains_on_sigterm() {
    let mut mesh = Mesh::start(&public_echo());
    assert_eq!(mesh.get("/warm").status, 200);
    let pid = mesh.instances("test/echo")[0]["pid"].as_u64().unwrap();
    let url = format!("http://127.0.0.1:{}/slow/1500", mesh.ports.gateway);
    let slow = std::thread::spawn(move || curl(&url, &[]));
    mesh.wait_for("the slow request to be under way", |mesh| mesh.output().iter().any(|line| line.contains("pausing")));
    mesh.terminate();
    assert_eq!(slow.join().unwrap().status, 200, "a request under way ends");
    assert!(mesh.wait().success());
    let alive = Command::new("kill").args(["-0", &pid.to_string()]).output().unwrap();
    assert!(!alive.status.success(), "the instance outlived leno");
}

#[test]
fn an_instance_that_crashes_is_replaced() {
    let mut mesh = Mesh::start(&public_echo());
    let before = mesh.get("/").json()["pid"].clone();
    let crashed = mesh.get("/crash");
    assert!(crashed.status >= 500, "{crashed:?}");
    mesh.wait_for("another instance", |mesh| {
        let answer = mesh.get("/");
        answer.status == 200 && answer.json()["pid"] != before
    });
}

#[test]
fn speaks_http2_by_prior_knowledge() {
    let mesh = Mesh::start(&public_echo());
    let answer = mesh.curl("/h2", &["--http2-prior-knowledge", "--data", "x"]);
    assert_eq!((answer.status, answer.json()["length"].as_u64()), (200, Some(1)));
}

#[test]
fn check_finds_what_is_wrong_and_names_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.yaml");
    std::fs::write(&file, public_echo()).unwrap();
    let check = || Command::new(env!("CARGO_BIN_EXE_leno")).arg("check").arg(folder.path()).output().unwrap();
    let good = check();
    assert!(good.status.success(), "{good:?}");

    std::fs::write(&file, public_echo().replace("expose:", "exposed:")).unwrap();
    let bad = check();
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
    let words = String::from_utf8(bad.stderr).unwrap();
    assert!(words.contains("app.yaml:7") && words.contains("exposed") && words.contains("expose"), "{words}");
}

#[test]
fn wrong_arguments_and_missing_nodes_are_told_apart() {
    let run = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_leno")).args(arguments).output().unwrap();
    assert_eq!(run(&["up"]).status.code(), Some(2));
    assert_eq!(run(&["check", "no-such-folder"]).status.code(), Some(2));
    let nobody = run(&["get", "functions", "--admin", "unix:/nowhere/admin.sock"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8(nobody.stderr).unwrap().contains("is `leno up` running"));
    assert!(run(&["--help"]).status.success());
}

#[test]
fn doubts_are_told_and_stop_nothing() {
    let doubtful = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
        + &policy(
            "open",
            "echo",
            "  authorization: {rules: [{name: all}, {name: users, from: [{requestPrincipals: [\"*\"]}]}]}",
        );
    let (shadowed, tokens) = ("`open/authorization/all` allows before it", "no policy of `test/echo` looks for tokens");
    let mut mesh = Mesh::start(&doubtful);
    assert_eq!(mesh.get("/").status, 200);
    let said = |mesh: &Mesh, what: &str| mesh.output().iter().filter(|line| line.contains(what)).count();
    mesh.wait_for("the warnings", |mesh| said(mesh, shadowed) == 1 && said(mesh, tokens) == 1);
    let forgotten = format!("# moved by a line\n{doubtful}{}", echo_function("forgotten", ""));
    mesh.write(&forgotten);
    mesh.wait_for("the new warning", |mesh| said(mesh, "nobody can call `test/forgotten`") == 1);
    assert_eq!((said(&mesh, shadowed), said(&mesh, tokens)), (1, 1), "those that were there are not told again");
    let check = |arguments: &[&str]| {
        let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
        leno.arg("check").arg(mesh.folder.path()).args(arguments).output().unwrap()
    };
    let checked = check(&[]);
    assert!(checked.status.success(), "{checked:?}");
    let words = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(words.lines().filter(|line| line.starts_with("warning: ")).count(), 3, "{words}");
    assert!(words.contains("app.yaml:") && words.contains(" spec.authorization.rules[1]: "), "{words}");
    assert!(String::from_utf8(checked.stdout).unwrap().contains("2 functions, 3 warnings"));
    assert_eq!(check(&["--strict"]).status.code(), Some(2));
}

#[test]
fn listings_are_for_people_and_for_programs() {
    let chain = "---\napiVersion: leno.dev/v1alpha1\nkind: Chain\nmetadata: {name: c, namespace: test}\nspec: {entry: echo, memory: 64Ki, functions: [{name: echo}]}\n";
    let documents =
        echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]") + &policy("open", "echo", ALLOW_ALL) + chain;
    let mesh = Mesh::start(&documents);
    let told = |arguments: &[&str]| {
        let output = mesh.leno(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!told(&["get", "functions"]).contains("spiffe://"));
    assert!(told(&["get", "functions", "-o", "wide"]).contains("spiffe://test.example/ns/test/sa/echo"));
    for json in [&["get", "functions", "-o", "json"][..], &["get", "functions", "--json"]] {
        let rows: serde_json::Value = serde_json::from_str(&told(json)).unwrap();
        assert_eq!(rows[0]["function"], "test/echo");
    }
    let yaml = told(&["get", "functions", "-o", "yaml"]);
    assert!(yaml.starts_with("---\n- ") && yaml.contains("function: test/echo\n"), "{yaml}");
    let chains: serde_json::Value = serde_json::from_str(&told(&["get", "chains", "--json"])).unwrap();
    assert_eq!(
        chains,
        serde_json::json!([{"chain": "test/c", "direct": {}, "function": "test/echo", "large_pages": null, "memory": "64Ki", "protocol": "http1", "to": []}])
    );
    let identities = told(&["get", "identities"]);
    assert!(identities.contains("EXPIRES") && identities.contains("  in "), "{identities}");
    assert!(told(&["completions", "bash"]).contains("_leno"));

    let mut watching = Command::new(env!("CARGO_BIN_EXE_leno"))
        .args(["get", "instances", "--watch", "--admin", &format!("unix:{}", mesh.socket().display())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("INSTANCE"), "the headings come at once");
    assert_eq!(mesh.get("/").status, 200);
    assert!(lines.next().unwrap().unwrap().starts_with("test/echo-00001/1"), "and what is new when it is there");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

/// A function that never listens, so that its open descriptors are those that it inherited.
fn sleeper() -> String {
    "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: sleeper, namespace: test}\nspec:\n  command: \
     [sleep, \"1000\"]\n  scale: {min: 1}\n  timeouts: {startup: 10m, grace: 100ms}\n"
        .to_owned()
}

/// The ID of its process, as soon as it runs the program.
fn sleeping(mesh: &mut Mesh) -> u64 {
    let mut pid = None;
    mesh.wait_for("the sleeper to be started", |mesh| {
        pid = mesh.instances("test/sleeper").first().and_then(|instance| instance["pid"].as_u64());
        let name = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        name.is_some_and(|name| name.trim_end() == "sleep")
    });
    pid.unwrap()
}

fn status(pid: u64, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
}

#[test]
fn an_instance_has_no_descriptor_of_the_node_and_gains_no_rights() {
    // The test may have inherited open descriptors. This one is open for certain.
    let (_reader, writer) = std::io::pipe().unwrap();
    let inherited = writer.try_clone().unwrap();
    let mut mesh = Mesh::start_inheriting(&sleeper(), inherited.into());
    let pid = sleeping(&mut mesh);
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let mut numbers: Vec<String> = descriptors.map(|entry| entry.file_name().into_string().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, ["0", "1", "2"]);
    assert_eq!(status(pid, "NoNewPrivs:"), "1");
    // Where the kernel lets only root read the node's memory, root owns the node's folder in /proc.
    assert_eq!(status(mesh.pid().into(), "NoNewPrivs:"), "1");
    let limits = Command::new("head").args(["-c1", &format!("/proc/{}/environ", mesh.pid())]).output().unwrap();
    let root = std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t");
    assert!(root || !limits.status.success(), "the node's memory can be read");
}

#[test]
fn where_the_node_is_root_each_namespace_has_an_account() {
    if !std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t") {
        eprintln!("SKIPPED: only root can start programs under other accounts");
        return;
    }
    let mut mesh = Mesh::start_with("  instances: {isolation: process, firstId: 71000}\n", &sleeper());
    let pid = sleeping(&mut mesh);
    let account: u32 = status(pid, "Uid:").split_whitespace().next().unwrap().parse().unwrap();
    assert!((71_000..81_000).contains(&account), "{account}");
    assert_eq!(status(pid, "Groups:"), "");
}

/// A function whose port another process occupies permanently.
#[test]
fn who_waits_on_a_functions_port_gets_no_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let documents = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: late, namespace: test}}\nspec:\n  command: \
         [sleep, \"1000\"]\n  port: {port}\n  expose: [{{hosts: [\"*\"], path: /}}]\n  timeouts: {{grace: 100ms}}\n{}",
        mesh::policy("late", "late", mesh::ALLOW_ALL)
    );
    let mut mesh = Mesh::start(&documents);
    let answer = mesh.curl("/", &["--header", "authorization: Bearer secret"]);
    assert_eq!(answer.status, 503, "{answer:?}");
    let holder = format!("port {port} is held by process {}", std::process::id());
    mesh.wait_for("the log to name who has the port", |mesh| mesh.output().iter().any(|line| line.contains(&holder)));
    assert!(mesh.explain(answer.header("x-request-id").unwrap()).contains(&holder));
    mesh.terminate();
    mesh.wait();
    listener.set_nonblocking(true).unwrap();
    let mut connections = 0;
    while let Ok((mut stream, _)) = listener.accept() {
        let mut bytes = Vec::new();
        stream.set_nonblocking(false).unwrap();
        // The node has ended, so all connections have.
        let _ = std::io::Read::read_to_end(&mut stream, &mut bytes);
        assert_eq!(bytes, b"", "somebody else got what was meant for the function");
        connections += 1;
    }
    assert!(connections > 0, "nobody looked who is there");
}

#[test]
fn what_detaches_itself_ends_with_its_instance() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("detached");
    let script = format!(
        "setsid sh -c 'echo $$ > {0}.new && mv {0}.new {0}; sleep 1000; true' & exec sleep 1000",
        file.display()
    );
    let documents = sleeper().replace("[sleep, \"1000\"]", &format!("[sh, -c, {script:?}]"));
    let mut mesh = Mesh::start(&documents);
    sleeping(&mut mesh);
    let mut detached = String::new();
    mesh.wait_for("a process to detach itself", |_| {
        detached = std::fs::read_to_string(&file).unwrap_or_default().trim().to_owned();
        !detached.is_empty()
    });
    let alive = || std::path::Path::new("/proc").join(&detached).exists();
    assert!(alive());
    mesh.write(&public_echo());
    mesh.wait_for("it to end with its instance", |_| !alive());
}
