//! Mistakes of people who write their first documents: the check reports each at its place, with the
//! fix. Fixes that a machine can apply are applied, and then accepted.

use leno_config::{Problem, load_text};
use std::fs;
use std::path::{Path, PathBuf};

/// A right mesh, in the folder of this test.
const RIGHT: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Mesh
metadata: {name: demo}
spec:
  trustDomain: demo.example
  gateway: {http: "127.0.0.1:8080"}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: shop, namespace: demo, labels: {tier: front}}
spec:
  command: [python3, shop.py]
  env: {LEVEL: info}
  resources: {memory: 256Mi}
  scale: {min: 1, max: 4}
  timeouts: {request: 30s}
  expose: [{hosts: [shop.example], path: /}]
  callees: [stock, bank]
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: stock, namespace: demo}
spec:
  command: [node, stock.js]
  readiness: {http: /healthz}
---
apiVersion: leno.dev/v1alpha1
kind: External
metadata: {name: bank, namespace: demo}
spec:
  hosts: [api.bank.example]
  ports: [{port: 443, protocol: https}]
---
apiVersion: leno.dev/v1alpha1
kind: Job
metadata: {name: nightly, namespace: demo}
spec:
  command: [python3, report.py]
  callees: [stock]
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: shop, namespace: demo}
spec:
  functions: [shop]
  authorization:
    rules:
    - {name: read, to: [{methods: [GET], paths: ["/items/{id}"]}]}
  rateLimits:
  - {name: all, requests: 100, per: 1m}
  retry: {attempts: 2, retryOn: [connect-failure, "503"]}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: stock, namespace: demo}
spec:
  functions: [stock]
  authorization:
    rules:
    - {name: callers, from: [{identities: [shop, nightly]}]}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: bank, namespace: demo}
spec:
  functions: [bank]
  authorization:
    rules:
    - {name: pay, from: [{identities: [shop]}], to: [{methods: [POST]}]}
"#;

/// The beginning of the policy of `shop`, to which sections are added.
const FUNCTIONS: &str = "spec:\n  functions: [shop]\n";

/// The same, with an issuer of tokens.
macro_rules! issuer {
    ($fields:literal) => {
        concat!(
            "spec:\n  functions: [shop]\n  authentication: {issuers: [{issuer: https://id.example, ",
            $fields,
            "}]}\n"
        )
    };
}

