//! The child process that takes over in a hot restart: its program, its start, and its end.

mod process;
mod program;

pub(crate) use process::{ChildProcess, ChildStarter};
pub(crate) use program::Program;

/// The argument with which a node starts its child in a hot restart. Only nodes use it. The two
/// processes may be of different releases, so it stays.
pub(crate) const TAKE_OVER: &str = "--take-over";
