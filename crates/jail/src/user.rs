//! The user of a container: the one that its image or its function names, looked up in the image's
//! `/etc/passwd` and `/etc/group`.
//!
//! The image is not trusted. Its files are opened below its own root, regardless of their links.
//! They must be regular files of limited length.

pub(crate) mod names;

pub(crate) use names::{CONTAINER_IDS, User};

use crate::root;
use rustix::fs::{FileType, OFlags, fstat};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Longest `/etc/passwd` or `/etc/group`, in bytes.
const LONGEST: u64 = 1 << 20;

/// Looks a user up in the image with this root. `spec` is `user`, `user:group`, each a name or a number, or empty: root.
///
/// # Errors
/// Names the missing entry, and the file in which it was looked for.
pub(crate) fn find(root: BorrowedFd<'_>, spec: &str) -> io::Result<User> {
    let (passwd, group) = (read(root, "etc/passwd")?, read(root, "etc/group")?);
    names::look_up(spec, &passwd, &group).map_err(|missing| io::Error::new(io::ErrorKind::NotFound, missing))
}

/// A file of the image; empty if there is none.
fn read(root: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    let explain = |error: io::Error| io::Error::new(error.kind(), format!("/{path} of the image: {error}"));
    let file = match open_in(root, Path::new(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        opened => opened.map_err(explain)?,
    };
    let mut bytes = Vec::new();
    File::from(file).take(LONGEST + 1).read_to_end(&mut bytes).map_err(explain)?;
    if bytes.len() as u64 > LONGEST {
        return Err(explain(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {LONGEST} bytes"))));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a regular file below a root, which links cannot leave.
fn open_in(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    // Opening a FIFO would otherwise block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = root::open(root, path, flags)?;
    if FileType::from_raw_mode(fstat(file.as_fd())?.st_mode).is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file"))
    }
}
