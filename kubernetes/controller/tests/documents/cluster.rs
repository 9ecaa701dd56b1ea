//! The controller with a real API server.
//!
//! `PROGRAMS` is the folder of the programs that `make kubernetes-programs` builds; without it these
//! tests are skipped. They need root.

use crate::definitions::{examples, repository};
use serde_json::{Value, json};
use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// Limit of a wait for a condition.
const LIMIT: Duration = Duration::from_secs(60);
const SYSTEM: &str = "leno-system";

struct Cluster {
    programs: PathBuf,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("cluster"));
        command.arg("--directory").arg(self.folder.path().join("cluster")).args(arguments);
        command
    }

    /// Runs a command of the cluster, with this input. Its output, or else its errors.
    fn attempt(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr) + &text(&output.stdout))
        }
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        self.attempt(&[&["kubectl"], arguments].concat(), input)
    }

    fn apply(&self, object: &Value) {
        self.kubectl(&["apply", "-f", "-"], &object.to_string()).unwrap();
    }

    /// A condition of an object: status, reason and message; `None`: it is about an earlier
    /// generation.
    fn condition(&self, object: &str, kind: &str) -> Option<[String; 3]> {
        let text = self.kubectl(&["get", "-n", "shop", object, "-o", "json"], "").ok()?;
        let object: Value = serde_json::from_str(&text).ok()?;
        let condition = object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind)?;
        let is_current = condition["observedGeneration"] == object["metadata"]["generation"];
        let field = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
        is_current.then(|| ["status", "reason", "message"].map(field))
    }

    /// A configuration with the controller's own rights.
    fn configuration(&self) -> PathBuf {
        let file = self.attempt(&["kubeconfig"], "").unwrap();
        let admin: Value =
            serde_json::from_str(&self.kubectl(&["config", "view", "--raw", "-o", "json"], "").unwrap()).unwrap();
        assert!(Path::new(file.trim()).exists());
        let token = self.kubectl(&["create", "token", "-n", SYSTEM, "leno-controller"], "").unwrap();
        let mut own = admin.clone();
        own["users"] = json!([{"name": "controller", "user": {"token": token.trim()}}]);
        own["contexts"] =
            json!([{"name": "own", "context": {"cluster": admin["clusters"][0]["name"], "user": "controller"}}]);
        own["current-context"] = json!("own");
        let path = self.folder.path().join("controller.json");
        std::fs::write(&path, own.to_string()).unwrap();
        path
    }

    fn controller(&self, identity: &str, port: u16, configuration: &Path) -> Controller {
        let log = std::fs::File::create(self.folder.path().join(identity)).unwrap();
        let (listen, admin) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
        let arguments = [
            "run",
            env!("CARGO_BIN_EXE_leno-controller"),
            "run",
            "--identity",
            identity,
            "--listen",
            &listen,
            "--admin",
            &admin,
        ];
        let child = self.command(&arguments).env("KUBECONFIG", configuration).stdout(Stdio::null()).stderr(log).spawn();
        Controller(child.unwrap())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.attempt(&["down"], "") {
            eprintln!("{error}");
        }
    }
}

/// A process of the controller.
struct Controller(Child);

impl Controller {
    fn end(&mut self, signal: &str) {
        Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.end("-KILL");
        }
    }
}

/// Waits for a value.
fn eventually<T>(what: impl Fn() -> String, mut check: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "{}", what());
        sleep(Duration::from_millis(50));
    }
}

fn policy(name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": "shop"});
    json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Policy", "metadata": metadata, "spec": spec})
}

fn reading(path: &str) -> Value {
    json!({"functions": ["web"], "authorization": {"rules": [{"name": "read", "to": [{"paths": [path]}]}]}})
}

