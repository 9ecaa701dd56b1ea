//! Entries in one file, for one control plane.

use crate::store::backend::{Backend, Commit, Entry, Limits, Listing, StoreError, Term, Transaction, Watch};
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

/// Values begin with the revision that put them, in 8 bytes.
const ENTRIES: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("entries");
const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
const KEY_FORMAT: &str = "format";
const KEY_REVISION: &str = "revision";
/// The first format has no format number, but this key with the release that wrote the file.
const KEY_RELEASE: &str = "release";
/// Format of the file and of the entries. It changes with each change that an older release cannot
/// read.
const FORMAT: &str = "2";
/// Maximum number of commits that a watch may be behind.
const BEHIND: usize = 256;

/// A store in an embedded database. Only its owner can read the file, because definitions contain
/// the environment of functions.
pub struct Redb {
    database: Database,
    path: PathBuf,
    /// The watches, each with the prefix of its keys.
    watches: Mutex<Vec<(String, mpsc::Sender<Commit>)>>,
}

impl Redb {
    /// Opens or creates the file. No other process can have it open.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let cannot = |reason: String| StoreError::Open { path: path.to_owned(), reason };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|error| cannot(error.to_string()))?;
        let database = Database::builder().create_file(file).map_err(|error| cannot(error.to_string()))?;
        let store = Self { database, path: path.to_owned(), watches: Mutex::default() };
        store.check_format()?;
        Ok(store)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let found = match (self.meta(KEY_FORMAT)?, self.meta(KEY_RELEASE)?) {
            (Some(found), _) if found == FORMAT.as_bytes() => return Ok(()),
            (None, None) => {
                let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
                self.put_meta(&writing, KEY_FORMAT, FORMAT.as_bytes())?;
                return writing.commit().map_err(|error| self.failed(error));
            }
            (Some(found), _) => String::from_utf8_lossy(&found).into_owned(),
            (None, Some(_)) => "1".to_owned(),
        };
        let fix = "move the file away and publish the definitions again, or use the release that wrote it";
        Err(StoreError::Format { store: self.name(), found, expected: FORMAT, fix })
    }

    fn revision(&self) -> Result<u64, StoreError> {
        self.revision_in(&self.database.begin_read().map_err(|error| self.failed(error))?)
    }

    /// 0: nothing was ever committed.
    fn revision_in(&self, reading: &ReadTransaction) -> Result<u64, StoreError> {
        Ok(self.meta_in(reading, KEY_REVISION)?.map_or(0, |bytes| number(&bytes)))
    }

    fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.meta_in(&self.database.begin_read().map_err(|error| self.failed(error))?, key)
    }

    fn meta_in(&self, reading: &ReadTransaction, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match reading.open_table(META) {
            Ok(table) => {
                let value = table.get(key).map_err(|error| self.failed(error))?;
                Ok(value.map(|value| value.value().to_vec()))
            }
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn put_meta(&self, writing: &WriteTransaction, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let mut table = writing.open_table(META).map_err(|error| self.failed(error))?;
        table.insert(key, value).map_err(|error| self.failed(error))?;
        Ok(())
    }

    fn entry(&self, key: &str, stored: &[u8]) -> Result<Entry, StoreError> {
        match stored.split_first_chunk() {
            Some((version, value)) => {
                Ok(Entry { key: key.to_owned(), value: value.to_vec(), version: u64::from_be_bytes(*version) })
            }
            None => Err(StoreError::Damaged {
                store: self.name(),
                entry: key.to_owned(),
                reason: "it has no version".to_owned(),
            }),
        }
    }

    fn failed(&self, error: impl std::fmt::Display) -> StoreError {
        StoreError::Failed { store: self.name(), reason: error.to_string() }
    }
}

impl Backend for Redb {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn limits(&self) -> Limits {
        Limits { changes: 100_000, bytes: 1 << 30 }
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        match reading.open_table(ENTRIES) {
            Ok(table) => {
                let stored = table.get(key).map_err(|error| self.failed(error))?;
                stored.map(|stored| self.entry(key, stored.value())).transpose()
            }
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        let revision = self.revision_in(&reading)?;
        let mut entries = Vec::new();
        let table = match reading.open_table(ENTRIES) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Listing { revision, entries }),
            Err(error) => return Err(self.failed(error)),
        };
        for found in table.range(prefix..).map_err(|error| self.failed(error))? {
            let (key, stored) = found.map_err(|error| self.failed(error))?;
            if !key.value().starts_with(prefix) {
                break;
            }
            entries.push(self.entry(key.value(), stored.value())?);
        }
        Ok(Listing { revision, entries })
    }

    fn last(&self, prefix: &str, before: Option<&str>, most: usize) -> Result<Vec<Entry>, StoreError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        let table = match reading.open_table(ENTRIES) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(error)),
        };
        // No key has this character.
        let end = before.map_or_else(|| format!("{prefix}{}", char::MAX), str::to_owned);
        let found = table.range(prefix..end.as_str()).map_err(|error| self.failed(error))?.rev().take(most);
        let entry = |found: Result<_, redb::StorageError>| {
            let (key, stored): (redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &[u8]>) =
                found.map_err(|error| self.failed(error))?;
            self.entry(key.value(), stored.value())
        };
        found.map(entry).collect()
    }

    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError> {
        transaction.check(self.limits())?;
        // Locked during the commit, so that watches see commits in their order.
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        let revision = {
            let mut meta = writing.open_table(META).map_err(|error| self.failed(error))?;
            let before = meta.get(KEY_REVISION).map_err(|error| self.failed(error))?;
            let revision = before.map_or(0, |bytes| number(bytes.value())) + 1;
            meta.insert(KEY_REVISION, revision.to_be_bytes().as_slice()).map_err(|error| self.failed(error))?;
            revision
        };
        {
            let mut table = writing.open_table(ENTRIES).map_err(|error| self.failed(error))?;
            for (key, version) in &transaction.expected {
                let stored = table.get(key.as_str()).map_err(|error| self.failed(error))?;
                let found = stored.map(|stored| self.entry(key, stored.value())).transpose()?;
                if found.map_or(0, |entry| entry.version) != *version {
                    return Err(StoreError::Conflict { key: key.clone() });
                }
            }
            for (key, value) in &transaction.changes {
                match value {
                    Some(value) => {
                        let stored = [&revision.to_be_bytes()[..], value].concat();
                        table.insert(key.as_str(), stored.as_slice()).map_err(|error| self.failed(error))?;
                    }
                    None => {
                        table.remove(key.as_str()).map_err(|error| self.failed(error))?;
                    }
                }
            }
        }
        writing.commit().map_err(|error| self.failed(error))?;
        watches.retain(|(prefix, watch)| {
            let changes = transaction.changes.iter().filter(|(key, _)| key.starts_with(prefix));
            let changes: Vec<_> = changes.cloned().collect();
            // The watch of a reader that does not keep up ends, and the reader lists again.
            if changes.is_empty() { !watch.is_closed() } else { watch.try_send(Commit { revision, changes }).is_ok() }
        });
        Ok(revision)
    }

    fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        let (sender, receiver) = mpsc::channel(BEHIND);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        // Earlier commits are not kept: if some were missed, the watch ends at once.
        if after == self.revision()? {
            watches.push((prefix.to_owned(), sender));
        }
        Ok(Watch(receiver))
    }

    fn try_lead(&self, _address: &str) -> Result<Option<Term>, StoreError> {
        // Only this process has the file, so the term is never lost.
        let (held, lost) = watch::channel(false);
        Ok(Some(Term { lost, _resign: Box::new(held) }))
    }

    fn leader(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}
