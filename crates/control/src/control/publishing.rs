//! Puts definitions into the store and into force, and advances rollouts.

use super::{Control, now_ms};
use crate::definitions::{CompiledDefinitions, Definitions, Modules};
use crate::error::DefinitionsError;
use crate::history::{Histories, History, LOST, RolloutAction, RolloutChange, RolloutStep, SteerError};
use crate::rollout::Verdict;
use crate::status::RolloutEvent;
use crate::store::{StoreError, Transaction};
use leno_config::Permissions;
use leno_model::{FunctionConfig, FunctionId, GatewayRoutes, revision};
use leno_wire::Subject;
use std::sync::PoisonError;

/// The number of changes of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishSummary {
    /// Functions that are in force after the publication.
    pub functions: usize,
    /// Functions that are new or that differ from the last publication.
    pub changed: usize,
    /// Functions that were removed.
    pub removed: usize,
}

/// Why definitions were not published. The previous ones stay in force.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The definitions contradict themselves or this control plane.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// The store could not save the definitions.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Control {
    /// Replaces all definitions: first in the store, then for all nodes. The control plane sends
    /// each node the changes among its subscriptions at once. A function whose template differs
    /// from its latest revision gets a new revision. Blocks on the store.
    pub fn publish(&self, definitions: &Definitions) -> Result<PublishSummary, PublishError> {
        self.publish_after(definitions, || Ok(()))
    }

    /// The same for definitions that were made of documents, which `commit` stores. It is called
    /// when only the store can still refuse the definitions; if it fails, nothing changes.
    pub fn publish_after<E: From<PublishError>>(
        &self,
        definitions: &Definitions,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<PublishSummary, E> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.state().histories().clone();
        let (compiled, modules, histories) = self.compile(definitions, &before)?;
        let functions = compiled.functions.len();
        commit()?;
        store.save(definitions, &modules, &before, &histories).map_err(PublishError::from)?;
        let lost = lost(&before, histories.0.iter(), |id| definitions.configs.get(id));
        let changed = self.change_at_length(|state| state.publish(compiled, histories));
        self.report(lost);
        self.0.rollouts.notify_one();
        drop(store);
        let mut published = PublishSummary { functions, ..PublishSummary::default() };
        for subject in &changed {
            match subject {
                Subject::FunctionConfig(id) if definitions.configs.contains_key(id) => published.changed += 1,
                Subject::FunctionConfig(_) => published.removed += 1,
                _ => (),
            }
        }
        Ok(published)
    }

    /// Adds, replaces and removes functions together, and replaces the routes of gateways unless
    /// `routes` is `None`, after `commit` has stored their documents; see
    /// [`Control::publish_after`]. The mesh and its modules stay as they were published. Other
    /// functions are not looked at.
    pub fn change_after<E: From<PublishError>>(
        &self,
        configs: &[&FunctionConfig],
        removed: &[FunctionId],
        routes: Option<&GatewayRoutes>,
        permissions: &Permissions,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let prepare = |config: &FunctionConfig| {
            let history = self.state().histories().record_one(config, now_ms())?;
            let resolved = history.config_for_delivery(config)?;
            let prepared = self.state().prepare_put(&resolved, &self.0.trust_domain)?;
            Ok::<_, DefinitionsError>((prepared, history))
        };
        let prepared = configs.iter().map(|config| prepare(config)).collect::<Result<Vec<_>, _>>();
        let prepared = prepared.map_err(PublishError::from)?;
        let encoded = routes.map(|routes| self.state().prepare_routes(routes)).transpose();
        let encoded = encoded.map_err(PublishError::from)?;
        commit()?;
        let kept: Vec<(&FunctionConfig, &History)> =
            configs.iter().copied().zip(prepared.iter().map(|(_, history)| history)).collect();
        store.change(&kept, removed, routes).map_err(PublishError::from)?;
        let histories = kept.iter().map(|(config, history)| (&config.id, *history));
        let of = |id: &FunctionId| configs.iter().copied().find(|config| config.id == *id);
        let lost = lost(self.state().histories(), histories, of);
        self.change_at_length(|state| state.change(prepared, removed, encoded, permissions));
        self.report(lost);
        self.0.rollouts.notify_one();
        Ok(())
    }

    /// Records and logs revisions whose share the latest has.
    fn report(&self, lost: Vec<RolloutEvent>) {
        for event in lost {
            let RolloutEvent { function, revision, .. } = &event;
            tracing::warn!(%function, revision, "traffic names this revision: {}", event.reason);
            self.state().decided(event);
        }
    }

    /// Whether definitions could be published, apart from the store.
    pub fn check(&self, definitions: &Definitions) -> Result<(), PublishError> {
        let before = self.state().histories().clone();
        self.compile(definitions, &before).map(drop)
    }

    /// The definitions, their modules and the revisions after their publication.
    fn compile(
        &self,
        definitions: &Definitions,
        before: &Histories,
    ) -> Result<(CompiledDefinitions, Modules, Histories), PublishError> {
        let histories = before.record_publication(&definitions.configs, now_ms())?;
        let modules = self.modules(definitions, &histories)?;
        let compiled = CompiledDefinitions::new(definitions, &modules, &histories, &self.bundle())?;
        Ok((compiled, modules, histories))
    }

    /// The modules of the definitions, and of kept revisions that no document names any more.
    fn modules(&self, definitions: &Definitions, histories: &Histories) -> Result<Modules, DefinitionsError> {
        let mut modules = definitions.modules.clone();
        let known = self.state().modules().clone();
        for hash in histories.modules()? {
            if let Some(module) = known.get(&hash) {
                modules.entry(hash).or_insert_with(|| module.clone());
            }
        }
        Ok(modules)
    }

    /// Adds one function or replaces its definition: first in the store, then for all nodes. Other
    /// functions are not looked at. Returns whether anything changed. Blocks on the store.
    pub fn put(&self, config: &FunctionConfig) -> Result<bool, PublishError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let history = self.state().histories().record_one(config, now_ms())?;
        let prepared = self.state().prepare_put(&history.config_for_delivery(config)?, &self.0.trust_domain)?;
        store.put(config, &history)?;
        let made_a_difference = self.state().put(prepared, history);
        // The woken task checks the state itself, so waking it for nothing does no harm.
        self.0.rollouts.notify_one();
        Ok(made_a_difference)
    }

    /// Advances or rolls back each rollout that has a decision due. [`Control::serve`] calls this
    /// while a rollout is under way. Blocks on the store.
    pub(crate) fn roll_out(&self) -> Result<(), PublishError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = now_ms();
        let decisions = self.state().decisions(now_ms);
        for (id, candidate, verdict) in decisions {
            let state = self.state();
            let (history, config) = (state.histories().0.get(&id).cloned(), state.config(&id));
            drop(state);
            let (Some(mut history), Some(config)) = (history, config) else { continue };
            let plan = &config.revisions.plan;
            let steps = plan.rollout.iter().flat_map(|rollout| &rollout.steps);
            let percent = |step: usize| steps.clone().nth(step).copied().unwrap_or(100);
            let from = percent(candidate.step);
            let (to, reason) = match verdict {
                Verdict::Wait => continue,
                Verdict::Advance => {
                    history.advance(candidate.number, plan, now_ms);
                    (percent(candidate.step + 1), "within the limits".to_owned())
                }
                Verdict::RollBack(reason) => {
                    history.roll_back(candidate.number, reason.to_string());
                    (0, format!("rolled back: {reason}"))
                }
            };
            let prepared = self.state().prepare_put(&history.config_for_delivery(&config)?, &self.0.trust_domain)?;
            store.put_history(&id, &history)?;
            let revision = history.label(&config, candidate.number);
            if to == 0 {
                tracing::warn!(function = %id, revision, from, to, "{reason}");
            } else {
                tracing::info!(function = %id, revision, from, to, "rollout: {reason}");
            }
            let mut state = self.state();
            state.decided(RolloutEvent { at_ms: now_ms, function: id, revision, from, to, reason });
            state.put(prepared, history);
        }
        Ok(())
    }

    /// Changes a function's rollouts as a user asks, first in the store, with the changes of `noted`.
    /// A change of the document is returned, and not made. A dry run changes nothing. Blocks on the
    /// store.
    ///
    /// # Errors
    /// The inner error says why there is nothing to change.
    pub fn steer(
        &self,
        id: &FunctionId,
        action: &RolloutAction,
        by: &str,
        noted: Option<Transaction>,
    ) -> Result<Result<RolloutChange, SteerError>, PublishError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        let (history, config) = (state.histories().0.get(id).cloned(), state.config(id));
        drop(state);
        let (Some(mut history), Some(config)) = (history, config.filter(FunctionConfig::is_function)) else {
            return Ok(Err(SteerError::NoFunction(id.clone())));
        };
        let change = match history.steer(&config, action, by) {
            Ok(change) => change,
            Err(error) => return Ok(Err(error)),
        };
        let RolloutChange::Rollouts(steps) = &change else { return Ok(Ok(change)) };
        let Some(noted) = noted else { return Ok(Ok(change)) };
        let prepared = self.state().prepare_put(&history.config_for_delivery(&config)?, &self.0.trust_domain)?;
        store.steer(id, &history, noted)?;
        let (at_ms, words) = (now_ms(), action.words());
        let mut state = self.state();
        for RolloutStep { revision, from, to } in steps.clone() {
            tracing::info!(function = %id, revision, from, to, "rollout: {words} by {by}");
            let reason = format!("{words} by {by}");
            state.decided(RolloutEvent { at_ms, function: id.clone(), revision, from, to, reason });
        }
        state.put(prepared, history);
        drop(state);
        self.0.rollouts.notify_one();
        Ok(Ok(change))
    }
}

/// The revisions that `traffic` of new functions names, and that are of an earlier start.
fn lost<'a>(
    before: &Histories,
    histories: impl Iterator<Item = (&'a FunctionId, &'a History)>,
    config: impl Fn(&FunctionId) -> Option<&'a FunctionConfig>,
) -> Vec<RolloutEvent> {
    let mut events = Vec::new();
    for (id, history) in histories.filter(|(id, _)| !before.0.contains_key(*id)) {
        let Some(plan) = config(id).map(|config| &config.revisions.plan) else { continue };
        for number in history.lost(plan) {
            let percent = plan.traffic.iter().filter(|target| target.revision == number).map(|target| target.percent);
            events.push(RolloutEvent {
                at_ms: now_ms(),
                function: id.clone(),
                revision: revision::name(id, number),
                from: percent.sum(),
                to: 0,
                reason: LOST.to_owned(),
            });
        }
    }
    events
}
