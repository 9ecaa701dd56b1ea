//! A number of things of which a namespace may have so many at a time.

use crate::Namespace;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A countable resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Instances.
    Instances,
    /// Connections.
    Connections,
    /// Exchanges in progress.
    OpenRequests,
    /// Requests that wait for an instance.
    WaitingRequests,
    /// Bytes of unpacked images.
    ImageBytes,
    /// Files and folders of unpacked images.
    ImageFiles,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Instances,
        Self::Connections,
        Self::OpenRequests,
        Self::WaitingRequests,
        Self::ImageBytes,
        Self::ImageFiles,
    ];

    /// The field of the bound, as documents name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::Connections => "connections",
            Self::OpenRequests => "openRequests",
            Self::WaitingRequests => "waitingRequests",
            Self::ImageBytes => "imageBytes",
            Self::ImageFiles => "imageFiles",
        }
    }
}

/// The use of one resource, and its bound.
#[derive(Debug, Default)]
pub struct Count {
    used: AtomicU64,
    bound: AtomicU64,
    refused: AtomicU64,
}

impl Count {
    /// Takes one unit, which [`Count::give_back`] returns. `false`: the bound is reached.
    pub fn take(&self) -> bool {
        // A refused unit is never counted as used, not even for a moment in which another thread
        // looks.
        let below = |used| (used < self.bound.load(Relaxed)).then_some(used + 1);
        let taken = self.used.fetch_update(Relaxed, Relaxed, below).is_ok();
        if !taken {
            self.refused.fetch_add(1, Relaxed);
        }
        taken
    }

    /// Takes one unit, even beyond the bound, for a use that cannot be refused any more.
    pub fn take_anyway(&self) {
        self.used.fetch_add(1, Relaxed);
    }

    /// Returns one unit.
    pub fn give_back(&self) {
        self.used.fetch_sub(1, Relaxed);
    }

    /// Records the use of a resource that another component counts.
    pub fn set_used(&self, used: u64) {
        self.used.store(used, Relaxed);
    }

    /// Counts a refusal by the component that counts the use.
    pub fn count_refusal(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Whether the bound is reached.
    pub fn is_full(&self) -> bool {
        self.used() >= self.bound()
    }

    /// How many are in use.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// How many there may be.
    pub fn bound(&self) -> u64 {
        self.bound.load(Relaxed)
    }

    /// How many were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    pub(crate) fn set_bound(&self, bound: u64) {
        self.bound.store(bound, Relaxed);
    }
}

/// One unit of a resource, until this is dropped.
#[derive(Debug)]
pub struct Permit {
    namespace: Arc<Namespace>,
    resource: Resource,
}

impl Permit {
    pub(crate) fn new(namespace: Arc<Namespace>, resource: Resource) -> Self {
        Self { namespace, resource }
    }

    /// The namespace that has it.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.namespace.count(self.resource).give_back();
    }
}
