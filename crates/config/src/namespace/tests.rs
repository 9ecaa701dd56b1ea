use super::*;
use crate::collection::Document;
use crate::snapshot::Snapshot;
use leno_model::Isolation;
use std::path::Path;

const SHOP: &str = "
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: shop, namespace: a}
spec: {command: [/bin/true], workingDirectory: /, scale: {min: 3}, resources: {memory: 64Mi, pids: 7}}
---
apiVersion: leno.dev/v1alpha1
kind: Job
metadata: {name: sweep, namespace: a}
spec: {command: [/bin/true], workingDirectory: /, parallelism: 2, completions: 2, resources: {cpu: 1.5}}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: rules, namespace: a}
spec: {functions: [shop], authorization: {rules: [{name: one}, {name: two}]}, rateLimits: [{name: r, requests: 1, per: 1s}]}
";

fn quota(text: &str) -> String {
    format!("apiVersion: leno.dev/v1alpha1\nkind: NamespaceQuota\nmetadata: {{name: a}}\nspec: {text}\n")
}

fn from_files(text: &str) -> Snapshot {
    crate::load_text(Path::new("mesh.yaml"), text).unwrap()
}

fn from_requests(text: &str) -> Snapshot {
    Snapshot::of_documents(&Document::read(Path::new("mesh.yaml"), text).unwrap()).unwrap()
}

fn bounds(snapshot: &Snapshot, name: &str) -> NamespaceBounds {
    let id = format!("a/{name}").parse().unwrap();
    snapshot.function_config(&id).unwrap().bounds
}

#[test]
fn the_use_of_a_namespace_is_that_of_its_documents() {
    let snapshot = from_files(SHOP);
    let expected = NamespaceUse {
        functions: 2,
        instances: 5,
        cpu_millis: 1500,
        memory: 64 << 20,
        pids: 7,
        rules: 3,
        secrets: 0,
        secret_bytes: 0,
        routes: 0,
        route_matches: 0,
        document_bytes: 0,
    };
    assert_eq!(snapshot.namespaces(), BTreeMap::from([("a", expected)]));
}

#[test]
fn a_bound_refuses_growth_and_not_what_is_there() {
    let snapshot =
        from_requests(&format!("{SHOP}---\n{}", quota("{functions: 1, instances: 4, rules: 3, memory: 1Mi}")));
    let (used, quota) = (snapshot.namespaces()["a"], snapshot.quota("a"));
    let fields = |before: &NamespaceUse| -> Vec<&str> {
        used.overruns(quota, before).iter().map(|overrun| overrun.field).collect()
    };
    assert_eq!(fields(&NamespaceUse::default()), ["functions", "instances", "memory"]);
    assert_eq!(fields(&used), [""; 0]);
    assert_eq!(fields(&NamespaceUse { instances: 4, ..used }), ["instances"]);
    assert!(used.overruns(&NamespaceQuota::default(), &NamespaceUse::default()).is_empty());
}

#[test]
fn the_documents_beyond_a_bound_are_named_in_their_order() {
    let places = |text: &str, fields: &str| -> Vec<(u32, String)> {
        let text = format!("{text}---\n{}", quota(fields));
        let found = crate::load_text(Path::new("mesh.yaml"), &text).unwrap_err();
        found.into_iter().map(|problem| (problem.line, problem.message)).collect()
    };
    let lines =
        |text: &str, fields: &str| -> Vec<u32> { places(text, fields).into_iter().map(|(line, _)| line).collect() };
    // The function is on line 2, the job on line 7, the policy on line 12.
    assert_eq!(lines(SHOP, "{functions: 1}"), [7]);
    assert_eq!(lines(SHOP, "{instances: 4}"), [7], "3 and 2 instances");
    assert_eq!(lines(SHOP, "{instances: 2}"), [2, 7], "the function alone exceeds it");
    assert_eq!(lines(SHOP, "{cpu: 1}"), [7], "the largest instance is the job's");
    assert_eq!(lines(SHOP, "{memory: 32Mi}"), [2], "and this one the function's");
    assert_eq!(lines(SHOP, "{rules: 2}"), [12], "the policy comes after its function");
    let late = SHOP.replace("functions: [shop]", "selector: {tier: web}");
    let labelled = |name: &str| {
        format!(
            "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: a, labels: {{tier: web}}}}\n\
             spec: {{command: [/bin/true], workingDirectory: /}}\n"
        )
    };
    let late = format!("{late}{}{}", labelled("one"), labelled("two"));
    assert_eq!(lines(&late, "{rules: 5}"), [22], "a function to which a policy before it applies");
    let many = ["b", "c", "d", "e", "f"].map(labelled).concat();
    let found = places(&format!("{SHOP}{many}"), "{functions: 2}");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|(_, message)| message.contains("(5 documents exceed it)")), "{found:?}");
}

