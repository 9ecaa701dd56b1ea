//! Jobs: their nodes and their progress.
//!
//! Each job that has not ended is assigned to one present node whose placement covers it: the one
//! with the fewest jobs, and of those the first by name. Without such a node, the scheduler chooses
//! one. The job stays on its node until it has ended, or until the node was away for longer than
//! the grace period. Then it begins anew on another node. So a job runs at least once, and twice if
//! a node that is cut off continues it.

use super::node::Node;
use super::nodes::Nodes;
use crate::admission::Cordon;
use crate::definitions::{CompiledDefinitions, Function};
use crate::job::{JobDefinition, JobEvent, JobStatus, Outcome};
use crate::scheduler::Scheduler;
use leno_model::FunctionId;
use leno_wire::{JobReport, JobState, Placement};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::SystemTime;

/// Maximum number of stored events of each job.
const MAX_EVENTS: usize = 20;

/// All defined jobs.
#[derive(Default)]
pub(super) struct Jobs {
    defined: BTreeMap<FunctionId, Job>,
    /// Jobs and functions that an earlier process published and this one did not yet, with the
    /// outcomes of jobs. A store that several control planes share has no definitions, so outcomes
    /// are known before the jobs.
    earlier: BTreeMap<FunctionId, Option<Outcome>>,
    /// Jobs that an earlier process published. A node that has not reconnected yet may be running
    /// one of them, also after it was redefined or removed here. Empty when the wait has ended.
    unconfirmed: BTreeSet<FunctionId>,
    /// Nodes that an earlier process knew and that have not reconnected yet, with the placement
    /// that they had then: it decides which jobs they may be running.
    awaited: BTreeMap<Arc<str>, Placement>,
}

struct Job {
    definition: JobDefinition,
    /// The node of the job's current or last run.
    node: Option<Arc<str>>,
    report: JobReport,
    events: VecDeque<JobEvent>,
    /// The node of the previous run, which has its output.
    previous: Option<Arc<str>>,
}

impl Job {
    fn new(definition: JobDefinition, node: Option<Arc<str>>) -> Self {
        let report = JobReport::pending(&definition.run);
        Self { definition, node, report, events: VecDeque::new(), previous: None }
    }

    fn has_ended(&self) -> bool {
        self.report.state.has_ended()
    }

    /// Stores the report of the job's node. State changes and failed processes become events.
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
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Assigns another node. A run that the old node had begun starts anew.
    fn assign(&mut self, id: &FunctionId, node: Option<Arc<str>>) {
        let before = mem::replace(&mut self.node, node);
        if self.report.state == JobState::Running {
            let lost = before.as_deref().unwrap_or_default();
            let reason = format!("node {lost} is away; the job begins anew");
            tracing::warn!(job = %id, "{reason}");
            let (at, from) = (self.report.changed, self.report.state);
            self.record_event(JobEvent { at, from, to: JobState::Pending, reason });
            self.report = JobReport::pending(&self.definition.run);
        }
    }
}

impl Jobs {
    /// The node to which the job is assigned, until it has ended.
    pub(super) fn node_of(&self, id: &FunctionId) -> Option<Arc<str>> {
        self.defined.get(id).filter(|job| !job.has_ended())?.node.clone()
    }

    /// The node of the job's current or last run.
    pub(super) fn last_node_of(&self, id: &FunctionId) -> Option<&Arc<str>> {
        self.defined.get(id)?.node.as_ref()
    }

    /// Stores the job outcomes of an earlier process, until its jobs are defined. Its other jobs
    /// may still be running on a node.
    pub(super) fn restore(
        &mut self,
        published: impl Iterator<Item = FunctionId>,
        mut outcomes: BTreeMap<FunctionId, Outcome>,
    ) {
        let with_outcome = |id| {
            let outcome = outcomes.remove(&id);
            (id, outcome)
        };
        self.earlier = published.map(with_outcome).collect();
        self.unconfirmed = self.earlier.keys().cloned().collect();
    }

    /// Waits for a node that an earlier process knew.
    pub(super) fn await_node(&mut self, name: Arc<str>, placement: Placement) {
        self.awaited.insert(name, placement);
    }

