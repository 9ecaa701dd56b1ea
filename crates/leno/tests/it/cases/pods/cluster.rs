//! The cluster: its objects, pods that call and pods that are called, and the access log of the
//! first node.

use super::super::engines::{self, Head};
use super::super::keys::Keys;
use super::super::table::{Case, Group, Request, Texts};
use super::log_line::LogLine;
use super::observation::{Names, Seen};
use super::sendable::{CALLERS, shift};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Pods that are called, each of which is a function.
pub(crate) const CALLEES: usize = 16;
/// All ports of the cases.
const PORTS: [&str; 7] = ["80", "81", "443", "8080", "8081", "9090", "12345"];
/// Limit of a wait for a condition.
const LIMIT: Duration = Duration::from_secs(60);
/// The namespace of the callers without an identity, which is not in the mesh.
const OUTSIDE: &str = "outside";

pub(crate) struct Cluster {
    program: PathBuf,
    directory: PathBuf,
}

/// A group's cases, and a callee for them.
pub(crate) struct Unit<'a> {
    pub group: &'a Group,
    pub cases: &'a [&'a Case],
    pub names: Names,
}

/// A case that was sent.
pub(crate) struct Exchange<'a> {
    pub group: &'a Group,
    /// With the times at which it was sent.
    pub case: Case,
    pub head: Head,
    pub names: Names,
    /// The address of the caller's pod.
    pub address: String,
    pub answer: Answer,
}

/// A response, or the reason why there is none.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: Option<BTreeMap<String, Vec<String>>>,
    pub body: String,
    pub error: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.as_ref()?.get(name)?.first().map(String::as_str)
    }
}

impl Cluster {
    pub(crate) fn from_env() -> Option<Self> {
        let program = env::var_os("LENO_CASES_CLUSTER")?.into();
        let directory = env::var_os("LENO_CASES_DIRECTORY").expect("LENO_CASES_DIRECTORY is set").into();
        Some(Self { program, directory })
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--directory").arg(&self.directory).arg("kubectl").args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Runs kubectl with an input: its output.
    fn attempt(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut child = self.kubectl(arguments).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.attempt(arguments, "").unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// The objects of a kind, as the API server has them.
    fn items(&self, arguments: &[&str]) -> Vec<Value> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat());
        let Value::Array(items) = serde_json::from_str::<Value>(&text).unwrap()["items"].take() else {
            panic!("no list: {text}")
        };
        items
    }

