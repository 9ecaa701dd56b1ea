//! The bounds of the node and of namespaces on waiting requests, and how functions share them.

use super::Dispatcher;
use crate::error::AcquireError;
use leno_namespaces::Resource;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bound on requests that wait for instances on this node. While the buffer is not full, a
/// function may use as much as its own bound and its namespace's allow. A full buffer is divided
/// evenly between the namespaces that have waiting requests, and in each of them between its
/// functions. A function that has its share is refused. A function below its share evicts the last
/// request of the function that has the most.
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
        self.enter_namespace(dispatcher)?;
        if self.waiting.fetch_add(1, SeqCst) < self.limit {
            return Ok(());
        }
        // One request is evicted for the one that enters, so the bound holds.
        let full = || AcquireError::NodeFull { limit: self.limit };
        if self.longest(dispatcher).is_some_and(|longest| longest.evict(full())) {
            return Ok(());
        }
        self.leave(dispatcher, 1);
        Err(full())
    }

    /// Counts the request for the function's namespace. At the namespace's bound, its function with
    /// the most requests gives one up.
    fn enter_namespace(&self, dispatcher: &Arc<Dispatcher>) -> Result<(), AcquireError> {
        let namespace = dispatcher.namespace();
        let count = namespace.count(Resource::WaitingRequests);
        if count.take() {
            return Ok(());
        }
        let full = || AcquireError::NamespaceFull { namespace: namespace.name().clone(), bound: count.bound() };
        let bound = usize::try_from(count.bound()).unwrap_or(usize::MAX);
        let longest = Self::longest_of(self.functions().iter(), dispatcher, bound);
        let Some(longest) = longest else { return Err(full()) };
        // Taken before the other gives its place back, so that no third request gets that place.
        count.take_anyway();
        if longest.evict(full()) {
            return Ok(());
        }
        count.give_back();
        Err(full())
    }

    /// The function that gives up a request for one of `dispatcher`; `None`: it has its share. The
    /// node's capacity for waiting requests is divided evenly between namespaces, and a namespace's
    /// part between its functions.
    fn longest(&self, dispatcher: &Arc<Dispatcher>) -> Option<Arc<Dispatcher>> {
        let functions = self.functions();
        let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
        let own = &**dispatcher.namespace().name();
        for function in functions.iter() {
            *waiting.entry(function.namespace().name()).or_default() += function.waiting();
        }
        let of_own = waiting.remove(own).unwrap_or_default();
        let share = (self.limit / (waiting.len() + 1)).max(1);
        if of_own >= share {
            return Self::longest_of(functions.iter(), dispatcher, of_own);
        }
        let (largest, _) = waiting.into_iter().max_by_key(|(_, waiting)| *waiting).filter(|(_, most)| *most > share)?;
        let of_largest = functions.iter().filter(|function| **function.namespace().name() == *largest);
        of_largest.max_by_key(|function| function.waiting()).cloned()
    }

    /// Among the functions of the same namespace, which together may have `capacity` requests, finds
    /// the one with the most, if it has more than its share and `dispatcher` has less.
    fn longest_of<'a>(
        functions: impl Iterator<Item = &'a Arc<Dispatcher>> + Clone,
        dispatcher: &Arc<Dispatcher>,
        capacity: usize,
    ) -> Option<Arc<Dispatcher>> {
        let is_other = |other: &&Arc<Dispatcher>| {
            !Arc::ptr_eq(other, dispatcher) && Arc::ptr_eq(other.namespace(), dispatcher.namespace())
        };
        let others = functions.filter(is_other);
        let share = (capacity / (others.clone().count() + 1)).max(1);
        if dispatcher.waiting() >= share {
            return None;
        }
        others.max_by_key(|other| other.waiting()).filter(|longest| longest.waiting() > share).cloned()
    }

    pub(crate) fn leave(&self, dispatcher: &Dispatcher, count: usize) {
        self.waiting.fetch_sub(count, SeqCst);
        (0..count).for_each(|_| dispatcher.namespace().count(Resource::WaitingRequests).give_back());
    }

    /// Records whether a function has waiting requests. Call it after the first one begins to wait and after the last one stops. Of concurrent calls,
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

    fn functions(&self) -> MutexGuard<'_, Vec<Arc<Dispatcher>>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
