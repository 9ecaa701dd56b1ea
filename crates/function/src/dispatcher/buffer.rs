//! All requests of a node that wait for instances: how many there may be, and whose.

use super::Dispatcher;
use crate::error::AcquireError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The node's bound on waiting requests. As long as there is room, any function may fill it up to its own bound. When there is none,
/// it is divided evenly between the functions that have requests waiting: whoever has its share is refused, and whoever has less
/// takes the place of the last request of the function that has most.
#[derive(Debug)]
pub(crate) struct Buffer {
    limit: usize,
    waiting: AtomicUsize,
    /// Those that have requests waiting. Locked after a dispatcher's queue, never before.
    functions: Mutex<Vec<Arc<Dispatcher>>>,
}

impl Buffer {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, waiting: AtomicUsize::new(0), functions: Mutex::default() })
    }

    /// Makes room for one more request of this function; [`Buffer::leave`] gives it back. Not to be called with any queue locked.
    pub(crate) fn enter(&self, dispatcher: &Arc<Dispatcher>) -> Result<(), AcquireError> {
        if self.waiting.fetch_add(1, SeqCst) < self.limit {
            return Ok(());
        }
        // One is evicted for one that comes, so that the bound holds.
        if self.longest(dispatcher).is_some_and(|longest| longest.evict()) {
            return Ok(());
        }
        self.leave(1);
        Err(AcquireError::NodeFull { limit: self.limit })
    }

    /// The function that has more than its share and most of all, if this one has less than its own.
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

    /// Notes whether a function has requests waiting. To be called after it began or ceased to; whoever is last sees how it is.
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
