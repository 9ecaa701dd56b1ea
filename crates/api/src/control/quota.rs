//! Quotas of namespaces.

use super::error::ApiError;
use super::types::{NamespaceStatus, NodeBounds, Share};
use crate::alerts::{Alert, notices};
use leno_config::{Document, DocumentId, NamespaceQuota, NamespaceUse, Snapshot, UseShare};
use leno_control::FunctionStatus;
use leno_model::FunctionId;
use std::collections::{BTreeMap, BTreeSet};

/// Use and quota of each namespace with documents or a quota.
#[derive(Default)]
pub(super) struct Namespaces {
    all: BTreeMap<String, (NamespaceUse, NamespaceQuota)>,
    /// The functions, jobs and External documents that name each stored secret.
    secret_users: BTreeMap<(String, String), BTreeSet<FunctionId>>,
    /// Rules without effect.
    notices: Vec<Alert>,
}

impl Namespaces {
    /// The namespaces of these documents, from which the snapshot was compiled.
    pub(super) fn of(documents: &[&Document], snapshot: &Snapshot) -> Self {
        let mut uses: BTreeMap<&str, NamespaceUse> = snapshot.namespaces();
        for document in documents.iter().filter(|document| !document.id().namespace.is_empty()) {
            uses.entry(&document.id().namespace).or_default().document_bytes += document.text().len() as u64;
        }
        let with_quota = |(name, used): (&str, NamespaceUse)| (name.to_owned(), (used, snapshot.quota(name).clone()));
        Self {
            all: uses.into_iter().map(with_quota).collect(),
            secret_users: snapshot.secret_users(),
            notices: notices::of_warnings(documents, snapshot.warnings()),
        }
    }

    /// Refuses a change after which a namespace exceeds its quota by more than `before`. `documents`
    /// and `snapshot`: those after the change.
    pub(super) fn check(&self, before: &Self, documents: &[&Document], snapshot: &Snapshot) -> Result<(), ApiError> {
        let nothing = NamespaceUse::default();
        for (namespace, (used, quota)) in &self.all {
            let before = before.all.get(namespace).map_or(&nothing, |(used, _)| used);
            let Some(overrun) = used.overruns(quota, before).into_iter().next() else { continue };
            let order: BTreeMap<_, _> = documents.iter().map(|document| document.id()).zip(0..).collect();
            let of_namespace = documents.iter().filter(|document| document.id().namespace == *namespace);
            let bytes = of_namespace.map(|document| UseShare {
                documents: vec![document.id().clone()],
                used: NamespaceUse { document_bytes: document.text().len() as u64, ..nothing },
            });
            let shares = snapshot.shares(namespace).into_iter().chain(bytes);
            let place = |index: usize| documents[index].place();
            let problems = overrun.problems(namespace, shares, |id| order.get(id).copied(), place);
            let fix = format!("remove some, or have `{}` of its NamespaceQuota document raised", overrun.field);
            let reason = format!("the namespace {namespace}: {overrun}; {fix}");
            return Err(ApiError::Quota { namespace: namespace.clone(), reason, problems });
        }
        Ok(())
    }

    /// Alerts about rules without effect.
    pub(super) fn notices(&self) -> Vec<Alert> {
        self.notices.clone()
    }

    /// The functions, jobs and External documents that name a stored secret.
    pub(super) fn secret_users(&self, id: &DocumentId) -> Vec<String> {
        let users = self.secret_users.get(&(id.namespace.clone(), id.name.clone()));
        users.into_iter().flatten().map(ToString::to_string).collect()
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
                secrets: Share::new(used.secrets, quota.secrets),
                secret_bytes: Share::new(used.secret_bytes, quota.secret_bytes),
                routes: Share::new(used.routes, quota.routes),
                route_matches: Share::new(used.route_matches, quota.route_matches),
                hosts: quota.hosts.clone(),
                engines: quota
                    .engines
                    .as_ref()
                    .map(|engines| engines.iter().map(|engine| format!("{engine:?}").to_lowercase()).collect()),
                node: NodeBounds::from(&quota.bounds),
            }
        };
        self.all.iter().map(row).collect()
    }
}
