//! One table, every path: a call gets the same verdict by the same rule on each path.
//!
//! A request comes from a jail, where the kernel intercepts it, or from a process through the proxy
//! that its credential opens. The node delivers it locally to the callee's sidecar, or sends it
//! there through mutual TLS. A connection that carries no HTTP is spliced by the kernel, proxied by
//! the node, or judged by a node whose kernel has no rules.

mod case;
mod connections;
mod requests;
mod rewritten;

use case::{Protocol, Side};
use leno_testkit::keys::TokenKey;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo, example, kernel_makes_channels, policy, public_folder};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

/// A path by which a node carries calls between its functions.
struct Path {
    name: &'static str,
    /// Isolation of callers and callees.
    isolation: &'static str,
    /// Whether calls go through mutual TLS.
    mtls: bool,
    /// Whether the kernel judges or splices.
    kernel: bool,
    /// Whether messages go through shared memory.
    chain: bool,
}

const HANDED_OVER: Path =
    Path { name: "intercepted, handed over", isolation: "strict", mtls: false, kernel: true, chain: false };
const MUTUAL_TLS: Path = Path { name: "intercepted, mutual TLS", mtls: true, ..HANDED_OVER };
const NO_KERNEL: Path = Path { name: "intercepted, the kernel knows no rules", kernel: false, ..HANDED_OVER };
const CREDENTIAL: Path = Path { name: "proxy credential, handed over", isolation: "process", ..HANDED_OVER };
const CHAIN: Path = Path { name: "through memory", chain: true, ..CREDENTIAL };
const CREDENTIAL_MUTUAL_TLS: Path = Path { name: "proxy credential, mutual TLS", mtls: true, ..CREDENTIAL };

impl Path {
    fn start(&self, documents: &str) -> Mesh {
        let Self { isolation, mtls, .. } = self;
        let same_node = if *mtls { "always" } else { "direct" };
        let spec =
            format!("  instances: {{isolation: {isolation}, accounts: node}}\n  mtls: {{sameNode: {same_node}}}\n");
        let mesh = Mesh::start_with_command(self.leno(), &spec, documents, public_folder);
        if self.is_intercepted() {
            let are = if self.kernel { "are" } else { "are not" };
            let told = format!("connections of jails {are} judged in the kernel");
            let output = mesh.output();
            assert!(output.iter().any(|line| line.contains(&told)), "{}: no `{told}` in {output:#?}", self.name);
        }
        mesh
    }

    fn leno(&self) -> Command {
        let leno = env!("CARGO_BIN_EXE_leno");
        if self.kernel {
            return Command::new(leno);
        }
        // On a node without a control group the kernel cannot identify jails.
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", "umount --all --lazy --types cgroup2 && exec \"$0\" \"$@\"", leno]);
        unshare
    }

    fn is_intercepted(&self) -> bool {
        self.isolation == "strict"
    }

    /// Whether this path exists here. If not, prints that about `what`.
    fn is_open(&self, what: &str) -> bool {
        let open = !self.is_intercepted() || rustix::process::geteuid().is_root();
        if !open {
            eprintln!("SKIPPED: {what}: without root, only connections to port 80 are intercepted");
        }
        open
    }
}

/// The caller: a function in the namespace of its callees, or one in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// `test/web`.
    Web,
    /// `ops/audit`.
    Audit,
}

impl Caller {
    const ALL: [Self; 2] = [Self::Web, Self::Audit];

    fn namespace(self) -> &'static str {
        match self {
            Self::Web => "test",
            Self::Audit => "ops",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Audit => "audit",
        }
    }

    /// Its document and the policy that admits the gateway.
    fn documents(self, program: &str, callees: &str) -> String {
        let (namespace, name) = (self.namespace(), self.name());
        let spec = format!("  callees: [{callees}]\n  expose: [{{hosts: [{name}.example], path: /}}]");
        function(namespace, name, program, &spec)
            + &policy(&format!("in-{name}"), &format!("{namespace}/{name}"), ALLOW_ALL)
    }

    /// Makes the caller act, by a request through the gateway.
    fn ask(self, mesh: &Mesh, path: &str, arguments: &[&str]) -> leno_testkit::Answer {
        let host = format!("host: {}.example", self.name());
        mesh.curl(path, &[&["--header", &host], arguments].concat())
    }
}

fn function(namespace: &str, name: &str, program: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  command: \
         [\"{program}\"]\n  workingDirectory: public\n{spec}\n"
    )
}

