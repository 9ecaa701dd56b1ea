//! Files below a folder, by names and paths that no link changes.

use crate::path::Inside;
use rustix::fs::{AtFlags, Dev, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The attribute by which a folder hides, in overlayfs, those at the same path in the layers below.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";
pub(crate) const OPEN_FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a folder with all of its content. No link is followed.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let folder = rustix::fs::openat(parent, name, OPEN_FOLDER, Mode::empty())?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let inner = entry.file_name().to_bytes();
        if matches!(inner, b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(&folder, inner, AtFlags::empty()) {
            Err(Errno::ISDIR) => remove_tree(folder.as_fd(), inner)?,
            result => result?,
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Opens a folder without following a link.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &Inside) -> Result<OwnedFd, Errno> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, path.as_path(), OPEN_FOLDER, Mode::empty(), resolve)
}

/// The metadata of the file with this name, if there is one.
pub(crate) fn stat(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev as Dev == 0
}

pub(crate) fn is_opaque(folder: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(folder, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA) => Ok(false),
        Err(error) => Err(error),
    }
}
