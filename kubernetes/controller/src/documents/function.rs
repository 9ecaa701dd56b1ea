//! The documents of workloads.

use super::object::labelled;
use crate::index::Workload;
use leno_config::{Document, DocumentId};
use leno_model::FunctionId;
use serde_json::json;
use std::collections::BTreeMap;

/// A Function document for each workload with enrolled pods.
#[derive(Clone, Default)]
pub struct Functions(BTreeMap<FunctionId, Document>);

impl Functions {
    /// Applies changes of workloads; `None`: it is gone. Returns whether a document changed.
    pub fn apply(&mut self, workloads: BTreeMap<FunctionId, Option<Workload>>) -> bool {
        let mut changed = false;
        for (id, workload) in workloads {
            let document = workload.and_then(|workload| document(&id, &workload));
            let before = match &document {
                Some(document) => self.0.insert(id, document.clone()),
                None => self.0.remove(&id),
            };
            changed |= before.as_ref().map(Document::text) != document.as_ref().map(Document::text);
        }
        changed
    }

    /// Their documents.
    pub fn documents(&self) -> impl Iterator<Item = &Document> {
        self.0.values()
    }
}

/// The document of a workload; `None`: it cannot be a function, which is logged.
fn document(function: &FunctionId, workload: &Workload) -> Option<Document> {
    let id =
        DocumentId { kind: "Function".to_owned(), namespace: function.namespace.clone(), name: function.name.clone() };
    let metadata = json!({"name": id.name, "namespace": id.namespace, "labels": workload.labels});
    let Workload { service_account, other_accounts, mode, ports, .. } = workload;
    let mut pods = json!({"serviceAccount": service_account, "mode": mode, "ports": ports});
    if !other_accounts.is_empty() {
        pods["otherAccounts"] = json!(other_accounts);
    }
    let spec = json!({"pods": pods});
    let document = labelled(&id, metadata, &spec);
    document.map_err(|problems| problems.iter().for_each(|problem| tracing::warn!("{problem}"))).ok()
}
