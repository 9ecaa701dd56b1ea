//! Names of documents.

use crate::foreign::ForeignKind;
use crate::namespace_object;
use leno_gateway_api::{KIND_NAMES, Resource};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of a document. It is unique in a mesh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentId {
    /// As the document writes it, for example `Function`.
    pub kind: String,
    /// Empty for documents of the whole mesh: `Mesh`, `NamespaceQuota`, `Namespace`, `GatewayClass`
    /// and `CiliumClusterwideNetworkPolicy`.
    pub namespace: String,
    /// As the document writes it.
    pub name: String,
}

impl DocumentId {
    /// The kinds that a document may be of.
    pub const KINDS: [&str; 20] = [
        "Mesh",
        "Function",
        "Job",
        "External",
        "Chain",
        "Policy",
        "StoredSecret",
        "NamespaceQuota",
        namespace_object::KIND,
        ForeignKind::NAMES[0],
        ForeignKind::NAMES[1],
        ForeignKind::NAMES[2],
        KIND_NAMES[0],
        KIND_NAMES[1],
        KIND_NAMES[2],
        KIND_NAMES[3],
        KIND_NAMES[4],
        KIND_NAMES[5],
        KIND_NAMES[6],
        KIND_NAMES[7],
    ];

    /// The name of a document of this kind.
    pub(crate) fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The name of a document of the Gateway API.
    pub(crate) fn of_resource(resource: &Resource) -> Self {
        let metadata = resource.metadata();
        Self::new(resource.kind(), &metadata.namespace, &metadata.name)
    }

    /// Whether documents of a kind belong to the whole mesh and to no namespace.
    pub fn is_of_the_mesh(kind: &str) -> bool {
        ["Mesh", "NamespaceQuota", namespace_object::KIND, ForeignKind::NAMES[1]].contains(&kind)
            || leno_gateway_api::is_of_the_mesh(kind)
    }
}

impl fmt::Display for DocumentId {
    /// `Function demo/shop`, `Mesh main`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() { write!(f, "{kind} {name}") } else { write!(f, "{kind} {namespace}/{name}") }
    }
}
