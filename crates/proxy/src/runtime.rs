//! A worker's runtime: tasks that take turns, clocks, random numbers, queues to other threads, and an HTTP client for the node's own requests.

pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod guard;
pub(crate) mod hyper;
pub(crate) mod machines;
pub(crate) mod outbox;
pub mod random;
pub(crate) mod resolver;
pub(crate) mod schedule;
pub(crate) mod silence;
