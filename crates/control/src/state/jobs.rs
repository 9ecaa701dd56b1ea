//! Assigns jobs to nodes and follows their progress.
//!
//! Each job that has not ended is assigned to one present node whose placement covers it: the one with the fewest jobs, and of those the first by
//! name. If there is none, the scheduler chooses one. The job stays there until it has ended, or until the node was away for longer than the grace period. Then it begins anew on another node. So
//! a job runs at least once, and twice where a node that is cut off runs it on.

use super::{Node, State};
use crate::job::{JobDefinition, JobEvent, JobStatus, Outcome};
use leno_config::FunctionId;
use leno_wire::{JobReport, JobState, Placement};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Events that are kept of each job.
const EVENTS: usize = 20;

/// All defined jobs.
#[derive(Default)]
pub(super) struct Jobs(BTreeMap<FunctionId, Job>);

struct Job {
    definition: JobDefinition,
    /// The node to which the job is assigned, or which ran it.
    node: Option<Arc<str>>,
    report: JobReport,
    events: VecDeque<JobEvent>,
    /// The job is older than this process, so a node that has not reconnected yet may be running it.
    awaited: bool,
}

impl Jobs {
    /// The node to which the job is assigned, until it has ended.
    pub(super) fn node_of(&self, id: &FunctionId) -> Option<Arc<str>> {
        self.0.get(id).filter(|job| !job.has_ended())?.node.clone()
    }

    fn define(&mut self, id: &FunctionId, definition: &JobDefinition) {
        match self.0.get_mut(id) {
            Some(job) if job.definition.run == definition.run => {}
            // The new run goes to the node of the previous run, which ends that first.
            before => {
                let node = before.and_then(|job| job.node.clone());
                self.0.insert(id.clone(), Job::new(definition.clone(), node));
            }
        }
    }
}

impl Job {
    fn new(definition: JobDefinition, node: Option<Arc<str>>) -> Self {
        let report = JobReport::pending(&definition.run);
        Self { definition, node, report, events: VecDeque::new(), awaited: false }
    }

    fn has_ended(&self) -> bool {
        self.report.state.has_ended()
    }

    /// Takes in the report of the job's node. State changes and failed processes become events.
    fn apply_report(&mut self, report: JobReport) {
        let retried = report.failed > self.report.failed;
        if report.state != self.report.state || retried {
            let reason = match (&report.reason, &self.node) {
                (Some(reason), _) => reason.clone(),
                (None, Some(node)) => format!("on node {node}"),
                (None, None) => String::new(),
            };
            self.record_event(JobEvent { at: report.changed, from: self.report.state, to: report.state, reason });
        }
        self.report = report;
    }

    fn record_event(&mut self, event: JobEvent) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

impl State {
    /// Takes in the job outcomes that an earlier process stored. Its other jobs may still be running on a node.
    pub(crate) fn recall(&mut self, outcomes: BTreeMap<FunctionId, Outcome>) {
        self.follow_jobs();
        for job in self.jobs.0.values_mut() {
            job.awaited = true;
        }
        for (id, Outcome { node, report }) in outcomes {
            if let Some(job) = self.jobs.0.get_mut(&id).filter(|job| job.definition.run == report.run) {
                job.node = Some(node.into());
                job.report = report;
            }
        }
    }

    pub(super) fn stop_awaiting_jobs(&mut self) {
        for job in self.jobs.0.values_mut() {
            job.awaited = false;
        }
        self.place_jobs();
    }

    /// Takes in which jobs are defined now.
    pub(super) fn follow_jobs(&mut self) {
        let functions = &self.compiled.functions;
        self.jobs.0.retain(|id, _| functions.get(id).is_some_and(|function| function.job.is_some()));
        for (id, function) in functions {
            if let Some(definition) = &function.job {
                self.jobs.define(id, definition);
            }
        }
    }

    /// Like [`State::follow_jobs`], for a single name.
    pub(super) fn follow_job(&mut self, id: &FunctionId) {
        match self.compiled.functions.get(id).and_then(|function| function.job.as_ref()) {
            Some(definition) => self.jobs.define(id, definition),
            None => drop(self.jobs.0.remove(id)),
        }
    }

    /// Assigns a node to each job that needs one.
    pub(super) fn place_jobs(&mut self) {
        let unplaced: Vec<FunctionId> = self.jobs.0.keys().filter(|id| self.is_misplaced(id)).cloned().collect();
        for id in unplaced {
            let node = self.node_for(&id);
            let Some(job) = self.jobs.0.get_mut(&id) else { continue };
            if node == job.node {
                continue;
            }
            let before = std::mem::replace(&mut job.node, node.clone());
            if job.report.state == JobState::Running {
                let lost = before.as_deref().unwrap_or_default();
                let reason = format!("node {lost} is away; the job begins anew");
                tracing::warn!(job = %id, "{reason}");
                let (at, from) = (job.report.changed, job.report.state);
                job.record_event(JobEvent { at, from, to: JobState::Pending, reason });
                job.report = JobReport::pending(&job.definition.run);
            }
            self.rehost(&[id]);
        }
    }

