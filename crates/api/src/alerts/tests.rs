//! Tests of alerts whose causes are costly to bring about in real processes.

use super::*;
use leno_control::{NodeStatus, RejectedVersion, RevisionStatus};
use leno_model::{SpiffeId, TrustDomain};
use leno_wire::Version;

fn id() -> FunctionId {
    "demo/shop".parse().unwrap()
}

/// The severity, the function and the time of an alert.
fn told(alert: Option<&Alert>) -> Option<(Severity, Option<&str>, Option<f64>)> {
    alert.map(|alert| (alert.severity, alert.function.as_deref(), alert.since))
}

#[test]
fn certificates_are_told_when_they_are_late_and_when_they_end() {
    let identity = "spiffe://test.example/ns/demo/sa/shop";
    // A life of 40 s, and a renewal after half of it: late after three quarters.
    for (now, expected) in [
        (129, None),
        (130, Some((Severity::Warning, Some("demo/shop"), Some(130.0)))),
        (139, Some((Severity::Warning, Some("demo/shop"), Some(130.0)))),
        (140, Some((Severity::Critical, Some("demo/shop"), Some(140.0)))),
    ] {
        assert_eq!(told(of_svid(identity, 120, 140, now).as_ref()), expected, "{now}");
    }
    // The certificate of a node is about no function.
    let of_node = of_svid("spiffe://test.example/ns/leno-nodes/sa/one", 120, 140, 140).unwrap();
    assert_eq!((of_node.kind.as_str(), of_node.subject.contains("one")), ("certificate", true));
    // A life of an hour.
    for (now, expected) in [
        (2699, None),
        (2700, Some((Severity::Warning, None, Some(2700.0)))),
        (3600, Some((Severity::Critical, None, Some(3600.0)))),
    ] {
        assert_eq!(told(of_gateway_certificate("tls.pem", None, [2700, 3600], now).as_ref()), expected, "{now}");
    }
    let faulty = of_gateway_certificate("tls.pem", Some("no key"), [2700, 3600], 0).unwrap();
    assert_eq!((faulty.severity, &*faulty.subject), (Severity::Critical, "tls.pem"));
    assert!(faulty.text.ends_with("no key"), "{faulty:?}");
}

fn function() -> leno_control::FunctionStatus {
    let trust_domain: TrustDomain = "test.example".parse().unwrap();
    leno_control::FunctionStatus {
        function: id(),
        identity: SpiffeId::of_function(&trust_domain, &id()),
        version: Version::of(b""),
        callees: Vec::new(),
        chain: None,
        exposed: false,
        external: false,
        instances: Vec::new(),
        revisions: Vec::new(),
        nodes: Vec::new(),
        unplaced: false,
        reason: None,
    }
}

fn revision(name: &str, failed: Option<&str>) -> RevisionStatus {
    RevisionStatus {
        revision: name.to_owned(),
        declared: None,
        created_ms: 0,
        percent: 0,
        tags: Vec::new(),
        headers: false,
        step: None,
        paused: false,
        failed: failed.map(str::to_owned),
    }
}

fn node(rejected: Subject) -> NodeStatus {
    let (reason, version) = ("engine microvm is asked for".to_owned(), Version::of(b""));
    let rejected = vec![RejectedVersion { subject: rejected, version, reason, in_force: None }];
    let (inbound, hosted, counters, locality, capacity, claimed, certificates) = Default::default();
    NodeStatus {
        name: "one".to_owned(),
        connected: true,
        seen_ms: None,
        absence: None,
        release: String::new(),
        inbound,
        hosted,
        rejected,
        counters,
        locality,
        cordoned: false,
        drained: false,
        unacknowledged_seconds: 0,
        behind: false,
        gateway: false,
        egress: false,
        capacity,
        claimed,
        reserved: 0,
        certificates,
    }
}

/// The only alert of a control plane with this status.
fn only(functions: Vec<leno_control::FunctionStatus>, nodes: Vec<NodeStatus>, decisions: &Decisions) -> Alert {
    let status = Status { functions, nodes, jobs: Vec::new(), identities: Vec::new() };
    let alerts = of_control_plane(&status, decisions);
    let [alert] = &alerts[..] else { panic!("{alerts:?}") };
    alert.clone()
}

