//! Policies of Kubernetes and Cilium, among the documents of a running mesh.

use crate::outside::{Answer, Names, Server};
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::{self, Mesh, echo, example, policy, public_folder};
use nix::sched::{CloneFlags, unshare};
use std::net::Ipv4Addr;
use std::process::{Child, Command};

fn function(name: &str, labels: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test, labels: {labels}}}\nspec:\n  command: [\"{}\"]\n{spec}\n",
        echo().display()
    )
}

fn exposed(host: &str) -> String {
    format!("  callees: [callee, closed]\n  expose: [{{hosts: [\"{host}\"], path: /}}]")
}

const POLICIES: &str = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open, namespace: test}
spec:
  podSelector: {matchExpressions: [{key: tier, operator: In, values: [front]}]}
  ingress: [{}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: callee, namespace: test}
spec:
  endpointSelector: {matchLabels: {app: callee}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: caller}}]
    toPorts:
    - ports: [{port: \"80\", protocol: TCP}]
      rules: {http: [{method: GET, path: \"/ok/[0-9]+\"}]}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: closed, namespace: test}
spec:
  endpointSelector: {matchLabels: {app: closed}}
  ingress: [{fromEndpoints: [{}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: calls, namespace: test}
spec:
  endpointSelector: {matchLabels: {app: caller}}
  egress:
  - toEndpoints: [{matchLabels: {app: callee}}]
  - toFQDNs: [{matchName: api.example.org}]
";

fn documents(caller: &str) -> String {
    function("caller", &format!("{{app: {caller}, tier: front}}"), &exposed("*"))
        + &function("other", "{app: other, tier: front}", &exposed("other.example"))
        + &function("callee", "{app: callee}", "")
        + &function("closed", "{app: closed}", "")
        + POLICIES
}

#[test]
fn they_decide_what_enters_and_what_is_called() {
    let mut mesh = Mesh::start(&documents("caller"));
    let as_other = ["--header", "host: other.example"];
    assert_eq!(mesh.get("/").status, 200, "anybody may enter what is open");
    assert_eq!(mesh.get("/call/callee/ok/12").status, 200);
    assert_eq!(mesh.get("/call/callee/ok/x").status, 403, "another path");
    assert_eq!(mesh.curl("/call/callee/ok/12", &as_other).status, 403, "other labels");
    // Both callers list `closed` as a callee. A policy about the calls of `caller` excludes it.
    assert_eq!(mesh.curl("/call/closed/", &as_other).status, 200);
    let answer = mesh.get("/call/closed/");
    assert_eq!(answer.status, 403, "{answer:?}");

    // A change of labels changes the permitted callers.
    mesh.write(&documents("other"));
    mesh.wait_for("the caller to have other labels", |mesh| mesh.get("/call/callee/ok/12").status == 403);
    assert_eq!(mesh.get("/call/closed/").status, 200, "the policy for its calls selects it no more");
    mesh.write(&documents("caller"));
    mesh.wait_for("the caller to have its labels again", |mesh| mesh.get("/call/callee/ok/12").status == 200);
}

/// A process that ends with the test.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const OUTSIDE: &str = "---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: outside, namespace: test}
spec:
  endpointSelector: {matchLabels: {app: caller}}
  egress:
  - toFQDNs: [{matchName: api.shop.example}, {matchName: inner.shop.example}]
    toPorts:
    - ports: [{port: \"80\"}]
      rules: {http: [{method: GET}]}
    - ports: [{port: \"443\"}]
  - toFQDNs: [{matchName: form.shop.example}]
    toPorts:
    - ports: [{port: \"80\"}]
      rules: {http: [{method: POST}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: cache, namespace: test}
spec:
  podSelector: {matchLabels: {app: caller}}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.128/25]}}]
    ports: [{port: 6379}]
";

const DENIED: &str = "---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: denied, namespace: test}
spec:
  endpointSelector: {}
  enableDefaultDeny: {egress: false}
  egressDeny: [{toCIDR: [203.0.113.0/25]}]
";

#[test]
fn they_open_the_outside_by_name_and_by_address() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root may make a network namespace, in which public addresses are the test's own");
        return;
    }
    // The servers are in a network with public addresses. The mesh is in a network with a route
    // there, so that its machine has none of these addresses.
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let ip = |enter: &[String], arguments: &str| {
        let words = enter.iter().map(String::as_str).chain(["ip"]).chain(arguments.split(' '));
        let words: Vec<&str> = words.collect();
        assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "ip {arguments}");
    };
    for arguments in
        ["link set lo up", "route add local 203.0.113.0/24 dev lo", "route add local 198.51.100.0/24 dev lo"]
    {
        ip(&[], arguments);
    }
    let authority = CertificateAuthority::default();
    let plain = Server::http("0.0.0.0:80");
    let secure = Server::https("0.0.0.0:443", &authority, &["api.shop.example"], None);
    let cache = Server::http("0.0.0.0:6379");
    // The network has a name as long as this process runs.
    let holder = Holder(Command::new("sleep").arg("infinity").spawn().unwrap());
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let there = ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", holder.0.id())];
    ip(&[], &format!("link add there type veth peer name here netns {}", holder.0.id()));
    for arguments in ["link set lo up", "addr add 192.0.2.1/24 dev there", "link set there up"] {
        ip(&[], arguments);
    }
    for arguments in ["addr add 192.0.2.2/24 dev here", "link set here up"] {
        ip(&there, arguments);
    }
    ip(&[], "route add default via 192.0.2.2");
    let names = Names::start();
    let outside = Ipv4Addr::new(203, 0, 113, 7);
    for name in ["api.shop.example", "form.shop.example", "other.shop.example"] {
        names.set(name, Answer::Addresses(vec![outside], 0));
    }
    names.set("inner.shop.example", Answer::Addresses(vec![Ipv4Addr::LOCALHOST], 0));

    let function = |name: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test, labels: {{app: {name}}}}}\nspec:\n  \
             command: [\"{}\"]\n  workingDirectory: public\n  expose: [{{hosts: [{name}.example], path: /}}]\n",
            example("wire").display()
        ) + &policy(name, name, mesh::ALLOW_ALL)
    };
    let documents = function("caller") + &function("other") + OUTSIDE;
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let fields = format!("  instances: {{isolation: strict, accounts: node}}\n{}", names.mesh());
    let mut mesh = Mesh::start_with_command(leno, &fields, &documents, public_folder);

    let ask = |mesh: &Mesh, function: &str, path: &str| {
        mesh.curl(path, &["--header", &format!("host: {function}.example")]).body
    };
    let request = |mesh: &Mesh, function: &str, to: &str, host: &str| {
        let answer = ask(mesh, function, &format!("/request/{to}/{host}"));
        answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or("none").to_owned()
    };
    let caller = |mesh: &Mesh, to: &str, host: &str| request(mesh, "caller", to, host);

    // Requests at port 80, by name and method.
    assert_eq!(caller(&mesh, "api.shop.example:80", "api.shop.example"), "200");
    assert_eq!(plain.requests(), 1);
    assert_eq!(caller(&mesh, "form.shop.example:80", "form.shop.example"), "403", "another method");
    assert_eq!(caller(&mesh, "api.shop.example:80", "other.shop.example"), "403", "a name that nobody allows");
    assert_eq!(caller(&mesh, "inner.shop.example:80", "inner.shop.example"), "503", "it leads to the node itself");
    assert_eq!(caller(&mesh, "other.shop.example:80", "other.shop.example"), "none", "it has no address");
    assert_eq!(caller(&mesh, "api.shop.example:6379", "api.shop.example:6379"), "421", "a port that is not listed");
    assert_eq!(request(&mesh, "other", "api.shop.example:80", "api.shop.example"), "none", "another function");
    assert_eq!((plain.requests(), cache.connections()), (1, 0));

    // TLS, by server name.
    let _ = ask(&mesh, "caller", "/hello/api.shop.example:443/api.shop.example");
    assert_eq!(secure.connections(), 1);
    let _ = ask(&mesh, "caller", "/hello/api.shop.example:443/form.shop.example");
    assert_eq!(secure.connections(), 1, "another name");

    // By address, except the excluded ones.
    assert_eq!(caller(&mesh, "203.0.113.7:6379", "cache"), "200");
    assert_eq!(caller(&mesh, "203.0.113.200:6379", "cache"), "none");
    assert_eq!(caller(&mesh, "198.51.100.7:6379", "cache"), "none");
    assert_eq!(caller(&mesh, "203.0.113.7:443", "203.0.113.7:443"), "421", "another port");
    assert_eq!(request(&mesh, "other", "203.0.113.7:6379", "cache"), "none", "another function");
    assert_eq!((cache.connections(), secure.connections()), (1, 1));

    let externals = String::from_utf8(mesh.leno(&["get", "externals"]).stdout).unwrap();
    for name in ["outside-egress-0-0", "outside-egress-0-1", "outside-egress-1-0", "cache-egress-0-0"] {
        assert!(externals.contains(name), "{name}: {externals}");
    }
    assert!(!mesh.log_lines("rule", "outside-egress-0-0/authorization/outside-egress-0", 1).is_empty());

    // A denial of addresses also holds for names that resolve to them.
    mesh.write(&(documents.clone() + DENIED));
    mesh.wait_for("the denial", |mesh| caller(mesh, "api.shop.example:80", "api.shop.example") == "503");
    assert_eq!(caller(&mesh, "203.0.113.7:6379", "cache"), "none");
    names.set("api.shop.example", Answer::Addresses(vec![Ipv4Addr::new(198, 51, 100, 7)], 0));
    assert_eq!(caller(&mesh, "api.shop.example:80", "api.shop.example"), "200", "it leads elsewhere now");
}

#[test]
fn what_became_of_each_field_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.yaml");
    let check = |documents: &str| {
        std::fs::write(&file, documents).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_leno")).arg("check").arg(&file).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code(), told)
    };
    let (code, told) = check(&documents("caller"));
    assert_eq!(code, Some(0), "{told}");
    for line in [
        ["CiliumNetworkPolicy test/callee", "spec.ingress[0].toPorts[0].rules.http[0].path", "approximated"],
        ["NetworkPolicy test/open", "spec.podSelector", "enforced"],
        ["CiliumNetworkPolicy test/calls", "spec.egress[1].toFQDNs[0]", "approximated"],
    ] {
        assert!(told.lines().any(|one| line.iter().all(|part| one.contains(part))), "{line:?}: {told}");
    }
    assert!(told.contains("4 translated policies") || told.contains("4 translated policy"), "{told}");
    let (code, told) =
        check(&documents("caller").replace("{matchName: api.example.org}", "x").replace("egress:", "surprise:"));
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("spec.surprise: this cannot be translated: the field is not known"), "{told}");
}
