//! A change of some functions has the same result as a publication of all.

use crate::support::configs::{config, function};
use crate::support::*;
use leno_control::{Control, PublishError, Store, StoreError};
use leno_model::{FunctionConfig, FunctionId};
use leno_testkit::eventually_async;
use leno_wire::Subject;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;

const NAMES: [&str; 4] = ["a/one", "a/two", "b/three", "b/four"];

type World = BTreeMap<FunctionId, FunctionConfig>;

/// For each function: whether it exists, the function that it calls, and its content.
fn worlds() -> impl Strategy<Value = Vec<World>> {
    let one = prop::collection::vec((any::<bool>(), 0..NAMES.len(), 1..3_u32, 1..3_u32), NAMES.len());
    let world = one.prop_map(|functions| {
        let each = NAMES.iter().zip(functions).filter(|(_, (there, ..))| *there);
        each.map(|(name, (_, callee, content, template))| {
            let config = FunctionConfig { concurrency: template, ..config(name, &[NAMES[callee]], content) };
            (function(name), config)
        })
        .collect()
    });
    prop::collection::vec(world, 2..6)
}

fn change(control: &Control, before: &World, after: &World) -> Result<(), PublishError> {
    let differing: Vec<&FunctionConfig> =
        after.iter().filter(|(id, config)| before.get(*id) != Some(config)).map(|(_, config)| config).collect();
    let removed: Vec<FunctionId> = before.keys().filter(|id| !after.contains_key(*id)).cloned().collect();
    control.change_after(&differing, &removed, None, &Default::default(), || Ok(()))
}

#[test]
fn changes_and_publications_come_to_the_same() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() });
    let outcome = runner.run(&worlds(), |worlds| {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        let open = |path| control_with(Store::open(path).unwrap(), leno_control::Options::default());
        let (published, changed) = (open(&one), open(&two));
        for (index, world) in worlds.iter().enumerate() {
            published.publish(&definitions(world.values().cloned())).unwrap();
            match index {
                0 => drop(changed.publish(&definitions(world.values().cloned())).unwrap()),
                _ => change(&changed, &worlds[index - 1], world).unwrap(),
            }
            prop_assert_eq!(functions(&published), functions(&changed));
        }
        let before = functions(&changed);
        drop((published, changed));
        prop_assert_eq!(functions(&open(&one)), before.clone());
        prop_assert_eq!(functions(&open(&two)), before);
        Ok(())
    });
    outcome.unwrap();
}

/// Names, versions and revisions, without times.
fn functions(control: &Control) -> Vec<String> {
    let status = control.status();
    let each = status.functions.into_iter().map(|status| {
        let revisions = status.revisions.iter().map(|revision| format!("{} {}", revision.revision, revision.percent));
        format!("{} {} {:?}", status.function, status.version, revisions.collect::<Vec<_>>())
    });
    each.collect()
}

#[test]
fn what_cannot_be_stored_changes_nothing() {
    let control = control();
    control.publish(&definitions([config("a/one", &[], 1)])).unwrap();
    let before = control.status();
    let (new, failed) = (config("a/two", &[], 1), || PublishError::Store(StoreError::NotLeader { store: "a".into() }));
    assert!(control.change_after(&[&new], &[function("a/one")], None, &Default::default(), || Err(failed())).is_err());
    assert!(control.publish_after(&definitions([new]), || Err(failed())).is_err());
    assert_eq!(control.status(), before);
}

#[tokio::test]
async fn nodes_get_a_change_as_a_whole() {
    let control = control();
    control.publish(&definitions([config("a/one", &[], 1)])).unwrap();
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, _updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    let hosts = |expected: &[&str]| {
        let status = control.status();
        let hosted: Vec<String> = status.nodes[0].hosted.iter().map(ToString::to_string).collect();
        hosted == expected
    };
    eventually_async("the functions of the node", || hosts(&["a/one"])).await;
    eventually_async("resources to be sent", || control.counters("one").is_some_and(|counters| counters.resources > 0))
        .await;
    let new = config("a/two", &[], 1);
    control
        .change_after(&[&new], &[function("a/one")], None, &Default::default(), || Ok::<_, PublishError>(()))
        .unwrap();
    eventually_async("the functions of the node", || hosts(&["a/two"])).await;
    eventually_async("removals to be sent", || control.counters("one").is_some_and(|counters| counters.removals > 0))
        .await;
}
