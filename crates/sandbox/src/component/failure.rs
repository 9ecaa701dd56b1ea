//! What can be wrong with a component, and with one run of it.

use super::host::Host;
use crate::fault::Fault;
use crate::wasm::trapped;
use wasmtime::{PoolConcurrencyLimitError, Trap};
use wasmtime_wasi::I32Exit;

/// Why a component cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is more of it than anybody needs.
    #[error("the component has {bytes} bytes; at most {limit} are taken")]
    TooLarge {
        /// Of the component.
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// Not a component, or a kind of it that is not run here.
    #[error("the component cannot be compiled: {0}")]
    Invalid(String),
    /// It wants something that does not exist here.
    #[error("the component imports what does not exist here: {0}")]
    Import(String),
    /// It serves no HTTP.
    #[error("the component exports no `wasi:http/incoming-handler` of version 0.2: {0}")]
    Export(String),
}

/// Why one run gave no (whole) answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It trapped.
    #[error("{0}")]
    Fault(Fault),
    /// It took more memory than it is given.
    #[error("needed more memory than the {0} bytes that it is given")]
    Memory(usize),
    /// It ended itself.
    #[error("ended itself with status {0}")]
    Exit(i32),
    /// It returned without an answer.
    #[error("returned without an answer")]
    Silent,
    /// It answered that it failed.
    #[error("answered with the error {0}")]
    Error(String),
    /// There are too many instances on this node already.
    #[error("finds no room: this node runs as many instances as it can")]
    Crowded,
    /// It was shown nothing: the request is none that a component can be shown.
    #[error("cannot be shown this request: {0}")]
    Request(String),
}

impl Failure {
    /// What went wrong in a store.
    pub(super) fn of(error: &wasmtime::Error, host: &Host) -> Self {
        if let Some(exit) = error.downcast_ref::<I32Exit>() {
            return Self::Exit(exit.0);
        }
        if error.is::<PoolConcurrencyLimitError>() {
            return Self::Crowded;
        }
        // Languages answer a lack of memory by an undefined instruction; before it starts, the engine says so itself.
        let gave_up = matches!(error.downcast_ref::<Trap>(), None | Some(Trap::UnreachableCodeReached));
        match host.lacked_memory() {
            Some(limit) if gave_up => Self::Memory(limit),
            _ => Self::Fault(trapped(error)),
        }
    }

    /// A label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Fault(Fault::StackOverflow) => "stack_overflow",
            Self::Fault(Fault::Host(_)) => "host",
            Self::Fault(_) => "trap",
            Self::Memory(_) => "out_of_memory",
            Self::Exit(_) => "exit",
            Self::Silent => "silent",
            Self::Error(_) => "error",
            Self::Crowded => "crowded",
            Self::Request(_) => "request",
        }
    }
}
