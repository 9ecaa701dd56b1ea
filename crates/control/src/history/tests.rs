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

/// A document with these revisions and shares: name, content and per cent.
fn declared(revisions: &[(&str, u32, u8)], rollout: Option<Rollout>) -> FunctionConfig {
    let of = |(name, content, _): &(&str, u32, u8)| {
        let template = config(*content, &Plan::default()).template();
        revision::DeclaredRevision { name: (*name).to_owned(), template }
    };
    let share = |(name, _, percent): &(&str, u32, u8)| Target {
        name: Some((*name).to_owned()),
        percent: *percent,
        tag: (*percent == 0).then(|| (*name).to_owned()),
        ..Target::default()
    };
    let plan = Plan {
        declared: revisions.iter().map(of).collect(),
        traffic: revisions.iter().map(share).collect(),
        rollout,
        ..Plan::default()
    };
    config(0, &plan)
}

/// The shares of all revisions with their names, of a configuration as nodes get it.
fn delivered(history: &History, config: &FunctionConfig) -> Vec<(String, u8)> {
    let delivered = history.config_for_delivery(config).unwrap();
    assert!(delivered.revisions.plan.declared.is_empty(), "nodes need no templates of the plan");
    let all = [Target { revision: delivered.revisions.number, percent: 100, ..Target::default() }];
    let targets = delivered.revisions.split.as_ref().map_or(&all[..], |split| &split.targets);
    let name = |number: u32| revision::label(&config.id, number, delivered.revisions.name(number));
    targets.iter().map(|target| (name(target.revision), target.percent)).collect()
}

fn shares(of: &[(&str, u8)]) -> Vec<(String, u8)> {
    of.iter().map(|(name, percent)| (format!("checkout-{name}"), *percent)).collect()
}

#[test]
fn each_start_has_all_declared_revisions() {
    let document = declared(&[("stable", 1, 90), ("next", 2, 10), ("test", 3, 0)], None);
    let mut history = History::default();
    for _ in 0..2 {
        history.record_publication(&document, 0).unwrap();
        let expected = shares(&[("00001 (stable)", 90), ("00002 (next)", 10), ("00003 (test)", 0)]);
        assert_eq!(delivered(&history, &document), expected);
    }
    let id = &document.id;
    assert_eq!(history.check(id), Ok(()));
    let status = history.status(id, &history.config_for_delivery(&document).unwrap().revisions);
    let rows: Vec<_> = status.iter().map(|row| (row.declared.as_deref(), row.percent, row.tags.len())).collect();
    assert_eq!(rows, [(Some("stable"), 90, 0), (Some("next"), 10, 0), (Some("test"), 0, 1)]);
    // A name that goes has no requests any more. If it returns with its content, so does its number.
    let without = declared(&[("stable", 1, 100)], None);
    history.record_publication(&without, 1).unwrap();
    assert_eq!(delivered(&history, &without), shares(&[("00001 (stable)", 100)]));
    history.record_publication(&document, 2).unwrap();
    assert_eq!(numbers(&history), [1, 2, 3]);
}

#[test]
fn a_document_that_begins_to_name_its_revisions_keeps_them() {
    let mut history = History::default();
    history.record_publication(&config(7, &Plan::default()), 0).unwrap();
    let document = declared(&[("stable", 7, 100), ("next", 8, 0)], None);
    history.record_publication(&document, 1).unwrap();
    assert_eq!(delivered(&history, &document), shares(&[("00001 (stable)", 100), ("00002 (next)", 0)]));
    let renamed = declared(&[("main", 7, 100), ("next", 8, 0)], None);
    history.record_publication(&renamed, 2).unwrap();
    assert_eq!(delivered(&history, &renamed)[0], ("checkout-00001 (main)".to_owned(), 100));
    // Without names, the function's own fields are its revision again.
    history.record_publication(&config(8, &Plan::default()), 3).unwrap();
    assert_eq!(resolved(&history, &Plan::default()), (2, 8, vec![]));
    assert!(history.named.is_empty() && history.stable == 2);
}

