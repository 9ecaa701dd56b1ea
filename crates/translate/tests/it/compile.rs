//! Translated policies beside the other documents of a mesh.

use leno_config::{Document, DocumentSet, Effort, Problem, Snapshot};
use leno_model::FunctionId;
use std::path::Path;

const CHAIN: &str = "
apiVersion: leno.dev/v1alpha1
kind: Chain
metadata: {name: boutique, namespace: shop}
spec: {entry: frontend, functions: [{name: frontend, to: [shop/cart, rates]}, {name: cart}, {name: rates}]}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: frontend, namespace: shop}
spec: {command: [a], protocol: chain, callees: [cart, rates, elsewhere]}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: cart, namespace: shop}
spec: {image: \"registry.example/cart:1\", protocol: chain}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: rates, namespace: shop, labels: {app: rates}}
spec: {command: [a], protocol: grpc}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: elsewhere, namespace: shop}
spec: {command: [a], callees: [frontend]}
";

/// Compiles documents of requests.
fn compiled(texts: &[&str]) -> Result<Snapshot, Vec<Problem>> {
    let read = |(index, text): (usize, &&str)| Document::read(Path::new(&format!("{index}.yaml")), text).unwrap();
    let documents: Vec<Document> = texts.iter().enumerate().flat_map(read).collect();
    leno_translate::compile(DocumentSet::of_documents(&documents, &Effort::unbounded()))
}

#[test]
fn a_chain_opens_no_call_that_a_policy_shuts() {
    let egress = "
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: shop}
spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: rates}}}]}]}
";
    let frontend = {
        let snapshot = leno_translate::load_text(Path::new("mesh.yaml"), &format!("{CHAIN}{egress}")).unwrap();
        snapshot.function_config(&"shop/frontend".parse().unwrap()).unwrap()
    };
    let callees: Vec<&FunctionId> = frontend.callees.iter().map(|callee| &callee.id).collect();
    assert_eq!(callees, frontend.chain.as_ref().unwrap().to.iter().collect::<Vec<_>>());
    assert_eq!(callees.len(), 1);
}

#[test]
fn translated_policies_lead_to_no_metadata_service_either() {
    let document = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: leno.dev/v1alpha1\nkind: {kind}\nmetadata: {{{name}}}\nspec: {spec}\n")
    };
    let caller = document("Function", "name: web, namespace: a", "{command: [a]}");
    let quota = |block: &str| document("NamespaceQuota", "name: a", &format!("{{egress: [\"{block}\"]}}"));
    let policy = |block: &str| {
        format!(
            "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {{name: p, namespace: a}}\nspec:\n  endpointSelector: {{}}\n  \
             egress: [{{toCIDRSet: [{{cidr: \"{block}\", except: [169.254.0.0/17]}}], toPorts: [{{ports: [{{port: \"80\", protocol: TCP}}]}}]}}]\n"
        )
    };
    for block in ["169.254.169.254/32", "169.254.0.0/16", "168.63.129.16/32"] {
        let text = policy(block);
        let problem = compiled(&[&caller, &text]).expect_err(block)[0].to_string();
        assert!(problem.contains("1.yaml") && problem.contains("metadata services"), "{problem}");
        assert!(compiled(&[&quota(block), &caller, &text]).is_ok(), "{block}");
    }
}

#[test]
fn a_policy_that_is_not_translated_is_refused() {
    let policy =
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: n}\nspec: {podSelector: {}}\n";
    let problems = leno_config::load_text(Path::new("mesh.yaml"), policy).unwrap_err();
    assert!(problems[0].message.contains("have to be translated first"), "{problems:?}");
    assert!(leno_translate::load_text(Path::new("mesh.yaml"), policy).is_ok());
}
