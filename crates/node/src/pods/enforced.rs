//! The list of enforced namespaces, which the CNI plug-in reads while the node is away.

use leno_cni::enforced::{EnforcedError, EnforcedNamespaces};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The first pause after a list could not be written. It doubles up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The enforced namespaces of the cluster, as the control plane delivered them last. Cheap to clone.
#[derive(Clone)]
pub(super) struct EnforcedList {
    file: Arc<Path>,
    state: Arc<Mutex<State>>,
}

struct State {
    namespaces: Namespaces,
    /// Rises with each delivery. Only the last one is written.
    delivery: u64,
    /// The delivery that the file has.
    written: u64,
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
        let state = State { namespaces, delivery: 0, written: 0 };
        Self { file: file.into(), state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn contains(&self, namespace: &str) -> bool {
        match &self.state().namespaces {
            Namespaces::Undelivered => false,
            Namespaces::Unreadable => true,
            Namespaces::Known(list) => list.contains(namespace),
        }
    }

    /// Whether the file has the list that was delivered last.
    pub(super) fn is_current(&self) -> bool {
        let state = self.state();
        state.written == state.delivery
    }

    /// Replaces the list. If the file cannot be written, the list is tried again until it can, or
    /// another one was delivered.
    pub(super) fn set(&self, namespaces: BTreeSet<String>) {
        let mut state = self.state();
        if matches!(&state.namespaces, Namespaces::Known(before) if *before == namespaces) {
            return;
        }
        state.namespaces = Namespaces::Known(namespaces);
        state.delivery += 1;
        let delivery = state.delivery;
        drop(state);
        if self.write(delivery).is_ok() {
            return;
        }
        let list = self.clone();
        tokio::spawn(async move {
            let mut pause = PAUSE;
            loop {
                sleep(pause).await;
                let again = list.clone();
                if let Ok(Ok(())) = spawn_blocking(move || again.write(delivery)).await {
                    return;
                }
                pause = (2 * pause).min(MAX_PAUSE);
            }
        });
    }

    /// Writes this delivery, unless it is not the last one any more.
    fn write(&self, delivery: u64) -> Result<(), EnforcedError> {
        let mut state = self.state();
        let (true, Namespaces::Known(namespaces)) = (state.delivery == delivery, &state.namespaces) else {
            return Ok(());
        };
        let list = EnforcedNamespaces::new(namespaces.iter().cloned());
        list.and_then(|list| list.write(&self.file)).inspect_err(|error| {
            tracing::error!(%error, "the list of enforced namespaces is not written; the node tries again");
        })?;
        state.written = delivery;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_testkit::eventually_async;

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

    #[tokio::test]
    async fn a_list_that_cannot_be_written_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("later/enforced");
        let list = EnforcedList::open(&file);
        list.set(["bank".to_owned()].into());
        assert!(list.contains("bank") && !list.is_current());
        list.set(["shop".to_owned()].into());
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        eventually_async("the list", || list.is_current()).await;
        let written = EnforcedNamespaces::read(&file).unwrap().unwrap();
        assert_eq!(written.iter().collect::<Vec<_>>(), ["shop"]);
    }
}
