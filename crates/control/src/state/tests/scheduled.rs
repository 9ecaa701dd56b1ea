//! Random histories of nodes on which the scheduler places functions. At no moment do present nodes
//! have more instances in force than a function's maximum, and in the end each function is on a
//! node that has it.

mod absences;
mod moves;

use super::*;
use crate::admission::Cordon;
use leno_model::{Command, Isolation, Readiness, Resources, Run, Scale};
use leno_wire::{Load, Observation};
use proptest::prelude::*;

const CAPACITY: Capacity = Capacity { cpu_millis: 4000, memory: 1 << 30, instances: 8 };
const MAX: u32 = 6;
/// Instances of the namespace `a`, whose functions would have three times `MAX`.
const QUOTA: u32 = 10;

fn command(name: &str, callees: &[&str], scale: Scale) -> FunctionConfig {
    let command = Command {
        argv: vec!["function".to_owned()],
        directory: "/".into(),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        resources: Resources::default(),
        isolation: Isolation::Auto,
        read_only_paths: Vec::new(),
        volumes: Vec::new(),
        persistent: vec![],
        port: None,
        ports: Vec::new(),
        readiness: Readiness::Tcp,
        liveness: None,
        startup_timeout: Duration::from_secs(10),
        container: None,
        grace: Duration::ZERO,
    };
    let mut config = FunctionConfig { run: Run::Command(command), scale, ..configs::config(name, callees, 1) };
    config.bounds.instances = name.starts_with("a/").then_some(QUOTA);
    config
}

/// A node's end: its resources in force, and the deltas that it has read and not answered.
#[derive(Default)]
struct End {
    session: Option<u64>,
    held: BTreeMap<Subject, Version>,
    bounds: BTreeMap<FunctionId, Vec<Bounds>>,
    endpoints: BTreeMap<FunctionId, Vec<Endpoint>>,
    read: VecDeque<v1::Delta>,
}

struct Mesh {
    state: State,
    ends: BTreeMap<&'static str, End>,
    now: Duration,
    /// The control plane has taken a node for lost that was not.
    mistaken: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Connect(usize),
    Disconnect(usize),
    Restart(usize),
    Lose(usize),
    Put(usize, u32),
    Read(usize),
    Answer(usize, bool),
    Load(usize, usize, u32, u32),
    Cordon(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..NODES.len();
    let function = 0..FUNCTIONS.len();
    prop_oneof![
        2 => node.clone().prop_map(Step::Connect),
        1 => node.clone().prop_map(Step::Disconnect),
        1 => node.clone().prop_map(Step::Restart),
        1 => node.clone().prop_map(Step::Lose),
        3 => (function.clone(), 0..4_u32).prop_map(|(function, min)| Step::Put(function, min)),
        6 => node.clone().prop_map(Step::Read),
        6 => (node.clone(), prop::bool::weighted(0.95)).prop_map(|(node, accepted)| Step::Answer(node, accepted)),
        4 => (node.clone(), function, 0..7_u32, 0..5_u32).prop_map(|(node, function, ready, waiting)| Step::Load(node, function, ready, waiting)),
        1 => (node, any::<bool>()).prop_map(|(node, cordoned)| Step::Cordon(node, cordoned)),
    ]
}

impl Mesh {
    fn new(bundle: &TrustBundle) -> Self {
        let definitions = Definitions {
            mesh: configs::mesh(),
            configs: BTreeMap::new(),
            routes: Default::default(),
            modules: BTreeMap::new(),
            permissions: Default::default(),
            secrets: None,
        };
        let histories = Histories::default();
        let compiled = CompiledDefinitions::new(&definitions, &definitions.modules, &histories, bundle).unwrap();
        let mut state = State::new(compiled, histories);
        for name in NODES {
            state.admit(
                name,
                Admission {
                    placement: Placement::Scheduled,
                    gateway: false,
                    locality: Default::default(),
                    egress: false,
                },
            );
        }
        Self { state, ends: NODES.map(|name| (name, End::default())).into(), now: Duration::ZERO, mistaken: false }
    }

    fn put(&mut self, function: usize, min: u32) {
        let callees = [FUNCTIONS[(function + 1) % FUNCTIONS.len()]];
        let scale = Scale { min, max: MAX, per_instance: 1.0, utilization: 1.0, ..Scale::default() };
        let config = command(FUNCTIONS[function], &callees, scale);
        let history = self.state.histories().record_one(&config, 0).unwrap();
        let resolved = history.config_for_delivery(&config).unwrap();
        let prepared = self.state.prepare_put(&resolved, &configs::DOMAIN.parse().unwrap()).unwrap();
        self.state.put(prepared, history);
    }

