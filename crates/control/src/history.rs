//! The revisions of each function. A changed template makes a new, numbered revision. Old revisions
//! are kept or collected, and traffic is divided between revisions.

mod named;
mod steering;

pub(crate) use named::NamedRevision;
pub use steering::{RolloutAction, RolloutChange, RolloutStep, SteerError};

use crate::error::DefinitionsError;
use crate::status::RevisionStatus;
use leno_model::revision::{self, Plan, Revision, Revisions, Rollout, Split, Target, Template};
use leno_model::{Container, Run, Wasm};
use leno_model::{FunctionConfig, FunctionId, ModuleHash};
use leno_wire::encoding::{EncodingError, from_bytes, to_bytes};
use leno_wire::run_of;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum size of a function's kept revisions, as a multiple of its latest one, with a minimum.
/// Without it, a namespace could make the control plane keep a thousand times its documents.
const KEPT_LATEST: usize = 16;
const MIN_KEPT_BYTES: usize = 256 << 10;

/// Maximum number of a first revision. A document that names a larger one is refused.
const MAX_FIRST: u32 = 1_000_000_000;

/// The status of a revision of an earlier history.
pub(crate) const LOST: &str = "it is of an earlier start, and not kept: the latest has its share";

/// Maximum number of steps of a plan.
const MAX_STEP: usize = 1 << 16;

/// The histories of all functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histories(pub BTreeMap<FunctionId, History>);

/// The revisions of one function. Times are milliseconds since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct History {
    /// In ascending order; the last one is the latest revision. Numbers are never reused.
    pub kept: Vec<RevisionRecord>,
    /// The revision that gets all traffic that neither the plan nor the candidate gets; 0: there is
    /// none yet.
    pub stable: u32,
    /// The revision that is being rolled out.
    pub candidate: Option<Candidate>,
    /// The function, so that an entry under a wrong key is detected; `None`: an earlier release
    /// wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// The first revision, where it is not 1: a history that began with a document whose `traffic`
    /// names revisions of an earlier history. Those below it have the share of the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u32>,
    /// How many times the latest revision, a job, was run again by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reruns: Option<u32>,
    /// The revisions that the document declares by name. With these, there is no other stable
    /// revision and no other candidate.
    pub named: Vec<NamedRevision>,
    /// Rollouts stay at their steps. They are rolled back nevertheless.
    pub paused: bool,
    /// The document's `traffic` and the one before it; `None`: it never had one.
    pub traffic: Option<TrafficRecord>,
}

/// The `traffic` of a document, and the one before its last change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrafficRecord {
    pub now: Vec<Target>,
    /// `None`: the function began with `now`.
    pub before: Option<Vec<Target>>,
    /// When it changed, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// One revision and its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RevisionRecord {
    pub number: u32,
    /// Encoded: revisions with equal bytes are equal.
    template: Vec<u8>,
    pub created_ms: u64,
    /// Why it was rolled back; `None`: it was not.
    pub failed: Option<String>,
    /// The name that the document declares, or declared.
    pub name: Option<String>,
}

/// A revision that is being rolled out, to become the stable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub number: u32,
    /// Index into the plan's steps.
    pub step: usize,
    /// When the step began, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

impl Candidate {
    /// The same candidate of a plan that may have fewer steps than before. A candidate beyond the
    /// last step continues there.
    fn within(self, rollout: &Rollout) -> Self {
        Self { step: self.step.min(rollout.steps.len().saturating_sub(1)), ..self }
    }
}

impl Histories {
    /// The histories after a publication of exactly these functions.
    pub(crate) fn record_publication(
        &self,
        configs: &BTreeMap<FunctionId, FunctionConfig>,
        now_ms: u64,
    ) -> Result<Self, DefinitionsError> {
        let each = configs.iter().map(|(id, config)| Ok((id.clone(), self.record_one(config, now_ms)?)));
        each.collect::<Result<_, _>>().map(Self)
    }