#[test]
fn the_controller_serves_a_cluster() {
    let Some(programs) = env::var_os("PROGRAMS").map(PathBuf::from) else {
        eprintln!("SKIPPED: PROGRAMS is not set; `make test-kubernetes` runs this test");
        return;
    };
    let cluster = Cluster { programs, folder: tempfile::tempdir().unwrap() };
    let prefix = format!("leno-test-controller-{}", std::process::id());
    cluster.attempt(&["up", "--control-only", "--prefix", &prefix], "").unwrap();
    let file = |path: &str| repository().join(path).display().to_string();

    // The API server accepts the definitions, and all documents of the repository.
    cluster.kubectl(&["apply", "-f", &file("kubernetes/chart/definitions")], "").unwrap();
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"], "").unwrap();
    cluster.kubectl(&["create", "namespace", SYSTEM], "").unwrap();
    cluster.kubectl(&["apply", "-f", &file("kubernetes/chart/templates/rbac.yaml")], "").unwrap();
    documents_are_accepted(&cluster);
    rules_are_in_force(&cluster);

    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"leno.dev/mesh": "enabled"}}}));
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}));
    eventually(
        || "the namespace has no account".to_owned(),
        || cluster.kubectl(&["get", "-n", "shop", "serviceaccount", "default"], "").ok(),
    );
    let metadata = json!({"name": "web", "namespace": "shop", "labels": {"app": "web"}});
    let containers = json!([{"name": "web", "image": "local/web:1", "ports": [{"containerPort": 8080}]}]);
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "a", "containers": containers}}));
    cluster.apply(&policy("limits", &reading("/a")));

    let configuration = cluster.configuration();
    let mut first = cluster.controller("first", 15010, &configuration);
    let condition = |object: &str, kind: &str, wanted: &str| {
        let log = cluster.folder.path().join("first");
        let what = || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            format!("{object} {kind} {wanted}: {:?}\n{log}", cluster.condition(object, kind))
        };
        eventually(what, || cluster.condition(object, kind).filter(|[status, ..]| status == wanted))
    };
    assert_eq!(condition("policy/limits", "Accepted", "True")[1], "Accepted");
    // No agent runs on the node.
    let [_, reason, message] = condition("policy/limits", "Programmed", "Unknown");
    assert!(reason == "NotConnected" && message.ends_with(": a."), "{message}");
    // A pod that is not captured has an Event, and the Mesh counts it.
    cluster
        .apply(&json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Mesh", "metadata": {"name": "mesh"}, "spec": {}}));
    let metadata = json!({"name": "host", "namespace": "shop", "labels": {"leno.dev/function": "web"}});
    let containers = json!([{"name": "web", "image": "local/web:1"}]);
    let spec = json!({"nodeName": "a", "hostNetwork": true, "containers": containers});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    let wanted =
        ["get", "-n", "shop", "events", "--field-selector", "reason=NotCaptured", "-o", "jsonpath={.items[*].message}"];
    let events = || cluster.kubectl(&wanted, "").unwrap_or_default();
    eventually(events, || Some(()).filter(|()| events().contains("it has the network of its node")));
    let counted = || condition("mesh/mesh", "Captured", "False")[2].clone();
    eventually(counted, || Some(()).filter(|()| counted().contains("HostNetwork 1, NoAgent 1")));
    // It is connected to another controller, and has not confirmed the policy there.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let report = json!({"at": now, "behind": ["a"]}).to_string();
    let metadata = json!({"name": "leno-controller-nodes", "namespace": SYSTEM});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"other": report}}));
    assert_eq!(condition("policy/limits", "Programmed", "False")[1], "Pending");
    cluster.apply(&policy("later", &json!({"functions": ["later"], "accessLog": {}})));
    assert_eq!(condition("policy/later", "Programmed", "True")[1], "NoTargets");

    // A version with an error that the API server does not find changes nothing.
    cluster.apply(&policy("limits", &reading("no path")));
    let [_, reason, message] = condition("policy/limits", "Accepted", "False");
    assert!(reason == "Invalid" && message.starts_with("spec.authorization.rules[0].to[0].paths[0]: "), "{message}");
    assert!(message.ends_with("Generation 1 stays in force."), "{message}");
    cluster.apply(&policy("wrong", &reading("no path")));
    let [.., message] = condition("policy/wrong", "Accepted", "False");
    assert!(message.ends_with("all calls to its functions are refused."), "{message}");

    // A second controller reads the authority that the first one has made, and leads after it.
    let mut second = cluster.controller("second", 15020, &configuration);
    let ready = |port: u16| {
        let url = format!("http://127.0.0.1:{port}/readyz");
        eventually(|| url.clone(), || cluster.attempt(&["run", "curl", "-fsS", &url], "").ok())
    };
    ready(15021);
    first.end("-TERM");
    cluster.apply(&policy("more", &json!({"functions": ["web"], "retry": {"attempts": 1}})));
    condition("policy/more", "Accepted", "True");
    // The version that the first one had in force stays in force.
    cluster.apply(&policy("wrong", &reading("/b")));
    condition("policy/wrong", "Accepted", "True");
    let [.., message] = condition("policy/limits", "Accepted", "False");
    assert!(message.ends_with("Generation 1 stays in force."), "{message}");
    let metrics = cluster.attempt(&["run", "curl", "-fsS", "http://127.0.0.1:15021/metrics"], "").unwrap();
    for wanted in
        ["leno_controller_leads 1", "leno_controller_watch_relists_total 0", "leno_controller_status_failures_total 0"]
    {
        assert!(metrics.contains(wanted), "no {wanted} in\n{metrics}");
    }
    second.end("-TERM");
    for name in ["first", "second"] {
        let log = std::fs::read_to_string(cluster.folder.path().join(name)).unwrap();
        assert!(!log.contains("forbidden"), "{log}");
    }
}

/// Valid documents pass the schemas and rules of the API server.
fn documents_are_accepted(cluster: &Cluster) {
    let mut namespaces: Vec<String> = Vec::new();
    for (path, document) in examples() {
        let namespace = document["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        if !namespaces.contains(&namespace) {
            // Several are those of the API server.
            let _ = cluster.kubectl(&["create", "namespace", &namespace], "");
            namespaces.push(namespace);
        }
        let applied = cluster.kubectl(&["apply", "--dry-run=server", "-f", "-"], &document.to_string());
        assert!(applied.is_ok(), "{}: {document}: {applied:?}", path.display());
    }
}

/// What breaks a rule is refused at once.
fn rules_are_in_force(cluster: &Cluster) {
    let until = "2099-01-01T00:00:00Z";
    for (spec, wanted) in [
        (json!({"accessLog": {}}), "the policy is for no function"),
        (json!({"functions": ["a"], "namespaces": ["b"]}), "`namespaces` need a `selector`"),
        (json!({"selector": {}, "extensions": [{"name": "x", "url": "https://a.example/x"}]}), "`url` needs `sha256`"),
        (
            json!({"faults": [{"name": "x", "routes": ["r"], "until": until, "abort": {}}]}),
            "expected either `status` or `grpc`",
        ),
        (json!({"selector": {}, "unknown": 1}), "unknown field"),
        (json!({"selector": {}, "mode": "strict"}), "Unsupported value"),
    ] {
        let refused =
            cluster.kubectl(&["create", "-f", "-"], &policy("x", &spec).to_string().replace("shop", "default"));
        assert!(refused.as_ref().is_err_and(|error| error.contains(wanted)), "{spec}: {refused:?}");
    }
}
