use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn name(node: usize) -> Arc<str> {
    ["one", "two", "three", "four"][node].into()
}

fn limits() -> Vec<(String, u32)> {
    vec![("a".to_owned(), 100), ("b".to_owned(), 3)]
}

#[test]
fn shares_are_of_whole_requests_and_follow_the_weights() {
    let requests = |capacity: u32, weights: &[f64]| -> Vec<u32> {
        shares(capacity, weights)
            .iter()
            .map(|parts| (u64::from(*parts) * u64::from(capacity) / u64::from(PARTS)) as u32)
            .collect()
    };
    assert_eq!(requests(1, &[0.0, 3.0]), [0, 1]);
    assert_eq!(requests(8, &[0.0; 4]), [2; 4]);
    assert_eq!(requests(4, &[100.0, 1.0, 1.0, 0.0]), [2, 1, 1, 0]);
    assert_eq!(shares(720, &[1.0, 0.0]), [PARTS / 720 * 711, PARTS / 720 * 9]);
    assert_eq!(shares(5, &[]), Vec::<u32>::new());
}

#[test]
fn a_share_grows_when_the_other_node_has_acknowledged_and_begins_used() {
    let mut leases = Leases::default();
    leases.define(&limits());
    let parts = |leases: &Leases, node: usize| leases.of(&name(node)).unwrap().shares[0].parts;
    leases.divide(&[name(0)], Duration::ZERO);
    assert_eq!((parts(&leases, 0), leases.of("one").unwrap().shares[0].unused), (PARTS, true));
    leases.sent(&name(0), (1, 1));
    leases.answered("one", (1, 1), true);
    leases.divide(&[name(0), name(1)], Duration::ZERO);
    assert_eq!((parts(&leases, 0), leases.of("two").unwrap()), (PARTS / 2, Lease { shares: vec![] }));
    leases.sent(&name(0), (1, 2));
    leases.divide(&[name(0), name(1)], Duration::ZERO);
    assert!(leases.of("two").unwrap().shares.is_empty(), "one has not acknowledged");
    leases.answered("one", (1, 2), true);
    leases.divide(&[name(0), name(1)], Duration::ZERO);
    assert_eq!(parts(&leases, 1), PARTS / 2);
    leases.define(&[("a".to_owned(), 100), ("c".to_owned(), 100)]);
    leases.divide(&[name(0), name(1)], Duration::ZERO);
    let unused: Vec<_> =
        leases.of("two").unwrap().shares.iter().map(|share| (share.limit.clone(), share.unused)).collect();
    assert_eq!(unused, [("a".to_owned(), false), ("c".to_owned(), true)], "a limit that is new is unused");
}

#[test]
fn after_a_restart_nodes_keep_what_they_hold_and_nobody_gets_more_for_a_term() {
    let mut leases = Leases::frozen(TAKEN);
    leases.define(&limits());
    let held = Lease { shares: vec![LimitShare { limit: "a".to_owned(), parts: PARTS / 2, unused: false }] };
    leases.recall(&name(0), &held, Duration::ZERO);
    leases.divide(&[name(0), name(1)], Duration::ZERO);
    assert_eq!((leases.of("one").unwrap(), leases.of("two").unwrap().shares.len()), (held, 0));
    leases.divide(&[name(0), name(1)], TAKEN);
    assert!(!leases.of("two").unwrap().shares.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Host(Vec<bool>),
    Demand(usize, u64, u64),
    Read(usize),
    Answer(usize, bool),
    Cut(usize),
    Expire(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..4_usize;
    prop_oneof![
        1 => prop::collection::vec(any::<bool>(), 4).prop_map(Step::Host),
        4 => (node.clone(), 0..500_u64, 0..50_u64).prop_map(|(node, admitted, refused)| Step::Demand(node, admitted, refused)),
        6 => node.clone().prop_map(Step::Read),
        6 => (node.clone(), prop::bool::weighted(0.9)).prop_map(|(node, accepted)| Step::Answer(node, accepted)),
        1 => node.clone().prop_map(Step::Cut),
        1 => node.prop_map(Step::Expire),
        4 => (0..2000_u64).prop_map(Step::Pass),
    ]
}

/// The shares that a node has in force, and the deliveries on their way to it.
#[derive(Default)]
struct End {
    holds: BTreeMap<String, u32>,
    sent: VecDeque<(Delivery, Lease)>,
}

proptest! {
    #[test]
    fn nodes_never_hold_more_than_a_limit_together(steps in prop::collection::vec(step(), 1..200)) {
        let (mut leases, mut now, mut nonce) = (Leases::default(), Duration::ZERO, 0);
        leases.define(&limits());
        let mut ends: Vec<End> = (0..4).map(|_| End::default()).collect();
        let mut hosts = vec![name(0)];
        for step in steps {
            match step {
                Step::Host(on) => hosts = (0..4).filter(|node| on[*node]).map(name).collect(),
                Step::Demand(node, admitted, refused) => leases.report(&name(node), "a", admitted, refused),
                Step::Read(node) => {
                    if let Some(lease) = leases.of(&name(node)) {
                        nonce += 1;
                        leases.sent(&name(node), (1, nonce));
                        ends[node].sent.push_back(((1, nonce), lease));
                    }
                }
                Step::Answer(node, accepted) => {
                    if let Some((delivery, lease)) = ends[node].sent.pop_front() {
                        if accepted {
                            ends[node].holds = lease.shares.into_iter().map(|share| (share.limit, share.parts)).collect();
                        }
                        leases.answered(&name(node), delivery, accepted);
                    }
                }
                // Each delivery on its way may have arrived or not: the node holds the largest
                // share of them.
                Step::Cut(node) => {
                    let sent: Vec<_> = ends[node].sent.drain(..).collect();
                    for share in sent.into_iter().flat_map(|(_, lease)| lease.shares) {
                        let held = ends[node].holds.entry(share.limit).or_default();
                        *held = share.parts.max(*held);
                    }
                }
                // The node's term ends before the control plane treats its share as free.
                Step::Expire(node) => {
                    ends[node] = End::default();
                    leases.forget(&name(node));
                }
                Step::Pass(milliseconds) => now += Duration::from_millis(milliseconds),
            }
            leases.divide(&hosts, now);
            for limit in ["a", "b"] {
                let held: u32 = ends.iter().map(|end| end.holds.get(limit).copied().unwrap_or(0)).sum();
                prop_assert!(held <= PARTS, "{limit}: {held}");
            }
        }
    }
}
