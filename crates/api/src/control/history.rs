//! The history of documents: the audit log, with the differences of texts that the store keeps for
//! each namespace, up to a number of bytes.

use super::audit;
use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::{Action, AuditEntry, ChangeRequest, Refusal, Replay, Role};
use super::views::ViewPage;
use crate::changes::{ChangeRecord, ChangedDocument, ChangedVerdicts, difference};
use aws_lc_rs::digest::{SHA256, digest};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use leno_config::DocumentId;
use leno_control::{Backend, StoreError, Transaction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::block_in_place;
use utoipa::IntoParams;

/// Prefix of the keys of differences. The namespace follows, and the end of the audit entry's key.
const PREFIX: &str = "history/";
/// Bytes of differences that the store keeps of one namespace, and of one change.
const MOST_OF_NAMESPACE: usize = 512 << 10;
const MOST_OF_CHANGE: usize = 256 << 10;
/// Namespaces of which one change keeps differences.
const MOST_NAMESPACES: usize = 16;
/// Changes in one answer, and without a number in the request.
const MOST_LISTED: usize = 100;
const LISTED: usize = 20;
/// Dry runs whose replays are remembered for the change that follows.
const MOST_DRY_RUNS: usize = 256;

/// The differences of one change in one namespace, as the store keeps them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Differences {
    /// By the name of the document.
    documents: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verdicts: Option<ChangedVerdicts>,
}

/// Verdicts that a change changes, by namespace.
pub(super) type Verdicts = BTreeMap<String, ChangedVerdicts>;

/// The replays of the last dry runs, by the caller and the documents.
#[derive(Debug, Default)]
pub(super) struct DryRuns(Mutex<VecDeque<([u8; 32], Verdicts)>>);

impl DryRuns {
    /// Remembers the result of a dry run.
    pub(super) fn remember(&self, caller: &Caller, request: &ChangeRequest, replay: &Replay) {
        let mut verdicts = Verdicts::new();
        for function in &replay.functions {
            let namespace = function.function.split('/').next().unwrap_or_default();
            let sum = verdicts.entry(namespace.to_owned()).or_default();
            sum.judged += function.judged;
            sum.newly_denied += function.newly_denied;
            sum.newly_allowed += function.newly_allowed;
        }
        let this = fingerprint(caller, request);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(other, _)| *other != this);
        known.push_back((this, verdicts));
        if known.len() > MOST_DRY_RUNS {
            known.pop_front();
        }
    }

    /// The result of the dry run of the same change by the same caller; none: there was none.
    pub(super) fn of(&self, caller: &Caller, request: &ChangeRequest) -> Verdicts {
        let this = fingerprint(caller, request);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(other, _)| *other == this).map(|(_, verdicts)| verdicts.clone()).unwrap_or_default()
    }
}

/// The same for a dry run and the change that follows it.
fn fingerprint(caller: &Caller, request: &ChangeRequest) -> [u8; 32] {
    let texts: Vec<&String> = request.apply.iter().map(|file| &file.text).collect();
    let subject = json!([caller.name, texts, request.delete]).to_string();
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest(&SHA256, subject.as_bytes()).as_ref());
    fingerprint
}

/// A changed document with its texts.
pub(super) struct ChangedText<'a> {
    pub id: &'a DocumentId,
    /// Before; `None`: there was none.
    pub before: Option<String>,
    /// Afterwards; `None`: it was deleted.
    pub after: Option<&'a str>,
}