#[test]
fn a_rejected_configuration_is_told_to_the_readers_of_its_function() {
    let alert = only(Vec::new(), vec![node(Subject::FunctionConfig(id()))], &Decisions::default());
    assert_eq!((&*alert.kind, alert.namespace()), ("rejected", Some("demo")));
    assert!(alert.text.contains("node one rejects") && alert.text.ends_with("engine microvm is asked for"));
    let alert = only(Vec::new(), vec![node(Subject::Mesh)], &Decisions::default());
    assert_eq!((&*alert.kind, &*alert.subject, alert.namespace()), ("rejected", "one", None));
}

#[test]
fn a_rollback_of_the_latest_revision_is_told_since_its_decision() {
    let decision = |function: &str, to, at_ms| RolloutEvent {
        at_ms,
        function: function.parse().unwrap(),
        revision: "shop-00002".to_owned(),
        from: 10,
        to,
        reason: String::new(),
    };
    let rollouts = vec![
        decision("demo/shop", 0, 1000),
        decision("demo/shop", 0, 2000),
        decision("demo/shop", 10, 3000),
        decision("demo/other", 0, 4000),
    ];
    let decisions = Decisions { rollouts, ..Decisions::default() };
    let failed = revision("shop-00002", Some("5 of 6 requests failed"));
    let function = |revisions| leno_control::FunctionStatus { revisions, ..function() };
    let alert = only(vec![function(vec![revision("shop-00001", None), failed.clone()])], Vec::new(), &decisions);
    assert_eq!(told(Some(&alert)), Some((Severity::Warning, Some("demo/shop"), Some(2.0))));
    assert_eq!(alert.text, "revision shop-00002 was rolled back: 5 of 6 requests failed");
    // A later revision ends the alert.
    let status = Status {
        functions: vec![function(vec![failed, revision("shop-00003", None)])],
        nodes: Vec::new(),
        jobs: Vec::new(),
        identities: Vec::new(),
    };
    assert_eq!(of_control_plane(&status, &decisions), []);
}

/// A function without instances.
fn idle() -> FunctionStatus {
    FunctionStatus {
        function: id(),
        revision: 2,
        instances: Vec::new(),
        former: BTreeMap::new(),
        restarts: 0,
        lost: 0,
        last_failure: None,
        failing: 0,
        pause: None,
        waiting: 0,
        unenforced: None,
        scaling: leno_supervisor::Scaling::default(),
    }
}

#[test]
fn limits_of_resources_that_are_not_in_force_are_told() {
    let status = FunctionStatus { unenforced: Some("there are no control groups".to_owned()), ..idle() };
    let alert = unenforced(&status).unwrap();
    assert_eq!((&*alert.kind, alert.severity, alert.namespace()), ("unenforced", Severity::Warning, Some("demo")));
    assert!(alert.text.ends_with("there are no control groups"), "{alert:?}");
    assert_eq!(unenforced(&idle()), None);
}

#[test]
fn a_revision_that_cannot_start_is_named_with_the_one_that_serves_and_the_way_back() {
    let progress = |ready, former: &[(u32, u64)], failing| RevisionProgress {
        function: "demo/shop".to_owned(),
        revision: 2,
        ready,
        former: former.iter().copied().collect(),
        failing,
        reason: Some("exit status: 1".to_owned()),
        ..RevisionProgress::default()
    };
    let one = Revisions { number: 2, ..Revisions::default() };
    let named = Revisions { names: vec![(2, "stable".to_owned())], ..one.clone() };
    let target = |revision, percent| revision::Target { revision, percent, ..revision::Target::default() };
    let targets = vec![target(1, 90), target(2, 10)];
    let split =
        Revisions { number: 1, split: Some(Box::new(revision::Split { targets, others: vec![] })), ..one.clone() };
    let pull =
        RevisionProgress { no_image: true, reason: Some("its image is gone".to_owned()), ..progress(1, &[(1, 1)], 0) };
    let replaced = "revision shop-00002 cannot start: exit status: 1; 100 % still served by shop-00001";
    for (progress, revisions, severity, text, fix) in [
        (progress(2, &[(1, 2)], 9), &one, Severity::Warning, replaced, "`leno promote demo/shop shop-00001`"),
        (
            progress(2, &[(1, 2)], 1),
            &named,
            Severity::Warning,
            "revision shop-00002 (stable) cannot start: exit status: 1; 100 % still served by shop-00001",
            "apply the former document again",
        ),
        (
            pull,
            &one,
            Severity::Warning,
            "revision shop-00002 cannot start: its image is gone; 100 % still served by shop-00001",
            "correct the name of the image",
        ),
        (
            progress(0, &[], 4),
            &split,
            Severity::Warning,
            "revision shop-00002: 4 instances failed since one was ready: exit status: 1",
            "`leno logs --previous`",
        ),
        (
            progress(0, &[], 5),
            &one,
            Severity::Critical,
            "5 instances failed since one was ready: exit status: 1",
            "`leno logs --previous`",
        ),
    ] {
        let alert = failing(&idle(), &progress, Some(revisions)).unwrap();
        assert_eq!((alert.severity, &*alert.text, &*alert.kind), (severity, text, "failing"), "{progress:?}");
        assert!(alert.fix.contains(fix), "{alert:?}");
    }
    assert_eq!(failing(&idle(), &progress(1, &[], 0), Some(&one)), None);
}

