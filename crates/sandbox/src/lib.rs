//! Runs one program once, isolated and bounded.
//!
//! An [`Engine`] turns an encoded program into an [`Image`]: the memory in which it was initialised. A worker thread's
//! [`Pool`] then runs images, each run in a [`Sandbox`] that starts from that memory and knows nothing of any other run:
//!
//! ```
//! # use leno_policy::{input, spec};
//! # use std::time::Duration;
//! # fn run(program: spec::ProgramSpec, input: input::RequestInput<'_>) -> Result<(), Box<dyn std::error::Error>> {
//! let (engine, why_not_microvm) = leno_sandbox::Engine::probe()?;
//! let image = engine.load(&leno_sandbox::encode(&program)?)?;
//! let mut pool = leno_sandbox::Pool::new();
//! let output = pool.run(&image, &input, Duration::from_millis(2))?;
//! # Ok(()) }
//! ```
//!
//! Three engines exist: `microvm` (a virtual machine under KVM), `wasm` (a WebAssembly instance) and `inline` (a plain
//! function call, for tests and comparison). The verdicts are the same; see `docs/decisions/0001-sandbox-engines.md`.
//!
//! User-written policies are [`extension`]s: WebAssembly modules of users, with a separate instance
//! for each request.
//!
//! Whole functions may be [`component`]s, which serve HTTP with a separate instance for each
//! request.
//!
//! A run that faults, gives bad output or exceeds its deadline returns an error with a reason; the
//! pool continues with a clean sandbox.
#![deny(unsafe_code)] // allowed in `microvm`, `deadline`, `component::cache` and one function of `wasm` alone

mod clock;
pub mod component;
mod cpu_time;
mod deadline;
mod engine;
mod error;
pub mod extension;
mod fault;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod inline;
mod microvm;
mod output;
mod pool;
mod wasm;

pub use engine::Engine;
pub use error::{EngineError, LoadError};
pub use fault::{Access, Fault};
pub use image::Image;
pub use output::OutputError;
pub use pool::{Clean, FinishedRun, Pool, RunError, Sandbox};

/// Encodes a program for [`Engine::load`].
pub fn encode(program: &leno_policy::spec::ProgramSpec) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(program)
}
