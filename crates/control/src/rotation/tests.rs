use super::*;
use proptest::prelude::*;

const LIFETIME: Duration = Duration::from_secs(24 * 3600);

fn begun(drill: bool) -> Rotation {
    Rotation {
        phase: Phase::Trust,
        drill,
        aborted: false,
        roots: vec![vec![1]],
        original: vec![1],
        candidate_root: vec![2],
        candidate: vec![2],
        since: 1000,
        without: BTreeSet::new(),
        failed: BTreeMap::new(),
    }
}

fn issuers(keys: &[u8]) -> BTreeSet<AuthorityKeyId> {
    keys.iter().map(|key| AuthorityKeyId::from_bytes(&[*key])).collect()
}

fn ready(keys: &[u8]) -> NodeProgress {
    NodeProgress {
        connected: true,
        speaks: true,
        trusts: true,
        proof: Some(Ok(())),
        issuers: issuers(keys),
        away_since: None,
    }
}

fn nodes<const N: usize>(nodes: [(&str, NodeProgress); N]) -> BTreeMap<String, NodeProgress> {
    nodes.into_iter().map(|(name, seen)| (name.to_owned(), seen)).collect()
}

fn step(rotation: &Rotation, seen: &BTreeMap<String, NodeProgress>, now: u64) -> Step {
    rotation.step(seen, LIFETIME, now)
}

fn waits_for(rotation: &Rotation, seen: &BTreeMap<String, NodeProgress>, now: u64) -> Vec<String> {
    match step(rotation, seen, now) {
        Step::Wait(waiting) => waiting.into_keys().collect(),
        other => panic!("{other:?}"),
    }
}

fn next(rotation: &Rotation, seen: &BTreeMap<String, NodeProgress>, now: u64) -> Rotation {
    match step(rotation, seen, now) {
        Step::Next(next) => next,
        other => panic!("{other:?}"),
    }
}

#[test]
fn from_one_authority_to_the_other() {
    let rotation = begun(false);
    assert_eq!((rotation.signs(), rotation.signs_own(), rotation.bundle().len()), (&[1][..], &[1][..], 2));
    let unproved = NodeProgress { proof: None, ..ready(&[1]) };
    let untrusting = NodeProgress { trusts: false, ..ready(&[1]) };
    let seen = nodes([("one", ready(&[1])), ("two", unproved), ("three", untrusting)]);
    assert_eq!(waits_for(&rotation, &seen, 1001), ["three", "two"]);

    let rotation = next(&rotation, &nodes([("one", ready(&[1])), ("two", ready(&[1]))]), 1001);
    assert_eq!((rotation.phase, rotation.signs(), rotation.signs_own()), (Phase::Renew, &[2][..], &[1][..]));
    assert_eq!(rotation.bundle(), [[1], [2]]);
    let seen = nodes([("one", ready(&[2])), ("two", ready(&[1, 2])), ("three", ready(&[]))]);
    assert_eq!(waits_for(&rotation, &seen, 1002), ["three", "two"]);

    let rotation = next(&rotation, &nodes([("one", ready(&[2])), ("two", ready(&[2]))]), 1002);
    assert_eq!((rotation.phase, rotation.signs(), rotation.signs_own()), (Phase::Withdraw, &[2][..], &[2][..]));
    assert_eq!(rotation.bundle(), [[2]]);
    let untrusting = NodeProgress { trusts: false, ..ready(&[2]) };
    let away = NodeProgress { connected: false, ..untrusting.clone() };
    assert_eq!(waits_for(&rotation, &nodes([("one", untrusting), ("two", away.clone())]), 1003), ["one"]);
    let end = step(&rotation, &nodes([("one", ready(&[2])), ("two", away)]), 1004);
    assert_eq!(
        end,
        Step::End(RotationOutcome { number: 0, drill: false, aborted: false, at: 1004, failed: BTreeMap::new() })
    );
}

#[test]
fn a_node_that_is_away_is_waited_for_as_long_as_its_certificates_are_valid() {
    let rotation = begun(false);
    // A certificate of the node was renewed during this phase.
    let away = NodeProgress { away_since: Some(5000), ..NodeProgress::default() };
    let seen = nodes([("one", ready(&[1])), ("two", away)]);
    let later = 5000 + LIFETIME.as_secs() + MARGIN.as_secs();
    assert_eq!(waits_for(&rotation, &seen, later - 1), ["two"]);
    // Its certificates have expired, so it has to join again. The rotation does not wait for it a
    // second time.
    let rotation = next(&rotation, &seen, later);
    assert_eq!(waits_for(&rotation, &seen, later), ["one"]);
    // After a restart the control plane does not know since when the node is away.
    let seen = nodes([("one", ready(&[2])), ("two", NodeProgress::default())]);
    let latest = later + LIFETIME.as_secs() + MARGIN.as_secs();
    assert_eq!(waits_for(&rotation, &seen, latest - 1), ["two"]);
    assert_eq!(next(&rotation, &seen, latest).phase, Phase::Withdraw);

    let without = Rotation { without: BTreeSet::from(["two".to_owned()]), ..begun(false) };
    assert_eq!(next(&without, &seen, 1001).phase, Phase::Renew);
}

