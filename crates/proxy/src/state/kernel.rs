//! What a node has the kernel do with the connections of rooms. The node provides it, where the kernel can.

use super::node::Node;
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use tokio::net::TcpStream;

/// The kernel's part. Its methods make system calls that take microseconds.
pub trait Kernel: Send + Sync + 'static {
    /// Puts in force which connections the node's current snapshot allows (see [`crate::connections::rules`]).
    fn follow(&self, node: &Node);

    /// Looks for the program at the other end of a connection that is about to be made, from this socket and its address to this port. It does so until
    /// the result is dropped.
    fn expect(&self, socket: BorrowedFd<'_>, bound: SocketAddr, port: u16) -> Option<Box<dyn Any + Send>>;

    /// Has the kernel carry bytes between a caller's connection and a callee's, until the result is dropped. What it does not carry goes on arriving at
    /// the two. `None`: it carries none.
    fn splice(&self, caller: &TcpStream, callee: &TcpStream) -> Option<Box<dyn Spliced>>;
}

/// Two connections that are spliced.
pub trait Spliced: Send {
    /// How many bytes the kernel has carried: from the caller, and to it.
    fn bytes(&self) -> [u64; 2];
}

/// Makes channels: pairs of connected sockets on which the kernel lets nothing but descriptors of calls and their answers through.
pub trait Switch: Send + Sync + 'static {
    /// Makes a channel between these two instances, the caller and the callee.
    ///
    /// # Errors
    /// What the kernel says.
    fn open(
        &self,
        instances: [&str; 2],
        limits: ChannelLimits,
    ) -> Result<OpenedChannel, Box<dyn std::error::Error + Send + Sync>>;
}

/// What the descriptors of a channel may point to.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLimits {
    /// Bytes of the caller's arena.
    pub caller_arena: u64,
    /// Bytes of the callee's.
    pub callee_arena: u64,
    /// Most bytes of a head.
    pub head: u32,
}

/// A new channel.
pub struct OpenedChannel {
    /// The node's handle. When it is dropped both ends are closed.
    pub channel: Box<dyn Channel>,
    /// The caller's end.
    pub caller: OwnedFd,
    /// The callee's.
    pub callee: OwnedFd,
}

/// A channel as the node sees it.
pub trait Channel: Send + Sync {
    /// What the kernel has counted.
    fn counts(&self) -> ChannelCounts;

    /// Lets no call begin any more.
    fn close(&self);

    /// Whether one of the two instances has ended its end.
    fn has_ended(&self) -> bool;
}

/// Kinds of what the kernel does not let through, in the order of [`ChannelCounts`].
pub const CHANNEL_VIOLATIONS: [&str; 5] = ["packet", "descriptor", "number", "stale", "slot"];

/// What went through a channel, and what did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Calls that began.
    pub calls: u64,
    /// Their answers.
    pub answers: u64,
    /// Calls that have failed.
    pub failed: u64,
    /// Calls for whose answer nobody waited.
    pub cancelled: u64,
    /// Messages with calls after the channel was closed.
    pub refused: u64,
    /// Calls without an answer.
    pub open: u32,
    /// Answers that are read.
    pub held: u32,
    /// What the caller tried and must not.
    pub caller_violations: [u64; CHANNEL_VIOLATIONS.len()],
    /// What the callee did.
    pub callee_violations: [u64; CHANNEL_VIOLATIONS.len()],
}

impl ChannelCounts {
    /// Whether nothing is open or read.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open == 0 && self.held == 0
    }

    /// Adds what another channel has counted.
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
