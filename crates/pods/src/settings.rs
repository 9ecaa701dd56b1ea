//! The setting of a pod's network (sysctl). The caller is in that network.

use crate::error::{CaptureError, Explain};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

/// Sockets that a program accepts have the mark of the connection. So answers to the agent, which
/// has the caller's address, stay in the pod.
const ACCEPT_MARK: &str = "sys/net/ipv4/tcp_fwmark_accept";

/// The ports that the kernel gives to sockets which ask for none.
const PORT_RANGE: &str = "sys/net/ipv4/ip_local_port_range";

/// The first one and the number of those ports. `None`: they cannot be read.
pub(crate) fn port_range() -> Option<(u16, u16)> {
    let mut text = String::new();
    open(&proc().ok()?, PORT_RANGE, OFlags::RDONLY).ok()?.read_to_string(&mut text).ok()?;
    let mut ports = text.split_whitespace().map(|port| port.parse::<u16>().ok());
    let (first, last) = (ports.next()??, ports.next()??);
    let count = last.checked_sub(first)?.checked_add(1)?;
    Some((first, count))
}

pub(crate) fn accept_mark() -> Result<u8, CaptureError> {
    let value = open(&proc()?, ACCEPT_MARK, OFlags::RDONLY).and_then(|mut file| {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        text.trim().parse().map_err(io::Error::other)
    });
    value.map_err(|error| CaptureError::Setting { name: ACCEPT_MARK, error })
}

pub(crate) fn set_accept_mark(value: u8) -> Result<(), CaptureError> {
    let written = open(&proc()?, ACCEPT_MARK, OFlags::WRONLY).and_then(|mut file| write!(file, "{value}"));
    written.map_err(|error| CaptureError::Setting { name: ACCEPT_MARK, error })
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
