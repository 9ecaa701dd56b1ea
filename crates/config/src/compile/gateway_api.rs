//! Documents of the Gateway API: their names, and their share in the quota of their namespace.

use super::TypedDocument;
use crate::document_id::DocumentId;
use crate::namespace::NamespaceUse;
use crate::problem::{Origin, Problem};
use leno_gateway_api::Resource;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

type Placed = Arc<TypedDocument<Resource>>;

/// The use that each document of a namespace makes of its quota. Reports documents of the same
/// kind, namespace and name.
pub(super) fn uses(all: &[Placed], problems: &RefCell<Vec<Problem>>) -> BTreeMap<DocumentId, NamespaceUse> {
    let mut lines = BTreeMap::new();
    let mut uses = BTreeMap::new();
    for placed in all {
        let (root, id) = (placed.scope(problems), DocumentId::of_resource(&placed.document));
        match lines.entry(id.clone()) {
            Entry::Occupied(first) => {
                let message = format!("there is another {id}, in {}", first.get());
                root.field("metadata").field("name").problem(message, "give each its own name");
                continue;
            }
            Entry::Vacant(entry) => drop(entry.insert(root.line())),
        }
        if !id.namespace.is_empty() {
            let route_matches = route_matches(&placed.document);
            uses.insert(id, NamespaceUse { routes: 1, route_matches, ..NamespaceUse::default() });
        }
    }
    uses
}

/// The places of documents that are files: problems without text.
pub(super) fn places(all: &[Placed]) -> impl Iterator<Item = (DocumentId, Problem)> {
    let files = all.iter().filter(|placed| placed.origin == Origin::File);
    files.map(|placed| (DocumentId::of_resource(&placed.document), placed.scope(&RefCell::default()).here()))
}

/// Entries of route tables: the matches of all rules, for each host of each parent.
fn route_matches(resource: &Resource) -> u64 {
    let (matches, hosts, parents) = match resource {
        Resource::HTTPRoute(route) => {
            let spec = &route.spec;
            let matches: usize = spec.rules.iter().map(|rule| rule.matches.len().max(1)).sum();
            (matches, spec.hostnames.len(), spec.parent_refs.len())
        }
        Resource::GRPCRoute(route) => {
            let spec = &route.spec;
            let matches: usize = spec.rules.iter().map(|rule| rule.matches.len().max(1)).sum();
            (matches, spec.hostnames.len(), spec.parent_refs.len())
        }
        Resource::TLSRoute(route) => (route.spec.rules.len(), route.spec.hostnames.len(), route.spec.parent_refs.len()),
        Resource::TCPRoute(route) => (route.spec.rules.len(), 1, route.spec.parent_refs.len()),
        Resource::Gateway(_)
        | Resource::GatewayClass(_)
        | Resource::ReferenceGrant(_)
        | Resource::BackendTLSPolicy(_) => return 0,
    };
    (matches * hosts.max(1) * parents.max(1)) as u64
}
