//! Moves of functions between nodes, by drains and by rebalancing. At no moment does a node have
//! endpoints that lead to a node without the function.

use super::*;

/// Calls of [`State::rebalance`] after which functions move to a node that has come.
const PROBATION: usize = 10;

impl Mesh {
    /// Two nodes with these functions.
    fn of_two(functions: usize) -> Self {
        let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
        let mut mesh = Mesh::new(&bundle);
        NODES[..2].iter().for_each(|name| mesh.connect(name));
        (0..functions).for_each(|function| mesh.put(function, 0));
        mesh.deliver();
        mesh
    }

    /// All connected nodes read and answer until no message is left.
    fn deliver(&mut self) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for name in NODES {
                while self.read(name) || !self.ends[name].read.is_empty() {
                    self.answer(name, true);
                    is_quiet = false;
                }
            }
            self.state.note_certificates();
        }
    }

    /// The number of functions on each node.
    fn counts(&self) -> [usize; 3] {
        let hosts = |name: &str, function: &&str| self.state.hosting.is_host(&configs::function(function), name);
        NODES.map(|name| FUNCTIONS.iter().filter(|function| hosts(name, function)).count())
    }

    fn rebalance(&mut self, times: usize) {
        for at_ms in 0..times {
            self.state.rebalance(at_ms as u64);
            (0..3).for_each(|_| self.deliver());
        }
    }

    fn moves(&self) -> usize {
        let events = self.state.placement_events();
        events.iter().filter(|event| event.reason.contains("it moves from node")).count()
    }

    /// Checks that endpoints in force lead to nodes that take the function's requests.
    fn check_endpoints(&self) -> Result<(), TestCaseError> {
        for (name, end) in &self.ends {
            for (id, endpoints) in &end.endpoints {
                for host in endpoints.iter().map(|endpoint| &*endpoint.node) {
                    let has = self.ends[host].held.contains_key(&Subject::FunctionConfig(id.clone()));
                    prop_assert!(has, "{name} sends requests of {id} to {host}, which does not have it");
                    let refuses = self.ends[host].bounds.get(id).is_some_and(Vec::is_empty);
                    prop_assert!(!refuses, "{name} sends requests of {id} to {host}, which it has left");
                }
            }
        }
        Ok(())
    }
}

