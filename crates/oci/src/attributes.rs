//! Owner, mode, times and extended attributes of a file: which of them an image may have, and how
//! they are set.

use crate::refusal::{Outcome, wrong};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How many bytes of extended attributes a file of a layer below may have: the limit of Linux.
const MAX_XATTRS: usize = 64 << 10;

/// Owner, mode, times and extended attributes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(CString, Vec<u8>)>,
}

impl Attributes {
    /// Reads the attributes of a file of a layer below.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Outcome<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            xattrs: xattrs(file)?,
        })
    }
}

/// How the store treats an extended attribute of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It grants or limits rights on the file. Where it cannot be set, the image is refused.
    Rights,
    /// Programs may look for it, or not. It is left out where it cannot be set.
    User,
    /// Left out: it has a meaning on the machine that made the image, and none in a container here.
    Foreign,
}

pub(crate) fn kind(key: &[u8]) -> Kind {
    match key {
        b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default" => Kind::Rights,
        // overlayfs reads these attributes: a layer could make folders appear that it does not
        // contain.
        _ if key.starts_with(b"user.overlay.") => Kind::Foreign,
        _ if key.starts_with(b"user.") && key.len() > b"user.".len() && !key.contains(&0) => Kind::User,
        // `trusted.` of overlayfs, labels (SELinux, SMACK), signatures (IMA, EVM), access lists of
        // NFS, `btrfs.`, `com.apple.`, and all unknown attributes.
        _ => Kind::Foreign,
    }
}

/// The entries and attributes of a layer that are left out of every container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Omissions {
    /// Device nodes.
    pub devices: u64,
    /// Extended attributes.
    pub attributes: u64,
    /// The first few of both, by name.
    pub examples: Vec<String>,
}

/// How many omissions are named.
const MAX_EXAMPLES: usize = 5;
/// How many characters of a name are shown.
const MAX_EXAMPLE: usize = 100;

impl Omissions {
    /// Whether nothing was omitted.
    pub fn is_empty(&self) -> bool {
        self.devices == 0 && self.attributes == 0
    }

    pub(crate) fn device(&mut self, path: &[u8]) {
        self.devices += 1;
        self.example(path);
    }

    pub(crate) fn attribute(&mut self, key: &[u8]) {
        self.attributes += 1;
        self.example(key);
    }

    fn example(&mut self, name: &[u8]) {
        if self.examples.len() < MAX_EXAMPLES {
            let name = String::from_utf8_lossy(&name[..name.len().min(4 * MAX_EXAMPLE)]);
            let name: String = name.chars().take(MAX_EXAMPLE).map(|c| if c.is_control() { '?' } else { c }).collect();
            if !self.examples.contains(&name) {
                self.examples.push(name);
            }
        }
    }

    /// Adds the omissions of another layer.
    pub(crate) fn add(&mut self, other: &Self) {
        self.devices += other.devices;
        self.attributes += other.attributes;
        for example in &other.examples {
            self.example(example.as_bytes());
        }
    }
}

impl std::fmt::Display for Omissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { devices, attributes, examples } = self;
        write!(f, "{devices} device nodes and {attributes} extended attributes ({})", examples.join(", "))
    }
}

/// Gives an open file or folder its attributes, in the order in which none undoes another: a new
/// owner takes off set-user-ID and capabilities.
pub(crate) fn apply(file: BorrowedFd<'_>, attributes: &Attributes, omitted: &mut Omissions) -> Outcome<()> {
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    rustix::fs::fchown(file, Some(uid), Some(gid))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    for (key, value) in &attributes.xattrs {
        let set = rustix::fs::fsetxattr(file, key.as_c_str(), value, XattrFlags::empty());
        judge(set, key, omitted)?;
    }
    rustix::fs::futimens(file, &times(attributes.mtime))?;
    Ok(())
}

/// As [`apply`], for a file that cannot be opened: a symbolic link or a FIFO.
pub(crate) fn apply_at(
    parent: BorrowedFd<'_>,
    name: &[u8],
    attributes: &Attributes,
    omitted: &mut Omissions,
) -> Outcome<()> {
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    // The folder's descriptor stands for its path.
    let place = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(OsStr::from_bytes(name));
    for (key, value) in &attributes.xattrs {
        let set = rustix::fs::lsetxattr(&place, key.as_c_str(), value, XattrFlags::empty());
        judge(set, key, omitted)?;
    }
    rustix::fs::utimensat(parent, name, &times(attributes.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

/// An attribute that this file system does not have, or not for such a file, is left out; `user.`
/// ones of any size and form.
fn judge(set: Result<(), Errno>, key: &CString, omitted: &mut Omissions) -> Outcome<()> {
    match set {
        Ok(()) => Ok(()),
        Err(error) if error == Errno::OPNOTSUPP || kind(key.to_bytes()) != Kind::Rights => {
            omitted.attribute(key.to_bytes());
            Ok(())
        }
        Err(error) => wrong(format!("its extended attribute {key:?} cannot be set: {error}")),
    }
}

/// The extended attributes that an image may have. Those of overlayfs are not copied.
fn xattrs(file: BorrowedFd<'_>) -> Outcome<Vec<(CString, Vec<u8>)>> {
    // Most files have none; an empty list is found without a buffer for all.
    match rustix::fs::flistxattr(file, &mut [0; 1][..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) | Err(Errno::RANGE) => {}
        Err(error) => return Err(error.into()),
    }
    let mut names = vec![0; MAX_XATTRS];
    let length = rustix::fs::flistxattr(file, &mut names[..])?;
    let mut all = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| kind(name) != Kind::Foreign) {
        let Ok(key) = CString::new(name) else { continue };
        let mut value = vec![0; MAX_XATTRS];
        let length = rustix::fs::fgetxattr(file, key.as_c_str(), &mut value[..])?;
        value.truncate(length);
        all.push((key, value));
    }
    Ok(all)
}

pub(crate) fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
