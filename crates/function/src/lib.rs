//! Starts, watches, restarts and stops the instances of functions on a node, and lends them to requests.
//!
//! Read in this order: [`Supervisor`] (what a node tells it), [`Function`] (what a request asks of it), then the modules:
//! `gate` (ready instances, leases, the queue of waiting requests), `lifecycle` (how many instances there should be, and
//! when to start the next), `instance` (one process from start to end), `readiness`, `process`, `output`.
//!
//! This crate knows neither proxy nor control plane. What it has to tell, it tells its [`Host`].
//!
//! # What ends with whom
//! Each instance is a process group of its own, and the whole group ends with it: SIGTERM, then SIGKILL. That holds when the
//! instance is stopped, when its leader exits, and when the [`Supervisor`]'s runtime is dropped. Two things escape: a process
//! that leaves its group (`setsid`), and all of them when the node itself is killed with SIGKILL, because a death signal for
//! children (`PR_SET_PDEATHSIG`) can only be set between fork and exec, which needs unsafe code.
#![forbid(unsafe_code)]

mod backoff;
mod gate;
mod instance;
mod lifecycle;
mod output;
mod process;
mod readiness;
mod spec;
mod status;
mod supervisor;

pub use backoff::Backoff;
pub use gate::{AcquireError, Lease};
pub use output::{LogLine, Stream};
pub use spec::{FunctionSpec, Settings};
pub use status::{FunctionStatus, InstanceId, InstanceState, InstanceStatus};
pub use supervisor::{Function, Host, Supervisor};
