//! Which version of each object is in force.

use leno_config::{Document, DocumentId, Effort, Problem, Snapshot};
use leno_controller::api::{BrokenObject, Change, Metadata, ObjectKey};
use leno_controller::crds::ObjectKind;
use leno_controller::documents::{
    ACCEPTED, Condition, DocumentObject, Functions, InForce, ObjectStatus, Objects, Selection, VersionInForce,
};
use leno_controller::index::Workload;
use leno_model::{FunctionId, PodMode};
use leno_policy::spec::Action;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn kind(name: &str) -> &'static ObjectKind {
    ObjectKind::named(name).unwrap()
}

fn object(name: &str, generation: i64, spec: Value) -> DocumentObject {
    let metadata = Metadata {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid of {name}"),
        generation: Some(generation),
        ..Metadata::default()
    };
    DocumentObject { metadata, spec, status: ObjectStatus::default() }
}

fn workload(account: &str, mode: PodMode) -> Option<Workload> {
    Some(Workload {
        service_account: account.to_owned(),
        other_accounts: Vec::new(),
        mode,
        ports: Vec::new(),
        labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
    })
}

fn functions() -> Functions {
    let mut functions = Functions::default();
    let all = ["web", "stock"].map(|name| (id(name), workload("default", PodMode::Permissive)));
    assert!(functions.apply(BTreeMap::from(all.clone())));
    assert!(!functions.apply(BTreeMap::from(all)));
    functions
}

fn id(name: &str) -> FunctionId {
    FunctionId { namespace: "shop".to_owned(), name: name.to_owned() }
}

pub(crate) fn compile(documents: &[&Document], before: BTreeSet<DocumentId>) -> Result<Snapshot, Vec<Problem>> {
    let mut set = leno_config::DocumentSet::of_documents(documents.iter().copied(), &Effort::unbounded());
    (set.documents.kubernetes, set.documents.in_force) = (true, before);
    set.compile()
}

/// Selects, and keeps the result as in force.
fn select(objects: &mut Objects) -> Selection {
    select_with(objects, &functions())
}

fn select_with(objects: &mut Objects, functions: &Functions) -> Selection {
    let selection = objects.select(functions.documents(), compile).map_err(|problems| format!("{problems:?}")).unwrap();
    objects.in_force(&selection);
    selection
}

fn policy(name: &str) -> DocumentId {
    DocumentId { kind: "Policy".to_owned(), namespace: "shop".to_owned(), name: name.to_owned() }
}

/// The names of the deny rules of a function.
fn denials(selection: &Selection, name: &str) -> Vec<String> {
    let config = selection.snapshot.function_config(&id(name)).unwrap();
    let rules = config.inbound.authorization.into_iter();
    rules.filter(|rule| rule.action == Action::Deny).map(|rule| rule.name).collect()
}

fn limits(path: &str) -> Value {
    json!({"functions": ["web"], "authorization": {"rules": [{"name": "read", "to": [{"paths": [path]}]}]}})
}

/// A path that no path can be.
const BROKEN: &str = "no path";

#[test]
fn a_broken_policy_keeps_its_last_version_and_stops_no_other() {
    let mut objects = Objects::default();
    let policies = kind("Policy");
    assert!(objects.apply(policies, Change::Put(object("limits", 1, limits("/a")))));
    assert_eq!(select(&mut objects).verdicts[&policy("limits")].in_force, InForce::Present);
    assert!(objects.apply(policies, Change::Put(object("limits", 2, limits(BROKEN)))));
    assert!(objects.apply(policies, Change::Put(object("other", 1, json!({"selector": {}, "accessLog": {}})))));
    let selection = select(&mut objects);
    let verdict = &selection.verdicts[&policy("limits")];
    assert_eq!((verdict.generation, &verdict.in_force), (2, &InForce::Earlier(1, limits("/a"))));
    let [problem] = &verdict.problems[..] else { panic!("{verdict:?}") };
    assert_eq!(problem.file.to_str(), Some("Policy shop/limits"));
    assert!(problem.field.starts_with("spec.authorization.rules[0].to[0].paths[0]") && problem.line == 0, "{problem}");
    assert_eq!(selection.verdicts[&policy("other")].in_force, InForce::Present);
    // It is mended.
    assert!(objects.apply(policies, Change::Put(object("limits", 3, limits("/b")))));
    assert_eq!(select(&mut objects).verdicts[&policy("limits")].in_force, InForce::Present);
    // Only a change of the specification is one.
    let mut same = object("limits", 3, limits("/b"));
    same.status.observed_generation = Some(3);
    assert!(!objects.apply(policies, Change::Put(same)));
}

