//! Jobs, as their nodes report them.

use crate::resource::Content;
use leno_model::Run;
use leno_model::{FunctionConfig, FunctionId};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Lifecycle state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// No node has reported that it runs the job.
    Pending,
    /// A node runs the job and retries failed processes.
    Running,
    /// Enough processes have exited with status 0.
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
    /// Exit status of the process that last ended by itself; `None` if a signal ended it, or if
    /// none has ended.
    pub exit_code: Option<i32>,
    /// Why the last process failed, or the whole job.
    pub reason: Option<String>,
    /// When the report last changed.
    pub changed: SystemTime,
}

impl JobReport {
    /// The report before a node has begun the job.
    pub fn pending(run: &str) -> Self {
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

/// Names the run of a job. Equal commands, settings and callees give the same name, whatever the
/// policies are. `None`: the function configuration is a function's, or cannot be encoded.
pub fn run_of(config: &FunctionConfig) -> Option<String> {
    let Run::Job(job) = &config.run else { return None };
    let callees: Vec<&FunctionId> = config.callees.iter().map(|callee| &callee.id).collect();
    let content = Content::new(&(job, callees)).ok()?;
    Some(content.version.to_string())
}