    /// The history of one function after its publication.
    pub(crate) fn record_one(&self, config: &FunctionConfig, now_ms: u64) -> Result<History, DefinitionsError> {
        let mut history = self.0.get(&config.id).cloned().unwrap_or_default();
        history.record_publication(config, now_ms)?;
        Ok(history)
    }

    /// The modules of all kept revisions, without those that nodes fetch.
    pub(crate) fn modules(&self) -> Result<BTreeSet<ModuleHash>, DefinitionsError> {
        let mut modules = BTreeSet::new();
        for (id, history) in &self.0 {
            for kept in &history.kept {
                if let Run::Wasm(Wasm { module, url: None, .. }) = kept.template(id)?.run {
                    modules.insert(module);
                }
            }
        }
        Ok(modules)
    }

    /// The configuration of a function in the form that nodes get.
    pub(crate) fn config_for_delivery(&self, config: &FunctionConfig) -> Result<FunctionConfig, DefinitionsError> {
        match self.0.get(&config.id) {
            Some(history) => history.config_for_delivery(config),
            None => Ok(config.clone()),
        }
    }
}

impl History {
    /// Two revisions with the same template.
    #[cfg(test)]
    pub(crate) fn of_template(template: &Template) -> Self {
        let template = to_bytes(template).unwrap();
        let kept = |number| RevisionRecord {
            number,
            template: template.clone(),
            created_ms: 1_900_000_000_000,
            failed: None,
            name: None,
        };
        Self { kept: vec![kept(1), kept(2)], ..Self::default() }
    }

    /// Checks that a stored history belongs to this function.
    pub(crate) fn check(&self, id: &FunctionId) -> Result<(), BadHistory> {
        if let Some(other) = self.function.as_ref().filter(|other| *other != id) {
            return Err(BadHistory::OtherFunction(other.clone()));
        }
        let numbers: Vec<u32> = self.kept.iter().map(|kept| kept.number).collect();
        let is_kept = |number: u32| numbers.contains(&number);
        if numbers.first() == Some(&0) || numbers.last() == Some(&u32::MAX) || !numbers.is_sorted_by(|a, b| a < b) {
            return Err(BadHistory::Order);
        }
        if self.stable != 0 && !is_kept(self.stable) {
            return Err(BadHistory::Stable(self.stable));
        }
        if let Some(named) = self.named.iter().find(|named| !is_kept(named.stable)) {
            return Err(BadHistory::Stable(named.stable));
        }
        let bad = |candidate: &Candidate| !is_kept(candidate.number) || candidate.step > MAX_STEP;
        if let Some((_, candidate)) = self.candidates().find(|(_, candidate)| bad(candidate)) {
            return Err(BadHistory::Candidate(candidate.number));
        }
        Ok(self.kept.iter().try_for_each(|kept| kept.template(id).map(drop))?)
    }

    /// Whether a revision is of an earlier history, which this control plane does not have.
    fn is_lost(&self, number: u32) -> bool {
        self.first.is_some_and(|first| number < first)
    }

    /// The revisions in `traffic` that are of an earlier history. The latest has their share.
    pub(crate) fn lost(&self, plan: &Plan) -> BTreeSet<u32> {
        let named = plan.traffic.iter().map(|target| target.revision);
        named.filter(|number| *number != 0 && self.is_lost(*number)).collect()
    }

    pub(crate) fn latest(&self) -> u32 {
        self.kept.last().map_or(0, |kept| kept.number)
    }

    /// The template of the latest revision, or of the latest one with a declared name.
    pub(crate) fn latest_template(&self, id: &FunctionId, name: Option<&str>) -> Option<Template> {
        let is_it = |kept: &&RevisionRecord| name.is_none() || kept.name.as_deref() == name;
        self.kept.iter().rev().find(is_it)?.template(id).ok()
    }

