//! Jobs: commands that run to completion. They get no requests. Failed processes are retried, and the end of a job is reported at once.

mod run;

use crate::cgroup::Cgroups;
use crate::container::{ContainerSpec, ImageState};
use crate::host::Host;
use crate::instance::TargetState;
use crate::output::OutputBuffer;
use crate::spec::Settings;
use crate::status::StatusStore;
use leno_files::{FileAccess, HostAccess};
use leno_model::Job;
use leno_model::{FunctionId, OutputLine};
use leno_namespaces::Turns;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How long the output of a removed job stays, and of how many jobs: of a namespace, and of all.
const ENDED_FOR: Duration = Duration::from_secs(24 * 3600);
const MAX_ENDED_OF_NAMESPACE: usize = 32;
const MAX_ENDED: usize = 256;

/// A job to run.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Name of the job.
    pub id: FunctionId,
    /// Identifies the run. A run is started once; another value is another run.
    pub run: String,
    /// Its command and settings.
    pub job: Job,
    /// Its processes are containers; `None`: they are processes of the machine.
    pub container: Option<Arc<ContainerSpec>>,
    /// The files that its document may name.
    pub files: FileAccess,
    /// The folders of the node that its volumes may be.
    pub host_access: HostAccess,
}

/// Lifecycle state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Its processes run, or are about to be started again.
    Running,
    /// As many processes as the job wants have exited with status 0.
    Succeeded,
    /// Too many processes failed, or the job passed its deadline.
    Failed,
}

/// The status of one run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Name of the job.
    pub job: FunctionId,
    /// The run, as in [`JobSpec::run`].
    pub run: String,
    /// Lifecycle state.
    pub state: JobState,
    /// Number of process groups that are running.
    pub active: u32,
    /// Number of processes that exited with status 0.
    pub succeeded: u32,
    /// Number of processes that exited otherwise or could not be started.
    pub failed: u32,
    /// When the run began.
    pub started: SystemTime,
    /// When the run succeeded or failed; `None`: not yet.
    pub ended: Option<SystemTime>,
    /// Exit status of the process that last ended by itself; `None` if a signal ended it, or if none has ended.
    pub exit_code: Option<i32>,
    /// Why the last process failed, or the whole job.
    pub reason: Option<String>,
    /// When the status last changed.
    pub changed: SystemTime,
    /// Why resource limits are not enforced; `None`: they are, or there are none.
    pub unenforced: Option<String>,
}

/// Shared by all jobs of a supervisor.
#[derive(Clone)]
pub(crate) struct JobContext {
    pub settings: Arc<Settings>,
    pub host: Arc<dyn Host>,
    pub next_instance: Arc<AtomicU64>,
    pub cgroups: Option<Arc<Cgroups>>,
    pub starts: Arc<Turns>,
    /// Rises with each change of a job's status.
    pub changes: watch::Sender<u64>,
}

/// The jobs of a node.
pub(crate) struct Jobs {
    shared: JobContext,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    jobs: BTreeMap<FunctionId, Entry>,
    /// Stopping runs, which may not have ended yet.
    ending: Vec<(FunctionId, Task)>,
    /// Removed jobs whose runs had ended, for their output; the last one at the end.
    ended: VecDeque<EndedRun>,
    closed: bool,
}

struct EndedRun {
    id: FunctionId,
    attempt: u32,
    status_store: Arc<StatusStore>,
    removed: Instant,
}

struct Entry {
    attempt: u32,
    run_status: Arc<RunStatus>,
    task: Task,
}

/// The task of a run. It has ended when the channel `ended` is closed.
#[derive(Clone)]
struct Task {
    target: watch::Sender<TargetState>,
    ended: watch::Receiver<()>,
}

/// The status of a run, and the output behind it.
struct RunStatus {
    status: Mutex<JobStatus>,
    status_store: Arc<StatusStore>,
    changes: watch::Sender<u64>,
}

impl Jobs {
    pub(crate) fn new(shared: JobContext) -> Self {
        Self { shared, entries: Mutex::default() }
    }

    pub(crate) fn apply(&self, runtime: &Handle, spec: JobSpec) {
        let mut entries = self.entries();
        let same = entries.jobs.get(&spec.id).is_some_and(|entry| entry.run_status.lock().run == spec.run);
        if same || entries.closed {
            return;
        }
        entries.cancel(&spec.id);
        // The output of earlier attempts stays, that of another definition does not.
        let attempt = spec.job.attempt();
        entries.ended.retain(|ended| ended.id != spec.id || ended.attempt < attempt);
        // Two runs of a job never overlap.
        let predecessors = entries.ending.iter().filter(|(id, _)| *id == spec.id).map(|(_, task)| task.clone());
        let predecessors: Vec<_> = predecessors.collect();
        let run_status = Arc::new(RunStatus {
            status: Mutex::new(JobStatus::new(&spec)),
            status_store: Arc::default(),
            changes: self.shared.changes.clone(),
        });
        let (target, target_watch) = watch::channel(TargetState::Run);
        let (alive, ended) = watch::channel(());
        let id = spec.id.clone();
        let run = run::Run::new(self.shared.clone(), spec, Arc::clone(&run_status), target_watch);
        runtime.spawn(async move {
            for predecessor in predecessors {
                predecessor.ended().await;
            }
            run.live().await;
            drop(alive);
        });
        entries.jobs.insert(id, Entry { attempt, run_status, task: Task { target, ended } });
    }

