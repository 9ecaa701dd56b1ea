//! Why a run gave no output. Each fault denies the request and leaves the next one unaffected.

use std::fmt;

/// A fault of a sidecar, or of the host that runs it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It was still running when its time was up.
    #[error("ran past its deadline")]
    Deadline,
    /// It executed a forbidden instruction.
    #[error("executed {what} (at {at:#x})")]
    Instruction {
        /// Address of the instruction.
        at: u64,
        /// The kind of instruction, as far as the processor tells.
        what: &'static str,
    },
    /// It accessed memory without permission.
    #[error("{access} memory that is not its own, at {address:#x} (instruction at {at:#x})")]
    Memory {
        /// Address of the instruction; 0 where the engine cannot tell.
        at: u64,
        /// The address accessed; 0 where the engine cannot tell.
        address: u64,
        /// The kind of access.
        access: Access,
    },
    /// It ran off the end of its stack.
    #[error("overflowed its stack")]
    StackOverflow,
    /// It used up its heap.
    #[error("ran out of memory")]
    OutOfMemory,
    /// It divided by zero, or the quotient did not fit.
    #[error("failed at a division (at {at:#x})")]
    Arithmetic {
        /// Address of the instruction; 0 where the engine cannot tell.
        at: u64,
    },
    /// It panicked.
    #[error("panicked at {0}")]
    Panicked(String),
    /// It refused its task.
    #[error("refused: {0}")]
    Refused(String),
    /// It claimed an impossible length of output.
    #[error("claimed an output of {length} bytes where {limit} fit")]
    BadLength {
        /// The claimed length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// It was not run, because its input does not fit.
    #[error("was given an input of {length} bytes where {limit} fit")]
    InputTooLong {
        /// The length of the input.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// It exited in a way that no program uses.
    #[error("tried to leave the sandbox: {0}")]
    Escape(String),
    /// It trapped for a reason that is specific to its engine.
    #[error("trapped: {0}")]
    Trap(String),
    /// The host could not run it.
    #[error("could not be run: {0}")]
    Host(String),
}

/// A kind of memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
    /// The engine cannot tell.
    Unknown,
}

impl fmt::Display for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "wrote to",
            Self::Execute => "executed",
            Self::Unknown => "accessed",
        })
    }
}

/// A guest's text, made safe for a log: printable ASCII, with a limited length.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const LIMIT: usize = 300;
    bytes.iter().take(LIMIT).map(|byte| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_write_control_characters_into_a_log() {
        assert_eq!(printable(b"line 1\nline\x1b[2J\xff"), "line 1?line?[2J?");
        assert_eq!(printable(&[b'x'; 5000]).len(), 300);
    }
}
