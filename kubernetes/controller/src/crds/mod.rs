//! The CustomResourceDefinitions, generated from the types of the documents.

mod rules;
mod structural;
mod yaml;

use leno_config::reference;
use serde_json::{Value, json};

/// The group of Leno's objects, and of its documents.
pub const GROUP: &str = "leno.dev";
/// The only version.
pub const VERSION: &str = "v1alpha1";

/// A kind of document that is an object of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectKind {
    /// Its name, as documents write it.
    pub name: &'static str,
    /// Its name in paths of the API server.
    pub plural: &'static str,
    /// Its short name for `kubectl get`.
    pub short: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// A column of `kubectl get`, with its type and path.
    column: (&'static str, &'static str, &'static str),
}

/// All of them.
pub const KINDS: [ObjectKind; 4] = [
    ObjectKind {
        name: "External",
        plural: "externals",
        short: "lext",
        namespaced: true,
        column: ("Host", "string", ".spec.hosts[0]"),
    },
    ObjectKind {
        name: "Mesh",
        plural: "meshes",
        short: "lmesh",
        namespaced: false,
        column: ("Trust domain", "string", ".spec.trustDomain"),
    },
    ObjectKind {
        name: "NamespaceQuota",
        plural: "namespacequotas",
        short: "lquota",
        namespaced: false,
        column: ("Functions", "integer", ".spec.functions"),
    },
    ObjectKind {
        name: "Policy",
        plural: "policies",
        short: "lpol",
        namespaced: true,
        column: ("Mode", "string", ".spec.mode"),
    },
];

impl ObjectKind {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// The name of its CustomResourceDefinition.
    pub fn definition_name(&self) -> String {
        format!("{}.{GROUP}", self.plural)
    }

    /// Its CustomResourceDefinition.
    pub fn definition(&self) -> Value {
        let Self { name, plural, short, namespaced, column: (column, column_type, column_path) } = *self;
        let condition = |column: &str, field: &str, priority: u8| {
            let path = format!(".status.conditions[?(@.type==\"{column}\")].{field}");
            let name = if field == "status" { column } else { "Reason" };
            json!({"name": name, "type": "string", "jsonPath": path, "priority": priority})
        };
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.definition_name()},
            "spec": {
                "group": GROUP,
                "scope": if namespaced { "Namespaced" } else { "Cluster" },
                "names": {
                    "kind": name,
                    "listKind": format!("{name}List"),
                    "plural": plural,
                    "singular": name.to_lowercase(),
                    "shortNames": [short],
                    "categories": ["leno"],
                },
                "versions": [{
                    "name": VERSION,
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": structural::object(&schema(name))},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": column, "type": column_type, "jsonPath": column_path},
                        condition("Accepted", "status", 0),
                        condition("Programmed", "status", 0),
                        condition("Accepted", "reason", 1),
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                }],
            },
        })
    }

    /// The same as YAML, with a comment that names its source.
    pub fn definition_yaml(&self) -> String {
        format!(
            "# Generated from crates/config/src/document; `leno-controller crds` prints it.\n{}",
            yaml::text(&self.definition())
        )
    }
}

/// The JSON Schema of a kind.
fn schema(name: &str) -> Value {
    reference::schemas().into_iter().find(|(kind, _)| *kind == name).map(|(_, schema)| schema).unwrap_or_default()
}
