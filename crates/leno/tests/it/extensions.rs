//! User-written policies, from a user's view: real modules of real SDKs, in a real mesh, driven by
//! curl.

use leno_testkit::Answer;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A module of `examples/extensions`, built now; `None`, with a loud message: its tools are missing
/// here.
fn example(language: &str, file: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/extensions/build");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extensions");
    let built = Command::new(script).arg(language).env("OUT", &out).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    match built.status.code() {
        Some(0) => Some(out.join(file)),
        Some(77) => {
            // This bypasses the test harness, which would hide the message.
            let _ = writeln!(std::io::stderr(), "\n*** The {language} extension was NOT tested: {} ***\n", said.trim());
            None
        }
        _ => panic!("{said}"),
    }
}

/// A module that does one thing with each request, the body of its entry point. Text 0 to 5 is
/// `x-seen`, 8 to 10 `yes`.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
          (import "env" "proxy_add_header_map_value" (func $add (param i32 i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 1)
          (data (i32.const 0) "x-seen\00\00yes")
          (func $add_seen (param $list i32)
            (drop (call $add (local.get $list) (i32.const 0) (i32.const 6) (i32.const 8) (i32.const 3))))
          (func (export "proxy_abi_version_0_2_1"))
          (func (export "malloc") (param i32) (result i32) (i32.const 1024))
          (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {body} (i32.const 0)))"#
    );
    wat::parse_str(text).unwrap()
}

/// A module that adds this name to each request.
fn saying(name: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
          (import "env" "proxy_replace_header_map_value" (func $set (param i32 i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 1)
          (data (i32.const 0) "forged")
          (data (i32.const 8) "{name}")
          (func (export "proxy_abi_version_0_2_1"))
          (func (export "malloc") (param i32) (result i32) (i32.const 1024))
          (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (drop (call $set (i32.const 0) (i32.const 8) (i32.const {length}) (i32.const 0) (i32.const 6)))
            (i32.const 0)))"#,
        length = name.len()
    );
    wat::parse_str(text).unwrap()
}

/// A module cannot change identities: the mesh determines the caller, and the token determines the
/// user.
#[test]
fn a_module_does_not_say_who_it_is() {
    for (name, why) in [
        ("x_forwarded_client_cert", "header `x_forwarded_client_cert` is not for policies to edit"),
        ("x-user", "header `x-user` is made of a claim"),
    ] {
        let claims = "  authentication:\n    issuers:\n    - issuer: https://login.example\n      required: false\n      \
                      jwks: {url: \"http://127.0.0.1:9/keys\"}\n      claimsToHeaders: [{claim: sub, header: x-user}]\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saying.wasm");
        fs::write(&path, saying(name)).unwrap();
        let mesh = Mesh::start(
            &(echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
                + &policy(
                    "own",
                    "echo",
                    &format!("{ALLOW_ALL}\n{claims}  extensions:\n  - {{name: own, path: {}}}", path.display()),
                )),
        );
        let refused = mesh.get("/");
        assert_eq!(refused.status, 503, "{}", refused.body);
        assert!(explained(&mesh, &refused).contains(why), "{}", explained(&mesh, &refused));
    }
}

