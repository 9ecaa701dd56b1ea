//! Several revisions of a function at a time, with real child processes.

use crate::support::*;
use leno_model::{Command, InstanceState, Scale};
use leno_supervisor::{AcquireError, FunctionSpec};
use leno_testkit::eventually_async;

fn version(number: u32) -> Command {
    let mut command = command(&[SERVER]);
    command.env.insert("VERSION".to_owned(), number.to_string());
    command
}

fn revision(number: u32) -> FunctionSpec {
    FunctionSpec { revision: number, ..spec(version(number)) }
}

async fn answers_as(function: &leno_supervisor::Function, number: u32) {
    let lease = function.acquire(&[]).await.unwrap();
    let address = lease.address();
    let environment = tokio::task::spawn_blocking(move || get(address, "/env")).await.unwrap().unwrap();
    assert!(environment.contains(&format!("VERSION={number}")), "{environment}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_revision_has_instances_of_its_own() {
    let witness = Witness::default();
    let (supervisor, _) = start(&witness, command(&[SERVER]));
    supervisor.remove(&id());
    let applied = supervisor.apply_all(vec![revision(1), revision(2)]);
    let numbers: Vec<u32> = applied.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2]);
    for (number, function) in &applied {
        assert_eq!(function.ready(&[]), 0, "nothing starts before somebody asks");
        answers_as(function, *number).await;
    }
    let names: Vec<_> = supervisor.instances(&id()).iter().map(|status| status.id.name(&id()).to_string()).collect();
    assert_eq!(names, ["orders/order-service-00001/1", "orders/order-service-00002/2"]);
    let statuses: Vec<_> = supervisor.status().iter().map(|status| (status.revision, status.instances.len())).collect();
    assert_eq!(statuses, [(1, 1), (2, 1)]);

    // Another revision gets the largest share: no instance starts or ends because of that.
    let again = supervisor.apply_all(vec![revision(2), revision(1)]);
    assert!(again[0].1.is(&applied[1].1) && again[1].1.is(&applied[0].1));
    assert!(supervisor.function(&id()).unwrap().is(&applied[1].1));
    assert_eq!(witness.starts(), 2);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_revision_ends_what_it_has_and_takes_nothing_new() {
    let witness = Witness::default();
    let supervisor = leno_supervisor::Supervisor::start(settings(), witness.clone());
    let applied = supervisor.apply_all(vec![revision(1), revision(2)]);
    let lease = applied[1].1.acquire(&[]).await.unwrap();
    let instance = lease.instance();
    supervisor.retire(&id(), &[1, 2]);
    answers_as(&applied[1].1, 2).await;

    supervisor.retire(&id(), &[1]);
    eventually_async("it is draining", || lease.is_draining()).await;
    assert!(matches!(applied[1].1.acquire(&[]).await, Err(AcquireError::Removed)));
    let address = lease.address();
    assert_eq!(tokio::task::spawn_blocking(move || get(address, "/")).await.unwrap().unwrap(), "ok");
    assert!(!witness.events().contains(&Event::Ended(instance)));
    drop(lease);
    eventually_async("it has ended", || witness.events().contains(&Event::Ended(instance))).await;
    answers_as(&applied[0].1, 1).await;
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_revision_in_the_place_of_another_replaces_it_when_it_is_ready() {
    let witness = Witness::default();
    let supervisor = leno_supervisor::Supervisor::start(settings(), witness.clone());
    let first = supervisor.apply(revision(1));
    answers_as(&first, 1).await;
    let broken = FunctionSpec { revision: 2, ..spec(command(&["sh", "-c", "exit 1"])) };
    let second = supervisor.apply_all(vec![broken]).remove(0).1;
    assert!(second.is(&first));
    eventually_async("the new one failed twice", || first.status().restarts >= 2).await;
    let status = supervisor.status().remove(0);
    assert_eq!((status.former, status.failing > 0), ([(1, 1)].into(), true));
    answers_as(&first, 1).await;
    supervisor.apply_all(vec![revision(3)]);
    let ready = |number: u32| {
        let instances = supervisor.instances(&id());
        instances.iter().any(|it| it.id.revision == number && it.state == InstanceState::Ready)
    };
    eventually_async("the third is ready and the first is not", || ready(3) && !ready(1)).await;
    answers_as(&first, 3).await;
    assert!(supervisor.status()[0].former.is_empty());
    // Another scale needs no new process, so the instance is of the next revision too.
    let scale = Scale { max: 7, ..Scale::default() };
    let fourth = supervisor.apply_all(vec![FunctionSpec { revision: 4, scale, ..revision(3) }]).remove(0).1;
    eventually_async("it is applied", || supervisor.status()[0].former.is_empty()).await;
    answers_as(&fourth, 3).await;
    assert_eq!(supervisor.status().iter().map(|status| status.revision).collect::<Vec<_>>(), [4]);
    supervisor.shutdown(FOREVER).await;
}
