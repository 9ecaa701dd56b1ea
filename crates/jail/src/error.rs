//! Why there is no room.

use std::io;
use std::time::Duration;

/// Longest wait for a room, and for a program to be started in it. Both take milliseconds.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// Why there is no room.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// Something that a room needs cannot be had here. Says what.
    #[error("{0}")]
    Unmade(String),
    /// The launcher does not answer, or has ended.
    #[error("the launcher of rooms: {0}")]
    Launcher(#[from] io::Error),
    /// The launcher took too long.
    #[error("the launcher of rooms did not make one within {LONGEST:?}")]
    Timeout,
}

impl From<io::ErrorKind> for NoRoom {
    fn from(kind: io::ErrorKind) -> Self {
        io::Error::from(kind).into()
    }
}

/// Says what cannot be asked for.
pub(crate) fn bad(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
