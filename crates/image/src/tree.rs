//! A folder that a layer is unpacked into. Nothing is ever followed out of it, and no link inside of it.
//!
//! The kernel sees to that: parents are opened with `openat2` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, and files are made in them with `O_EXCL`.

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How many folders deep a file may be. Who removes a tree holds a descriptor for each.
const MAX_DEPTH: usize = 128;
/// How long a path may be, in bytes.
const MAX_PATH: usize = 4095;
/// How long a name may be, in bytes.
const MAX_NAME: usize = 255;
/// How long the paths of all folders may be together, in bytes: they are kept until the end.
const MAX_FOLDER_NAMES: usize = 64 << 20;

pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

/// Why an entry is not unpacked.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The entry is wrong.
    Entry(String),
    /// This machine does not do it.
    System(io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

pub(crate) type Outcome<T> = Result<T, Refusal>;

pub(crate) fn wrong<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Refusal::Entry(reason.into()))
}

/// A path relative to the folder, without `.`, `..` and doubled slashes. Empty: the folder itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inside(Vec<u8>);

impl Inside {
    /// A leading `/` or `./` is taken off, as all do that unpack layers.
    pub(crate) fn new(path: &[u8]) -> Outcome<Self> {
        if path.is_empty() {
            return wrong("its path is empty");
        }
        if path.contains(&0) {
            return wrong("its path has a zero byte");
        }
        let mut inside = Vec::with_capacity(path.len());
        let mut depth = 0;
        for name in path.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => continue,
                b".." => return wrong("its path has `..`, which could lead out of the image"),
                _ if name.len() > MAX_NAME => {
                    return wrong(format!("a name in its path is longer than {MAX_NAME} bytes"));
                }
                _ => {}
            }
            if !inside.is_empty() {
                inside.push(b'/');
            }
            inside.extend_from_slice(name);
            depth += 1;
        }
        if inside.len() > MAX_PATH || depth > MAX_DEPTH {
            return wrong(format!("its path is longer than {MAX_PATH} bytes or deeper than {MAX_DEPTH} folders"));
        }
        Ok(Self(inside))
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The parent and the name in it; the folder itself has neither.
    pub(crate) fn split(&self) -> (Self, &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (Self(self.0[..slash].to_vec()), &self.0[slash + 1..]),
            None => (Self(Vec::new()), &self.0),
        }
    }

    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    pub(crate) fn as_path(&self) -> &Path {
        if self.0.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

/// Owner, mode, times and extended attributes.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(CString, Vec<u8>)>,
}

/// A folder that the layer has.
#[derive(Clone, Copy, Debug)]
struct Folder {
    mtime: (i64, u32),
    /// The archive has no entry for it; its attributes are those of the layers below.
    implied: bool,
}

pub(crate) struct Tree {
    root: Arc<OwnedFd>,
    /// The parent that was used last: entries of one folder come one after another.
    last: Option<(Inside, Arc<OwnedFd>)>,
    folders: BTreeMap<Inside, Folder>,
    folder_names: usize,
    /// Folders that were made for entries below them, since they were last taken.
    implied_count: u64,
}

