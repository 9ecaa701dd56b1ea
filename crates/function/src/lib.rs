//! Starts, watches, restarts and stops the instances of functions on a node, and lends them to requests.
//!
//! Read in this order: [`Supervisor`] (what a node tells it), [`Function`] (what a request asks of it), then the modules:
//! `dispatcher` (ready instances and the queue of waiting requests), `slot` (an instance, and the right to send it a request), `buffer`
//! (how many requests may wait on the node), `load` (how much there is to do); [`autoscaler`] (how many instances that takes: a pure
//! function) and `scaling` (when it is asked); `lifecycle` (starts what is missing, stops what is too much), `instance` (one process
//! from start to end), `readiness`; `job` (what runs to its end instead); `child` (what both are made of), `process`, `accounts`, `cgroup`, `orphans`,
//! `secret`, `output`; `processes` and `sockets` (who is at the other end of a connection).
//!
//! This crate knows neither proxy nor control plane. What it has to tell, it tells its [`Host`].
//!
//! # What ends with whom
//! Each instance is a process group of its own, and the whole group ends with it: SIGTERM, then SIGKILL. That holds when the
//! instance is stopped, when its leader exits, and when the [`Supervisor`]'s runtime is dropped. With [`Settings::cgroups`], where this
//! account may make control groups (v2), each instance is also in one of its own, which nothing can leave, and which is killed when the group has
//! ended. With [`Settings::adopt_orphans`], a process that detached itself all the same (before the node had taken it into the group, or where there
//! are none) becomes a child of the node, and ends with its instance too; the node knows whose it is by its process group, or by what its
//! environment says. One that says nothing ends as soon as any instance does.
//!
//! When the node itself is killed with SIGKILL, the next node ends what is in its control groups. Where there are none, all instances
//! survive it: a death signal for children (`PR_SET_PDEATHSIG`) can only be set between fork and exec, which needs unsafe code.
//!
//! # Who is who
//! A port belongs to whoever binds it first, and a credential to whoever copies it. So before anything is sent to an instance, on each new connection,
//! and before a caller is believed, the kernel is asked which socket is at the other end, and `/proc` which process has it: `processes` and
//! `sockets`.
#![forbid(unsafe_code)]

mod accounts;
pub mod autoscaler;
mod cgroup;
mod child;
mod dispatcher;
mod error;
mod host;
mod instance;
mod instance_id;
mod job;
mod lifecycle;
mod load;
mod orphans;
mod output;
mod ports;
mod process;
mod processes;
mod readiness;
mod scaling;
mod secret;
mod sockets;
mod spec;
mod status;
mod supervisor;

pub use accounts::Accounts;
pub use autoscaler::{Mode, Reason};
pub use dispatcher::Lease;
pub use error::AcquireError;
pub use host::Host;
pub use instance_id::InstanceId;
pub use job::{JobSpec, JobState, JobStatus};
pub use output::{LogLine, Stream};
pub use processes::{NotTheInstance, Processes, descends_from_the_node};
pub use spec::{FunctionSpec, Settings};
pub use status::{FunctionStatus, InstanceState, InstanceStatus, ScaleEvent, Scaling};
pub use supervisor::{Function, Supervisor};