#[test]
fn a_quota_counts_before_the_mesh_document_and_that_before_the_defaults() {
    let mesh = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {namespaces: {pids: 10, openRequests: 20}}\n";
    let snapshot = from_files(&format!("{SHOP}---\n{mesh}---\n{}", quota("{pids: 8, engines: [wasm]}")));
    let own = bounds(&snapshot, "shop");
    assert_eq!((own.pids(), own.open_requests(), own.waiting_requests()), (8, 20, 1024));
    assert_eq!(snapshot.quota("b").bounds.pids(), 10);
    let engine = snapshot.function_config(&"a/shop".parse().unwrap()).unwrap().engine;
    assert_eq!(engine, Some(Engine::Wasm), "the only engine of the quota");
}

#[test]
fn only_documents_of_requests_have_no_files_and_no_special_addresses_unless_they_are_given() {
    let own = bounds(&from_files(SHOP), "shop");
    assert_eq!((own.files, own.egress, own.metadata), (None, None, None));
    let own = bounds(&from_requests(SHOP), "shop");
    assert_eq!((own.files, own.egress), (Some(Vec::new()), Some(Vec::new())));
    let given = format!("{SHOP}---\n{}", quota("{files: [/etc/a], egress: [10.0.0.0/8]}"));
    let own = bounds(&from_requests(&given), "shop");
    assert_eq!(own.files, Some(vec!["/etc/a".into()]));
    assert_eq!(own.egress.map(|blocks| blocks.len()), Some(1));
}

#[test]
fn a_config_is_delivered_without_restrictions_that_it_cannot_run_into() {
    let config = |text: &str| from_requests(text).function_config(&"a/shop".parse().unwrap()).unwrap();
    let plain = config(SHOP);
    assert_eq!(plain.for_delivery().bounds, NamespaceBounds::default());
    let text = SHOP.replace("scale: {min: 3}", "scale: {min: 3}, secrets: [{name: s, from: /etc/s}]");
    let delivered = config(&text).for_delivery().into_owned().bounds;
    assert_eq!((delivered.files, delivered.egress), (Some(Vec::new()), None));
}

#[test]
fn what_is_weaker_than_its_namespace_may_have_is_found_and_delivered_with_the_bound() {
    let text = format!("{SHOP}---\n{}", quota("{isolation: strict}"));
    let mut config = from_files(&text).function_config(&"a/shop".parse().unwrap()).unwrap();
    assert_eq!(config.bounds.isolation, Some(Isolation::Strict));
    assert_eq!(config.weaker_isolation(), None, "what says nothing is as strict as it has to be");
    assert_eq!(config.for_delivery().bounds.isolation, None);
    let Run::Command(command) = &mut config.run else { panic!("{:?}", config.run) };
    command.isolation = Isolation::Process;
    assert_eq!(config.weaker_isolation(), Some((Isolation::Process, Isolation::Strict)));
    assert_eq!(config.for_delivery().bounds.isolation, Some(Isolation::Strict));
}

#[test]
fn a_revision_with_a_metadata_service_that_is_listed_no_more_is_delivered_to_be_refused() {
    let command = "command: [/bin/true], workingDirectory: /, scale: {min: 3}, resources: {memory: 64Mi, pids: 7}";
    let text = SHOP.replace(command, "external: {addresses: [\"[::ffff:169.254.169.254]:80\"]}");
    assert_ne!(text, SHOP);
    let listed = from_requests(&format!("{text}---\n{}", quota("{egress: [169.254.169.254]}")));
    let mut config = listed.function_config(&"a/shop".parse().unwrap()).unwrap();
    assert_eq!((config.unlisted_metadata(), config.for_delivery().bounds.metadata.clone()), (None, None));
    config.bounds.metadata = Some(Vec::new());
    assert_eq!(config.unlisted_metadata(), Some("169.254.169.254".parse().unwrap()));
    assert_eq!(config.for_delivery().unlisted_metadata(), config.unlisted_metadata());
    config.bounds.metadata = None;
    assert_eq!(config.unlisted_metadata(), None, "a document that is a file");
}
