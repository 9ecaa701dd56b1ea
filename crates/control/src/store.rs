//! Stores definitions and job outcomes in one embedded file, so that they survive a restart. Without a file nothing is stored.
//!
//! The authority's private key is never stored. Its root certificate is: the next process trusts it beside its own new root, until the certificates
//! that it signed have expired.

use crate::definitions::{Definitions, Modules};
use crate::encoding::{from_bytes, to_bytes};
use crate::history::{Histories, History};
use crate::job::{Outcome, run_of};
use crate::wire::RELEASE;
use leno_config::{FunctionId, ModuleHash, Slice};
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
const SLICES: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("slices");
const MODULES: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("modules");
const REVISIONS: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("revisions");
const OUTCOMES: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("outcomes");
const KEY_RELEASE: &str = "release";
const KEY_MESH: &str = "mesh";
const KEY_ROOT: &str = "root";

/// The control plane's persistent storage.
pub struct Store(Option<File>);

struct File {
    database: Database,
    path: PathBuf,
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened.
    #[error("{}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why the file cannot be opened.
        reason: String,
    },
    /// Another release wrote the file. There is no migration yet.
    #[error(
        "{}: written by release {found} of leno, this is {RELEASE}; move the file away and publish the definitions again",
        path.display()
    )]
    Release {
        /// The file.
        path: PathBuf,
        /// The release that wrote it.
        found: String,
    },
    /// An entry of the file cannot be decoded.
    #[error("{}: the entry of {entry} cannot be read; move the file away and publish the definitions again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Key of the entry.
        entry: String,
    },
    /// Reading or writing failed.
    #[error("{}: {reason}", path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

impl Store {
    /// A store that stores nothing. Everything is forgotten when the process ends.
    pub fn memory() -> Self {
        Self(None)
    }

    /// Opens or creates the file. Only its owner can read it, because definitions hold the environment of functions.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let cannot = |reason: String| StoreError::Open { path: path.to_owned(), reason };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|error| cannot(error.to_string()))?;
        let database = Database::builder().create_file(file).map_err(|error| cannot(error.to_string()))?;
        let file = File { database, path: path.to_owned() };
        file.check_release()?;
        Ok(Self(Some(file)))
    }

    /// The definitions that were saved last.
    pub(crate) fn definitions(&self) -> Result<Option<Definitions>, StoreError> {
        self.0.as_ref().map_or(Ok(None), File::definitions)
    }

    /// The revisions that were saved last, by function.
    pub(crate) fn histories(&self) -> Result<Histories, StoreError> {
        self.0.as_ref().map_or(Ok(Histories::default()), File::histories)
    }

    /// Replaces everything that was saved. On an error nothing changes.
    pub(crate) fn save(
        &self,
        definitions: &Definitions,
        modules: &Modules,
        histories: &Histories,
    ) -> Result<(), StoreError> {
        self.0.as_ref().map_or(Ok(()), |file| file.save(definitions, modules, histories))
    }

    /// Adds or replaces one function.
    pub(crate) fn put(&self, slice: &Slice, history: &History) -> Result<(), StoreError> {
        self.0.as_ref().map_or(Ok(()), |file| file.put(slice, history))
    }

    /// Replaces the revisions of one function.
    pub(crate) fn put_history(&self, id: &FunctionId, history: &History) -> Result<(), StoreError> {
        self.0.as_ref().map_or(Ok(()), |file| file.put_history(id, history))
    }

    /// How jobs ended, by job.
    pub(crate) fn outcomes(&self) -> Result<BTreeMap<FunctionId, Outcome>, StoreError> {
        self.0.as_ref().map_or(Ok(BTreeMap::new()), File::outcomes)
    }

    /// Saves how a job ended. The outcome is kept until the job's definition changes.
    pub(crate) fn save_outcome(&self, id: &FunctionId, outcome: &Outcome) -> Result<(), StoreError> {
        self.0.as_ref().map_or(Ok(()), |file| file.save_outcome(id, outcome))
    }

    /// The root certificate (DER) of the process that last used this store.
    pub(crate) fn root(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.as_ref().map_or(Ok(None), |file| file.meta(KEY_ROOT))
    }

    pub(crate) fn save_root(&self, der: &[u8]) -> Result<(), StoreError> {
        self.0.as_ref().map_or(Ok(()), |file| file.save_meta(KEY_ROOT, der))
    }
}

