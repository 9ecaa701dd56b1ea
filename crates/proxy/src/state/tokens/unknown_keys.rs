//! Functions that saw a token which matches none of their keys: their key sets may have changed.

use leno_model::FunctionId;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Functions that saw a token with an unknown key. The pipeline reports them, and the fetcher of
/// key sets takes them.
#[derive(Debug, Default)]
pub struct UnknownKeyReports {
    functions: Mutex<HashSet<FunctionId>>,
    reported: Notify,
}

impl UnknownKeyReports {
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
}
