//! Conditions.

use leno_config::Problem;
use leno_controller::documents::{ACCEPTED, Condition, InForce, ObjectStatus, Verdict};
use leno_controller::publication::{NodeScope, Report};
use leno_controller::status::{NodeProgress, PROGRAMMED, PeerReport, Programming, status_of};
use leno_model::FunctionId;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

fn report(in_force: InForce) -> Report {
    let problem = Problem {
        file: PathBuf::from("Policy shop/limits"),
        line: 0,
        column: 0,
        field: "spec.retry".to_owned(),
        message: "wrong".to_owned(),
        fix: "mend it".to_owned(),
    };
    let problems = if in_force == InForce::Present { Vec::new() } else { vec![problem] };
    let verdict = Verdict { uid: "1".to_owned(), generation: 2, problems, in_force };
    let web = FunctionId { namespace: "shop".to_owned(), name: "web".to_owned() };
    Report { verdict, warnings: Vec::new(), scope: NodeScope::Hosts(BTreeSet::from([web])) }
}

fn words(status: &ObjectStatus, kind: &str) -> (String, String, String) {
    let Condition { status, reason, message, .. } = status.conditions.iter().find(|one| one.kind == kind).unwrap();
    (status.clone(), reason.clone(), message.clone())
}

#[test]
fn conditions_say_what_is_in_force_and_why() {
    let (nothing, before) = (Programming::default(), ObjectStatus::default());
    let of = |in_force, failure, programming: &Programming| {
        status_of("Policy", &report(in_force), failure, programming, &before, "2026-11-28T05:00:00Z")
    };
    let text = |text: &str| text.to_owned();
    let good = of(InForce::Present, None, &nothing);
    assert_eq!(words(&good, ACCEPTED), (text("True"), text("Accepted"), text("")));
    assert_eq!(words(&good, PROGRAMMED), (text("True"), text("Programmed"), text("")));
    assert_eq!((good.observed_generation, good.in_force.clone()), (Some(2), None));
    let earlier = of(InForce::Earlier(1, json!({"a": 1})), None, &nothing);
    let message = "spec.retry: wrong; mend it. Generation 1 stays in force.";
    assert_eq!(words(&earlier, ACCEPTED), (text("False"), text("Invalid"), text(message)));
    assert_eq!(words(&earlier, PROGRAMMED).0, "False");
    assert_eq!(earlier.in_force.map(|version| version.generation), Some(1));
    let denied = words(&of(InForce::Denial, None, &nothing), ACCEPTED).2;
    assert!(denied.ends_with("all calls to its functions are refused."), "{denied}");
    let failed = of(InForce::Present, Some("no store"), &nothing);
    assert_eq!(words(&failed, PROGRAMMED), (text("False"), text("NotPublished"), text("no store")));
}

#[test]
fn a_time_changes_only_with_its_status() {
    let nothing = Programming::default();
    let first = status_of("Policy", &report(InForce::Present), None, &nothing, &ObjectStatus::default(), "first");
    let again = status_of("Policy", &report(InForce::Present), None, &nothing, &first, "second");
    assert_eq!(first, again);
    let changed = status_of("Policy", &report(InForce::Denial), None, &nothing, &first, "second");
    assert!(changed.conditions.iter().all(|condition| condition.last_transition_time == "second"));
}

#[test]
fn programmed_is_about_the_nodes_of_the_targets() {
    let of = |progress: &[(&str, NodeProgress)]| {
        let web = FunctionId { namespace: "shop".to_owned(), name: "web".to_owned() };
        let hosts = BTreeMap::from([(web, BTreeSet::from(["a".into(), "b".into()]))]);
        let nodes = progress.iter().map(|(name, progress)| ((*name).to_owned(), progress.clone())).collect();
        let programming = Programming { hosts: Arc::new(hosts), nodes, ..Programming::default() };
        words(
            &status_of("Policy", &report(InForce::Present), None, &programming, &ObjectStatus::default(), ""),
            PROGRAMMED,
        )
    };
    use NodeProgress::{Away, Behind, Current, Rejected};
    let rejected = || Rejected("no memory".to_owned());
    for (progress, status, reason, named) in [
        (vec![("a", Current), ("b", Current)], "True", "Programmed", ""),
        (vec![("a", Current), ("b", Current), ("c", Behind)], "True", "Programmed", ""),
        (vec![("a", Behind), ("b", Current)], "False", "Pending", "yet: a."),
        (vec![("a", Behind), ("b", Away)], "False", "Pending", "yet: a."),
        (vec![("a", Current)], "Unknown", "NotConnected", "controller: b."),
        (vec![("a", rejected()), ("b", Behind)], "False", "Rejected", "no memory"),
    ] {
        let words = of(&progress);
        assert_eq!((&*words.0, &*words.1), (status, reason), "{progress:?}");
        assert!(words.2.ends_with(named), "{words:?}");
    }
}

#[test]
fn nodes_of_other_controllers_count() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    let report = |documents: &str| PeerReport {
        documents: documents.to_owned(),
        current: set(&["a", "b"]),
        behind: set(&["c"]),
        ..PeerReport::default()
    };
    let nodes = || BTreeMap::from([("a".to_owned(), NodeProgress::Behind), ("d".to_owned(), NodeProgress::Away)]);
    let mut same = Programming { nodes: nodes(), ..Programming::default() };
    same.add(&[report("1")], "1");
    // A node that is connected here counts as it is here.
    assert_eq!(same.nodes["a"], NodeProgress::Behind);
    assert_eq!(same.nodes["b"], NodeProgress::Current);
    assert_eq!(same.nodes["c"], NodeProgress::Behind);
    assert_eq!(same.nodes["d"], NodeProgress::Away);
    // A controller with other documents has not delivered these.
    let mut other = Programming { nodes: nodes(), ..Programming::default() };
    other.add(&[report("2")], "1");
    assert_eq!(other.nodes["b"], NodeProgress::Behind);
}
