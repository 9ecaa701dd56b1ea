//! A gradual rollout over real sockets: a node reports the outcomes of requests, and the control
//! plane decides.

use crate::support::configs::{config, function};
use crate::support::*;
use leno_agent::{Agent, Change, Updates};
use leno_control::{Control, RolloutAction, RolloutEvent, Store, Transaction};
use leno_model::FunctionConfig;
use leno_model::revision::{DeclaredRevision, Plan, Revisions, Rollout, Target};
use leno_testkit::eventually_async;
use leno_wire::{Resource, RevisionCounts, Subject};
use std::path::Path;
use std::time::Duration;

const ORDERS: &str = "orders/order-service";

fn with_content(content: u32) -> FunctionConfig {
    let rollout = Rollout {
        steps: vec![10, 50],
        interval: Duration::from_millis(1),
        max_error_rate: 0.1,
        latency: None,
        min_requests: 10,
    };
    let plan = Plan { rollout: Some(rollout), ..Plan::default() };
    FunctionConfig {
        concurrency: content,
        revisions: Revisions { plan, ..Default::default() },
        ..config(ORDERS, &[], 1)
    }
}

fn control_at(path: &Path) -> Control {
    control_with(Store::open(path).unwrap(), leno_control::Options::default())
}

/// The primary revision, and the shares of all.
async fn shares(updates: &mut Updates) -> (u32, Vec<(u32, u8)>) {
    loop {
        for change in accepted(updates).await {
            if let Change::Set(Resource::FunctionConfig(config)) = change {
                let targets = config.revisions.split.map(|split| split.targets).unwrap_or_default();
                let shares = targets.iter().map(|target| (target.revision, target.percent)).collect();
                return (config.revisions.number, shares);
            }
        }
    }
}

fn report(agent: &Agent, counts: &[(u32, u64, u64)]) {
    let of = |(revision, requests, failed): &(u32, u64, u64)| {
        (*revision, RevisionCounts { requests: *requests, failed: *failed, slow: 0 })
    };
    agent.report_request_counts(&function(ORDERS), &counts.iter().map(of).collect::<Vec<_>>());
}

fn failures(control: &Control) -> Vec<Option<String>> {
    let status = control.status();
    status.functions[0].revisions.iter().map(|revision| revision.failed.clone()).collect()
}

