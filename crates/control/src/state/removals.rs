//! Functions that were removed, and whether their callers are still permitted: whether all policies are still there that each of them had.
//!
//! Nodes drain a removed function whose callers are still permitted. Of another one, and of one that is not known here, they close what is open.

use super::State;
use leno_config::permissions::Policies;
use leno_config::{FunctionId, Permissions};
use leno_wire::{Subject, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most removed functions whose policies are kept. The open exchanges of further ones are closed.
const MAX_REMOVED: usize = 65_536;

/// Removed functions whose callers are still permitted.
pub(super) type Removals = BTreeMap<FunctionId, Removal>;

pub(super) struct Removal {
    /// The last version of its slice.
    version: Version,
    policies: Policies,
    /// The nodes that drain it.
    nodes: BTreeSet<Arc<str>>,
}

impl State {
    /// Notes that a function is about to be removed. Its permissions have to be those of before.
    pub(super) fn note_removal(&mut self, id: &FunctionId) {
        let content = self.compiled.contents.get(&Subject::Slice(id.clone()));
        if let (Some(content), Some(policies)) = (content, self.compiled.permissions.of(id)) {
            let removal = Removal { version: content.version, policies, nodes: BTreeSet::new() };
            self.removals.insert(id.clone(), removal);
        }
    }

    /// Takes over which policies there are. Nodes close what is open of removed functions whose policies are not there any more.
    pub(super) fn set_permissions(&mut self, permissions: Permissions) {
        self.compiled.permissions = permissions;
        let State { removals, compiled, .. } = self;
        removals.retain(|id, _| !compiled.functions.contains_key(id));
        let ended = removals.extract_if(.., |_, removal| !compiled.permissions.contain(&removal.policies));
        let mut ended: Vec<_> = ended.collect();
        while removals.len() > MAX_REMOVED {
            ended.extend(removals.pop_first());
        }
        for (id, removal) in ended {
            for name in removal.nodes {
                let Some(node) = self.nodes.get_mut(&name) else { continue };
                node.withdrawn.insert(id.clone(), None);
                if let Some(session) = &node.session {
                    session.wake.notify_one();
                }
            }
        }
    }

    /// Whether a node that is to have a slice no more has to close what is open of the function. If not, it drains the function.
    pub(super) fn is_withdrawn(&mut self, name: &Arc<str>, id: &FunctionId) -> bool {
        let subject = Subject::Slice(id.clone());
        let last = match self.compiled.contents.get(&subject) {
            // It is on other nodes.
            Some(content) => content.version,
            None => match self.removals.get_mut(id) {
                Some(removal) => {
                    removal.nodes.insert(name.clone());
                    removal.version
                }
                None => return true,
            },
        };
        let Some(node) = self.nodes.get(name) else { return true };
        let sent = node.session.as_ref().and_then(|session| *session.sent.get(&subject)?);
        // The node has not heard of the last change, or has not put it into force. It may have withdrawn a permission.
        sent != Some(last) || node.rejected.contains_key(&subject)
    }
}
