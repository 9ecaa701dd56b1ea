//! Namespace objects of Kubernetes (`apiVersion: v1`). Listeners of Gateways select namespaces by
//! their labels, so they belong to the mesh: only who may write for all namespaces can write one.

use crate::problem::Scope;
use crate::yaml::{Node, Value};
use leno_model::function_id::is_label;
use std::collections::BTreeMap;

/// The kind, as documents write it.
pub(crate) const KIND: &str = "Namespace";

/// The name and the labels of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceObject {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Whether a document is one.
pub(crate) fn is_one(document: &Node) -> bool {
    let is = |field: &str, text: &str| document.get(field).and_then(Node::text) == Some(text);
    is("apiVersion", "v1") && is("kind", KIND)
}

/// Reads one. Other fields, such as annotations and the status, mean nothing here. `None`: problems
/// were reported.
pub(crate) fn read(root: &Scope<'_>) -> Option<NamespaceObject> {
    let metadata = root.field("metadata");
    let name = metadata.field("name");
    let Some(written) = name.node().and_then(Node::text).filter(|written| is_label(written)) else {
        name.problem("this cannot be the name of a namespace", "expected a DNS label, such as `shop`");
        return None;
    };
    let scope = metadata.field("labels");
    let entries = match scope.node().map(|node| &node.value) {
        Some(Value::Map(entries)) => &entries[..],
        _ if scope.node().is_none_or(Node::is_null) => &[],
        _ => {
            scope.problem("labels are a mapping", "expected `labels: {KEY: VALUE}`");
            return None;
        }
    };
    let mut labels = BTreeMap::new();
    for (key, value) in entries {
        let text = match &value.value {
            Value::Scalar { text, .. } if !value.is_null() => text.clone(),
            _ if value.is_null() => String::new(),
            _ => {
                scope.field(&key.text).problem("the value of a label is a text", "expected `KEY: VALUE`");
                return None;
            }
        };
        labels.insert(key.text.clone(), text);
    }
    Some(NamespaceObject { name: written.to_owned(), labels })
}
