//! Promotion, pause and undo, as users ask for them.

use super::{History, RevisionRecord};
use leno_model::revision::{self, Plan, Target};
use leno_model::{FunctionConfig, FunctionId};
use std::collections::BTreeSet;

/// A change that a user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutAction {
    /// All requests go to this revision. `None`: rollouts under way end with their new revisions.
    Promote(Option<String>),
    /// Rollouts stay at their steps.
    Pause,
    /// Rollouts advance again.
    Resume,
    /// The last change of shares or of the content is taken back.
    Undo,
}

impl RolloutAction {
    /// In words, for events.
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Self::Promote(_) => "promoted",
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Undo => "undone",
        }
    }
}

/// The effect of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum RolloutChange {
    /// The state of rollouts, which the control plane keeps.
    Rollouts(Vec<RolloutStep>),
    /// `spec.traffic` of the document.
    Traffic(Vec<Target>),
}

/// A changed share of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutStep {
    /// The revision, such as `shop-00004 (stable)`.
    pub revision: String,
    /// Per cent of its name's requests, or of the function's.
    pub from: u8,
    /// The same, afterwards.
    pub to: u8,
}

/// Why an action changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// There is no such function.
    #[error("there is no function {0}")]
    NoFunction(FunctionId),
    /// The function has no such revision.
    #[error("{function} has no revision `{revision}`; it has {known}")]
    Unknown {
        /// The function.
        function: FunctionId,
        /// The revision that was named.
        revision: String,
        /// Those that it has.
        known: String,
    },
    /// No rollout is under way.
    #[error("no rollout of {function} is under way; name the revision that is to get all requests: {known}")]
    NoRollout {
        /// The function.
        function: FunctionId,
        /// Its revisions.
        known: String,
    },
    /// The document has no `rollout`.
    #[error("the document of {0} has no `rollout`: new revisions take over at once, and there is nothing to pause")]
    NoSteps(FunctionId),
    /// It is already so.
    #[error("{0}")]
    Already(String),
    /// There is nothing to take back.
    #[error("there is nothing to undo: {0}")]
    NothingToUndo(String),
}

impl History {
    /// Carries out an action; `by` is who asked for it.
    pub(crate) fn steer(
        &mut self,
        config: &FunctionConfig,
        action: &RolloutAction,
        by: &str,
    ) -> Result<RolloutChange, SteerError> {
        let (id, plan) = (&config.id, &config.revisions.plan);
        match action {
            RolloutAction::Promote(Some(revision)) => self.promote_to(config, revision),
            RolloutAction::Promote(None) => {
                let steps = self.end_rollouts(config, |history, number| history.finish(number));
                if steps.is_empty() {
                    return Err(SteerError::NoRollout { function: id.clone(), known: self.known(id, plan) });
                }
                self.paused = false;
                Ok(RolloutChange::Rollouts(steps))
            }
            RolloutAction::Pause if plan.rollout.is_none() => Err(SteerError::NoSteps(id.clone())),
            RolloutAction::Pause | RolloutAction::Resume => {
                let pauses = *action == RolloutAction::Pause;
                if self.paused == pauses {
                    let already = if pauses { "paused already" } else { "not paused" };
                    return Err(SteerError::Already(format!("rollouts of {id} are {already}")));
                }
                self.paused = pauses;
                let stay = |(number, from)| RolloutStep { revision: self.label(config, number), from, to: from };
                Ok(RolloutChange::Rollouts(self.shares_of_candidates(plan).into_iter().map(stay).collect()))
            }
            RolloutAction::Undo => self.undo(config, by),
        }
    }

