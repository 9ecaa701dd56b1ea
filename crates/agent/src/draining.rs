//! The parent process after a hot restart, while its open exchanges end. It has no stream; the
//! child process forwards the configuration that it applies. The parent applies the part that
//! decides whether its exchanges are still permitted. It starts no more instances.

use crate::agent_state::AgentState;
use crate::update::{Change, PARENT_STREAM, Update};
use bytes::Bytes;
use leno_model::Run;
use leno_model::{FunctionConfig, FunctionId};
use leno_wire::{Resource, Subject, messages, v1};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tonic::Status;

/// A message from the child process.
#[derive(Debug)]
pub(crate) enum ChildUpdate {
    /// An encoded update.
    Update(Bytes),
    /// The child has ended, or forwards nothing. So the permissions that remain are unknown.
    End,
}

/// The functions of the parent process.
#[derive(Default)]
pub(crate) struct DrainingProcess(HashMap<FunctionId, FunctionConfig>);

impl DrainingProcess {
    /// The part of a delta that concerns this process.
    pub(crate) fn restrict(&mut self, shared: &Arc<AgentState>, mut delta: v1::Delta) -> Result<v1::Delta, Status> {
        let state = shared.state();
        let mut resources = Vec::new();
        for resource in delta.resources {
            let subject = messages::subject(resource.subject.as_ref())?;
            let known = state.held().get(&subject);
            let is_wanted = match &subject {
                Subject::FunctionConfig(_) | Subject::Secrets(_) => known.is_some(),
                Subject::Bundle | Subject::Module(_) | Subject::Endpoints(_) | Subject::Route(_) => true,
                Subject::Mesh
                | Subject::Routes
                | Subject::Certificates
                | Subject::Hosted
                | Subject::Scale(_)
                | Subject::Quota(_)
                | Subject::EnforcedNamespaces
                | Subject::Pod(_)
                | Subject::ServiceEndpoint(..)
                | Subject::Destination(_) => false,
            };
            if is_wanted && known.map(|version| version.to_wire()) != Some(resource.version.clone()) {
                resources.push(resource);
            }
        }
        delta.resources = resources;
        let kinds = [v1::Kind::Slice, v1::Kind::Secrets, v1::Kind::Endpoints, v1::Kind::Route];
        delta.removed.retain(|subject| kinds.contains(&subject.kind()));
        Ok(delta)
    }

    /// Restores the part of each function's configuration that is about its instances.
    pub(crate) fn keep_instances(&mut self, shared: &Arc<AgentState>, update: &mut Update) {
        for change in &mut update.changes {
            let Change::Set(Resource::FunctionConfig(config)) = change else { continue };
            if !self.0.contains_key(&config.id) {
                self.0.extend(shared.state().config(&config.id).map(|running| (config.id.clone(), running)));
            }
            let Some(running) = self.0.get(&config.id) else { continue };
            if let Run::External(_) | Run::Egress(_) = running.run {
                continue;
            }
            let FunctionConfig { run, protocol, concurrency, queue, scale, revisions, chain, bounds, .. } =
                running.clone();
            (config.run, config.protocol, config.concurrency, config.queue) = (run, protocol, concurrency, queue);
            (config.scale, config.revisions, config.chain, config.bounds) = (scale, revisions, chain, bounds);
        }
    }
}

/// An update that withdraws all permissions.
pub(crate) fn withdraw_all(shared: &Arc<AgentState>) -> Update {
    let held: Vec<_> = shared.state().held().keys().cloned().collect();
    let functions = held.iter().filter_map(|subject| match subject {
        Subject::FunctionConfig(id) => Some(Change::Withdrawn(id.clone())),
        _ => None,
    });
    let gone = held.iter().filter(|subject| matches!(subject, Subject::FunctionConfig(_) | Subject::Route(_)));
    let changes = gone.cloned().map(Change::Removed).chain(functions).collect();
    Update::new(shared.clone(), PARENT_STREAM, 0, changes, Vec::new(), BTreeMap::new())
}
