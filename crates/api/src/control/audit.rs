//! The audit log: in the store, with the change itself, and in a file for log collectors.

use super::types::AuditEntry;
use anyhow::{Context, Result};
use aws_lc_rs::rand;
use leno_control::{Backend, Entry, StoreError, Transaction};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Prefix of the keys of entries. The time follows, so the keys sort by time.
const PREFIX: &str = "audit/";
/// Entries that the store keeps.
pub(super) const KEPT: usize = 10_000;
/// Entries that one transaction removes, or one read of the store returns.
pub(super) const AT_A_TIME: usize = 100;

/// A file with one JSON object per line.
pub struct Lines(Mutex<File>);

impl Lines {
    /// Appends to this file, with mode 0600.
    pub fn open(path: &Path) -> Result<Self> {
        let file = leno_files::open_log(path, 0o600);
        Ok(Self(Mutex::new(file.with_context(|| format!("the audit log {} cannot be opened", path.display()))?)))
    }

    /// Appends an entry. The change is already in force, so a failure is only logged.
    pub fn add(&self, entry: &AuditEntry) {
        let line = serde_json::to_string(entry).unwrap_or_default();
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(file, "{line}").and_then(|()| file.sync_data()) {
            tracing::error!(%error, line, "an entry is missing in the file of the audit log; the store has it");
        }
    }
}

/// Adds an entry to its change's transaction. Returns the entry's key.
pub(super) fn add(transaction: &mut Transaction, entry: &AuditEntry) -> Result<String, StoreError> {
    let mut tail = [0; 4];
    // Two entries of one millisecond need two keys.
    let random = rand::fill(&mut tail).is_ok();
    debug_assert!(random);
    let key = format!("{PREFIX}{:016}-{:08x}", (entry.time * 1e3) as u64, u32::from_be_bytes(tail));
    let failed = |reason: String| StoreError::Failed { store: "the audit log".to_owned(), reason };
    transaction.expect(key.clone(), 0);
    transaction.put(key.clone(), serde_json::to_vec(entry).map_err(|error| failed(error.to_string()))?);
    Ok(key)
}

/// The part of an entry's key that names it.
pub(super) fn end_of_key(key: &str) -> &str {
    key.strip_prefix(PREFIX).unwrap_or(key)
}

/// The key of an entry that is named by its end.
pub(super) fn key(end: &str) -> String {
    format!("{PREFIX}{end}")
}

/// The last entries, latest first. Blocks on the store.
pub(super) fn list(backend: &dyn Backend, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
    latest(backend).take(limit).map(|stored| read(backend, &stored?)).collect()
}

/// The stored entries, latest first; a page of them is in memory at a time. Blocks on the store.
pub(super) fn latest(backend: &dyn Backend) -> impl Iterator<Item = Result<Entry, StoreError>> {
    let (mut page, mut before, mut has_more) = (Vec::new().into_iter(), None::<String>, true);
    std::iter::from_fn(move || {
        if page.as_slice().is_empty() && has_more {
            let read = backend.last(PREFIX, before.as_deref(), AT_A_TIME);
            has_more = read.as_ref().is_ok_and(|read| read.len() == AT_A_TIME);
            page = match read {
                Ok(read) => read.into_iter(),
                Err(error) => return Some(Err(error)),
            };
            before = page.as_slice().last().map(|entry| entry.key.clone());
        }
        page.next().map(Ok)
    })
}

/// Reads a stored entry.
pub(super) fn read(backend: &dyn Backend, stored: &Entry) -> Result<AuditEntry, StoreError> {
    let damaged = |error: serde_json::Error| StoreError::Damaged {
        store: backend.name(),
        entry: stored.key.clone(),
        reason: error.to_string(),
    };
    let read: AuditEntry = serde_json::from_slice(&stored.value).map_err(damaged)?;
    Ok(AuditEntry { revision: stored.version, ..read })
}

/// Removes the oldest entries beyond the number that the store keeps, each with the entries of the
/// keys that `beside` returns. Blocks on the store.
pub(super) fn trim(
    backend: &dyn Backend,
    beside: impl Fn(&Entry) -> Result<Vec<String>, StoreError>,
) -> Result<(), StoreError> {
    let entries = backend.list(PREFIX)?.entries;
    let surplus = entries.len().saturating_sub(KEPT);
    let mut keys = Vec::new();
    for entry in entries.into_iter().take(surplus) {
        keys.extend(beside(&entry)?);
        // After them, so that another attempt finds them after a failure.
        keys.push(entry.key);
    }
    delete(backend, &keys)
}

/// Removes entries of the store, in their order. Blocks on the store.
pub(super) fn delete(backend: &dyn Backend, keys: &[String]) -> Result<(), StoreError> {
    for part in keys.chunks(AT_A_TIME) {
        let mut transaction = Transaction::default();
        part.iter().for_each(|key| transaction.delete(key.clone()));
        backend.commit(&transaction)?;
    }
    Ok(())
}