/// A step while all nodes stay connected; `None`: rebalancing.
fn move_step() -> impl Strategy<Value = Option<Step>> {
    let node = 0..NODES.len();
    prop_oneof![
        2 => (0..FUNCTIONS.len(), 0..3_u32).prop_map(|(function, min)| Some(Step::Put(function, min))),
        8 => node.clone().prop_map(|node| Some(Step::Read(node))),
        8 => node.clone().prop_map(|node| Some(Step::Answer(node, true))),
        3 => (node.clone(), 0..FUNCTIONS.len(), 0..4_u32, 0..3_u32)
            .prop_map(|(node, function, ready, waiting)| Some(Step::Load(node, function, ready, waiting))),
        2 => (node, any::<bool>()).prop_map(|(node, drained)| Some(Step::Cordon(node, drained))),
        1 => Just(None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_node_has_endpoints_of_a_node_that_a_function_has_left(steps in prop::collection::vec(move_step(), 0..150)) {
        let mut mesh = Mesh::of_two(3);
        mesh.connect(NODES[2]);
        for step in steps {
            match step {
                Some(step) => mesh.step(step),
                None => (0..PROBATION).for_each(|_| mesh.state.rebalance(0)),
            }
            mesh.state.note_certificates();
            mesh.check_endpoints()?;
            mesh.check_sum()?;
        }
    }
}

#[test]
fn functions_move_to_a_node_that_has_come_one_at_a_time_and_stay_there() {
    let mut mesh = Mesh::of_two(6);
    assert_eq!(mesh.counts(), [3, 3, 0]);
    mesh.rebalance(2 * PROBATION);
    assert_eq!(mesh.moves(), 0, "both nodes have as much");
    mesh.connect(NODES[2]);
    mesh.rebalance(PROBATION - 1);
    assert_eq!(mesh.moves(), 0, "the node may be about to go again");
    // Without answers, the first move does not end, and no other one begins.
    (0..5).for_each(|_| mesh.state.rebalance(0));
    assert_eq!(mesh.moves(), 1);
    (0..3).for_each(|_| mesh.deliver());
    mesh.rebalance(5 * PROBATION);
    assert_eq!((mesh.counts(), mesh.moves()), ([2, 2, 2], 2));
    let event = mesh.state.placement_events().pop().unwrap();
    assert!(event.reason.ends_with("to node three, which has more room"), "{event:?}");
    assert!(event.load.as_deref().unwrap().ends_with("; three has 1 functions and uses 0 %"), "{event:?}");
    // It dies, and comes back.
    mesh.step(Step::Restart(2));
    mesh.deliver();
    assert_eq!(mesh.counts()[2], 0);
    mesh.connect(NODES[2]);
    mesh.rebalance(5 * PROBATION);
    assert_eq!((mesh.counts(), mesh.moves()), ([2, 2, 2], 4));
}

#[test]
fn a_cordoned_node_gets_nothing_until_that_ends() {
    let mut mesh = Mesh::of_two(6);
    mesh.state.cordon(NODES[2], Cordon::Cordoned);
    mesh.connect(NODES[2]);
    mesh.rebalance(5 * PROBATION);
    assert_eq!(mesh.counts(), [3, 3, 0]);
    mesh.state.cordon(NODES[2], Cordon::Open);
    mesh.rebalance(5 * PROBATION);
    assert_eq!(mesh.counts(), [2, 2, 2]);
}

#[test]
fn a_move_waits_for_all_connected_nodes_that_call_the_function() {
    for goes in [false, true] {
        // Each function calls the next one, on another node.
        let mut mesh = Mesh::of_two(0);
        [3, 4].into_iter().for_each(|function| mesh.put(function, 0));
        mesh.connect(NODES[2]);
        mesh.deliver();
        let callee = configs::function(FUNCTIONS[4]);
        let home = |mesh: &Mesh, function: usize| {
            let home = mesh.state.hosting.scheduler.nodes_of(&configs::function(FUNCTIONS[function]))[0].clone();
            NODES.iter().position(|name| **name == *home).unwrap()
        };
        let (caller, host) = (NODES[home(&mesh, 3)], NODES[home(&mesh, 4)]);
        assert_ne!(caller, host);
        let others: Vec<_> = NODES.into_iter().filter(|name| *name != caller).collect();
        mesh.state.cordon(host, Cordon::Drained);
        let talk = |mesh: &mut Mesh| {
            for _ in 0..10 {
                mesh.state.note_certificates();
                for name in &others {
                    while mesh.read(name) || !mesh.ends[name].read.is_empty() {
                        mesh.answer(name, true);
                    }
                }
            }
        };
        talk(&mut mesh);
        let new = NODES[home(&mesh, 4)];
        assert_ne!(new, caller);
        // The new node has the function; the caller has not read its endpoints.
        assert!(mesh.ends[new].held.contains_key(&Subject::FunctionConfig(callee.clone())));
        let most = |mesh: &Mesh, name: &str| {
            mesh.ends[name].bounds.get(&callee).into_iter().flatten().map(|bounds| bounds.most).sum::<u32>()
        };
        assert_eq!((most(&mesh, host), most(&mesh, new)), (MAX, 0));
        if goes {
            let session = mesh.ends.get_mut(caller).unwrap().session.take().unwrap();
            mesh.state.disconnect(caller, session);
        } else {
            (0..3).for_each(|_| mesh.deliver());
        }
        talk(&mut mesh);
        assert_eq!((most(&mesh, host), most(&mesh, new)), (0, MAX));
        assert!(!mesh.state.hosting.is_host(&callee, host));
    }
}
