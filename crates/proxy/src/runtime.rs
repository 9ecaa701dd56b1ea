//! What a worker runs on: tasks that take turns, clocks, random numbers, queues to other threads, connections of the node's own.

pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod hyper;
pub(crate) mod outbox;
pub mod random;
pub(crate) mod schedule;
