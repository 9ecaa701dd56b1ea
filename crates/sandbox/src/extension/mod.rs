//! User-written policies: proxy-wasm modules (ABI 0.2.1), with a separate instance for each
//! request.
//!
//! An [`Extensions`] engine compiles a [`Module`]; with a configuration it becomes a [`Plugin`].
//! The plugin is started once in advance, so that a module that cannot start is found before any
//! request. Each request then has a [`Run`]: a fresh instance that sees the request's head, and, if
//! it is kept, its response's.
//!
//! A module takes data and returns data. It has no clock (time stands still at the request's own),
//! no randomness except a seed from the host, no files, no sockets, and no memory of other requests
//! except the function's [`SharedData`]. A violation (a wild pointer, a call that does not exist
//! here, or exceeding its limits of memory, time, header fields or log lines) ends this one run
//! with a [`Failure`] that names it.

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
pub use head::{Direction, Request, Response, RunInputs};
pub use headers::{FieldListError, Headers};
pub use module::{LARGEST_MODULE, Module};
pub use plugin::{LARGEST_MEMORY, Plugin, SMALLEST_MEMORY, Settings};
pub use run::{Local, Outcome, Run};
pub use shared::SharedData;

#[cfg(test)]
pub(crate) use portable::is_unrestorable;