    /// All requests for one revision: with a rollout of unnamed revisions it is state, else the
    /// document says it.
    fn promote_to(&mut self, config: &FunctionConfig, revision: &str) -> Result<RolloutChange, SteerError> {
        let (id, plan) = (&config.id, &config.revisions.plan);
        let unknown = || {
            let (function, revision, known) = (id.clone(), revision.to_owned(), self.known(id, plan));
            SteerError::Unknown { function, revision, known }
        };
        let all = if plan.is_named() {
            let named = self.named.iter().find(|named| named.name == revision).ok_or_else(unknown)?;
            Target { name: Some(named.name.clone()), percent: 100, ..Target::default() }
        } else {
            let number = if revision == "latest" { Some(self.latest()) } else { revision::number(id, revision) };
            let number = number.filter(|number| self.record(*number).is_some()).ok_or_else(unknown)?;
            if plan.rollout.is_some() {
                return self.make_stable(config, number);
            }
            let number = if number == self.latest() { 0 } else { number };
            Target { revision: number, percent: 100, ..Target::default() }
        };
        let is_it = |target: &Target| (target.revision, &target.name) == (all.revision, &all.name);
        let first = plan.traffic.iter().position(is_it);
        let kept = plan.traffic.iter().enumerate().filter_map(|(index, target)| {
            let kept = Target { percent: if Some(index) == first { 100 } else { 0 }, ..target.clone() };
            super::decides(&kept).then_some(kept)
        });
        let mut traffic: Vec<Target> = kept.collect();
        // Without `traffic`, the latest gets everything.
        let is_default = all.name.is_none() && all.revision == 0 && traffic.iter().all(|target| *target == all);
        if is_default {
            traffic.clear();
        } else if first.is_none() {
            traffic.push(all);
        }
        if traffic == plan.traffic {
            return Err(SteerError::Already(format!("`{revision}` has all requests of {id} already")));
        }
        Ok(RolloutChange::Traffic(traffic))
    }