    /// The revisions that are being rolled out, each with the revision that it replaces.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (u32, Candidate)> {
        let own = self.candidate.map(|candidate| (self.stable, candidate));
        let named = self.named.iter().filter_map(|named| Some((named.stable, named.candidate?)));
        own.into_iter().chain(named)
    }

    /// All stable revisions and candidates, and the latest of each name.
    fn in_force(&self) -> BTreeSet<u32> {
        let newest = |name: &String| self.kept.iter().rev().find(|kept| kept.name.as_ref() == Some(name));
        let newest = self.named.iter().filter_map(|named| newest(&named.name)).map(|kept| kept.number);
        let stable = self.named.iter().map(|named| named.stable).chain([self.stable, self.latest()]);
        stable.chain(newest).chain(self.candidates().map(|(_, candidate)| candidate.number)).collect()
    }

    /// The containers among the kept revisions, by number.
    pub(crate) fn containers(&self, id: &FunctionId) -> impl Iterator<Item = (u32, Container)> {
        let container = |kept: &RevisionRecord| Some((kept.number, kept.template(id).ok()?.run.container()?.clone()));
        self.kept.iter().filter_map(container)
    }

    fn record_publication(&mut self, config: &FunctionConfig, now_ms: u64) -> Result<(), DefinitionsError> {
        self.function = Some(config.id.clone());
        let plan = &config.revisions.plan;
        self.record_traffic(plan, now_ms);
        if plan.is_named() {
            self.record_named(config, now_ms)?;
        } else {
            self.record_latest(config, now_ms)?;
        }
        self.paused &= plan.rollout.is_some();
        self.collect(plan);
        Ok(())
    }

    fn record_traffic(&mut self, plan: &Plan, now_ms: u64) {
        let last = self.traffic.as_ref().map(|record| &record.now[..]).unwrap_or_default();
        if last != plan.traffic {
            let before = (!self.kept.is_empty()).then(|| last.to_vec());
            self.traffic = Some(TrafficRecord { now: plan.traffic.clone(), before, since_ms: now_ms });
        }
    }

    /// Makes a revision of the function's own fields, if their content is new.
    fn record_latest(&mut self, config: &FunctionConfig, now_ms: u64) -> Result<(), DefinitionsError> {
        let template = to_bytes(&config.template()).map_err(|error| encoding(&config.id, &error))?;
        self.named.clear();
        let new = self.kept.last().is_none_or(|last| last.template != template);
        if new {
            if self.kept.is_empty() {
                self.first = first_number(&config.revisions.plan).filter(|first| *first > 1);
            }
            let number = self.first.filter(|_| self.kept.is_empty()).unwrap_or(self.latest() + 1);
            self.kept.push(RevisionRecord { number, template, created_ms: now_ms, failed: None, name: None });
            self.reruns = None;
        } else if let Some(last) = self.kept.last_mut() {
            last.name = None;
        }
        let latest = self.latest();
        match &config.revisions.plan.rollout {
            Some(_) if self.stable == 0 => self.stable = latest,
            Some(_) if new => self.candidate = Some(Candidate { number: latest, step: 0, since_ms: now_ms }),
            Some(rollout) => self.candidate = self.candidate.map(|candidate| candidate.within(rollout)),
            None => (self.stable, self.candidate) = (latest, None),
        }
        Ok(())
    }

    /// The run of a job; `None`: it is a function, or its run cannot be named.
    pub(crate) fn run_of(&self, config: &FunctionConfig) -> Option<String> {
        matches!(config.run, Run::Job(_)).then(|| run_of(&self.config_for_delivery(config).ok()?)).flatten()
    }

    /// Moves a candidate to its next step. After the last step it becomes the stable revision.
    pub(crate) fn advance(&mut self, number: u32, plan: &Plan, now_ms: u64) {
        let Some(candidate) = self.candidate_mut(number) else { return };
        candidate.step += 1;
        candidate.since_ms = now_ms;
        if plan.rollout.as_ref().is_none_or(|rollout| candidate.step >= rollout.steps.len()) {
            self.finish(number);
            self.collect(plan);
        }
    }

    /// Makes a candidate the stable revision.
    fn finish(&mut self, number: u32) {
        if self.candidate.take_if(|candidate| candidate.number == number).is_some() {
            self.stable = number;
        }
        for named in &mut self.named {
            if named.candidate.take_if(|candidate| candidate.number == number).is_some() {
                named.stable = number;
            }
        }
    }

    /// Gives up a candidate. The stable revision gets all its traffic until the next change.
    pub(crate) fn roll_back(&mut self, number: u32, reason: String) {
        self.candidate.take_if(|candidate| candidate.number == number);
        for named in &mut self.named {
            named.candidate.take_if(|candidate| candidate.number == number);
        }
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.number == number) {
            kept.failed = Some(reason);
        }
    }

    fn candidate_mut(&mut self, number: u32) -> Option<&mut Candidate> {
        let named = self.named.iter_mut().map(|named| &mut named.candidate);
        let mut all = std::iter::once(&mut self.candidate).chain(named).flatten();
        all.find(|candidate| candidate.number == number)
    }

    /// Drops the oldest surplus revisions that are not in use. Of large revisions it also drops
    /// some that get traffic; their publication is refused then.
    fn collect(&mut self, plan: &Plan) {
        let mut surplus = self.kept.len().saturating_sub(usize::try_from(plan.history).unwrap_or(usize::MAX));
        let in_force = self.in_force();
        let in_use =
            |number: u32| in_force.contains(&number) || plan.traffic.iter().any(|target| target.revision == number);
        self.kept.retain(|kept| {
            let goes = surplus > 0 && !in_use(kept.number);
            surplus -= usize::from(goes);
            !goes
        });
        let bytes = |history: &Self| history.kept.iter().map(|kept| kept.template.len()).sum::<usize>();
        let most = MIN_KEPT_BYTES.max(KEPT_LATEST * self.kept.last().map_or(0, |latest| latest.template.len()));
        let mut excess = bytes(self).saturating_sub(most);
        self.kept.retain(|kept| {
            let goes = excess > 0 && !in_force.contains(&kept.number);
            excess = if goes { excess.saturating_sub(kept.template.len()) } else { excess };
            !goes
        });
    }

    /// The function configuration with its primary revision (see [`History::targets`]) and all
    /// others that get traffic.
    pub(crate) fn config_for_delivery(&self, config: &FunctionConfig) -> Result<FunctionConfig, DefinitionsError> {
        let (primary, targets) = self.targets(&config.revisions.plan);
        let mut resolved = config.clone();
        resolved.set_revision(self.revision(config, primary)?);
        if let Run::Job(job) = &mut resolved.run {
            job.reruns = self.reruns.unwrap_or_default();
        }
        let mut others: Vec<Revision> = Vec::new();
        for target in targets.iter().filter(|target| target.revision != primary) {
            if others.iter().all(|other| other.number != target.revision) {
                others.push(self.revision(config, target.revision)?);
            }
        }
        if config.revisions.plan.is_named() {
            resolved.revisions.names = self.names([primary].into_iter().chain(others.iter().map(|other| other.number)));
        }
        resolved.revisions.split = (!others.is_empty()).then(|| Box::new(Split { targets, others }));
        resolved.revisions.plan.declared.clear();
        Ok(resolved)
    }

    /// The primary revision, whose template is the function configuration's own, and all targets
    /// with "the latest" replaced by its number. With a rollout plan the primary revision is the
    /// stable one; otherwise it is the one with the largest share.
    fn targets(&self, plan: &Plan) -> (u32, Vec<Target>) {
        if plan.is_named() {
            return self.named_targets(plan);
        }
        let latest = self.latest();
        let named = |target: &Target| Target {
            revision: if target.revision == 0 || self.is_lost(target.revision) { latest } else { target.revision },
            ..target.clone()
        };
        let mut targets: Vec<Target> = plan.traffic.iter().map(named).collect();
        let share = |revision, percent| Target { revision, percent, ..Target::default() };
        let primary = match (&plan.rollout, self.candidate) {
            (Some(rollout), Some(candidate)) => {
                let percent = rollout.steps.get(candidate.step).copied().unwrap_or(0).min(100);
                targets.extend([share(self.stable, 100 - percent), share(candidate.number, percent)]);
                self.stable
            }
            (Some(_), None) => {
                targets.push(share(self.stable, 100));
                self.stable
            }
            (None, _) => match targets.iter().rev().max_by_key(|target| target.percent) {
                Some(most) if most.percent > 0 => most.revision,
                _ => {
                    targets.push(share(latest, 100));
                    latest
                }
            },
        };
        targets.retain(decides);
        (primary, targets)
    }

    /// The kept revisions for listings, with the shares that `revisions` gives them.
    pub(crate) fn status(&self, id: &FunctionId, revisions: &Revisions) -> Vec<RevisionStatus> {
        let all = [Target { revision: revisions.number, percent: 100, ..Target::default() }];
        let targets = revisions.split.as_ref().map_or(&all[..], |split| &split.targets);
        let steps = revisions.plan.rollout.as_ref().map_or(0, |rollout| rollout.steps.len());
        let count = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        let serves = |kept: &RevisionRecord| targets.iter().any(|target| target.revision == kept.number);
        let status = |kept: &RevisionRecord| {
            let of_it = || targets.iter().filter(|target| target.revision == kept.number);
            let candidate = self.candidates().map(|(_, candidate)| candidate);
            let candidate = candidate.into_iter().find(|candidate| candidate.number == kept.number);
            RevisionStatus {
                revision: revision::name(id, kept.number),
                declared: kept.name.clone(),
                created_ms: kept.created_ms,
                percent: of_it().map(|target| target.percent).sum(),
                tags: of_it().filter_map(|target| target.tag.clone()).collect(),
                headers: of_it().any(|target| !target.headers.is_empty()),
                step: candidate.map(|candidate| (count(candidate.step + 1), count(steps))),
                paused: self.paused && (candidate.is_some() || self.candidates().next().is_none() && serves(kept)),
                failed: kept.failed.clone(),
            }
        };
        let lost = |number: u32| RevisionStatus {
            revision: revision::name(id, number),
            declared: None,
            created_ms: 0,
            percent: 0,
            tags: Vec::new(),
            headers: false,
            step: None,
            paused: false,
            failed: Some(LOST.to_owned()),
        };
        self.lost(&revisions.plan).into_iter().map(lost).chain(self.kept.iter().map(status)).collect()
    }

    fn revision(&self, config: &FunctionConfig, number: u32) -> Result<Revision, DefinitionsError> {
        let kept = self.kept.iter().find(|kept| kept.number == number).ok_or_else(|| DefinitionsError::Revision {
            function: config.id.clone(),
            revision: revision::name(&config.id, number),
            kept: self.kept.iter().map(|kept| revision::name(&config.id, kept.number)).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Revision { number, template: kept.template(&config.id)? })
    }
}

