//! Reports of nodes.

use super::State;
use super::effect::Effect;
use super::node::ready;
use crate::definitions::PreparedFunction;
use crate::history::{Histories, History};
use crate::job::{JobEvent, Outcome};
use crate::status::Counters;
use leno_model::FunctionId;
use leno_wire::{Instance, JobReport, JobState, LimitDemand, Load, NodeOffer, RevisionCounts};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

impl State {
    /// Applies a node's report of all its instances of `function`.
    pub(crate) fn report(&mut self, name: &str, number: u64, function: FunctionId, instances: Vec<Instance>) {
        if self.nodes.session(name, number).is_none() || !self.nodes.may_report(name, &function) {
            return;
        }
        let Some(node) = self.nodes.all.get_mut(name) else { return };
        node.counters.reports += 1;
        let after = ready(Some(&instances));
        let before = if instances.is_empty() {
            node.instances.remove(&function)
        } else {
            node.instances.insert(function.clone(), instances)
        };
        let endpoints = (ready(before.as_ref()) != after).then(|| Effect::endpoints(&function));
        let is_leaving = self.hosting.scheduler.leaving(&function).any(|leaving| **leaving == *name);
        let idle = is_leaving.then_some(Effect::LeaveIdleNodes(function));
        self.carry_out(endpoints.into_iter().chain(idle));
    }

    /// Applies a node's request counts, which are cumulative.
    pub(crate) fn count(&mut self, name: &str, number: u64, function: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        if let Some(name) = self.connected(name, number)
            && self.nodes.may_report(&name, function)
        {
            self.catalog.rollouts.report(&name, function, counts);
        }
    }

    /// Applies a node's report of its capacity and the images in its cache.
    pub(crate) fn offers(&mut self, name: &str, number: u64, offer: NodeOffer) {
        let Some(name) = self.connected(name, number) else { return };
        if let Some(node) = self.nodes.all.get_mut(&name) {
            node.take_offer(Some(offer));
        }
        self.offer(&name);
        self.carry_out([Effect::PlaceJobs]);
    }

    /// Applies a node's report on the load of its functions. `now` is measured from any fixed
    /// moment.
    pub(crate) fn load(&mut self, name: &str, number: u64, loads: Vec<Load>, now: Duration) {
        let Some(name) = self.connected(name, number) else { return };
        self.advance(now);
        for id in self.scaling.report(&name, loads, &mut self.nodes) {
            let effects = self.scaling.decide(&id, self.now, false, &mut self.hosting.scheduler);
            self.carry_out(effects);
        }
    }

    /// Decides anew for functions that have any load. Call it about twice a second.
    pub(crate) fn scale(&mut self, now: Duration) {
        self.advance(now);
        for id in self.scaling.active() {
            let effects = self.scaling.decide(&id, self.now, true, &mut self.hosting.scheduler);
            self.carry_out(effects);
            self.scaling.rest(&id);
        }
    }

    /// Whether any function has load.
    pub(crate) fn scales(&self) -> bool {
        self.scaling.is_active()
    }

    /// A node requests another term of its shares of rate limits. Returns whether it gets one: the
    /// session is its present one.
    pub(crate) fn renew(&mut self, name: &str, number: u64, now: Duration) -> bool {
        let Some(name) = self.connected(name, number) else { return false };
        self.advance(now);
        self.leasing.renew(name, self.now);
        true
    }

    /// Applies a node's report on the demand for rate limits.
    pub(crate) fn demand(&mut self, name: &str, number: u64, demands: Vec<LimitDemand>) {
        if let Some(name) = self.connected(name, number) {
            self.leasing.demand(&name, demands, &mut self.nodes);
        }
    }

    /// Divides rate limits anew. Call it about twice a second. `now` is measured from the start of
    /// the control plane.
    pub(crate) fn lease(&mut self, now: Duration) {
        self.advance(now);
        let effects = self.leasing.tick(&self.catalog.compiled, &self.hosting, &self.nodes, self.now);
        self.carry_out(effects);
    }

    /// Computes which nodes are behind. Such a node still gets every change, but no further
    /// functions and instances. Call it about twice a second.
    pub(crate) fn watch_acknowledgements(&mut self, now: Duration) {
        let changed = self.nodes.watch_acknowledgements(now);
        changed.iter().for_each(|name| self.offer(name));
        if !changed.is_empty() {
            self.continue_moves();
            self.carry_out([Effect::PlaceJobs]);
        }
    }

    /// Stores the job outcomes of an earlier process. Its other jobs may still be running on a
    /// node.
    pub(crate) fn recall(&mut self, outcomes: BTreeMap<FunctionId, Outcome>) {
        let published = self.catalog.histories().0.keys().cloned();
        self.hosting.jobs.restore(published, outcomes);
        if self.has_definitions() {
            self.hosting.jobs.define_all(&self.catalog.compiled.functions);
        }
    }

    /// Applies a node's report on a job. If the job has ended, returns its outcome instead, which
    /// counts once it is stored ([`State::end_job`]).
    pub(crate) fn job(&mut self, name: &str, number: u64, id: &FunctionId, report: JobReport) -> Option<Outcome> {
        self.nodes.session(name, number)?;
        self.nodes.all.get_mut(name)?.counters.reports += 1;
        self.hosting.jobs.report(name, id, report)
    }

    /// Continues from the revisions and the outcomes of jobs of another process. Nothing is published
    /// yet.
    pub(crate) fn import(&mut self, histories: Histories, outcomes: BTreeMap<FunctionId, Outcome>) {
        self.catalog.set_histories(histories);
        self.recall(outcomes);
    }

    /// The outcomes of all jobs that have ended.
    pub(crate) fn outcomes(&self) -> Vec<(FunctionId, Outcome)> {
        self.hosting.jobs.outcomes()
    }

    /// The state of a job, and its last events; `None`: there is no such job.
    pub(crate) fn job_history(&self, id: &FunctionId) -> Option<(JobState, Vec<JobEvent>)> {
        self.hosting.jobs.history(id)
    }

    /// Begins another run of an ended job. `events` are those of the runs before.
    pub(crate) fn rerun(&mut self, prepared: PreparedFunction, history: History, events: Vec<JobEvent>) {
        let id = prepared.id.clone();
        self.put(prepared, history);
        self.hosting.jobs.record_rerun(&id, SystemTime::now(), events);
    }

    /// Whether the job has not ended and `outcome` is of its current run.
    pub(crate) fn awaits_end(&self, id: &FunctionId, outcome: &Outcome) -> bool {
        self.hosting.jobs.awaits_end(id, outcome)
    }

    /// Ends a job and takes it from its node.
    pub(crate) fn end_job(&mut self, id: &FunctionId, outcome: Outcome) {
        if self.hosting.jobs.end(id, outcome) {
            self.hosting.scheduler.remove_function(id);
            self.carry_out([Effect::Rehost(vec![id.clone()])]);
        }
    }

    /// Counts an answer to no question.
    pub(crate) fn unasked(&mut self, name: &str) {
        if let Some(node) = self.nodes.all.get_mut(name) {
            node.counters.refused += 1;
        }
    }

    pub(crate) fn counters(&self, name: &str) -> Option<Counters> {
        Some(self.nodes.all.get(name)?.counters)
    }
}
