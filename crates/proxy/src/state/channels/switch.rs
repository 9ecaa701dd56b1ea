//! The interface to the kernel that passes the calls of channels.

use std::os::fd::OwnedFd;

/// Makes channels: pairs of connected sockets between which the kernel passes only descriptors of
/// calls and their answers.
pub trait Switch: Send + Sync + 'static {
    /// Makes a channel between these two instances, the caller and the callee.
    ///
    /// # Errors
    /// The error of the kernel.
    fn open(
        &self,
        instances: [&str; 2],
        limits: ChannelLimits,
    ) -> Result<OpenedChannel, Box<dyn std::error::Error + Send + Sync>>;
}

/// The limits of descriptors in a channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLimits {
    /// Bytes of the caller's arena.
    pub caller_arena: u64,
    /// Bytes of the callee's arena.
    pub callee_arena: u64,
    /// Most bytes of a head.
    pub head: u32,
}

/// A new channel.
pub struct OpenedChannel {
    /// The node's handle. Dropping it closes both ends.
    pub channel: Box<dyn Channel>,
    /// The caller's end.
    pub caller: OwnedFd,
    /// The callee's end.
    pub callee: OwnedFd,
}

/// The node's handle of a channel.
pub trait Channel: Send + Sync {
    /// The kernel's counters.
    fn counts(&self) -> ChannelCounts;

    /// Refuses new calls from now on.
    fn close(&self);

    /// Whether one of the two instances has closed its end.
    fn has_ended(&self) -> bool;
}

/// Kinds of violations that the kernel refuses, in the order of [`ChannelCounts`].
pub const CHANNEL_VIOLATIONS: [&str; 5] = ["packet", "descriptor", "number", "stale", "slot"];

/// Counts of the descriptors that a channel has passed and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Calls that began.
    pub calls: u64,
    /// Answers to calls.
    pub answers: u64,
    /// Calls that have failed.
    pub failed: u64,
    /// Calls that their callers cancelled.
    pub cancelled: u64,
    /// Messages with calls after the channel was closed.
    pub refused: u64,
    /// Calls without an answer.
    pub open: u32,
    /// Answers that their callers have not released.
    pub held: u32,
    /// Violations by the caller.
    pub caller_violations: [u64; CHANNEL_VIOLATIONS.len()],
    /// Violations by the callee.
    pub callee_violations: [u64; CHANNEL_VIOLATIONS.len()],
}

impl ChannelCounts {
    /// Whether no call is open and no answer is held.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open == 0 && self.held == 0
    }

    /// Adds the counts of another channel.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.answers += other.answers;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.open += other.open;
        self.held += other.held;
        for (sum, count) in self.caller_violations.iter_mut().zip(other.caller_violations) {
            *sum += count;
        }
        for (sum, count) in self.callee_violations.iter_mut().zip(other.callee_violations) {
            *sum += count;
        }
    }
}
