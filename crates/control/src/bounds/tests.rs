//! Bounds under random interleavings, against a model of the nodes.

use super::*;
use proptest::prelude::*;

fn share() -> impl Strategy<Value = Share> {
    (prop_oneof![0..20_u32, Just(u32::MAX)], 0..20_u32).prop_map(|(holds, wants)| Share { holds, wants })
}

proptest! {
    #[test]
    fn a_division_adds_up(min in 0..30_u32, max in prop_oneof![0..60_u32, Just(u32::MAX)], nodes in prop::collection::vec(share(), 0..6)) {
        let divided = divide(min, max, &nodes);
        prop_assert_eq!(divided.len(), nodes.len());
        let held: u64 = nodes.iter().map(|node| u64::from(node.holds)).sum();
        let (least, most) = divided.iter().fold((0, 0), |(l, m), (least, most)| (l + u64::from(*least), m + u64::from(*most)));
        // The sum is the minimum, or as many as the nodes can hold.
        prop_assert_eq!(least, u64::from(min.min(max)).min(held));
        prop_assert_eq!(most, u64::from(max).min(held));
        for (node, (least, most)) in nodes.iter().zip(&divided) {
            prop_assert!(least <= most && *most <= node.holds);
        }
    }

    #[test]
    fn a_node_keeps_what_it_wants_if_all_have_room(wants in prop::collection::vec(0..10_u32, 1..5), spare in 0..10_u32) {
        let max = wants.iter().sum::<u32>() + spare;
        let nodes: Vec<_> = wants.iter().map(|wants| Share { holds: 100, wants: *wants }).collect();
        let divided = divide(0, max, &nodes);
        prop_assert!(divided.iter().zip(&wants).all(|((_, most), wants)| most >= wants), "{:?}", divided);
    }
}

#[test]
fn a_home_alone_may_have_all_and_two_nodes_have_half_each() {
    let idle = Share { holds: 50, wants: 0 };
    assert_eq!(divide(0, 10, &[idle]), [(0, 10)]);
    assert_eq!(divide(1, 10, &[idle, idle]), [(1, 6), (0, 4)]); // One at least, and half of the rest.
    assert_eq!(divide(3, 3, &[idle, idle]), [(2, 2), (1, 1)]);
    assert_eq!(divide(0, 10, &[Share { wants: 8, ..idle }, idle]), [(0, 9), (0, 1)]);
    assert_eq!(divide(0, u32::MAX, &[idle, idle]), [(0, 50), (0, 50)], "no maximum, but the nodes' own");
}

/// A node of the model: the bounds that it has in force, and the deliveries that it has not
/// answered.
#[derive(Default)]
struct Peer {
    in_force: Vec<Bounds>,
    queue: VecDeque<(Delivery, Vec<Bounds>)>,
    known: Vec<Bounds>,
}