    pub(crate) fn remove(&self, id: &FunctionId) {
        self.entries().cancel(id);
    }

    pub(crate) fn status(&self) -> Vec<JobStatus> {
        self.entries().jobs.values().map(|entry| entry.run_status.read()).collect()
    }

    /// The images of jobs that are containers.
    pub(crate) fn images(&self) -> Vec<(FunctionId, ImageState)> {
        let entries = self.entries();
        let state = |(id, entry): (&FunctionId, &Entry)| Some((id.clone(), entry.run_status.status_store.image()?));
        entries.jobs.iter().filter_map(state).collect()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    pub(crate) fn output(&self, id: &FunctionId) -> Vec<OutputLine> {
        let Some(status_store) = self.status_store(id, None) else { return Vec::new() };
        let record = status_store.lock();
        record.output.values().flat_map(OutputBuffer::lines).cloned().collect()
    }

    /// The status store with the output of a job's processes, of this attempt or of the last one.
    /// That of a removed job whose run had ended stays for a day.
    pub(crate) fn status_store(&self, id: &FunctionId, attempt: Option<u32>) -> Option<Arc<StatusStore>> {
        let is_wanted = |number: u32| attempt.is_none_or(|attempt| attempt == number);
        let mut entries = self.entries();
        entries.expire();
        let present = entries.jobs.get(id).filter(|entry| is_wanted(entry.attempt));
        let present = present.map(|entry| &entry.run_status.status_store);
        let mut ended = entries.ended.iter().rev().filter(|ended| ended.id == *id && is_wanted(ended.attempt));
        let ended = || ended.next().map(|ended| &ended.status_store);
        present.or_else(ended).cloned()
    }

    /// Stops all runs, and accepts no more.
    pub(crate) fn close(&self) {
        let mut entries = self.entries();
        entries.closed = true;
        for id in entries.jobs.keys().cloned().collect::<Vec<_>>() {
            entries.cancel(&id);
        }
    }

    /// Kills the stopping runs.
    pub(crate) fn kill(&self) {
        self.entries().ending.iter().for_each(|(_, task)| task.set_target(TargetState::Kill));
    }

    /// Waits for the stopping runs.
    pub(crate) async fn ended(&self) {
        let tasks: Vec<Task> = self.entries().ending.iter().map(|(_, task)| task.clone()).collect();
        for task in tasks {
            task.ended().await;
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Stops a run.
    fn cancel(&mut self, id: &FunctionId) {
        self.ending.retain(|(_, task)| task.ended.has_changed().is_ok());
        if let Some(entry) = self.jobs.remove(id) {
            entry.task.set_target(TargetState::Stop);
            self.ending.push((id.clone(), entry.task));
            if entry.run_status.lock().state != JobState::Running {
                let status_store = Arc::clone(&entry.run_status.status_store);
                self.keep_ended(EndedRun {
                    id: id.clone(),
                    attempt: entry.attempt,
                    status_store,
                    removed: Instant::now(),
                });
            }
        }
    }

    fn keep_ended(&mut self, run: EndedRun) {
        self.expire();
        let of_namespace = |ended: &EndedRun| ended.id.namespace == run.id.namespace;
        let oldest = self.ended.iter().position(of_namespace);
        if let Some(oldest) = oldest
            && self.ended.iter().filter(|ended| of_namespace(ended)).count() >= MAX_ENDED_OF_NAMESPACE
        {
            self.ended.remove(oldest);
        } else if self.ended.len() >= MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(run);
    }

    fn expire(&mut self) {
        self.ended.retain(|ended| ended.removed.elapsed() < ENDED_FOR);
    }
}

impl Task {
    fn set_target(&self, target: TargetState) {
        self.target.send_if_modified(|current| {
            let stronger = target > *current;
            *current = (*current).max(target);
            stronger
        });
    }

    async fn ended(mut self) {
        while self.ended.changed().await.is_ok() {}
    }
}

impl JobStatus {
    fn new(spec: &JobSpec) -> Self {
        let now = SystemTime::now();
        Self {
            job: spec.id.clone(),
            run: spec.run.clone(),
            state: JobState::Running,
            active: 0,
            succeeded: 0,
            failed: 0,
            started: now,
            ended: None,
            exit_code: None,
            reason: None,
            changed: now,
            unenforced: None,
        }
    }
}

impl RunStatus {
    fn lock(&self) -> MutexGuard<'_, JobStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> JobStatus {
        let unenforced = self.status_store.lock().unenforced.clone();
        JobStatus { unenforced, ..self.lock().clone() }
    }

    fn change(&self, change: impl FnOnce(&mut JobStatus)) {
        let mut status = self.lock();
        change(&mut status);
        status.changed = SystemTime::now();
        drop(status);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}
