//! The interface of a store's back end.

use std::fmt;
use std::path::PathBuf;
use tokio::sync::{mpsc, watch};

/// Keeps entries: texts with values, and a revision that grows with each commit. Methods block on
/// the file or the network.
pub trait Backend: Send + Sync {
    /// The name for errors: the path of a file, or the address of a server.
    fn name(&self) -> String;

    /// Whether other control planes use the same entries.
    fn is_shared(&self) -> bool;

    /// The limits of one transaction.
    fn limits(&self) -> Limits;

    /// One entry; `None`: there is none of that key.
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// All entries whose keys begin with `prefix`, ordered by key, as they were at one moment.
    fn list(&self, prefix: &str) -> Result<Listing, StoreError>;

    /// The last entries whose keys begin with `prefix` and are less than `before`, the last key
    /// first: at most `most`, and with etcd at most 128.
    fn last(&self, prefix: &str, before: Option<&str>, most: usize) -> Result<Vec<Entry>, StoreError>;

    /// Commits a transaction atomically. Returns the revision, which is also the version of each
    /// entry that was put.
    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError>;

    /// Commits after the revision `after` that change entries whose keys begin with `prefix`. The
    /// watch ends when it misses any.
    fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError>;

    /// Tries once to become the control plane that may commit. `address` is where users find this
    /// one. `None`: another one leads.
    fn try_lead(&self, address: &str) -> Result<Option<Term>, StoreError>;

    /// The address of the control plane that leads; `None`: none does, or there can be only this
    /// one.
    fn leader(&self) -> Result<Option<String>, StoreError>;

    /// The certificate of the leader's API, in DER; `None`: the leader has not named it.
    fn leader_certificate(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    /// Replaces the certificate of this control plane's API, in DER, which others read while this
    /// one leads.
    fn set_certificate(&self, _certificate: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// An entry as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision that last put it.
    pub version: u64,
}

/// Entries of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The store's revision at that moment; 0: nothing was ever committed.
    pub revision: u64,
    /// Ordered by key.
    pub entries: Vec<Entry>,
}

/// Changes that are committed together, if the expected entries are unchanged. No key may be
/// changed twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Keys and the versions that they must have; 0: there must be none.
    pub expected: Vec<(String, u64)>,
    /// Keys and their new values; `None`: the entry is removed, if it is there.
    pub changes: Vec<(String, Option<Vec<u8>>)>,
}

impl Transaction {
    /// Adds or replaces an entry.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), Some(value.into())));
    }

    /// Removes an entry.
    pub fn delete(&mut self, key: impl Into<String>) {
        self.changes.push((key.into(), None));
    }

    /// Refuses the transaction if an entry has another version. 0: if it is there.
    pub fn expect(&mut self, key: impl Into<String>, version: u64) {
        self.expected.push((key.into(), version));
    }

    /// Bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        let changes = self.changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
        changes.sum::<usize>() + self.expected.iter().map(|(key, _)| key.len()).sum::<usize>()
    }

    /// Whether a store with these limits takes it.
    pub fn fits(&self, limits: Limits) -> bool {
        self.check(limits).is_ok()
    }

    /// Refuses a transaction beyond the store's limits.
    pub(crate) fn check(&self, limits: Limits) -> Result<(), StoreError> {
        let (changes, bytes) = (self.changes.len().max(self.expected.len()), self.bytes());
        if changes > limits.changes || bytes > limits.bytes {
            return Err(StoreError::TooLarge { changes, bytes, limits });
        }
        Ok(())
    }
}

/// The limits of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries.
    pub changes: usize,
    /// Maximum number of bytes of their keys and values.
    pub bytes: usize,
}

/// The changes of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Its revision.
    pub revision: u64,
    /// Keys and their new values; `None`: the entry was removed.
    pub changes: Vec<(String, Option<Vec<u8>>)>,
}

/// Commits as they happen.
#[derive(Debug)]
pub struct Watch(pub(crate) mpsc::Receiver<Commit>);

impl Watch {
    /// The next commit; `None`: commits may have been missed since, so list the entries again.
    pub async fn next(&mut self) -> Option<Commit> {
        self.0.recv().await
    }

    /// The same, for threads that may block.
    pub fn next_blocking(&mut self) -> Option<Commit> {
        self.0.blocking_recv()
    }
}

/// The time in which a control plane leads. Dropping it ends it.
pub struct Term {
    pub(crate) lost: watch::Receiver<bool>,
    /// Ends the term when it is dropped.
    pub(crate) _resign: Box<dyn Send + Sync>,
}

impl Term {
    /// Resolves once the term has ended without being dropped. Nothing can be committed from then
    /// on.
    pub async fn lost(&mut self) {
        if self.lost.wait_for(|lost| *lost).await.is_err() {
            // The holder of the sender is gone, so the term never ends.
            std::future::pending().await
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Term(lost: {})", *self.lost.borrow())
    }
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
    /// The entries are in another format. There is no migration from it.
    #[error("{store}: its format is {found}, this release of leno reads {expected}; {fix}")]
    Format {
        /// The store.
        store: String,
        /// The format that was found.
        found: String,
        /// The format that this release reads and writes.
        expected: &'static str,
        /// The remedy.
        fix: &'static str,
    },
    /// An entry cannot be decoded.
    #[error("{store}: the entry {entry} cannot be read ({reason}); restore a backup, or remove the entry")]
    Damaged {
        /// The store.
        store: String,
        /// Key of the entry.
        entry: String,
        /// The problem.
        reason: String,
    },
    /// Reading or writing failed. Nothing was written.
    #[error("{store}: {reason}")]
    Failed {
        /// The store.
        store: String,
        /// The cause of the failure.
        reason: String,
    },
    /// A commit got no answer. It may or may not have happened.
    #[error("{store}: {reason}; whether the change was stored is not known")]
    Unknown {
        /// The store.
        store: String,
        /// The cause of the failure.
        reason: String,
    },
    /// An entry has another version than the transaction expects. Nothing was written.
    #[error("{key} has changed in the meantime")]
    Conflict {
        /// Key of an entry that has.
        key: String,
    },
    /// Another control plane leads, so this one may not commit. Nothing was written.
    #[error("this control plane does not lead, so it may not write to {store}")]
    NotLeader {
        /// The store.
        store: String,
    },
    /// The transaction exceeds the limits of the store. Nothing was written.
    #[error(
        "{changes} changes of {bytes} bytes are too much for one transaction; at most {} of {} bytes in all",
        limits.changes, limits.bytes
    )]
    TooLarge {
        /// Changes in the transaction.
        changes: usize,
        /// Their bytes.
        bytes: usize,
        /// The store's limit.
        limits: Limits,
    },
}
