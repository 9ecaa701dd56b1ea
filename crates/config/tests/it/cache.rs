//! Compilations with the results of earlier ones are the same as without.

use leno_config::{CompileCache, Document, DocumentId, DocumentSet, Effort, Problem, Snapshot};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: &str = "jwks: {inline: {keys: [{kty: OKP, crv: Ed25519, x: 11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo}]}}";
/// Functions and External documents. Some are named and never exist.
const NAMES: [&str; 4] = ["web", "cart", "stock", "wbe"];
const NAMESPACES: [&str; 2] = ["shop", "bank"];

/// The documents of a cluster, by name.
type World = BTreeMap<DocumentId, Document>;

#[derive(Clone, Debug)]
struct Step {
    id: DocumentId,
    /// `None`: the document goes.
    spec: Option<String>,
    labels: &'static str,
    /// Whether the policies so far are in force.
    confirms: bool,
}

fn compile(
    world: &World,
    in_force: &BTreeSet<DocumentId>,
    cache: Option<CompileCache>,
) -> Result<Snapshot, Vec<Problem>> {
    let mut set = DocumentSet::of_documents(world.values(), &Effort::unbounded());
    (set.documents.kubernetes, set.documents.in_force, set.documents.cache) = (true, in_force.clone(), cache);
    set.compile()
}

fn caller() -> impl Strategy<Value = String> {
    let names = NAMES.into_iter().flat_map(|name| [name.to_owned(), format!("bank/{name}")]);
    let others = ["shop/*", "spiffe://leno.local/ns/shop/sa/one", "spiffe://other/ns/shop/sa/one"];
    select(names.chain(others.map(str::to_owned)).collect::<Vec<_>>()).prop_map(|name| format!("\"{name}\""))
}

fn source() -> impl Strategy<Value = String> {
    let principals = ["https://one.example/u", "https://two.example/u", "https://none.example/u"];
    prop_oneof![
        4 => prop::collection::vec(caller(), 1..3).prop_map(|names| format!("identities: [{}]", names.join(", "))),
        1 => caller().prop_map(|name| format!("notIdentities: [{name}]")),
        1 => select(vec!["labels: {app: a}", "labels: {app: z}", "labels: {app: b}, namespaces: [\"*\"]"]).prop_map(str::to_owned),
        1 => select(principals.to_vec()).prop_map(|principal| format!("requestPrincipals: [\"{principal}\"]")),
    ]
}

fn rule() -> impl Strategy<Value = String> {
    let to =
        ["", ", to: [{paths: [/a]}]", ", to: [{paths: [\"/*\"]}]", ", to: [{methods: [GET]}]", ", to: [{paths: [a]}]"];
    let action = ["", ", action: deny", ", mode: audit"];
    let to = prop_oneof![20 => select(to[..4].to_vec()), 1 => select(to.to_vec())];
    (source(), to, select(action.to_vec())).prop_map(|(from, to, action)| format!("{{from: [{{{from}}}]{to}{action}}}"))
}

