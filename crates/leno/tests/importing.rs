//! Policies of Kubernetes and Cilium, among the documents of a running mesh.

mod mesh;

use mesh::{Mesh, echo};

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
    // Both list it as a callee; a policy about the caller's own calls leaves it out.
    assert_eq!(mesh.curl("/call/closed/", &as_other).status, 200);
    let answer = mesh.get("/call/closed/");
    assert_eq!(answer.status, 403, "{answer:?}");

    // A change of labels is a change of who may call.
    mesh.write(&documents("other"));
    mesh.wait_for("the caller to have other labels", |mesh| mesh.get("/call/callee/ok/12").status == 403);
    assert_eq!(mesh.get("/call/closed/").status, 200, "the policy for its calls selects it no more");
    mesh.write(&documents("caller"));
    mesh.wait_for("the caller to have its labels again", |mesh| mesh.get("/call/callee/ok/12").status == 200);
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
        ["CiliumNetworkPolicy test/calls", "spec.egress[1].toFQDNs[0]", "left out"],
    ] {
        assert!(told.lines().any(|one| line.iter().all(|part| one.contains(part))), "{line:?}: {told}");
    }
    assert!(told.contains("4 translated policies") || told.contains("4 translated policy"), "{told}");
    let (code, told) =
        check(&documents("caller").replace("{matchName: api.example.org}", "x").replace("egress:", "surprise:"));
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("spec.surprise: this cannot be translated: the field is not known"), "{told}");
}
