//! Functions that are components, from a user's view: real components in a real mesh, driven by
//! curl.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{Answer, try_curl};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A component that `examples/components/build` makes; `None`, with a loud message: its tools are
/// missing here.
fn component(language: &str, file: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let built = Command::new(root.join("examples/components/build")).arg(language).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    match built.status.code() {
        Some(0) => Some(root.join("target/components").join(file)),
        Some(77) => {
            // This bypasses the test harness, which would hide the message.
            let _ = writeln!(std::io::stderr(), "\n*** The {language} component was NOT tested: {} ***\n", said.trim());
            None
        }
        _ => panic!("{said}"),
    }
}

/// The tests' component. All tests here need it.
fn probe() -> PathBuf {
    component("probe", "probe.wasm").expect("the component can be built (make setup)")
}

/// A function document that runs a component.
fn function(name: &str, file: &Path, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  wasm: \
         {{path: \"{}\", memory: 16Mi}}\n{spec}\n",
        file.display()
    )
}

const EXPOSED: &str = "  expose: [{hosts: [\"*\"], path: /}]";

/// A mesh with the probe alone, open to all.
fn alone(spec: &str) -> Mesh {
    Mesh::start(&(function("probe", &probe(), &format!("{EXPOSED}\n{spec}")) + &policy("open", "probe", ALLOW_ALL)))
}

fn row(mesh: &Mesh, name: &str) -> Value {
    let rows = mesh.admin("/functions").json();
    rows.as_array().unwrap().iter().find(|row| row["function"] == name).unwrap().clone()
}

/// The content of a response to `/call` or `/relay`: the status and the body that the component
/// got.
fn called(answer: &Answer) -> (u16, String) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let (status, body) = answer.body.split_once(' ').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn a_component_calls_others_as_its_function_and_nobody_else() {
    let mut mesh = Mesh::start(
        &(function("probe", &probe(), &format!("{EXPOSED}\n  callees: [stock, vault, second]"))
            + &policy("open", "probe", &format!("{ALLOW_ALL}\n  tracing: {{sampling: 100}}"))
            + &echo_function("stock", "")
            + &policy(
                "stock",
                "stock",
                "  authorization: {rules: [{name: probe, from: [{identities: [test/probe]}]}]}",
            )
            + &function("second", &probe(), "")
            + &policy(
                "second",
                "second",
                "  authorization: {rules: [{name: probe, from: [{identities: [test/probe]}]}]}",
            )
            + &echo_function("vault", "")
            + &policy(
                "vault",
                "vault",
                "  authorization: {rules: [{name: other, from: [{identities: [test/stock]}]}]}",
            )
            + &echo_function("closed", "")
            + &policy("closed", "closed", ALLOW_ALL)),
    );
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let answer = mesh.curl("/call?http://stock.test/items?x=1", &["-H", trace]);
    let (status, body) = called(&answer);
    assert_eq!(status, 200);
    let seen: Value = serde_json::from_str(&body).unwrap();
    let header = |name: &str| seen["headers"][name][0].as_str().unwrap_or_default().to_owned();
    assert_eq!(seen["path"], "/items?x=1");
    // The mesh sets the identity of the caller, even if the component claims another.
    let caller = "URI=spiffe://test.example/ns/test/sa/probe";
    assert!(header("x-forwarded-client-cert").ends_with(caller), "{seen}");
    assert_eq!(header("x-probe"), "1");
    // The call belongs to the incoming request, though the component forwards no headers.
    assert_eq!(Some(header("x-request-id").as_str()), answer.header("x-request-id"));
    assert!(header("traceparent").starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{seen}");

    // A call from one component to the next, with a body both ways.
    let sent = mesh.curl("/relay?http://second/echo", &["--data", "there and back"]);
    assert_eq!(called(&sent), (200, "there and back".to_owned()));
    // Refused by the callee's policies or by the caller's: no instance starts for these calls.
    for (denied, who) in [("vault", "vault"), ("closed", "closed"), ("127.0.0.1:1", "closed")] {
        let (status, _) = called(&mesh.get(&format!("/call?http://{denied}/")));
        assert_eq!(status, 403, "{denied}");
        assert!(mesh.instances(&format!("test/{who}")).is_empty());
    }
    let id = answer.header("x-request-id").unwrap().to_owned();
    let lines = mesh.log_lines("request_id", &id, 3);
    assert_eq!(lines.len(), 3, "the gateway's exchange, the call, and its inbound side: {lines:?}");
}

#[test]
fn the_verdict_comes_first_and_an_instance_has_nothing_of_the_nodes() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "hidden\n").unwrap();
    let spec = format!(
        "{EXPOSED}\n  env: {{COLOUR: blue}}\n  secrets: [{{name: KEY, from: \"{}\", as: env}}]",
        folder.path().join("secret").display()
    );
    let rules = "  authorization: {rules: [{name: read, to: [{methods: [GET]}]}]}";
    let mut mesh = Mesh::start(&(function("probe", &probe(), &spec) + &policy("read", "probe", rules)));
    let denied = mesh.curl("/log?denied", &["-X", "POST"]);
    assert_eq!(denied.status, 403);
    assert_eq!(mesh.get("/log?allowed").body, "logged");
    let line = |mesh: &Mesh, text: &str| mesh.output().iter().any(|line| line.contains(text));
    let lines = ["test/probe | allowed", "test/probe ! an error", "test/probe | without end"];
    mesh.wait_for("the component's lines", |mesh| lines.iter().all(|text| line(mesh, text)));
    assert!(!line(&mesh, "| denied"), "a denied request ran");
    assert_eq!(mesh.get("/env").body, "COLOUR=blue\nKEY=hidden\nLENO_FUNCTION=test/probe\n");
    assert_eq!(mesh.get("/files").body, "0");
    assert!(mesh.get("/socket").body.contains("access-denied"));
    let headers = mesh.curl("/headers", &["-H", "host: shop.example", "-H", "x-forwarded-client-cert: URI=me"]).body;
    assert!(headers.starts_with("shop.example\n") && !headers.contains("URI=me"), "{headers}");
    for _ in 0..3 {
        assert_eq!(mesh.get("/count").body, "1");
    }
    assert!(!line(&mesh, "hidden"));
}