/// Both callers, and their callees, each with its policy. `callees`: names and policies.
fn documents(program: &std::path::Path, spec: &str, callees: &[(&str, String)]) -> String {
    let program = program.display().to_string();
    let names: Vec<String> = callees.iter().map(|(name, _)| format!("test/{name}")).collect();
    let callers = Caller::ALL.map(|caller| caller.documents(&program, &names.join(", ")));
    let callee = |(name, rules): &(&str, String)| {
        function("test", name, &program, &(spec.to_owned() + received(name)))
            + &policy(name, name, &format!("  {rules}"))
    };
    callers.concat() + &callees.iter().map(callee).collect::<String>()
}

/// The same functions in a chain. Functions outside of the chain may call only its first function,
/// so `ops/audit` is not there.
fn chained(program: &std::path::Path, callees: &[(&str, String)]) -> String {
    let program = program.display().to_string();
    let names: Vec<&str> = callees.iter().map(|(name, _)| *name).collect();
    let members: String = names.iter().map(|name| format!("  - name: {name}\n")).collect();
    let chain = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Chain\nmetadata: {{name: all, namespace: test}}\nspec:\n  entry: web\n  functions:\n  \
         - name: web\n    to: [{}]\n{members}",
        names.join(", ")
    );
    let spec = "  protocol: chain\n  env: {CHAIN: \"1\"}";
    let callee = |(name, rules): &(&str, String)| {
        function("test", name, &program, &(spec.to_owned() + received(name)))
            + &policy(name, name, &format!("  {rules}"))
    };
    let web = Caller::Web.documents(&program, &names.join(", ")).replace("  callees:", &format!("{spec}\n  callees:"));
    chain + &web + &callees.iter().map(callee).collect::<String>()
}

/// The `paths` section of a function's document.
fn received(name: &str) -> &'static str {
    if name.starts_with("raw-") { "\n  paths: {send: asReceived}" } else { "" }
}

/// Records a value that is not as expected.
fn expect(found: &mut Vec<String>, what: &str, actual: &Value, expected: impl Into<Value>) {
    let expected = expected.into();
    if *actual != expected {
        found.push(format!("{what} is {actual} instead of {expected}"));
    }
}

/// An issuer of tokens, and a forger.
#[derive(Default)]
struct Keys {
    issuer: TokenKey,
    forger: TokenKey,
}

impl Keys {
    /// The issuer's key set, as a policy has it.
    fn set(&self) -> String {
        json!({"inline": {"keys": [self.issuer.jwk()]}}).to_string()
    }

    fn token(&self, claims: &str, forged: bool) -> String {
        let mut claims: Value = serde_json::from_str(claims).unwrap();
        claims["iss"] = "https://login.example".into();
        if forged { self.forger.token(&claims) } else { self.issuer.token(&claims) }
    }
}

/// A case over one protocol.
struct Request<'a> {
    group: &'a case::Group,
    case: &'a case::Case,
    protocol: Protocol,
    /// Function and index of the case. It is the same for all protocols of a case.
    name: String,
    /// The function whose route rewrites the request into that of the case.
    front: Option<String>,
}

impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case::Case { caller, method, headers, token, .. } = self.case;
        write!(f, "{}: {}: {method} http://{}{}", self.name, caller.name(), self.host(), self.path())?;
        headers.iter().try_for_each(|(name, value)| write!(f, ", {name}: {value}"))?;
        token.iter().try_for_each(|claims| write!(f, ", token {claims}"))?;
        write!(f, " ({})", self.protocol.name())
    }
}

impl<'a> Request<'a> {
    fn all(table: &'a [case::Group]) -> Vec<Self> {
        let mut all = Vec::new();
        for group in table {
            for (index, case) in group.cases.iter().enumerate() {
                let protocols = case.protocol.map_or(vec![Protocol::Http1, Protocol::Http2], |only| vec![only]);
                let name = format!("{}-{index}", group.function);
                all.extend(protocols.into_iter().map(|protocol| Self {
                    group,
                    case,
                    protocol,
                    name: name.clone(),
                    front: None,
                }));
            }
        }
        all
    }

    fn id(&self) -> String {
        format!("{}-{}", self.name, self.protocol.name())
    }

    fn host(&self) -> String {
        match &self.front {
            Some(front) => format!("{front}.test"),
            None => self.case.host.map_or_else(|| self.callee(), str::to_owned),
        }
    }

    fn path(&self) -> String {
        let before = if self.front.is_some() { rewritten::PREFIX } else { "" };
        format!("{before}{}", self.case.path)
    }

