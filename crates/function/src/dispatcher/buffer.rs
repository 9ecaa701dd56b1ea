//! The node's bound on waiting requests, and how functions share it.

use super::Dispatcher;
use crate::error::AcquireError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bound on requests that wait for instances on this node. While there is room, a function may use as much as its own bound allows. A full buffer
/// is divided evenly between the functions that have waiting requests. A function that has its share is refused. One that has less evicts the last
/// request of the function that has most.
#[derive(Debug)]
pub(crate) struct Buffer {
    limit: usize,
    waiting: AtomicUsize,
    /// Functions with waiting requests. Locked after a dispatcher's queue, never before it.
    functions: Mutex<Vec<Arc<Dispatcher>>>,
}

impl Buffer {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, waiting: AtomicUsize::new(0), functions: Mutex::default() })
    }

    /// Reserves a place for one more waiting request of this function. [`Buffer::leave`] gives it back. The caller must hold no queue's lock.
    pub(crate) fn enter(&self, dispatcher: &Arc<Dispatcher>) -> Result<(), AcquireError> {
        if self.waiting.fetch_add(1, SeqCst) < self.limit {
            return Ok(());
        }
        // One request is evicted for the one that enters, so the bound holds.
        if self.longest(dispatcher).is_some_and(|longest| longest.evict()) {
            return Ok(());
        }
        self.leave(1);
        Err(AcquireError::NodeFull { limit: self.limit })
    }

    /// The function that has most waiting requests, if it has more than its share and `dispatcher` has less than its own.
    fn longest(&self, dispatcher: &Arc<Dispatcher>) -> Option<Arc<Dispatcher>> {
        let functions = self.functions();
        let others = functions.iter().filter(|other| !Arc::ptr_eq(other, dispatcher));
        let share = (self.limit / (others.clone().count() + 1)).max(1);
        if dispatcher.waiting() >= share {
            return None;
        }
        others.max_by_key(|other| other.waiting()).filter(|longest| longest.waiting() > share).cloned()
    }

    pub(crate) fn leave(&self, count: usize) {
        self.waiting.fetch_sub(count, SeqCst);
    }

    /// Notes whether a function has waiting requests. Call it after the first one begins to wait and after the last one stops. Of concurrent calls,
    /// the last one sees the final state.
    pub(crate) fn note(&self, dispatcher: &Arc<Dispatcher>) {
        let mut functions = self.functions();
        let known = functions.iter().position(|other| Arc::ptr_eq(other, dispatcher));
        match (dispatcher.waiting() > 0, known) {
            (true, None) => functions.push(Arc::clone(dispatcher)),
            (false, Some(index)) => drop(functions.swap_remove(index)),
            (true, Some(_)) | (false, None) => {}
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn functions(&self) -> MutexGuard<'_, Vec<Arc<Dispatcher>>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