#[test]
fn a_changed_content_takes_over_within_the_share_of_its_name() {
    let plan = rollout(&[25, 50]).rollout;
    let begin = declared(&[("stable", 1, 90), ("next", 2, 10), ("test", 3, 0)], plan.clone());
    let mut history = History::default();
    history.record_publication(&begin, 0).unwrap();
    let changed = declared(&[("stable", 1, 90), ("next", 4, 10), ("test", 5, 0)], plan.clone());
    history.record_publication(&changed, 1).unwrap();
    let step = |share| {
        shares(&[("00001 (stable)", 90), ("00004 (next)", share), ("00002 (next)", 10 - share), ("00005 (test)", 0)])
    };
    assert_eq!(delivered(&history, &changed), step(3), "a quarter of ten, rounded up; without a share at once");
    history.advance(4, &changed.revisions.plan, 2);
    assert_eq!(delivered(&history, &changed), step(5));
    history.roll_back(4, "it fails".to_owned());
    let back = shares(&[("00001 (stable)", 90), ("00002 (next)", 10), ("00005 (test)", 0)]);
    assert_eq!(delivered(&history, &changed), back);
    history.record_publication(&changed, 3).unwrap();
    assert_eq!(delivered(&history, &changed), back, "nothing has changed, so nothing begins again");
    // A change of a field of the function changes all names, and each has its own rollout.
    let all = declared(&[("stable", 6, 90), ("next", 7, 10), ("test", 8, 0)], plan);
    history.record_publication(&all, 4).unwrap();
    assert_eq!(
        history.candidates().map(|(stable, candidate)| (stable, candidate.number)).collect::<Vec<_>>(),
        [(1, 6), (2, 7)]
    );
    history.advance(6, &all.revisions.plan, 5);
    history.advance(6, &all.revisions.plan, 6);
    assert_eq!(history.candidates().count(), 1, "the other one goes on");
    assert_eq!(delivered(&history, &all)[0], ("checkout-00006 (stable)".to_owned(), 90));
    let without = declared(&[("stable", 6, 90), ("next", 7, 10), ("test", 8, 0)], None);
    history.record_publication(&without, 7).unwrap();
    assert_eq!(history.candidates().count(), 0, "without a rollout the new content has everything");
}

