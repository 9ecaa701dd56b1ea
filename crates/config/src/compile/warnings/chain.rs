//! Chains with parts that get nothing.

use super::Mesh;
use crate::compile::{TypedDocument, fields};
use crate::document;
use std::collections::BTreeSet;

impl Mesh<'_> {
    /// Functions of a chain that no path through memory reaches from its entry.
    pub(super) fn chain(&self, placed: &TypedDocument<document::Chain>) {
        let document::Chain { metadata, spec, .. } = &placed.document;
        let parsed = |name: &str| fields::parsed(&metadata.namespace, name);
        let Some(entry) = parsed(&spec.entry) else { return };
        let (mut reached, mut next) = (BTreeSet::from([entry.clone()]), vec![entry.clone()]);
        while let Some(link) = next.pop().and_then(|id| self.functions.get(&id)?.chain.as_ref()) {
            next.extend(link.to.iter().filter(|id| reached.insert((*id).clone())).cloned());
        }
        let root = placed.scope(&self.found);
        let scope = root.field("spec");
        let list = scope.field("functions");
        for (index, member) in spec.functions.iter().enumerate() {
            if let Some(id) = parsed(&member.name).filter(|id| !reached.contains(id)) {
                let message = format!("no path of `to` leads from `{entry}` to `{id}`");
                list.element(index).problem(message, "add it to the `to` of a function, or take it out of the chain");
            }
        }
    }
}
