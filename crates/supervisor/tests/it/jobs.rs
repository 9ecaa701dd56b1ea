//! Jobs with real child processes.

use crate::support::*;
use leno_files::FileAccess;
use leno_model::{Isolation, Job, OutputStream, Process, Resources};
use leno_supervisor::{JobSpec, JobState, JobStatus, Supervisor};
use leno_testkit::eventually_async;
use leno_testkit::process::is_running;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A job that runs a shell script, in a temporary folder.
struct ScriptJob {
    folder: TempDir,
    spec: JobSpec,
}

impl ScriptJob {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = Process {
            argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            directory: folder.path().to_owned(),
            env: BTreeMap::new(),
            secrets: Vec::new(),
            resources: Resources::default(),
            isolation: Isolation::Process,
            read_only_paths: vec![],
            volumes: vec![],
            container: None,
            grace: FOREVER,
        };
        let job = Job {
            process,
            parallelism: 1,
            completions: 1,
            backoff_limit: 0,
            active_deadline: None,
            ttl: None,
            reruns: 0,
        };
        let (files, host_access) = (FileAccess::Any, leno_files::HostAccess::Any);
        Self { folder, spec: JobSpec { id: id(), run: "1".to_owned(), job, container: None, files, host_access } }
    }

    fn with(mut self, change: impl FnOnce(&mut Job)) -> Self {
        change(&mut self.spec.job);
        self
    }

    fn again(&self, run: &str) -> JobSpec {
        JobSpec { run: run.to_owned(), ..self.spec.clone() }
    }
}

fn supervisor(witness: &Witness) -> Supervisor {
    Supervisor::start(settings(), witness.clone())
}

fn status(supervisor: &Supervisor) -> JobStatus {
    supervisor.jobs().into_iter().next().expect("there is a job")
}

async fn ended(supervisor: &Supervisor) -> JobStatus {
    eventually_async("the end of the job", || status(supervisor).state != JobState::Running).await;
    status(supervisor)
}

