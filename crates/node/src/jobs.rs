//! Starts jobs on this node once they can call other functions, and reports them to the control
//! plane.

use crate::images::{Images, Namer};
use leno_agent::Agent;
use leno_identity::{SpiffeId, SvidStore};
use leno_model::{FunctionConfig, FunctionId};
use leno_proxy::Requester;
use leno_supervisor::{JobSpec, Supervisor};
use leno_wire::{JobReport, JobState, run_of};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

/// Why a job cannot run on this node.
#[derive(Debug, thiserror::Error)]
#[error("its run cannot be named")]
pub(crate) struct JobError;

/// The jobs that are assigned to this node.
pub(crate) struct Jobs {
    agent: Agent,
    supervisor: Supervisor,
    svids: Arc<SvidStore>,
    images: Arc<Images>,
    /// Jobs that were not started yet.
    waiting: BTreeMap<FunctionId, (SpiffeId, JobSpec)>,
    /// When each job changed last, as reported to the control plane.
    last_reported: HashMap<FunctionId, SystemTime>,
}

impl Jobs {
    pub(crate) fn new(agent: Agent, supervisor: Supervisor, svids: Arc<SvidStore>, images: Arc<Images>) -> Self {
        Self { agent, supervisor, svids, images, waiting: BTreeMap::new(), last_reported: HashMap::new() }
    }

    /// Adds a job, or another run of it.
    pub(crate) fn apply(&mut self, config: &FunctionConfig, job: &leno_model::Job) -> Result<(), JobError> {
        let run = run_of(config).ok_or(JobError)?;
        self.supervisor.bound(&config.id.namespace, &config.bounds);
        let files = config.bounds.file_access();
        let namer = Namer { files: files.clone(), requester: Requester::of(config) };
        let container = job.process.container.as_ref().map(|container| self.images.container(container, namer));
        let host_access = config.bounds.host_access();
        let spec = JobSpec { id: config.id.clone(), run, job: job.clone(), container, files, host_access };
        self.waiting.insert(config.id.clone(), (config.identity.clone(), spec));
        Ok(())
    }

    /// Removes a job. Does nothing for a function.
    pub(crate) fn remove(&mut self, id: &FunctionId) {
        self.waiting.remove(id);
        self.last_reported.remove(id);
        self.supervisor.remove_job(id);
        self.agent.forget_job(id);
    }

    /// Whether some jobs were not started yet.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts the jobs that have a certificate. A job's start may be delayed, but its first call
    /// must not fail for lack of a certificate.
    pub(crate) fn start(&mut self) {
        let ready = |_: &FunctionId, (identity, _): &mut (SpiffeId, JobSpec)| self.svids.current(identity).is_some();
        for (_, (_, spec)) in self.waiting.extract_if(.., ready) {
            self.supervisor.apply_job(spec);
        }
    }

    /// Reports changed jobs to the control plane.
    pub(crate) fn report(&mut self) {
        for status in self.supervisor.jobs() {
            if self.last_reported.insert(status.job.clone(), status.changed) != Some(status.changed) {
                let job = status.job.clone();
                self.agent.report_job(&job, report(status));
            }
        }
    }
}

fn report(status: leno_supervisor::JobStatus) -> JobReport {
    JobReport {
        run: status.run,
        state: match status.state {
            leno_supervisor::JobState::Running => JobState::Running,
            leno_supervisor::JobState::Succeeded => JobState::Succeeded,
            leno_supervisor::JobState::Failed => JobState::Failed,
        },
        active: status.active,
        succeeded: status.succeeded,
        failed: status.failed,
        started: Some(status.started),
        ended: status.ended,
        exit_code: status.exit_code,
        reason: status.reason,
        changed: status.changed,
    }
}