/// The name of the mistake, the right text, the wrong text, the field, and a part of message or fix.
#[rustfmt::skip]
const MISTAKES: &[(&str, &str, &str, &str, &str)] = &[
    ("a misspelt field", "  command: [node", "  comand: [node", "spec.comand", "did you mean `command`?"),
    ("a command line as a text", "[node, stock.js]", "node stock.js", "spec.command", r#"write ["node", "stock.js"]"#),
    ("a command line in one element", "[node, stock.js]", "[node stock.js]", "spec.command", r#"write ["node", "stock.js"]"#),
    ("a shell's operator", "[node, stock.js]", "[npm, ci, \"&&\", npm, start]", "spec.command", "no shell is involved"),
    ("a callee that does not exist", "[stock, bank]", "[stok, bank]", "spec.callees[0]", "did you mean `demo/stock`?"),
    ("a callee as an address", "[stock, bank]", "[\"http://stock\", bank]", "spec.callees[0]", "expected `name` or `namespace/name`"),
    ("one callee as a text", "callees: [stock, bank]", "callees: stock", "spec.callees", "write [stock]"),
    ("a job as a callee", "[stock, bank]", "[stock, bank, nightly]", "spec.callees[2]", "nobody can call a job"),
    ("a callee that does not admit the caller", "[shop, nightly]", "[nightly]", "spec.callees[0]", "are refused with 403"),
    ("a job that a callee does not admit", "[shop, nightly]", "[shop]", "spec.callees[0]", "add `{identities: [nightly]}` to `from`"),
    ("a caller without an edge", "callees: [stock, bank]", "callees: [bank]", "spec.authorization.rules[0].from[0].identities[0]", "does not call `demo/stock`"),
    ("a namespace that has no callers", "identities: [shop]}], to", "namespaces: [dmeo]}], to", "metadata.name", "every request to `demo/bank` is refused"),
    ("a rule about callers at an exposed function", "{name: read, to", "{name: read, from: [{identities: [nightly]}], to", "spec.authorization.rules[0].from[0].identities[0]", "does not call `demo/shop`"),
    ("a policy without its function", "functions: [stock]", "functions: [stocks]", "spec.functions[0]", "did you mean `demo/stock`?"),
    ("a function without rules", "functions: [stock]", "functions: [bank]", "metadata.name", "every request to `demo/stock` is refused"),
    ("a method in lower case", "methods: [GET]", "methods: [get]", "spec.authorization.rules[0].to[0].methods[0]", "write GET"),
    ("a path without a slash", "\"/items/{id}\"", "\"items/{id}\"", "spec.authorization.rules[0].to[0].paths[0]", "/items"),
    ("a parameter as in Express", "\"/items/{id}\"", "\"/items/:id\"", "spec.authorization.rules[0].to[0].paths[0]", "{id}"),
    ("stars as in a shell", "\"/items/{id}\"", "\"/items/**\"", "spec.authorization.rules[0].to[0].paths[0]", "{**}"),
    ("a host that the gateway does not have", "methods: [GET], paths", "hosts: [www.shop.example], paths", "spec.authorization.rules[0]", "can never match"),
    ("a path that the gateway does not lead to it", "path: /}", "path: /shop}", "spec.authorization.rules[0]", "the gateway offers it at `shop.example/shop`"),
    ("a host with a scheme", "hosts: [shop.example]", "hosts: [\"https://shop.example\"]", "spec.expose[0].hosts[0]", "shop.example"),
    ("a host with a port", "hosts: [shop.example]", "hosts: [\"shop.example:8080\"]", "spec.expose[0].hosts[0]", "leave out the port"),
    ("exposed by a boolean", "expose: [{hosts: [shop.example], path: /}]", "expose: true", "spec.expose", "expected a list"),
    ("a time without a unit", "{request: 30s}", "{request: 30}", "spec.timeouts.request", "30s"),
    ("a time in words", "per: 1m}", "per: 1 minute}", "spec.rateLimits[0].per", "such as 250ms"),
    ("memory in megabytes", "256Mi", "256MB", "spec.resources.memory", "8Mi"),
    ("limits as in Kubernetes", "{memory: 256Mi}", "{limits: {memory: 256Mi}}", "spec.resources.limits", "expected one of `memory`"),
    ("an environment as in Kubernetes", "env: {LEVEL: info}", "env: [{name: LEVEL, value: info}]", "spec.env", "expected a mapping"),
    ("a variable that the node sets", "{LEVEL: info}", "{PORT: 8000}", "spec.env.PORT", "use `port`"),
    ("fewer at most than at least", "{min: 1, max: 4}", "{min: 5, max: 4}", "spec.scale.min", "a larger `max`"),
    ("a probe without a slash", "{http: /healthz}", "{http: healthz}", "spec.readiness.http", "a path such as /healthz"),
    ("an action in capital letters", "{name: read, to", "{name: read, action: ALLOW, to", "spec.authorization.rules[0].action", "did you mean `allow`?"),
    ("a mode of another mesh", "{name: read, to", "{name: read, mode: dry-run, to", "spec.authorization.rules[0].mode", "`audit`"),
    ("a limit of nothing", "requests: 100", "requests: 0", "spec.rateLimits[0].requests", "expected"),
    ("far too many tries", "attempts: 2", "attempts: 50", "spec.retry.attempts", "expected 1 to 10"),
    ("a success that is tried again", "\"503\"]", "\"200\"]", "spec.retry.retryOn[1]", "expected a status from 400 to 599"),
    ("a condition of Envoy that is not known", "connect-failure", "connect-failures", "spec.retry.retryOn[0]", "did you mean `connect-failure`?"),
    ("users without tokens", "{name: read, to", "{name: read, from: [{requestPrincipals: [\"*\"]}], to", "spec.authorization.rules[0].from[0].requestPrincipals", "add an `authentication` section"),
    ("a claim without tokens", "{name: read, to", "{name: read, when: [{claim: admin, values: [true]}], to", "spec.authorization.rules[0].when[0].claim", "add an `authentication` section"),
    ("an identity as in Istio", "identities: [shop]}], to", "identities: [cluster.local/ns/demo/sa/shop]}], to", "spec.authorization.rules[0].from[0].identities[0]", "write demo/shop"),
    ("an identity of another trust domain", "identities: [shop]}], to", "identities: [\"spiffe://cluster.local/ns/demo/sa/shop\"]}], to", "spec.authorization.rules[0].from[0].identities[0]", "`demo.example`"),
    ("a trust domain as a URI", "trustDomain: demo.example", "trustDomain: spiffe://demo.example", "spec.trustDomain", "expected a name such as shop.example"),
    ("one port for two listeners", "gateway: {http: \"127.0.0.1:8080\"}", "gateway: {http: \"127.0.0.1:8080\"}\n  listeners: {outbound: \"127.0.0.1:8080\"}", "spec.listeners.outbound", "give each its own address"),
    ("a listener without an address", "\"127.0.0.1:8080\"", "8080", "spec.gateway.http", "127.0.0.1:8080"),
    ("TLS without files", "gateway: {http: \"127.0.0.1:8080\"}", "gateway: {https: {listen: \"127.0.0.1:8443\", certificate: tls.crt, key: tls.key}}", "spec.gateway.https.certificate", "there is no file"),
    ("an address for a host", "hosts: [api.bank.example]", "hosts: [\"https://api.bank.example/v1\"]", "spec.hosts[0]", "api.bank.example"),
    ("a port in quotes", "{port: 443,", "{port: \"443\",", "spec.ports[0].port", "expected a whole number"),
    ("a name with an underscore", "{name: nightly,", "{name: nightly_report,", "metadata.name", "a-z, 0-9 and `-`"),
    ("a function twice", "{name: stock, namespace: demo}\nspec:\n  command", "{name: shop, namespace: demo}\nspec:\n  command", "metadata.name", "there is another function"),
    ("a place twice", "  readiness: {http: /healthz}", "  expose: [{hosts: [shop.example], path: /}]", "spec.expose[0]", "shop.example"),
    ("shares that are not everything", "  env: {LEVEL: info}", "  traffic: [{latest: true, percent: 50}]", "spec.traffic", "expected 100"),
    ("a revision of an earlier start", "  env: {LEVEL: info}", "  traffic: [{revision: shop-00002, percent: 100}]", "spec.traffic[0].revision", "add `revisions: [{name: stable}]`"),
    ("a misspelt name of a revision", "  env: {LEVEL: info}", "  revisions: [{name: stable}, {name: next}]\n  traffic: [{revision: stables, percent: 100}]", "spec.traffic[0].revision", "did you mean `stable`?"),
    ("revisions without shares", "  env: {LEVEL: info}", "  revisions: [{name: stable}, {name: next}]", "spec.revisions", "add `traffic: [{revision: stable, percent: 100}]`"),
    ("a name of a revision twice", "  env: {LEVEL: info}", "  revisions: [{name: next}, {name: next}]\n  traffic: [{revision: next, percent: 100}]", "spec.revisions[1].name", "give each its own name"),
    ("a number for a name", "  env: {LEVEL: info}", "  revisions: [{name: shop-00001}]", "spec.revisions[0].name", "expected another name"),
    ("the latest of named revisions", "  env: {LEVEL: info}", "  revisions: [{name: next}]\n  traffic: [{latest: true, percent: 100}]", "spec.traffic[0]", "add `revision:` with one of `next`"),
    ("named shares that are not everything", "  env: {LEVEL: info}", "  revisions: [{name: next}]\n  traffic: [{revision: next, percent: 50}]", "spec.traffic", "expected 100"),
    ("callees of one revision", "  env: {LEVEL: info}", "  revisions: [{name: next, callees: [bank]}]", "spec.revisions[0].callees", "write it in its `spec`"),
    ("a program of a revision that is not there", "  env: {LEVEL: info}", "  revisions: [{name: next, workingDirectory: srv/next}]", "spec.revisions[0].workingDirectory", "there is no folder"),
    ("a revision of another function", "  env: {LEVEL: info}", "  traffic: [{revision: stock-00002, percent: 100}]", "spec.traffic[0].revision", "`shop-00001`"),
    ("a folder that is not there", "  env: {LEVEL: info}", "  workingDirectory: srv/shop", "spec.workingDirectory", "there is no folder"),
    ("a secret that is not there", "  env: {LEVEL: info}", "  secrets: [{name: KEY, from: key.txt}]", "spec.secrets[0].from", "there is no file"),
    ("a component that is not there", "  command: [node, stock.js]\n  readiness: {http: /healthz}", "  wasm: {path: stock.wasm}", "spec.wasm.path", "there is no file"),
    ("nothing to run", "  command: [node, stock.js]\n", "", "spec", "the function has nothing to run"),
    ("an image with a tag after a space", "  command: [node, stock.js]", "  image: \"stock 1.2\"", "spec.image", "expected `registry/repository:tag`"),
    ("another version of documents", "apiVersion: leno.dev/v1alpha1\nkind: Job", "apiVersion: leno.dev/v1\nkind: Job", "apiVersion", "`leno.dev/v1alpha1`"),
    ("a kind in lower case", "kind: Job", "kind: job", "kind", "did you mean `Job`?"),
    ("a job of Kubernetes", "apiVersion: leno.dev/v1alpha1\nkind: Job", "apiVersion: batch/v1\nkind: Job", "kind", "`Job` is a kind of Kubernetes"),
    ("a yes of YAML 1.1", "{name: read, to: [{methods: [GET], paths: [\"/items/{id}\"]}]}", "{name: read, when: [{audience: yes, values: [a]}]}", "spec.authorization.rules[0].when[0].audience", "write true"),
    ("a key that a tool has read as true", "retryOn: [connect-failure, \"503\"]", "true: [connect-failure]", "spec.retry.true", "write `retryOn`"),
    ("a rule that a wider one hides", "paths: [\"/items/{id}\"]}]}", "paths: [\"/items/{id}\"]}]}\n    - {name: seven, to: [{methods: [GET], paths: [/items/7]}]}", "spec.authorization.rules[1]", "decides nothing"),
    ("a rule that a deny rule undoes", "paths: [\"/items/{id}\"]}]}", "paths: [\"/items/{id}\"]}]}\n    - {name: none, action: deny, to: [{paths: [\"/{**}\"]}]}", "spec.authorization.rules[0]", "allows nothing"),
    ("a service account as in Kubernetes", "identities: [shop]}], to", "identities: [\"system:serviceaccount:demo:shop\"]}], to", "spec.authorization.rules[0].from[0].identities[0]", "write demo/shop"),
    ("a place as a pattern", "path: /}", "path: \"/shop/*\"}", "spec.expose[0].path", "write /shop"),
    ("a place without a slash, as a pattern", "path: /}", "path: shop/*}", "spec.expose[0].path", "write /shop"),
    ("a callee that is not there, near the caller's name", "[stock, bank]", "[shops, stock, bank]", "spec.callees[0]", "add a Function document"),
    ("a function that nobody calls", "{min: 1, max: 4}\n  timeouts: {request: 30s}\n  expose: [{hosts: [shop.example], path: /}]\n", "{max: 4}\n", "metadata.name", "add it to the `callees`"),
    ("a host as an address with a path", "hosts: [shop.example]", "hosts: [\"http://shop.example/\"]", "spec.expose[0].hosts[0]", "write shop.example"),
    ("a host with a path", "hosts: [shop.example]", "hosts: [\"shop.example/api\"]", "spec.expose[0].hosts[0]", "the path in `path`"),
    ("a path as an address", "\"/items/{id}\"", "\"http://shop.example/items\"", "spec.authorization.rules[0].to[0].paths[0]", "write /items"),
    ("a path with a query", "\"/items/{id}\"", "\"/items?id=7\"", "spec.authorization.rules[0].to[0].paths[0]", "leave it out"),
    ("letters of a method in another order", "methods: [GET]", "methods: [GTE]", "spec.authorization.rules[0].to[0].methods[0]", "write GET"),
    ("a method as a text", "methods: [GET]", "methods: GET", "spec.authorization.rules[0].to[0].methods", "write [GET]"),
    ("no methods", "methods: [GET]", "methods: []", "spec.authorization.rules[0].to[0].methods", "remove the field"),
    ("nothing in `to`", "to: [{methods: [GET], paths: [\"/items/{id}\"]}]", "to: []", "spec.authorization.rules[0].to", "remove the field"),
    ("the name of a rule twice", "[\"/items/{id}\"]}]}", "[\"/items/{id}\"]}]}\n    - {name: read, to: [{methods: [PUT]}]}", "spec.authorization.rules[1].name", "its own name"),
    ("an action at the wrong place", "{name: read, to: [{methods: [GET], paths: [\"/items/{id}\"]}]}", "{name: read, action: deny}", "metadata.name", "every request to `demo/shop` is refused"),
    ("a block of addresses with a long prefix", "{name: read, to", "{name: read, from: [{addresses: [10.0.0.0/33]}], to", "spec.authorization.rules[0].from[0].addresses[0]", "from 0 to 32"),
    ("an address in place of a block", "{name: read, to", "{name: read, from: [{addresses: [10.0.0.1/8]}], to", "spec.authorization.rules[0].from[0].addresses[0]", "write 10.0.0.0/8"),
    ("addresses from here to there", "{name: read, to", "{name: read, from: [{addresses: [10.0.0.1-10.0.0.9]}], to", "spec.authorization.rules[0].from[0].addresses[0]", "10.0.0.0/8"),
    ("the name of a header with a colon", "{name: read, to", "{name: read, when: [{header: \"x-team:\", values: [a]}], to", "spec.authorization.rules[0].when[0].header", "letters, digits"),
    ("a condition without values", "{name: read, to", "{name: read, when: [{header: x-team}], to", "spec.authorization.rules[0].when[0]", "add `values`"),
    ("a port that begins with zero", "  command: [node, stock.js]", "  command: [node, stock.js]\n  port: 0808", "spec.port", "write 808"),
    ("a port beyond all", "  command: [node, stock.js]", "  command: [node, stock.js]\n  port: 80800", "spec.port", "65535"),
    ("a port of the mesh itself", "  command: [node, stock.js]", "  command: [node, stock.js]\n  port: 15001\n  isolation: process", "spec.port", "every instance gets a free port"),
    ("a percentage with its sign", "  env: {LEVEL: info}", "  traffic: [{latest: true, percent: 100%}]", "spec.traffic[0].percent", "expected a whole number"),
    ("processors in thousandths", "{memory: 256Mi}", "{cpu: 500m}", "spec.resources.cpu", "expected a number"),
    ("memory without a unit", "256Mi", "256", "spec.resources.memory", "8Mi"),
    ("a number in quotes", "{min: 1, max: 4}", "{min: \"1\", max: 4}", "spec.scale.min", "expected a whole number"),
    ("a time of nothing", "per: 1m}", "per: 0s}", "spec.rateLimits[0].per", "expected 1ms to 1d"),
    ("a counter by something unknown", "per: 1m}", "per: 1m, key: [ip]}", "spec.rateLimits[0].key[0]", "`address`"),
    ("a try that outlives its request", "attempts: 2,", "attempts: 2, perTryTimeout: 1m,", "spec.retry.perTryTimeout", "all of a request of `demo/shop` takes at most 30s"),
    ("a variable without a value", "{LEVEL: info}", "{LEVEL: }", "spec.env.LEVEL", "expected text"),
    ("the name of a variable with a blank", "{LEVEL: info}", "{\"LOG LEVEL\": info}", "spec.env.LOG LEVEL", "without `=` and blanks"),
    ("a variable of a shell", "{LEVEL: info}", "{DATA: $HOME/data}", "spec.env.DATA", "no shell is involved"),
    ("a path for programs with another one in it", "{LEVEL: info}", "{PATH: \"/opt/bin:$PATH\"}", "spec.env.PATH", "no shell is involved"),
    ("a default as in Compose", "{LEVEL: info}", "{LEVEL: \"${LEVEL:-info}\"}", "spec.env.LEVEL", "write the value"),
    ("a template of Helm", "{LEVEL: info}", "{LEVEL: \"{{ .Values.level }}\"}", "spec.env.LEVEL", "nothing fills in templates"),
    ("a home in a command", "[node, stock.js]", "[~/bin/node, stock.js]", "spec.command[0]", "write the whole path"),
    ("arguments without an image", "[node, stock.js]", "[node]\n  args: [stock.js]", "spec.args", "add `image`"),
    ("a volume as in Docker", "  command: [node, stock.js]", "  command: [node, stock.js]\n  volumes: [\"./data:/data\"]", "spec.volumes[0]", "expected a mapping"),
    ("a probe as an address", "{http: /healthz}", "{http: \"http://localhost/healthz\"}", "spec.readiness.http", "such as /healthz"),
    ("a probe with a port", "{http: /healthz}", "{http: /healthz, port: 8080}", "spec.readiness.port", "expected one of `http`"),
    ("a callee twice", "[stock, bank]", "[stock, bank, stock]", "spec.callees[2]", "remove one of the two"),
    ("a namespace left out", "metadata: {name: stock, namespace: demo}\nspec:\n  command", "metadata: {name: stock}\nspec:\n  command", "spec.callees[0]", "did you mean `default/stock`?"),
    ("a policy in another namespace", "metadata: {name: stock, namespace: demo}\nspec:\n  functions", "metadata: {name: stock, namespace: other}\nspec:\n  functions", "spec.functions[0]", "did you mean `demo/stock`?"),
    ("annotations", "labels: {tier: front}", "annotations: {tier: front}", "metadata.annotations", "expected one of `name`"),
    ("a field at the left edge", "\n  callees: [stock, bank]", "\ncallees: [stock, bank]", "callees", "expected one of `apiVersion`"),
    ("a job with a time table", "[python3, report.py]", "[python3, report.py]\n  schedule: \"0 3 * * *\"", "spec.schedule", "expected one of `command`"),
    ("a service of Kubernetes", "kind: Job", "kind: Service", "kind", "called by its name"),
    ("plain text at the port of TLS", "protocol: https", "protocol: http", "spec.ports[0].protocol", "write https"),
    ("a protocol in capital letters", "protocol: https", "protocol: HTTPS", "spec.ports[0].protocol", "did you mean `https`?"),
    ("an outside address as a host", "hosts: [api.bank.example]", "hosts: [10.0.0.1]", "spec.hosts[0]", "name it in `addresses`"),
    ("tokens for anybody", FUNCTIONS, issuer!("jwks: {url: https://id.example/jwks}"), "spec.authentication.issuers[0]", "add `audiences:"),
    ("an audience as a text", FUNCTIONS, issuer!("audiences: shop, jwks: {url: https://id.example/jwks}"), "spec.authentication.issuers[0].audiences", "write [shop]"),
    ("keys by plain text", FUNCTIONS, issuer!("audiences: [shop], jwks: {url: http://id.example/jwks}"), "spec.authentication.issuers[0].jwks.url", "write https://id.example/jwks"),
    ("the description of an issuer for its keys", FUNCTIONS, issuer!("audiences: [shop], jwks: {url: https://id.example/.well-known/openid-configuration}"), "spec.authentication.issuers[0].jwks.url", "`jwks_uri`"),
    ("an issuer without keys", FUNCTIONS, issuer!("audiences: [shop]"), "spec.authentication.issuers[0]", "`jwks` is missing"),
    ("a counter for each user without tokens", "per: 1m}", "per: 1m, key: [{claim: sub}]}", "spec.rateLimits[0].key[0]", "all requests share one counter"),
    ("a quota of a namespace with another name", "---\napiVersion: leno.dev/v1alpha1\nkind: Job", "---\napiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {name: dmeo}\nspec: {instances: 100}\n---\napiVersion: leno.dev/v1alpha1\nkind: Job", "metadata.name", "did you mean `demo`?"),
    ("no connections at all", FUNCTIONS, "spec:\n  functions: [shop]\n  circuitBreaker: {maxConnections: 0}\n", "spec.circuitBreaker.maxConnections", "expected at least 1"),
    ("all requests traced twice", FUNCTIONS, "spec:\n  functions: [shop]\n  tracing: {sampling: 200}\n", "spec.tracing.sampling", "expected 0 to 100"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Problems and warnings.
fn reported(file: &Path, text: &str) -> Vec<Problem> {
    match load_text(file, text) {
        Ok(snapshot) => snapshot.warnings().to_vec(),
        Err(problems) => problems,
    }
}

#[test]
fn each_mistake_is_reported_at_its_place_with_what_would_be_right() {
    let file = folder().join("mistakes.yaml");
    assert_eq!(reported(&file, RIGHT), [], "the mesh without mistakes");
    let mut failures = Vec::new();
    for (what, right, wrong, field, words) in MISTAKES {
        assert!(RIGHT.contains(right), "{what}: `{right}` is not there");
        let problems = reported(&file, &RIGHT.replacen(right, wrong, 1));
        let fits = |problem: &&Problem| {
            problem.field == *field && format!("{}; {}", problem.message, problem.fix).contains(words)
        };
        match problems.iter().find(fits) {
            Some(problem) if problem.line == 0 => failures.push(format!("{what}: without a line: {problem}")),
            Some(problem) if problem.fix.is_empty() && !problem.message.contains("expected") => {
                failures.push(format!("{what}: without a fix: {problem}"));
            }
            Some(_) => {}
            None => failures.push(format!("{what}: not reported; instead: {problems:#?}")),
        }
    }
    assert!(MISTAKES.len() >= 120);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The value that a fix says to write; `None`: it says something else.
fn replacement(fix: &str) -> Option<&str> {
    let named = fix.strip_prefix("did you mean `").and_then(|rest| rest.strip_suffix("`?"));
    named.or_else(|| {
        let value = fix.strip_prefix("write ")?;
        let is_path = value.starts_with('/') && !value.contains([' ', '…']);
        let plain = value.starts_with('[') && value.ends_with(']') || !value.contains([' ', ':', '`', '…', '{']);
        (is_path || plain).then_some(value)
    })
}

/// The text with another value, or another name of the field, at the place of the problem.
fn mended(text: &str, problem: &Problem, value: &str) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let before: usize = lines[..problem.line as usize - 1].iter().map(|line| line.len()).sum();
    let column: usize = text[before..].chars().take(problem.column as usize - 1).map(char::len_utf8).sum();
    let mut begin = before + column;
    let name = problem.field.rsplit(['.']).next().unwrap();
    if problem.message != "there is no such field" && text[begin..].starts_with(&format!("{name}: ")) {
        begin += name.len() + 2;
    }
    let rest = &text[begin..];
    let length = match rest.chars().next().unwrap() {
        '"' => rest[1..].find('"').unwrap() + 2,
        '[' => rest.find(']').unwrap() + 1,
        '{' => rest.find('}').unwrap() + 1,
        _ if problem.message == "there is no such field" => rest.find(':').unwrap(),
        _ => rest.find([',', '}', ']', '\n', '#']).unwrap_or(rest.len()),
    };
    let quoted = if value.starts_with('[') || !value.contains(['*', '{', '%', '@', '`', '&', '!']) {
        value.to_owned()
    } else {
        format!("\"{value}\"")
    };
    format!("{}{quoted} {}", &text[..begin], &rest[length..])
}

/// The text with the fix of a problem; `None`: the fix is in words.
fn proposed(text: &str, problem: &Problem) -> Option<String> {
    if let Some(value) = replacement(&problem.fix) {
        return Some(mended(text, problem, value));
    }
    // A field to be added to the function's `spec`, and perhaps a value here that goes with it.
    let (field, rest) = problem.fix.split_once("add `")?.1.split_once('`')?;
    if !rest.is_empty() && !rest.starts_with(" to the `spec`") {
        return None;
    }
    let value = rest.split_once("write `").and_then(|(_, value)| value.split_once('`'));
    let text = value.map_or(text.to_owned(), |(value, _)| mended(text, problem, value));
    let before: usize = text.split_inclusive('\n').take(problem.line as usize).map(str::len).sum();
    let spec = text[..before].rfind("\nspec:\n")? + "\nspec:\n".len();
    Some(format!("{}  {field}\n{}", &text[..spec], &text[spec..]))
}

#[test]
fn fixes_that_a_machine_can_apply_are_accepted() {
    let mut texts: Vec<(PathBuf, String)> = Vec::new();
    for folder in [folder().join("refused"), folder().join("warned")] {
        let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        texts.extend(files.filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?))));
    }
    let file = folder().join("mistakes.yaml");
    texts.extend(MISTAKES.iter().map(|(_, right, wrong, ..)| (file.clone(), RIGHT.replacen(right, wrong, 1))));
    let (mut applied, mut failures) = (0, Vec::new());
    for (file, text) in texts {
        for problem in reported(&file, &text).iter().filter(|problem| problem.line > 0) {
            let Some(text) = proposed(&text, problem) else { continue };
            applied += 1;
            let refused = load_text(&file, &text).is_err();
            // The corpus of problems may have the right value beside the wrong one.
            let same = |other: &&Problem| {
                let there = other.field == problem.field && other.line == problem.line;
                there && (refused || other.message == problem.message) && !other.message.ends_with("is named twice")
            };
            if let Some(other) = reported(&file, &text).iter().find(same) {
                failures.push(format!("{problem}\n    then: {other}"));
            }
        }
    }
    assert!(applied > 40, "{applied} fixes");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
