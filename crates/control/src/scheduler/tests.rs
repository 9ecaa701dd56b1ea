//! The scheduler under random events, and its decisions in plain cases.

use super::*;
use proptest::prelude::*;

fn id(number: usize) -> FunctionId {
    format!("many/f{number}").parse().unwrap()
}

fn name(number: usize) -> Arc<str> {
    format!("node-{number:03}").into()
}

fn node(instances: u32, zone: &str) -> NodeState {
    let locality = Locality { region: None, zone: Some(zone.to_owned()) };
    NodeState { locality, capacity: Capacity { cpu_millis: 0, memory: 1 << 30, instances }, ..NodeState::default() }
}

fn demand(least: u32) -> Demand {
    Demand { instance: Capacity { cpu_millis: 0, memory: 1 << 20, instances: 1 }, least, ..Demand::default() }
}

fn mesh(nodes: usize) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for number in 0..nodes {
        scheduler.set_node(&name(number), node(10, ["a", "b", "c"][number % 3]));
    }
    scheduler
}

fn placed(scheduler: &Scheduler, number: usize) -> Vec<&str> {
    scheduler.nodes_of(&id(number)).iter().map(|name| &**name).collect()
}

#[test]
fn functions_are_spread_over_zones_then_nodes_and_stay() {
    let mut scheduler = mesh(6);
    scheduler.set_function(&id(0), demand(3), false);
    let zones: BTreeSet<_> = scheduler.nodes_of(&id(0)).iter().map(|name| scheduler.nodes[name].zone()).collect();
    assert_eq!((placed(&scheduler, 0).len(), zones.len()), (3, 3));
    for number in 1..=12 {
        scheduler.set_function(&id(number), demand(1), false);
    }
    let counts: Vec<_> = scheduler.nodes.values().map(|node| node.functions.len()).collect();
    assert!(counts.iter().all(|count| (2..=3).contains(count)), "{counts:?}");
    let before: Vec<Vec<String>> =
        (0..=12).map(|number| placed(&scheduler, number).into_iter().map(str::to_owned).collect()).collect();
    assert!(scheduler.set_node(&name(6), node(10, "a")).is_empty(), "a new node moves nothing");
    assert!(!scheduler.set_function(&id(1), demand(1), false));
    let after: Vec<Vec<String>> =
        (0..=12).map(|number| placed(&scheduler, number).into_iter().map(str::to_owned).collect()).collect();
    assert_eq!(before, after);
}

#[test]
fn load_that_one_node_cannot_hold_gets_another_and_gives_it_back() {
    let mut scheduler = mesh(2);
    scheduler.set_function(&id(0), demand(0), false);
    let home = scheduler.nodes_of(&id(0))[0].clone();
    scheduler.reserve(&id(0), &home, 10);
    assert!(!scheduler.set_desired(&id(0), 10));
    assert!(scheduler.set_desired(&id(0), 11));
    assert_eq!(placed(&scheduler, 0).len(), 2);
    scheduler.reserve(&id(0), &home, 2);
    assert!(!scheduler.set_desired(&id(0), 6), "less than half of what is left would do");
    assert!(scheduler.set_desired(&id(0), 2));
    assert_eq!((placed(&scheduler, 0), scheduler.leaving(&id(0)).count()), (vec![&*home], 1));
}

#[test]
fn functions_that_are_placed_together_get_no_more_room_than_there_is() {
    let mut scheduler = Scheduler::default();
    scheduler.set_node(&name(0), node(1, "a"));
    scheduler.set_node(&name(1), node(10, "a"));
    for number in 0..8 {
        scheduler.set_function(&id(number), demand(1), false);
    }
    let on = |name: &Arc<str>| scheduler.nodes[name].functions.len();
    assert_eq!((on(&name(0)), on(&name(1))), (1, 7));
    assert_eq!((scheduler.reserved_on(&name(0)), scheduler.reserved_on(&name(1))), (1, 7));
}

#[test]
fn an_image_is_where_its_function_goes() {
    let mut scheduler = mesh(3);
    let image = "registry.example/shop@sha256:00".to_owned();
    scheduler.set_node(&name(2), NodeState { images: BTreeSet::from([image.clone()]), ..node(10, "a") });
    scheduler.set_node(&name(1), node(10, "a"));
    for number in 0..3 {
        scheduler.set_function(&id(number), Demand { image: Some(image.clone()), ..demand(0) }, false);
        assert_eq!(placed(&scheduler, number), ["node-002"]);
    }
}

