//! Starts, watches, restarts and stops the instances of functions on a node, and lends them to requests.
//!
//! Read in this order: [`Supervisor`] (what a node tells it), [`Function`] (what a request asks of it), then the modules:
//! `gate` (ready instances and the queue of waiting requests), `slot` (an instance, and the right to send it a request), `buffer`
//! (how many requests may wait on the node), `load` (how much there is to do); [`autoscaler`] (how many instances that takes: a pure
//! function) and `scaling` (when it is asked); `lifecycle` (starts what is missing, stops what is too much), `instance` (one process
//! from start to end), `readiness`; `job` (what runs to its end instead); `child` (what both are made of), `process`, `cgroup`, `secret`,
//! `output`.
//!
//! This crate knows neither proxy nor control plane. What it has to tell, it tells its [`Host`].
//!
//! # What ends with whom
//! Each instance is a process group of its own, and the whole group ends with it: SIGTERM, then SIGKILL. That holds when the
//! instance is stopped, when its leader exits, and when the [`Supervisor`]'s runtime is dropped. Two things escape: a process
//! that leaves its group (`setsid`), and all of them when the node itself is killed with SIGKILL, because a death signal for
//! children (`PR_SET_PDEATHSIG`) can only be set between fork and exec, which needs unsafe code. With [`Settings::cgroups`] the next
//! node ends both, and an instance with limits has a control group of its own, which even `setsid` does not leave.
#![forbid(unsafe_code)]

mod accounts;
pub mod autoscaler;
mod backoff;
mod buffer;
mod cgroup;
mod child;
mod error;
mod gate;
mod instance;
mod job;
mod lifecycle;
mod load;
mod output;
mod ports;
mod process;
mod processes;
mod readiness;
mod scaling;
mod secret;
mod slot;
mod sockets;
mod spec;
mod status;
mod supervisor;

pub use accounts::Accounts;
pub use autoscaler::{Mode, Reason};
pub use backoff::Backoff;
pub use error::AcquireError;
pub use job::{JobSpec, JobState, JobStatus};
pub use output::{LogLine, Stream};
pub use processes::{NotTheInstance, Processes};
pub use slot::Lease;
pub use spec::{FunctionSpec, Settings};
pub use status::{FunctionStatus, InstanceId, InstanceState, InstanceStatus, ScaleEvent, Scaling};
pub use supervisor::{Function, Host, Supervisor};
