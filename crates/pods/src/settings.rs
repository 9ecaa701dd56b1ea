//! The settings of a pod's network (sysctl). The caller is in that network.

use crate::error::{CaptureError, Explain};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

/// How marks lead answers to the agent, which has the caller's address, back into the pod: sockets
/// that a program accepts have the mark of the connection, and so have resets by which the kernel
/// answers for a port without a program.
const MARKS: [&str; 3] =
    ["sys/net/ipv4/tcp_fwmark_accept", "sys/net/ipv4/fwmark_reflect", "sys/net/ipv6/fwmark_reflect"];
/// The last one is missing where IPv6 is switched off.
const OPTIONAL: &str = MARKS[2];
/// All of them are on.
pub(crate) const ALL_MARKS: u8 = 0b111;

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

/// Which of the settings for marks are on: one bit for each.
pub(crate) fn marks() -> Result<u8, CaptureError> {
    let proc = proc()?;
    let mut marks = 0;
    for (bit, name) in MARKS.into_iter().enumerate() {
        let value = open(&proc, name, OFlags::RDONLY).and_then(|mut file| {
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            text.trim().parse::<u8>().map_err(io::Error::other)
        });
        match value {
            Ok(value) => marks |= u8::from(value != 0) << bit,
            Err(error) => unless_missing(name, error)?,
        }
    }
    Ok(marks)
}

/// Switches the settings for marks on or off.
pub(crate) fn set_marks(marks: u8) -> Result<(), CaptureError> {
    let proc = proc()?;
    for (bit, name) in MARKS.into_iter().enumerate() {
        let value = marks >> bit & 1;
        let written = open(&proc, name, OFlags::WRONLY).and_then(|mut file| write!(file, "{value}"));
        written.or_else(|error| unless_missing(name, error))?;
    }
    Ok(())
}

fn unless_missing(name: &'static str, error: io::Error) -> Result<(), CaptureError> {
    match error.kind() {
        io::ErrorKind::NotFound if name == OPTIONAL => Ok(()),
        _ => Err(CaptureError::Setting { name, error }),
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