#[test]
fn a_function_is_on_the_node_that_keeps_its_volumes_and_on_no_other() {
    let mut scheduler = mesh(2);
    let on = |node: &str| Demand { only: Some(node.to_owned()), single: true, ..demand(1) };
    scheduler.set_function(&id(0), on("node-002"), false);
    assert!(placed(&scheduler, 0).is_empty(), "the node is not there yet");
    assert!(!scheduler.adopt(&id(0), &name(1)));
    assert_eq!(scheduler.set_node(&name(2), node(10, "a")), BTreeSet::from([id(0)]));
    assert_eq!(placed(&scheduler, 0), ["node-002"]);
    scheduler.remove_node("node-002");
    assert!(placed(&scheduler, 0).is_empty(), "an empty volume on another node would be worse");
    scheduler.set_node(&name(2), node(10, "a"));
    assert_eq!(placed(&scheduler, 0), ["node-002"]);
    scheduler.set_function(&id(0), on("node-001"), false);
    assert_eq!(placed(&scheduler, 0), ["node-001"], "the document names another");
    assert_eq!(scheduler.leaving(&id(0)).count(), 1);
}

#[test]
fn what_has_no_room_waits_and_is_placed_when_there_is_some() {
    let mut scheduler = mesh(1);
    let large = Demand { instance: Capacity { memory: 2 << 30, ..demand(0).instance }, ..demand(0) };
    scheduler.set_function(&id(0), large, false);
    assert!(placed(&scheduler, 0).is_empty());
    let moved = scheduler.set_node(
        &name(1),
        NodeState { capacity: Capacity { cpu_millis: 0, memory: 4 << 30, instances: 1 }, ..node(1, "a") },
    );
    assert_eq!((moved, placed(&scheduler, 0)), (BTreeSet::from([id(0)]), vec!["node-001"]));
}

#[test]
fn a_drained_node_keeps_what_it_has_until_it_is_elsewhere() {
    let mut scheduler = mesh(1);
    scheduler.set_function(&id(0), demand(0), false);
    let drained = NodeState { drained: true, ..node(10, "a") };
    scheduler.set_node(&name(0), drained.clone());
    assert!(scheduler.nodes_of(&id(0)).is_empty() && scheduler.leaving(&id(0)).eq([&name(0)]));
    scheduler.set_function(&id(1), demand(0), false);
    assert!(placed(&scheduler, 1).is_empty());
    assert_eq!(scheduler.set_node(&name(1), node(10, "a")), BTreeSet::from([id(0), id(1)]));
    assert!(scheduler.leaving(&id(0)).eq([&name(0)]));
    scheduler.left(&id(0), &name(0));
    assert_eq!((scheduler.leaving(&id(0)).count(), placed(&scheduler, 0)), (0, vec!["node-001"]));
    assert!(scheduler.nodes[&name(0)].functions.is_empty());
}

#[test]
fn after_a_restart_functions_stay_on_the_nodes_that_have_them() {
    let mut scheduler = Scheduler::default();
    for number in 0..3 {
        scheduler.set_function(&id(number), demand(0), true);
    }
    for number in 0..2 {
        scheduler.set_node(&name(number), node(10, "a"));
    }
    assert!(placed(&scheduler, 0).is_empty());
    assert!(scheduler.adopt(&id(0), &name(1)) && scheduler.adopt(&id(1), &name(1)));
    assert!(!scheduler.adopt(&id(1), &name(0)), "it has a node");
    assert_eq!(scheduler.stop_awaiting(), BTreeSet::from([id(2)]));
    assert_eq!(
        (placed(&scheduler, 0), placed(&scheduler, 1), placed(&scheduler, 2)),
        (vec!["node-001"], vec!["node-001"], vec!["node-000"])
    );
}

