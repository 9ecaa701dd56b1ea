//! Dashboards and rules for Prometheus: `promtool` accepts them, and a real Prometheus that scrapes
//! a node and a control plane evaluates each of their expressions.

use leno_telemetry::exposition::Kind;
use leno_telemetry::families::GROUPS;
use leno_testkit::cluster::{Node, control};
use leno_testkit::control::Control;
use leno_testkit::documentation::repository;
use leno_testkit::mesh::{ALLOW_ALL, echo_function, leno_program, policy};
use leno_testkit::{Answer, Process, curl, eventually, free_port, try_curl};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const INSTALL: &str = "Debian's prometheus is installed (make setup-checks)";
const TOKEN: &str = "correct-horse-battery";

/// Panels that stay empty with the traffic of the test: their events are rare, or need extensions,
/// rollouts, Externals or several nodes.
const EMPTY: [&str; 23] = [
    "Ejected endpoints",
    "Retries",
    "Requests without a verdict",
    "Signatures of tokens",
    "Connections that were not proven",
    "TCP opened",
    "TCP refused",
    "TCP received",
    "Replaced, because unhealthy",
    "Failed components",
    "Without a counter for each key",
    "Extensions",
    "Closed exchanges",
    "Refused by breakers",
    "Requests by revision",
    "Failed by revision",
    "Slow requests by revision",
    "Connections refused",
    "Idle connections closed",
    "Waiting for an extension",
    "Other nodes that could not be reached",
    "Refused by bounds",
    "Lines left out of logs",
];

fn rules() -> PathBuf {
    repository().join("packaging/prometheus/rules.yaml")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn promtool(arguments: &[&str]) {
    let folder = repository().join("packaging/prometheus");
    let output = Command::new("promtool").args(arguments).current_dir(folder).output().expect(INSTALL);
    assert!(output.status.success(), "promtool {arguments:?}: {}", said(&output));
}

#[test]
fn dashboards_are_what_their_definitions_say() {
    let output = Command::new(repository().join("scripts/dashboards.py")).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn rules_pass_their_tests_and_each_alert_has_a_test_and_a_runbook() {
    promtool(&["check", "rules", "rules.yaml"]);
    promtool(&["test", "rules", "rules.test.yaml"]);
    let (rules, tests) =
        (fs::read_to_string(rules()).unwrap(), repository().join("packaging/prometheus/rules.test.yaml"));
    let tests = fs::read_to_string(tests).unwrap();
    let runbooks = fs::read_to_string(repository().join("docs/operations/troubleshooting.md")).unwrap();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname=\"{alert}\"}}', value:")), "rules.test.yaml expects no {alert}");
        let link = format!("runbook_url: docs/operations/troubleshooting.md#{}\n", alert.to_lowercase());
        assert_eq!(rules.matches(&link).count(), 1, "{alert} has no {link}");
        assert!(runbooks.contains(&format!("\n### {alert}\n")), "troubleshooting.md has no section {alert}");
    }
}

/// `leno up` with an admin listener that Prometheus can reach.
struct Up {
    folder: TempDir,
    gateway: u16,
    admin: u16,
    _process: Process,
}

impl Up {
    fn start(documents: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [gateway, admin] = [(); 2].map(|()| free_port());
        fs::write(folder.path().join("token"), TOKEN).unwrap();
        fs::set_permissions(folder.path().join("token"), fs::Permissions::from_mode(0o600)).unwrap();
        let mesh = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: test}}\nspec:\n  trustDomain: test.example\n  \
             gateway: {{http: \"127.0.0.1:{gateway}\"}}\n  accessLog: {{file: access.log}}\n  instances: {{isolation: \
             process, accounts: node}}\n  listeners: {{outbound: \"127.0.0.1:0\", inbound: \"127.0.0.1:0\", control: \
             \"127.0.0.1:0\", admin: \"127.0.0.1:{admin}\", adminToken: token}}\n"
        );
        fs::write(folder.path().join("mesh.yaml"), mesh).unwrap();
        fs::write(folder.path().join("app.yaml"), documents).unwrap();
        let mut leno = Command::new(leno_program());
        let process = Process::spawn(leno.arg("up").arg(folder.path()).stdin(Stdio::null())).unwrap();
        let ready =
            || try_curl(&format!("http://127.0.0.1:{admin}/readyz"), &[]).is_some_and(|answer| answer.status == 200);
        eventually("the node to be ready", ready);
        Self { folder, gateway, admin, _process: process }
    }

    fn get(&self, path: &str, arguments: &[&str]) -> Answer {
        curl(&format!("http://127.0.0.1:{}{path}", self.gateway), arguments)
    }

    fn metrics(&self) -> String {
        let bearing = format!("authorization: Bearer {TOKEN}");
        curl(&format!("http://127.0.0.1:{}/metrics", self.admin), &["--header", &bearing]).body
    }
}

/// A Prometheus that scrapes once a second and has the rules.
struct Prometheus {
    port: u16,
    process: Process,
    _folder: TempDir,
}

