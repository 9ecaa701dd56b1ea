//! Errors of a module, of its start, and of one run of it.

use super::engine::MOST_INSTANCES;
use crate::fault::Fault;

/// Why a module cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is larger than the limit.
    #[error("the module has {bytes} bytes; at most {limit} are taken")]
    TooLarge {
        /// The size of the module.
        bytes: usize,
        /// The largest size that is accepted.
        limit: usize,
    },
    /// It is not WebAssembly, or of a kind that is not supported here.
    #[error("the module cannot be compiled: {0}")]
    Invalid(String),
    /// It imports a function that does not exist here, or with another type.
    #[error("the module imports `{0}`, which does not exist here{1}")]
    Import(String, &'static str),
    /// It lacks an export that every proxy-wasm module has, or has it with another type.
    #[error("the module is not a proxy-wasm module of ABI 0.2: {0}")]
    Export(String),
}

/// Why a module does not start with its configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Its initial memory is larger than its limit.
    #[error("the module begins with {needed} bytes of memory and is given {limit}; raise `memory`")]
    Memory {
        /// The size of its initial memory.
        needed: u64,
        /// The memory limit.
        limit: u64,
    },
    /// It rejected its configuration.
    #[error("the module refuses its configuration{0}")]
    Refused(String),
    /// It failed.
    #[error("the module's start {0}")]
    Failed(Failure),
}

/// Why one run gave no usable result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It trapped, or ran out of time or memory.
    #[error("{0}")]
    Fault(Fault),
    /// It made a call that it may not make.
    #[error("made a call that it may not: {0}")]
    Call(String),
    /// It paused to be resumed later, and nothing here would resume it.
    #[error("paused the {0}, and nothing here would resume it")]
    Paused(&'static str),
    /// It returned an invalid action.
    #[error("returned {0}, which is no action")]
    Action(u32),
    /// The process already has as many instances as it can.
    #[error("found no capacity: there are {MOST_INSTANCES} instances of extensions already")]
    Crowded,
}

impl Failure {
    /// A label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Fault(Fault::Deadline) => "deadline",
            Self::Fault(Fault::OutOfMemory) => "out_of_memory",
            Self::Fault(Fault::StackOverflow) => "stack_overflow",
            Self::Fault(Fault::Panicked(_)) => "panicked",
            Self::Fault(Fault::Host(_)) => "host",
            Self::Fault(_) => "trap",
            Self::Call(_) => "call",
            Self::Paused(_) => "paused",
            Self::Action(_) => "action",
            Self::Crowded => "crowded",
        }
    }
}