#[derive(Clone, Debug)]
enum Event {
    Node(usize, u32, bool),
    Gone(usize),
    Function(usize, u32, u64),
    Removed(usize),
    Desired(usize, u32),
    Reserve(usize, u32),
    Left(usize),
    Rebalance,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..6_usize, 0..12_u32, prop::bool::weighted(0.2)).prop_map(|(node, instances, drained)| Event::Node(node, instances, drained)),
        1 => (0..6_usize).prop_map(Event::Gone),
        4 => (0..10_usize, 0..5_u32, 0..3_u64).prop_map(|(function, least, size)| Event::Function(function, least, size)),
        1 => (0..10_usize).prop_map(Event::Removed),
        3 => (0..10_usize, 0..20_u32).prop_map(|(function, desired)| Event::Desired(function, desired)),
        3 => (0..10_usize, 0..6_u32).prop_map(|(function, instances)| Event::Reserve(function, instances)),
        2 => (0..10_usize).prop_map(Event::Left),
        2 => Just(Event::Rebalance),
    ]
}

fn keep_the_books(events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut scheduler = Scheduler::default();
    for event in events {
        match event {
            Event::Node(number, instances, drained) => {
                scheduler.set_node(&name(number), NodeState { drained, ..node(instances, ["a", "b"][number % 2]) });
            }
            Event::Gone(number) => drop(scheduler.remove_node(&name(number))),
            Event::Function(number, least, size) => {
                let instance = Capacity { memory: size << 28, ..demand(0).instance };
                scheduler.set_function(&id(number), Demand { instance, ..demand(least) }, false);
            }
            Event::Removed(number) => scheduler.remove_function(&id(number)),
            Event::Desired(number, desired) => drop(scheduler.set_desired(&id(number), desired)),
            Event::Reserve(number, instances) => {
                for on in scheduler.nodes_of(&id(number)).to_vec() {
                    scheduler.reserve(&id(number), &on, instances);
                }
            }
            Event::Left(number) => {
                for on in scheduler.leaving(&id(number)).cloned().collect::<Vec<_>>() {
                    scheduler.left(&id(number), &on);
                }
            }
            Event::Rebalance => (0..balance::PROBATION).for_each(|_| drop(scheduler.rebalance())),
        }
        check(&scheduler)?;
    }
    // Without further events, rebalancing ends, and no function comes back to a node.
    let mut came: BTreeMap<FunctionId, BTreeSet<Arc<str>>> = BTreeMap::new();
    for _ in 0..200 {
        for moved in scheduler.rebalance() {
            let before = came.entry(moved.function.clone()).or_default();
            prop_assert!(
                before.insert(moved.from) && !before.contains(&moved.to),
                "{} moves in a circle",
                moved.function
            );
        }
        for id in scheduler.moving().cloned().collect::<Vec<_>>() {
            let on: Vec<_> = scheduler.leaving(&id).cloned().collect();
            on.iter().for_each(|name| scheduler.left(&id, name));
        }
        check(&scheduler)?;
    }
    prop_assert!(scheduler.rebalance().is_empty());
    Ok(())
}

proptest! {
    #[test]
    fn whatever_happens_the_books_are_right(events in prop::collection::vec(event(), 0..80)) {
        keep_the_books(events)?;
    }
}

#[test]
fn a_function_does_not_move_in_a_circle() {
    use Event::{Desired, Function, Left, Node, Rebalance, Removed, Reserve};
    let events = [
        Node(1, 3, false),
        Function(2, 0, 0),
        Node(2, 0, false),
        Node(5, 2, false),
        Function(8, 2, 0),
        Function(5, 3, 1),
        Reserve(8, 2),
        Function(3, 1, 2),
        Function(0, 1, 1),
        Node(2, 4, false),
        Node(1, 0, true),
        Function(8, 0, 0),
        Function(1, 0, 0),
        Node(4, 2, false),
        Rebalance,
        Removed(8),
        Node(1, 4, false),
        Left(5),
        Rebalance,
        Desired(3, 0),
        Node(0, 2, false),
        Function(1, 1, 0),
        Node(4, 0, true),
    ];
    keep_the_books(events.into()).unwrap();
}

