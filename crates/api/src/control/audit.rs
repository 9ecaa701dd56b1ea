//! The audit log: in the store, with the change itself, and in a file for log collectors.

use super::types::AuditEntry;
use anyhow::{Context, Result};
use aws_lc_rs::rand;
use leno_control::{Backend, StoreError, Transaction};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Prefix of the keys of entries. The time follows, so the keys sort by time.
const PREFIX: &str = "audit/";
/// Entries that the store keeps.
const KEPT: usize = 10_000;
/// Entries that one transaction removes.
const AT_A_TIME: usize = 100;

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

/// The last entries, latest first. Blocks on the store.
pub(super) fn list(backend: &dyn Backend, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
    latest(backend)?.take(limit).map(|read| read.map(|(_, entry)| entry)).collect()
}

/// All entries with their keys, latest first. Blocks on the store.
pub(super) fn latest(
    backend: &dyn Backend,
) -> Result<impl Iterator<Item = Result<(String, AuditEntry), StoreError>>, StoreError> {
    let read = |entry: leno_control::Entry| {
        let damaged = |error: serde_json::Error| StoreError::Damaged {
            store: backend.name(),
            entry: entry.key.clone(),
            reason: error.to_string(),
        };
        let read: AuditEntry = serde_json::from_slice(&entry.value).map_err(damaged)?;
        Ok((entry.key, AuditEntry { revision: entry.version, ..read }))
    };
    Ok(backend.list(PREFIX)?.entries.into_iter().rev().map(read))
}

/// Removes the oldest entries beyond the number that the store keeps. Blocks on the store.
pub(super) fn trim(backend: &dyn Backend) -> Result<(), StoreError> {
    let entries = backend.list(PREFIX)?.entries;
    let surplus = entries.len().saturating_sub(KEPT);
    for part in entries.get(..surplus).unwrap_or_default().chunks(AT_A_TIME) {
        let mut transaction = Transaction::default();
        part.iter().for_each(|entry| transaction.delete(entry.key.clone()));
        backend.commit(&transaction)?;
    }
    Ok(())
}