    fn connect(&mut self, name: &'static str) {
        let end = self.ends.get_mut(name).unwrap();
        end.read.clear();
        let greeting = Hello {
            subscribe: vec![Subject::Hosted],
            held: end.held.iter().map(|(subject, version)| (subject.clone(), *version)).collect(),
            inbound: Some(SocketAddr::from(([127, 0, 0, 1], 1000))),
            capacity: Some(NodeOffer { capacity: CAPACITY, images: BTreeSet::new(), without_jails: false }),
            bounds: end.bounds.clone().into_iter().collect(),
            ..Hello::default()
        };
        end.session = self.state.connect(name, greeting, Arc::default());
    }

    fn read(&mut self, name: &'static str) -> bool {
        let end = self.ends.get_mut(name).unwrap();
        let Some(session) = end.session else { return false };
        match self.state.next_delta(name, session) {
            Next::Send(v1::ToNode { message: Some(v1::to_node::Message::Delta(delta)) }) => end.read.push_back(delta),
            _ => return false,
        }
        true
    }

    fn answer(&mut self, name: &'static str, accepted: bool) {
        let end = self.ends.get_mut(name).unwrap();
        let (Some(session), Some(delta)) = (end.session, end.read.pop_front()) else { return };
        let mut rejected = Vec::new();
        for resource in &delta.resources {
            let subject = messages::subject(resource.subject.as_ref()).unwrap();
            if !accepted {
                rejected.push((subject, "no".to_owned()));
                continue;
            }
            match Resource::decode(&subject, &resource.payload).unwrap() {
                Resource::Scale(id, bounds) => drop(end.bounds.insert(id, bounds)),
                Resource::Endpoints(id, endpoints) => drop(end.endpoints.insert(id, endpoints)),
                _ => {}
            }
            end.held.insert(subject, messages::version(&resource.version).unwrap());
        }
        for subject in messages::subjects(&delta.removed).unwrap() {
            match &subject {
                Subject::Scale(id) => drop(end.bounds.remove(id)),
                Subject::Endpoints(id) => drop(end.endpoints.remove(id)),
                _ => {}
            }
            end.held.remove(&subject);
        }
        self.state.acknowledge(name, session, delta.nonce, rejected);
        let held = end.held.keys().filter_map(|subject| match subject {
            Subject::FunctionConfig(id) => Some(id.clone()),
            _ => None,
        });
        let node = &self.state.nodes.all[name];
        let new = held.filter(|id| !node.certified.contains(id) && !node.certifying.contains_key(id));
        for id in new.collect::<Vec<_>>() {
            let (identity, _) =
                self.state.catalog.compiled.by_identity.iter().find(|(_, functions)| functions.contains(&id)).unwrap();
            self.state.signed(name, identity.clone(), 0);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Connect(node) => self.connect(NODES[node]),
            Step::Disconnect(node) => {
                let end = self.ends.get_mut(NODES[node]).unwrap();
                end.read.clear();
                if let Some(session) = end.session.take() {
                    self.state.disconnect(NODES[node], session);
                }
            }
            Step::Restart(node) => {
                // The machine dies, and comes back without state.
                let end = mem::take(self.ends.get_mut(NODES[node]).unwrap());
                if let Some(session) = end.session {
                    self.state.disconnect(NODES[node], session);
                    let _ = self.state.forget(NODES[node], session, Wait::Last);
                }
            }
            Step::Lose(node) => {
                // The control plane takes the node for lost, which has all that it had.
                self.step(Step::Disconnect(node));
                let last = self.state.nodes.all[NODES[node]].last_session;
                let _ = self.state.forget(NODES[node], last, Wait::Last);
                self.mistaken = true;
            }
            Step::Put(function, min) => self.put(function, min),
            Step::Read(node) => drop(self.read(NODES[node])),
            Step::Answer(node, accepted) => self.answer(NODES[node], accepted),
            Step::Load(node, function, ready, waiting) => {
                self.now += Duration::from_millis(200);
                let seen = Observation { ready, in_flight: ready, waiting, ..Observation::default() };
                let load = Load { function: configs::function(FUNCTIONS[function]), revision: 1, starting: 0, seen };
                if let Some(session) = self.ends[NODES[node]].session {
                    self.state.load(NODES[node], session, vec![load], self.now);
                }
            }
            Step::Cordon(node, cordoned) => {
                self.state.cordon(NODES[node], if cordoned { Cordon::Drained } else { Cordon::Open });
            }
        }
    }

