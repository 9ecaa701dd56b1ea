//! The supervisor with real child processes.

use crate::support::*;
use leno_model::{Command, InstanceState, OutputStream, Readiness, Run};
use leno_supervisor::{AcquireError, FunctionSpec, Supervisor};
use leno_testkit::eventually_async;
use leno_testkit::process::is_running;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn starts_on_first_acquire_once_for_everybody() {
    let witness = Witness::default();
    let (supervisor, function) = start(&witness, command(&[SERVER]));
    assert!(function.try_acquire(&[]).is_none());
    assert_eq!(supervisor.instances(&id()), []);
    assert_eq!(witness.starts(), 0, "nothing starts before somebody asks");

    let requests: Vec<_> = (0..50)
        .map(|_| {
            let function = function.clone();
            tokio::spawn(async move { function.acquire(&[]).await.unwrap().instance() })
        })
        .collect();
    let mut instances = Vec::new();
    for request in requests {
        instances.push(request.await.unwrap());
    }
    instances.dedup();
    assert_eq!(instances.len(), 1);
    assert_eq!(witness.starts(), 1);

    let lease = function.try_acquire(&[]).unwrap();
    assert_eq!(get(lease.address(), "/anything").unwrap(), "ok");
    let status = supervisor.instances(&id()).remove(0);
    assert_eq!((status.state, status.address), (InstanceState::Ready, lease.address()));
    assert_eq!(get(lease.address(), "/pid").unwrap(), status.pid.unwrap().to_string());
    assert_eq!(&**lease.name(), format!("orders/order-service/{}", lease.instance()));
    drop(lease);
    supervisor.shutdown(FOREVER).await;
    assert!(!is_running(status.pid.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn may_be_asked_from_other_runtimes() {
    let (supervisor, function) = start(&Witness::default(), command(&[SERVER]));
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { function.acquire(&[]).await.map(|lease| lease.address()) })
    });
    let address = tokio::task::spawn_blocking(|| elsewhere.join().unwrap()).await.unwrap().unwrap();
    assert_eq!(get(address, "/").unwrap(), "ok");
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_until_it_says_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ready");
    let witness = Witness::default();
    let mut waiting = command(&[SERVER, file.to_str().unwrap()]);
    waiting.readiness = Readiness::Http("/healthz".to_owned());
    let (supervisor, function) = start(&witness, waiting);
    let request = tokio::spawn(async move { function.acquire(&[]).await.map(|lease| lease.address()) });
    eventually_async("it was asked and said no", || witness.line("not ready")).await;
    assert!(!request.is_finished());
    std::fs::write(&file, "").unwrap();
    request.await.unwrap().unwrap();
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_never_gets_ready_is_ended_and_the_request_told() {
    let witness = Witness::default();
    let mut never = command(&[SERVER, "/nonexistent"]);
    never.readiness = Readiness::Http("/healthz".to_owned());
    never.startup_timeout = Duration::from_millis(300);
    let (supervisor, function) = start(&witness, never);
    match function.acquire(&[]).await.unwrap_err() {
        AcquireError::NotReady { reason, .. } => assert!(!reason.is_empty()),
        // On a machine that is too busy, the request gives up first.
        AcquireError::Timeout { .. } => {}
        other => panic!("{other:?}"),
    }
    eventually_async("it has ended", || supervisor.instances(&id()).is_empty()).await;
    assert!(function.status().last_failure.unwrap().starts_with("the instance was not ready within 300ms"));
    assert!(function.endpoints().is_empty());
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_instance_gets_no_requests_and_another_takes_over() {
    let witness = Witness::default();
    let (supervisor, function) = start(&witness, command(&[SERVER]));
    let lease = function.acquire(&[]).await.unwrap();
    let first = lease.instance();
    let _ = get(lease.address(), "/exit");
    eventually_async("it is draining", || lease.is_draining()).await;
    eventually_async("the next is ready", || {
        supervisor.instances(&id()).iter().any(|it| it.state == InstanceState::Ready)
    })
    .await;
    let next = function.acquire(&[]).await.unwrap();
    assert_ne!(next.instance(), first);
    assert_eq!(get(next.address(), "/").unwrap(), "ok");

    let status = function.status();
    assert_eq!(status.restarts, 1);
    assert_eq!(
        status.last_failure.as_deref(),
        Some("the instance ended by itself: exit status: 3; it wrote: told to exit")
    );
    assert_eq!(status.instances[0].restarts, 1);
    let said: Vec<_> = function.output(first).into_iter().map(|line| (line.stream, line.text)).collect();
    assert_eq!(said.last(), Some(&(OutputStream::Stderr, "told to exit".to_owned())));
    drop((lease, next));
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_is_told_and_pauses() {
    let witness = Witness::default();
    let supervisor = Supervisor::start(settings_with_pause(FOREVER), witness.clone());
    let function = supervisor.apply(spec(command(&["sh", "-c", "echo no configuration >&2; exit 7"])));
    let error = function.acquire(&[]).await.unwrap_err();
    assert_eq!(error, AcquireError::Exited { status: "exit status: 7".to_owned() });
    match function.acquire(&[]).await.unwrap_err() {
        AcquireError::Backoff { retry_after, reason } => {
            assert!(retry_after <= FOREVER * 2);
            assert_eq!(reason, "the instance ended before it was ready: exit status: 7");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(witness.starts(), 1);
    let status = function.status();
    assert_eq!((status.restarts, status.pause.is_some()), (1, true));
    assert!(witness.line("no configuration"));

    // A corrected function starts without waiting for the end of the pause.
    supervisor.apply(spec(command(&[SERVER])));
    eventually_async("it is corrected", || function.status().pause.is_none()).await;
    let lease = function.acquire(&[]).await.unwrap();
    assert_eq!(get(lease.address(), "/").unwrap(), "ok");
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recovers_after_failing_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recovered");
    let witness = Witness::default();
    let script = format!("test -e {} || exit 1; exec {SERVER}", file.display());
    let (supervisor, function) = start(&witness, command(&["sh", "-c", &script]));
    for _ in 0..3 {
        function.acquire(&[]).await.unwrap_err();
    }
    assert_eq!(function.status().restarts, 3);
    std::fs::write(&file, "").unwrap();
    let lease = function.acquire(&[]).await.unwrap();
    assert_eq!(get(lease.address(), "/").unwrap(), "ok");
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_named() {
    let (supervisor, function) = start(&Witness::default(), command(&["./no-such-program"]));
    let error = function.acquire(&[]).await.unwrap_err().to_string();
    assert!(error.contains("`./no-such-program` in /: No such file"), "{error}");
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_holds_what_was_given_and_no_more() {
    let witness =
        Witness { secret: Some(("HTTP_PROXY".to_owned(), "http://a:b@127.0.0.1:1".to_owned())), ..Witness::default() };
    let mut configured = command(&[SERVER]);
    configured.env.insert("STOCK".to_owned(), "7".to_owned());
    configured.env.insert("HTTP_PROXY".to_owned(), "http://elsewhere".to_owned());
    configured.env.insert("PORT".to_owned(), "1".to_owned());
    let (supervisor, function) = start(&witness, configured);
    let lease = function.acquire(&[]).await.unwrap();
    let answer = get(lease.address(), "/env").unwrap();
    let environment: BTreeMap<_, _> = answer.lines().filter_map(|line| line.split_once('=')).collect();
    // Cargo gives its tests a lot of variables; any of those would show.
    assert!(std::env::vars().count() > 4);
    let names = ["HTTP_PROXY", "LENO_FUNCTION", "LENO_INSTANCE", "PATH", "PORT", "STOCK"];
    assert_eq!(environment.keys().copied().collect::<Vec<_>>(), names);
    assert_eq!(environment["LENO_INSTANCE"], &**lease.name());
    assert_eq!(environment["HTTP_PROXY"], "http://a:b@127.0.0.1:1", "the node's word counts");
    assert_eq!(environment["PORT"], lease.address().port().to_string());
    assert_eq!(environment["STOCK"], "7");
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ignores_sigterm_is_killed_with_its_children() {
    let witness = Witness::default();
    let mut stubborn = command(&["sh", "-c", &format!("trap '' TERM; sleep 1000 & echo $!; {SERVER} & wait; wait")]);
    stubborn.grace = Duration::from_millis(50);
    let (supervisor, function) = start(&witness, stubborn);
    let lease = function.acquire(&[]).await.unwrap();
    let server: u32 = get(lease.address(), "/pid").unwrap().parse().unwrap();
    let shell = supervisor.instances(&id())[0].pid.unwrap();
    eventually_async("the shell has named its child", || !function.output(lease.instance()).is_empty()).await;
    let lines = witness.events();
    let child = lines.iter().find_map(|event| match event {
        Event::Line(_, _, text) => text.parse::<u32>().ok(),
        _ => None,
    });
    let group = [shell, server, child.unwrap()];
    assert!(group.iter().all(|&pid| is_running(pid)));
    let instance = lease.instance();
    drop(lease);
    supervisor.shutdown(FOREVER).await;
    assert_eq!(group.map(is_running), [false; 3]);
    assert!(witness.index(&Event::Draining(instance)) < witness.index(&Event::Ended(instance)));
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_crashed_leader_do_not_stay() {
    let witness = Witness::default();
    let script = format!("sleep 1000 & echo $!; exec {SERVER}");
    let (supervisor, function) = start(&witness, command(&["sh", "-c", &script]));
    let lease = function.acquire(&[]).await.unwrap();
    let first = lease.instance();
    eventually_async("the child is named", || !function.output(first).is_empty()).await;
    let child: u32 = function.output(first)[0].text.parse().unwrap();
    assert!(is_running(child));
    let _ = get(lease.address(), "/exit");
    eventually_async("the instance has ended", || witness.events().contains(&Event::Ended(first))).await;
    assert!(!is_running(child));
    supervisor.shutdown(FOREVER).await;
}

#[test]
fn dropping_the_runtime_leaves_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let script = format!("sleep 1000 & echo $!; exec {SERVER}");
    let (supervisor, group) = runtime.block_on(async {
        let (supervisor, function) = start(&Witness::default(), command(&["sh", "-c", &script]));
        let instance = function.acquire(&[]).await.unwrap().instance();
        eventually_async("the child is named", || !function.output(instance).is_empty()).await;
        let child: u32 = function.output(instance)[0].text.parse().unwrap();
        let leader = supervisor.instances(&id())[0].pid.unwrap();
        (supervisor, [leader, child])
    });
    assert!(group.iter().all(|&pid| is_running(pid)));
    drop(runtime);
    tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(eventually_async("the group is gone", || !group.iter().any(|&pid| is_running(pid))));
    drop(supervisor);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_does_not_wait_longer_than_it_may() {
    let (supervisor, function) =
        start(&Witness::default(), command(&["sh", "-c", &format!("trap '' TERM; exec {SERVER}")]));
    // The lease is never given back, SIGTERM is ignored, and both patiences are endless.
    let lease = function.acquire(&[]).await.unwrap();
    let pid = supervisor.instances(&id())[0].pid.unwrap();
    supervisor.shutdown(Duration::from_millis(20)).await;
    assert!(!is_running(pid));
    drop(lease);
    assert_eq!(function.acquire(&[]).await.unwrap_err(), AcquireError::Removed);
    let again = supervisor.apply(spec(command(&[SERVER])));
    assert_eq!(again.acquire(&[]).await.unwrap_err(), AcquireError::Removed);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded_and_first_come_first_served() {
    let supervisor = Supervisor::start(settings(), ());
    let function = supervisor.apply(FunctionSpec { queue: 2, ..one_at_a_time(1) });
    let held = function.acquire(&[]).await.unwrap();
    assert_eq!(held.in_flight(), 1);

    let order = Arc::new(Mutex::new(Vec::new()));
    let mut requests = Vec::new();
    for number in 0..2 {
        let (function, order) = (function.clone(), Arc::clone(&order));
        let waiting = function.clone();
        requests.push(tokio::spawn(async move {
            let lease = function.acquire(&[]).await.unwrap();
            order.lock().unwrap().push(number);
            assert_eq!(lease.in_flight(), 1, "one at a time");
        }));
        eventually_async("it waits", || waiting.waiting() == number + 1).await;
    }
    assert_eq!(function.acquire(&[]).await.unwrap_err(), AcquireError::QueueFull { limit: 2 });
    assert!(function.try_acquire(&[]).is_none());
    drop(held);
    for request in requests {
        request.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1]);
    assert_eq!(function.waiting(), 0);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_went_away_is_not_waited_for() {
    let supervisor = Supervisor::start(settings(), ());
    let function = supervisor.apply(FunctionSpec { queue: 1, ..one_at_a_time(1) });
    let held = function.acquire(&[]).await.unwrap();
    let waiting = tokio::spawn({
        let function = function.clone();
        async move { function.acquire(&[]).await.map(drop) }
    });
    eventually_async("it waits", || function.waiting() == 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // Its place in the queue is free again, and the instance goes to the request that still waits.
    let next = tokio::spawn({
        let function = function.clone();
        async move { function.acquire(&[]).await.map(|lease| lease.in_flight()) }
    });
    eventually_async("the next waits", || function.waiting() == 1 && !next.is_finished()).await;
    drop(held);
    assert_eq!(next.await.unwrap().unwrap(), 1);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_replaces_without_a_gap() {
    let witness = Witness::default();
    let (supervisor, function) = start(&witness, command(&[SERVER]));
    let old = function.acquire(&[]).await.unwrap();
    let old_address = old.address();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let traffic = tokio::spawn({
        let (function, stop) = (function.clone(), Arc::clone(&stop));
        async move {
            let mut served = 0_u32;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                // Never waits: there is always a ready instance.
                let lease = function.try_acquire(&[]).expect("a ready instance");
                let address = lease.address();
                let answer = tokio::task::spawn_blocking(move || get(address, "/")).await.unwrap();
                assert_eq!(answer.expect("an answer"), "ok");
                served += 1;
            }
            served
        }
    });
    let mut changed = command(&[SERVER]);
    changed.env.insert("VERSION".to_owned(), "2".to_owned());
    supervisor.apply(spec(changed));
    eventually_async("the old one is draining", || old.is_draining()).await;
    let endpoints = function.endpoints();
    assert_eq!(endpoints.len(), 1, "the new one was ready before");
    let (new, address) = endpoints[0];
    assert_ne!(new, old.instance());
    assert!(get(address, "/env").unwrap().contains("VERSION=2"));
    // The old one still has a request, so the supervisor does not stop it.
    assert_eq!(get(old_address, "/").unwrap(), "ok");
    let old_instance = old.instance();
    drop(old);
    eventually_async("the old one has ended", || witness.events().contains(&Event::Ended(old_instance))).await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(traffic.await.unwrap() > 0);
    assert!(witness.index(&Event::Ready(new)) < witness.index(&Event::Draining(old_instance)));
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_does_not_start_leaves_the_old_one() {
    let witness = Witness::default();
    let (supervisor, function) = start(&witness, command(&[SERVER]));
    let old = function.acquire(&[]).await.unwrap().instance();
    supervisor.apply(spec(command(&["sh", "-c", "exit 1"])));
    eventually_async("the new one failed twice", || function.status().restarts >= 2).await;
    assert_eq!(function.try_acquire(&[]).unwrap().instance(), old);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_port_is_handed_from_the_old_to_the_new() {
    let witness = Witness::default();
    // Some port that was free a moment ago, below those that the system gives to outgoing connections.
    let (scout, function) = start(&Witness::default(), command(&[SERVER]));
    let port = function.acquire(&[]).await.unwrap().address().port();
    scout.shutdown(FOREVER).await;

    let fixed = at_least(3, Command { port: Some(port), ..command(&[SERVER]) });
    let supervisor = Supervisor::start(settings(), witness.clone());
    let function = supervisor.apply(fixed.clone());
    let old = function.acquire(&[]).await.unwrap().instance();
    assert_eq!(function.endpoints().len(), 1, "two could not bind it");
    let mut changed = fixed.clone();
    let Run::Command(changed_command) = &mut changed.run else { panic!("it has a command") };
    changed_command.env.insert("VERSION".to_owned(), "2".to_owned());
    supervisor.apply(changed);
    eventually_async("the old one is gone", || witness.events().contains(&Event::Draining(old))).await;
    let lease = function.acquire(&[]).await.unwrap();
    assert_eq!(lease.address().port(), port);
    assert!(get(lease.address(), "/env").unwrap().contains("VERSION=2"));
    drop(lease);

    // Removed and taken on again under the same name: the new one waits for the port.
    supervisor.remove(&id());
    let function = supervisor.apply(fixed);
    let lease = function.acquire(&[]).await.unwrap();
    assert!(!get(lease.address(), "/env").unwrap().contains("VERSION=2"));
    assert_eq!(function.status().restarts, 0, "it did not fail on the way");
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_minimum_running_and_follows_changes_of_it() {
    let witness = Witness::default();
    let supervisor = Supervisor::start(settings(), witness.clone());
    let function = supervisor.apply(at_least(2, command(&[SERVER])));
    let mut changes = supervisor.changes();
    while function.endpoints().len() < 2 {
        changes.changed().await.unwrap();
    }
    assert!(supervisor.take_changed().into_iter().eq([id()]));
    let (first, second) = (function.acquire(&[]).await.unwrap(), function.acquire(&[]).await.unwrap());
    assert_ne!(first.instance(), second.instance(), "the least loaded one is given");
    assert_eq!(function.acquire(&[first.address()]).await.unwrap().instance(), second.instance());
    let both = [first.address(), second.address()];
    assert!(function.try_acquire(&both).is_some(), "there are no others");
    assert_eq!((function.ready(&[]), function.ready(&both)), (2, 0));
    drop((first, second));

    supervisor.apply(at_least(1, command(&[SERVER])));
    eventually_async("one is stopped", || supervisor.instances(&id()).len() == 1).await;
    assert_eq!(
        witness.starts(),
        2,
        "a change of scale restarts nothing: {:?} {:?}",
        witness.events(),
        function.status()
    );
    supervisor.remove(&id());
    eventually_async("all have ended", || {
        witness.events().iter().filter(|event| matches!(event, Event::Ended(_))).count() == 2
    })
    .await;
    assert!(supervisor.function(&id()).is_none());
    assert_eq!(function.acquire(&[]).await.unwrap_err(), AcquireError::Removed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_instance_is_preferred_to_an_avoided_one() {
    let supervisor = Supervisor::start(settings(), ());
    let function = supervisor.apply(FunctionSpec { concurrency: 1, ..at_least(2, command(&[SERVER])) });
    eventually_async("both are ready", || function.endpoints().len() == 2).await;
    let busy = function.acquire(&[]).await.unwrap();
    let (busy_one, avoided) = (busy.instance(), function.acquire(&[]).await.unwrap().address());
    assert!(function.try_acquire(&[avoided]).is_none());
    let next = tokio::spawn({
        let function = function.clone();
        async move { function.acquire(&[avoided]).await.map(|lease| lease.instance()) }
    });
    eventually_async("it waits", || function.waiting() == 1).await;
    drop(busy);
    assert_eq!(next.await.unwrap().unwrap(), busy_one);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn external_addresses_are_lent_without_processes() {
    let witness = Witness::default();
    let supervisor = Supervisor::start(settings(), witness.clone());
    let addresses: Vec<SocketAddr> = vec!["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
    let external =
        |addresses: &[SocketAddr]| FunctionSpec { run: Run::External(addresses.to_vec()), ..spec(command(&[])) };
    let function = supervisor.apply(external(&addresses));
    eventually_async("they are known", || function.endpoints().len() == 2).await;
    let first = function.acquire(&[]).await.unwrap();
    let second = function.acquire(&[]).await.unwrap();
    assert_ne!(first.address(), second.address());
    let kept = if first.address() == addresses[1] { first.instance() } else { second.instance() };

    supervisor.apply(external(&addresses[1..]));
    eventually_async("one is draining", || first.is_draining() || second.is_draining()).await;
    assert_eq!(function.endpoints(), [(kept, addresses[1])], "the other one keeps its name");
    assert_eq!(witness.starts(), 0);
    let status = supervisor.instances(&id());
    assert_eq!((status.len(), status[0].pid), (1, None));
    supervisor.shutdown(FOREVER).await;
}
