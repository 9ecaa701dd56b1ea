//! User-written policies: proxy-wasm modules (ABI 0.2.1), each request in an instance of its own.
//!
//! An [`Extensions`] engine compiles a [`Module`]; with a configuration it becomes a [`Plugin`], which is started once, for
//! good or ill, so that a module that cannot start is found before a request is. Each request then has a [`Run`]: a fresh
//! instance that sees the request's head, and, if it is kept, its response's.
//!
//! A module is given data and gives data back. It has no clock (time stands still at the request's own), no randomness but what is
//! handed in, no files, no sockets, and no memory of other requests but the function's [`SharedData`]. Whatever it does that it may
//! not (a wild pointer, a call that does not exist here, more memory, time, header fields or log lines than it was given) ends
//! this one run with a [`Failure`] that says what it was.

mod calls;
mod engine;
mod failure;
mod head;
mod headers;
mod host;
mod logging;
mod module;
mod plugin;
mod portable;
mod run;
mod shared;

pub use engine::{Extensions, MOST_INSTANCES};
pub use failure::{CompileError, Failure, StartError};
pub use head::{Direction, Given, Request, Response};
pub use headers::{Headers, Malformed};
pub use module::{LARGEST_MODULE, Module};
pub use plugin::{LARGEST_MEMORY, Plugin, SMALLEST_MEMORY, Settings};
pub use run::{Local, Outcome, Run};
pub use shared::SharedData;

#[cfg(test)]
pub(crate) use portable::is_unrestorable;