#[test]
fn alerts_about_a_callee_of_others_have_no_counts_and_no_address() {
    let alert = |row: &LimitUse| limit(row).unwrap();
    let (function, callee) = ("a/front".to_owned(), "b/back".to_owned());
    let row = |kind: &str, state: &str| LimitUse {
        function: function.clone(),
        callee: callee.clone(),
        kind: kind.to_owned(),
        state: state.to_owned(),
        name: "own/circuitBreaker".to_owned(),
        ..LimitUse::default()
    };
    let open = row("requests", "exhausted");
    let text = "the circuit breaker own/circuitBreaker is open: too many requests to b/back, and further ones get 503";
    assert_eq!(alert(&open).text, text);
    let counted = LimitUse { used: Some(9), of: Some(9), ..open };
    assert!(alert(&counted).text.contains("is open: 9 requests to b/back"));
    let ejected = row("ejection", "ejected");
    assert!(alert(&ejected).text.starts_with("an endpoint of b/back failed"), "{ejected:?}");
    let named = LimitUse { key: "10.0.0.1:80".to_owned(), since: Some(7.0), ..ejected };
    assert!(alert(&named).text.starts_with("the endpoint 10.0.0.1:80 of b/back failed"));
    assert_eq!(alert(&named).since, Some(7.0));
}

#[test]
fn a_node_that_is_away_is_told_with_the_traffic_that_fails() {
    let stranded = |count| (0..count).map(|number| format!("demo/f{number}").parse().unwrap()).collect();
    let of = |only_gateway, only_egress, functions| {
        let stranded: Vec<FunctionId> = stranded(functions);
        let absence = AbsenceStatus { since_ms: 5000, at_least: true, only_gateway, only_egress, stranded };
        let node = NodeStatus { connected: false, absence: Some(absence), rejected: Vec::new(), ..node(Subject::Mesh) };
        only(Vec::new(), vec![node], &Decisions::default())
    };
    let idle = of(false, false, 0);
    assert_eq!((&*idle.text, idle.severity), ("the node is away", Severity::Warning));
    assert_eq!((idle.since, idle.at_least), (Some(5.0), true));
    let gateway = of(true, false, 1);
    assert_eq!(gateway.severity, Severity::Critical);
    assert_eq!(gateway.text, "the node is away; no other node has a gateway; 1 function has no other node: demo/f0");
    assert!(of(false, true, 0).text.ends_with("; no other node is an egress node"));
    assert!(of(false, false, 7).text.ends_with(
        "7 functions have no other node: demo/f0, demo/f1, demo/f2, demo/f3, \
                                                demo/f4 and 2 more"
    ));
}

#[test]
fn readers_of_a_function_learn_that_its_only_node_is_away() {
    let absence = AbsenceStatus {
        since_ms: 5000,
        at_least: false,
        only_gateway: false,
        only_egress: false,
        stranded: vec![id()],
    };
    let away = NodeStatus { connected: false, absence: Some(absence), rejected: Vec::new(), ..node(Subject::Mesh) };
    let told = |unplaced: bool| {
        let reason = unplaced.then(|| "no node has a place for it".to_owned());
        let functions = vec![leno_control::FunctionStatus { unplaced, reason, ..function() }];
        let status = Status { functions, nodes: vec![away.clone()], jobs: Vec::new(), identities: Vec::new() };
        let alerts = of_control_plane(&status, &Decisions::default());
        let of_function: Vec<_> = alerts.into_iter().filter(|alert| alert.function.is_some()).collect();
        let [alert] = &of_function[..] else { panic!("{of_function:?}") };
        (alert.kind.clone(), alert.text.clone())
    };
    let placed = "node one, the only one that has the function, is away".to_owned();
    assert_eq!(told(false), ("node".to_owned(), placed));
    let unplaced = "the function is on no node: no node has a place for it; node one, which had it, is away";
    assert_eq!(told(true), ("unplaced".to_owned(), unplaced.to_owned()));
}
