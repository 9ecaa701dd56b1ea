//! Views of jobs: listings and metrics.

use crate::scaling::seconds;
use leno_control::{JobEvent, JobStatus};
use leno_telemetry::exposition::{Exposition, Family, Number};
use leno_telemetry::families;
use leno_wire::JobState;
use serde_json::{Value, json};

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
pub(crate) fn collect(jobs: &[JobStatus], exposition: &mut Exposition) {
    let mut gauge = |family: &'static Family<1>, value: &dyn Fn(&JobStatus) -> Option<Number>| {
        let known = jobs.iter().filter_map(|job| Some(([job.job.to_string()], value(job)?)));
        exposition.family(family).samples(known);
    };
    for (family, state) in [
        (&families::JOB_PENDING, JobState::Pending),
        (&families::JOB_RUNNING, JobState::Running),
        (&families::JOB_COMPLETE, JobState::Succeeded),
        (&families::JOB_FAILED, JobState::Failed),
    ] {
        gauge(family, &|job| Some((job.report.state == state).into()));
    }
    gauge(&families::JOB_ACTIVE, &|job| Some(job.report.active.into()));
    gauge(&families::JOB_SUCCEEDED, &|job| Some(job.report.succeeded.into()));
    gauge(&families::JOB_PROCESSES_FAILED, &|job| Some(job.report.failed.into()));
    gauge(&families::JOB_START, &|job| Some(seconds(job.report.started?).into()));
    gauge(&families::JOB_END, &|job| Some(seconds(job.report.ended?).into()));
}