#[test]
fn what_is_wrong_with_an_instance_harms_one_request() {
    let mut mesh = alone("  timeouts: {request: 2s}");
    for path in ["/trap", "/memory", "/recursion", "/exit", "/silent", "/resources", "/error", "/status?101"] {
        assert_eq!(mesh.get(path).status, 502, "{path}");
    }
    // A call that never ends does not delay the others, and the node ends it in time.
    std::thread::scope(|scope| {
        let looping = [(); 4].map(|()| scope.spawn(|| mesh.get("/loop")));
        let waiting = scope.spawn(|| mesh.get("/wait"));
        while !looping.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_eq!(mesh.get("/hello").body, "hello");
        }
        for answer in looping {
            assert_eq!(answer.join().unwrap().status, 504);
        }
        assert_eq!(waiting.join().unwrap().status, 504);
    });
    // A response that broke off after its start does not look complete.
    let url = format!("http://127.0.0.1:{}/late", mesh.ports.gateway);
    let broken = Command::new("curl").args(["--silent", "--noproxy", "*", &url]).output().unwrap();
    assert!(!broken.status.success(), "{broken:?}");
    assert_eq!(mesh.get("/status?204").status, 204);
    assert_eq!(mesh.curl("/hello", &["--head"]).status, 200);
    assert_eq!(mesh.get("/after").body, "answered");
    mesh.wait_for("what it does after its answer", |mesh| {
        mesh.output().iter().any(|line| line.contains("test/probe | after the answer"))
    });
    for failure in ["trap", "out_of_memory", "exit", "silent"] {
        mesh.metrics(&[&format!("leno_component_failures_total{{function=\"test/probe\",failure=\"{failure}\"}}")]);
    }
    mesh.line("the component needed more memory than the 16777216 bytes");
}

#[test]
fn requests_beyond_its_concurrency_wait_their_turn() {
    let mut mesh = alone("  concurrency: 1\n  queue: 1\n  timeouts: {request: 0s}");
    let gateway = format!("http://127.0.0.1:{}", mesh.ports.gateway);
    let mut first =
        Command::new("curl").args(["--silent", "--noproxy", "*", &format!("{gateway}/wait")]).spawn().unwrap();
    mesh.wait_for("the first", |mesh| mesh.output().iter().any(|line| line.ends_with("test/probe | waiting")));
    let second = std::thread::spawn(move || try_curl(&format!("{gateway}/hello"), &[]).unwrap());
    mesh.wait_for("the second to wait", |mesh| row(mesh, "test/probe")["waiting"] == 1);
    let third = mesh.get("/hello");
    assert_eq!((third.status, third.header("retry-after")), (503, Some("1")));
    // The first instance ends with its client, and frees capacity.
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.join().unwrap().body, "hello");
}

