//! Errors of a component, and of one run of it.

use super::host::Host;
use crate::fault::Fault;
use crate::wasm::trapped;
use wasmtime::{PoolConcurrencyLimitError, Trap};
use wasmtime_wasi::I32Exit;

/// Why a component cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is larger than the limit.
    #[error("the component has {bytes} bytes; at most {limit} are taken")]
    TooLarge {
        /// The size of the component.
        bytes: usize,
        /// The largest size that is accepted.
        limit: usize,
    },
    /// It is not a component, or of a kind that is not supported here.
    #[error("the component cannot be compiled: {0}")]
    Invalid(String),
    /// It imports an interface that does not exist here.
    #[error("the component imports what does not exist here: {0}")]
    Import(String),
    /// It does not serve HTTP.
    #[error("the component exports no `wasi:http/incoming-handler` of version 0.2: {0}")]
    Export(String),
}

/// Why one run gave no answer, or only a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It trapped.
    #[error("{0}")]
    Fault(Fault),
    /// It needed more memory than its limit.
    #[error("needed more memory than the {0} bytes that it is given")]
    Memory(usize),
    /// It exited.
    #[error("ended itself with status {0}")]
    Exit(i32),
    /// It returned without an answer.
    #[error("returned without an answer")]
    Silent,
    /// It answered with an error.
    #[error("answered with the error {0}")]
    Error(String),
    /// The node already runs as many instances as it can.
    #[error("finds no capacity: this node runs as many instances as it can")]
    Crowded,
    /// The instance did not start, because the request cannot be passed to a component.
    #[error("cannot be shown this request: {0}")]
    Request(String),
}

impl Failure {
    /// The failure of a store that ended with this error.
    pub(super) fn of(error: &wasmtime::Error, host: &Host) -> Self {
        if let Some(exit) = error.downcast_ref::<I32Exit>() {
            return Self::Exit(exit.0);
        }
        if error.is::<PoolConcurrencyLimitError>() {
            return Self::Crowded;
        }
        // Programs react to a lack of memory by an undefined instruction; during instantiation, the
        // engine itself reports it.
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