    fn make_stable(&mut self, config: &FunctionConfig, number: u32) -> Result<RolloutChange, SteerError> {
        let from = match self.candidate {
            Some(candidate) if candidate.number == number => self.step_of(&config.revisions.plan, candidate.step),
            _ if self.stable == number && self.candidate.is_none() => {
                let label = self.label(config, number);
                return Err(SteerError::Already(format!("`{label}` has all requests of {} already", config.id)));
            }
            _ => 0,
        };
        (self.stable, self.candidate, self.paused) = (number, None, false);
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.number == number) {
            kept.failed = None;
        }
        Ok(RolloutChange::Rollouts(vec![RolloutStep { revision: self.label(config, number), from, to: 100 }]))
    }

    /// Takes back what happened last: a rollout under way, else a change of `traffic`, else a
    /// completed rollout.
    fn undo(&mut self, config: &FunctionConfig, by: &str) -> Result<RolloutChange, SteerError> {
        let (id, plan) = (&config.id, &config.revisions.plan);
        let nothing = |why: String| Err(SteerError::NothingToUndo(why));
        let reason = format!("undone by {by}");
        let steps = self.end_rollouts(config, |history, number| history.roll_back(number, reason.clone()));
        if !steps.is_empty() {
            self.paused = false;
            let back = steps.into_iter().map(|step| RolloutStep { to: 0, ..step }).collect();
            return Ok(RolloutChange::Rollouts(back));
        }
        let changed = self.kept.iter().map(|kept| kept.created_ms).max().unwrap_or_default();
        if let Some(record) = self.traffic.as_ref().filter(|record| record.since_ms >= changed)
            && let Some(before) = record.before.as_ref().filter(|before| self.is_possible(plan, before))
        {
            return Ok(RolloutChange::Traffic(before.clone()));
        }
        let newest = self.kept.iter().filter(|kept| kept.created_ms == changed).map(|kept| kept.number);
        let newest: BTreeSet<u32> = newest.collect();
        if let Some(failed) = self.kept.iter().rev().find(|kept| newest.contains(&kept.number) && kept.failed.is_some())
        {
            let (label, why) = (self.label(config, failed.number), failed.failed.as_deref().unwrap_or_default());
            return nothing(format!(
                "{label} was rolled back already ({why}), and the former content has its requests"
            ));
        }
        let former = |number: u32| self.former(number).map(|former| (number, former));
        let pairs: Vec<(u32, u32)> = newest.iter().filter_map(|number| former(*number)).collect();
        match (&plan.rollout, &pairs[..]) {
            (_, []) => nothing(format!("{id} has no former revision, and its shares did not change")),
            (Some(_), pairs) => Ok(RolloutChange::Rollouts(self.return_to(config, pairs, &reason))),
            (None, [(_, former), ..]) if !plan.is_named() && plan.traffic.is_empty() => {
                Ok(RolloutChange::Traffic(vec![Target { revision: *former, percent: 100, ..Target::default() }]))
            }
            (None, [(number, former), ..]) => nothing(format!(
                "{} replaced {} at once, because the document has no `rollout`; give it the former content again",
                self.label(config, *number),
                self.label(config, *former)
            )),
        }
    }

    /// Returns from each first revision to the second one.
    fn return_to(&mut self, config: &FunctionConfig, pairs: &[(u32, u32)], reason: &str) -> Vec<RolloutStep> {
        let mut steps = Vec::new();
        for (number, former) in pairs {
            let named = self.named.iter_mut().find(|named| named.stable == *number);
            match named {
                Some(named) => named.stable = *former,
                None if self.stable == *number => self.stable = *former,
                None => continue,
            }
            if let Some(kept) = self.kept.iter_mut().find(|kept| kept.number == *number) {
                kept.failed = Some(reason.to_owned());
            }
            steps.push(RolloutStep { revision: self.label(config, *number), from: 100, to: 0 });
        }
        self.paused = false;
        steps
    }

    /// The revision before this one with its name that was not rolled back.
    fn former(&self, number: u32) -> Option<u32> {
        let name = &self.record(number)?.name;
        let before = self.kept.iter().rev().filter(|kept| kept.number < number && kept.failed.is_none());
        before.filter(|kept| kept.name == *name).map(|kept| kept.number).next()
    }

    /// Whether the document could have this `traffic`.
    fn is_possible(&self, plan: &Plan, traffic: &[Target]) -> bool {
        let is_known = |target: &Target| match &target.name {
            Some(name) => self.named.iter().any(|named| named.name == *name),
            None => !plan.is_named() && (target.revision == 0 || self.record(target.revision).is_some()),
        };
        traffic.iter().all(is_known) && !(traffic.is_empty() && plan.is_named())
    }

    /// Ends all rollouts under way. Returns the step of each, up to 100 per cent.
    fn end_rollouts(&mut self, config: &FunctionConfig, mut end: impl FnMut(&mut Self, u32)) -> Vec<RolloutStep> {
        let shares = self.shares_of_candidates(&config.revisions.plan);
        let step = |(number, from)| {
            end(self, number);
            RolloutStep { revision: self.label(config, number), from, to: 100 }
        };
        shares.into_iter().map(step).collect()
    }

    fn shares_of_candidates(&self, plan: &Plan) -> Vec<(u32, u8)> {
        self.candidates().map(|(_, candidate)| (candidate.number, self.step_of(plan, candidate.step))).collect()
    }

    fn step_of(&self, plan: &Plan, step: usize) -> u8 {
        plan.rollout.as_ref().and_then(|rollout| rollout.steps.get(step).copied()).unwrap_or(100)
    }

    fn record(&self, number: u32) -> Option<&RevisionRecord> {
        self.kept.iter().find(|kept| kept.number == number)
    }

    /// The names by which a user can promote revisions.
    fn known(&self, id: &FunctionId, plan: &Plan) -> String {
        let names: Vec<String> = match plan.is_named() {
            true => self.named.iter().map(|named| named.name.clone()).collect(),
            false => self.kept.iter().map(|kept| revision::name(id, kept.number)).collect(),
        };
        names.join(", ")
    }
}
