//! Errors of jails that could not be created.

use std::io;
use std::time::Duration;

/// Longest wait for a jail, and for a program to be started in it. Both take milliseconds.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// The error of a jail that could not be created.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// This machine lacks a feature that a jail needs. Names the feature.
    #[error("{0}")]
    Unmade(String),
    /// The jailer does not answer, or has ended.
    #[error("the jailer: {0}")]
    Jailer(#[from] io::Error),
    /// The jailer took too long.
    #[error("the jailer did not make one within {LONGEST:?}")]
    Timeout,
}

impl From<io::ErrorKind> for JailError {
    fn from(kind: io::ErrorKind) -> Self {
        io::Error::from(kind).into()
    }
}

/// The error for an invalid request.
pub(crate) fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