    fn callee(&self) -> String {
        format!("{}.test", self.group.function)
    }

    /// The call in the form that `examples/echo` reads.
    fn call(&self, keys: &Keys) -> Value {
        let case::Case { method, headers, token, forged, .. } = self.case;
        let id = self.id();
        let token = token.map(|claims| format!("Bearer {}", keys.token(claims, *forged)));
        let mut headers = headers.clone();
        headers.push(("x-request-id", &id));
        headers.extend(token.as_deref().map(|token| ("authorization", token)));
        headers.extend_from_slice(self.protocol.headers());
        // A host that is not a callee has no address in a jail: the call goes to the address of a
        // callee, with the other host in its header.
        let connect = (self.case.verdict.by == Side::Caller).then(|| self.callee());
        let http2 = self.protocol.is_http2();
        json!({"method": method, "host": self.host(), "path": self.path(), "headers": headers, "http2": http2, "connect": connect, "bind": self.case.bind})
    }

    /// The differences from the table. `status`: the status that the caller got; `lines`: the
    /// access log of both sides.
    fn differences(&self, status: &Value, lines: &[Value]) -> Vec<String> {
        let (verdict, mut found) = (&self.case.verdict, Vec::new());
        let expected = match verdict.by {
            Side::Caller => vec!["outbound"],
            Side::Callee => vec!["outbound", "inbound"],
        };
        let sides = lines.iter().map(|line| line["direction"].clone()).collect();
        expect(&mut found, "the sides that judged", &sides, expected);
        expect(&mut found, "the status that the caller got", status, verdict.status);
        for line in lines {
            let source =
                format!("spiffe://test.example/ns/{}/sa/{}", self.case.caller.namespace(), self.case.caller.name());
            expect(&mut found, "the source", &line["source"], source);
            expect(&mut found, "the protocol", &line["protocol"], self.protocol.name());
        }
        let Some(line) = lines.last() else { return found };
        let rule = match (verdict.by, verdict.rule) {
            (_, "") => Value::Null,
            (Side::Caller, rule) => rule.into(),
            (Side::Callee, rule) => format!("{}/{rule}", self.group.function).into(),
        };
        expect(&mut found, "the rule", &line["rule"], rule);
        if verdict.allow {
            expect(&mut found, "the verdict", &line["verdict"], "allow");
            return found;
        }
        expect(&mut found, "the verdict", &line["verdict"], "deny");
        expect(&mut found, "whether no rule decided", &line["default"], verdict.default);
        match verdict.clause.strip_suffix('…') {
            Some(begin) if line["clause"].as_str().is_some_and(|clause| clause.starts_with(begin)) => {}
            _ => expect(&mut found, "the clause", &line["clause"], verdict.clause),
        }
        found
    }
}

/// The fields of a request's log lines that are the same on every path.
fn in_common(lines: &[Value]) -> Value {
    let fields = ["source", "target", "authority", "method", "path", "principal"];
    let verdict = ["direction", "status", "verdict", "policy", "rule", "clause", "default"];
    let of = |line: &Value| -> Value {
        fields.iter().chain(&verdict).map(|field| ((*field).to_owned(), line[field].clone())).collect()
    };
    lines.iter().map(of).collect()
}

