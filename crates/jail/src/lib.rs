//! Jails, which isolate instances that are not trusted.
//!
//! A jail is a set of namespaces (user, network, mount, process, IPC, host name, control group)
//! with one program in it. The program has no capability and gains none. It makes only system calls
//! that are on a list. It sees a read-only tree of chosen paths, and only its own processes. Its
//! only network peer is the node: the node holds the sockets at which calls arrive ([`JailListeners`]),
//! and connects to the program with sockets of the jail's network ([`JailDialer`]).
//!
//! # Processes
//! The node starts a *jailer* ([`jailer`]), which creates jails. Each begins with a first
//! process, which sets up the jail and waits. Jails are created ahead of need, because that takes
//! milliseconds. When the node has a program, the first process shows it its files, gives up all
//! rights, and starts it. The first process stays, so that the program is not an init process,
//! which would have to reap orphans and could ignore SIGTERM by default.
//!
//! The kernel ends a jail with its first process. That process ends when the program has ended,
//! when the node closes its socket (also by being killed), or when the jailer ends. So no jail
//! outlives its node.
//!
//! # Containers
//! A jail may also be created for a container ([`Jails::take_for_container`], [`Jail::contain`]).
//! It has a range of user IDs instead of one, its program's files are those of an image, and the
//! image's root user has a few capabilities, for these files and users. All else is as in other
//! jails. The node has to be root.
//!
//! # Rights
//! Jails need no root. If the node is root, each jail has its own user ID on the machine, and no
//! two are alike. Otherwise the kernel only lets the node map its own account, and only the other
//! namespaces keep jails apart.
#![deny(unsafe_code)] // allowed one call at a time: `clone`, and calls that no library has

mod account;
mod children;
mod contained;
mod container;
mod dependencies;
mod error;
mod filter;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod init;
mod jail;
pub mod jailer;
mod jailer_process;
mod jails;
mod network;
mod overlay;
mod program;
mod rights;
mod root;
mod shown;
mod step;
mod user;
mod view;
mod wire;

pub use account::Half;
pub use container::{Container, DEFAULT_WRITABLE, Image, Volume, WritableFolder};
pub use error::JailError;
pub use host::HostFolder;
pub use init::USER;
pub use jail::{Exit, Jail, JailDialer, JailListeners, ListenerGuard, Prepare, Refusals, SyscallRefusal};
pub use jailer_process::Jailer;
pub use jails::Jails;
pub use program::{Program, examine};
pub use rights::{forbid_core_dumps, limit_processes, start_without_core_dumps};

/// Processes and threads that a program may have by default.
pub const DEFAULT_PROCESSES: u32 = 1024;
/// The folder in which a jail shows a program's secrets, each in its own file.
pub const SECRETS: &str = "/run/secrets";
