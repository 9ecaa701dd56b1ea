//! Counters of each chain and each link.

use std::sync::atomic::{AtomicU64, Ordering};

/// A violation of the protocol by an instance. The node drops the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A packet that is no sequence of descriptors, is too long, or came with files.
    Packet,
    /// An unknown descriptor, or one that only the node may send.
    Descriptor,
    /// The number of a call is not greater than all before, or still in use.
    Number,
    /// An answer, forward or release of a call that is not open, or no longer open.
    Stale,
    /// A message outside of the instance's arena.
    Slot,
    /// A message in a slot that the instance has not got back yet.
    Held,
    /// A message whose fixed part is wrong, or does not agree with its descriptor.
    Message,
    /// An invalid head, or one that is too long.
    Head,
    /// A body outside of the instance's arena.
    Bounds,
    /// A body in an arena that was never announced to the instance.
    Arena,
    /// A body in the arena of the node or of another instance, outside of all bodies that the
    /// instance holds there.
    NotHeld,
}

impl Violation {
    /// All violations.
    pub const ALL: [Self; 11] = [
        Self::Packet,
        Self::Descriptor,
        Self::Number,
        Self::Stale,
        Self::Slot,
        Self::Held,
        Self::Message,
        Self::Head,
        Self::Bounds,
        Self::Arena,
        Self::NotHeld,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Descriptor => "descriptor",
            Self::Number => "number",
            Self::Stale => "stale",
            Self::Slot => "slot",
            Self::Held => "held",
            Self::Message => "message",
            Self::Head => "head",
            Self::Bounds => "bounds",
            Self::Arena => "arena",
            Self::NotHeld => "not_held",
        }
    }
}

/// Counters of each violation.
#[derive(Debug, Default)]
pub struct Violations([AtomicU64; Violation::ALL.len()]);

impl Violations {
    /// The number of violations of this kind.
    #[must_use]
    pub fn get(&self, violation: Violation) -> u64 {
        self.0[violation as usize].load(Ordering::Relaxed)
    }

    /// The number of violations of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn add(&self, violation: Violation) {
        self.0[violation as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The counters of a chain. They only grow.
#[derive(Debug, Default)]
pub struct Statistics {
    handed_over: AtomicU64,
    bytes_shared: AtomicU64,
    bytes_copied_in: AtomicU64,
    bytes_copied_out: AtomicU64,
    heads_copied: AtomicU64,
    violations: Violations,
}

impl Statistics {
    /// Bodies that instances received by reference, without a copy.
    #[must_use]
    pub fn handed_over(&self) -> u64 {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// The bytes of those bodies.
    #[must_use]
    pub fn bytes_shared(&self) -> u64 {
        self.bytes_shared.load(Ordering::Relaxed)
    }

    /// Bytes that were copied into memory that instances share, such as bodies that came over HTTP.
    #[must_use]
    pub fn bytes_copied_in(&self) -> u64 {
        self.bytes_copied_in.load(Ordering::Relaxed)
    }

    /// Bytes of bodies that were copied out of shared memory, to be sent over HTTP.
    #[must_use]
    pub fn bytes_copied_out(&self) -> u64 {
        self.bytes_copied_out.load(Ordering::Relaxed)
    }

    /// Heads that were copied, from an instance or for one.
    #[must_use]
    pub fn heads_copied(&self) -> u64 {
        self.heads_copied.load(Ordering::Relaxed)
    }

    /// Violations of all links of the chain.
    #[must_use]
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    pub(crate) fn shared(&self, bytes: u64) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        self.bytes_shared.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn copied_in(&self, bytes: usize) {
        self.bytes_copied_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn copied_out(&self, bytes: usize) {
        self.bytes_copied_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn head_copied(&self) {
        self.heads_copied.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_has_a_counter_of_its_own() {
        for (place, violation) in Violation::ALL.into_iter().enumerate() {
            assert_eq!(violation as usize, place);
        }
    }
}
