//! The nine policies as pure functions, and the program that fuses them.
//!
//! A *program* is all of one function's policies for one direction. The `config` crate compiles its
//! description, a [`spec::ProgramSpec`], from documents; [`program::Program`] is built of it once.
//! Judging a request is a pure function of an [`input::RequestInput`]: no clock, no I/O, no
//! randomness, no counters. The result, an [`outcome::Output`], is plain data that the trusted
//! runtime carries out. What depends on state is the runtime's part: counters ([`quota`]), the load
//! of a target ([`breaker`]), spans ([`trace`]).
//!
//! Everything here is `no_std + alloc`, because it runs inside a micro-VM without an operating
//! system, inside a Wasm instance, and in the host (unit tests, `leno check`), with the same
//! results. Read [`program`] first.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod abi;
mod authentication;
mod authorization;
pub mod breaker;
mod claims;
pub mod clauses;
pub mod connection;
pub mod engine;
mod fields;
pub mod host;
pub mod input;
mod json;
pub mod matching;
pub mod needs;
pub mod outcome;
pub mod path;
pub mod program;
mod query;
pub mod quota;
pub mod regex;
pub mod reserved;
pub mod sidecar;
pub mod spec;
#[cfg(test)]
mod testing;
pub mod token;
pub mod trace;
mod words;

pub use authentication::{KEYS_PENDING, UNKNOWN_KEY};
