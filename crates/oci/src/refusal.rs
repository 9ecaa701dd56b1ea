//! Why a layer is refused.

use rustix::io::Errno;
use std::io;

/// Why a layer is not unpacked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The archive is wrong. The message names the entry.
    Layer(String),
    /// The archive cannot be read, or there is no space for it.
    Read(io::Error),
    /// An entry cannot be written.
    Write(String, io::Error),
}

/// Why an entry is not unpacked.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The entry is wrong.
    Entry(String),
    /// This machine does not support it.
    System(io::Error),
    /// The store has no space for it.
    NoSpace(io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

pub(crate) type Outcome<T> = Result<T, Refusal>;

pub(crate) fn wrong<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Refusal::Entry(reason.into()))
}
