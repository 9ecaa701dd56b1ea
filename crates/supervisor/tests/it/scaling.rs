//! How many instances there are, with real child processes.

use crate::support::*;
use leno_model::Scale;
use leno_model::{FunctionId, InstanceState};
use leno_supervisor::{AcquireError, Function, FunctionSpec, Lease, Mode, Reason, Settings, Supervisor};
use leno_testkit::eventually_async;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Settings by which everything happens within moments.
fn brisk() -> Scale {
    let (window, panic_window) = (Duration::from_millis(200), Duration::from_millis(100));
    Scale { window, panic_window, last_instance: Duration::from_millis(100), ..Scale::default() }
}

fn asks(function: &Function) -> JoinHandle<Result<Lease, AcquireError>> {
    let function = function.clone();
    tokio::spawn(async move { function.acquire(&[]).await })
}

/// Gives the instance back at once.
fn is_served(function: &Function) -> JoinHandle<Result<(), AcquireError>> {
    let function = function.clone();
    tokio::spawn(async move { function.acquire(&[]).await.map(drop) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_from_nothing_gets_an_instance_for_each_request_at_once() {
    const BURST: usize = 30;
    let supervisor = Supervisor::start(settings(), ());
    let function = supervisor.apply(one_at_a_time(u32::MAX));
    let requests: Vec<_> = (0..BURST).map(|_| asks(&function)).collect();
    // None gives its instance back before all have one: each has its own.
    let mut leases = Vec::new();
    for request in requests {
        leases.push(request.await.unwrap().unwrap());
    }
    let instances: BTreeSet<_> = leases.iter().map(Lease::instance).collect();
    let addresses: BTreeSet<_> = leases.iter().map(Lease::address).collect();
    assert_eq!((instances.len(), addresses.len()), (BURST, BURST));
    let status = function.status();
    assert_eq!((status.restarts, status.scaling.mode), (0, Mode::Panic), "{:?}", status.last_failure);
    for lease in &leases {
        assert_eq!(get(lease.address(), "/").unwrap(), "ok");
    }
    drop(leases);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_bounded_by_the_maximum_and_the_rest_waits() {
    let supervisor = Supervisor::start(settings(), ());
    let function = supervisor.apply(one_at_a_time(2));
    let requests: Vec<_> = (0..20).map(|_| is_served(&function)).collect();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    assert_eq!(function.status().scaling.desired, 2);
    assert_eq!(function.status().scaling.reason, Some(Reason::Maximum));
    assert!(supervisor.instances(&id()).len() <= 2);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn goes_to_zero_when_nobody_asks_and_comes_back() {
    let witness = Witness::default();
    let supervisor = Supervisor::start(settings(), witness.clone());
    let function = supervisor.apply(FunctionSpec { scale: brisk(), ..spec(command(&[SERVER])) });
    for round in 1..=3 {
        drop(function.acquire(&[]).await.unwrap());
        assert_eq!(witness.starts(), round);
        eventually_async("it has ended", || supervisor.instances(&id()).is_empty()).await;
        let scaling = function.status().scaling;
        assert_eq!((scaling.desired, scaling.ups, scaling.downs), (0, round as u64, round as u64));
    }
    let events = function.scale_events();
    let counts: Vec<_> = events.iter().map(|event| (event.from, event.to)).collect();
    assert_eq!(counts, [(0, 1), (1, 0)].repeat(3));
    assert_eq!(events[0].reason, Reason::Waiting(1));
    assert_eq!(events[1].reason, Reason::Idle(brisk().window));
    assert_eq!(supervisor.scale_events(), events);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_under_way_keep_their_instance_and_count_as_load() {
    let witness = Witness::default();
    let supervisor = Supervisor::start(settings(), witness.clone());
    let scale = |min, max| Scale { min, max, ..brisk() };
    let function = supervisor.apply(FunctionSpec { scale: scale(3, 3), ..spec(command(&[SERVER])) });
    eventually_async("all are ready", || function.endpoints().len() == 3).await;
    let leases: Vec<Lease> = (0..3).map(|_| function.try_acquire(&[]).unwrap()).collect();
    supervisor.apply(FunctionSpec { scale: scale(0, 1), ..spec(command(&[SERVER])) });
    eventually_async("two are draining", || leases.iter().filter(|lease| lease.is_draining()).count() == 2).await;
    // Longer than all windows together: the third one is kept by its request, the others by theirs.
    tokio::time::sleep(brisk().window * 3).await;
    for lease in &leases {
        assert_eq!(get(lease.address(), "/").unwrap(), "ok");
    }
    assert!(!witness.events().iter().any(|event| matches!(event, Event::Ended(_))));
    drop(leases);
    eventually_async("all have ended", || supervisor.instances(&id()).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_goes_before_a_busy_one() {
    let supervisor = Supervisor::start(settings(), ());
    let scale = |count| Scale { min: count, max: count, ..Scale::default() };
    let function = supervisor.apply(FunctionSpec { scale: scale(3), ..spec(command(&[SERVER])) });
    eventually_async("all are ready", || function.endpoints().len() == 3).await;
    let youngest = function.endpoints().into_iter().max_by_key(|(id, _)| *id).unwrap().1;
    let others: Vec<_> =
        function.endpoints().into_iter().map(|(_, address)| address).filter(|address| *address != youngest).collect();
    let busy = function.acquire(&others).await.unwrap();
    assert_eq!(busy.address(), youngest);
    supervisor.apply(FunctionSpec { scale: scale(1), ..spec(command(&[SERVER])) });
    eventually_async("two have ended", || supervisor.instances(&id()).len() == 1).await;
    assert!(!busy.is_draining());
    assert_eq!(function.endpoints()[0].1, youngest);
    drop(busy);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_instances_come_and_go() {
    const CYCLES: usize = 40;
    let supervisor = Supervisor::start(settings(), ());
    let scale = |count| Scale { min: count, max: count, ..Scale::default() };
    let with = |count| FunctionSpec { scale: scale(count), ..spec(command(&[SERVER])) };
    let function = supervisor.apply(with(5));
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (function, stop, served) = (function.clone(), Arc::clone(&stop), Arc::clone(&served));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let lease = function.acquire(&[]).await.expect("an instance");
                    let address = lease.address();
                    let answer = tokio::task::spawn_blocking(move || get(address, "/")).await.unwrap();
                    assert_eq!(answer.expect("an answer"), "ok");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut changes = supervisor.changes();
    for _ in 0..CYCLES {
        for count in [5, 1] {
            supervisor.apply(with(count));
            while function.endpoints().len() != usize::try_from(count).unwrap() {
                changes.changed().await.unwrap();
            }
            // Each state carries traffic.
            let before = served.load(Ordering::SeqCst);
            eventually_async("requests are served", || {
                served.load(Ordering::SeqCst) > before + 4 || clients.iter().any(JoinHandle::is_finished)
            })
            .await;
        }
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let scaling = function.status().scaling;
    assert_eq!((scaling.ups, scaling.downs), (CYCLES as u64, CYCLES as u64));
    assert_eq!(function.status().count(InstanceState::Ready), 1);
    supervisor.shutdown(FOREVER).await;
}

/// Functions with one busy instance each, so that every further request waits.
async fn busy(supervisor: &Supervisor, names: [&str; 2]) -> [(Function, Lease); 2] {
    let start = async |name| {
        let id = FunctionId::new("orders", name).unwrap();
        let function = supervisor.apply(FunctionSpec { id, ..one_at_a_time(1) });
        let lease = function.acquire(&[]).await.unwrap();
        (function, lease)
    };
    [start(names[0]).await, start(names[1]).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_is_shared_evenly_between_functions() {
    let supervisor = Supervisor::start(Settings { buffer: 10, ..settings() }, ());
    let [(greedy, held), (modest, other)] = busy(&supervisor, ["greedy", "modest"]).await;
    let mut crowd: Vec<_> = (0..10).map(|_| is_served(&greedy)).collect();
    eventually_async("the node is full", || greedy.waiting() == 10).await;
    assert_eq!(greedy.acquire(&[]).await.unwrap_err(), AcquireError::NodeFull { limit: 10 });
    // Each of these takes the place of the last one of the crowd.
    let mut few = Vec::new();
    for number in 1..=5 {
        few.push(is_served(&modest));
        eventually_async("it waits", || modest.waiting() == number).await;
        assert_eq!(greedy.waiting(), 10 - number);
    }
    let full = AcquireError::NodeFull { limit: 10 };
    assert_eq!(modest.acquire(&[]).await.unwrap_err(), full, "it has its share now");
    assert_eq!(greedy.acquire(&[]).await.unwrap_err(), full);
    let mut refused = 0;
    eventually_async("five were refused", || {
        refused = crowd.iter().filter(|request| request.is_finished()).count();
        refused == 5
    })
    .await;
    crowd.retain(|request| !request.is_finished());
    // All requests that still wait get their turn.
    drop((held, other));
    for request in crowd.into_iter().chain(few) {
        request.await.unwrap().unwrap();
    }
    assert_eq!((greedy.waiting(), modest.waiting()), (0, 0));
    // Then any function can wait again.
    let [(greedy, held), (_, other)] = busy(&supervisor, ["greedy", "modest"]).await;
    let crowd: Vec<_> = (0..10).map(|_| is_served(&greedy)).collect();
    eventually_async("all wait", || greedy.waiting() == 10).await;
    drop((held, other));
    for request in crowd {
        request.await.unwrap().unwrap();
    }
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_no_longer_than_its_deadline_and_leaves_no_trace() {
    let supervisor = Supervisor::start(settings(), ());
    let [(function, held), other] = busy(&supervisor, ["late", "unused"]).await;
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(matches!(function.acquire_by(&[], soon).await.unwrap_err(), AcquireError::Timeout { .. }));
    assert_eq!(function.waiting(), 0);
    let past = Instant::now() - Duration::from_millis(1);
    let waited = Duration::ZERO;
    assert_eq!(function.acquire_by(&[], past).await.unwrap_err(), AcquireError::Timeout { waited });
    // A request that goes away without waiting for the answer leaves too.
    let gone = asks(&function);
    eventually_async("it waits", || function.waiting() == 1).await;
    gone.abort();
    eventually_async("it is gone", || function.waiting() == 0).await;
    drop((held, other));
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_live_to_see_the_next_start_is_not_kept() {
    let pause = Duration::from_secs(30);
    let supervisor = Supervisor::start(Settings { max_backoff_wait: FOREVER, ..settings_with_pause(pause) }, ());
    let function = supervisor.apply(spec(command(&["sh", "-c", "exit 7"])));
    assert!(matches!(function.acquire(&[]).await.unwrap_err(), AcquireError::Exited { .. }));
    let deadline = Instant::now() + Duration::from_secs(5);
    let error = function.acquire_by(&[], deadline).await.unwrap_err();
    assert!(matches!(error, AcquireError::Backoff { .. }), "{error:?}");
    assert!(Instant::now() < deadline, "it was told at once");
    assert_eq!(function.scale_events().last().unwrap().reason, Reason::Failed);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_initial_scale_is_reached_without_any_request_and_then_let_go() {
    let supervisor = Supervisor::start(settings(), ());
    let scale = Scale { initial: 3, ..brisk() };
    let function = supervisor.apply(FunctionSpec { scale, ..spec(command(&[SERVER])) });
    eventually_async("it is reached", || function.endpoints().len() == 3).await;
    eventually_async("all have ended", || supervisor.instances(&id()).is_empty()).await;
    let first = function.scale_events().remove(0);
    assert_eq!((first.from, first.to, first.reason), (0, 3, Reason::Initial));
    // Nothing is left of it for the next request.
    drop(function.acquire(&[]).await.unwrap());
    assert_eq!(function.status().scaling.desired, 1);
    supervisor.shutdown(FOREVER).await;
}
