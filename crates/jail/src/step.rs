//! The steps in which a room is made, and where one failed.

use std::io;

/// Why a room could not be made: what was missing, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub(crate) struct Unmade {
    what: &'static str,
    error: io::Error,
}

/// Adds what was being done to a system's error.
pub(crate) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, Unmade>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: &'static str) -> Result<T, Unmade> {
        self.map_err(|error| Unmade { what, error: error.into() })
    }
}