/// Adds the differences to the transaction of a change whose audit entry has this key, as far as the
/// bounds of the store permit: a change never fails because of its history.
pub(super) fn add(
    transaction: &mut Transaction,
    backend: &dyn Backend,
    entry: &str,
    changed: &[ChangedText<'_>],
    verdicts: &Verdicts,
) {
    let mut namespaces: BTreeMap<&str, Differences> = BTreeMap::new();
    let mut bytes = 0;
    for ChangedText { id, before, after } in changed {
        let is_new = !namespaces.contains_key(id.namespace.as_str());
        if is_new && namespaces.len() == MOST_NAMESPACES {
            continue;
        }
        let of_namespace = namespaces.entry(&id.namespace).or_default();
        of_namespace.verdicts = verdicts.get(&id.namespace).copied();
        if let Some(difference) = difference(id, before.as_deref(), *after)
            && bytes + difference.len() <= MOST_OF_CHANGE
        {
            bytes += difference.len();
            of_namespace.documents.insert(id.to_string(), difference);
        }
    }
    let mut with_history = transaction.clone();
    for (namespace, differences) in &namespaces {
        // A text and numbers can always be encoded.
        let value = serde_json::to_vec(differences).unwrap_or_default();
        with_history.put(format!("{}{}", prefix(namespace), audit::end_of_key(entry)), value);
    }
    if with_history.fits(backend.limits()) {
        *transaction = with_history;
    } else {
        tracing::warn!("the change is so large that its differences are not kept");
    }
}

/// Removes the oldest differences beyond the bytes that the store keeps of a namespace. Blocks on
/// the store.
pub(super) fn trim(backend: &dyn Backend, namespace: &str) -> Result<(), StoreError> {
    let entries = backend.list(&prefix(namespace))?.entries;
    let mut bytes: usize = entries.iter().map(|entry| entry.value.len()).sum();
    let mut transaction = Transaction::default();
    for entry in entries.iter().take(backend.limits().changes) {
        if bytes <= MOST_OF_NAMESPACE {
            break;
        }
        bytes -= entry.value.len();
        transaction.delete(entry.key.clone());
    }
    if !transaction.changes.is_empty() {
        backend.commit(&transaction)?;
    }
    Ok(())
}

/// No namespace is named `-`, which stands for documents of the mesh.
fn prefix(namespace: &str) -> String {
    format!("{PREFIX}{}/", if namespace.is_empty() { "-" } else { namespace })
}

impl Service {
    /// The last changes of documents that the caller may read, latest first. Blocks on the store.
    fn history(&self, caller: &Caller, filter: &HistoryFilter) -> Result<Vec<ChangeRecord>, ApiError> {
        caller.needs(Role::Reader)?;
        let limit = filter.limit.unwrap_or(LISTED).min(MOST_LISTED);
        let is_wanted = |namespace: &str| filter.namespace.as_deref().is_none_or(|wanted| wanted == namespace);
        let may_see = |namespace: &str| is_wanted(namespace) && caller.may_know_namespace(namespace);
        let mut records = Vec::new();
        for read in audit::latest(&*self.backend)? {
            if records.len() == limit {
                break;
            }
            let (key, entry) = read?;
            let seen: Vec<(&str, &str, Action)> =
                documents(&entry).filter(|(_, namespace, _)| may_see(namespace)).collect();
            if seen.is_empty() {
                continue;
            }
            let mut kept: BTreeMap<&str, Differences> = BTreeMap::new();
            for (_, namespace, _) in &seen {
                if !kept.contains_key(namespace) {
                    let stored = self.backend.get(&format!("{}{}", prefix(namespace), audit::end_of_key(&key)))?;
                    let read = stored.and_then(|stored| serde_json::from_slice(&stored.value).ok());
                    kept.insert(namespace, read.unwrap_or_default());
                }
            }
            let of = |(document, namespace, action): &(&str, &str, Action)| ChangedDocument {
                what: (*document).to_owned(),
                action: *action,
                diff: kept.get(namespace).and_then(|kept| kept.documents.get(*document).cloned()),
            };
            records.push(ChangeRecord {
                time: entry.time,
                revision: entry.revision,
                by: entry.by.clone(),
                changes: seen.iter().map(of).collect(),
                verdicts: kept.values().filter_map(|kept| kept.verdicts).reduce(ChangedVerdicts::and),
            });
        }
        Ok(records)
    }
}

/// The documents of an audit entry, with namespace and change. Tokens and nodes have no namespace
/// and are none.
fn documents(entry: &AuditEntry) -> impl Iterator<Item = (&str, &str, Action)> {
    entry.changes.iter().filter_map(|change| {
        let (kind, name) = change.what.split_once(' ')?;
        let is_document = kind.starts_with(char::is_uppercase);
        let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
        is_document.then_some((&*change.what, namespace, change.action))
    })
}

/// Which changes are asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryFilter {
    /// Only documents of this namespace; empty: documents of the mesh itself.
    namespace: Option<String>,
    /// Number of changes, at most 100; without it 20.
    limit: Option<usize>,
}

/// Who changed which documents, latest first, with the unified differences of their texts. The store keeps 512 KiB of differences of each namespace, none of secrets.
#[utoipa::path(
    get, path = "/v1/history", params(HistoryFilter),
    responses(
        (status = 200, description = "Changes of documents that the token may read; each row is a ChangeRecord.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 503, description = "The store does not answer.", body = Refusal),
    )
)]
pub(super) async fn history(
    caller: Caller,
    State(service): State<Arc<Service>>,
    filter: Result<Query<HistoryFilter>, QueryRejection>,
) -> Result<Json<ViewPage>, ApiError> {
    let Query(filter) = filter.map_err(|rejection| ApiError::Bad(rejection.body_text()))?;
    let records = block_in_place(|| service.history(&caller, &filter))?;
    let rows: Vec<Value> = records.iter().map(|record| json!(record)).collect();
    Ok(Json(ViewPage { rows, ..ViewPage::default() }))
}
