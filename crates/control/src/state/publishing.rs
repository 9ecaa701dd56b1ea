//! Changes of the definitions.

use super::State;
use super::catalog::Catalog;
use super::effect::Effect;
use crate::definitions::{CompiledDefinitions, Modules, PreparedFunction, PreparedRoutes, Put};
use crate::error::DefinitionsError;
use crate::history::{Candidate, Histories, History};
use crate::rollout::Verdict;
use crate::status::RolloutEvent;
use bytes::Bytes;
use leno_config::Permissions;
use leno_identity::TrustDomain;
use leno_model::{FunctionConfig, FunctionId, GatewayRoutes};
use leno_wire::{Resource, Subject};
use std::collections::BTreeSet;

impl State {
    /// Replaces all definitions. Returns the subjects that differ from before.
    pub(crate) fn publish(&mut self, compiled: CompiledDefinitions, histories: Histories) -> BTreeSet<Subject> {
        let mut changed = BTreeSet::new();
        let before = &self.catalog.compiled;
        let names = before.contents.keys().chain(compiled.contents.keys());
        changed.extend(names.filter(|name| before.contents.get(name) != compiled.contents.get(name)).cloned());
        let ids = changed.iter().filter_map(|subject| match subject {
            Subject::FunctionConfig(id) => Some(id.clone()),
            _ => None,
        });
        let ids: Vec<FunctionId> = ids.collect();
        let is_new_or_gone = |id: &FunctionId| before.functions.contains_key(id) != compiled.functions.contains_key(id);
        changed.extend(ids.iter().filter(|id| is_new_or_gone(id)).cloned().map(Subject::Endpoints));
        for id in ids.iter().filter(|id| !compiled.functions.contains_key(*id)) {
            self.catalog.prepare_removal(id);
        }
        let permissions = compiled.permissions.clone();
        self.catalog.set_histories(histories);
        let effects = self.follow(&ids, |state| {
            let State { catalog, hosting, .. } = state;
            ids.iter().for_each(|id| hosting.forget_definition(id, &catalog.compiled));
            catalog.compiled = compiled;
            hosting.jobs.define_all(&catalog.compiled.functions);
            ids.iter().flat_map(|id| state.define(id)).collect()
        });
        self.carry_out(effects);
        self.finish(permissions, &ids, &changed);
        changed
    }

    /// Adds or replaces one function. Returns whether anything changed. The cost does not depend on
    /// the number of other functions.
    pub(crate) fn put(&mut self, prepared: PreparedFunction, history: History) -> bool {
        let id = prepared.id.clone();
        self.catalog.set_history(&id, history);
        let before = self.catalog.compiled.functions.get(&id).map(|function| function.identity.clone());
        let mut put = Put::Same;
        let effects = self.follow(std::slice::from_ref(&id), |state| {
            let Catalog { compiled, .. } = &mut state.catalog;
            state.hosting.forget_definition(&id, compiled);
            put = compiled.put(prepared);
            state.hosting.jobs.define(&id, compiled.functions.get(&id));
            state.define(&id)
        });
        self.carry_out(effects.into_iter().chain([Effect::Rebalance(id.clone())]));
        let mut changed =
            vec![Subject::FunctionConfig(id.clone()), Subject::Secrets(id.clone()), Subject::Route(id.clone())];
        match put {
            Put::Same => return false,
            Put::Changed => {}
            Put::New => changed.push(Subject::Endpoints(id.clone())),
        }
        if let Some(before) = before.filter(|before| !self.catalog.compiled.by_identity.contains_key(before)) {
            self.issued.retain(|(id, _), _| *id != before);
        }
        let jobs = self.catalog.compiled.is_job(&id).then_some(Effect::PlaceJobs);
        self.carry_out(changed.into_iter().map(Effect::Announce).chain(jobs));
        true
    }