fn steered(history: &mut History, config: &FunctionConfig, action: RolloutAction) -> Result<Vec<(String, u8)>, String> {
    match history.steer(config, &action, "somebody") {
        Ok(RolloutChange::Rollouts(steps)) => Ok(steps.into_iter().map(|step| (step.revision, step.to)).collect()),
        Ok(RolloutChange::Traffic(targets)) => {
            let name = |target: &Target| match &target.name {
                Some(name) => name.clone(),
                None => target.revision.to_string(),
            };
            Ok(targets.iter().map(|target| (name(target), target.percent)).collect())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn promote(revision: &str) -> RolloutAction {
    RolloutAction::Promote(Some(revision.to_owned()))
}

#[test]
fn shares_of_names_are_promoted_and_undone_in_the_document() {
    let mut history = History::default();
    let document = declared(&[("stable", 1, 90), ("next", 2, 10), ("test", 3, 0)], None);
    history.record_publication(&document, 0).unwrap();
    let promoted = [("next".to_owned(), 100), ("test".to_owned(), 0)];
    let mut order = steered(&mut history, &document, promote("next")).unwrap();
    order.sort();
    assert_eq!(order, promoted, "the tag stays");
    let unknown = steered(&mut history, &document, promote("nxt")).unwrap_err();
    assert_eq!(unknown, "shop/checkout has no revision `nxt`; it has stable, next, test");
    let none = steered(&mut history, &document, RolloutAction::Promote(None)).unwrap_err();
    assert!(none.ends_with("is to get all requests: stable, next, test"), "{none}");
    let nothing = steered(&mut history, &document, RolloutAction::Undo).unwrap_err();
    assert!(nothing.starts_with("there is nothing to undo: shop/checkout has no former revision"), "{nothing}");
    assert!(steered(&mut history, &document, RolloutAction::Pause).unwrap_err().contains("has no `rollout`"));
    let after = declared(&[("stable", 1, 0), ("next", 2, 100), ("test", 3, 0)], None);
    history.record_publication(&after, 1).unwrap();
    assert!(steered(&mut history, &after, promote("next")).unwrap_err().contains("has all requests"));
    let undone = steered(&mut history, &after, RolloutAction::Undo).unwrap();
    assert_eq!(undone, [("stable".to_owned(), 90), ("next".to_owned(), 10), ("test".to_owned(), 0)]);
    // A replaced content is not in the document any more.
    let replaced = declared(&[("stable", 1, 0), ("next", 9, 100), ("test", 3, 0)], None);
    history.record_publication(&replaced, 2).unwrap();
    let nothing = steered(&mut history, &replaced, RolloutAction::Undo).unwrap_err();
    assert!(nothing.contains("checkout-00004 (next) replaced checkout-00002 (next) at once"), "{nothing}");
}

#[test]
fn rollouts_are_paused_promoted_and_undone_as_state() {
    let plan = rollout(&[25, 50]).rollout;
    let mut history = History::default();
    let begin = declared(&[("stable", 1, 90), ("next", 2, 10)], plan.clone());
    history.record_publication(&begin, 0).unwrap();
    let changed = declared(&[("stable", 3, 90), ("next", 2, 10)], plan.clone());
    history.record_publication(&changed, 1).unwrap();
    let three = |to| vec![("checkout-00003 (stable)".to_owned(), to)];
    assert_eq!(steered(&mut history, &changed, RolloutAction::Pause).unwrap(), three(25));
    assert!(steered(&mut history, &changed, RolloutAction::Pause).unwrap_err().contains("paused already"));
    let id = &changed.id;
    let status = history.status(id, &history.config_for_delivery(&changed).unwrap().revisions);
    assert_eq!(status.iter().map(|row| row.paused).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(steered(&mut history, &changed, RolloutAction::Resume).unwrap(), three(25));
    assert_eq!(steered(&mut history, &changed, RolloutAction::Promote(None)).unwrap(), three(100));
    assert_eq!(delivered(&history, &changed), shares(&[("00003 (stable)", 90), ("00002 (next)", 10)]));
    assert_eq!(steered(&mut history, &changed, RolloutAction::Undo).unwrap(), three(0));
    assert_eq!(delivered(&history, &changed), shares(&[("00001 (stable)", 90), ("00002 (next)", 10)]));
    let nothing = steered(&mut history, &changed, RolloutAction::Undo).unwrap_err();
    assert!(nothing.contains("checkout-00003 (stable) was rolled back already (undone by somebody)"), "{nothing}");
    let again = declared(&[("stable", 4, 90), ("next", 2, 10)], plan);
    history.record_publication(&again, 2).unwrap();
    assert_eq!(
        steered(&mut history, &again, RolloutAction::Undo).unwrap(),
        [("checkout-00004 (stable)".to_owned(), 0)]
    );
    assert_eq!(delivered(&history, &again), shares(&[("00001 (stable)", 90), ("00002 (next)", 10)]));
}

#[test]
fn numbered_revisions_are_promoted_and_undone_too() {
    let mut history = History::default();
    let plain = |content| config(content, &Plan::default());
    for content in 1..=2 {
        history.record_publication(&plain(content), content.into()).unwrap();
    }
    assert_eq!(steered(&mut history, &plain(2), RolloutAction::Undo).unwrap(), [("1".to_owned(), 100)]);
    assert_eq!(steered(&mut history, &plain(2), promote("checkout-00001")).unwrap(), [("1".to_owned(), 100)]);
    let back = Plan { traffic: vec![Target { revision: 1, percent: 100, ..Target::default() }], ..Plan::default() };
    history.record_publication(&config(2, &back), 3).unwrap();
    assert_eq!(steered(&mut history, &config(2, &back), RolloutAction::Undo).unwrap(), [], "no `traffic`");
    assert_eq!(steered(&mut history, &config(2, &back), promote("latest")).unwrap(), [], "the same");
    // With a rollout it is state.
    let plan = rollout(&[50]);
    history.record_publication(&config(2, &plan), 4).unwrap();
    history.record_publication(&config(3, &plan), 5).unwrap();
    assert_eq!(
        steered(&mut history, &config(3, &plan), RolloutAction::Undo).unwrap(),
        [("checkout-00003".to_owned(), 0)]
    );
    assert_eq!(resolved(&history, &plan).0, 2);
    let promoted = steered(&mut history, &config(3, &plan), promote("checkout-00003")).unwrap();
    assert_eq!(promoted, [("checkout-00003".to_owned(), 100)]);
    assert_eq!(resolved(&history, &plan).0, 3);
    assert_eq!(history.kept.last().unwrap().failed, None);
}

proptest! {
    /// For all documents and commands, the shares of names add up, each revision with requests is
    /// kept, and undo after undo ends.
    #[test]
    fn names_always_have_their_shares(
        changes in proptest::collection::vec((1..4u32, 1..4u32, 0..101u8, any::<bool>(), 0..8u8, 1..4u32), 1..30),
    ) {
        let mut history = History::default();
        for (at, (one, other, percent, gradual, command, kept)) in changes.into_iter().enumerate() {
            let plan = gradual.then(|| rollout(&[5, 50]).rollout).flatten();
            let mut document = declared(&[("a", one, percent), ("b", other, 100 - percent)], plan);
            document.revisions.plan.history = kept;
            history.record_publication(&document, at as u64).unwrap();
            let action = match command {
                0 => RolloutAction::Promote(None),
                1 => RolloutAction::Pause,
                2 => RolloutAction::Resume,
                3 => RolloutAction::Undo,
                4 => promote("a"),
                _ => RolloutAction::Promote(Some("c".to_owned())),
            };
            for _ in 0..3 {
                let _ = history.steer(&document, &action, "somebody");
            }
            let candidate = history.candidates().next();
            if let Some((_, candidate)) = candidate {
                history.advance(candidate.number, &document.revisions.plan, at as u64);
            }
            prop_assert_eq!(history.check(&document.id), Ok(()));
            let read: History = from_bytes(&to_bytes(&history).unwrap()).unwrap();
            prop_assert_eq!(&read, &history);
            let shares = delivered(&history, &document);
            prop_assert_eq!(shares.iter().map(|(_, percent)| u32::from(*percent)).sum::<u32>(), 100);
            let of_a: u32 = shares.iter().filter(|(name, _)| name.ends_with("(a)")).map(|(_, percent)| u32::from(*percent)).sum();
            prop_assert_eq!(of_a, u32::from(percent));
        }
    }

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
