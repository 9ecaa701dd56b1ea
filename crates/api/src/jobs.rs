//! Views of jobs: listings and metrics.

use crate::scaling::seconds;
use leno_control::{JobEvent, JobStatus};
use leno_wire::JobState;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;
use serde_json::{Value, json};
use std::fmt;

/// The rows of `leno get jobs`.
pub(crate) fn rows(jobs: &[JobStatus]) -> Value {
    let row = |JobStatus { job, node, completions, attempt, report, .. }: &JobStatus| {
        json!({
            "job": job.to_string(),
            "state": report.state,
            "node": node,
            "attempt": attempt,
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

/// The API's status of a job, with times in seconds since 1970.
pub(crate) fn status(job: &JobStatus) -> Value {
    let mut status = json!(job);
    status["started"] = json!(job.report.started.map(seconds));
    status["ended"] = json!(job.report.ended.map(seconds));
    status["changed"] = json!(seconds(job.report.changed));
    status
}

/// Events of jobs, as rows of `leno get events`; `from` and `to` are states.
pub(crate) fn events(jobs: &[JobStatus]) -> Vec<Value> {
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

/// Metrics of all listed jobs.
pub(crate) fn encode(jobs: &[JobStatus], encoder: &mut DescriptorEncoder) -> fmt::Result {
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