    /// Starts the pods of callers and callees.
    pub(crate) fn start_pods(&self) -> Pods<'_> {
        self.attempt(&["apply", "-f", "-"], &list(objects())).unwrap_or_else(|error| panic!("{error}"));
        let pods = Pods {
            cluster: self,
            callers: BTreeMap::new(),
            addresses: HashMap::new(),
            log: Lines::default(),
            children: Vec::new(),
        };
        pods.started()
    }

    /// Replaces all policies by those of the units, and waits until they are in force: the policies
    /// that are not.
    pub(crate) fn apply(&self, units: &[Unit<'_>], keys: &Keys) -> Vec<String> {
        self.run(&["delete", "policies.leno.dev", "-n", "shop", "--all"]);
        let documents = units.iter().flat_map(|unit| {
            engines::policies(unit.group, keys).into_iter().map(|document| unit.names.document(document))
        });
        let mut failures: Vec<String> =
            self.attempt(&["apply", "-f", "-"], &list(documents.collect())).err().into_iter().collect();
        let begin = Instant::now();
        loop {
            let waiting = self.items(&["policies.leno.dev", "-n", "shop"]).iter().filter_map(state).collect::<Vec<_>>();
            if waiting.is_empty() {
                return failures;
            }
            if begin.elapsed() > LIMIT || waiting.iter().all(|(is_refused, _)| *is_refused) {
                failures.extend(waiting.into_iter().map(|(_, text)| text));
                return failures;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether an object that is not in force is refused, and why; `None`: it is in force.
fn state(object: &Value) -> Option<(bool, String)> {
    let conditions = object["status"]["conditions"].as_array();
    let status = |kind: &str| {
        let mut current = conditions
            .into_iter()
            .flatten()
            .filter(|one| one["observedGeneration"] == object["metadata"]["generation"]);
        current.find(|one| one["type"] == kind).map_or("", |one| one["status"].as_str().unwrap())
    };
    let text = || format!("{}: {}", object["metadata"]["name"], object["status"]);
    (status("Programmed") != "True").then(|| (status("Accepted") == "False", text()))
}

fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Namespaces, accounts and pods. The function `shop/cart` has several pods, each of which is
/// a function with another name.
fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    let enforced = json!({"leno.dev/mesh": "enabled", "leno.dev/mode": "enforced"});
    for (name, labels) in
        [("shop", enforced.clone()), ("ops", enforced.clone()), ("ops2", enforced), (OUTSIDE, json!({}))]
    {
        objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
    let mut pod = |namespace: &str, name: &str, labels: Value, arguments: Vec<&str>| {
        let metadata = json!({"namespace": namespace, "name": name, "labels": labels});
        objects.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
        let container = json!({
            "name": "echo", "image": "local/echo:1", "imagePullPolicy": "Never", "args": arguments,
            "resources": {"requests": {"cpu": "20m"}},
        });
        objects.push(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
            "serviceAccountName": name, "nodeSelector": {"kubernetes.io/hostname": "node1"},
            "terminationGracePeriodSeconds": 0, "containers": [container],
        }}));
    };
    for slot in 0..CALLEES {
        let name = format!("cart-{slot}");
        pod("shop", &name, json!({"app": name}), [&["serve"], &PORTS[..]].concat());
    }
    for caller in CALLERS {
        let labels = match caller {
            "shop/web" => json!({"app": "web", "tier": "front"}),
            "shop/pay" => json!({"app": "pay"}),
            "ops/audit" => json!({"app": "audit", "tier": "back"}),
            _ => json!({}),
        };
        let (namespace, name) = place(caller);
        pod(namespace, name, labels, vec!["serve", "80"]);
    }
    objects
}

/// Namespace and name of the pod of a caller.
fn place(caller: &str) -> (&str, &str) {
    caller.split_once('/').unwrap_or((OUTSIDE, "client"))
}

/// Lines of the access log, by their requests.
#[derive(Clone, Default)]
struct Lines(Arc<(Mutex<HashMap<String, LogLine>>, Condvar)>);

pub(crate) struct Pods<'a> {
    cluster: &'a Cluster,
    callers: BTreeMap<&'static str, (ChildStdin, BufReader<ChildStdout>)>,
    /// By namespace and name.
    addresses: HashMap<String, String>,
    log: Lines,
    children: Vec<Child>,
}

impl Pods<'_> {
    fn started(mut self) -> Self {
        let namespaces: BTreeSet<&str> = CALLERS.iter().map(|caller| place(caller).0).collect();
        for namespace in namespaces {
            self.cluster.run(&["wait", "-n", namespace, "pod", "--all", "--for=condition=Ready", "--timeout=120s"]);
            for pod in self.cluster.items(&["pods", "-n", namespace]) {
                let name = format!("{namespace}/{}", pod["metadata"]["name"].as_str().unwrap());
                self.addresses.insert(name, pod["status"]["podIP"].as_str().unwrap().to_owned());
            }
        }
        for caller in CALLERS {
            let (namespace, name) = place(caller);
            let mut child = self
                .cluster
                .kubectl(&["exec", "-i", "-n", namespace, name, "--", "/usr/bin/echo", "call"])
                .spawn()
                .unwrap();
            let ends = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
            self.callers.insert(caller, ends);
            self.children.push(child);
        }
        let agents = self.cluster.items(&[
            "pods",
            "-n",
            "leno-system",
            "-l",
            "app.kubernetes.io/name=leno-agent",
            "--field-selector=spec.nodeName=node1",
        ]);
        let agent = agents[0]["metadata"]["name"].as_str().unwrap();
        let mut child =
            self.cluster.kubectl(&["logs", "-f", "-n", "leno-system", agent, "--since=1s"]).spawn().unwrap();
        let (output, lines) = (BufReader::new(child.stdout.take().unwrap()), self.log.clone());
        thread::spawn(move || lines.read(output));
        self.children.push(child);
        self
    }

    /// Sends the cases of a unit, each after its earlier requests.
    pub(crate) fn send<'u>(&mut self, unit: &'u Unit<'u>, keys: &Keys) -> Vec<Exchange<'u>> {
        let send = |case: &&Case| {
            let mut case = Case::clone(case);
            shift(&mut case, SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64());
            for past in &case.history {
                let before = Case { request: past.request_of(&case.request), ..case.clone() };
                for _ in 0..past.times {
                    self.exchange(&unit.names, &before, &Head::of(&before, keys));
                }
            }
            let head = Head::of(&case, keys);
            let answer = self.exchange(&unit.names, &case, &head);
            let (namespace, name) = place(case.request.identity.as_deref().unwrap_or_default());
            let address = self.addresses[&format!("{namespace}/{name}")].clone();
            Exchange { group: unit.group, case, head, names: unit.names.clone(), address, answer }
        };
        unit.cases.iter().map(send).collect()
    }

    fn exchange(&mut self, names: &Names, case: &Case, head: &Head) -> Answer {
        let request = &case.request;
        let address = format!("{}:{}", self.addresses[&format!("shop/{}", names.function)], request.port);
        let call = call(case, head, &address);
        let (input, output) = self.callers.get_mut(request.identity.as_deref().unwrap_or_default()).unwrap();
        writeln!(input, "{call}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{}: {error}: {line}", case.name))
    }

    /// What there is to see of an exchange.
    pub(crate) fn seen(&self, exchange: &Exchange<'_>) -> Seen {
        let id = exchange.answer.header("x-request-id").unwrap_or_default();
        let line = self.log.wait(id, exchange.is_logged());
        Seen { echo: serde_json::from_str(&exchange.answer.body).ok(), line }
    }
}

