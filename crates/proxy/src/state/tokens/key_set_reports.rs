//! Reports between the pipeline, the fetcher of key sets, and listings.

use super::key_set_counts::KeySetCounts;
use leno_model::FunctionId;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokio::sync::Notify;

/// Functions that saw a token with an unknown key, which the pipeline reports and the fetcher of key
/// sets takes; and the key sets that the fetcher could not fetch.
#[derive(Debug, Default)]
pub struct KeySetReports {
    functions: Mutex<HashSet<FunctionId>>,
    reported: Notify,
    /// The last failure of each key set, by function and URL.
    failures: Mutex<BTreeMap<(FunctionId, String), KeySetFailure>>,
    /// The states of all key sets.
    pub counts: KeySetCounts,
}

/// A key set that gives no keys, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySetProblem {
    /// The cause, in words.
    pub reason: String,
    /// The remedy.
    pub fix: String,
    /// The key set was fetched, and has no usable key. No token of the issuer is valid.
    pub is_empty: bool,
}

/// A key set whose last fetch failed, or gave no usable key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySetFailure {
    /// A function that uses it.
    pub function: FunctionId,
    /// Its address.
    pub url: String,
    /// Why.
    pub problem: KeySetProblem,
    /// When the first fetch since the last successful one failed.
    pub since: SystemTime,
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

    /// A key set was fetched, with this problem or without one.
    pub(crate) fn fetched(&self, function: &FunctionId, url: &str, problem: Option<&KeySetProblem>) {
        let key = (function.clone(), url.to_owned());
        let mut failures = self.failures();
        let Some(problem) = problem.cloned() else { return drop(failures.remove(&key)) };
        let since = failures.get(&key).map_or_else(SystemTime::now, |known| known.since);
        let failure = KeySetFailure { function: function.clone(), url: url.to_owned(), problem, since };
        failures.insert(key, failure);
    }

    /// The function's key sets are not fetched any more.
    pub(crate) fn forget(&self, function: &FunctionId) {
        self.failures().retain(|(of, _), _| of != function);
    }

    /// Key sets whose last fetch failed, or gave no usable key.
    pub fn failed(&self) -> Vec<KeySetFailure> {
        self.failures().values().cloned().collect()
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<(FunctionId, String), KeySetFailure>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
