//! Functions that are components: `wasi:http/proxy` 0.2, each request in an instance of its own.
//!
//! A [`Components`] engine compiles a [`Component`] once; with [`Settings`] it is a [`Program`], which serves requests. An instance
//! sees its request and its environment, and nothing else of the node: no files, no sockets, no other request. Its own calls are handed
//! to whoever runs it ([`Outside`]), who decides what becomes of them. It computes in turns, so that a long computation does not keep the
//! thread; who drops a run ends the instance. Whatever goes wrong in it ends this one run with a [`Failure`].

mod engine;
mod failure;
mod host;
mod outside;
mod program;
mod run;
mod stdio;

pub use engine::Components;
pub use failure::{CompileError, Failure};
pub use outside::{Body, Broken, Outside, Sending};
pub use program::{Component, LARGEST_COMPONENT, Program, Settings};
pub use run::Answer;
