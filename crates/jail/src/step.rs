//! The steps in which a jail is created, and the step that failed.

use std::io;

/// The error of a jail that could not be created: the step that failed, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub(crate) struct Unmade {
    what: &'static str,
    error: io::Error,
}

/// Adds the name of the step to a system's error.
pub(crate) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, Unmade>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: &'static str) -> Result<T, Unmade> {
        self.map_err(|error| Unmade { what, error: error.into() })
    }
}
