//! `metadata` of all kinds.

use std::collections::BTreeMap;

/// Name, namespace and labels of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Name.
    pub name: String,
    /// Namespace; empty for kinds of the whole mesh.
    pub namespace: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}
