//! What can be wrong with a module, with its start, and with one run of it.

use super::engine::MOST_INSTANCES;
use crate::fault::Fault;

/// Why a module cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is more of it than anybody needs.
    #[error("the module has {bytes} bytes; at most {limit} are taken")]
    TooLarge {
        /// Of the module.
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// Not WebAssembly, or a kind of it that is not run here.
    #[error("the module cannot be compiled: {0}")]
    Invalid(String),
    /// It wants a function that does not exist here, or not like that.
    #[error("the module imports `{0}`, which does not exist here{1}")]
    Import(String, &'static str),
    /// It lacks something that every proxy-wasm module has, or has it differently.
    #[error("the module is not a proxy-wasm module of ABI 0.2: {0}")]
    Export(String),
}

/// Why a module does not start with its configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// It wants more memory than it is given.
    #[error("the module begins with {needed} bytes of memory and is given {limit}; raise `memory`")]
    Memory {
        /// What it begins with.
        needed: u64,
        /// What it is given.
        limit: u64,
    },
    /// It says that its configuration is wrong.
    #[error("the module refuses its configuration{0}")]
    Refused(String),
    /// It failed.
    #[error("the module's start {0}")]
    Failed(Failure),
}

/// Why one run gave nothing that could be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It trapped, or ran out of time or memory.
    #[error("{0}")]
    Fault(Fault),
    /// It made a call that it may not make.
    #[error("made a call that it may not: {0}")]
    Call(String),
    /// It wants to be resumed later, and nothing would do that.
    #[error("paused the {0}, and nothing here would resume it")]
    Paused(&'static str),
    /// It answered what no module may answer.
    #[error("returned {0}, which is no action")]
    Action(u32),
    /// There are as many instances in this process as there can be.
    #[error("found no room: there are {MOST_INSTANCES} instances of extensions already")]
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
