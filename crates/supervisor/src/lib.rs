//! Starts, watches, restarts and stops the instances of functions on a node, and leases them to requests.
//!
//! Read in this order: [`Supervisor`] (the node's interface) and [`Function`] (a request's
//! interface). Then the modules: `dispatcher` (ready instances and the queue of waiting requests),
//! `slot` (an instance and its lease), `buffer` (the bound on waiting requests of the node), `load`
//! (the sum of the requests); [`leno_autoscaler`] (the number of instances that they need: a pure
//! function) and `scaling` (the times of its decisions); `lifecycle` (starts missing instances and
//! stops surplus ones), `instance` (one instance from start to end), `readiness`, `diagnosis` (why it
//! failed); `job` (commands
//! that run to completion); `child` (a started process, of either kind), `container`, `tree` (a
//! process group, or a jail), `process`, `accounts`, `cgroup`, `orphans`, `secret`, `output`;
//! `dialer` (the way to connect to an instance); `processes` and `sockets` (which process is at the
//! other end of a connection).
//!
//! This crate knows neither the proxy nor the control plane. It reports to its [`Host`].
//!
//! # Jails
//! An instance runs in a jail ([`leno_jail`]) unless its function says `isolation: process`, or
//! this node has no jails. A jail ends with its instance and with the node, and only the instance
//! can listen in it. The next sections are about instances without a jail.
//!
//! # How processes end
//! Each instance is a process group, and the whole group ends with the instance: SIGTERM, then
//! SIGKILL. That holds when the supervisor stops the instance, when its leader exits, and when the
//! [`Supervisor`]'s runtime is dropped.
//!
//! With [`Settings::cgroups`], where this account may make control groups (v2), each instance also
//! has its own control group. No process can leave it, and it is killed when the process group has
//! ended.
//!
//! A process may still detach itself: before the node has moved it into the control group, or where
//! there are no control groups. With [`Settings::adopt_orphans`] it becomes a child of the node and
//! ends with its instance. The node finds the instance by the process group, or by a variable in
//! the process's environment. A process with neither ends as soon as any instance does.
//!
//! When the node itself is killed with SIGKILL, the next node ends all processes in its control
//! groups. Without control groups, all instances survive: a death signal for children
//! (`PR_SET_PDEATHSIG`) can only be set between fork and exec, which needs unsafe code.
//!
//! # Verified connections
//! The first process that binds a port has it, and any process can copy a credential. So the node
//! asks the kernel which socket is at the other end of a connection, and `/proc` which process has
//! that socket. It does so on each new connection to an instance, before anything is sent, and
//! before it trusts a caller. See `processes` and `sockets`.
#![forbid(unsafe_code)]

mod accounts;
mod cgroup;
mod child;
mod container;
mod core_dumps;
mod diagnosis;
mod dialer;
mod dispatcher;
mod downloads;
mod error;
mod function;
mod host;
mod instance;
mod instance_id;
mod job;
mod lifecycle;
mod listeners;
mod liveness;
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
mod tree;
mod variables;
mod volumes;

pub use accounts::Accounts;
pub use cgroup::{NamespaceShare, probe_limits, sweep_groups};
pub use container::{
    ContainerSpec, ImageSource, ImageState, ImageUnavailable, Lease as ImageLease, LocalImage, PullProgress, Source,
};
pub use dialer::ConnectError;
pub use dispatcher::Lease;
pub use error::AcquireError;
pub use function::Function;
pub use host::{Host, LinkEnd, LinkError, Linking};
pub use instance_id::InstanceId;
pub use job::{JobSpec, JobState, JobStatus};
pub use leno_autoscaler::{Mode, Reason};
pub use leno_jail::{JailListeners, SyscallRefusal};
pub use orphans::{Apart, end_orphans, start_apart};
pub use processes::{NotTheInstance, Processes, descends_from, descends_from_the_node};
pub use spec::{ChainMemory, FunctionSpec, JailSupport, Settings};
pub use status::{FunctionLoad, FunctionStatus, InstanceStatus, Isolation, LossEvent, ScaleEvent, Scaling};
pub use supervisor::Supervisor;
pub use volumes::{VolumeBounds, VolumeError, VolumeStatus, VolumeStore, no_sized_volumes};