#[test]
fn a_component_is_listed_replaced_and_checked_like_any_function() {
    let mut mesh = alone("");
    assert_eq!(mesh.get("/hello").body, "hello");
    let listed = mesh.instances("test/probe");
    assert_eq!((listed.len(), listed[0]["address"].as_str()), (1, Some("in the node")));
    assert_eq!(row(&mesh, "test/probe")["instances"], 1);
    for command in [&["get", "functions"][..], &["get", "instances"], &["get", "events"]] {
        assert!(mesh.leno(command).status.success(), "{command:?}");
    }
    let Some(greeter) = component("rust", "greeter.wasm") else { panic!("the greeter can be built") };
    let greetings = "  callees: [words]\n  env: {GREETING_FROM: \"http://words/env\"}";
    let documents = function("probe", &greeter, &format!("{EXPOSED}\n{greetings}"))
        + &policy("open", "probe", ALLOW_ALL)
        + &function("words", &probe(), "  env: {WORD: Welcome}")
        + &policy("words", "words", ALLOW_ALL);
    mesh.write(&documents);
    mesh.wait_for("the other component", |mesh| mesh.get("/Anna").body.contains("WORD=Welcome"));
    assert!(mesh.get("/Anna").body.ends_with(", Anna!\n"));

    // A process replaces the component, and then the component replaces the process: only the
    // responses show it.
    for (document, mark) in
        [(echo_function("probe", EXPOSED), "\"path\":\"/hello\""), (function("probe", &probe(), EXPOSED), "hello")]
    {
        mesh.write(&(document + &policy("open", "probe", ALLOW_ALL)));
        mesh.wait_for("the other kind", |mesh| {
            let answer = mesh.get("/hello");
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.body.contains(mark) && (answer.body == "hello") == (mark == "hello")
        });
    }

    let plain = mesh.folder.path().join("plain.wasm");
    fs::write(&plain, b"\0asm\x0d\0\x01\0").unwrap();
    let bad = mesh.folder.path().join("bad.yaml");
    fs::write(&bad, function("bad", &plain, "")).unwrap();
    let checked = mesh.leno(&["check", bad.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(!checked.status.success());
    assert!(said.contains("bad.yaml:6") && said.contains("spec.wasm") && said.contains("incoming-handler"), "{said}");
}

#[test]
fn a_component_is_fetched_and_checked() {
    let file = probe();
    let sum = Command::new("sha256sum").arg(&file).output().unwrap().stdout;
    let sum = String::from_utf8(sum[..64].to_vec()).unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    // First another file, then the right one. After that the server is gone, and the node should
    // not ask again.
    std::thread::spawn(move || {
        for body in [b"\0asm\x0d\0\x01\0".to_vec(), fs::read(file).unwrap()] {
            let (mut stream, _) = server.accept().unwrap();
            let mut head = Vec::new();
            let mut buffer = [0; 1024];
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                head.extend_from_slice(&buffer[..read]);
            }
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).unwrap();
            stream.write_all(&body).unwrap();
        }
    });
    let far = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: probe, namespace: test}}\nspec:\n  wasm: \
         {{url: \"http://{address}/p.wasm\", sha256: {sum}}}\n{EXPOSED}\n"
    );
    let mut mesh = Mesh::start(&(far + &policy("open", "probe", ALLOW_ALL)));
    mesh.wait_for("the component", |mesh| match mesh.get("/hello") {
        Answer { status: 200, body, .. } => body == "hello",
        Answer { status: 503, .. } => false,
        answer => panic!("{answer:?}"),
    });
    mesh.line("it has the hash");
}

/// Tests a component that is written in another language.
fn greets(language: &str, file: &str) {
    let Some(file) = component(language, file) else { return };
    let spec = format!("{EXPOSED}\n  callees: [words]\n  env: {{GREETING_FROM: \"http://words/hello\"}}");
    let documents = function("probe", &file, &spec).replace("16Mi", "256Mi")
        + &policy("open", "probe", ALLOW_ALL)
        + &function("words", &probe(), "")
        + &policy("words", "words", "  authorization: {rules: [{name: probe, from: [{identities: [test/probe]}]}]}");
    let mesh = Mesh::start(&documents);
    assert_eq!(mesh.get("/Anna").body, "hello, Anna!\n");
    assert_eq!(mesh.get("/Bert").body, "hello, Bert!\n");
}

#[test]
fn a_component_made_of_javascript_greets() {
    greets("javascript", "javascript.wasm");
}

#[test]
fn a_component_made_of_python_greets() {
    greets("python", "python.wasm");
}
