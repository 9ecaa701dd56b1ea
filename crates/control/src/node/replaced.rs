//! A process of a node that another one has replaced, and that lets its open exchanges end. It has no stream; the process that has the node passes on what it
//! puts into force. Of that, this process takes what says whether its exchanges are still permitted. It starts nothing any more.

use super::agent::Shared;
use super::stream::PREDECESSOR;
use super::update::{Change, Update};
use crate::resource::{Resource, Subject};
use crate::wire::{self, v1};
use bytes::Bytes;
use leno_config::slice::Run;
use leno_config::{FunctionId, Slice};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tonic::Status;

/// An update from the process that has the node now.
#[derive(Debug)]
pub(crate) enum PassedOn {
    /// A message that is encoded.
    Update(Bytes),
    /// The other process has ended, or passes nothing on. So there is no word on which permissions remain.
    End,
}

/// The functions that a replaced process runs.
#[derive(Default)]
pub(crate) struct Replaced(HashMap<FunctionId, Slice>);

impl Replaced {
    /// The part of a delta that concerns this process.
    pub(crate) fn restrict(&mut self, shared: &Arc<Shared>, mut delta: v1::Delta) -> Result<v1::Delta, Status> {
        let desired = shared.desired();
        let mut resources = Vec::new();
        for resource in delta.resources {
            let subject = wire::subject(resource.subject.as_ref())?;
            let known = desired.held().get(&subject);
            let is_wanted = match &subject {
                Subject::Slice(_) => known.is_some(),
                Subject::Bundle | Subject::Module(_) | Subject::Endpoints(_) | Subject::Route(_) => true,
                Subject::Mesh | Subject::Routes | Subject::Hosted | Subject::Scale(_) | Subject::Quota(_) => false,
            };
            if is_wanted && known.map(|version| version.to_wire()) != Some(resource.version.clone()) {
                resources.push(resource);
            }
        }
        delta.resources = resources;
        let kinds = [v1::Kind::Slice, v1::Kind::Endpoints, v1::Kind::Route];
        delta.removed.retain(|subject| kinds.contains(&subject.kind()));
        Ok(delta)
    }

    /// Leaves the instances of functions as they are, whatever the update says of them.
    pub(crate) fn keep_instances(&mut self, shared: &Arc<Shared>, update: &mut Update) {
        for change in &mut update.changes {
            let Change::Set(Resource::Slice(slice)) = change else { continue };
            if !self.0.contains_key(&slice.id) {
                self.0.extend(shared.desired().slice(&slice.id).map(|running| (slice.id.clone(), running)));
            }
            let Some(running) = self.0.get(&slice.id) else { continue };
            if let Run::External(_) | Run::Egress(_) = running.run {
                continue;
            }
            let Slice { run, protocol, concurrency, queue, scale, revisions, chain, bounds, .. } = running.clone();
            (slice.run, slice.protocol, slice.concurrency, slice.queue) = (run, protocol, concurrency, queue);
            (slice.scale, slice.revisions, slice.chain, slice.bounds) = (scale, revisions, chain, bounds);
        }
    }
}

/// An update by which nothing is permitted any more.
pub(crate) fn nothing(shared: &Arc<Shared>) -> Update {
    let held: Vec<_> = shared.desired().held().keys().cloned().collect();
    let functions = held.iter().filter_map(|subject| match subject {
        Subject::Slice(id) => Some(Change::Withdrawn(id.clone())),
        _ => None,
    });
    let gone = held.iter().filter(|subject| matches!(subject, Subject::Slice(_) | Subject::Route(_)));
    let changes = gone.cloned().map(Change::Removed).chain(functions).collect();
    Update::new(shared.clone(), PREDECESSOR, 0, changes, Vec::new(), BTreeMap::new())
}
