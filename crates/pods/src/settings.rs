//! Settings of a pod's network (sysctl). The caller is in that network.

use crate::error::CaptureError;
use std::fs;
use std::path::PathBuf;

/// Sockets that a program accepts have the mark of the connection. So answers to the agent, which
/// has the caller's address, stay in the pod.
const ACCEPT_MARK: &str = "tcp_fwmark_accept";
/// Connections that an ending agent has not accepted go to its successor.
const MIGRATE: &str = "tcp_migrate_req";

/// The values of both before the capture. They are kept with the pinned maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    accept_mark: u8,
    migrate: u8,
}

impl Settings {
    /// The present values.
    pub(crate) fn read() -> Result<Self, CaptureError> {
        Ok(Self { accept_mark: read(ACCEPT_MARK)?, migrate: read(MIGRATE)? })
    }

    /// Puts the values of the capture into force.
    pub(crate) fn capture() -> Result<(), CaptureError> {
        Self { accept_mark: 1, migrate: 1 }.write()
    }

    pub(crate) fn write(self) -> Result<(), CaptureError> {
        for (name, value) in [(ACCEPT_MARK, self.accept_mark), (MIGRATE, self.migrate)] {
            // In a read-only /proc/sys, a value that is right already is enough.
            if read(name)? != value {
                let path = path(name);
                fs::write(&path, value.to_string()).map_err(|error| CaptureError::Setting { path, error })?;
            }
        }
        Ok(())
    }

    pub(crate) fn bytes(self) -> [u8; 2] {
        [self.accept_mark, self.migrate]
    }

    pub(crate) fn from_bytes([accept_mark, migrate]: [u8; 2]) -> Self {
        Self { accept_mark, migrate }
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys/net/ipv4").join(name)
}

fn read(name: &str) -> Result<u8, CaptureError> {
    let path = path(name);
    let value = fs::read_to_string(&path).and_then(|text| text.trim().parse().map_err(std::io::Error::other));
    value.map_err(|error| CaptureError::Setting { path, error })
}
