//! The list of enforced namespaces, which the CNI plug-in reads while the node is away.

use leno_cni::enforced::EnforcedNamespaces;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The enforced namespaces of the cluster, as the control plane delivered them last.
pub(super) struct EnforcedList {
    file: PathBuf,
    namespaces: Mutex<Namespaces>,
}

/// The enforced namespaces, as far as this node knows them.
#[derive(Debug, PartialEq, Eq)]
enum Namespaces {
    /// They were never delivered to this node.
    Undelivered,
    /// The list of an earlier process cannot be read, so each namespace counts as enforced until the
    /// next delivery.
    Unreadable,
    Known(BTreeSet<String>),
}

impl EnforcedList {
    /// Begins with the list in the file, which another process of this node has written.
    pub(super) fn open(file: &Path) -> Self {
        let namespaces = match EnforcedNamespaces::read(file) {
            Ok(None) => Namespaces::Undelivered,
            Ok(Some(list)) => Namespaces::Known(list.iter().map(str::to_owned).collect()),
            Err(error) => {
                tracing::error!(%error, "new pods wait until the control plane has named the enforced namespaces");
                Namespaces::Unreadable
            }
        };
        Self { file: file.to_owned(), namespaces: Mutex::new(namespaces) }
    }

    pub(super) fn contains(&self, namespace: &str) -> bool {
        match &*self.namespaces() {
            Namespaces::Undelivered => false,
            Namespaces::Unreadable => true,
            Namespaces::Known(list) => list.contains(namespace),
        }
    }

    /// Replaces the list.
    pub(super) fn set(&self, namespaces: BTreeSet<String>) {
        let mut known = self.namespaces();
        if matches!(&*known, Namespaces::Known(before) if *before == namespaces) {
            return;
        }
        let list = EnforcedNamespaces::new(namespaces.iter().cloned());
        if let Err(error) = list.and_then(|list| list.write(&self.file)) {
            tracing::error!(%error, "the list of enforced namespaces is not written");
        }
        *known = Namespaces::Known(namespaces);
    }

    fn namespaces(&self) -> MutexGuard<'_, Namespaces> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("enforced");
        let list = EnforcedList::open(&file);
        assert!(!list.contains("bank") && !file.exists());
        list.set(["bank".to_owned()].into());
        assert!(EnforcedList::open(&file).contains("bank") && !list.contains("shop"));
        list.set(BTreeSet::new());
        assert_eq!(EnforcedNamespaces::read(&file).unwrap(), Some(EnforcedNamespaces::default()));
        std::fs::write(&file, "No name").unwrap();
        let damaged = EnforcedList::open(&file);
        assert!(damaged.contains("shop"), "any namespace may be enforced");
        damaged.set(["bank".to_owned()].into());
        assert!(!damaged.contains("shop") && EnforcedList::open(&file).contains("bank"));
    }
}
