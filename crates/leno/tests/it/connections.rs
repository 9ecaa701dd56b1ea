//! Connections that carry no HTTP, from jail to jail: verdicts by caller and port, with and without
//! the kernel's help.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, example, policy, public_folder};
use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// Two functions, each in a jail: `caller`, which the gateway reaches, and `store`, which also
/// serves TCP without HTTP.
fn documents(policies: &str) -> String {
    let function = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: [\"{}\"]\n  \
             workingDirectory: public\n{spec}\n",
            example("wire").display()
        )
    };
    function("caller", "  callees: [store]\n  expose: [{hosts: [\"*\"], path: /}]")
        + &function(
            "store",
            "  env: {ECHO_PORTS: \"6379 6380 8443 7000\"}\n  ports: [{port: 6379}, {port: 6380, splice: false}, {port: 8443, protocol: tls}]",
        )
        + &policy("in", "caller", ALLOW_ALL)
        + policies
}

fn allow(ports: &str) -> String {
    policy(
        "store",
        "store",
        &format!(
            "  authorization: {{rules: [{{name: caller, from: [{{identities: [caller]}}], to: [{{ports: [{ports}]}}]}}]}}"
        ),
    )
}

fn start(policies: &str) -> Mesh {
    start_with(Command::new(env!("CARGO_BIN_EXE_leno")), policies)
}

fn start_with(leno: Command, policies: &str) -> Mesh {
    Mesh::start_with_command(
        leno,
        "  instances: {isolation: strict, accounts: node}\n",
        &documents(policies),
        public_folder,
    )
}

/// The response to a path, with any status.
fn try_path(mesh: &Mesh, path: &str) -> (u16, String) {
    let answer = mesh.get(path);
    (answer.status, answer.body)
}