    /// A node has reconnected, or its membership has ended.
    pub(super) fn stop_awaiting_node(&mut self, name: &str) {
        self.awaited.remove(name);
    }

    /// Ends the wait for all nodes.
    pub(super) fn stop_awaiting(&mut self) {
        self.awaited.clear();
        self.unconfirmed.clear();
    }

    /// Replaces the definitions of all jobs.
    pub(super) fn define_all(&mut self, functions: &HashMap<FunctionId, Function>) {
        self.defined.retain(|id, _| functions.get(id).is_some_and(|function| function.job.is_some()));
        for (id, function) in functions {
            self.define(id, Some(function));
        }
        self.earlier.clear();
    }

    /// Replaces the definition of one job, if it is one.
    pub(super) fn define(&mut self, id: &FunctionId, function: Option<&Function>) {
        let earlier = self.earlier.remove(id);
        let Some(definition) = function.and_then(|function| function.job.as_ref()) else {
            self.defined.remove(id);
            return;
        };
        match self.defined.get_mut(id) {
            Some(job) if job.definition.run == definition.run => {}
            before => {
                // While the previous run has not ended, the new run goes to its node, which ends it
                // first.
                let node = before.as_ref().filter(|job| !job.has_ended()).and_then(|job| job.node.clone());
                let mut job = Job::new(definition.clone(), node);
                job.previous = before.and_then(|job| job.node.clone());
                if let Some(Outcome { node, report }) = earlier.flatten()
                    && report.run == definition.run
                {
                    (job.node, job.report) = (Some(node.into()), report);
                }
                self.defined.insert(id.clone(), job);
            }
        }
    }

    /// Records that a job was run again by hand.
    pub(super) fn record_rerun(&mut self, id: &FunctionId, at: SystemTime, events: Vec<JobEvent>) {
        let Some(job) = self.defined.get_mut(id) else { return };
        let from = events.last().map_or(JobState::Pending, |event| event.to);
        job.events.extend(events);
        let reason = format!("attempt {}: run again by hand", job.definition.attempt);
        job.record_event(JobEvent { at, from, to: JobState::Pending, reason });
    }

    /// The last events of a job, oldest first, and whether it has ended; `None`: there is no such
    /// job.
    pub(super) fn history(&self, id: &FunctionId) -> Option<(JobState, Vec<JobEvent>)> {
        let job = self.defined.get(id)?;
        Some((job.report.state, job.events.iter().cloned().collect()))
    }

    /// Assigns a node to each job that needs one. Returns the jobs that have another node.
    pub(super) fn place(
        &mut self,
        compiled: &CompiledDefinitions,
        nodes: &Nodes,
        scheduler: &mut Scheduler,
    ) -> Vec<FunctionId> {
        let mut unplaced: Vec<FunctionId> =
            self.defined.keys().filter(|id| self.is_misplaced(id, nodes)).cloned().collect();
        unplaced.retain(|id| {
            let node = self.choose_node(id, compiled, nodes, scheduler);
            let Some(job) = self.defined.get_mut(id).filter(|job| job.node != node) else { return false };
            job.assign(id, node);
            true
        });
        unplaced
    }

    /// Whether the job has not ended and its node, if any, cannot run it.
    fn is_misplaced(&self, id: &FunctionId, nodes: &Nodes) -> bool {
        let Some(job) = self.defined.get(id).filter(|job| !job.has_ended()) else { return false };
        let node = job.node.as_ref().and_then(|name| nodes.all.get(name));
        !node.is_some_and(|node| node.present && node.may_run(id))
    }

    /// The node of the previous run, if that may run the job again.
    fn previous_node(&self, id: &FunctionId, nodes: &Nodes) -> Option<Arc<str>> {
        let (name, node) = nodes.all.get_key_value(self.defined.get(id)?.previous.as_ref()?)?;
        let may = node.present && !node.behind && node.cordon == Cordon::Open && node.may_run(id);
        may.then(|| name.clone())
    }

