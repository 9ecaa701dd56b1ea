//! Jobs as the control plane knows them: a job runs on one node, which says how far it is; how it ended is kept.

use crate::resource::Content;
use leno_config::slice::Run;
use leno_config::{FunctionId, Slice};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// What deciding about a job needs to know of its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobDefinition {
    pub run: String,
    pub completions: u32,
    pub ttl: Option<Duration>,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// No node has said that it runs it.
    Pending,
    /// A node runs it, and tries again what failed.
    Running,
    /// As many processes as were wanted have exited with status 0.
    Succeeded,
    /// Too many failed, or it took too long.
    Failed,
}

impl JobState {
    /// Whether nothing more comes of it.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// How far a run of a job is, in the words of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// Which run, as [`run_of`] names it.
    pub run: String,
    /// Where it is in its life.
    pub state: JobState,
    /// Process groups that run now.
    pub active: u32,
    /// Those that exited with status 0.
    pub succeeded: u32,
    /// Those that did not.
    pub failed: u32,
    /// When it began; `None`: not yet.
    pub started: Option<SystemTime>,
    /// When it ended; `None`: not yet.
    pub ended: Option<SystemTime>,
    /// Of the process that ended last by itself, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// Why the last process failed, or the whole job.
    pub reason: Option<String>,
    /// When anything of this changed.
    pub changed: SystemTime,
}

impl JobReport {
    /// Before anything was done about it.
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

/// How a run ended, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub node: String,
    pub report: JobReport,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobStatus {
    /// Its name.
    pub job: FunctionId,
    /// The node that runs it, or ran it; `None`: there is none for it.
    pub node: Option<String>,
    /// So many processes must succeed.
    pub completions: u32,
    /// How far it is.
    #[serde(flatten)]
    pub report: JobReport,
    /// How long it is to be listed after its end.
    #[serde(skip)]
    pub ttl: Option<Duration>,
    /// The last things that happened to it, oldest first.
    #[serde(skip)]
    pub events: Vec<JobEvent>,
}

impl JobStatus {
    /// Whether it ended so long ago that it is not to be listed any more.
    pub fn is_past(&self, now: SystemTime) -> bool {
        let until = self.report.ended.zip(self.ttl).and_then(|(ended, ttl)| ended.checked_add(ttl));
        until.is_some_and(|until| until <= now)
    }
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobEvent {
    /// When.
    pub at: SystemTime,
    /// Its state until then.
    pub from: JobState,
    /// Its state from then on.
    pub to: JobState,
    /// Why, or where.
    pub reason: String,
}

/// Names the run that a slice asks for: the same for the same command with the same settings and callees, whatever becomes of policies.
/// `None`: it is a function's.
pub fn run_of(slice: &Slice) -> Option<String> {
    let Run::Job(job) = &slice.run else { return None };
    let callees: Vec<&FunctionId> = slice.callees.iter().map(|callee| &callee.id).collect();
    let content = Content::new(&(job, callees)).ok()?;
    Some(content.version.to_string())
}
