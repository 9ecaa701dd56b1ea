//! The process that takes over from this one: which program it is, how it is started, and what becomes of it.

mod process;
mod program;

pub(crate) use process::{Own, Successor};
pub(crate) use program::Program;

/// The argument with which a node starts its child in a hot restart. Only nodes use it.
pub(crate) const TAKE_OVER: &str = "--take-over";