    /// Whether the job has not ended and its node, if any, cannot run it.
    fn is_misplaced(&self, id: &FunctionId) -> bool {
        let Some(job) = self.jobs.0.get(id).filter(|job| !job.has_ended()) else { return false };
        let node = job.node.as_ref().and_then(|name| self.nodes.get(name));
        !node.is_some_and(|node| node.present && may_run(node, id))
    }

    fn node_for(&mut self, id: &FunctionId) -> Option<Arc<str>> {
        let job = self.jobs.0.get(id)?;
        let missing = |node: &Node| may_run(node, id) && node.last_session == 0;
        if job.awaited && self.nodes.values().any(missing) {
            return None;
        }
        let able = self.nodes.iter().filter(|(_, node)| node.present && node.admission.placement.hosts(id));
        let chosen = able.min_by_key(|(name, _)| (self.jobs_on(name), (*name).clone())).map(|(name, _)| name.clone());
        chosen.or_else(|| {
            let demand = self.compiled.functions.get(id)?.demand.clone();
            self.scheduler.set_function(id, demand, false);
            let chosen = self.scheduler.nodes_of(id).first().cloned()?;
            self.scheduler.reserve(id, &chosen, 1);
            Some(chosen)
        })
    }

    fn jobs_on(&self, name: &str) -> usize {
        self.jobs.0.keys().filter(|id| self.jobs.node_of(id).as_deref() == Some(name)).count()
    }

    /// Assigns jobs to a node that comes back and reports to run them, so that no other node gets them.
    pub(super) fn assign_reported_jobs(&mut self, name: &Arc<str>, reports: &[(FunctionId, JobReport)]) {
        for (id, report) in reports {
            if let Some(job) = self.jobs.0.get_mut(id)
                && job.node.is_none()
                && job.definition.run == report.run
            {
                job.node = Some(name.clone());
                self.rehost(std::slice::from_ref(id));
            }
        }
    }

    /// Takes in a node's report on a job. If the job has ended, its outcome is returned instead: it counts once it is stored ([`State::end_job`]).
    pub(crate) fn job(&mut self, name: &str, number: u64, id: &FunctionId, report: JobReport) -> Option<Outcome> {
        self.session(name, number)?;
        self.nodes.get_mut(name)?.counters.reports += 1;
        let job = self.jobs.0.get_mut(id)?;
        let own = job.node.as_deref() == Some(name);
        // A success counts from any node. Everything else counts only from the assigned node.
        let counts = own || report.state == JobState::Succeeded;
        if job.has_ended() || job.definition.run != report.run || !counts {
            return None;
        }
        if report.state.has_ended() {
            return Some(Outcome { node: name.to_owned(), report });
        }
        job.apply_report(report);
        None
    }

    /// Whether the job has not ended and `outcome` is of its current run.
    pub(crate) fn awaits_end(&self, id: &FunctionId, outcome: &Outcome) -> bool {
        self.jobs.0.get(id).is_some_and(|job| !job.has_ended() && job.definition.run == outcome.report.run)
    }

    /// Ends a job and takes it from its node.
    pub(crate) fn end_job(&mut self, id: &FunctionId, Outcome { node, report }: Outcome) {
        let Some(job) = self.jobs.0.get_mut(id) else { return };
        tracing::info!(job = %id, node, state = ?report.state, reason = report.reason, "a job has ended");
        job.node = Some(node.into());
        job.apply_report(report);
        self.scheduler.remove_function(id);
        self.rehost(std::slice::from_ref(id));
    }

    pub(super) fn job_statuses(&self) -> Vec<JobStatus> {
        let status = |(id, job): (&FunctionId, &Job)| JobStatus {
            job: id.clone(),
            node: job.node.as_deref().map(str::to_owned),
            completions: job.definition.completions,
            report: job.report.clone(),
            ttl: job.definition.ttl,
            events: job.events.iter().cloned().collect(),
        };
        self.jobs.0.iter().map(status).collect()
    }
}

/// Whether the node may be chosen for the job, or keeps it.
fn may_run(node: &Node, id: &FunctionId) -> bool {
    node.admission.placement.hosts(id) || node.admission.placement == Placement::Scheduled
}
