//! Functions that are components: `wasi:http/proxy` 0.2, with a separate instance for each request.
//!
//! A [`Components`] engine compiles a [`Component`] once; with [`Settings`] it is a [`Program`],
//! which serves requests. An instance sees its request and its environment, and nothing else of the
//! node: no files, no sockets, no other request. Its outgoing calls go to an [`Outbound`] of the
//! embedder, which decides about them. An instance computes in turns, so that a long computation
//! does not block the thread. Dropping a run ends the instance. Any fault in an instance ends this
//! one run with a [`Failure`].

mod cache;
mod engine;
mod failure;
mod host;
mod outbound;
mod program;
mod run;
mod stdio;

pub use cache::CompiledComponents;
pub use engine::Components;
pub use failure::{CompileError, Failure};
pub use outbound::{Body, Outbound, Sending, StreamError};
pub use program::{Component, LARGEST_COMPONENT, Program, Settings};
pub use run::Answer;
