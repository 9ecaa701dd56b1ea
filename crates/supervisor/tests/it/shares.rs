//! The share of a namespace on a node: instances, and requests that wait for one.

use crate::support::{FOREVER, SERVER, at_least, command, one_at_a_time, settings};
use leno_model::{FunctionId, InstanceState};
use leno_namespaces::{Bounds, Resource};
use leno_supervisor::{AcquireError, Function, FunctionSpec, Supervisor};
use leno_testkit::eventually_async;
use tokio::task::JoinHandle;

fn named(namespace: &str, name: &str, spec: FunctionSpec) -> FunctionSpec {
    FunctionSpec { id: FunctionId::new(namespace, name).unwrap(), ..spec }
}

fn waits(function: &Function) -> JoinHandle<Result<(), AcquireError>> {
    let function = function.clone();
    tokio::spawn(async move { function.acquire(&[]).await.map(drop) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_starts_no_more_instances_than_it_may_have_and_no_other_waits() {
    let settings = settings();
    let hostile = settings.namespaces.set("hostile", Bounds { instances: 2, ..Bounds::default() });
    let supervisor = Supervisor::start(settings, ());
    let many = supervisor.apply(named("hostile", "many", at_least(1000, command(&[SERVER]))));
    eventually_async("it has what it may have", || many.status().count(InstanceState::Ready) == 2).await;
    let shop = supervisor.apply(named("shop", "web", at_least(2, command(&[SERVER]))));
    eventually_async("another namespace has its own", || shop.status().count(InstanceState::Ready) == 2).await;
    assert_eq!(many.status().instances.len(), 2);
    let failure = many.status().last_failure.unwrap();
    assert_eq!(failure, "namespace hostile has all that its bound `instances` allows on this node: 2");
    assert_eq!(hostile.count(Resource::Instances).used(), 2);
    // Instances that are to be replaced take all places.
    let mut changed = command(&[SERVER]);
    changed.env.insert("CHANGED".into(), "yes".into());
    let before: Vec<_> = many.status().instances.iter().map(|instance| instance.id).collect();
    supervisor.apply(named("hostile", "many", at_least(2, changed)));
    eventually_async("its instances are replaced", || {
        let now = many.status();
        now.count(InstanceState::Ready) == 2 && now.instances.iter().all(|instance| !before.contains(&instance.id))
    })
    .await;
    supervisor.shutdown(FOREVER).await;
    assert_eq!(hostile.count(Resource::Instances).used(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_so_many_waiting_requests_and_its_functions_share_them() {
    let settings = settings();
    let shop = settings.namespaces.set("shop", Bounds { waiting_requests: 4, ..Bounds::default() });
    let supervisor = Supervisor::start(settings, ());
    let greedy = supervisor.apply(named("shop", "greedy", one_at_a_time(1)));
    let modest = supervisor.apply(named("shop", "modest", one_at_a_time(1)));
    let other = supervisor.apply(named("other", "web", one_at_a_time(1)));
    let held = [greedy.acquire(&[]).await, modest.acquire(&[]).await, other.acquire(&[]).await].map(Result::unwrap);
    let crowd: Vec<_> = (0..4).map(|_| waits(&greedy)).collect();
    eventually_async("the namespace has all that it may have", || greedy.waiting() == 4).await;
    let full = AcquireError::NamespaceFull { namespace: "shop".into(), bound: 4 };
    assert_eq!(greedy.acquire(&[]).await.unwrap_err(), full);
    let few: Vec<_> = (0..2).map(|_| waits(&modest)).collect();
    eventually_async("its other function has its share", || modest.waiting() == 2 && greedy.waiting() == 2).await;
    assert_eq!(modest.acquire(&[]).await.unwrap_err(), full);
    let elsewhere = waits(&other);
    eventually_async("another namespace waits as it likes", || other.waiting() == 1).await;
    assert_eq!(shop.count(Resource::WaitingRequests).used(), 4);
    drop(held);
    let mut outcomes = Vec::new();
    for request in crowd {
        outcomes.push(request.await.unwrap());
    }
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Err(full.clone())).count(), 2);
    for request in few {
        request.await.unwrap().unwrap();
    }
    elsewhere.await.unwrap().unwrap();
    assert_eq!(shop.count(Resource::WaitingRequests).used(), 0);
    supervisor.shutdown(FOREVER).await;
}