impl File {
    fn check_release(&self) -> Result<(), StoreError> {
        match self.meta(KEY_RELEASE)? {
            None => self.save_meta(KEY_RELEASE, RELEASE.as_bytes()),
            Some(found) if found == RELEASE.as_bytes() => Ok(()),
            Some(found) => Err(StoreError::Release {
                path: self.path.clone(),
                found: String::from_utf8_lossy(&found).into_owned(),
            }),
        }
    }

    fn definitions(&self) -> Result<Option<Definitions>, StoreError> {
        let Some(mesh) = self.meta(KEY_MESH)? else { return Ok(None) };
        let mesh = self.decode(KEY_MESH, &mesh)?;
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        let mut slices = BTreeMap::new();
        self.each(&reading, SLICES, |key, value| {
            let id: FunctionId = key.parse().map_err(|_| self.damaged(key))?;
            slices.insert(id, self.decode::<Slice>(key, value)?);
            Ok(())
        })?;
        let mut modules = BTreeMap::new();
        self.each(&reading, MODULES, |key, value| {
            let hash = ModuleHash::of(value);
            if hash.to_string() != key {
                return Err(self.damaged(key));
            }
            modules.insert(hash, Arc::from(value));
            Ok(())
        })?;
        Ok(Some(Definitions { mesh, slices, modules }))
    }

