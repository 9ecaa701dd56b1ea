//! The namespaces of the entries of the audit log, in memory. So a reader of a quiet namespace finds
//! its few changes without reading all others from the store.

use super::audit;
use super::history::documents;
use leno_control::{Backend, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// After this time, the index is built anew. The clock of another control plane may have been so
/// wrong that its entries are far from the latest ones.
const ANEW: Duration = Duration::from_secs(600);
/// Limit on the namespaces that are known of one entry.
const MOST_NAMESPACES: usize = 64;

/// The index.
#[derive(Debug, Default)]
pub(super) struct AuditIndex(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    built: Option<Instant>,
    /// By the entries' keys, which sort by time.
    entries: BTreeMap<String, IndexedEntry>,
}

/// An entry of the audit log.
#[derive(Debug)]
pub(super) struct IndexedEntry {
    pub(super) revision: u64,
    /// The namespaces of its documents; `None`: it has too many.
    namespaces: Option<Box<[Box<str>]>>,
}

impl IndexedEntry {
    /// Whether it may have a document of one of these namespaces.
    pub(super) fn concerns(&self, is_wanted: impl Fn(&str) -> bool) -> bool {
        self.namespaces.as_ref().is_none_or(|known| known.iter().any(|namespace| is_wanted(namespace)))
    }
}

impl AuditIndex {
    /// Adds the entries that the store has got meanwhile. Blocks on the store.
    pub(super) fn refresh(&self, backend: &dyn Backend) -> Result<(), StoreError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        if state.built.is_none_or(|built| began.duration_since(built) >= ANEW) {
            *state = State::default();
        }
        let mut known = 0;
        for stored in audit::latest(backend) {
            let stored = stored?;
            if state.entries.contains_key(&stored.key) {
                known += 1;
                // Clocks of control planes differ a little, so newer ones may follow.
                if known == audit::AT_A_TIME {
                    break;
                }
                continue;
            }
            let entry = audit::read(backend, &stored)?;
            let namespaces: BTreeSet<&str> = documents(&entry).map(|(_, namespace, _)| namespace).collect();
            let has_few = namespaces.len() <= MOST_NAMESPACES;
            let namespaces = has_few.then(|| namespaces.into_iter().map(Box::from).collect());
            state.entries.insert(stored.key, IndexedEntry { revision: entry.revision, namespaces });
        }
        while state.entries.len() > audit::KEPT + audit::AT_A_TIME {
            state.entries.pop_first();
        }
        state.built.get_or_insert(began);
        Ok(())
    }

    /// Keys of wanted entries, latest first, at most `most`. `before`: only of entries before this
    /// key.
    pub(super) fn latest(
        &self,
        before: Option<&str>,
        most: usize,
        is_wanted: impl Fn(&IndexedEntry) -> bool,
    ) -> Vec<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = before.map_or(Bound::Unbounded, Bound::Excluded);
        let found = state.entries.range::<str, _>((Bound::Unbounded, end)).rev();
        found.filter(|(_, entry)| is_wanted(entry)).take(most).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::{Action, AuditChange, AuditEntry};
    use super::*;
    use leno_control::{Redb, Transaction};

    fn entry(time: f64, namespaces: &[&str]) -> AuditEntry {
        let change = |namespace: &&str| AuditChange {
            what: format!("Function {namespace}/shop"),
            action: Action::Created,
            before: 0,
        };
        let changes = namespaces.iter().map(change).collect();
        AuditEntry { time, by: String::new(), from: String::new(), revision: 0, changes }
    }

    #[test]
    fn entries_of_a_quiet_namespace_are_found_among_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = Redb::open(&folder.path().join("store.redb")).unwrap();
        let add = |entries: &[AuditEntry]| -> Vec<String> {
            let mut transaction = Transaction::default();
            let keys = entries.iter().map(|entry| audit::add(&mut transaction, entry).unwrap()).collect();
            store.commit(&transaction).unwrap();
            keys
        };
        let index = AuditIndex::default();
        let of = |namespace: &str, before: Option<&str>, most| {
            index.refresh(&store).unwrap();
            index.latest(before, most, |entry| entry.concerns(|known| known == namespace))
        };
        assert!(of("quiet", None, 10).is_empty());
        let quiet = add(&[entry(1.0, &["quiet"]), entry(2.0, &["loud", "quiet"])]);
        add(&(0..1000).map(|at| entry(10.0 + f64::from(at), &["loud"])).collect::<Vec<_>>());
        assert_eq!(of("quiet", None, 10), [quiet[1].clone(), quiet[0].clone()]);
        assert_eq!(of("quiet", None, 1), [quiet[1].clone()]);
        assert_eq!(of("quiet", Some(&quiet[1]), 10), [quiet[0].clone()]);
        assert_eq!(of("loud", None, usize::MAX).len(), 1001);
        // A later entry, and one of a control plane whose clock is behind.
        let late = add(&[entry(2000.0, &["quiet"]), entry(1000.0, &["quiet"])]);
        assert_eq!(of("quiet", None, 2), late);
        // An entry with many namespaces may be of any.
        let names: Vec<String> = (0..=MOST_NAMESPACES).map(|number| format!("n{number}")).collect();
        let many = add(&[entry(3000.0, &names.iter().map(String::as_str).collect::<Vec<_>>())]);
        assert_eq!(of("quiet", None, 1), many);
    }
}