/// Makes the callers send all requests. Returns the status that each got, and the lines of the
/// access log about it.
fn send(mesh: &mut Mesh, requests: &[&Request<'_>], keys: &Keys) -> BTreeMap<String, (Value, Vec<Value>)> {
    let mut sent = BTreeMap::new();
    for caller in Caller::ALL {
        let its: Vec<_> = requests.iter().filter(|request| request.case.caller == caller).collect();
        // In chunks, because the caller has a time limit.
        for some in its.chunks(16) {
            let calls: Value = some.iter().map(|request| request.call(keys)).collect();
            let answer = caller.ask(mesh, "/send", &["--data", &calls.to_string()]).json();
            let statuses = answer.as_array().unwrap_or_else(|| panic!("no list of statuses: {answer}"));
            assert_eq!(statuses.len(), some.len());
            sent.extend(
                some.iter().zip(statuses).map(|(request, status)| (request.id(), (status.clone(), Vec::new()))),
            );
        }
    }
    let outbound = mesh.log_lines("direction", "outbound", requests.len());
    let passed = outbound.iter().filter(|line| line["verdict"] == "allow").count();
    let inbound = mesh.log_lines("direction", "inbound", passed);
    for line in outbound.into_iter().chain(inbound) {
        let id = line["request_id"].as_str().unwrap();
        let (_, lines) = sent.get_mut(id).unwrap_or_else(|| panic!("nobody sent this: {line}"));
        lines.push(line);
    }
    sent
}

#[test]
fn a_request_has_the_same_verdict_on_every_path() {
    let (table, keys) = (requests::table(), Keys::default());
    let requests = Request::all(&table);
    let callees: Vec<(&str, String)> =
        table.iter().map(|group| (group.function, group.policy.replace("<keys>", &keys.set()))).collect();
    let (apart, chained) = (documents(&echo(), "  callees: []", &callees), chained(&echo(), &callees));
    let (mut first, mut wrong) = (BTreeMap::new(), Vec::new());
    for path in [HANDED_OVER, MUTUAL_TLS, NO_KERNEL, CREDENTIAL, CREDENTIAL_MUTUAL_TLS, CHAIN] {
        if !path.is_open(path.name) {
            continue;
        }
        let mut mesh = path.start(if path.chain { &chained } else { &apart });
        // Messages of chains have the fields of HTTP/2 requests.
        let carried = |request: &&Request<'_>| {
            !path.chain
                || request.case.caller == Caller::Web && request.protocol.is_http2() && request.case.bind.is_none()
        };
        let requests: Vec<&Request<'_>> = requests.iter().filter(carried).collect();
        assert!(requests.len() > 50, "{}: {} requests", path.name, requests.len());
        let sent = send(&mut mesh, &requests, &keys);
        assert_eq!(mesh.instances("test/web")[0]["isolation"], path.isolation, "{}", path.name);
        // A locally delivered call has no address.
        let endpoint = path.mtls.then(|| format!("127.0.0.1:{}", mesh.ports.inbound));
        for request in &requests {
            let (status, lines) = &sent[&request.id()];
            let mut found = request.differences(status, lines);
            if let [outbound, _inbound] = &lines[..] {
                expect(&mut found, "where it was sent", &outbound["endpoint"], endpoint.clone());
            }
            let said = in_common(lines);
            let (before, of) = first.entry(request.name.clone()).or_insert_with(|| (said.clone(), path.name));
            if *before != said {
                found.push(format!("the access log says {said}, and {of} {before}"));
            }
            wrong.extend(found.iter().map(|difference| format!("{}: {request}: {difference}", path.name)));
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// In a direct chain, the kernel judges some of the calls, after the first of each, without a log
/// line.
#[test]
fn a_request_has_the_same_status_where_the_kernel_may_judge() {
    if !kernel_makes_channels() {
        return;
    }
    let (table, keys) = (requests::table(), Keys::default());
    let requests = Request::all(&table);
    let callees: Vec<(&str, String)> =
        table.iter().map(|group| (group.function, group.policy.replace("<keys>", &keys.set()))).collect();
    let documents = chained(&echo(), &callees)
        .replace("  entry: web\n", "  entry: web\n  direct: true\n")
        .replace("kind: Policy\n", "kind: Policy\n# unlogged\n");
    // The access log is on unless a policy turns it off.
    let documents: String = documents
        .split_inclusive("---\n")
        .map(|document| {
            if document.contains("# unlogged") && !document.contains("accessLog") {
                document.replacen("spec:\n", "spec:\n  accessLog: {enabled: false}\n", 1)
            } else {
                document.to_owned()
            }
        })
        .collect();
    let mesh = CHAIN.start(&documents);
    let carried = |request: &&Request<'_>| {
        request.case.caller == Caller::Web && request.protocol.is_http2() && request.case.bind.is_none()
    };
    let requests: Vec<&Request<'_>> = requests.iter().filter(carried).collect();
    assert!(requests.len() > 50, "{} requests", requests.len());
    let mut wrong = Vec::new();
    for round in 0..3 {
        for some in requests.chunks(16) {
            let calls: Value = some.iter().map(|request| request.call(&keys)).collect();
            let answer = Caller::Web.ask(&mesh, "/send", &["--data", &calls.to_string()]).json();
            let statuses = answer.as_array().unwrap_or_else(|| panic!("no list of statuses: {answer}"));
            for (request, status) in some.iter().zip(statuses) {
                if *status != request.case.verdict.status {
                    wrong
                        .push(format!("round {round}: {request}: {status} instead of {}", request.case.verdict.status));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    let text = mesh.admin("/metrics").body;
    let calls = text.lines().filter(|line| line.starts_with("leno_chain_channel_calls_total{"));
    let through: u64 = calls.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    assert!(through > 0, "none went through the kernel: {}", mesh.admin("/chains").body);
}

/// A path of connections that carry no HTTP.
struct Wire {
    name: &'static str,
    path: Path,
    /// `splice` of each port.
    splice: bool,
}

impl Wire {
    fn is_spliced(&self) -> bool {
        self.splice && self.path.kernel
    }

    /// The differences from the table of connections. `answer`: the caller's response; `row`: the
    /// observed connection.
    fn differences(
        &self,
        function: &str,
        case: &connections::Case,
        answer: &leno_testkit::Answer,
        row: &Value,
    ) -> Vec<String> {
        let mut found = Vec::new();
        let allow = case.allow && !self.path.mtls;
        expect(&mut found, "the verdict", &row["verdict"], if allow { "allow" } else { "deny" });
        let (status, body) =
            if allow { (200, format!("I am test/{function}\nhello")) } else { (502, answer.body.clone()) };
        expect(&mut found, "what the caller got", &json!([answer.status, answer.body]), json!([status, body]));
        let rule = (!case.rule.is_empty()).then(|| format!("{function}/{}", case.rule));
        // The kernel knows that no rule allows it, but not which one came nearest.
        let (rule, reason) = match (allow, self.path.kernel) {
            (true, _) => (rule, None),
            (false, false) => (rule, Some(case.clause)),
            (false, true) => (None, Some("no rule allows it")),
        };
        expect(&mut found, "the rule", &row["rule"], rule);
        expect(&mut found, "the reason", &row["reason"], reason);
        expect(&mut found, "whether it was spliced", &row["spliced"], (allow && self.is_spliced()).then_some(true));
        found
    }
}

/// The observed connections, once there are this many.
fn observed(mesh: &mut Mesh, count: usize) -> Vec<Value> {
    let mut rows = Vec::new();
    mesh.wait_for("connections", |mesh| {
        let output = mesh.leno(&["observe", "--json", "--last", "1000", "--kind", "connection"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect();
        rows.len() >= count
    });
    rows
}

#[test]
fn a_connection_has_the_same_verdict_on_every_path() {
    let table = connections::table();
    let callees: Vec<(&str, String)> = table.iter().map(|group| (group.function, group.policy.to_owned())).collect();
    let mut wrong = Vec::new();
    for wire in [
        Wire { name: "spliced by the kernel", path: HANDED_OVER, splice: true },
        Wire { name: "carried by the node", path: HANDED_OVER, splice: false },
        Wire { name: "judged by the node alone", path: NO_KERNEL, splice: true },
        // Where all calls must use mutual TLS, no such connection is allowed.
        Wire { name: "refused for mutual TLS", path: MUTUAL_TLS, splice: true },
    ] {
        if !wire.path.is_open(wire.name) {
            continue;
        }
        let ports = connections::PORTS.map(|port| format!("{{port: {port}, splice: {}}}", wire.splice)).join(", ");
        let served = connections::PORTS.map(|port| port.to_string()).join(" ");
        let spec = format!("  callees: []\n  env: {{ECHO_PORTS: \"{served}\"}}\n  ports: [{ports}]");
        let mut mesh = wire.path.start(&documents(&example("wire"), &spec, &callees));
        let cases: Vec<_> =
            table.iter().flat_map(|group| group.cases.iter().map(|case| (group.function, case))).collect();
        let answers: Vec<_> = cases
            .iter()
            .map(|(function, case)| case.caller.ask(&mesh, &format!("/say/{function}.test:{}/hello", case.port), &[]))
            .collect();
        let rows = observed(&mut mesh, cases.len());
        for ((function, case), answer) in cases.iter().zip(&answers) {
            let instance = format!("{}/{}-", case.caller.namespace(), case.caller.name());
            let is_its = |row: &&Value| {
                row["source"].as_str().is_some_and(|source| source.starts_with(&instance))
                    && row["target"] == format!("test/{function}")
                    && row["port"] == case.port
                    && row["protocol"] == "tcp"
            };
            let its: Vec<&Value> = rows.iter().filter(is_its).collect();
            let found = match its[..] {
                [row] => wire.differences(function, case, answer, row),
                _ => vec![format!("it was observed as {its:?}")],
            };
            let place = format!("{}: {} to {function}.test:{}", wire.name, case.caller.name(), case.port);
            wrong.extend(found.iter().map(|difference| format!("{place}: {difference}")));
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
