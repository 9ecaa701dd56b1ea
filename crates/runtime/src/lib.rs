//! The runtime of a node's workers: tasks, clocks, random numbers, name resolution, and an HTTP
//! client.
//!
//! | module | purpose |
//! |---|---|
//! | [`schedule`] | runs the tasks of one worker thread, and shares its time fairly between functions |
//! | [`batch`] | passes items of workers to a background thread in batches |
//! | [`client`] | HTTP requests of the node itself |
//! | [`resolver`] | looks up names of hosts outside the mesh |
//! | [`clock`], [`random`], [`keepalive`] | wall-clock time, random numbers, TCP keepalive |
#![forbid(unsafe_code)]

pub mod batch;
pub mod client;
pub mod clock;
pub mod keepalive;
pub mod random;
pub mod resolver;
pub mod schedule;