fn connections(mesh: &mut Mesh, count: usize) -> Vec<Value> {
    let mut rows: Vec<Value> = Vec::new();
    mesh.wait_for("flows", |mesh| {
        let output = mesh.leno(&["observe", "--json", "--last", "1000", "--kind", "connection"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        rows.len() >= count
    });
    rows
}

/// Whether the kernel judges and splices connections here.
fn has_kernel() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_function_with_ports_does_not_scale_to_zero_unless_asked() {
    let documents = documents(&allow("6379"));
    let mut mesh = start(&allow("6379"));
    let is_ready = |mesh: &mut Mesh| mesh.instances("test/store").iter().any(|row| row["state"] == "ready");
    mesh.wait_for("an instance, without any request", is_ready);
    let scaling = mesh.leno(&["get", "events", "--json"]);
    let scaling = String::from_utf8_lossy(&scaling.stdout).into_owned();
    assert!(scaling.contains("test/store") && !scaling.contains("test/caller"), "{scaling}");
    let asked = "  scale: {min: 0, window: 1s, scaleToZeroGracePeriod: 0s}\n  env: {ECHO_PORTS";
    mesh.write(&documents.replace("  env: {ECHO_PORTS", asked));
    mesh.wait_for("its end", |mesh| mesh.instances("test/store").is_empty());
}

#[test]
fn a_connection_leads_to_the_callee_and_only_by_a_rule() {
    if !has_kernel() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let mut mesh = start(&allow("6379, 6380"));
    for port in [6379, 6380] {
        let (status, body) = try_path(&mesh, &format!("/say/store:{port}/hello"));
        assert_eq!((status, &*body), (200, "I am test/store\nhello"));
        let (_, body) = try_path(&mesh, &format!("/half/store:{port}/goodbye"));
        assert_eq!(body, "I am test/store\ngoodbye");
        let (_, body) = try_path(&mesh, &format!("/bulk/store:{port}/20000000"));
        assert_eq!(body, "the same came back");
    }
    let rows = connections(&mut mesh, 6);
    for (port, spliced) in [(6379, true), (6380, false)] {
        let of: Vec<&Value> = rows.iter().filter(|row| row["port"] == port).collect();
        assert_eq!(of.len(), 3, "{rows:#?}");
        for row in &of {
            assert_eq!((&row["verdict"], &row["target"]), (&"allow".into(), &"test/store".into()), "{row}");
            assert_eq!(row["rule"], "store/authorization/caller");
            assert!(row["source"].as_str().unwrap().starts_with("test/caller-00001/"), "{row}");
            assert_eq!(row["spliced"].as_bool().unwrap_or_default(), spliced, "{row}");
        }
        let bytes: Vec<(u64, u64)> =
            of.iter().map(|row| (row["sent"].as_u64().unwrap(), row["received"].as_u64().unwrap())).collect();
        assert_eq!(bytes, [(5, 21), (7, 23), (20_000_000, 20_000_016)], "{rows:#?}");
    }

    // A port that no rule allows, and an undeclared port, which counts as HTTP: TLS to it is
    // refused.
    let (status, body) = try_path(&mesh, "/say/store:8443/x");
    assert_eq!((status, body.contains("Operation not permitted")), (502, true), "{body}");
    let refused = connections(&mut mesh, 7).pop().unwrap();
    assert_eq!((&refused["verdict"], &refused["port"]), (&"deny".into(), &8443.into()), "{refused}");
    assert_eq!(refused["target"], "test/store");
    let (_, body) = try_path(&mesh, "/hello/store:7000/store.test");
    assert!(body.starts_with("HTTP/1.1 400 "), "TLS is told that HTTP is spoken here: {body}");
    let rows = connections(&mut mesh, 8);
    let reason = rows.iter().find(|row| row["host"].as_str().is_some_and(|host| host.ends_with(":7000")));
    assert_eq!(reason.unwrap()["reason"], "what came is TLS; inside the mesh, use http://", "it is taken for HTTP");
}

#[test]
fn a_rule_for_a_port_that_is_no_http_lets_no_request_in() {
    if !has_kernel() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let mesh = start(&allow("6379, 9999"));
    // The port in the host header is only a claim of the caller.
    let status = |authority: &str| try_path(&mesh, &format!("/request/store:80/{authority}")).1;
    assert!(
        status("store:9999").starts_with("HTTP/1.1 200"),
        "a rule for a port of requests: {}",
        status("store:9999")
    );
    assert!(status("store:6379").starts_with("HTTP/1.1 421"), "{}", status("store:6379"));
    assert!(status("store").starts_with("HTTP/1.1 403"), "{}", status("store"));
}

#[test]
fn tls_of_the_callers_own_goes_to_the_name_that_it_asks_for() {
    if !has_kernel() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let mut mesh = start(&allow("8443"));
    let (status, body) = try_path(&mesh, "/hello/store:8443/store.test");
    assert_eq!((status, &*body), (200, "I am test/store\nthe hello arrived"));
    for (path, reason) in [
        ("/hello/store:8443/example.com", "its TLS names example.com, which is not test/store"),
        ("/say/store:8443/plain", "no whole TLS hello came within"),
    ] {
        assert_eq!(try_path(&mesh, path).0, 502);
        let mut rows = Vec::new();
        mesh.wait_for(reason, |mesh| {
            rows = connections(mesh, 1);
            rows.iter().any(|row| row["reason"].as_str().is_some_and(|why| why.contains(reason)))
        });
        assert!(rows.iter().all(|row| row["protocol"] == "tls"), "{rows:#?}");
    }
}

#[test]
fn a_connection_ends_when_its_permission_does() {
    if !has_kernel() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    let mut mesh = start(&allow("6379, 6380"));
    for port in [6379, 6380] {
        assert_eq!(try_path(&mesh, &format!("/hold/store:{port}")), (200, "I am test/store\n".to_owned()));
        assert_eq!(try_path(&mesh, "/again/one"), (200, "one".to_owned()));
        mesh.write(&documents(&allow("1")));
        mesh.wait_for("the connection's end", |mesh| try_path(mesh, "/again/two").0 == 502);
        assert_eq!(try_path(&mesh, &format!("/say/store:{port}/x")).0, 502);
        let rows = connections(&mut mesh, 1);
        let ended = |row: &Value| row["verdict"] == "deny" && row["port"] == port && row["sent"].as_u64() >= Some(3);
        assert!(rows.iter().any(ended), "{rows:#?}");
        mesh.write(&documents(&allow("6379, 6380")));
        mesh.wait_for("permission", |mesh| try_path(mesh, &format!("/say/store:{port}/x")).0 == 200);
    }
}

#[test]
fn a_connection_ends_with_the_function_that_goes_with_its_permission() {
    if !has_kernel() {
        eprintln!("SKIPPED: without root, only connections to port 80 are intercepted");
        return;
    }
    // Longer than any test waits.
    let spec = "  limits: {drainTimeout: 10m}\n  instances: {isolation: strict, accounts: node}\n";
    let with = documents(&allow("6379, 6380"));
    let callees = with.replace("callees: [store]", "callees: []");
    let documents: Vec<&str> = callees.split_inclusive("---\n").filter(|text| !text.contains("store")).collect();
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mut mesh = Mesh::start_with_command(leno, spec, &with, public_folder);
    for port in [6379, 6380] {
        assert_eq!(try_path(&mesh, &format!("/hold/store:{port}")), (200, "I am test/store\n".to_owned()));
        assert_eq!(try_path(&mesh, "/again/one"), (200, "one".to_owned()));
        mesh.write(&documents.concat());
        mesh.wait_for("the connection's end", |mesh| try_path(mesh, "/again/two").0 == 502);
        let rows = connections(&mut mesh, 1);
        let ended = |row: &Value| row["verdict"] == "deny" && row["port"] == port && row["sent"].as_u64() >= Some(3);
        assert!(rows.iter().any(ended), "{rows:#?}");
        mesh.write(&with);
        mesh.wait_for("permission", |mesh| try_path(mesh, &format!("/say/store:{port}/x")).0 == 200);
    }
}

/// A mount namespace with its own BPF file system. Dropping this ends it.
struct Mounts(Child);

impl Mounts {
    fn new() -> Self {
        let script = "mount -t bpf bpf /sys/fs/bpf && echo mounted && exec sleep infinity";
        let mut holder =
            Command::new("unshare").args(["--mount", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 8];
        holder.stdout.take().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"mounted\n");
        Self(holder)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--mount").arg(format!("--target={}", self.0.id())).arg("--wdns=/").arg(program);
        command
    }

    /// The nodes whose rules are pinned.
    fn pinned(&self) -> Vec<String> {
        let output = self.command("ls").arg("/sys/fs/bpf").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|name| name.starts_with("leno-node-")).map(str::to_owned).collect()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_rules_of_a_killed_node_remain_until_the_next_one_starts() {
    if !has_kernel() {
        eprintln!("SKIPPED: only root may pin rules in the kernel");
        return;
    }
    let mounts = Mounts::new();
    let leno = || mounts.command(env!("CARGO_BIN_EXE_leno"));
    let mut killed = start_with(leno(), &allow("6379"));
    assert_eq!(try_path(&killed, "/say/store:6379/x").0, 200);
    let left = mounts.pinned();
    assert_eq!(left.len(), 1, "{left:?}");
    killed.kill();
    assert_eq!(mounts.pinned(), left);

    let mut next = start_with(leno(), &allow("6379"));
    assert!(next.output().iter().any(|line| line.contains("rules in the kernel that a killed node left behind")));
    let now = mounts.pinned();
    assert_eq!(now.len(), 1, "{now:?}");
    assert_ne!(now, left);
    assert_eq!(try_path(&next, "/say/store:6379/x").0, 200);
    next.terminate();
    assert!(next.wait().success());
    assert_eq!(mounts.pinned(), Vec::<String>::new());
}