/// A module that refuses paths that begin with `/adm`.
fn guarding() -> Vec<u8> {
    let text = r#"(module
      (import "env" "proxy_get_header_map_value" (func $get (param i32 i32 i32 i32 i32) (result i32)))
      (import "env" "proxy_send_local_response" (func $send (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (data (i32.const 0) ":path")
      (func (export "proxy_abi_version_0_2_1"))
      (func (export "malloc") (param i32) (result i32) (i32.const 1024))
      (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (drop (call $get (i32.const 0) (i32.const 0) (i32.const 5) (i32.const 64) (i32.const 68)))
        (if (i32.eq (i32.load (i32.load (i32.const 64))) (i32.const 0x6d64612f))
          (then
            (drop (call $send (i32.const 403) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
            (return (i32.const 1))))
        (i32.const 0)))"#;
    wat::parse_str(text).unwrap()
}

/// Where paths are forwarded unchanged, a request is refused if a module would refuse one reading
/// of its path.
#[test]
fn a_module_sees_each_reading_of_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guarding.wasm");
    fs::write(&path, guarding()).unwrap();
    let extension = format!("{ALLOW_ALL}\n  extensions:\n  - {{name: own, path: {}}}", path.display());
    let spec = "  expose: [{hosts: [\"*\"], path: /}]\n  paths: {send: asReceived}";
    let mesh = Mesh::start(&(echo_function("echo", spec) + &policy("own", "echo", &extension)));
    for path in ["/a%2f..%2fadmin", "//admin", "/a/./../admin", "/%61dmin?q", "/admin"] {
        let answer = mesh.get(path);
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
    }
    let answer = mesh.get("/a%2fadmin//?q=%2f");
    let explained = explained(&mesh, &answer);
    assert_eq!(answer.status, 200, "{explained}");
    assert_eq!(explained.matches("extension  own/extensions/own (request): continued").count(), 5, "{explained}");
}

const SEEN: &str = "(call $add_seen (i32.const 0))";

fn documents(extensions: &str) -> String {
    echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
        + &policy("own", "echo", &format!("{ALLOW_ALL}\n  extensions:\n{extensions}"))
}

/// A mesh whose folder has these modules at the start.
fn start(modules: &[(&str, Vec<u8>)], extensions: &str) -> Mesh {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in modules {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let documents = documents(&extensions.replace("path: ", &format!("path: {}/", folder.path().display())));
    let mesh = Mesh::start(&documents);
    // The node read the extensions at its start, so they are served without the folder.
    folder.close().unwrap();
    mesh
}

/// A header that the function received.
fn seen(answer: &Answer, name: &str) -> Value {
    answer.json()["headers"][name][0].clone()
}

fn explained(mesh: &Mesh, answer: &Answer) -> String {
    mesh.explain(answer.header("x-request-id").unwrap())
}

#[test]
fn a_module_of_the_rust_sdk_sees_requests_and_their_responses() {
    let Some(module) = example("rust", "tenant.wasm") else { return };
    let extension = "  - name: tenant\n    path: tenant.wasm\n    phase: both\n    deadline: 100ms\n    configuration: |\n      \
                     acme = gold\n      tiny = free\n";
    let mut mesh = start(&[("tenant.wasm", fs::read(module).unwrap())], extension);
    for (tenant, plan) in [("acme", "gold"), ("tiny", "free"), ("acme", "gold")] {
        let answer = mesh.curl("/a?b=c", &["--header", &format!("X-Tenant: {tenant}"), "--header", "x-plan: forged"]);
        assert_eq!((answer.status, answer.header("x-served-for")), (200, Some(tenant)), "{answer:?}");
        assert_eq!(seen(&answer, "x-plan"), plan, "{answer:?}");
    }
    let refused = mesh.get("/a");
    assert_eq!((refused.status, &*refused.body), (403, "which tenant is this for?\n"), "{refused:?}");
    assert_eq!((refused.header("x-reason"), refused.header("x-served-for")), (Some("tenant"), None), "{refused:?}");
    let id = refused.header("x-request-id").unwrap().to_owned();
    let line = &mesh.log_lines("request_id", &id, 1)[0];
    assert_eq!((line["verdict"].as_str(), line["policy"].as_str()), (Some("deny"), Some("extensions")), "{line}");
    assert_eq!(line["rule"], "own/extensions/tenant", "{line}");
    let text = explained(&mesh, &refused);
    assert!(text.contains("extension  own/extensions/tenant (request): answered with 403"), "{text}");
    mesh.wait_for("the module's log line", |mesh| {
        mesh.output().iter().any(|line| line.contains("/a is for no known tenant"))
    });
    mesh.metrics(&[
        r#"extension="own/extensions/tenant",phase="request",result="continued"} 3"#,
        r#"extension="own/extensions/tenant",phase="response",result="continued"} 3"#,
        r#"extension="own/extensions/tenant",phase="request",result="answered"} 1"#,
    ]);
}

#[test]
fn a_module_in_cpp_counts_in_shared_data() {
    let Some(module) = example("cpp", "count.wasm") else { return };
    let mesh =
        start(&[("count.wasm", fs::read(module).unwrap())], "  - {name: count, path: count.wasm, deadline: 100ms}");
    for count in 1..=12 {
        let answer = mesh.get("/counted?x");
        assert_eq!(seen(&answer, "x-count"), count.to_string(), "{answer:?}");
    }
    assert_eq!(seen(&mesh.get("/other"), "x-count"), "1");
}

#[test]
fn a_module_in_assemblyscript_answers_for_the_function() {
    let Some(module) = example("assemblyscript", "maintenance.wasm") else { return };
    let module = fs::read(module).unwrap();
    // The extension has the name of the module's plugin. The second policy's extension runs after
    // the first one's.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.wasm"), module).unwrap();
    let path = folder.path().join("m.wasm");
    let extension = format!("  extensions:\n  - {{name: maintenance, path: {}, deadline: 100ms", path.display());
    let documents = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
        + &policy("calm", "echo", &format!("{ALLOW_ALL}\n{extension}, configuration: 'off'}}"))
        + &policy("closed", "echo", &format!("{extension}, configuration: Back at noon}}"));
    let mut mesh = Mesh::start(&documents);
    let answer = mesh.get("/");
    assert_eq!((answer.status, &*answer.body), (503, "Back at noon\n"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), Some("60"), "{answer:?}");
    assert!(mesh.instances("test/echo").is_empty(), "a refused request started an instance");
    let text = explained(&mesh, &answer);
    assert!(text.contains("calm/extensions/maintenance (request): continued"), "{text}");
    assert!(text.contains("closed/extensions/maintenance (request): answered with 503"), "{text}");
    mesh.wait_for("the module's log line", |mesh| {
        mesh.output().iter().any(|line| line.contains("turned away: Back at noon"))
    });
}

#[test]
fn a_module_that_fails_harms_one_request_as_its_fail_mode_says() {
    let modules = [
        ("trap.wasm", module("unreachable")),
        ("loop.wasm", module("(loop $on (br $on))")),
        ("good.wasm", module(SEEN)),
    ];
    for (failing, reason) in
        [("trap.wasm", "executed an undefined instruction"), ("loop.wasm", "ran past its deadline")]
    {
        let extension = |mode: &str| {
            format!(
                "  - {{name: bad, path: {failing}, failMode: {mode}}}\n  - {{name: good, path: good.wasm, deadline: 100ms}}"
            )
        };
        let mesh = start(&modules, &extension("closed"));
        for _ in 0..3 {
            let answer = mesh.get("/");
            assert_eq!(answer.status, 503, "{answer:?}");
            assert!(!answer.body.contains("own/"), "the client is told how the mesh is configured: {answer:?}");
            let text = explained(&mesh, &answer);
            assert!(text.contains(&format!("own/extensions/bad (request): failed: {reason}")), "{text}");
            assert!(!text.contains("own/extensions/good"), "{text}");
        }
        assert!(mesh.instances("test/echo").is_empty(), "a refused request started an instance");
        drop(mesh);
        let mesh = start(&modules, &extension("open"));
        for _ in 0..3 {
            let answer = mesh.get("/");
            assert_eq!((answer.status, seen(&answer, "x-seen")), (200, "yes".into()), "{answer:?}");
            let text = explained(&mesh, &answer);
            assert!(text.contains(&format!("bad (request): failed and was passed over: {reason}")), "{text}");
        }
        mesh.metrics(&[r#"extension="own/extensions/bad",phase="request",result="passed_over""#]);
    }
}

#[test]
fn an_edit_that_is_not_a_modules_to_make_is_refused() {
    // `connection`, a header that the runtime manages.
    let body = r#"(i64.store (i32.const 32) (i64.const 0x697463656e6e6f63)) (i32.store16 (i32.const 40) (i32.const 0x6e6f))
        (drop (call $add (i32.const 0) (i32.const 32) (i32.const 10) (i32.const 8) (i32.const 3)))"#;
    let mesh = start(&[("m.wasm", module(body))], "  - {name: edits, path: m.wasm, deadline: 100ms}");
    let answer = mesh.get("/");
    assert_eq!(answer.status, 503, "{answer:?}");
    let text = explained(&mesh, &answer);
    assert!(text.contains("header `connection` is not for policies to edit"), "{text}");
}

#[test]
fn a_denied_request_meets_no_extension() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.wasm"), module("unreachable")).unwrap();
    let path = folder.path().join("m.wasm");
    let mesh = Mesh::start(
        &(echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
            + &policy(
                "own",
                "echo",
                &format!(
                    "  authorization: {{rules: [{{to: [{{paths: [/open]}}]}}]}}\n  extensions: [{{name: bad, path: {}}}]",
                    path.display()
                ),
            )),
    );
    assert_eq!((mesh.get("/").status, mesh.get("/open").status), (403, 503));
    mesh.metrics(&[r#"result="refused",failure="trap"} 1"#]);
}

#[test]
fn a_module_is_fetched_and_checked() {
    let good = module(SEEN);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.wasm"), &good).unwrap();
    let sum = Command::new("sha256sum").arg(folder.path().join("m.wasm")).output().unwrap().stdout;
    let sum = String::from_utf8(sum[..64].to_vec()).unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    // First another module, then the right one. After that the server is gone, and the node should
    // not ask again.
    std::thread::spawn(move || {
        for body in [module("unreachable"), good] {
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
    let extension = format!("  - {{name: far, url: \"http://{address}/m.wasm\", sha256: {sum}, deadline: 100ms}}");
    let mut mesh = Mesh::start(&documents(&extension));
    mesh.wait_for("the module", |mesh| match mesh.get("/").status {
        200 => true,
        503 => false,
        status => panic!("{status}"),
    });
    assert_eq!(seen(&mesh.get("/"), "x-seen"), "yes");
    mesh.line("it has the hash");
}

fn check(folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leno")).arg("check").arg(folder).output().unwrap()
}

#[test]
fn check_finds_what_is_wrong_with_a_module() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("app.yaml"), documents("  - {name: a, path: m.wasm}")).unwrap();
    fs::write(path("m.wasm"), module(SEEN)).unwrap();
    let output = check(folder.path());
    assert!(output.status.success(), "{output:?}");
    let foreign = r#"(module (import "env" "proxy_levitate" (func)) (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1")) (func (export "malloc") (param i32) (result i32) (i32.const 0)))"#;
    for (bytes, expected) in [
        (wat::parse_str(foreign).unwrap(), "imports `env.proxy_levitate`, which does not exist here"),
        (wat::parse_str("(module)").unwrap(), "exports no `proxy_abi_version_0_2_1`"),
        (module("")[..60].to_vec(), "cannot be compiled"),
        (
            wat::parse_str(foreign.replace(r#"(import "env" "proxy_levitate" (func))"#, "")).unwrap(),
            "it would see nothing in this phase",
        ),
    ] {
        fs::write(path("m.wasm"), bytes).unwrap();
        let output = check(folder.path());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("app.yaml:") && said.contains(" spec.extensions[0]: ") && said.contains(expected),
            "{said}"
        );
    }
}

#[test]
fn a_change_to_a_module_that_cannot_run_is_refused() {
    let mut mesh = Mesh::start(&documents("").replace("  extensions:\n", ""));
    let path = mesh.folder.path().join("m.wasm");
    fs::write(&path, module(SEEN)).unwrap();
    mesh.write(&documents("  - {name: a, path: m.wasm, deadline: 100ms}"));
    mesh.wait_for("the extension", |mesh| seen(&mesh.get("/"), "x-seen") == "yes");
    fs::write(&path, wat::parse_str("(module)").unwrap()).unwrap();
    mesh.wait_for("the refusal", |mesh| {
        mesh.output().iter().any(|line| line.contains("exports no `proxy_abi_version"))
    });
    assert_eq!(seen(&mesh.get("/"), "x-seen"), "yes");
    fs::write(&path, module("")).unwrap();
    mesh.wait_for("the new module", |mesh| seen(&mesh.get("/"), "x-seen").is_null());
}

/// A module that handles requests and responses, so that an instance of it stays busy while the
/// function works.
fn patient() -> Vec<u8> {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "malloc") (param i32) (result i32) (i32.const 1024))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 0))
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 0)))"#;
    wat::parse_str(text).unwrap()
}

#[test]
fn a_namespace_that_uses_its_instances_up_waits_or_is_refused_and_no_other_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.wasm");
    fs::write(&path, patient()).unwrap();
    let own = format!(
        "{ALLOW_ALL}\n  extensions: [{{name: own, path: {}, phase: both, failMode: open, deadline: 100ms}}]",
        path.display()
    );
    let of = |name: &str, host: &str| {
        echo_function(name, &format!("  expose: [{{hosts: [{host}], path: /}}]")) + &policy(name, name, &own)
    };
    let limits = "  limits: {extensionInstancesPerNamespace: 3, extensionInstancesPerFunction: 2}\n";
    let other = of("echo", "other.example").replace("namespace: test", "namespace: other");
    let mesh = Mesh::start_with(limits, &(of("a", "a.example") + &of("b", "b.example") + &other));
    let get = |path: &str, host: &str| mesh.curl(path, &["--header", &format!("host: {host}")]);
    for host in ["a.example", "b.example", "other.example"] {
        assert_eq!(get("/", host).status, 200, "{host}");
    }
    std::thread::scope(|scope| {
        let slow = |host: &'static str| scope.spawn(move || get("/slow/8000", host).status);
        let held = [slow("a.example"), slow("a.example"), slow("b.example")];
        let refused = loop {
            let answer = get("/", "b.example");
            if answer.status != 200 {
                break answer;
            }
        };
        assert_eq!(refused.status, 503, "{refused:?}");
        let text = explained(&mesh, &refused);
        assert!(text.contains("no instance of an extension was free"), "{text}");
        let other = get("/", "other.example");
        assert_eq!(other.status, 200, "{other:?}");
        mesh.metrics(&[r#"leno_extension_instances{namespace="test"} 3"#]);
        assert_eq!(held.map(|request| request.join().unwrap()), [200; 3]);
    });
    assert_eq!(get("/", "b.example").status, 200, "the instances came back");
}

#[test]
fn a_module_that_is_not_there_refuses_whatever_its_fail_mode() {
    // This server accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/m.wasm", silent.local_addr().unwrap());
    let sum = "0".repeat(64);
    let mesh = Mesh::start(&documents(&format!("  - {{name: far, url: \"{url}\", sha256: {sum}, failMode: open}}")));
    let refused = mesh.get("/");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(explained(&mesh, &refused).contains("is not loaded"), "{}", explained(&mesh, &refused));
}