#[derive(Clone, Debug)]
enum Step {
    /// New targets of all nodes, as a division of the maximum.
    Target(Vec<u32>),
    /// The control plane sends the node its bounds if they differ from those that it sent last.
    Send(usize),
    /// The node answers its oldest delivery.
    Answer(usize, bool),
    /// The node's stream ends. Some deliveries that it has not answered are in force all the same.
    Cut(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => prop::collection::vec(0..10_u32, 3).prop_map(Step::Target),
        4 => (0..3_usize).prop_map(Step::Send),
        4 => (0..3_usize, prop::bool::weighted(0.9)).prop_map(|(node, accepted)| Step::Answer(node, accepted)),
        1 => (0..3_usize, 0..3_usize).prop_map(|(node, applied)| Step::Cut(node, applied)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_nodes_never_have_more_than_the_maximum_and_get_there_in_the_end(max in 0..20_u32, steps in prop::collection::vec(step(), 0..60)) {
        let names: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
        let maxima = BTreeMap::from([(1, max)]);
        let mut grants = Grants::default();
        let mut peers: Vec<Peer> = (0..3).map(|_| Peer::default()).collect();
        let mut targets: BTreeMap<Arc<str>, Vec<Bounds>> = BTreeMap::new();
        let mut nonce = 0;
        let target = |wanted: &[u32]| {
            let mut left = max;
            let bounds = wanted.iter().map(|wanted| {
                let most = left.min(*wanted);
                left -= most;
                vec![Bounds { revision: 1, least: 0, most }]
            });
            names.iter().cloned().zip(bounds).collect::<BTreeMap<_, _>>()
        };
        let send = |grants: &mut Grants, peer: &mut Peer, name: &Arc<str>, nonce: &mut u64| {
            let Some(now) = grants.of(name).map(<[Bounds]>::to_vec) else { return };
            if now != peer.known || grants.are_uncertain(name) && peer.queue.is_empty() {
                *nonce += 1;
                grants.sent(name, (1, *nonce));
                peer.queue.push_back(((1, *nonce), now.clone()));
                peer.known = now;
            }
        };
        let answer = |grants: &mut Grants, peer: &mut Peer, name: &Arc<str>, accepted: bool| {
            let Some((delivery, bounds)) = peer.queue.pop_front() else { return };
            if accepted {
                peer.in_force = bounds;
                grants.in_force(name, delivery);
            } else {
                grants.rejected(name, delivery);
            }
        };
        for step in steps {
            match step {
                Step::Target(wanted) => targets = target(&wanted),
                Step::Send(node) => send(&mut grants, &mut peers[node], &names[node], &mut nonce),
                Step::Answer(node, accepted) => answer(&mut grants, &mut peers[node], &names[node], accepted),
                Step::Cut(node, applied) => {
                    let peer = &mut peers[node];
                    let applied = peer.queue.drain(..).take(applied).next_back();
                    if let Some((_, bounds)) = applied {
                        peer.in_force = bounds;
                    }
                    // The next stream begins with the bounds in force.
                    peer.known = peer.in_force.clone();
                }
            }
            grants.set(&targets, &maxima);
            let sum: u64 = peers.iter().map(|peer| u64::from(most(&peer.in_force, 1))).sum();
            prop_assert!(sum <= u64::from(max), "{sum} of {max}");
        }
        // Bounds that a node has refused are sent again only on its next stream.
        for peer in &mut peers {
            peer.queue.clear();
            peer.known = peer.in_force.clone();
        }
        for _ in 0..6 {
            for (peer, name) in peers.iter_mut().zip(&names) {
                send(&mut grants, peer, name, &mut nonce);
                while !peer.queue.is_empty() {
                    answer(&mut grants, peer, name, true);
                }
                grants.set(&targets, &maxima);
            }
        }
        for (peer, name) in peers.iter().zip(&names) {
            let wanted = targets.get(name).map_or(0, |target| most(target, 1));
            prop_assert_eq!(most(&peer.in_force, 1), wanted, "{}", name);
        }
    }
}

#[test]
fn a_bound_is_shared_by_what_each_has_and_wants() {
    let claim = |least, has, wants, most| Claim { least, has, wants, most };
    assert_eq!(apportion(10, &[claim(0, 0, 0, 6), claim(0, 0, 0, 6)]), [5, 5]);
    assert_eq!(apportion(10, &[claim(0, 6, 6, 6), claim(0, 0, 9, 9)]), [6, 4], "what it has it keeps");
    assert_eq!(apportion(10, &[claim(3, 0, 0, 6), claim(0, 7, 9, 9)]), [3, 7], "a minimum comes first");
    assert_eq!(
        apportion(3, &[claim(2, 0, 0, 6), claim(2, 5, 5, 6)]).iter().sum::<u32>(),
        3,
        "a quota that was lowered"
    );
    assert_eq!(apportion(100, &[claim(0, 0, 0, 6), claim(0, 0, 50, 9)]), [6, 9]);
    assert_eq!(apportion(5, &[]), [0; 0]);
}
