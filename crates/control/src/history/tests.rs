use super::*;
use crate::configs;
use leno_model::revision::Rollout;
use proptest::prelude::*;
use std::time::Duration;

fn config(content: u32, plan: &Plan) -> FunctionConfig {
    let revisions = Revisions { plan: plan.clone(), ..Revisions::default() };
    FunctionConfig { revisions, concurrency: content, ..configs::config("shop/checkout", &[], 1) }
}

fn numbers(history: &History) -> Vec<u32> {
    history.kept.iter().map(|kept| kept.number).collect()
}

/// The primary revision, its content, and the shares of all revisions.
fn resolved(history: &History, plan: &Plan) -> (u32, u32, Vec<(u32, u8)>) {
    let config = history.config_for_delivery(&config(0, plan)).unwrap();
    let split = config.revisions.split.unwrap_or_default();
    let shares = split.targets.iter().map(|target| (target.revision, target.percent)).collect();
    (config.revisions.number, config.concurrency, shares)
}

fn rollout(steps: &[u8]) -> Plan {
    let rollout = Rollout {
        steps: steps.to_vec(),
        interval: Duration::from_secs(1),
        max_error_rate: 0.05,
        latency: None,
        min_requests: 1,
    };
    Plan { rollout: Some(rollout), ..Plan::default() }
}

#[test]
fn revisions_that_make_no_sense_are_those_of_no_function() {
    let plan = rollout(&[50]);
    let mut history = History::default();
    for content in [1, 2] {
        history.record_publication(&config(content, &plan), 0).unwrap();
    }
    let (own, other): (FunctionId, FunctionId) = ("shop/checkout".parse().unwrap(), "a/shop".parse().unwrap());
    assert_eq!(history.check(&own), Ok(()));
    assert_eq!(History::default().check(&own), Ok(()));
    assert!(history.check(&other).unwrap_err().to_string().contains("the revisions of shop/checkout"));
    let wrong = |change: &dyn Fn(&mut History)| {
        let mut changed = history.clone();
        change(&mut changed);
        changed.check(&own).unwrap_err().to_string()
    };
    assert!(wrong(&|history| history.kept[1].number = u32::MAX).contains("ascending"));
    assert!(wrong(&|history| history.kept[0].number = 0).contains("ascending"));
    assert!(wrong(&|history| history.kept.reverse()).contains("ascending"));
    assert!(wrong(&|history| history.stable = 7).contains("stable revision 7"));
    assert!(wrong(&|history| history.candidate.as_mut().unwrap().number = 7).contains("candidate 7"));
    assert!(wrong(&|history| history.candidate.as_mut().unwrap().step = usize::MAX).contains("candidate 2"));
    assert!(!wrong(&|history| history.kept[0].template.truncate(3)).is_empty());
}

#[test]
fn a_change_makes_a_number_and_going_back_makes_another() {
    let (mut history, plan) = (History::default(), Plan::default());
    for (content, latest) in [(7, 1), (7, 1), (8, 2), (7, 3), (7, 3)] {
        history.record_publication(&config(content, &plan), 0).unwrap();
        assert_eq!(resolved(&history, &plan), (latest, content, vec![]));
    }
}

#[test]
fn large_revisions_are_kept_only_as_far_as_they_fit() {
    let plan = Plan { history: 1000, ..Plan::default() };
    let mut history = History::default();
    let with = |content: u32, large: bool| {
        let mut config = config(content, &plan);
        config.run = Run::External(vec!["127.0.0.1:9000".parse().unwrap(); if large { 5000 } else { 1 }]);
        config
    };
    for content in 1..=100 {
        history.record_publication(&with(content, true), 0).unwrap();
    }
    assert_eq!(numbers(&history), (85..=100).collect::<Vec<_>>());
    for content in 1..=100 {
        history.record_publication(&with(content, false), 0).unwrap();
    }
    let kept: usize = history.kept.iter().map(|kept| kept.template.len()).sum();
    assert!(kept <= MIN_KEPT_BYTES && history.kept.len() >= 100, "{kept} bytes of {}", history.kept.len());
    assert_eq!(history.latest(), 200);
}

