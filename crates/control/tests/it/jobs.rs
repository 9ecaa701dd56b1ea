//! The choice of a job's node, and the outcome of the job.

use crate::support::configs::{config, function, identity, job};
use crate::support::*;
use leno_agent::{Agent, Updates};
use leno_control::{Control, JobStatus, Options, Store};
use leno_identity::Membership;
use leno_model::FunctionConfig;
use leno_testkit::eventually_async;
use leno_wire::{JobReport, JobState, Subject, run_of};
use std::path::Path;
use std::time::{Duration, SystemTime};

const REPORT: &str = "batch/report";
const SERVER: &str = "batch/server";

/// Longer than any test.
const LONG: Options = Options { node_grace: Duration::from_secs(3600) };

fn server() -> FunctionConfig {
    config(SERVER, &[], 1)
}

fn report(edition: u32, state: JobState) -> JobReport {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    JobReport {
        run: run_of(&job(REPORT, &[SERVER], edition)).unwrap(),
        state,
        active: u32::from(state == JobState::Running),
        succeeded: u32::from(state == JobState::Succeeded),
        failed: u32::from(state == JobState::Failed),
        started: Some(time),
        ended: (state != JobState::Running).then_some(time),
        exit_code: Some(0),
        reason: None,
        changed: time,
    }
}

fn status(control: &Control) -> JobStatus {
    control.status().jobs.into_iter().next().expect("there is a job")
}

fn state(control: &Control) -> JobState {
    status(control).report.state
}

/// A node that has all that it is for. Those that there are get their jobs, if any, before this
/// returns.
async fn joined(control: &Control, served: &TestServer, member: &Membership, port: u16) -> (Agent, Updates) {
    let (agent, mut updates) = node(served, member, port);
    agent.subscribe([Subject::Hosted]);
    while !accepted(&mut updates).await.iter().any(|change| change.subject() == Subject::Hosted) {}
    assert!(control.status().nodes.iter().any(|node| node.connected));
    (agent, updates)
}

fn has_job(agent: &Agent) -> bool {
    agent.held().contains_key(&config_of(REPORT))
}

/// Takes in updates until the job is there, or is not.
async fn until_job(agent: &Agent, updates: &mut Updates, there: bool) {
    while has_job(agent) != there {
        accepted(updates).await;
    }
}

fn published(store: Store, options: Options, edition: u32) -> Control {
    let control = control_with(store, options);
    control.publish(&definitions([server(), job(REPORT, &[SERVER], edition)])).unwrap();
    control
}

#[tokio::test]
async fn a_job_is_one_nodes_until_it_has_ended() {
    let control = published(Store::memory(), LONG, 1);
    let served = TestServer::start(&control).await;
    let (member_one, member_two) =
        (control.admit("one", everything()).unwrap(), control.admit("two", everything()).unwrap());
    assert_eq!((state(&control), status(&control).node), (JobState::Pending, None));
    let (two, mut updates_two) = joined(&control, &served, &member_two, 2).await;
    let (one, mut updates_one) = joined(&control, &served, &member_one, 1).await;
    // The first node keeps the job, and only this node may report in its name.
    assert_eq!((has_job(&one), has_job(&two)), (false, true));
    assert_eq!(status(&control).node.as_deref(), Some("two"));
    let key = leno_identity::SvidStore::new(control.bundle().as_ref().clone());
    let id: leno_identity::SpiffeId = identity(REPORT).parse().unwrap();
    let signed = |agent: Agent| {
        let (key, id) = (key.clone(), id.clone());
        async move { key.renew(&id, |csr| agent.sign(&id, csr)).await.is_ok() }
    };
    assert!(!signed(one.clone()).await && signed(two.clone()).await);

    two.report_job(&function(REPORT), report(1, JobState::Running));
    eventually_async("the job's state running", || state(&control) == JobState::Running).await;
    // Only its node can give it up.
    one.report_job(&function(REPORT), report(1, JobState::Failed));
    // A report about another run does not concern this one.
    two.report_job(&function(REPORT), report(9, JobState::Succeeded));
    two.report_job(&function(REPORT), report(1, JobState::Succeeded));
    eventually_async("the job's state succeeded", || state(&control) == JobState::Succeeded).await;
    until_job(&two, &mut updates_two, false).await;
    let events: Vec<_> = status(&control).events.into_iter().map(|event| (event.from, event.to)).collect();
    assert_eq!(events, [(JobState::Pending, JobState::Running), (JobState::Running, JobState::Succeeded)]);

    // A change of another function begins no new run; a change of the job does.
    control.publish(&definitions([config(SERVER, &[], 2), job(REPORT, &[SERVER], 1)])).unwrap();
    assert_eq!(state(&control), JobState::Succeeded);
    assert!(control.put(&job(REPORT, &[SERVER], 2)).unwrap());
    assert_eq!(state(&control), JobState::Pending);
    until_job(&two, &mut updates_two, true).await;
    control.publish(&definitions([server()])).unwrap();
    until_job(&two, &mut updates_two, false).await;
    assert!(control.status().jobs.is_empty());
    drop(updates_one.try_recv());
}

