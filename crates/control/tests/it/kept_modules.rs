//! A revision that is kept needs its component, though no document names it any more.

use crate::support::configs::{DOMAIN, config};
use crate::support::*;
use leno_control::{Control, Definitions, Options, Store};
use leno_identity::Authority;
use leno_model::FunctionConfig;
use leno_model::revision::{Plan, Target};
use leno_model::{Run, Wasm};
use leno_wire::Subject;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const ORDERS: &str = "orders/order-service";

/// The function with this component, half of whose requests go to its first revision.
fn edition(component: &[u8], half: bool) -> Definitions {
    let module = leno_wire::module_hash(component);
    let (memory, env, secrets, grace) = (1 << 20, BTreeMap::new(), Vec::new(), Duration::ZERO);
    let run = Run::Wasm(Wasm { module, url: None, memory, env, secrets, grace });
    let mut config = FunctionConfig { run, ..config(ORDERS, &[], 1) };
    if half {
        let share = |revision| Target { revision, percent: 50, ..Target::default() };
        config.revisions.plan = Plan { traffic: vec![share(1), share(0)], ..Plan::default() };
    }
    let modules = BTreeMap::from([(module, Arc::from(component))]);
    Definitions { modules, ..definitions([config]) }
}

async fn modules_at_a_node(control: &Control) -> BTreeSet<Subject> {
    let served = TestServer::start(control).await;
    let member = control.admit("one", everything()).unwrap();
    let (agent, mut updates) = node(&served, &member, 1);
    agent.subscribe([Subject::Hosted]);
    let changes = subjects(&accepted(&mut updates).await);
    served.stop().await;
    changes.into_iter().filter(|subject| matches!(subject, Subject::Module(_))).collect()
}

#[tokio::test]
async fn the_component_of_a_kept_revision_is_delivered_and_outlives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let authority = Authority::new(&DOMAIN.parse().unwrap()).unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        Control::new(authority, store, Options::default()).unwrap()
    };
    let both: BTreeSet<_> = [&b"one"[..], b"two"].map(|bytes| Subject::Module(leno_wire::module_hash(bytes))).into();
    let control = open();
    control.publish(&edition(b"one", false)).unwrap();
    control.publish(&edition(b"two", true)).unwrap();
    assert_eq!(modules_at_a_node(&control).await, both);
    drop(control);
    let control = open();
    assert_eq!(modules_at_a_node(&control).await, both);
    // No function needs the first module any more: it is kept, with its revision, and not
    // delivered.
    control.publish(&edition(b"two", false)).unwrap();
    assert_eq!(modules_at_a_node(&control).await, BTreeSet::from([Subject::Module(leno_wire::module_hash(b"two"))]));
    control.publish(&edition(b"two", true)).unwrap();
    assert_eq!(modules_at_a_node(&control).await, both);
}
