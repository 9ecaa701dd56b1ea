//! What a worker runs on: tasks that take turns, clocks, random numbers, queues to other threads, connections of the node's own.

pub mod client;
pub mod clock;
pub mod hyper;
pub mod outbox;
pub mod random;
pub mod schedule;