#[tokio::test]
async fn a_job_of_a_node_that_is_away_begins_anew_elsewhere() {
    let control = published(Store::memory(), Options { node_grace: Duration::from_millis(20) }, 1);
    let served = TestServer::start(&control).await;
    let members = ["one", "two"].map(|name| control.admit(name, everything()).unwrap());
    let (one, updates_one) = joined(&control, &served, &members[0], 1).await;
    let (two, mut updates_two) = joined(&control, &served, &members[1], 2).await;
    one.report_job(&function(REPORT), report(1, JobState::Running));
    eventually_async("the job's state running", || state(&control) == JobState::Running).await;
    drop((one, updates_one));
    until_job(&two, &mut updates_two, true).await;
    let now = status(&control);
    assert_eq!((now.node.as_deref(), now.report.state), (Some("two"), JobState::Pending));
    assert!(now.events.last().unwrap().reason.contains("node one is away"), "{:?}", now.events);
    // A placement that does not cover it any more takes it away too.
    control.place("two", only(&[SERVER])).unwrap();
    until_job(&two, &mut updates_two, false).await;
    assert_eq!(status(&control).node, None);
}

fn stored(path: &Path, edition: u32) -> Control {
    published(Store::open(path).unwrap(), LONG, edition)
}

#[tokio::test]
async fn how_it_ended_is_known_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    let control = stored(&path, 1);
    let served = TestServer::start(&control).await;
    let (one, updates) = joined(&control, &served, &control.admit("one", everything()).unwrap(), 1).await;
    one.report_job(&function(REPORT), report(1, JobState::Failed));
    eventually_async("the job's state failed", || state(&control) == JobState::Failed).await;
    let ended = status(&control);
    drop((one, updates));
    served.stop().await;
    drop(control);

    // The streams of the first control plane may take a moment to release the file.
    let reopened = || Store::open(&path).ok();
    let mut store = None;
    eventually_async("the store to be closed by its last user", || {
        store = store.take().or_else(reopened);
        store.is_some()
    })
    .await;
    let control = published(store.unwrap(), LONG, 1);
    assert_eq!(JobStatus { events: ended.events.clone(), ..status(&control) }, ended);
    let served = TestServer::start(&control).await;
    let (one, _updates) = joined(&control, &served, &control.admit("one", everything()).unwrap(), 1).await;
    assert!(!has_job(&one));
    // The definition changes, and back: the state of the first run does not count for the third.
    for edition in [2, 1] {
        control.publish(&definitions([server(), job(REPORT, &[SERVER], edition)])).unwrap();
        assert_eq!(state(&control), JobState::Pending);
    }
}

#[tokio::test]
async fn a_job_under_way_stays_where_it_is_when_the_control_plane_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.redb");
    drop(stored(&path, 1));
    let control = stored(&path, 1);
    let served = TestServer::start(&control).await;
    let members = ["one", "two"].map(|name| control.admit(name, everything()).unwrap());
    // The node that runs it has yet to come back.
    let (one, _updates_one) = joined(&control, &served, &members[0], 1).await;
    assert!(!has_job(&one));
    let (two, mut updates_two) = node(&served, &members[1], 2);
    two.report_job(&function(REPORT), report(1, JobState::Running));
    two.subscribe([Subject::Hosted]);
    until_job(&two, &mut updates_two, true).await;
    eventually_async("the job's state running", || state(&control) == JobState::Running).await;
    assert_eq!(status(&control).node.as_deref(), Some("two"));
    assert!(!has_job(&one));
}

#[tokio::test]
async fn an_ended_job_is_listed_for_its_time() {
    let mut config = job(REPORT, &[], 1);
    let leno_model::Run::Job(job) = &mut config.run else { panic!("it is a job") };
    job.ttl = Some(Duration::ZERO);
    let control = control_with(Store::memory(), LONG);
    control.publish(&definitions([config.clone()])).unwrap();
    let served = TestServer::start(&control).await;
    let (one, mut updates) = joined(&control, &served, &control.admit("one", everything()).unwrap(), 1).await;
    let ended = JobReport {
        run: run_of(&config).unwrap(),
        ended: Some(SystemTime::UNIX_EPOCH),
        ..report(1, JobState::Succeeded)
    };
    one.report_job(&function(REPORT), ended);
    until_job(&one, &mut updates, false).await;
    assert!(control.status().jobs.is_empty());
    // It is not forgotten.
    control.publish(&definitions([config, server()])).unwrap();
    while !subjects(&accepted(&mut updates).await).contains(&config_of(SERVER)) {}
    assert!(!has_job(&one));
}
