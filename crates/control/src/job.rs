//! Jobs as the control plane sees them. A job runs on one node, which reports its progress. How it ended is kept.

use crate::resource::Content;
use leno_config::slice::Run;
use leno_config::{FunctionId, Slice};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// What the control plane needs to know of a job's definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobDefinition {
    pub run: String,
    pub completions: u32,
    pub ttl: Option<Duration>,
}

/// Lifecycle state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// No node has reported that it runs the job.
    Pending,
    /// A node runs the job and retries failed processes.
    Running,
    /// As many processes as the job wants have exited with status 0.
    Succeeded,
    /// Too many processes failed, or the job passed its deadline.
    Failed,
}

impl JobState {
    /// Whether the state is final.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The progress of one run of a job, as its node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// The run, as [`run_of`] names it.
    pub run: String,
    /// Lifecycle state.
    pub state: JobState,
    /// Number of process groups that are running.
    pub active: u32,
    /// Number of processes that exited with status 0.
    pub succeeded: u32,
    /// Number of processes that exited otherwise or could not be started.
    pub failed: u32,
    /// When the run began; `None`: not yet.
    pub started: Option<SystemTime>,
    /// When the run ended; `None`: not yet.
    pub ended: Option<SystemTime>,
    /// Exit status of the process that last ended by itself; `None` if a signal ended it, or if none has ended.
    pub exit_code: Option<i32>,
    /// Why the last process failed, or the whole job.
    pub reason: Option<String>,
    /// When the report last changed.
    pub changed: SystemTime,
}

impl JobReport {
    /// The report before a node has begun the job.
    pub(crate) fn pending(run: &str) -> Self {
        Self {
            run: run.to_owned(),
            state: JobState::Pending,
            active: 0,
            succeeded: 0,
            failed: 0,
            started: None,
            ended: None,
            exit_code: None,
            reason: None,
            changed: SystemTime::UNIX_EPOCH,
        }
    }
}

/// How a run ended, and on which node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub node: String,
    pub report: JobReport,
}

/// The status of a job, for listings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobStatus {
    /// Name of the job.
    pub job: FunctionId,
    /// The node that runs the job, or ran it; `None`: no node is assigned.
    pub node: Option<String>,
    /// How many processes must succeed.
    pub completions: u32,
    /// Progress of the run.
    #[serde(flatten)]
    pub report: JobReport,
    /// How long the job stays listed after its end; `None`: without a limit.
    #[serde(skip)]
    pub ttl: Option<Duration>,
    /// The latest events, oldest first.
    #[serde(skip)]
    pub events: Vec<JobEvent>,
}

impl JobStatus {
    /// Whether the job ended longer than `ttl` ago, so that it is no longer listed.
    pub fn is_past(&self, now: SystemTime) -> bool {
        let until = self.report.ended.zip(self.ttl).and_then(|(ended, ttl)| ended.checked_add(ttl));
        until.is_some_and(|until| until <= now)
    }
}

/// A state change of a job, or a failed process that is retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobEvent {
    /// When it happened.
    pub at: SystemTime,
    /// The state before.
    pub from: JobState,
    /// The state after; the same for a retry.
    pub to: JobState,
    /// Why it happened, or the node that runs the job.
    pub reason: String,
}

/// Names the run that a slice asks for. Equal commands, settings and callees give the same name, whatever the policies are. `None`: the slice is a
/// function's, or cannot be encoded.
pub fn run_of(slice: &Slice) -> Option<String> {
    let Run::Job(job) = &slice.run else { return None };
    let callees: Vec<&FunctionId> = slice.callees.iter().map(|callee| &callee.id).collect();
    let content = Content::new(&(job, callees)).ok()?;
    Some(content.version.to_string())
}