impl Drop for Pods<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let namespaces: BTreeSet<&str> = CALLERS.iter().map(|caller| place(caller).0).collect();
        let arguments = ["delete", "namespace", "--timeout=120s"].into_iter().chain(namespaces).collect::<Vec<_>>();
        if let Err(error) = self.cluster.attempt(&arguments, "") {
            eprintln!("{error}");
        }
    }
}

impl Exchange<'_> {
    /// Whether the policies want a line in the access log.
    pub(crate) fn is_logged(&self) -> bool {
        let log = self.case.expect.plan.as_ref().map(|plan| &plan["log"]);
        let statuses = log.and_then(|log| log["statuses"].as_array()).filter(|statuses| !statuses.is_empty());
        let has =
            |range: &Value| (range[0].as_u64()..=range[1].as_u64()).contains(&Some(u64::from(self.answer.status)));
        log.is_none_or(|log| log["enabled"] != false) && statuses.is_none_or(|statuses| statuses.iter().any(has))
    }
}

impl Lines {
    fn read(&self, output: impl BufRead) {
        for line in output.lines().map_while(Result::ok) {
            let line = LogLine::read(&line);
            if let Some(id) = line.0.get("request_id").cloned() {
                self.0.0.lock().unwrap().insert(id, line);
                self.0.1.notify_all();
            }
        }
    }

    /// The line of a request, which comes soon if it is to come.
    fn wait(&self, id: &str, is_expected: bool) -> Option<LogLine> {
        let lines = self.0.0.lock().unwrap();
        let limit = if is_expected { Duration::from_secs(10) } else { Duration::ZERO };
        let (lines, _) = self.0.1.wait_timeout_while(lines, limit, |lines| !lines.contains_key(id)).unwrap();
        lines.get(id).cloned()
    }
}

/// The request in the form that the caller's program reads.
fn call(case: &Case, head: &Head, address: &str) -> Value {
    let Request { method, authority, protocol, .. } = &case.request;
    let mut fields: Vec<(String, String)> = head
        .headers()
        .iter()
        .map(|field| (field.name.to_owned(), String::from_utf8(field.value.to_vec()).unwrap()))
        .collect();
    let mut add = |name: &str, value: &str| fields.push((name.to_owned(), value.to_owned()));
    match protocol.as_str() {
        "grpc" => {
            add("content-type", "application/grpc");
            add("te", "trailers");
        }
        "websocket" => {
            add("connection", "upgrade");
            add("upgrade", "websocket");
            add("sec-websocket-version", "13");
            add("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        }
        _ => {}
    }
    if let Some(answer) = &case.answer {
        let headers: BTreeMap<&String, &[String]> =
            answer.headers.iter().map(|(name, values)| (name, Texts::all(values))).collect();
        add("x-answer", &json!({"status": answer.status, "headers": headers}).to_string());
    }
    if ["grpc", "http2"].contains(&protocol.as_str()) {
        let mut headers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        fields.iter().for_each(|(name, value)| headers.entry(name).or_default().push(value));
        return json!({"address": address, "method": method, "authority": authority, "path": head.path(), "headers": headers});
    }
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let bytes = format!("{method} {} HTTP/1.1\r\nhost: {authority}\r\n{fields}\r\n", head.path());
    json!({"address": address, "method": method, "bytes": bytes})
}
