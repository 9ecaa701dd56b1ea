//! Why a run gave no output. Every one of these denies the request and leaves the next one unaffected.

use std::fmt;

/// What a sidecar did, or what was done to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It was still running when its time was up.
    #[error("ran past its deadline")]
    Deadline,
    /// It executed something that it may not.
    #[error("executed {what} (at {at:#x})")]
    Instruction {
        /// Address of the instruction.
        at: u64,
        /// What it was, as far as the processor says.
        what: &'static str,
    },
    /// It accessed memory that it may not.
    #[error("{access} memory that is not its own, at {address:#x} (instruction at {at:#x})")]
    Memory {
        /// Address of the instruction; 0 where the engine cannot tell.
        at: u64,
        /// The address accessed; 0 where the engine cannot tell.
        address: u64,
        /// In which way.
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
    /// It found itself in a state that its authors excluded.
    #[error("panicked at {0}")]
    Panicked(String),
    /// It refused to do what it was asked.
    #[error("refused: {0}")]
    Refused(String),
    /// It claimed an output that cannot be.
    #[error("claimed an output of {length} bytes where {limit} fit")]
    BadLength {
        /// What it claimed.
        length: usize,
        /// What fits.
        limit: usize,
    },
    /// It was not run, because its input does not fit.
    #[error("was given an input of {length} bytes where {limit} fit")]
    InputTooLong {
        /// What it was given.
        length: usize,
        /// What fits.
        limit: usize,
    },
    /// It left in a way that no program leaves.
    #[error("tried to leave the sandbox: {0}")]
    Escape(String),
    /// It stopped for a reason of its engine's own.
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

/// A guest's own words, made safe for a log: printable ASCII, and not many.
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
