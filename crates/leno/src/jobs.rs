//! Jobs: started on this node when they can call others, reported to the control plane, and listed.

use leno_config::{FunctionId, Slice, slice};
use leno_control::node::Agent;
use leno_control::{JobEvent, JobReport, JobState, JobStatus, run_of};
use leno_function::{JobSpec, Supervisor};
use leno_identity::{SpiffeId, SvidStore};
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// The jobs that this node was given.
pub struct Jobs {
    agent: Agent,
    supervisor: Supervisor,
    svids: Arc<SvidStore>,
    /// Not started yet.
    waiting: BTreeMap<FunctionId, (SpiffeId, JobSpec)>,
    /// When that changed of which the control plane was told last.
    told: HashMap<FunctionId, SystemTime>,
}

impl Jobs {
    pub fn new(agent: Agent, supervisor: Supervisor, svids: Arc<SvidStore>) -> Self {
        Self { agent, supervisor, svids, waiting: BTreeMap::new(), told: HashMap::new() }
    }

    /// Takes on a job, or another run of it.
    pub fn apply(&mut self, slice: &Slice, job: &slice::Job) -> Result<(), String> {
        let run = run_of(slice).ok_or("its run cannot be named")?;
        let identity = slice.identity.parse().map_err(|error| format!("its identity: {error}"))?;
        let spec = JobSpec { id: slice.id.clone(), run, job: job.clone() };
        self.waiting.insert(slice.id.clone(), (identity, spec));
        Ok(())
    }

    /// Lets go of a job, if this is one.
    pub fn remove(&mut self, id: &FunctionId) {
        self.waiting.remove(id);
        self.told.remove(id);
        self.supervisor.remove_job(id);
        self.agent.forget_job(id);
    }

    /// Whether there are jobs that could not be started yet.
    pub fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts those that have a certificate. Nobody waits for a job, but its first call must not fail for want of one.
    pub fn start(&mut self) {
        let ready = |_: &FunctionId, (identity, _): &mut (SpiffeId, JobSpec)| self.svids.current(identity).is_some();
        for (_, (_, spec)) in self.waiting.extract_if(.., ready) {
            self.supervisor.apply_job(spec);
        }
    }

    /// Tells the control plane what has changed.
    pub fn report(&mut self) {
        for status in self.supervisor.jobs() {
            if self.told.insert(status.job.clone(), status.changed) != Some(status.changed) {
                let job = status.job.clone();
                self.agent.report_job(&job, report(status));
            }
        }
    }
}

fn report(status: leno_function::JobStatus) -> JobReport {
    JobReport {
        run: status.run,
        state: match status.state {
            leno_function::JobState::Running => JobState::Running,
            leno_function::JobState::Succeeded => JobState::Succeeded,
            leno_function::JobState::Failed => JobState::Failed,
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

/// The rows of `leno get jobs`.
pub fn rows(jobs: &[JobStatus]) -> Value {
    let row = |JobStatus { job, node, completions, report, .. }: &JobStatus| {
        json!({
            "job": job.to_string(),
            "state": report.state,
            "node": node,
            "completions": format!("{}/{completions}", report.succeeded),
            "active": report.active,
            "failed": report.failed,
            "start": report.started.map(seconds),
            "end": report.ended.map(seconds),
            "exit_code": report.exit_code,
            "reason": report.reason,
        })
    };
    jobs.iter().map(row).collect()
}

/// What happened to jobs, as rows of `leno get events`; `from` and `to` are states.
pub fn events(jobs: &[JobStatus]) -> Vec<Value> {
    let row = |(job, event): (&JobStatus, &JobEvent)| {
        json!({
            "time": seconds(event.at),
            "kind": "job",
            "function": job.job.to_string(),
            "from": event.from,
            "to": event.to,
            "reason": event.reason,
        })
    };
    jobs.iter().flat_map(|job| job.events.iter().map(move |event| (job, event))).map(row).collect()
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Milliseconds are enough for people, and exact in JSON.
    since.as_millis() as f64 / 1e3
}

/// The numbers of all jobs that are listed, for Prometheus.
pub fn encode(jobs: &[JobStatus], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let is = |state: JobState| move |job: &JobStatus| Some(i64::from(job.report.state == state));
    gauges(encoder, "leno_job_pending", "1 for a job that no node runs yet.", jobs, is(JobState::Pending))?;
    gauges(encoder, "leno_job_running", "1 for a job that a node runs.", jobs, is(JobState::Running))?;
    gauges(encoder, "leno_job_complete", "1 for a job that has succeeded.", jobs, is(JobState::Succeeded))?;
    gauges(encoder, "leno_job_failed", "1 for a job that has failed.", jobs, is(JobState::Failed))?;
    let count = |count: u32| Some(i64::from(count));
    let help = "Processes of the job that run.";
    gauges(encoder, "leno_job_processes_active", help, jobs, |job| count(job.report.active))?;
    let help = "Processes of the job that have exited with status 0.";
    gauges(encoder, "leno_job_processes_succeeded", help, jobs, |job| count(job.report.succeeded))?;
    let help = "Processes of the job that have failed.";
    gauges(encoder, "leno_job_processes_failed", help, jobs, |job| count(job.report.failed))?;
    let help = "When the job began, in seconds since 1970.";
    gauges(encoder, "leno_job_start_time_seconds", help, jobs, |job| job.report.started.map(seconds))?;
    let help = "When the job ended, in seconds since 1970.";
    gauges(encoder, "leno_job_end_time_seconds", help, jobs, |job| job.report.ended.map(seconds))
}

fn gauges<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    jobs: &[JobStatus],
    value: impl Fn(&JobStatus) -> Option<V>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for job in jobs {
        if let Some(value) = value(job) {
            family.encode_family(&[("job", job.job.to_string())])?.encode_gauge(&value)?;
        }
    }
    Ok(())
}