    /// Instances that the nodes may have of each revision together.
    fn check_sum(&self) -> Result<(), TestCaseError> {
        if self.mistaken {
            return Ok(());
        }
        let mut sums: BTreeMap<(&FunctionId, u32), u32> = BTreeMap::new();
        for (id, bounds) in self.ends.values().flat_map(|end| &end.bounds) {
            for bounds in bounds {
                prop_assert!(bounds.least <= bounds.most);
                *sums.entry((id, bounds.revision)).or_default() += bounds.most;
            }
        }
        // Instances of a revision that was replaced are about to end.
        let is_current = |id: &FunctionId, number: u32| {
            let function = self.state.catalog.compiled.functions.get(id);
            function.is_some_and(|function| function.scaled.iter().any(|revision| revision.number == number))
        };
        let of_namespace = sums.iter().filter(|((id, number), _)| id.namespace == "a" && is_current(id, *number));
        let of_namespace: u32 = of_namespace.map(|(_, sum)| sum).sum();
        prop_assert!(of_namespace <= QUOTA, "the namespace may have {of_namespace} instances");
        for ((id, _), sum) in sums {
            prop_assert!(sum <= MAX, "{id} may have {sum} instances");
        }
        Ok(())
    }

    /// Instances of a function that the nodes may have together.
    fn most(&self, id: &FunctionId) -> u32 {
        let bounds = self.ends.values().filter_map(|end| end.bounds.get(id)).flatten();
        bounds.map(|bounds| bounds.most).sum()
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        for name in NODES {
            self.state.cordon(name, Cordon::Open);
            self.connect(name);
        }
        for _ in 0..20 {
            self.state.note_certificates();
            for name in NODES {
                while self.read(name) || !self.ends[name].read.is_empty() {
                    self.answer(name, true);
                    self.check_sum()?;
                }
            }
        }
        self.mistaken = false;
        self.check_sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn bounds_add_up_at_every_moment_and_every_function_has_a_home(steps in prop::collection::vec(step(), 0..120)) {
        let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
        let mut mesh = Mesh::new(&bundle);
        for step in steps {
            mesh.step(step);
            mesh.check_sum()?;
        }
        mesh.settle()?;
        for id in mesh.state.catalog.compiled.functions.keys() {
            let nodes = mesh.state.hosting.scheduler.nodes_of(id);
            prop_assert!(!nodes.is_empty(), "{id} has no home");
            prop_assert_eq!(mesh.state.hosting.scheduler.leaving(id).count(), 0, "{} is left nowhere", id);
            for name in NODES {
                let hosts = nodes.iter().any(|node| **node == *name);
                prop_assert_eq!(mesh.ends[name].held.contains_key(&Subject::FunctionConfig(id.clone())), hosts, "{} on {}", id, name);
                prop_assert_eq!(mesh.ends[name].bounds.contains_key(id), hosts, "{} on {}", id, name);
            }
            if id.namespace != "a" {
                prop_assert_eq!(mesh.most(id), MAX, "all of its instances are given to somebody");
            }
        }
        let functions: Vec<_> = mesh.state.catalog.compiled.functions.keys().filter(|id| id.namespace == "a").collect();
        let most: u32 = functions.iter().map(|id| mesh.most(id)).sum();
        prop_assert_eq!(most, QUOTA.min(MAX * functions.len() as u32), "all instances of the namespace are given to a function");
    }
}

/// A mesh with one function whose node is not known, as after a restart of the control plane.
fn restarted() -> (Mesh, FunctionId) {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut mesh = Mesh::new(&bundle);
    mesh.state.hosting.awaiting = true;
    mesh.put(0, 0);
    (mesh, configs::function(FUNCTIONS[0]))
}

#[test]
fn functions_of_a_namespace_share_its_instances_by_their_load() {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut mesh = Mesh::new(&bundle);
    NODES.iter().for_each(|name| mesh.connect(name));
    (0..3).for_each(|function| mesh.put(function, 0));
    mesh.settle().unwrap();
    let ids = [0, 1, 2].map(|function| configs::function(FUNCTIONS[function]));
    let most = |mesh: &Mesh| [0, 1, 2].map(|function: usize| mesh.most(&ids[function]));
    assert_eq!(most(&mesh).iter().sum::<u32>(), QUOTA);
    let host = |mesh: &Mesh, function: usize| {
        let home = &mesh.state.hosting.scheduler.nodes_of(&ids[function])[0];
        NODES.iter().position(|name| **name == **home).unwrap()
    };
    // The function gets the missing part of the quota from functions without instances.
    mesh.step(Step::Load(host(&mesh, 2), 2, 3, 20));
    mesh.settle().unwrap();
    assert_eq!(most(&mesh)[2], MAX, "{:?}", most(&mesh));
    assert_eq!(most(&mesh).iter().sum::<u32>(), QUOTA);
    // A function keeps its instances, though another one wants all.
    mesh.step(Step::Load(host(&mesh, 2), 2, 5, 0));
    mesh.step(Step::Load(host(&mesh, 0), 0, 1, 50));
    mesh.settle().unwrap();
    let now = most(&mesh);
    assert!(now[2] >= 5 && now[0] >= 4 && now.iter().sum::<u32>() == QUOTA, "{now:?}");
}

#[test]
fn a_node_keeps_what_it_has_over_a_restart_and_gets_nothing_by_saying_so() {
    let (mut mesh, id) = restarted();
    let config = Subject::FunctionConfig(id.clone());
    let [liar, honest] = [NODES[0], NODES[1]];
    mesh.ends.get_mut(liar).unwrap().held.insert(config.clone(), Version::of(b"a guess"));
    mesh.connect(liar);
    assert!(!mesh.state.nodes.all[liar].hosted.contains(&id), "it has never seen the configuration");
    let current = mesh.state.catalog.compiled.contents[&config].version;
    mesh.ends.get_mut(honest).unwrap().held.insert(config, current);
    mesh.connect(honest);
    assert!(mesh.state.nodes.all[honest].hosted.contains(&id));
}

#[test]
fn a_revoked_nodes_bounds_end_with_it() {
    let (mut mesh, id) = restarted();
    mesh.state.stop_awaiting();
    let [liar, honest] = [NODES[0], NODES[1]];
    let claimed = vec![Bounds { revision: 1, least: 0, most: u32::MAX }];
    mesh.ends.get_mut(liar).unwrap().bounds.insert(id.clone(), claimed);
    mesh.state.cordon(liar, Cordon::Drained);
    mesh.connect(liar);
    mesh.connect(honest);
    let allowed = |mesh: &mut Mesh| {
        while mesh.read(honest) || !mesh.ends[honest].read.is_empty() {
            mesh.answer(honest, true);
        }
        mesh.ends[honest].bounds[&id].iter().map(|bounds| bounds.most).sum::<u32>()
    };
    assert_eq!(allowed(&mut mesh), 0, "as long as it is a node, its word counts");
    mesh.state.expel(liar);
    assert_eq!(allowed(&mut mesh), MAX);
}

#[test]
fn a_function_that_stays_after_all_leaves_the_node_before() {
    use Step::{Answer, Connect, Cordon, Put, Read};
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut mesh = Mesh::new(&bundle);
    let placed = [Connect(2), Put(5, 2), Cordon(2, true), Put(5, 0), Connect(0), Read(0)];
    let cordoned = [Cordon(0, true), Answer(0, true), Read(2), Answer(2, true)];
    placed.into_iter().chain(cordoned).for_each(|step| mesh.step(step));
    mesh.settle().unwrap();
    let id = configs::function(FUNCTIONS[5]);
    assert_eq!(mesh.state.hosting.scheduler.nodes_of(&id).len(), 1);
    assert_eq!(mesh.state.hosting.scheduler.leaving(&id).count(), 0);
}

#[test]
fn who_waited_for_the_lock_does_not_turn_time_back() {
    let (mut mesh, id) = restarted();
    mesh.state.stop_awaiting();
    mesh.connect(NODES[0]);
    let session = mesh.ends[NODES[0]].session.unwrap();
    let load =
        Load { function: id, revision: 1, starting: 0, seen: Observation { waiting: 1, ..Observation::default() } };
    mesh.state.load(NODES[0], session, vec![load], Duration::from_secs(10));
    mesh.state.scale(Duration::from_secs(9));
    mesh.state.lease(Duration::from_secs(8));
    assert_eq!(mesh.state.now, Duration::from_secs(10));
}

#[test]
fn callers_keep_the_endpoints_of_a_node_that_is_lost_until_another_one_has_the_function() {
    for expelled in [false, true] {
        let (mut mesh, callee) = restarted();
        mesh.put(FUNCTIONS.len() - 1, 0);
        mesh.state.stop_awaiting();
        let [of_caller, ..] = NODES;
        let placement = Placement::Only([configs::function(FUNCTIONS[FUNCTIONS.len() - 1])].into());
        let admission = Admission { placement, gateway: false, locality: Default::default(), egress: false };
        mesh.state.admit(of_caller, admission);
        NODES.iter().for_each(|name| mesh.connect(name));
        let hosts =
            |mesh: &Mesh, name: &str| mesh.state.nodes.all.get(name).is_some_and(|node| node.hosted.contains(&callee));
        let host = |mesh: &Mesh| NODES.into_iter().find(|name| hosts(mesh, name)).unwrap();
        let of_callee = host(&mesh);
        mesh.settle().unwrap();
        let endpoints = Subject::Endpoints(callee.clone());
        let before = mesh.ends[of_caller].held[&endpoints];

        let session = mesh.ends[of_callee].session.unwrap();
        mesh.state.disconnect(of_callee, session);
        assert_eq!(mesh.state.forget(of_callee, session, Wait::Last), Departure::Settled);
        mesh.ends.get_mut(of_callee).unwrap().session = None;
        if expelled {
            mesh.state.expel(of_callee);
        }
        let told = |mesh: &mut Mesh| {
            while mesh.read(of_caller) {
                mesh.answer(of_caller, true);
            }
            mesh.ends[of_caller].held[&endpoints] != before
        };
        let replacement = host(&mesh);
        assert_eq!(told(&mut mesh), expelled);
        while mesh.read(replacement) {
            mesh.answer(replacement, true);
        }
        assert!(told(&mut mesh));
        assert_eq!(mesh.state.endpoints(of_caller, &callee).len(), 1);
    }
}

#[test]
fn a_function_whose_volumes_are_on_a_node_that_is_away_says_so() {
    says_that_its_node_is_away(|run, keeper| {
        run.persistent = vec![leno_model::PersistentVolume {
            name: "data".to_owned(),
            path: "/data".into(),
            size: 1 << 20,
            shared: false,
            node: Some(keeper.to_owned()),
        }];
    });
}

#[test]
fn a_function_whose_folder_is_on_a_node_that_is_away_says_so() {
    says_that_its_node_is_away(|run, keeper| {
        let host = leno_model::HostVolume { path: "/srv".into(), writable: true, node: Some(keeper.to_owned()) };
        run.volumes = vec![leno_model::Volume { path: "/data".into(), size: None, host: Some(host) }];
    });
}

fn says_that_its_node_is_away(keep: impl Fn(&mut Command, &str)) {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut mesh = Mesh::new(&bundle);
    NODES.iter().for_each(|name| mesh.connect(name));
    let [other, keeper, _] = NODES;
    let mut config = command("volumes/db", &[], Scale { min: 1, max: 1, ..Scale::default() });
    let Run::Command(run) = &mut config.run else { panic!("it is a command") };
    keep(run, keeper);
    let history = mesh.state.histories().record_one(&config, 0).unwrap();
    let prepared = mesh.state.prepare_put(&config, &configs::DOMAIN.parse().unwrap()).unwrap();
    mesh.state.put(prepared, history);
    let id = config.id;
    let told = |mesh: &mut Mesh, at_ms: u64| {
        mesh.state.note_placement_problems(at_ms);
        let status = mesh.state.status().functions.into_iter().find(|status| status.function == id).unwrap();
        let last = mesh.state.placement_events().pop().map(|event| (event.at_ms, event.reason));
        (status.unplaced, status.reason, last)
    };
    assert_eq!(told(&mut mesh, 1), (false, None, None));
    let session = mesh.ends[keeper].session.unwrap();
    mesh.state.disconnect(keeper, session);
    let _ = mesh.state.forget(keeper, session, Wait::Last);
    let away = format!("its volumes are on node {keeper}, which is away");
    assert_eq!(told(&mut mesh, 2), (true, Some(away.clone()), Some((2, away.clone()))));
    assert!(!mesh.state.nodes.all[other].hosted.contains(&id));
    assert_eq!(told(&mut mesh, 3).2, Some((2, away)), "it is said once");
    mesh.connect(keeper);
    let (unplaced, reason, event) = told(&mut mesh, 4);
    assert_eq!((unplaced, reason, event), (false, None, Some((4, format!("it has its nodes again: {keeper}")))));
    mesh.state.expel(keeper);
    assert!(told(&mut mesh, 5).1.unwrap().ends_with("which is no node of this mesh"));
}