fn check(scheduler: &Scheduler) -> Result<(), TestCaseError> {
    for (id, placed) in &scheduler.functions {
        prop_assert_eq!(scheduler.is_moving(id), !placed.leaving.is_empty());
        let on: BTreeSet<_> = placed.nodes.iter().collect();
        prop_assert_eq!(on.len(), placed.nodes.len(), "no node twice");
        prop_assert!(placed.nodes.iter().all(|name| !placed.leaving.contains(name)));
        for name in placed.nodes.iter().chain(&placed.leaving) {
            prop_assert!(scheduler.nodes[name].functions.contains_key(id));
        }
        for name in &placed.nodes {
            prop_assert!(!scheduler.nodes[name].state.drained, "{id} is on a drained node");
        }
        prop_assert!(!placed.nodes.is_empty() || scheduler.short.contains(id));
    }
    let mut ranked = 0;
    for (name, node) in &scheduler.nodes {
        let mut used = Capacity::default();
        for (id, reserved) in &node.functions {
            let placed = &scheduler.functions[id];
            prop_assert!(placed.nodes.contains(name) || placed.leaving.contains(name));
            used = used.plus(&placed.demand.instance.times(*reserved));
        }
        prop_assert_eq!(used, node.used);
        let rank = (node.rank(), name.clone());
        let is_ranked = scheduler.ranking.get(&node.zone()).is_some_and(|zone| zone.contains(&rank));
        prop_assert_eq!(is_ranked, !node.state.drained);
        ranked += usize::from(is_ranked);
    }
    prop_assert_eq!(scheduler.ranking.values().map(BTreeSet::len).sum::<usize>(), ranked);
    Ok(())
}

/// A node that claims any capacity, and every image, does not get all functions.
#[test]
fn a_node_that_claims_the_most_gets_no_more_than_its_part() {
    let mut scheduler = Scheduler::default();
    let image = "registry.example/one@sha256:00".to_owned();
    let claims = NodeState {
        capacity: Capacity { cpu_millis: u64::MAX, memory: u64::MAX, instances: u32::MAX },
        images: BTreeSet::from([image.clone()]),
        ..node(0, "a")
    };
    scheduler.set_node(&name(0), claims.clone());
    (1..4).for_each(|number| drop(scheduler.set_node(&name(number), node(1000, "a"))));
    let demand = Demand {
        instance: Capacity { cpu_millis: 0, memory: 1, instances: 1 },
        image: Some(image),
        least: 1,
        ..Demand::default()
    };
    let ids: Vec<FunctionId> = (0..200).map(|number| format!("a/f{number}").parse().unwrap()).collect();
    for id in &ids {
        scheduler.set_function(id, demand.clone(), false);
        let home = scheduler.nodes_of(id)[0].clone();
        scheduler.reserve(id, &home, 1);
    }
    let on = |scheduler: &Scheduler, number| ids.iter().filter(|id| scheduler.is_on(id, &name(number))).count();
    assert!(on(&scheduler, 0) <= 2 * 200 / 4 + SLACK + 1, "{}", on(&scheduler, 0));
    assert!((1..4).all(|number| on(&scheduler, number) >= 20));
    // An operator has set this capacity.
    scheduler.set_node(&name(0), NodeState { sized: true, ..claims });
    let more: FunctionId = "a/more".parse().unwrap();
    scheduler.set_function(&more, demand, false);
    assert!(scheduler.is_on(&more, &name(0)));
}

/// A node that is cordoned, or does not acknowledge its configuration, keeps its functions and gets
/// no new ones.
#[test]
fn an_unschedulable_node_gets_nothing_new() {
    let mut scheduler = Scheduler::default();
    scheduler.set_node(&name(0), node(10, "a"));
    let (first, second): (FunctionId, FunctionId) = ("a/one".parse().unwrap(), "a/two".parse().unwrap());
    let demand =
        Demand { instance: Capacity { cpu_millis: 0, memory: 1, instances: 1 }, least: 1, ..Demand::default() };
    scheduler.set_function(&first, demand.clone(), false);
    scheduler.reserve(&first, &name(0), 1);
    scheduler.set_node(&name(0), NodeState { unschedulable: true, ..node(10, "a") });
    scheduler.set_function(&second, demand, false);
    assert_eq!((scheduler.is_on(&first, &name(0)), scheduler.is_on(&second, &name(0))), (true, false));
    assert_eq!(scheduler.holds(&first, &name(0)), 1, "no further instances");
    scheduler.set_node(&name(0), node(10, "a"));
    assert!(scheduler.is_on(&first, &name(0)) && scheduler.is_on(&second, &name(0)));
}

