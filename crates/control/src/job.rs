//! Jobs in the control plane. A job runs on one node, which reports its progress. The control plane
//! stores its outcome.

use leno_model::FunctionId;
use leno_wire::{JobReport, JobState};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The part of a job's definition that the control plane uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobDefinition {
    pub run: String,
    pub completions: u32,
    pub ttl: Option<Duration>,
    pub attempt: u32,
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
    /// The number of the run, from 1. It grows when the job is run again by hand.
    pub attempt: u32,
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
