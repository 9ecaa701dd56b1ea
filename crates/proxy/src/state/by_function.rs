//! One value for each function.

use leno_model::FunctionId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One value for each function, made on first use.
#[derive(Debug)]
pub struct ByFunction<T>(Mutex<HashMap<FunctionId, Arc<T>>>);

impl<T> Default for ByFunction<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> ByFunction<T> {
    /// The value of a function.
    pub fn get(&self, function: &FunctionId) -> Arc<T> {
        let mut values = self.lock();
        match values.get(function) {
            Some(value) => value.clone(),
            None => values.entry(function.clone()).or_default().clone(),
        }
    }

    /// The value of a function, if there is one.
    pub fn known(&self, function: &FunctionId) -> Option<Arc<T>> {
        self.lock().get(function).cloned()
    }

    /// Drops the values of other functions. Returns whether there were any.
    pub(crate) fn retain(&self, keep: impl Fn(&FunctionId) -> bool) -> bool {
        let mut values = self.lock();
        let before = values.len();
        values.retain(|function, _| keep(function));
        values.len() < before
    }

    /// All values.
    pub(crate) fn values(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FunctionId, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
