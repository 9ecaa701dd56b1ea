//! Several nodes of the scheduler on real sockets: the placement of functions, the bounds of each
//! node, and the effects when nodes come and go.

use crate::support::configs::{config, function};
use crate::support::*;
use leno_agent::{Agent, Change, Updates};
use leno_control::{Control, Cordon, FunctionStatus, Options, Store, Transaction};
use leno_identity::Membership;
use leno_model::FunctionConfig;
use leno_model::{Command, Isolation, Readiness, Resources, Run, Scale};
use leno_policy::quota::PARTS;
use leno_policy::spec::{Counts, QuotaAlgorithm, RateLimit};
use leno_testkit::eventually_async;
use leno_wire::{Bounds, Capacity, Endpoint, LimitDemand, NodeOffer, Resource, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FRONTEND: &str = "orders/frontend";
const ORDERS: &str = "orders/order-service";

/// A function whose instances nodes start.
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
    FunctionConfig { run: Run::Command(command), scale, ..config(name, callees, 1) }
}

fn most(max: u32) -> Scale {
    Scale { max, ..Scale::default() }
}

/// A node that puts every update into force at once, and records its resources.
struct Node {
    agent: Agent,
    has: Arc<Mutex<BTreeMap<Subject, Resource>>>,
    /// Ends the task, and so the stream.
    _task: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self._task.abort();
    }
}

impl Node {
    async fn join(control: &Control, served: &TestServer, member: &Membership, port: u16) -> Self {
        let (agent, updates) = node(served, member, port);
        agent.subscribe([Subject::Hosted]);
        let capacity = Capacity { cpu_millis: 4000, memory: 4 << 30, instances: 10 };
        agent.offer(NodeOffer { capacity, images: BTreeSet::new(), without_jails: false });
        connected(&agent).await;
        let joined = || {
            control.status().nodes.iter().any(|node| {
                node.connected && node.capacity.is_some() && node.inbound.is_some_and(|inbound| inbound.port() == port)
            })
        };
        eventually_async("the node to join", joined).await;
        let has = Arc::default();
        let task = tokio::spawn(follow(updates, Arc::clone(&has)));
        Self { agent, has, _task: task }
    }

    fn has(&self, subject: &Subject) -> bool {
        self.has.lock().unwrap().contains_key(subject)
    }

    fn bounds(&self, name: &str) -> Option<(u32, u32)> {
        match self.has.lock().unwrap().get(&Subject::Scale(function(name)))? {
            Resource::Scale(_, bounds) => bounds.first().map(|Bounds { least, most, .. }| (*least, *most)),
            _ => None,
        }
    }

    /// The node's share of the limit of a function.
    fn parts(&self, name: &str) -> u32 {
        match self.has.lock().unwrap().get(&Subject::Quota(function(name))) {
            Some(Resource::Quota(_, lease)) => lease.shares.iter().map(|share| share.parts).sum(),
            _ => 0,
        }
    }

    fn endpoints(&self, name: &str) -> Vec<Endpoint> {
        match self.has.lock().unwrap().get(&endpoints_of(name)) {
            Some(Resource::Endpoints(_, endpoints)) => endpoints.clone(),
            _ => Vec::new(),
        }
    }
}

async fn follow(mut updates: Updates, has: Arc<Mutex<BTreeMap<Subject, Resource>>>) {
    while let Some(update) = updates.recv().await {
        let mut now = has.lock().unwrap();
        for change in &update.changes {
            match change {
                Change::Set(resource) => now.insert(resource.subject(), resource.clone()),
                Change::Removed(subject) => now.remove(subject),
                Change::Withdrawn(_) => continue,
            };
        }
        drop(now);
        update.accept();
    }
}

fn status(control: &Control, name: &str) -> FunctionStatus {
    let status = control.status();
    status.functions.into_iter().find(|status| status.function == function(name)).expect("it was published")
}

fn homes(control: &Control, name: &str) -> Vec<String> {
    status(control, name).nodes.into_iter().filter(|node| !node.leaving).map(|node| node.node).collect()
}

fn control_of(functions: impl IntoIterator<Item = FunctionConfig>) -> Control {
    let control = control_with(Store::memory(), Options { node_grace: Duration::from_millis(100) });
    control.publish(&definitions(functions)).unwrap();
    control
}