/// Whether a target leads any request to its revision.
fn decides(target: &Target) -> bool {
    target.percent > 0 || target.tag.is_some() || !target.headers.is_empty()
}

/// The number of a first revision: above those that the document names, so that no name gets another
/// meaning later.
fn first_number(plan: &Plan) -> Option<u32> {
    let named = plan.traffic.iter().map(|target| target.revision).max()?;
    named.checked_add(1).filter(|first| *first <= MAX_FIRST)
}

impl RevisionRecord {
    fn template(&self, id: &FunctionId) -> Result<Template, DefinitionsError> {
        from_bytes(&self.template).map_err(|error| encoding(id, &error))
    }
}

/// A stored history that does not belong to its function.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum BadHistory {
    #[error("it has the revisions of {0}")]
    OtherFunction(FunctionId),
    #[error("its revisions are not numbered in ascending order from 1")]
    Order,
    #[error("its stable revision {0} is not among those kept")]
    Stable(u32),
    #[error("its candidate {0} is not among those kept, or at no step")]
    Candidate(u32),
    #[error(transparent)]
    Template(#[from] DefinitionsError),
}

fn encoding(id: &FunctionId, error: &EncodingError) -> DefinitionsError {
    let subject = leno_wire::Subject::FunctionConfig(id.clone());
    DefinitionsError::Encoding { subject, reason: error.to_string() }
}

#[cfg(test)]
mod tests;