#[test]
fn what_is_the_functions_and_not_the_instances_makes_no_revision() {
    let (mut history, plan) = (History::default(), Plan::default());
    let mut changed = config(1, &plan);
    history.record_publication(&changed, 0).unwrap();
    changed.queue = 7;
    changed.callees = configs::config("shop/checkout", &["shop/stock"], 1).callees;
    history.record_publication(&changed, 0).unwrap();
    assert_eq!(numbers(&history), [1]);
}

#[test]
fn shares_tags_and_headers_are_resolved_and_the_largest_share_is_the_configs_own() {
    let mut history = History::default();
    for content in 1..=3 {
        history.record_publication(&config(content, &Plan::default()), 0).unwrap();
    }
    let target = |revision, percent| Target { revision, percent, ..Target::default() };
    let tagged = Target { tag: Some("old".to_owned()), ..target(1, 0) };
    let plan = |traffic: &[Target]| Plan { traffic: traffic.to_vec(), ..Plan::default() };
    let two = plan(&[target(0, 20), target(2, 80), tagged.clone(), target(1, 0)]);
    assert_eq!(resolved(&history, &two), (2, 2, vec![(3, 20), (2, 80), (1, 0)]));
    let tags_only = plan(std::slice::from_ref(&tagged));
    assert_eq!(resolved(&history, &tags_only), (3, 3, vec![(1, 0), (3, 100)]));
    let tie = plan(&[target(1, 50), target(0, 50)]);
    assert_eq!(resolved(&history, &tie).0, 1, "the first of equals");
    assert_eq!(resolved(&history, &plan(&[target(2, 100)])), (2, 2, vec![]));
    let everything_to_one = plan(&[target(0, 40), target(3, 60)]);
    assert_eq!(resolved(&history, &everything_to_one), (3, 3, vec![]), "one revision needs no split");

    let error = history.config_for_delivery(&config(0, &plan(&[target(9, 100)]))).unwrap_err();
    let text = "shop/checkout has no revision `checkout-00009`; it has checkout-00001, checkout-00002, checkout-00003";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_first_revision_has_the_share_of_those_of_an_earlier_start() {
    let target = |revision, percent| Target { revision, percent, ..Target::default() };
    let plan = Plan { traffic: vec![target(3, 90), target(0, 10)], ..Plan::default() };
    let mut history = History::default();
    history.record_publication(&config(1, &plan), 0).unwrap();
    assert_eq!(history.latest(), 4, "no name gets another meaning");
    assert_eq!(resolved(&history, &plan), (4, 1, vec![]));
    assert_eq!(history.lost(&plan), BTreeSet::from([3]));
    let id = config(1, &plan).id;
    let status = history.status(&id, &history.config_for_delivery(&config(1, &plan)).unwrap().revisions);
    let rows: Vec<_> = status.iter().map(|row| (&*row.revision, row.percent, row.failed.is_some())).collect();
    assert_eq!(rows, [("checkout-00003", 0, true), ("checkout-00004", 100, false)]);
    // A change of the program keeps it so; a later revision that does not exist stays refused.
    history.record_publication(&config(2, &plan), 1).unwrap();
    assert_eq!(resolved(&history, &plan), (5, 2, vec![]));
    let named = Plan { traffic: vec![target(4, 90), target(0, 10)], ..Plan::default() };
    assert_eq!(resolved(&history, &named), (4, 1, vec![(4, 90), (5, 10)]));
    assert!(history.lost(&named).is_empty());
    let unknown = Plan { traffic: vec![target(9, 100)], ..Plan::default() };
    assert!(history.config_for_delivery(&config(2, &unknown)).is_err());
}

#[test]
fn a_rollout_starts_with_the_second_revision_and_anew_with_each_change() {
    let (mut history, plan) = (History::default(), rollout(&[10, 60]));
    history.record_publication(&config(1, &plan), 0).unwrap();
    assert_eq!(resolved(&history, &plan), (1, 1, vec![]));
    history.record_publication(&config(2, &plan), 5).unwrap();
    assert_eq!(resolved(&history, &plan), (1, 1, vec![(1, 90), (2, 10)]));
    history.candidate = Some(Candidate { number: 2, step: 1, since_ms: 9 });
    assert_eq!(resolved(&history, &plan), (1, 1, vec![(1, 40), (2, 60)]), "the old one stays the primary revision");
    history.record_publication(&config(2, &plan), 10).unwrap();
    assert_eq!(history.candidate.unwrap().step, 1, "nothing has changed");
    history.record_publication(&config(2, &rollout(&[30])), 10).unwrap();
    assert_eq!(history.candidate.unwrap().step, 0, "there are fewer steps now");
    history.record_publication(&config(3, &plan), 20).unwrap();
    assert_eq!(resolved(&history, &plan), (1, 1, vec![(1, 90), (3, 10)]));
    let status =
        history.status(&config(0, &plan).id, &history.config_for_delivery(&config(0, &plan)).unwrap().revisions);
    assert_eq!(status.iter().map(|status| status.percent).collect::<Vec<_>>(), [90, 0, 10]);
    assert_eq!((status[2].step, status[0].step), (Some((1, 2)), None));
    history.record_publication(&config(3, &Plan::default()), 30).unwrap();
    assert_eq!(resolved(&history, &Plan::default()), (3, 3, vec![]), "without a rollout the latest has everything");
    assert_eq!(history.candidate, None);
}

#[test]
fn the_oldest_are_collected_and_those_in_use_are_not() {
    let named = Target { revision: 2, tag: Some("kept".to_owned()), ..Target::default() };
    let plan = Plan { traffic: vec![named], history: 3, ..Plan::default() };
    let mut history = History::default();
    for content in 1..=2 {
        history.record_publication(&config(content, &Plan::default()), 0).unwrap();
    }
    for content in 3..=9 {
        history.record_publication(&config(content, &plan), 0).unwrap();
    }
    assert_eq!(numbers(&history), [2, 8, 9]);
    let plan = Plan { history: 1, ..rollout(&[10]) };
    history.record_publication(&config(10, &plan), 0).unwrap();
    assert_eq!(numbers(&history), [9, 10], "the stable one and its candidate");
}

proptest! {
    /// For all publications, numbers rise, revisions that get requests exist, and the shares add
    /// up.
    #[test]
    fn what_gets_requests_is_kept(changes in proptest::collection::vec((1..4u32, 1..5u32, 0..3u8), 1..40)) {
        let mut history = History::default();
        let mut latest = 0;
        for (content, kept, kind) in changes {
            let mut plan = if kind == 0 { rollout(&[5, 50]) } else { Plan::default() };
            if kind == 2 && history.stable > 0 {
                plan.traffic = vec![
                    Target { revision: history.stable, percent: 70, ..Target::default() },
                    Target { percent: 30, ..Target::default() },
                ];
            }
            plan.history = kept;
            history.record_publication(&config(content, &plan), 0).unwrap();
            prop_assert!(history.latest() >= latest && history.latest() <= latest + 1);
            latest = history.latest();
            prop_assert!(history.kept.is_sorted_by(|a, b| a.number < b.number));
            prop_assert!(history.kept.len() <= kept.max(3) as usize);
            let resolved = history.config_for_delivery(&config(content, &plan)).unwrap();
            if let Some(split) = &resolved.revisions.split {
                prop_assert_eq!(split.targets.iter().map(|target| u32::from(target.percent)).sum::<u32>(), 100);
                prop_assert!(resolved.all_revisions().map(|revision| revision.number).is_sorted_by(|a, b| a != b));
            }
        }
    }
}
