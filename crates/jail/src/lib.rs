//! Rooms: where instances run that nobody has to trust.
//!
//! A room is a set of namespaces (user, network, mount, process, IPC, host name, control group) with one program in it. The program has no capability
//! and gains none, makes only system calls that are on a list, sees a read-only tree of chosen paths, its own processes and nobody else's, and has a
//! network that leads nowhere but to the node: the node holds the sockets at which calls arrive ([`Entrances`]), and connects to the program with sockets
//! of the room's network ([`Inside`]).
//!
//! # Processes
//! The node starts a *launcher* ([`launcher`]). It makes rooms: each begins with a first process, which furnishes the room and waits. Rooms are made
//! ahead of need, because that takes milliseconds. When the node has a program, the first process shows it its files, gives up all rights, and starts it.
//! It stays, so that the program is no init process, which would have to reap others' children and could ignore SIGTERM without a word.
//!
//! The kernel ends a room with its first process. That process ends when the program has ended, when the node closes its socket (also by being killed),
//! or when the launcher ends. So no room outlives its node.
//!
//! # Containers
//! A room may also be made for a container ([`Rooms::take_for_container`], [`Room::contain`]). It has a range of user IDs instead of one, its program's
//! files are those of an image, and the image's root user has a few capabilities, for these files and users. An OCI runtime of the machine puts the files
//! in their places and starts the program; all else is as in other rooms. The node has to be root.
//!
//! # Rights
//! Rooms need no root. With root, each has a user ID of its own outside, and no two are alike; without, the kernel only lets the node map its own account,
//! and rooms are kept apart by the other namespaces alone.
#![deny(unsafe_code)] // allowed one call at a time: `clone`, and calls that no library has

mod account;
mod children;
mod container;
mod error;
mod filter;
mod init;
pub mod launcher;
mod network;
mod overlay;
mod program;
mod rights;
mod room;
mod rooms;
mod runtime;
mod shown;
mod step;
mod user;
mod view;
mod wire;

pub use account::Half;
pub use container::{Container, DEFAULT_WRITABLE, Image, Volume};
pub use error::NoRoom;
pub use program::Program;
pub use rights::{forbid_core_dumps, limit_processes, start_without_core_dumps};
pub use room::{Entrances, Exit, Inside, Kept, Prepare, Refusals, Refused, Room};
pub use rooms::{Launcher, Rooms};

/// Processes and threads that a program may have by default.
pub const DEFAULT_PROCESSES: u32 = 1024;
/// Where a room shows a program's secrets, each in a file of its own.
pub const SECRETS: &str = "/run/secrets";
