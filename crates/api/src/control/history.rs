//! The history of documents: the audit log, with the differences of texts that the store keeps for
//! each namespace, up to a number of bytes.
//!
//! It ends with the namespace's last document: the name may belong to another tenant afterwards.

use super::audit;
use super::audit_index::IndexedEntry;
use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::{Action, AuditEntry, ChangeRequest, Refusal, Replay, Role};
use super::views::ViewPage;
use crate::changes::{Budget, ChangeRecord, ChangedDocument, ChangedVerdicts};
use aws_lc_rs::digest::{SHA256, digest};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use leno_config::DocumentId;
use leno_control::{Backend, Entry, StoreError, Transaction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::block_in_place;
use utoipa::IntoParams;

/// Prefix of the keys of differences. The namespace follows, and the end of the audit entry's key.
const PREFIX: &str = "history/";
/// Prefix of the keys of ends. The namespace follows. The value is the end of the key of the audit
/// entry of the change that removed the namespace's last document; the version is its revision.
const ENDS: &str = "history-ends/";
/// Bytes of differences that the store keeps of one namespace.
const MOST_OF_NAMESPACE: usize = 512 << 10;
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

/// The history of one change.
#[derive(Debug, Default)]
pub(super) struct ChangeHistory {
    /// By namespace.
    differences: BTreeMap<String, Differences>,
    /// Namespaces that have no document any more.
    ended: BTreeSet<String>,
}

impl ChangeHistory {
    /// Computes the differences, which can take a while. `remaining`: namespaces of the documents
    /// after the change.
    pub(super) fn of(changed: &[ChangedText<'_>], remaining: &BTreeSet<&str>, verdicts: &Verdicts) -> Self {
        let (mut history, mut budget) = (Self::default(), Budget::of_change());
        for ChangedText { id, before, after } in changed {
            let namespace = &id.namespace;
            if !remaining.contains(namespace.as_str()) {
                history.ended.insert(namespace.clone());
                continue;
            }
            let is_new = !history.differences.contains_key(namespace);
            if is_new && history.differences.len() == MOST_NAMESPACES {
                continue;
            }
            let of_namespace = history.differences.entry(namespace.clone()).or_default();
            of_namespace.verdicts = verdicts.get(namespace).copied();
            if let Some(difference) = budget.difference(id, before.as_deref(), *after) {
                of_namespace.documents.insert(id.to_string(), difference);
            }
        }
        history
    }

    /// Adds the history to the transaction of the change, whose audit entry has this key: the
    /// differences as far as the bounds of the store permit, since a change never fails because of
    /// them; the ends of namespaces always, since they hide the texts of former tenants.
    pub(super) fn add(&self, transaction: &mut Transaction, backend: &dyn Backend, entry: &str) {
        let end = audit::end_of_key(entry);
        self.ended.iter().for_each(|namespace| transaction.put(end_key(namespace), end));
        let mut with_differences = transaction.clone();
        for (namespace, differences) in &self.differences {
            // A text and numbers can always be encoded.
            let value = serde_json::to_vec(differences).unwrap_or_default();
            with_differences.put(format!("{}{end}", prefix(namespace)), value);
        }
        if with_differences.fits(backend.limits()) {
            *transaction = with_differences;
        } else {
            tracing::warn!("the change is so large that its differences are not kept");
        }
    }
}

/// Removes the differences of a namespace up to its end, and the oldest ones beyond the bytes that
/// the store keeps. Blocks on the store.
pub(super) fn trim(backend: &dyn Backend, namespace: &str) -> Result<(), StoreError> {
    let end = backend.get(&end_key(namespace))?.map_or(0, |end| end.version);
    let entries = backend.list(&prefix(namespace))?.entries;
    let mut bytes: usize = entries.iter().map(|entry| entry.value.len()).sum();
    let mut surplus = Vec::new();
    for entry in entries {
        if entry.version <= end || bytes > MOST_OF_NAMESPACE {
            bytes -= entry.value.len();
            surplus.push(entry.key);
        }
    }
    audit::delete(backend, &surplus)
}

/// The keys of the differences and ends of an audit entry's change. Blocks on the store.
pub(super) fn keys_beside(backend: &dyn Backend, stored: &Entry) -> Result<Vec<String>, StoreError> {
    let (Ok(entry), end) = (audit::read(backend, stored), audit::end_of_key(&stored.key)) else {
        return Ok(Vec::new());
    };
    let changed: BTreeSet<&str> = documents(&entry).map(|(_, namespace, _)| namespace).collect();
    let mut keys: Vec<String> = changed.iter().map(|namespace| format!("{}{end}", prefix(namespace))).collect();
    let deleted = documents(&entry).filter(|(.., action)| *action == Action::Deleted);
    for namespace in deleted.map(|(_, namespace, _)| namespace).collect::<BTreeSet<&str>>() {
        let key = end_key(namespace);
        if backend.get(&key)?.is_some_and(|kept| kept.value == end.as_bytes()) {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// No namespace is named `-`, which stands for documents of the mesh.
fn prefix(namespace: &str) -> String {
    format!("{PREFIX}{}/", if namespace.is_empty() { "-" } else { namespace })
}

fn end_key(namespace: &str) -> String {
    format!("{ENDS}{}", if namespace.is_empty() { "-" } else { namespace })
}

impl Service {
    /// The last changes of documents that the caller may read, latest first, and where the next
    /// answer begins; empty: there are no more. Blocks on the store.
    fn history(&self, caller: &Caller, filter: &HistoryFilter) -> Result<(Vec<ChangeRecord>, String), ApiError> {
        caller.needs(Role::Reader)?;
        let limit = match filter.revision {
            Some(_) => 1,
            None => filter.limit.unwrap_or(LISTED).min(MOST_LISTED),
        };
        let is_wanted = |namespace: &str| filter.namespace.as_deref().is_none_or(|wanted| wanted == namespace);
        // Earlier changes are for callers of the whole mesh.
        let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
        for namespace in caller.namespaces.iter().filter(|namespace| is_wanted(namespace)) {
            if let Some(end) = self.backend.get(&end_key(namespace))? {
                ends.insert(namespace, end.version);
            }
        }
        let may_see = |namespace: &str, revision: u64| {
            is_wanted(namespace)
                && caller.may_know_namespace(namespace)
                && ends.get(namespace).is_none_or(|end| revision > *end)
        };
        let may_have = |entry: &IndexedEntry| {
            filter.revision.is_none_or(|revision| revision == entry.revision)
                && entry.concerns(|namespace| may_see(namespace, entry.revision))
        };
        self.audit_index.refresh(&*self.backend)?;
        let mut before = filter.after.as_deref().filter(|after| !after.is_empty()).map(audit::key);
        let (mut records, mut next) = (Vec::new(), String::new());
        while let Some(key) = self.audit_index.latest(before.as_deref(), 1, may_have).pop() {
            if records.len() == limit {
                next = before.as_deref().map(audit::end_of_key).unwrap_or_default().to_owned();
                break;
            }
            let stored = self.backend.get(&key)?;
            before = Some(key);
            // It may have been trimmed meanwhile.
            let Some(stored) = stored else { continue };
            let entry = audit::read(&*self.backend, &stored)?;
            let seen: Vec<(&str, &str, Action)> =
                documents(&entry).filter(|(_, namespace, _)| may_see(namespace, entry.revision)).collect();
            if seen.is_empty() {
                continue;
            }
            let mut kept: BTreeMap<&str, Differences> = BTreeMap::new();
            for (_, namespace, _) in &seen {
                if !kept.contains_key(namespace) {
                    let found =
                        self.backend.get(&format!("{}{}", prefix(namespace), audit::end_of_key(&stored.key)))?;
                    let read = found.and_then(|found| serde_json::from_slice(&found.value).ok());
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
        Ok((records, next))
    }
}

/// The documents of an audit entry, with namespace and change. Tokens and nodes have no namespace
/// and are none.
pub(super) fn documents(entry: &AuditEntry) -> impl Iterator<Item = (&str, &str, Action)> {
    entry.changes.iter().filter_map(|change| {
        let (kind, name) = change.what.split_once(' ')?;
        let is_document = kind.starts_with(char::is_uppercase);
        let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
        is_document.then_some((&*change.what, namespace, change.action))
    })
}

/// Which changes are asked for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryFilter {
    /// Only documents of this namespace; empty: documents of the mesh itself.
    namespace: Option<String>,
    /// Number of changes, at most 100; without it 20.
    limit: Option<usize>,
    /// Only the change that made this revision.
    revision: Option<u64>,
    /// Only earlier changes: `after` of the answer before.
    after: Option<String>,
}

/// Who changed which documents, latest first, with the unified differences of their texts. The store keeps 512 KiB of differences of each namespace, none of secrets. For a token with namespaces, the history of a namespace begins after it last had no document.
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
    let is_position = |text: &String| text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if !filter.after.iter().all(is_position) {
        return Err(ApiError::Bad("`after` is that of an earlier answer".to_owned()));
    }
    let (records, after) = block_in_place(|| service.history(&caller, &filter))?;
    let rows: Vec<Value> = records.iter().map(|record| json!(record)).collect();
    Ok(Json(ViewPage { rows, after, ..ViewPage::default() }))
}

#[cfg(test)]
mod tests {
    use super::super::types::AuditChange;
    use super::*;
    use leno_control::Redb;

    /// More entries than the store keeps.
    const MANY: usize = 10_003;

    #[test]
    fn differences_and_ends_go_with_their_audit_entries() {
        let folder = tempfile::tempdir().unwrap();
        let store = Redb::open(&folder.path().join("store.redb")).unwrap();
        let deleted = |at: usize| AuditEntry {
            time: at as f64,
            by: String::new(),
            from: String::new(),
            revision: 0,
            changes: vec![AuditChange { what: "Function a/shop".to_owned(), action: Action::Deleted, before: 1 }],
        };
        let mut transaction = Transaction::default();
        let keys: Vec<String> = (0..MANY).map(|at| audit::add(&mut transaction, &deleted(at)).unwrap()).collect();
        let end = |at: usize| audit::end_of_key(&keys[at]).to_owned();
        for at in [0, 1, MANY - 1] {
            transaction.put(format!("history/a/{}", end(at)), "{}");
        }
        transaction.put("history-ends/a", end(1));
        // This end is of a later change.
        transaction.put("history-ends/b", end(MANY - 1));
        store.commit(&transaction).unwrap();

        audit::trim(&store, |entry| keys_beside(&store, entry)).unwrap();
        let left = |prefix: &str| -> Vec<String> {
            store.list(prefix).unwrap().entries.into_iter().map(|entry| entry.key).collect()
        };
        assert_eq!(left("audit/"), keys[3..]);
        assert_eq!(left("history/"), [format!("history/a/{}", end(MANY - 1))]);
        assert_eq!(left("history-ends/"), ["history-ends/b"]);
        let latest: Vec<String> = audit::latest(&store).map(|entry| entry.unwrap().key).collect();
        assert!(latest.iter().eq(keys[3..].iter().rev()), "all pages, latest first");
    }
}