#[test]
fn a_node_that_has_renewed_may_go_away_and_one_of_an_earlier_release_takes_a_lifetime() {
    let rotation = Rotation { phase: Phase::Renew, ..begun(false) };
    let gone = NodeProgress { connected: false, ..ready(&[2]) };
    assert_eq!(next(&rotation, &nodes([("one", gone)]), 1001).phase, Phase::Withdraw);
    let earlier = NodeProgress { speaks: false, proof: None, issuers: issuers(&[]), ..ready(&[]) };
    let seen = nodes([("one", earlier)]);
    assert_eq!(next(&begun(false), &seen, 1001).phase, Phase::Renew, "it has taken both roots");
    let later = 1000 + LIFETIME.as_secs() + MARGIN.as_secs();
    assert_eq!(waits_for(&rotation, &seen, later - 1), ["one"]);
    assert_eq!(next(&rotation, &seen, later).phase, Phase::Withdraw);
}

#[test]
fn a_drill_ends_with_what_nodes_lack_and_changes_nobodys_certificates() {
    let failing = NodeProgress { proof: Some(Err("CertNotValidYet".to_owned())), ..ready(&[1]) };
    let away = NodeProgress::default();
    let seen = nodes([("one", ready(&[1])), ("two", failing), ("three", away)]);
    assert_eq!(waits_for(&begun(true), &seen, 1000 + LONGEST_DRILL - 1), ["three", "two"]);
    let over = next(&begun(true), &seen, 1000 + LONGEST_DRILL);
    assert_eq!((over.phase, over.signs(), over.signs_own()), (Phase::Withdraw, &[1][..], &[1][..]));
    assert_eq!(over.bundle(), [[1]]);
    assert_eq!(over.failed.keys().collect::<Vec<_>>(), ["three", "two"]);
    assert!(over.failed["two"].contains("CertNotValidYet"));
    let Step::End(end) = step(&over, &nodes([("one", ready(&[1]))]), 1100) else { panic!() };
    assert_eq!((end.drill, end.aborted, end.failed.len()), (true, false, 2));
    // Nodes that are away do not delay it.
    let seen = nodes([("one", ready(&[1])), ("three", NodeProgress::default())]);
    assert_eq!(next(&begun(true), &seen, 1001).failed.len(), 1);
}

#[test]
fn it_goes_back_until_a_root_is_withdrawn() {
    let trust = begun(false).abort(1001).unwrap();
    assert_eq!((trust.phase, trust.signs(), trust.bundle()), (Phase::Withdraw, &[1][..], vec![vec![1]]));
    let renew = Rotation { phase: Phase::Renew, ..begun(false) }.abort(1001).unwrap();
    assert_eq!((renew.phase, renew.signs(), renew.bundle().len()), (Phase::Renew, &[1][..], 2));
    assert_eq!(waits_for(&renew, &nodes([("one", ready(&[1])), ("two", ready(&[2]))]), 1002), ["two"]);
    let withdraw = next(&renew, &nodes([("one", ready(&[1]))]), 1002);
    assert_eq!((withdraw.phase, withdraw.signs_own(), withdraw.bundle()), (Phase::Withdraw, &[1][..], vec![vec![1]]));
    assert!(renew.abort(1002).is_none() && withdraw.abort(1003).is_none());
    assert!(Rotation { phase: Phase::Withdraw, ..begun(false) }.abort(1001).is_none());
}

/// The true state of a node, of which the control plane knows a part.
#[derive(Clone, Debug)]
struct Real {
    speaks: bool,
    connected: bool,
    away_since: Option<u64>,
    bundle: Vec<Vec<u8>>,
    /// Issuer of the certificate that the node presents, and the time at which it expires.
    issuer: u8,
    ends: u64,
    /// The part that the control plane knows.
    proved: bool,
    said: BTreeSet<AuthorityKeyId>,
}