    /// Adds, replaces and removes functions together, and replaces the routes of gateways. The cost
    /// does not depend on other functions.
    pub(crate) fn change(
        &mut self,
        prepared: Vec<(PreparedFunction, History)>,
        removed: &[FunctionId],
        routes: Option<PreparedRoutes>,
        permissions: &Permissions,
    ) {
        removed.iter().for_each(|id| self.catalog.prepare_removal(id));
        let ids: BTreeSet<_> = prepared.iter().map(|(prepared, _)| prepared.id.clone()).collect();
        let ids: Vec<_> = ids.into_iter().chain(removed.iter().cloned()).collect();
        let mut changed = BTreeSet::new();
        let effects = self.follow(&ids, |state| {
            let State { catalog, hosting, .. } = state;
            ids.iter().for_each(|id| hosting.forget_definition(id, &catalog.compiled));
            for id in removed {
                if catalog.remove(id) {
                    changed.extend([
                        Subject::FunctionConfig(id.clone()),
                        Subject::Secrets(id.clone()),
                        Subject::Route(id.clone()),
                        Subject::Endpoints(id.clone()),
                    ]);
                }
            }
            for (prepared, history) in prepared {
                let id = prepared.id.clone();
                catalog.set_history(&id, history);
                match catalog.compiled.put(prepared) {
                    Put::Same => continue,
                    Put::Changed => {}
                    Put::New => drop(changed.insert(Subject::Endpoints(id.clone()))),
                }
                changed.extend([Subject::FunctionConfig(id.clone()), Subject::Secrets(id.clone()), Subject::Route(id)]);
            }
            changed.extend(routes.into_iter().flat_map(|routes| catalog.compiled.set_routes(routes)));
            hosting.jobs.define_all(&catalog.compiled.functions);
            ids.iter().flat_map(|id| state.define(id)).collect()
        });
        self.carry_out(effects);
        self.finish(permissions.clone(), &ids, &changed);
    }

    /// Completes a change of these functions.
    fn finish(&mut self, permissions: Permissions, ids: &[FunctionId], changed: &BTreeSet<Subject>) {
        self.set_permissions(permissions);
        self.carry_out(ids.iter().cloned().map(Effect::Rebalance));
        let (CompiledDefinitions { by_identity, gateway, .. }, pods) = (&self.catalog.compiled, &self.hosting.pods);
        self.issued.retain(|(id, node), _| {
            by_identity.contains_key(id) || gateway.as_ref() == Some(id) || pods.has_account(node, id)
        });
        self.carry_out(changed.iter().cloned().map(Effect::Announce).chain([Effect::PlaceJobs]));
    }

    /// Replaces the policies. Nodes close the open exchanges of removed functions whose policies
    /// have changed.
    fn set_permissions(&mut self, permissions: Permissions) {
        for (id, nodes) in self.catalog.set_permissions(permissions) {
            for name in nodes {
                let Some(node) = self.nodes.all.get_mut(&name) else { continue };
                node.withdrawn.insert(id.clone(), None);
                if let Some(session) = &node.session {
                    session.wake.notify_one();
                }
            }
        }
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.catalog.compiled.modules
    }

    /// Checks a function that [`State::put`] is to add or replace.
    pub(crate) fn prepare_put(
        &self,
        config: &FunctionConfig,
        trust_domain: &TrustDomain,
    ) -> Result<PreparedFunction, DefinitionsError> {
        self.catalog.compiled.prepare_put(config, trust_domain)
    }

    /// Encodes routes of gateways that [`State::change`] is to set.
    pub(crate) fn prepare_routes(&self, routes: &GatewayRoutes) -> Result<PreparedRoutes, DefinitionsError> {
        self.catalog.compiled.prepare_routes(routes)
    }

    /// The encoded settings of the mesh; `None`: none were published yet.
    pub(crate) fn mesh(&self) -> Option<Bytes> {
        self.catalog.compiled.contents.get(&Subject::Mesh).map(|content| content.payload.clone())
    }

    pub(crate) fn has_definitions(&self) -> bool {
        self.catalog.compiled.contents.contains_key(&Subject::Mesh)
    }

    /// The configuration of a function in the form that nodes get.
    pub(crate) fn config(&self, id: &FunctionId) -> Option<FunctionConfig> {
        let subject = Subject::FunctionConfig(id.clone());
        let content = self.catalog.compiled.contents.get(&subject)?;
        match Resource::decode(&subject, &content.payload).ok()? {
            Resource::FunctionConfig(config) => Some(*config),
            _ => None,
        }
    }

    pub(crate) fn histories(&self) -> &Histories {
        self.catalog.histories()
    }

    /// Whether a rollout is under way.
    pub(crate) fn rolls_out(&self) -> bool {
        self.catalog.rollouts.any()
    }

    /// Rollouts that have a decision due.
    pub(crate) fn decisions(&self, now_ms: u64) -> Vec<(FunctionId, Candidate, Verdict)> {
        self.catalog.decisions(now_ms)
    }

    /// Records a decision on a rollout.
    pub(crate) fn decided(&mut self, event: RolloutEvent) {
        self.catalog.record(event);
    }

    /// The last decisions on rollouts, oldest first.
    pub(crate) fn events(&self) -> Vec<RolloutEvent> {
        self.catalog.events()
    }
}
