//! Reports between the pipeline, the fetcher of key sets, and listings.

use super::key_set_counts::KeySetCounts;
use leno_model::FunctionId;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Functions that saw a token with an unknown key, which the pipeline reports and the fetcher of key
/// sets takes; and the key sets that the fetcher could not fetch.
#[derive(Debug, Default)]
pub struct KeySetReports {
    functions: Mutex<HashSet<FunctionId>>,
    reported: Notify,
    /// The last failure of each key set, by function and URL.
    failures: Mutex<BTreeMap<(FunctionId, String), String>>,
    /// The states of all key sets.
    pub counts: KeySetCounts,
}

/// A key set whose last fetch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySetFailure {
    /// A function that uses it.
    pub function: FunctionId,
    /// Its address.
    pub url: String,
    /// Why the fetch failed.
    pub reason: String,
}

impl KeySetReports {
    /// Reports that a token matches none of this function's keys.
    pub fn report(&self, function: &FunctionId) {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if !functions.contains(function) {
            functions.insert(function.clone());
            self.reported.notify_one();
        }
    }

    /// Waits until there is a report. Only one task may wait.
    pub async fn reported(&self) {
        self.reported.notified().await;
    }

    /// Takes all functions that were reported since the last call.
    pub fn take(&self) -> Vec<FunctionId> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.drain().collect()
    }

    /// The fetch of a key set failed for this reason, or succeeded.
    pub(crate) fn fetched(&self, function: &FunctionId, url: &str, failure: Option<&str>) {
        let key = (function.clone(), url.to_owned());
        match failure {
            Some(reason) => drop(self.failures().insert(key, reason.to_owned())),
            None => drop(self.failures().remove(&key)),
        }
    }

    /// The function's key sets are not fetched any more.
    pub(crate) fn forget(&self, function: &FunctionId) {
        self.failures().retain(|(of, _), _| of != function);
    }

    /// Key sets whose last fetch failed.
    pub fn failed(&self) -> Vec<KeySetFailure> {
        let failure = |((function, url), reason): (&(FunctionId, String), &String)| KeySetFailure {
            function: function.clone(),
            url: url.clone(),
            reason: reason.clone(),
        };
        self.failures().iter().map(failure).collect()
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<(FunctionId, String), String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
