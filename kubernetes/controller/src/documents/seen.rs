//! The status of objects, as the API server has it.

use super::object::{DocumentObject, ObjectStatus};
use crate::api::{Change, ObjectKey};
use crate::crds::ObjectKind;
use leno_config::DocumentId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The status of each object, as the API server has it.
#[derive(Debug, Default)]
pub struct SeenStatuses(Mutex<BTreeMap<DocumentId, Arc<ObjectStatus>>>);

impl SeenStatuses {
    /// Applies a change of the objects of a kind.
    pub fn apply(&self, kind: &ObjectKind, change: &Change<DocumentObject>) {
        let id = |key: &ObjectKey| DocumentId {
            kind: kind.name.to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        };
        let mut all = self.all();
        match change {
            Change::Replaced { objects, .. } => {
                let present: BTreeSet<ObjectKey> = objects.iter().map(|object| object.metadata.key()).collect();
                all.retain(|seen, _| {
                    let key = ObjectKey { namespace: seen.namespace.clone(), name: seen.name.clone() };
                    seen.kind != kind.name || present.contains(&key)
                });
                objects.iter().for_each(|object| put(&mut all, id(&object.metadata.key()), &object.status));
            }
            Change::Put(object) => put(&mut all, id(&object.metadata.key()), &object.status),
            Change::Broken(_) => {}
            Change::Gone(key) => drop(all.remove(&id(key))),
        }
    }

    /// The status of an object; empty: it has none.
    pub(crate) fn get(&self, id: &DocumentId) -> Arc<ObjectStatus> {
        self.all().get(id).cloned().unwrap_or_default()
    }

    /// Replaces the status of an object that exists.
    pub(crate) fn set(&self, id: &DocumentId, status: ObjectStatus) {
        if let Some(seen) = self.all().get_mut(id) {
            *seen = Arc::new(status);
        }
    }

    /// The lock is held only briefly. Nothing panics while holding it, so poisoning is ignored.
    fn all(&self) -> MutexGuard<'_, BTreeMap<DocumentId, Arc<ObjectStatus>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces the status of an object, if it differs.
fn put(all: &mut BTreeMap<DocumentId, Arc<ObjectStatus>>, id: DocumentId, status: &ObjectStatus) {
    let seen = all.entry(id).or_default();
    if **seen != *status {
        *seen = Arc::new(status.clone());
    }
}
