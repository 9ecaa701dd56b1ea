//! The list of enforced namespaces, which the CNI plug-in reads while the node is away.

use leno_cni::enforced::EnforcedNamespaces;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The enforced namespaces of the cluster, as the control plane delivered them last.
pub(super) struct EnforcedList {
    file: PathBuf,
    /// `None`: they were never delivered to this node.
    namespaces: Mutex<Option<BTreeSet<String>>>,
}

impl EnforcedList {
    /// Begins with the list in the file, which another process of this node has written.
    pub(super) fn open(file: &Path) -> Self {
        let read = EnforcedNamespaces::read(file).unwrap_or_else(|error| {
            tracing::warn!(%error, "the list of enforced namespaces is written anew");
            None
        });
        let namespaces = read.map(|list| list.iter().map(str::to_owned).collect());
        Self { file: file.to_owned(), namespaces: Mutex::new(namespaces) }
    }

    pub(super) fn contains(&self, namespace: &str) -> bool {
        self.namespaces().as_ref().is_some_and(|list| list.contains(namespace))
    }

    /// Replaces the list.
    pub(super) fn set(&self, namespaces: BTreeSet<String>) {
        let mut known = self.namespaces();
        if known.as_ref() == Some(&namespaces) {
            return;
        }
        let list = EnforcedNamespaces::new(namespaces.iter().cloned());
        if let Err(error) = list.and_then(|list| list.write(&self.file)) {
            tracing::error!(%error, "the list of enforced namespaces is not written");
        }
        *known = Some(namespaces);
    }

    fn namespaces(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
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
        assert!(!EnforcedList::open(&file).contains("No name"));
    }
}