impl Tree {
    /// `root` is an empty folder.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        let root = rustix::fs::openat(
            CWD,
            root,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut tree =
            Self { root: Arc::new(root), last: None, folders: BTreeMap::new(), folder_names: 0, implied_count: 0 };
        rustix::fs::fchmod(&*tree.root, Mode::from_raw_mode(0o755))?;
        tree.folders.insert(Inside(Vec::new()), Folder { mtime: (0, 0), implied: true });
        Ok(tree)
    }

    /// How many folders were made for entries below them, since this was last asked.
    pub(crate) fn take_implied_count(&mut self) -> u64 {
        std::mem::take(&mut self.implied_count)
    }

    /// A folder with all of its attributes but the time, which making its entries would change.
    pub(crate) fn folder(&mut self, path: &Inside, attributes: &Attributes) -> Outcome<()> {
        let fd = if path.is_root() {
            self.root.clone()
        } else {
            let (parent, name) = path.split();
            let fd = self.parent(&parent)?;
            match self.kind(&fd, name)? {
                Some(FileType::Directory) => {}
                Some(kind) => {
                    let whiteout = kind == FileType::CharacterDevice;
                    self.remove(&fd, path, name)?;
                    self.make_folder(&fd, name, whiteout)?;
                }
                None => self.make_folder(&fd, name, false)?,
            }
            self.open(path)?
        };
        self.remember(path, Folder { mtime: attributes.mtime, implied: false })?;
        let file = File::from(fd.as_fd().try_clone_to_owned()?);
        apply(&file, attributes)
    }

    /// An empty file, which the caller fills and then gives its attributes with [`finish`].
    pub(crate) fn file(&mut self, path: &Inside) -> Outcome<File> {
        let (parent, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&*parent, name, flags, Mode::from_raw_mode(0o600))?))
    }

    pub(crate) fn symlink(&mut self, path: &Inside, target: &[u8], attributes: &Attributes) -> Outcome<()> {
        if target.is_empty() || target.contains(&0) || target.len() > MAX_PATH {
            return wrong(format!("its target is empty, longer than {MAX_PATH} bytes, or has a zero byte"));
        }
        let (parent, name) = self.place(path)?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), &*parent, name)?;
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        rustix::fs::chownat(&*parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if !attributes.xattrs.is_empty() {
            // A symbolic link cannot be opened; the folder's descriptor stands for the way to it.
            let place = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(OsStr::from_bytes(name));
            for (key, value) in &attributes.xattrs {
                if let Err(error) = rustix::fs::lsetxattr(&place, key.as_c_str(), value, XattrFlags::empty()) {
                    return wrong(format!("its extended attribute {key:?} cannot be set: {error}"));
                }
            }
        }
        rustix::fs::utimensat(&*parent, name, &times(attributes.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    pub(crate) fn hard_link(&mut self, path: &Inside, target: &Inside) -> Outcome<()> {
        if path == target {
            return wrong("it is a hard link to itself");
        }
        let missing =
            || format!("it is a hard link to `{}`, which this layer does not have", target.as_path().display());
        let (folder, target_name) = target.split();
        let folder = match self.open(&folder) {
            Ok(folder) => folder,
            Err(Refusal::System(_)) => return wrong(missing()),
            Err(error) => return Err(error),
        };
        match self.kind(&folder, target_name)? {
            Some(FileType::RegularFile | FileType::Symlink) => {}
            Some(_) => {
                return wrong(format!("it is a hard link to `{}`, which is no file", target.as_path().display()));
            }
            None => return wrong(missing()),
        }
        let (parent, name) = self.place(path)?;
        rustix::fs::linkat(&*folder, target_name, &*parent, name, AtFlags::empty())?;
        Ok(())
    }

    /// What layers below have there is not to be seen: overlayfs wants a device 0/0. What this layer itself has there stays, and hides what is below.
    pub(crate) fn whiteout(&mut self, path: &Inside) -> Outcome<()> {
        let (parent, name) = path.split();
        let fd = self.parent(&parent)?;
        match self.kind(&fd, name)? {
            None => {
                rustix::fs::mknodat(&*fd, name, FileType::CharacterDevice, Mode::empty(), 0)?;
                rustix::fs::utimensat(&*fd, name, &times((0, 0)), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(())
            }
            Some(FileType::Directory) => self.opaque(path),
            Some(_) => Ok(()),
        }
    }

    /// What layers below have in this folder is not to be seen.
    pub(crate) fn opaque(&mut self, folder: &Inside) -> Outcome<()> {
        let fd = self.parent(folder)?;
        rustix::fs::fsetxattr(&*fd, OPAQUE, b"y", XattrFlags::empty())?;
        Ok(())
    }

    /// Sets the times of folders. The folders that the archive has no entry for, outermost first.
    pub(crate) fn finish(self) -> Outcome<Vec<Inside>> {
        let mut implied = Vec::new();
        for (path, folder) in &self.folders {
            let fd = self.open(path)?;
            rustix::fs::futimens(&*fd, &times(folder.mtime))?;
            if folder.implied {
                implied.push(path.clone());
            }
        }
        Ok(implied)
    }

    /// The parent of a path at which nothing is any more.
    fn place<'a>(&mut self, path: &'a Inside) -> Outcome<(Arc<OwnedFd>, &'a [u8])> {
        if path.is_root() {
            return wrong("it would replace the root of the image; expected a folder");
        }
        let (parent, name) = path.split();
        let fd = self.parent(&parent)?;
        if self.kind(&fd, name)?.is_some() {
            self.remove(&fd, path, name)?;
        }
        Ok((fd, &path.0[path.0.len() - name.len()..]))
    }

    fn remove(&mut self, parent: &OwnedFd, path: &Inside, name: &[u8]) -> Outcome<()> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => wrong("it would replace a folder of this layer that has entries"),
                Err(error) => Err(error.into()),
                Ok(()) => {
                    self.folders.remove(path);
                    self.last = None;
                    Ok(())
                }
            },
            result => Ok(result?),
        }
    }

    fn make_folder(&self, parent: &OwnedFd, name: &[u8], opaque: bool) -> Outcome<()> {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        // The process's umask may have taken something off.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755))?;
        if opaque {
            rustix::fs::fsetxattr(&fd, OPAQUE, b"y", XattrFlags::empty())?;
        }
        Ok(())
    }

    fn remember(&mut self, path: &Inside, folder: Folder) -> Outcome<()> {
        if self.folders.insert(path.clone(), folder).is_none() {
            self.folder_names += path.0.len();
        }
        if self.folder_names > MAX_FOLDER_NAMES {
            return wrong(format!(
                "the names of this layer's folders are longer than {MAX_FOLDER_NAMES} bytes together"
            ));
        }
        Ok(())
    }

    /// Opens a folder, and makes those that are missing.
    fn parent(&mut self, path: &Inside) -> Outcome<Arc<OwnedFd>> {
        if let Some((last, fd)) = &self.last
            && last == path
        {
            return Ok(fd.clone());
        }
        let fd = match self.open(path) {
            Ok(fd) => fd,
            Err(Refusal::System(_)) => self.open_or_make(path)?,
            Err(error) => return Err(error),
        };
        self.last = Some((path.clone(), fd.clone()));
        Ok(fd)
    }

    fn open_or_make(&mut self, path: &Inside) -> Outcome<Arc<OwnedFd>> {
        let (mut at, mut fd) = (Inside(Vec::new()), self.root.clone());
        for name in path.names() {
            at = at.join(name);
            let kind = self.kind(&fd, name)?;
            match kind {
                Some(FileType::Directory) => {}
                // Only whiteouts are devices here. What the layer puts below stands alone then.
                None | Some(FileType::CharacterDevice) => {
                    if kind.is_some() {
                        rustix::fs::unlinkat(&*fd, name, AtFlags::empty())?;
                    }
                    self.make_folder(&fd, name, kind.is_some())?;
                    self.implied_count += 1;
                    self.remember(&at, Folder { mtime: (0, 0), implied: kind.is_none() })?;
                }
                Some(_) => return wrong(format!("it is below `{}`, which is no folder", at.as_path().display())),
            }
            fd = self.open(&at)?;
        }
        Ok(fd)
    }

    fn open(&self, path: &Inside) -> Outcome<Arc<OwnedFd>> {
        match open_beneath(self.root.as_fd(), path) {
            Ok(fd) => Ok(Arc::new(fd)),
            Err(Errno::LOOP) => {
                wrong(format!("its path goes through a symbolic link (`{}`)", path.as_path().display()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn kind(&self, parent: &OwnedFd, name: &[u8]) -> Outcome<Option<FileType>> {
        Ok(stat(parent.as_fd(), name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    }
}

/// Opens a folder without following a link.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &Inside) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, path.as_path(), flags, Mode::empty(), resolve)
}

/// What is at a name, if anything.
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

/// Gives an open file or folder its attributes, in the order in which none undoes another: a new owner takes off set-user-ID and capabilities.
pub(crate) fn apply(file: &File, attributes: &Attributes) -> Outcome<()> {
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    rustix::fs::fchown(file, Some(uid), Some(gid))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    for (key, value) in &attributes.xattrs {
        if let Err(error) = rustix::fs::fsetxattr(file, key.as_c_str(), value, XattrFlags::empty()) {
            return wrong(format!("its extended attribute {key:?} cannot be set: {error}"));
        }
    }
    rustix::fs::futimens(file, &times(attributes.mtime))?;
    Ok(())
}

pub(crate) fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