    fn histories(&self) -> Result<Histories, StoreError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        let mut histories = Histories::default();
        self.each(&reading, REVISIONS, |key, value| {
            let id: FunctionId = key.parse().map_err(|_| self.damaged(key))?;
            histories.0.insert(id, self.decode::<History>(key, value)?);
            Ok(())
        })?;
        Ok(histories)
    }

    /// Calls `entry` for each entry of a table. A table that was never written has none.
    fn each(
        &self,
        reading: &ReadTransaction,
        table: TableDefinition<'static, &'static str, &'static [u8]>,
        mut entry: impl FnMut(&str, &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let table = match reading.open_table(table) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(self.failed(error)),
        };
        for found in table.iter().map_err(|error| self.failed(error))? {
            let (key, value) = found.map_err(|error| self.failed(error))?;
            entry(key.value(), value.value())?;
        }
        Ok(())
    }

    fn outcomes(&self) -> Result<BTreeMap<FunctionId, Outcome>, StoreError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        let mut outcomes = BTreeMap::new();
        self.each(&reading, OUTCOMES, |key, value| {
            let id: FunctionId = key.parse().map_err(|_| self.damaged(key))?;
            outcomes.insert(id, self.decode(key, value)?);
            Ok(())
        })?;
        Ok(outcomes)
    }

    fn save_outcome(&self, id: &FunctionId, outcome: &Outcome) -> Result<(), StoreError> {
        let encoded = to_bytes(outcome).map_err(|error| self.failed(error))?;
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut table = writing.open_table(OUTCOMES).map_err(|error| self.failed(error))?;
            table.insert(id.to_string().as_str(), encoded.as_slice()).map_err(|error| self.failed(error))?;
        }
        writing.commit().map_err(|error| self.failed(error))
    }

    /// Drops the outcomes of runs that are no longer wanted, so that a job that goes back to an earlier definition runs again.
    fn drop_outcomes(
        &self,
        writing: &WriteTransaction,
        wanted: impl Fn(&str, &Outcome) -> bool,
    ) -> Result<(), StoreError> {
        let mut table = writing.open_table(OUTCOMES).map_err(|error| self.failed(error))?;
        let keep = |key: &str, value: &[u8]| from_bytes(value).is_ok_and(|outcome| wanted(key, &outcome));
        table.retain(keep).map_err(|error| self.failed(error))
    }

    fn save(&self, definitions: &Definitions, named: &Modules, histories: &Histories) -> Result<(), StoreError> {
        let runs: BTreeMap<String, String> =
            definitions.slices.iter().filter_map(|(id, slice)| Some((id.to_string(), run_of(slice)?))).collect();
        let (mut wanted, mut revisions) = (BTreeMap::new(), BTreeMap::new());
        for (id, slice) in &definitions.slices {
            wanted.insert(id.to_string(), to_bytes(slice).map_err(|error| self.failed(error))?);
        }
        for (id, history) in &histories.0 {
            revisions.insert(id.to_string(), to_bytes(history).map_err(|error| self.failed(error))?);
        }
        let mut modules = BTreeMap::new();
        for (hash, module) in named {
            modules.insert(hash.to_string(), module.to_vec());
        }
        let mesh = to_bytes(&definitions.mesh).map_err(|error| self.failed(error))?;
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut meta = writing.open_table(META).map_err(|error| self.failed(error))?;
            meta.insert(KEY_MESH, mesh.as_slice()).map_err(|error| self.failed(error))?;
            for (table, wanted) in [(SLICES, &wanted), (REVISIONS, &revisions), (MODULES, &modules)] {
                let mut table = writing.open_table(table).map_err(|error| self.failed(error))?;
                table.retain(|key, _| wanted.contains_key(key)).map_err(|error| self.failed(error))?;
                for (key, value) in wanted {
                    let same = table
                        .get(key.as_str())
                        .map_err(|error| self.failed(error))?
                        .is_some_and(|old| old.value() == value);
                    if !same {
                        table.insert(key.as_str(), value.as_slice()).map_err(|error| self.failed(error))?;
                    }
                }
            }
        }
        self.drop_outcomes(&writing, |key, outcome| runs.get(key) == Some(&outcome.report.run))?;
        writing.commit().map_err(|error| self.failed(error))
    }

    fn put(&self, slice: &Slice, history: &History) -> Result<(), StoreError> {
        let encoded = to_bytes(slice).map_err(|error| self.failed(error))?;
        let revisions = to_bytes(history).map_err(|error| self.failed(error))?;
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        for (table, value) in [(SLICES, encoded), (REVISIONS, revisions)] {
            let mut table = writing.open_table(table).map_err(|error| self.failed(error))?;
            table.insert(slice.id.to_string().as_str(), value.as_slice()).map_err(|error| self.failed(error))?;
        }
        let (id, run) = (slice.id.to_string(), run_of(slice));
        self.drop_outcomes(&writing, |key, outcome| key != id || run.as_ref() == Some(&outcome.report.run))?;
        writing.commit().map_err(|error| self.failed(error))
    }

    fn put_history(&self, id: &FunctionId, history: &History) -> Result<(), StoreError> {
        let revisions = to_bytes(history).map_err(|error| self.failed(error))?;
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut table = writing.open_table(REVISIONS).map_err(|error| self.failed(error))?;
            table.insert(id.to_string().as_str(), revisions.as_slice()).map_err(|error| self.failed(error))?;
        }
        writing.commit().map_err(|error| self.failed(error))
    }

    fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let reading = self.database.begin_read().map_err(|error| self.failed(error))?;
        match reading.open_table(META) {
            Ok(table) => {
                let value = table.get(key).map_err(|error| self.failed(error))?;
                Ok(value.map(|value| value.value().to_vec()))
            }
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn save_meta(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let writing = self.database.begin_write().map_err(|error| self.failed(error))?;
        {
            let mut table = writing.open_table(META).map_err(|error| self.failed(error))?;
            table.insert(key, value).map_err(|error| self.failed(error))?;
        }
        writing.commit().map_err(|error| self.failed(error))
    }

    fn decode<T: DeserializeOwned>(&self, entry: &str, bytes: &[u8]) -> Result<T, StoreError> {
        from_bytes(bytes).map_err(|_| self.damaged(entry))
    }

    fn damaged(&self, entry: &str) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), entry: entry.to_owned() }
    }

    fn failed(&self, error: impl std::fmt::Display) -> StoreError {
        StoreError::Failed { path: self.path.clone(), reason: error.to_string() }
    }
}