    fn choose_node(
        &self,
        id: &FunctionId,
        compiled: &CompiledDefinitions,
        nodes: &Nodes,
        scheduler: &mut Scheduler,
    ) -> Option<Arc<str>> {
        let job = self.defined.get(id)?;
        if job.node.is_none() && self.may_run_unseen(id, nodes) {
            return None;
        }
        let previous = self.previous_node(id, nodes);
        let able = nodes.all.iter().filter(|(_, node)| node.present && node.admission.placement.hosts(id));
        let rank = |name: &Arc<str>| (previous.as_ref() != Some(name), self.count_on(name), name.clone());
        let chosen = able.min_by_key(|(name, _)| rank(name)).map(|(name, _)| name.clone());
        chosen.or_else(|| {
            let demand = compiled.functions.get(id)?.demand.clone();
            if let Some(previous) = previous.filter(|previous| scheduler.has_capacity(previous, &demand)) {
                scheduler.set_function(id, demand.clone(), true);
                scheduler.adopt(id, &previous);
            }
            scheduler.set_function(id, demand, false);
            let chosen = scheduler.nodes_of(id).first().cloned()?;
            scheduler.reserve(id, &chosen, 1);
            Some(chosen)
        })
    }

    /// Whether a node that has not reconnected yet may be running the job.
    fn may_run_unseen(&self, id: &FunctionId, nodes: &Nodes) -> bool {
        let missing = |node: &Node| node.may_run(id) && node.last_session == 0;
        let could_run = |placement: &Placement| placement.hosts(id) || *placement == Placement::Scheduled;
        self.unconfirmed.contains(id) && (self.awaited.values().any(could_run) || nodes.all.values().any(missing))
    }

    fn count_on(&self, name: &str) -> usize {
        self.defined.keys().filter(|id| self.node_of(id).as_deref() == Some(name)).count()
    }

    /// Assigns jobs to a node that comes back and reports to run them, so that no other node gets
    /// them. Returns those jobs.
    pub(super) fn assign_reported(&mut self, name: &Arc<str>, reports: &[(FunctionId, JobReport)]) -> Vec<FunctionId> {
        let mut assigned = Vec::new();
        for (id, report) in reports {
            if let Some(job) = self.defined.get_mut(id)
                && job.node.is_none()
                // A redefined job goes to the node of its previous run, which ends that first.
                && (job.definition.run == report.run || self.unconfirmed.contains(id))
            {
                job.node = Some(name.clone());
                assigned.push(id.clone());
            }
        }
        assigned
    }

    /// Applies a node's report. If the job has ended, returns its outcome instead, which counts
    /// once it is stored ([`Jobs::end`]).
    pub(super) fn report(&mut self, name: &str, id: &FunctionId, report: JobReport) -> Option<Outcome> {
        let job = self.defined.get_mut(id)?;
        let own = job.node.as_deref() == Some(name);
        // A success counts from any node, every other state only from the assigned node.
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
    pub(super) fn awaits_end(&self, id: &FunctionId, outcome: &Outcome) -> bool {
        self.defined.get(id).is_some_and(|job| !job.has_ended() && job.definition.run == outcome.report.run)
    }

    /// Ends a job. Returns whether there is such a job.
    pub(super) fn end(&mut self, id: &FunctionId, Outcome { node, report }: Outcome) -> bool {
        let Some(job) = self.defined.get_mut(id) else { return false };
        tracing::info!(job = %id, node, state = ?report.state, reason = report.reason, "a job has ended");
        job.node = Some(node.into());
        job.apply_report(report);
        true
    }

    /// The outcomes of all jobs that have ended.
    pub(super) fn outcomes(&self) -> Vec<(FunctionId, Outcome)> {
        let outcome = |(id, job): (&FunctionId, &Job)| {
            let node = job.node.as_deref().unwrap_or_default().to_owned();
            job.has_ended().then(|| (id.clone(), Outcome { node, report: job.report.clone() }))
        };
        self.defined.iter().filter_map(outcome).collect()
    }

    pub(super) fn statuses(&self) -> Vec<JobStatus> {
        let status = |(id, job): (&FunctionId, &Job)| JobStatus {
            job: id.clone(),
            node: job.node.as_deref().map(str::to_owned),
            completions: job.definition.completions,
            attempt: job.definition.attempt,
            report: job.report.clone(),
            ttl: job.definition.ttl,
            events: job.events.iter().cloned().collect(),
        };
        self.defined.iter().map(status).collect()
    }
}