fn policy() -> impl Strategy<Value = String> {
    let functions = NAMES.into_iter().chain(["bank/web", "shop/cart"]).collect::<Vec<_>>();
    let target = prop_oneof![
        4 => subsequence(functions, 1..3).prop_map(|names| format!("functions: [{}]", names.join(", "))),
        1 => select(vec!["selector: {}", "selector: {app: a}", "selector: {app: b}, namespaces: [\"*\"]"]).prop_map(str::to_owned),
    ];
    let sections = [
        String::new(),
        "retry: {attempts: 3, perTryTimeout: 1s}".to_owned(),
        "rateLimits: [{name: one, requests: 10, per: 1m, key: [{claim: sub}]}]".to_owned(),
        "externalAuthorization: [{name: asks, service: stock, protocol: http}]".to_owned(),
        "externalAuthorization: [{name: asks, service: bank/web, protocol: http}]".to_owned(),
        format!("authentication: {{issuers: [{{issuer: \"https://one.example\", {KEYS}}}]}}"),
        format!("authentication: {{issuers: [{{issuer: \"https://two.example\", audiences: [a], {KEYS}}}]}}"),
        "mode: audit".to_owned(),
        "faults: [{name: slow, routes: [web], delay: 1s, until: \"2020-01-01T00:00:00Z\"}]".to_owned(),
    ];
    let rules = prop::collection::vec(rule(), 0..4);
    (target, rules, select(sections.to_vec())).prop_map(|(target, rules, section)| {
        let section = if section.is_empty() { section } else { format!(", {section}") };
        format!("{target}, authorization: {{rules: [{}]}}{section}", rules.join(", "))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let id = |kind: &'static str, namespaces: &[&'static str], names: &[&'static str]| {
        (select(namespaces.to_vec()), select(names.to_vec())).prop_map(move |(namespace, name)| DocumentId {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    };
    let accounts = ["one", "two", "default", "one, otherAccounts: [two]"];
    let function = (select(accounts.to_vec()), select(vec!["permissive", "enforced"]), 80..82).prop_map(
        |(account, mode, port)| {
            format!("pods: {{serviceAccount: {account}, mode: {mode}, ports: [{{number: {port}}}]}}")
        },
    );
    let external = select(vec!["a.example", "b.example"])
        .prop_map(|host| format!("hosts: [{host}], ports: [{{port: 443, protocol: https}}]"));
    let mesh = select(vec!["", "auditNamespaces: [shop]", "auditNamespaces: [bank], limits: {requestTimeout: 1s}"]);
    let quota = select(vec!["rules: 3", "functions: 10", "rules: 1000"]);
    let policies = ["first", "second", "third", "fourth", "fifth"];
    let changed = prop_oneof![
        8 => (id("Function", &NAMESPACES, &NAMES[..3]), function.boxed()),
        8 => (id("Policy", &NAMESPACES, &policies), policy().boxed()),
        1 => (id("External", &NAMESPACES, &["stock", "out"]), external.boxed()),
        1 => (id("Mesh", &[""], &["mesh"]), mesh.prop_map(str::to_owned).boxed()),
        1 => (id("NamespaceQuota", &[""], &NAMESPACES), quota.prop_map(str::to_owned).boxed()),
    ];
    let labels = select(vec!["app: a", "app: b", "app: b, tier: x"]);
    (changed, labels, prop::bool::weighted(0.8), any::<bool>()).prop_map(|((id, spec), labels, stays, confirms)| Step {
        id,
        spec: stays.then_some(spec),
        labels,
        confirms,
    })
}

/// The document of a step. `None`: it alone is invalid.
fn document(id: &DocumentId, spec: &str, labels: &str) -> Option<Document> {
    let namespace = if id.namespace.is_empty() { String::new() } else { format!(", namespace: {}", id.namespace) };
    let labels = if id.kind == "Function" { format!(", labels: {{{labels}}}") } else { String::new() };
    let (kind, name) = (&id.kind, &id.name);
    let text = format!(
        "{{apiVersion: leno.dev/v1alpha1, kind: {kind}, metadata: {{name: {name}{namespace}{labels}}}, spec: {{{spec}}}}}"
    );
    Document::restore(id, &text).map_err(|problems| eprintln!("{problems:?}\n{text}")).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_history_of_changes_compiles_to_the_same_with_a_cache(steps in prop::collection::vec(step(), 1..40)) {
        let (cache, mut world, mut in_force) = (CompileCache::default(), World::new(), BTreeSet::new());
        for step in steps {
            let before = world.remove(&step.id);
            let now = step.spec.as_ref().map(|spec| document(&step.id, spec, step.labels));
            if let Some(document) = now.map(|document| document.expect("a document that is valid alone")) {
                world.insert(step.id.clone(), document);
            }
            let alone = compile(&world, &in_force, None);
            prop_assert_eq!(&compile(&world, &in_force, Some(cache.clone())), &alone, "{:?}", step);
            prop_assert_eq!(&compile(&world, &in_force, Some(cache.clone())), &alone, "again: {:?}", step);
            match alone {
                Ok(_) if step.confirms => in_force = world.keys().cloned().collect(),
                Ok(_) => drop(in_force.remove(&step.id)),
                // A controller leaves out a refused document, too.
                Err(_) => {
                    world.remove(&step.id);
                    world.extend(before.map(|document| (step.id, document)));
                }
            }
        }
    }
}