impl Real {
    fn seen(&self, bundle: &[Vec<u8>]) -> NodeProgress {
        NodeProgress {
            connected: self.connected,
            away_since: self.away_since,
            speaks: self.connected && self.speaks,
            trusts: self.bundle == bundle,
            proof: self.proved.then_some(Ok(())),
            issuers: self.said.clone(),
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Leave(usize),
    Return(usize),
    TakeBundle(usize),
    Prove(usize),
    Renew(usize),
    /// The control plane loses the nodes' reports. Nodes that return report again.
    Restart,
    Abort,
    Wait(u64),
    Step,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let node = 0..4_usize;
    let event = prop_oneof![
        1 => node.clone().prop_map(Event::Leave),
        2 => node.clone().prop_map(Event::Return),
        6 => node.clone().prop_map(Event::TakeBundle),
        6 => node.clone().prop_map(Event::Prove),
        6 => node.prop_map(Event::Renew),
        1 => Just(Event::Restart),
        1 => Just(Event::Abort),
        2 => (1..100_000_u64).prop_map(Event::Wait),
        8 => Just(Event::Step),
    ];
    proptest::collection::vec(event, 1..200)
}

/// Nodes with valid certificates accept each other. The control plane accepts them, and they accept
/// the control plane.
fn check(mesh: &[Real], signs_own: u8, bundle: &[Vec<u8>], now: u64) {
    let alive: Vec<&Real> = mesh.iter().filter(|node| node.ends > now).collect();
    for node in &alive {
        assert!(bundle.contains(&vec![node.issuer]), "the control plane refuses {node:?}");
        assert!(node.bundle.contains(&vec![signs_own]), "{node:?} refuses the control plane, which shows {signs_own}");
        for peer in &alive {
            assert!(peer.bundle.contains(&vec![node.issuer]), "{peer:?} refuses {node:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn at_no_time_does_anybody_refuse_anybody(events in events(), speaks in proptest::collection::vec(any::<bool>(), 4)) {
        let lifetime = LIFETIME.as_secs();
        let mut now = 1000;
        let mut mesh: Vec<Real> = speaks
            .into_iter()
            .map(|speaks| Real {
                speaks,
                connected: true,
                away_since: None,
                bundle: vec![vec![1]],
                issuer: 1,
                ends: now + lifetime,
                proved: false,
                said: BTreeSet::new(),
            })
            .collect();
        let mut rotation = Some(begun(false));
        let (mut signs, mut own, mut bundle) = (1, 1, vec![vec![1], vec![2]]);
        for event in events {
            match event {
                Event::Leave(node) => mesh[node].connected = false,
                // The node reports its issuers again. A node whose certificate has expired has to
                // join again, and gets all new roots and certificates.
                Event::Return(node) => {
                    let node = &mut mesh[node];
                    if node.ends <= now {
                        (node.bundle, node.issuer, node.ends) = (bundle.clone(), signs, now + lifetime);
                    }
                    (node.connected, node.away_since) = (true, None);
                    node.said = if node.speaks { issuers(&[node.issuer]) } else { BTreeSet::new() };
                }
                Event::TakeBundle(node) if mesh[node].connected => mesh[node].bundle = bundle.clone(),
                Event::Prove(node) if mesh[node].connected && mesh[node].speaks && mesh[node].bundle == bundle => mesh[node].proved = true,
                Event::Renew(node) if mesh[node].connected && mesh[node].ends > now => {
                    let node = &mut mesh[node];
                    // A node accepts no certificate that its own roots do not cover.
                    if node.bundle.contains(&vec![signs]) {
                        (node.issuer, node.ends) = (signs, now + lifetime);
                        node.said = if node.speaks { issuers(&[node.issuer]) } else { BTreeSet::new() };
                    }
                }
                Event::Restart => {
                    for node in mesh.iter_mut().filter(|node| !node.connected) {
                        (node.said, node.proved, node.away_since) = Default::default();
                    }
                }
                Event::Abort => rotation = rotation.map(|rotation| rotation.abort(now).unwrap_or(rotation)),
                Event::Wait(seconds) => now += seconds,
                Event::Step => {
                    let Some(before) = &rotation else { continue };
                    for node in mesh.iter_mut().filter(|node| !node.connected) {
                        node.away_since.get_or_insert(now);
                    }
                    let seen = mesh.iter().enumerate().map(|(index, node)| (index.to_string(), node.seen(&bundle))).collect();
                    match before.step(&seen, LIFETIME, now) {
                        Step::Wait(_) => {}
                        Step::Next(next) => rotation = Some(next),
                        Step::End(_) => rotation = None,
                    }
                }
                _ => {}
            }
            if let Some(rotation) = &rotation {
                (signs, own, bundle) = (rotation.signs()[0], rotation.signs_own()[0], rotation.bundle());
            }
            check(&mesh, own, &bundle, now);
        }
    }
}
