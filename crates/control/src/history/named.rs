//! Revisions that a document declares by name. Each name has a stable revision and, while its
//! content is being rolled out, a candidate, which share the name's requests.

use super::{Candidate, History, RevisionRecord, encoding};
use crate::error::DefinitionsError;
use leno_model::FunctionConfig;
use leno_model::revision::{self, Plan, Target};
use leno_wire::encoding::to_bytes;
use serde::{Deserialize, Serialize};

/// A declared name, and the revisions with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedRevision {
    pub name: String,
    /// The revision that gets the name's requests, apart from those that the candidate gets.
    pub stable: u32,
    /// The revision that is being rolled out.
    pub candidate: Option<Candidate>,
}

impl History {
    /// Makes a revision of each declared content that is new.
    pub(super) fn record_named(&mut self, config: &FunctionConfig, now_ms: u64) -> Result<(), DefinitionsError> {
        let plan = &config.revisions.plan;
        (self.stable, self.candidate) = (0, None);
        let before = std::mem::take(&mut self.named);
        for declared in &plan.declared {
            let name = &declared.name;
            let template = to_bytes(&declared.template).map_err(|error| encoding(&config.id, &error))?;
            let known = before.iter().find(|known| known.name == *name);
            let newest = self.kept.iter().rev().find(|kept| kept.name.as_ref() == Some(name));
            let same = newest.filter(|newest| newest.template == template).map(|newest| newest.number);
            let same = same.or_else(|| self.rename(name, plan, &template).filter(|_| known.is_none()));
            let number = same.unwrap_or(self.latest() + 1);
            if same.is_none() {
                let (name, failed) = (Some(name.clone()), None);
                self.kept.push(RevisionRecord { number, template, created_ms: now_ms, failed, name });
            }
            let shared = plan.traffic.iter().any(|target| target.name.as_ref() == Some(name) && target.percent > 0);
            let (stable, candidate) = match (known, &plan.rollout) {
                (Some(known), Some(_)) if same.is_none() && shared => {
                    (known.stable, Some(Candidate { number, step: 0, since_ms: now_ms }))
                }
                (Some(known), Some(rollout)) if same.is_some() => {
                    (known.stable, known.candidate.map(|candidate| candidate.within(rollout)))
                }
                // A name without a former content, without a share or without a rollout.
                _ => (number, None),
            };
            self.named.push(NamedRevision { name: name.clone(), stable, candidate });
        }
        Ok(())
    }

    /// Gives a name to a revision with its content that has none, or one that is not declared any
    /// more. So instances stay when a document begins to name its revisions.
    fn rename(&mut self, name: &str, plan: &Plan, template: &[u8]) -> Option<u32> {
        let is_declared = |name: &String| plan.declared.iter().any(|declared| declared.name == *name);
        let fits = |kept: &&mut RevisionRecord| {
            kept.template == template && kept.failed.is_none() && !kept.name.as_ref().is_some_and(is_declared)
        };
        let kept = self.kept.iter_mut().rev().find(fits)?;
        kept.name = Some(name.to_owned());
        Some(kept.number)
    }

    /// The revision with the largest share, and all targets with names replaced by numbers. The
    /// candidate of a name gets the step's part of the name's share, rounded up, and all requests
    /// that tags and headers lead to the name.
    pub(super) fn named_targets(&self, plan: &Plan) -> (u32, Vec<Target>) {
        let mut targets = Vec::new();
        let mut primary = (0, 0);
        for target in &plan.traffic {
            let Some(named) = self.named.iter().find(|named| Some(&named.name) == target.name.as_ref()) else {
                continue;
            };
            let percent = target.percent.min(100);
            if percent > primary.0 || primary.1 == 0 {
                primary = (percent, named.stable);
            }
            let share = |revision, percent| Target { revision, percent, ..Target::default() };
            let newest = named.candidate.map_or(named.stable, |candidate| candidate.number);
            let part = named.candidate.map_or(percent, |candidate| {
                let step = plan.rollout.as_ref().and_then(|rollout| rollout.steps.get(candidate.step).copied());
                part(percent, step.unwrap_or(0))
            });
            targets.push(Target { name: None, ..share(newest, part) });
            if let Some(own) = targets.last_mut() {
                (own.tag, own.headers) = (target.tag.clone(), target.headers.clone());
            }
            if part < percent {
                targets.push(share(named.stable, percent - part));
            }
        }
        targets.retain(super::decides);
        (primary.1, targets)
    }

    /// The names of revisions, for nodes.
    pub(super) fn names(&self, numbers: impl Iterator<Item = u32>) -> Vec<(u32, String)> {
        let name = |number| self.kept.iter().find(|kept| kept.number == number)?.name.clone();
        numbers.filter_map(|number| Some((number, name(number)?))).collect()
    }

    /// The revision's name in listings and events: `shop-00004 (stable)`.
    pub(crate) fn label(&self, config: &FunctionConfig, number: u32) -> String {
        let kept = self.kept.iter().find(|kept| kept.number == number);
        revision::label(&config.id, number, kept.and_then(|kept| kept.name.as_deref()))
    }
}

/// A step's part of a share in per cent: at least 1, unless the share is 0.
fn part(share: u8, step: u8) -> u8 {
    let part = (u32::from(share) * u32::from(step)).div_ceil(100);
    u8::try_from(part).unwrap_or(share).min(share)
}
