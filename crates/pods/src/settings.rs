//! Settings of a pod's network (sysctl). The caller is in that network.

use crate::error::{CaptureError, Explain};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

/// Sockets that a program accepts have the mark of the connection. So answers to the agent, which
/// has the caller's address, stay in the pod.
const ACCEPT_MARK: &str = "sys/net/ipv4/tcp_fwmark_accept";
/// Connections that an ending agent has not accepted go to its successor.
const MIGRATE: &str = "sys/net/ipv4/tcp_migrate_req";

/// The values of both before the capture. They are kept with the pinned maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    accept_mark: u8,
    migrate: u8,
}

impl Settings {
    /// The present values.
    pub(crate) fn read() -> Result<Self, CaptureError> {
        let proc = proc()?;
        Ok(Self { accept_mark: read(&proc, ACCEPT_MARK)?, migrate: read(&proc, MIGRATE)? })
    }

    /// Puts the values of the capture into force.
    pub(crate) fn capture() -> Result<(), CaptureError> {
        Self { accept_mark: 1, migrate: 1 }.write()
    }

    pub(crate) fn write(self) -> Result<(), CaptureError> {
        let proc = proc()?;
        for (name, value) in [(ACCEPT_MARK, self.accept_mark), (MIGRATE, self.migrate)] {
            let written = open(&proc, name, OFlags::WRONLY).and_then(|mut file| write!(file, "{value}"));
            written.map_err(|error| CaptureError::Setting { name, error })?;
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

/// A proc file system that no path leads to. Container runtimes mount `/proc/sys` read-only.
fn proc() -> Result<OwnedFd, CaptureError> {
    let mount = || {
        let proc = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&proc)?;
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        Ok(fsmount(&proc, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
    };
    mount().explain("mounting a proc file system")
}

fn open(proc: &OwnedFd, name: &str, access: OFlags) -> io::Result<File> {
    Ok(openat(proc, name, access | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn read(proc: &OwnedFd, name: &'static str) -> Result<u8, CaptureError> {
    let value = open(proc, name, OFlags::RDONLY).and_then(|mut file| {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        text.trim().parse().map_err(io::Error::other)
    });
    value.map_err(|error| CaptureError::Setting { name, error })
}