#[test]
fn nodes_without_jails_get_one_instance_of_a_fixed_port_and_none_that_needs_a_jail() {
    let without_jails = || NodeState { without_jails: true, ..node(10, "a") };
    let mut scheduler = Scheduler::default();
    (0..2).for_each(|number| drop(scheduler.set_node(&name(number), without_jails())));
    let fixed = Demand { jails: JailUse::FixedPort, ..demand(0) };
    scheduler.set_function(&id(0), fixed.clone(), false);
    assert_eq!(scheduler.holds(&id(0), placed(&scheduler, 0)[0]), 1);
    scheduler.set_desired(&id(0), 3);
    assert!(placed(&scheduler, 0).len() == 2 && scheduler.is_short(&id(0)), "one on each, and one is missing");
    scheduler.set_function(&id(1), Demand { jails: JailUse::Required, ..demand(0) }, false);
    assert!(placed(&scheduler, 1).is_empty() && scheduler.is_short(&id(1)));
    // A node with jails has the rest.
    scheduler.set_node(&name(2), node(10, "a"));
    assert!(scheduler.is_on(&id(0), "node-002"));
    assert_eq!(placed(&scheduler, 1), ["node-002"]);
    assert_eq!(scheduler.holds(&id(0), "node-002"), 10);
    assert_eq!(scheduler.short().count(), 0);
}

/// Rebalances until nothing moves, and returns the functions that have moved to `to`.
fn moved_to(scheduler: &mut Scheduler, to: &Arc<str>) -> Vec<FunctionId> {
    let mut moved = Vec::new();
    for _ in 0..100 {
        for one in scheduler.rebalance() {
            assert_eq!(one.to, *to);
            scheduler.left(&one.function, &one.from);
            moved.push(one.function);
        }
    }
    moved
}

#[test]
fn what_a_document_or_an_operator_has_fixed_does_not_move() {
    let image = || Some("registry.example/shop@sha256:00".to_owned());
    let fixed = [
        Demand { only: Some(name(0).to_string()), single: true, ..demand(0) },
        Demand { stateful: true, ..demand(0) },
        Demand { image: image(), ..demand(0) },
    ];
    for fixed in fixed {
        let mut scheduler = mesh(1);
        for number in 0..4 {
            scheduler.set_function(&id(number), fixed.clone(), false);
        }
        scheduler.set_node(&name(1), node(10, "a"));
        assert_eq!(moved_to(&mut scheduler, &name(1)), []);
        // The image has come.
        scheduler.set_node(&name(2), NodeState { images: image().into_iter().collect(), ..node(10, "a") });
        let expected = if fixed.image.is_some() { 2 } else { 0 };
        assert_eq!(moved_to(&mut scheduler, &name(2)).len(), expected);
    }
    // A cordoned node keeps its functions, and so does one that is as full as the new one would be.
    let mut scheduler = mesh(1);
    for number in 0..4 {
        scheduler.set_function(&id(number), demand(0), false);
    }
    scheduler.set_node(&name(0), NodeState { unschedulable: true, ..node(10, "b") });
    scheduler.set_node(&name(1), node(10, "a"));
    assert_eq!(moved_to(&mut scheduler, &name(1)), []);
}

#[test]
fn instances_move_only_if_that_relieves_their_node_and_zones_stay() {
    // Six instances of one function, and two of another.
    let mut scheduler = mesh(1);
    for (number, instances) in [(0, 6), (1, 2)] {
        scheduler.set_function(&id(number), demand(0), false);
        scheduler.reserve(&id(number), &name(0), instances);
    }
    scheduler.set_node(&name(1), node(10, "a"));
    assert_eq!(moved_to(&mut scheduler, &name(1)), [id(0)]);
    // The function on both zones does not go to the zone where it is already.
    let mut scheduler = mesh(2);
    scheduler.set_function(&id(0), demand(2), false);
    (0..2).for_each(|number| drop(scheduler.reserve(&id(0), &name(number), 5)));
    scheduler.set_node(&name(2), node(20, "a"));
    assert_eq!(moved_to(&mut scheduler, &name(2)), [id(0)]);
    assert_eq!(placed(&scheduler, 0), ["node-002", "node-001"]);
}