#[tokio::test]
async fn a_function_is_on_one_node_and_its_caller_knows_which() {
    let control = control_of([command(FRONTEND, &[ORDERS], most(5)), command(ORDERS, &[], most(5))]);
    let served = TestServer::start(&control).await;
    let members = ["one", "two"].map(|name| control.admit(name, scheduled()).unwrap());
    assert!(status(&control, ORDERS).nodes.is_empty());
    let one = Node::join(&control, &served, &members[0], 1).await;
    // The only node gets both; the second one gets nothing, because nothing moves without need.
    eventually_async("the node to have its functions", || one.has(&config_of(FRONTEND)) && one.has(&config_of(ORDERS)))
        .await;
    assert_eq!((one.bounds(FRONTEND), one.bounds(ORDERS)), (Some((0, 5)), Some((0, 5))));
    let two = Node::join(&control, &served, &members[1], 2).await;
    assert_eq!((homes(&control, FRONTEND), homes(&control, ORDERS)), (vec!["one".to_owned()], vec!["one".to_owned()]));

    // The functions of a cordoned node move to other nodes, and then it has none left.
    assert!(control.cordon("one", Cordon::Drained, Transaction::default()).unwrap());
    eventually_async("the function to be placed", || {
        homes(&control, FRONTEND) == ["two"] && two.has(&config_of(ORDERS))
    })
    .await;
    eventually_async("the node to have its functions", || {
        !one.has(&config_of(FRONTEND)) && !one.has(&config_of(ORDERS))
    })
    .await;
    eventually_async("the bounds of the node", || two.bounds(ORDERS) == Some((0, 5))).await;
    assert!(control.cordon("one", Cordon::Open, Transaction::default()).unwrap());
    control.put(&command("orders/new", &[ORDERS], most(5))).unwrap();
    eventually_async("the bounds of the node", || {
        one.has(&config_of("orders/new")) && one.bounds("orders/new") == Some((0, 5))
    })
    .await;
    // The caller's node knows the home, which has no instance.
    eventually_async("the endpoints of the function", || {
        one.endpoints(ORDERS).iter().map(|at| (&*at.node, at.ready)).eq([("two", 0)])
    })
    .await;
    // From zero to one: the control plane informs the caller's node at once, with one message.
    let before = control.counters("one").unwrap().messages;
    two.agent.report(&function(ORDERS), instances(1));
    eventually_async("the endpoints of the function", || one.endpoints(ORDERS).first().is_some_and(|at| at.ready == 1))
        .await;
    assert_eq!(control.counters("one").unwrap().messages, before + 1);
}

#[tokio::test]
async fn a_dead_nodes_functions_are_placed_elsewhere_and_it_starts_with_nothing() {
    let control = control_of([command(ORDERS, &[], most(5))]);
    let served = TestServer::start(&control).await;
    let members = ["one", "two", "three"].map(|name| control.admit(name, scheduled()).unwrap());
    let one = Node::join(&control, &served, &members[0], 1).await;
    eventually_async("the node to have its functions", || one.has(&config_of(ORDERS))).await;
    let two = Node::join(&control, &served, &members[1], 2).await;
    let three = Node::join(&control, &served, &members[2], 3).await;
    assert!(control.cordon("two", Cordon::Drained, Transaction::default()).unwrap());
    control.put(&command(FRONTEND, &[ORDERS], most(5))).unwrap();
    eventually_async("the endpoints of the function", || {
        three.endpoints(ORDERS).iter().map(|at| &*at.node).eq(["one"])
    })
    .await;
    assert!(control.cordon("two", Cordon::Open, Transaction::default()).unwrap());

    one.agent.report(&function(ORDERS), instances(1));
    drop(one);
    eventually_async("the function to be placed", || {
        homes(&control, ORDERS).iter().all(|home| home != "one") && !homes(&control, ORDERS).is_empty()
    })
    .await;
    let home = homes(&control, ORDERS).remove(0);
    let at_home = if home == "two" { &two } else { &three };
    eventually_async("the bounds of the node", || at_home.bounds(ORDERS) == Some((0, 5))).await;
    if home == "two" {
        eventually_async("the endpoints of the function", || {
            three.endpoints(ORDERS).iter().map(|at| &*at.node).eq(["two"])
        })
        .await;
    }
    // It comes back, and nothing moves.
    let one = Node::join(&control, &served, &members[0], 1).await;
    assert_eq!(homes(&control, ORDERS), [home]);
    assert!(!one.has(&config_of(ORDERS)));
}

#[tokio::test]
async fn load_beyond_one_node_gets_another_and_the_sum_of_the_bounds_stays() {
    let control = control_of([command(ORDERS, &[], Scale { per_instance: 1.0, utilization: 1.0, ..most(15) })]);
    let served = TestServer::start(&control).await;
    let members = ["one", "two"].map(|name| control.admit(name, scheduled()).unwrap());
    let one = Node::join(&control, &served, &members[0], 1).await;
    eventually_async("the bounds of the node", || one.bounds(ORDERS) == Some((0, 10))).await;
    let two = Node::join(&control, &served, &members[1], 2).await;
    one.agent.report_loads(&[load(ORDERS, 10, 10)]);
    eventually_async("the bounds of the node", || two.bounds(ORDERS).is_some_and(|(_, most)| most > 0)).await;
    eventually_async("the bounds of the node", || {
        one.bounds(ORDERS) == Some((0, 10)) && two.bounds(ORDERS) == Some((0, 5))
    })
    .await;
}

