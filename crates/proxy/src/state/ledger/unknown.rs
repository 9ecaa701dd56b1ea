//! Functions that saw a token which none of their keys fits: their key sets may have changed.

use leno_config::FunctionId;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Reported by judges, taken by the fetcher of key sets.
#[derive(Debug, Default)]
pub struct UnknownKeys {
    functions: Mutex<HashSet<FunctionId>>,
    reported: Notify,
}

impl UnknownKeys {
    /// A token came that no key of this function fits.
    pub fn report(&self, function: &FunctionId) {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if !functions.contains(function) {
            functions.insert(function.clone());
            self.reported.notify_one();
        }
    }

    /// Waits until there is a report. Only one may wait.
    pub async fn reported(&self) {
        self.reported.notified().await;
    }

    /// All functions reported since the last time.
    pub fn take(&self) -> Vec<FunctionId> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.drain().collect()
    }
}
