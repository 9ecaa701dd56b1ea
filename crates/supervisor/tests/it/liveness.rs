//! Instances that were ready and do not serve any more are replaced, and those that are busy are not.

use crate::support::*;
use leno_model::{Command, InstanceState, Liveness, Readiness};
use leno_supervisor::{Function, InstanceId, Lease, Supervisor};
use leno_testkit::eventually_async;
use std::time::Duration;
use tokio::time::Instant;

/// Watched all the time.
fn watched(command: Command) -> Command {
    Command { liveness: Some(Liveness { interval: Duration::from_millis(100), failures: 3 }), ..command }
}

fn asked_over_http() -> Command {
    Command { readiness: Readiness::Http("/healthz".to_owned()), ..watched(command(&[SERVER])) }
}

async fn ask(lease: &Lease, path: &'static str) -> std::io::Result<String> {
    let address = lease.address();
    tokio::task::spawn_blocking(move || get(address, path)).await.unwrap()
}

fn signal(supervisor: &Supervisor, instance: InstanceId, name: &str) {
    let status = supervisor.instances(&id()).into_iter().find(|status| status.id == instance).unwrap();
    let sent = std::process::Command::new("kill").args([name, &status.pid.unwrap().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A request that comes now gets another instance than this one.
async fn is_replaced(function: &Function, lost: InstanceId, reason: &str) {
    let lease = function.acquire(&[]).await.unwrap();
    assert_ne!(lease.instance(), lost);
    assert_eq!(ask(&lease, "/").await.unwrap(), "ok");
    let status = function.status();
    assert_eq!((status.restarts, status.lost), (1, 1));
    let told = status.last_failure.unwrap();
    assert!(told.contains(reason), "{told}");
    assert_eq!(function.losses()[0].instance, lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_refuses_connections_is_replaced_and_requests_wait_for_the_next() {
    let (supervisor, function) = start(&Witness::default(), watched(command(&[SERVER])));
    let lease = function.acquire(&[]).await.unwrap();
    let first = lease.instance();
    ask(&lease, "/deaf").await.unwrap();
    eventually_async("it is deaf", || function.output(first).iter().any(|line| line.text == "deaf")).await;
    // A request observes the failure before any probe. The instance gets no other one.
    lease.connect().await.unwrap_err();
    assert!(lease.is_suspect() && function.try_acquire(&[]).is_none());
    drop(lease);
    is_replaced(&function, first, "probes in a row have failed").await;
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_request_probes_find_it_out() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let argv = [SERVER, gate.to_str().unwrap()];
    let command = Command { argv: argv.map(str::to_owned).into(), ..asked_over_http() };
    let supervisor = Supervisor::start(settings(), ());
    let function = supervisor.apply(at_least(1, command));
    eventually_async("it is ready", || function.endpoints().len() == 1).await;
    let first = function.endpoints()[0].0;
    let held = function.acquire(&[]).await.unwrap();
    std::fs::remove_file(&gate).unwrap();
    let unhealthy = || supervisor.instances(&id()).into_iter().find(|status| status.state == InstanceState::Unhealthy);
    eventually_async("it is lost", || unhealthy().is_some()).await;
    // Its open requests may end.
    assert_eq!(unhealthy().map(|status| status.id), Some(first));
    assert!(unhealthy().unwrap().lost.unwrap().contains("it answered 503"));
    assert_eq!(ask(&held, "/").await.unwrap(), "ok");
    std::fs::write(&gate, "").unwrap();
    is_replaced(&function, first, "it answered 503").await;
    drop(held);
    eventually_async("it is gone", || supervisor.instances(&id()).len() == 1).await;
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_hangs_is_replaced_by_its_probes_or_by_its_requests() {
    for command in [asked_over_http(), watched(command(&[SERVER]))] {
        let is_http = command.readiness != Readiness::Tcp;
        let command = Command { grace: Duration::ZERO, ..command };
        let supervisor = Supervisor::start(settings(), ());
        let function = supervisor.apply(at_least(1, command));
        let lease = function.acquire(&[]).await.unwrap();
        let first = lease.instance();
        lease.heard();
        drop(lease);
        signal(&supervisor, first, "-STOP");
        if !is_http {
            // The kernel still takes connections.
            for _ in 0..3 {
                let lease = function.acquire(&[]).await.unwrap();
                assert_eq!(lease.instance(), first);
                lease.timed_out(Instant::now());
            }
        }
        let reason = if is_http { "no answer in time" } else { "3 requests in a row have timed out" };
        eventually_async("it is lost", || function.status().lost == 1).await;
        is_replaced(&function, first, reason).await;
        supervisor.shutdown(FOREVER).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_instance_is_left_alone() {
    let (supervisor, function) = start(&Witness::default(), asked_over_http());
    let lease = function.acquire(&[]).await.unwrap();
    let first = lease.instance();
    // It does one thing at a time, and answers no probe meanwhile.
    signal(&supervisor, first, "-STOP");
    // Longer than it takes to lose an idle one: three probes, each of which is given a second.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(function.status().lost, 0);
    assert_eq!(function.acquire(&[]).await.unwrap().instance(), first);
    signal(&supervisor, first, "-CONT");
    assert_eq!(ask(&lease, "/").await.unwrap(), "ok");
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_that_are_ready_get_the_requests_and_nothing_spins() {
    let supervisor = Supervisor::start(settings_with_pause(Duration::from_secs(30)), ());
    let function = supervisor.apply(at_least(2, watched(command(&[SERVER]))));
    eventually_async("both are ready", || function.endpoints().len() == 2).await;
    let lost = function.acquire(&[]).await.unwrap();
    ask(&lost, "/deaf").await.unwrap();
    eventually_async("it is deaf", || function.output(lost.instance()).iter().any(|line| line.text == "deaf")).await;
    lost.connect().await.unwrap_err();
    for _ in 0..10 {
        assert_ne!(function.acquire(&[]).await.unwrap().instance(), lost.instance());
    }
    eventually_async("it is lost", || function.status().lost == 1).await;
    assert!(function.status().pause.unwrap() > Duration::from_secs(10), "the next one starts after a pause");
    supervisor.shutdown(FOREVER).await;
}
