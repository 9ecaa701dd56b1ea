//! An object of the API server that is a document.

use crate::api::{Metadata, Object};
use crate::crds::{GROUP, VERSION};
use leno_config::{Document, DocumentId, Problem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The condition of an object that is valid together with all others.
pub const ACCEPTED: &str = "Accepted";

/// An object of one of [`KINDS`](crate::crds::KINDS).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DocumentObject {
    /// Its metadata.
    pub metadata: Metadata,
    /// Its specification, as the user wrote it.
    pub spec: Value,
    /// Its status, as the controller last wrote it.
    pub status: ObjectStatus,
}

impl Object for DocumentObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The status of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectStatus {
    /// The generation that the conditions are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions. Other controllers may have added theirs.
    pub conditions: Vec<Condition>,
    /// The version that stays in force while the present one is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<VersionInForce>,
}

impl ObjectStatus {
    /// Whether a controller had this generation in force.
    pub(crate) fn is_accepted(&self, generation: i64) -> bool {
        let mut conditions = self.conditions.iter().filter(|condition| condition.kind == ACCEPTED);
        conditions.any(|one| one.status == "True" && one.observed_generation == Some(generation))
    }
}

/// A condition, as all kinds of Kubernetes have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one word.
    pub reason: String,
    /// Why, in sentences.
    pub message: String,
    /// The generation that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` changed last (RFC 3339).
    pub last_transition_time: String,
}

/// An earlier version of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VersionInForce {
    /// Its generation.
    pub generation: i64,
    /// Its specification.
    pub spec: Value,
}

/// The document with a specification. Problems name the document and its fields, and no lines: the
/// object has none.
pub(crate) fn document(id: &DocumentId, spec: &Value) -> Result<Document, Vec<Problem>> {
    let mut metadata = json!({"name": id.name});
    if !id.namespace.is_empty() {
        metadata["namespace"] = Value::from(&*id.namespace);
    }
    labelled(id, metadata, spec)
}

/// The same with these metadata.
pub(crate) fn labelled(id: &DocumentId, metadata: Value, spec: &Value) -> Result<Document, Vec<Problem>> {
    let mut object = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": id.kind, "metadata": metadata});
    if !spec.is_null() {
        object["spec"] = spec.clone();
    }
    // JSON is YAML.
    let text = object.to_string();
    Document::restore(id, &text).map_err(|problems| problems.into_iter().map(without_line).collect())
}

/// The specification of a document that [`document`] made.
pub(crate) fn spec(document: &Document) -> Value {
    let mut object: Value = serde_json::from_str(document.text()).unwrap_or_default();
    object["spec"].take()
}

/// A problem of an object.
pub(crate) fn without_line(problem: Problem) -> Problem {
    Problem { line: 0, column: 0, ..problem }
}

/// A problem of an object that could not be read.
pub(crate) fn unreadable(id: &DocumentId, field: &str, message: &str) -> Problem {
    Problem {
        file: Path::new(&id.to_string()).to_owned(),
        line: 0,
        column: 0,
        field: field.to_owned(),
        message: message.to_owned(),
        fix: String::new(),
    }
}
