//! Policies that stand for one that cannot be used.

use super::object::document;
use leno_config::{Document, DocumentId};
use serde_json::{Value, json};

/// The fields that say which functions a policy is for.
const FIELDS: [&str; 4] = ["functions", "selector", "selectorExpressions", "namespaces"];

/// The functions that a denial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Those that the policy names or selects.
    OfPolicy,
    /// All functions of its namespace: those of the policy cannot be read.
    Namespace,
}

/// Whether a specification says which functions the policy is for.
pub(crate) fn has_target(spec: &Value) -> bool {
    FIELDS.iter().any(|field| spec.get(field).is_some_and(|value| !value.is_null()))
}

/// A policy that refuses all calls to the functions of a policy; `None`: these cannot be read.
pub(crate) fn of(id: &DocumentId, spec: &Value, target: Target) -> Option<Document> {
    let mut denial = json!({"authorization": {"rules": [{"name": "invalid-policy", "action": "deny"}]}});
    match target {
        Target::OfPolicy if !has_target(spec) => return None,
        Target::OfPolicy => {
            for field in FIELDS {
                if let Some(value) = spec.get(field) {
                    denial[field] = value.clone();
                }
            }
        }
        Target::Namespace => denial["selector"] = json!({}),
    }
    document(id, &denial).ok()
}
