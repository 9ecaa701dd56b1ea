//! Quotas of namespaces.

use super::error::ApiError;
use super::types::{NamespaceStatus, NodeBounds, Share};
use leno_config::{Document, DocumentId, NamespaceQuota, NamespaceUse, Snapshot};
use leno_control::FunctionStatus;
use std::collections::BTreeMap;

/// Use and quota of each namespace with documents or a quota.
#[derive(Default)]
pub(super) struct Namespaces(BTreeMap<String, (NamespaceUse, NamespaceQuota)>);

impl Namespaces {
    /// The namespaces of these documents, from which the snapshot was compiled.
    pub(super) fn of(documents: &BTreeMap<DocumentId, Document>, snapshot: &Snapshot) -> Self {
        let mut uses: BTreeMap<&str, NamespaceUse> = snapshot.namespaces();
        for (id, document) in documents.iter().filter(|(id, _)| !id.namespace.is_empty()) {
            uses.entry(&id.namespace).or_default().document_bytes += document.text().len() as u64;
        }
        let with_quota = |(name, used): (&str, NamespaceUse)| (name.to_owned(), (used, snapshot.quota(name).clone()));
        Self(uses.into_iter().map(with_quota).collect())
    }

    /// Refuses a change after which a namespace exceeds its quota by more than `before`.
    pub(super) fn check(&self, before: &Self) -> Result<(), ApiError> {
        let nothing = NamespaceUse::default();
        for (namespace, (used, quota)) in &self.0 {
            let before = before.0.get(namespace).map_or(&nothing, |(used, _)| used);
            if let Some(overrun) = used.overruns(quota, before).first() {
                let fix = format!("remove some, or have `{}` of its NamespaceQuota document raised", overrun.field);
                return Err(ApiError::Forbidden(format!("the namespace {namespace}: {overrun}; {fix}")));
            }
        }
        Ok(())
    }

    /// Use and bounds of each namespace. Nodes report the number of instances.
    pub(super) fn status(&self, functions: &[FunctionStatus]) -> Vec<NamespaceStatus> {
        let mut instances: BTreeMap<&str, u64> = BTreeMap::new();
        for function in functions {
            *instances.entry(&function.function.namespace).or_default() += function.instances.len() as u64;
        }
        let row = |(namespace, (used, quota)): (&String, &(NamespaceUse, NamespaceQuota))| {
            let instances = instances.get(namespace.as_str()).copied().unwrap_or_default();
            NamespaceStatus {
                namespace: namespace.clone(),
                functions: Share::new(used.functions, quota.functions),
                instances,
                rules: Share::new(used.rules, quota.rules),
                document_bytes: Share::new(used.document_bytes, quota.document_bytes),
                hosts: quota.hosts.clone(),
                engines: quota
                    .engines
                    .as_ref()
                    .map(|engines| engines.iter().map(|engine| format!("{engine:?}").to_lowercase()).collect()),
                node: NodeBounds::from(&quota.bounds),
            }
        };
        self.0.iter().map(row).collect()
    }
}