#[test]
fn a_broken_policy_without_an_earlier_version_refuses_its_targets_only() {
    let mut objects = Objects::default();
    objects.apply(kind("Policy"), Change::Put(object("limits", 1, limits(BROKEN))));
    let selection = select(&mut objects);
    assert_eq!(selection.verdicts[&policy("limits")].in_force, InForce::Denial);
    assert_eq!(denials(&selection, "web"), ["limits/authorization/invalid-policy"]);
    assert_eq!(denials(&selection, "stock"), [""; 0]);
    // Targets that cannot be read are all functions of the namespace.
    let mut spec = limits("/a");
    spec["functions"] = json!([{"name": "web"}]);
    objects.apply(kind("Policy"), Change::Put(object("limits", 2, spec)));
    let selection = select(&mut objects);
    assert_eq!(denials(&selection, "stock"), ["limits/authorization/invalid-policy"]);
    // And so are those of an object that cannot be decoded.
    let mut objects = Objects::default();
    let key = ObjectKey { namespace: "shop".to_owned(), name: "limits".to_owned() };
    let broken =
        BrokenObject { kind: "Policy", key: key.clone(), field: "metadata".to_owned(), message: "no".to_owned() };
    objects.apply(kind("Policy"), Change::Replaced { objects: Vec::new(), broken: vec![broken] });
    assert_eq!(denials(&select(&mut objects), "stock"), ["limits/authorization/invalid-policy"]);
    assert!(objects.apply(kind("Policy"), Change::Gone(key)));
    assert_eq!(denials(&select(&mut objects), "stock"), [""; 0]);
}

#[test]
fn a_new_controller_continues_with_the_version_in_the_status() {
    let mut objects = Objects::default();
    let mut broken = object("limits", 2, limits(BROKEN));
    broken.status.in_force = Some(VersionInForce { generation: 1, spec: limits("/a") });
    objects.apply(kind("Policy"), Change::Replaced { objects: vec![broken.clone()], broken: Vec::new() });
    let selection = select(&mut objects);
    assert_eq!(selection.verdicts[&policy("limits")].in_force, InForce::Earlier(1, limits("/a")));
    // Another object of the same name has no earlier version.
    broken.metadata.uid = "another".to_owned();
    broken.status.in_force = None;
    objects.apply(kind("Policy"), Change::Put(broken));
    assert_eq!(select(&mut objects).verdicts[&policy("limits")].in_force, InForce::Denial);
}

#[test]
fn of_two_documents_that_exclude_each_other_the_older_one_stays() {
    let mut objects = Objects::default();
    let section = json!({"functions": ["web"], "retry": {"attempts": 1}});
    for (name, created) in [("a", "2026-11-28T02:00:00Z"), ("b", "2026-11-28T01:00:00Z")] {
        let mut one = object(name, 1, section.clone());
        one.metadata.creation_timestamp = created.to_owned();
        objects.apply(kind("Policy"), Change::Put(one));
    }
    let selection = select(&mut objects);
    assert_eq!(selection.verdicts[&policy("b")].in_force, InForce::Present);
    assert_eq!(selection.verdicts[&policy("a")].in_force, InForce::Denial);
}

#[test]
fn documents_come_in_any_order() {
    let mut objects = Objects::default();
    let early =
        json!({"functions": ["later"], "authorization": {"rules": [{"from": [{"identities": ["later-too"]}]}]}});
    objects.apply(kind("Policy"), Change::Put(object("early", 1, early)));
    objects
        .apply(kind("Policy"), Change::Put(object("none", 1, json!({"selector": {"app": "none"}, "accessLog": {}}))));
    let selection = select(&mut objects);
    for name in ["early", "none"] {
        let verdict = &selection.verdicts[&policy(name)];
        assert_eq!(verdict.in_force, InForce::Present, "{:?}", verdict.problems);
    }
}

#[test]
fn a_policy_in_force_stays_when_another_workload_begins_to_share_an_account() {
    let mut functions = Functions::default();
    let all = [("web", "web"), ("caller", "shared")];
    functions.apply(all.map(|(name, account)| (id(name), workload(account, PodMode::Enforced))).into());
    let rule = json!({"rules": [{"from": [{"identities": ["caller"]}]}]});
    let object = || object("limits", 1, json!({"functions": ["web"], "authorization": rule}));
    let (mut objects, mut late) = (Objects::default(), Objects::default());
    objects.apply(kind("Policy"), Change::Put(object()));
    let mut in_force = |functions: &Functions| {
        let selection = select_with(&mut objects, functions);
        let shared = selection.snapshot.warnings().iter().filter(|it| it.message.contains("service account")).count();
        (selection.verdicts[&policy("limits")].in_force.clone(), shared)
    };
    assert_eq!(in_force(&functions), (InForce::Present, 0));
    functions.apply([(id("job"), workload("shared", PodMode::Enforced))].into());
    assert_eq!(in_force(&functions), (InForce::Present, 1));
    // A new policy is refused, until it is known that another controller has it in force.
    late.apply(kind("Policy"), Change::Put(object()));
    assert_eq!(select_with(&mut late, &functions).verdicts[&policy("limits")].in_force, InForce::Denial);
    let mut accepted = object();
    accepted.status.conditions = vec![Condition {
        kind: ACCEPTED.to_owned(),
        status: "True".to_owned(),
        observed_generation: Some(1),
        ..Condition::default()
    }];
    assert!(late.apply(kind("Policy"), Change::Put(accepted.clone())));
    assert!(!late.apply(kind("Policy"), Change::Put(accepted)));
    assert_eq!(select_with(&mut late, &functions).verdicts[&policy("limits")].in_force, InForce::Present);
}