#[tokio::test]
async fn a_minimum_is_spread_over_nodes_once_there_are_several() {
    let first = control_of([command(ORDERS, &[], Scale { min: 2, ..most(3) })]);
    let served = TestServer::start(&first).await;
    let members = ["one", "two"].map(|name| first.admit(name, scheduled()).unwrap());
    let one = Node::join(&first, &served, &members[0], 1).await;
    let two = Node::join(&first, &served, &members[1], 2).await;
    let sum = || one.bounds(ORDERS).unwrap_or_default().1 + two.bounds(ORDERS).unwrap_or_default().1;
    // The first node had all of it until the second one came.
    first.put(&command(ORDERS, &[], Scale { min: 2, ..most(4) })).unwrap();
    eventually_async("the function to be placed", || homes(&first, ORDERS).len() == 2 && sum() == 4).await;
    eventually_async("the bounds of the node", || one.bounds(ORDERS).is_some_and(|(least, _)| least == 1)).await;
    eventually_async("the bounds of the node", || two.bounds(ORDERS).is_some_and(|(least, _)| least == 1)).await;
}

#[tokio::test]
async fn a_stuck_node_holds_up_nobody_and_gets_the_latest() {
    let control = control_of([]);
    let served = TestServer::start(&control).await;
    let members = ["stuck", "other"].map(|name| control.admit(name, everything()).unwrap());
    let (stuck, mut unread) = node(&served, &members[0], 1);
    stuck.subscribe([Subject::Hosted]);
    let (other, mut updates) = node(&served, &members[1], 2);
    other.subscribe([Subject::Hosted]);
    accepted(&mut updates).await;
    let first = next(&mut unread).await;
    for edition in 1..=200 {
        control.put(&config(ORDERS, &[], edition)).unwrap();
        let changes = accepted(&mut updates).await;
        assert!(matches!(&changes[..], [Change::Set(Resource::FunctionConfig(config))] if config.queue == edition));
    }
    first.accept();
    let mut read = 0;
    loop {
        read += 1;
        let changes = accepted(&mut unread).await;
        if changes
            .iter()
            .any(|change| matches!(change, Change::Set(Resource::FunctionConfig(config)) if config.queue == 200))
        {
            break;
        }
    }
    assert!(read <= 17, "{read} of 200 editions were kept for it");
}

#[tokio::test]
async fn rate_limits_are_divided_between_nodes_and_follow_the_demand() {
    let mut limited = command(ORDERS, &[], Scale { min: 2, max: 4, ..Scale::default() });
    limited.inbound.rate_limits.push(RateLimit {
        name: "all".to_owned(),
        counts: Counts::Requests,
        only: None,
        from: Vec::new(),
        except: Vec::new(),
        audit: false,
        key: Vec::new(),
        algorithm: QuotaAlgorithm::TokenBucket { requests: 100, period_ms: 1000, burst: 100 },
    });
    let control = control_of([limited]);
    let served = TestServer::start(&control).await;
    let members = ["one", "two"].map(|name| control.admit(name, scheduled()).unwrap());
    let one = Node::join(&control, &served, &members[0], 1).await;
    eventually_async("the parts of the limit", || one.parts(ORDERS) == PARTS).await;
    eventually_async("the term of the leases", || one.agent.term().borrow().is_some()).await;
    let two = Node::join(&control, &served, &members[1], 2).await;
    let both = || {
        // The growing share is read first, so that parts that have moved meanwhile are not counted
        // twice.
        let (two, one) = (two.parts(ORDERS), one.parts(ORDERS));
        assert!(one + two <= PARTS, "{one} + {two}");
        (one, two)
    };
    eventually_async("the parts of the limit", || both() == (PARTS / 2, PARTS / 2)).await;
    let demand = LimitDemand { function: function(ORDERS), limit: "all".to_owned(), admitted: 900, refused: 100 };
    two.agent.report_demands(std::slice::from_ref(&demand));
    eventually_async("the parts of the limit", || both().1 > PARTS / 10 * 9).await;
    // The parts of a lost node stay unassigned until its term is over.
    let held = both();
    drop(one);
    eventually_async("the function to be placed", || homes(&control, ORDERS) == ["two"]).await;
    assert_eq!(two.parts(ORDERS), held.1);
}