/// The number that a process wrote.
fn number(folder: &Path, file: &str) -> Option<u32> {
    std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_once_and_its_end_is_told() {
    let (witness, job) = (Witness::default(), ScriptJob::new("echo working; echo in vain >&2"));
    let supervisor = supervisor(&witness);
    let mut changes = supervisor.job_changes();
    supervisor.apply_job(job.spec.clone());
    let done = ended(&supervisor).await;
    assert_eq!((done.state, done.succeeded, done.failed, done.active), (JobState::Succeeded, 1, 0, 0));
    assert_eq!((done.exit_code, &done.reason), (Some(0), &None));
    assert!(done.ended.unwrap() >= done.started);
    assert!(witness.line("working") && witness.line("in vain"));
    assert_eq!(supervisor.job_output(&id()).len(), 2);
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();

    // The same run is not run again, another one is.
    supervisor.apply_job(job.spec.clone());
    assert_eq!((status(&supervisor), witness.starts()), (done, 1));
    supervisor.apply_job(job.again("2"));
    eventually_async("another run", || status(&supervisor).run == "2").await;
    ended(&supervisor).await;
    assert_eq!(witness.starts(), 2);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_tried_again_up_to_the_limit() {
    let (witness, job) = (Witness::default(), ScriptJob::new("exit 3").with(|job| job.backoff_limit = 2));
    let supervisor = supervisor(&witness);
    supervisor.apply_job(job.spec.clone());
    let failed = ended(&supervisor).await;
    assert_eq!((failed.state, failed.failed, failed.exit_code), (JobState::Failed, 3, Some(3)));
    assert_eq!(failed.reason.unwrap(), "BackoffLimitExceeded: exit status: 3");
    assert_eq!(witness.starts(), 3);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_try_may_succeed() {
    let (witness, job) = (Witness::default(), ScriptJob::new("[ -e tried ] || { touch tried; kill -9 $$; }"));
    let job = job.with(|job| job.backoff_limit = 1);
    let supervisor = supervisor(&witness);
    supervisor.apply_job(job.spec.clone());
    let done = ended(&supervisor).await;
    assert_eq!((done.state, done.succeeded, done.failed), (JobState::Succeeded, 1, 1));
    assert_eq!(done.reason, None, "the reason of the first failure is none of the success");
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_named() {
    let mut job = ScriptJob::new("");
    job.spec.job.process.argv = vec!["./no-such-program".to_owned()];
    let supervisor = supervisor(&Witness::default());
    supervisor.apply_job(job.spec.clone());
    let failed = ended(&supervisor).await;
    let reason = failed.reason.unwrap();
    assert!(failed.state == JobState::Failed && reason.contains("no-such-program"), "{reason}");
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_command_left_behind_ends_with_it() {
    let job = ScriptJob::new("sleep 1000 & echo $! > sleeper");
    let supervisor = supervisor(&Witness::default());
    supervisor.apply_job(job.spec.clone());
    // A process that holds the output open does not keep the job alive.
    let done = ended(&supervisor).await;
    assert_eq!(done.state, JobState::Succeeded);
    let sleeper = number(job.folder.path(), "sleeper").unwrap();
    eventually_async("the end of the process that was left behind", || !is_running(sleeper)).await;
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_deadline_the_whole_group_ends_and_nothing_is_tried_again() {
    let script = "trap '' TERM; sleep 1000 & echo $! > sleeper; echo $$ > leader; while :; do wait; done";
    let job = ScriptJob::new(script).with(|job| {
        job.backoff_limit = 5;
        // Long enough for both to be there; if not, there is nothing to see, and nothing wrong either.
        job.active_deadline = Some(Duration::from_secs(1));
        job.process.grace = Duration::from_millis(10);
    });
    let witness = Witness::default();
    let supervisor = supervisor(&witness);
    supervisor.apply_job(job.spec.clone());
    let failed = ended(&supervisor).await;
    let reason = failed.reason.unwrap();
    assert!(failed.state == JobState::Failed && reason.starts_with("DeadlineExceeded"), "{reason}");
    assert_eq!(witness.starts(), 1);
    for file in ["sleeper", "leader"] {
        assert!(number(job.folder.path(), file).is_none_or(|pid| !is_running(pid)), "{file} outlived the job");
    }
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_holds_during_a_pause_too() {
    let job = ScriptJob::new("exit 1").with(|job| {
        job.backoff_limit = 5;
        job.active_deadline = Some(Duration::from_millis(100));
    });
    let supervisor = Supervisor::start(settings_with_pause(FOREVER), ());
    supervisor.apply_job(job.spec.clone());
    assert!(ended(&supervisor).await.reason.unwrap().starts_with("DeadlineExceeded"));
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_run_at_a_time_as_wanted() {
    // Two processes succeed only if both run at the same time.
    let script = "mkdir run-$$; while [ $(ls | grep -c run-) -lt 2 ] && [ ! -e met ]; do sleep 0.01; done; touch met; \
                  echo $(ls | grep -c run-); rmdir run-$$";
    let job = ScriptJob::new(script).with(|job| (job.parallelism, job.completions) = (2, 5));
    let witness = Witness::default();
    let supervisor = supervisor(&witness);
    supervisor.apply_job(job.spec.clone());
    let done = ended(&supervisor).await;
    assert_eq!((done.state, done.succeeded, witness.starts()), (JobState::Succeeded, 5, 5));
    assert!(!witness.line("3") && !witness.line("4") && !witness.line("5"), "{:?}", witness.events());
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_run_waits_for_the_end_of_the_one_before() {
    let script = "trap 'sleep 0.1; echo first ends; exit 0' TERM; touch up; while :; do sleep 0.02; done";
    let (witness, first) = (Witness::default(), ScriptJob::new(script));
    let supervisor = supervisor(&witness);
    supervisor.apply_job(first.spec.clone());
    eventually_async("the first run", || first.folder.path().join("up").exists()).await;
    let mut second = first.again("2");
    second.job.process.argv[2] = "echo second begins".to_owned();
    supervisor.apply_job(second);
    eventually_async("the second run", || status(&supervisor).run == "2").await;
    assert_eq!(ended(&supervisor).await.state, JobState::Succeeded);
    let lines = witness.events().into_iter().filter_map(|event| match event {
        Event::Line(_, OutputStream::Stdout, text) => Some(text),
        _ => None,
    });
    assert_eq!(lines.collect::<Vec<_>>(), ["first ends", "second begins"]);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_let_go_of_ends_and_so_does_one_of_a_node_that_ends() {
    for remove in [true, false] {
        let job = ScriptJob::new("echo $$ > leader; exec sleep 1000");
        let supervisor = supervisor(&Witness::default());
        supervisor.apply_job(job.spec.clone());
        eventually_async("the job", || number(job.folder.path(), "leader").is_some()).await;
        if remove {
            supervisor.remove_job(&id());
            assert!(supervisor.jobs().is_empty());
        }
        supervisor.shutdown(FOREVER).await;
        assert!(!is_running(number(job.folder.path(), "leader").unwrap()));
        supervisor.apply_job(job.again("2"));
        assert!(supervisor.jobs().is_empty(), "after its end a node starts nothing");
    }
}
