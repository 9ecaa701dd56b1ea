use super::*;
use leno_runtime::random::Random;
use std::collections::BTreeMap;
use std::time::Duration;

fn function(name: &str) -> FunctionId {
    FunctionId::new("shop", name).unwrap()
}

fn at(region: &str, zone: &str) -> Locality {
    Locality { region: Some(region.to_owned()), zone: Some(zone.to_owned()) }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn endpoint(port: u16, ready: u32, locality: Locality) -> Endpoint {
    Endpoint { node: format!("node-{port}").into(), address: address(port), ready, locality }
}

/// A node at zone `a` of `eu`, with its endpoints and health data of one function.
struct World {
    endpoints: Endpoints,
    target: TargetHealth,
    random: Random,
    now: Instant,
}

impl World {
    fn new(endpoints: Vec<Endpoint>) -> Self {
        let world = Self {
            endpoints: Endpoints::default(),
            target: TargetHealth::default(),
            random: Random::from_system().unwrap(),
            now: Instant::now(),
        };
        world.endpoints.set_locality(at("eu", "a"));
        world.endpoints.set([(function("a"), endpoints)]);
        world
    }

    fn choose(&self, among: Among, not: &[SocketAddr]) -> Option<Arc<Candidate>> {
        let known = self.endpoints.of(&function("a"))?;
        let choice = Choice { target: &self.target, not, now: self.now };
        self.endpoints.choose(&known, choice, among, |max| self.random.up_to(max))
    }

    /// Chooses a thousand times. Returns the chosen ports, and how often each was chosen. Each
    /// request stays in flight until the end.
    fn chosen(&self, among: Among, not: &[SocketAddr]) -> BTreeMap<u16, usize> {
        let chosen: Vec<_> = (0..1000)
            .filter_map(|_| self.choose(among, not).map(|chosen| (chosen.begin(), chosen.endpoint.address.port())))
            .collect();
        let mut counts = BTreeMap::new();
        chosen.iter().for_each(|(_, port)| *counts.entry(*port).or_default() += 1);
        counts
    }
}

#[test]
fn the_nearest_ready_ones_come_first_and_farther_ones_when_these_cannot_be_used() {
    let world = World::new(vec![
        endpoint(1, 0, at("eu", "a")),
        endpoint(2, 1, at("us", "a")),
        endpoint(3, 1, at("eu", "b")),
        endpoint(4, 1, at("eu", "a")),
        endpoint(5, 1, at("eu", "a")),
    ]);
    let ports = |among, not: &[SocketAddr]| world.chosen(among, not).into_keys().collect::<Vec<_>>();
    assert_eq!(ports(Among::Ready, &[]), [4, 5]);
    assert_eq!(ports(Among::Ready, &[address(4)]), [5]);
    assert_eq!(ports(Among::Ready, &[address(4), address(5)]), [3]);
    assert_eq!(ports(Among::Ready, &[3, 4, 5].map(address)), [2]);
    assert_eq!(ports(Among::Ready, &[2, 3, 4, 5].map(address)), [0; 0]);
    assert_eq!(ports(Among::Homes, &[]), [1]);
    world.endpoints.unreachable(address(4), world.now);
    world.endpoints.unreachable(address(5), world.now);
    assert_eq!(ports(Among::Ready, &[]), [3]);
    assert_eq!(ports(Among::Avoided, &[]), [4, 5], "to be avoided is not to be forbidden");
}

#[test]
fn a_node_to_which_no_connection_could_be_made_comes_back_after_a_while() {
    let mut world = World::new(vec![endpoint(1, 1, at("eu", "a")), endpoint(2, 1, at("eu", "b"))]);
    let began = world.now;
    let away = |world: &mut World| {
        world.endpoints.unreachable(address(1), world.now);
        let since = world.now;
        while world.choose(Among::Ready, &[]).unwrap().endpoint.address != address(1) {
            world.now += Duration::from_millis(100);
        }
        world.now - since
    };
    let first = away(&mut world);
    let second = away(&mut world);
    assert!(first >= Duration::from_secs(1) && second > first, "{first:?} {second:?}");
    assert!(world.now - began < Duration::from_secs(5));
}

#[test]
fn requests_follow_the_number_of_instances() {
    let near = || at("eu", "a");
    let world = World::new(vec![endpoint(1, 1, near()), endpoint(2, 1, near()), endpoint(3, 8, near())]);
    let counts = world.chosen(Among::Ready, &[]);
    assert_eq!(counts.values().sum::<usize>(), 1000);
    assert!(counts[&3] > 2 * counts[&1] && counts[&3] > 2 * counts[&2], "{counts:?}");
    let even = World::new((1..=4).map(|port| endpoint(port, 1, near())).collect()).chosen(Among::Ready, &[]);
    assert!(even.values().all(|count| (240..=260).contains(count)), "{even:?}");
}

#[test]
fn what_is_under_way_is_counted_across_changes_and_functions_are_separate() {
    let near = || at("eu", "a");
    let world = World::new(vec![endpoint(1, 1, near()), endpoint(2, 1, near())]);
    let busy: Vec<_> = (0..10).map(|_| world.choose(Among::Ready, &[address(2)]).unwrap().begin()).collect();
    world.endpoints.set([(function("a"), vec![endpoint(1, 1, near()), endpoint(2, 1, near())])]);
    assert_eq!(world.choose(Among::Ready, &[]).unwrap().endpoint.address, address(2));
    drop(busy);
    assert_eq!(world.choose(Among::Ready, &[address(2)]).unwrap().in_flight.load(Ordering::Relaxed), 0);

    world.endpoints.set([(function("b"), vec![endpoint(3, 0, near())])]);
    assert_eq!(world.endpoints.of(&function("b")).unwrap().len(), 1);
    world.endpoints.set([(function("a"), Vec::new())]);
    assert!(world.endpoints.of(&function("a")).is_none() && world.endpoints.of(&function("b")).is_some());
    world.endpoints.set([(function("b"), Vec::new())]);
    assert!(world.endpoints.of(&function("b")).is_none());
    assert!(!world.endpoints.any.load(Ordering::Acquire));
}
