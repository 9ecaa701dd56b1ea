//! Jobs that nodes run while the control plane starts again.

use super::*;
use crate::admission::Cordon;
use leno_wire::{JobReport, JobState, run_of};

const JOB: &str = "batch/report";

fn admission(placement: Placement) -> Admission {
    Admission { placement, gateway: false, locality: Default::default(), egress: false }
}

/// A control plane that an earlier process of another machine left the job `JOB`, and three nodes
/// of which none has come back.
struct RestartScenario {
    state: State,
    bundle: TrustBundle,
}

impl RestartScenario {
    fn new() -> Self {
        let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
        let before = configs::job(JOB, &[], 1);
        let histories = Histories::default().record_publication(&[(before.id.clone(), before)].into(), 0).unwrap();
        let mut state = State::new(CompiledDefinitions::nothing(&bundle).unwrap(), histories);
        state.recall(BTreeMap::new());
        for name in NODES {
            state.admit(name, admission(Placement::Everything));
        }
        state.await_nodes(NODES.map(Arc::from));
        let mut restarted = Self { state, bundle };
        restarted.publish(Some(1));
        restarted
    }

    fn publish(&mut self, edition: Option<u32>) {
        let job = edition.map(|edition| configs::job(JOB, &[], edition));
        let configs: BTreeMap<_, _> = job.into_iter().map(|job| (job.id.clone(), job)).collect();
        let histories = self.state.histories().record_publication(&configs, 0).unwrap();
        let definitions = Definitions {
            mesh: configs::mesh(),
            configs,
            routes: Default::default(),
            modules: BTreeMap::new(),
            permissions: Default::default(),
            secrets: None,
        };
        let compiled = CompiledDefinitions::new(&definitions, &definitions.modules, &histories, &self.bundle).unwrap();
        self.state.publish(compiled, histories);
    }

    fn connect(&mut self, name: &str, jobs: Vec<(FunctionId, JobReport)>) {
        let hello = Hello { subscribe: vec![Subject::Hosted], jobs, ..Hello::default() };
        self.state.connect(name, hello, Arc::default()).unwrap();
    }

    fn node(&self) -> Option<Arc<str>> {
        self.state.hosting.jobs.node_of(&configs::function(JOB))
    }
}

#[test]
fn nothing_that_happens_to_nodes_or_jobs_cuts_short_the_wait_for_a_running_job() {
    type Interruption = fn(&mut RestartScenario);
    let interruptions: [(&str, Interruption); 8] = [
        ("a node is revoked", |world| world.state.expel(NODES[2])),
        ("a node is revoked and joins again", |world| {
            world.state.expel(NODES[2]);
            world.state.admit(NODES[2], admission(Placement::Everything));
        }),
        ("a node joins under another name", |world| {
            world.state.expel(NODES[2]);
            world.state.admit("renamed", admission(Placement::Everything));
            world.connect("renamed", Vec::new());
        }),
        ("a node is drained", |world| assert!(world.state.cordon(NODES[2], Cordon::Drained))),
        ("the node of the job is drained", |world| assert!(world.state.cordon(NODES[1], Cordon::Drained))),
        ("a node connects and is away again", |world| {
            world.connect(NODES[2], Vec::new());
            let session = world.state.nodes.all[NODES[2]].last_session;
            world.state.disconnect(NODES[2], session);
            assert_eq!(world.state.forget(NODES[2], session, Wait::Last), Departure::Settled);
        }),
        ("the job is redefined", |world| world.publish(Some(2))),
        ("the job is removed and defined again", |world| {
            world.publish(None);
            world.publish(Some(1));
        }),
    ];
    for (what, interrupt) in interruptions {
        let mut world = RestartScenario::new();
        let mut report = JobReport::pending(&run_of(&configs::job(JOB, &[], 1)).unwrap());
        report.state = JobState::Running;
        interrupt(&mut world);
        world.connect(NODES[0], Vec::new());
        assert_eq!(world.node(), None, "{what}: the second node may be running it");
        world.connect(NODES[1], vec![(configs::function(JOB), report)]);
        assert_eq!(world.node().as_deref(), Some(NODES[1]), "{what}");
    }
}

#[test]
fn a_node_that_may_no_longer_run_a_job_may_be_running_it() {
    let mut world = RestartScenario::new();
    world.state.admit(NODES[1], admission(Placement::Only(BTreeSet::new())));
    world.connect(NODES[0], Vec::new());
    world.connect(NODES[2], Vec::new());
    assert_eq!(world.node(), None);
    world.connect(NODES[1], Vec::new());
    assert_eq!(world.node().as_deref(), Some(NODES[0]));
}

#[test]
fn the_wait_for_a_running_job_ends_with_the_last_node_or_its_time() {
    let mut world = RestartScenario::new();
    world.connect(NODES[0], Vec::new());
    world.connect(NODES[1], Vec::new());
    assert_eq!(world.node(), None);
    world.state.expel(NODES[2]);
    assert!(world.node().is_some(), "the other one is not a node any more");

    let mut world = RestartScenario::new();
    world.connect(NODES[0], Vec::new());
    world.state.stop_awaiting();
    assert_eq!(world.node().as_deref(), Some(NODES[0]));
}