impl Prometheus {
    fn start(up: &Up, control: &Control) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let path = |path: PathBuf| json!(path).to_string();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n\
             - job_name: leno\n  authorization: {{credentials_file: {}}}\n  static_configs: [{{targets: [\"127.0.0.1:{}\"]}}]\n\
             - job_name: leno-control\n  scheme: https\n  tls_config: {{ca_file: {}}}\n  authorization: {{credentials: {}}}\n  \
             static_configs: [{{targets: [{}]}}]\n",
            path(rules()),
            path(up.folder.path().join("token")),
            up.admin,
            path(control.path("data/api.pem")),
            json!(control.token().trim()),
            json!(control.url().trim_start_matches("https://")),
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let process = Process::spawn(
            Command::new("prometheus")
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
                .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                .arg("--enable-feature=exemplar-storage")
                .stdin(Stdio::null()),
        )
        .expect(INSTALL);
        let prometheus = Self { port, process, _folder: folder };
        eventually("Prometheus to be ready", || {
            try_curl(&prometheus.url("/-/ready"), &[]).is_some_and(|answer| answer.status == 200)
        });
        prometheus
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The data of an answer of the API.
    fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let mut arguments = vec!["--get".to_owned()];
        for (name, value) in parameters {
            arguments.extend(["--data-urlencode".to_owned(), format!("{name}={value}")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let answer = curl(&self.url(path), &arguments).json();
        assert_eq!(answer["status"], "success", "{path} {parameters:?}: {answer}\n{}", self.process.output());
        answer["data"].clone()
    }

    /// The number of samples that an expression has now.
    fn samples(&self, expression: &str) -> usize {
        self.api("/api/v1/query", &[("query", expression)])["result"].as_array().map_or(0, Vec::len)
    }
}

fn documents() -> String {
    let job = "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {name: report, namespace: test}\nspec: {command: [/bin/true]}\n";
    let limits =
        format!("{ALLOW_ALL}\n  tracing: {{sampling: 0}}\n  rateLimits: [{{name: few, requests: 40, per: 1h}}]");
    let issuer = "  authentication: {issuers: [{name: login, issuer: \"https://login.example\", required: false, jwks: {url: \
                  \"http://127.0.0.1:9/keys\"}}]}";
    let rules = "  authorization: {rules: [{name: from-front, action: allow, from: [{identities: [test/front]}], to: [{paths: \
                 [/ok, /status/500]}]}]}";
    [
        echo_function("front", "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [back]"),
        policy("front", "front", &limits),
        echo_function("back", ""),
        policy("back", "back", &format!("{rules}\n{issuer}")),
        echo_function("broken", "  expose: [{hosts: [broken.example], path: /}]"),
        policy("broken", "broken", ALLOW_ALL),
        job.to_owned(),
    ]
    .concat()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn traffic(up: &Up) {
    assert_eq!(up.get("/call/back/ok", &[]).status, 200);
    assert_eq!(up.get("/call/back/forbidden", &[]).status, 403);
    assert_eq!(up.get("/call/stranger/ok", &[]).status, 403, "it is no callee");
    assert_eq!(up.get("/call/back/status/500", &[]).status, 500);
    let sampled = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01");
    assert_eq!(up.get("/ok", &["--header", &sampled]).status, 200);
    eventually("the rate limit", || up.get("/ok", &[]).status == 429);
}

/// The families that an exposition describes.
fn described(exposition: &str) -> BTreeSet<&str> {
    exposition.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

/// The names and labels of samples are those that the table has.
fn assert_defined(exposition: &str) {
    let families = || GROUPS.iter().flat_map(|group| group.families);
    for line in exposition.lines().filter(|line| !line.starts_with('#')) {
        let line = line.split(" # ").next().unwrap();
        let (name, labels) = line.split_once('{').unwrap_or((line.split(' ').next().unwrap(), ""));
        let of = |suffix: &&str| families().find(|family| name.strip_suffix(*suffix) == Some(family.name));
        let suffixes = [Kind::Counter, Kind::Gauge, Kind::Histogram, Kind::Info].map(Kind::suffixes).concat();
        let family = suffixes
            .iter()
            .filter_map(of)
            .find(|family| family.kind.suffixes().iter().any(|suffix| name.strip_suffix(suffix) == Some(family.name)));
        let family = family.unwrap_or_else(|| panic!("no family of {line}"));
        for label in labels.split("\",").filter_map(|label| Some(label.trim_start().split_once("=\"")?.0)) {
            assert!(
                family.labels.contains(&label) || (label == "le" && family.kind == Kind::Histogram),
                "{label}: {line}"
            );
        }
    }
}

/// Each expression of the dashboards, by the title of its panel.
fn expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folder: Vec<PathBuf> =
        fs::read_dir(repository().join("packaging/grafana")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folder.sort();
    for file in folder {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap();
                let variables =
                    [("$__rate_interval", "1m"), ("=~\"$namespace\"", "=~\".*\""), ("=~\"$instance\"", "=~\".*\"")];
                let mut expression =
                    variables.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value));
                for (name, value) in [("$namespace", "test"), ("$name", "front")] {
                    expression = expression.replace(name, value);
                }
                assert!(!expression.contains('$'), "{title}: an unknown variable in {expression}");
                found.push((title.to_owned(), expression));
            }
        }
    }
    found
}

#[test]
fn prometheus_evaluates_each_expression_of_dashboards_and_rules() {
    let control = control();
    let _node = Node::join(&control, "one", &[]);
    let up = Up::start(&documents());
    let prometheus = Prometheus::start(&up, &control);
    traffic(&up);

    let (node, (status, of_control)) = (up.metrics(), control_metrics(&control));
    assert_eq!(status, 200, "{of_control}");
    for exposition in [&node, &of_control] {
        assert_defined(exposition);
    }
    let described: BTreeSet<&str> = described(&node).into_iter().chain(described(&of_control)).collect();
    let missing = GROUPS.iter().flat_map(|group| group.families).map(|family| family.name);
    // The others are there where a mesh has a quota store, or a node has pods.
    let is_conditional = |name: &str| {
        ["leno_quota_store_", "leno_pod", "leno_enforced_list_"].iter().any(|prefix| name.starts_with(prefix))
    };
    let missing: Vec<_> = missing.filter(|name| !is_conditional(name) && !described.contains(name)).collect();
    assert!(missing.is_empty(), "neither the node nor the control plane has {missing:?}");

    let targets = || prometheus.samples("up == 1") == 2;
    eventually("both to be scraped", targets);
    for (title, expression) in expressions() {
        let is_quota_store = expression.contains("leno_quota_store_");
        if EMPTY.contains(&&*title) || is_quota_store {
            prometheus.samples(&expression);
        } else {
            eventually(&format!("samples of {title:?}: {expression}"), || prometheus.samples(&expression) > 0);
        }
    }
    evaluates_rules(&up, &prometheus);
    has_the_exemplar(&prometheus);
}

/// Status and text of the control plane's `/metrics`.
fn control_metrics(control: &Control) -> (u16, String) {
    let output = Command::new("curl")
        .args(["--silent", "--noproxy", "*", "--max-time", "20", "--write-out", "\n%{http_code}", "--cacert"])
        .arg(control.path("data/api.pem"))
        .args(["--header", &format!("authorization: Bearer {}", control.token().trim())])
        .arg(format!("{}/metrics", control.url()))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

fn evaluates_rules(up: &Up, prometheus: &Prometheus) {
    let all = || -> Vec<Value> {
        let groups = prometheus.api("/api/v1/rules", &[])["groups"].clone();
        groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    };
    eventually("each rule to be evaluated", || all().iter().all(|rule| rule["health"] != "unknown"));
    for rule in all() {
        assert_eq!((&rule["health"], rule["lastError"].as_str().unwrap_or("")), (&json!("ok"), ""), "{rule}");
    }
    // Rates are those of traffic that goes on.
    let has = |expression: &str| {
        eventually(&format!("samples of {expression}"), || {
            assert_eq!(up.get("/status/500", &["--header", "host: broken.example"]).status, 500);
            prometheus.samples(expression) > 0
        });
    };
    for rule in all().iter().filter(|rule| rule["type"] == "recording") {
        has(rule["name"].as_str().unwrap());
    }
    // Nothing listens at the address of the key set.
    for alert in ["LenoErrorBudgetBurnsFast", "LenoKeySetUnreachable"] {
        has(&format!("ALERTS{{alertname=\"{alert}\"}}"));
    }
}

fn has_the_exemplar(prometheus: &Prometheus) {
    let buckets = "istio_request_duration_milliseconds_bucket{destination_workload=\"front\"}";
    let window = [("query", buckets), ("start", "0"), ("end", "4102444800")];
    let traces: BTreeSet<String> = eventually("an exemplar", || {
        let series = prometheus.api("/api/v1/query_exemplars", &window);
        let exemplars = series.as_array().unwrap().iter().flat_map(|series| series["exemplars"].as_array().unwrap());
        let traces: BTreeSet<_> =
            exemplars.map(|exemplar| exemplar["labels"]["trace_id"].as_str().unwrap().to_owned()).collect();
        (!traces.is_empty()).then_some(traces)
    });
    assert_eq!(traces, BTreeSet::from([TRACE.to_owned()]), "only sampled traces");
}

#[test]
fn promtool_accepts_the_configurations_of_the_book() {
    let book = fs::read_to_string(repository().join("docs/operations/monitoring.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let block = book.split("    # /etc/prometheus/prometheus.yml\n").nth(1).expect("the configuration");
    let lines = block.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let config: String = lines.map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect();
    let config = config.replace("/usr/share/leno/prometheus/rules.yaml", &rules().display().to_string());
    let config = config.replace("/etc/prometheus/", &format!("{}/", folder.path().display()));
    for file in ["leno.token", "leno-control.token"] {
        fs::write(folder.path().join(file), TOKEN).unwrap();
    }
    let authority = leno_testkit::keys::CertificateAuthority::with(|_| ());
    fs::write(folder.path().join("leno-control.pem"), authority.pem()).unwrap();
    let file: &Path = &folder.path().join("prometheus.yml");
    fs::write(file, config).unwrap();
    promtool(&["check", "config", file.to_str().unwrap()]);
}
