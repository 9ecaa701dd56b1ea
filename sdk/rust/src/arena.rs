//! This program's arena, and the threads that wait for memory in it.

use leno_shm::pool::{Allocation, Pool};
use leno_shm::slab::Full;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happens when this program's arena is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Functions that need memory fail with [`crate::Error::Full`].
    #[default]
    Fail,
    /// They wait until receivers have read earlier messages. They wait for ever if this program
    /// itself holds the memory that they wait for.
    Wait,
}

pub(crate) struct Arena {
    pool: Arc<Pool>,
    /// The kicks to set whenever memory is freed.
    waiting: Mutex<Vec<Arc<Kick>>>,
    how_many: AtomicUsize,
}

/// Wakes a thread, even if it waits for sockets.
pub(crate) struct Kick(OwnedFd);

impl Kick {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn set(&self) {
        // If this fails, the kick is already set.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        // The kick may not have been set.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.0
    }
}

/// A part of the arena. Dropping it wakes the threads that wait for memory.
pub(crate) struct Part {
    /// `Some` until it is dropped.
    allocation: Option<Allocation>,
    arena: Arc<Arena>,
}

/// Registers a thread that waits for memory.
pub(crate) struct Waiting<'a>(&'a Arena, Arc<Kick>);

impl Arena {
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { pool, waiting: Mutex::default(), how_many: AtomicUsize::new(0) })
    }

    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Part, Full> {
        Ok(Part { allocation: Some(self.pool.allocate(bytes)?), arena: self.clone() })
    }

    /// Sets this kick whenever memory is freed.
    pub(crate) fn wait(&self, kick: Arc<Kick>) -> Waiting<'_> {
        self.waiting().push(kick.clone());
        self.how_many.fetch_add(1, Ordering::SeqCst);
        Waiting(self, kick)
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<Kick>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        if let Some(place) = waiting.iter().position(|kick| Arc::ptr_eq(kick, &self.1)) {
            waiting.swap_remove(place);
            self.0.how_many.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Part {
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

impl Deref for Part {
    type Target = Allocation;

    fn deref(&self) -> &Allocation {
        self.allocation.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut Allocation {
        self.allocation.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.allocation.take());
        // A waiting thread is counted before it looks for memory the last time.
        if self.arena.how_many.load(Ordering::SeqCst) > 0 {
            self.arena.waiting().iter().for_each(|kick| kick.set());
        }
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.allocation.fmt(f)
    }
}