#[tokio::test]
async fn a_good_revision_goes_step_by_step_and_a_bad_one_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let control = control_at(&path);
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    connected(&agent).await;
    control.publish(&definitions([with_content(1)])).unwrap();
    assert_eq!(shares(&mut updates).await, (1, vec![]), "the first has nobody to be compared with");

    control.publish(&definitions([with_content(2)])).unwrap();
    assert_eq!(shares(&mut updates).await, (1, vec![(1, 90), (2, 10)]));
    report(&agent, &[(1, 0, 0), (2, 0, 0)]);
    report(&agent, &[(1, 90, 0), (2, 10, 1)]);
    assert_eq!(shares(&mut updates).await, (1, vec![(1, 50), (2, 50)]));
    // Requests of the first step do not count in the second.
    report(&agent, &[(1, 90, 0), (2, 19, 1)]);
    report(&agent, &[(1, 90, 0), (2, 20, 1)]);
    assert_eq!(shares(&mut updates).await, (2, vec![]));

    control.publish(&definitions([with_content(3)])).unwrap();
    assert_eq!(shares(&mut updates).await, (2, vec![(2, 90), (3, 10)]));
    report(&agent, &[(2, 0, 0), (3, 0, 0)]);
    // The node was started again, and has counted failures since.
    report(&agent, &[(2, 50, 0), (3, 9, 5)]);
    report(&agent, &[(2, 10, 0), (3, 4, 4)]);
    assert_eq!(shares(&mut updates).await, (2, vec![]));
    let reason = "69.2 % of 13 requests failed, and 0.0 % with the revision before it".to_owned();
    assert_eq!(failures(&control), [None, None, Some(reason.clone())]);
    let events: Vec<_> = control.rollout_events().iter().map(|event| (event.from, event.to)).collect();
    assert_eq!(events, [(10, 50), (50, 100), (10, 0)]);
    let RolloutEvent { revision, reason: why, .. } = control.rollout_events().pop().unwrap();
    assert_eq!((revision.as_str(), why), ("order-service-00003", format!("rolled back: {reason}")));

    // A change outside of the template does not begin the rollout again, and a restart does not
    // either.
    let moved = FunctionConfig { queue: 7, ..with_content(3) };
    control.publish(&definitions([moved.clone()])).unwrap();
    assert_eq!(shares(&mut updates).await, (2, vec![]));
    served.stop().await;
    drop(control);
    let mut again = None;
    eventually_async("the store to be closed by its last user", || {
        again = Store::open(&path).ok();
        again.is_some()
    })
    .await;
    let control = control_with(again.unwrap(), leno_control::Options::default());
    assert_eq!(failures(&control), [None, None, Some(reason)]);
    assert_eq!(control.publish(&definitions([moved])).unwrap().changed, 0);

    // The next change begins anew, and a restart in the middle of it goes on where it was.
    control.publish(&definitions([with_content(4)])).unwrap();
    let percents = |control: &Control| {
        let status = control.status();
        status.functions[0].revisions.iter().map(|revision| (revision.percent, revision.step)).collect::<Vec<_>>()
    };
    let expected = [(0, None), (90, None), (0, None), (10, Some((1, 2)))];
    assert_eq!(percents(&control), expected);
    drop(control);
    assert_eq!(percents(&control_at(&path)), expected);
}

/// Two declared revisions with 60 and 40 per cent, and these contents.
fn named(contents: [u32; 2]) -> FunctionConfig {
    let mut config = with_content(0);
    for (name, percent, content) in [("one", 60, contents[0]), ("two", 40, contents[1])] {
        let (name, template) = (name.to_owned(), with_content(content).template());
        let plan = &mut config.revisions.plan;
        plan.traffic.push(Target { name: Some(name.clone()), percent, ..Target::default() });
        plan.declared.push(DeclaredRevision { name, template });
    }
    config
}

#[tokio::test]
async fn each_name_has_its_own_rollout_which_a_pause_holds_and_does_not_protect() {
    let control = control_with(Store::memory(), leno_control::Options::default());
    let served = TestServer::start(&control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    connected(&agent).await;
    control.publish(&definitions([named([1, 2])])).unwrap();
    assert_eq!(shares(&mut updates).await, (1, vec![(1, 60), (2, 40)]));
    // A change of the function's own fields changes all names. A step is a part of each share.
    control.publish(&definitions([named([3, 4])])).unwrap();
    assert_eq!(shares(&mut updates).await, (1, vec![(3, 6), (1, 54), (4, 4), (2, 36)]));
    let steer = |action: RolloutAction| {
        control.steer(&function(ORDERS), &action, "the test", Some(Transaction::default())).unwrap().unwrap();
    };
    steer(RolloutAction::Pause);
    report(&agent, &[(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0)]);
    // The first would advance, and the second one is rolled back.
    report(&agent, &[(1, 90, 0), (2, 90, 0), (3, 20, 0), (4, 20, 9)]);
    assert_eq!(shares(&mut updates).await, (1, vec![(3, 6), (1, 54), (2, 40)]));
    assert_eq!(failures(&control).iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, false, true]);
    steer(RolloutAction::Resume);
    assert_eq!(shares(&mut updates).await, (1, vec![(3, 30), (1, 30), (2, 40)]));
    steer(RolloutAction::Promote(None));
    assert_eq!(shares(&mut updates).await, (3, vec![(3, 60), (2, 40)]));
    let events = control.rollout_events();
    let last = events.last().unwrap();
    assert_eq!((&*last.revision, last.from, last.to), ("order-service-00003 (one)", 50, 100));
}
