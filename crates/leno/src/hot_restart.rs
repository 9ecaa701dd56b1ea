//! The child process that takes over in a hot restart: its program, its start, and its end.

mod container;
mod process;
mod program;

pub(crate) use container::{NextContainer, SOCKET, running};
pub(crate) use process::{ChildProcess, ChildStarter, TransferredState};
pub(crate) use program::Program;

use anyhow::Result;
use leno_api::node::PARENT_PID;
use leno_node::Parent;
use std::sync::atomic::Ordering;

/// The argument with which a node starts its child in a hot restart. Only nodes use it. The two
/// processes may be of different releases, so it stays.
pub(crate) const TAKE_OVER: &str = "--take-over";

/// The process that has started this one. Its socket is standard input, which then becomes
/// /dev/null.
pub(crate) fn parent() -> Result<Parent> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs());
    PARENT_PID.store(parent, Ordering::Relaxed);
    Ok(Parent::at(socket)?)
}
