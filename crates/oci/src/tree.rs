//! A layer that is being made on top of others. Each step finds the image as the steps before it
//! and the layers below have left it, and changes this layer only.
//!
//! Links in paths are followed as in the finished image, whose root is `/`: here, name by name, and
//! never by the kernel. A resolved path has no links; `open_beneath` opens it with `openat2` and
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, and files are made in it with `O_EXCL`.

use crate::attributes::{Attributes, Omissions, apply, apply_at, times};
use crate::beneath::{OPAQUE, OPEN_FOLDER, is_whiteout, open_beneath, remove_tree, stat};
use crate::lower::{Below, Lower};
use crate::path::Inside;
use crate::refusal::{Outcome, Refusal, wrong};
use crate::space::{BLOCK, INODE, ReserveSpace, Space};
use crate::steps::{Action, Step};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// How long the paths of all folders may be together, in bytes: they are kept until the end.
const MAX_FOLDER_NAMES: usize = 64 << 20;
/// How many names a path may have once its links are followed.
const MAX_NAMES: usize = 1024;
/// How many links a path may go through: as many as Linux follows.
const MAX_LINKS: usize = 40;

/// How many names of links' targets are followed, and how many folders of layers below are looked
/// up, for one layer: enough for a layer with a million entries. Each takes some microseconds.
const MAX_LOOK_UPS: usize = 64 << 20;

const MAKE_FILE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::CLOEXEC);

/// A folder that the layer has.
#[derive(Debug)]
struct Folder {
    mtime: (i64, u32),
    /// The layers below whose folders at this path are merged with it, topmost first.
    lower: Vec<u16>,
}

pub(crate) struct Tree<'a> {
    root: Arc<OwnedFd>,
    /// The files of the archive, by number.
    contents: OwnedFd,
    lower: Lower,
    /// All folders of this layer, by paths without links.
    folders: BTreeMap<Inside, Folder>,
    folder_names: usize,
    /// The paths at which device nodes of this layer were left out. They count as names of folders.
    devices: BTreeSet<Inside>,
    /// How many of [`MAX_LOOK_UPS`] have been made.
    look_ups: usize,
    /// The parent that was used last, as written and as resolved: entries of one folder come one
    /// after another.
    last: Option<(Inside, Place)>,
    reserve: ReserveSpace<'a>,
    omitted: &'a mut Omissions,
}

/// A folder of this layer.
#[derive(Clone)]
struct Place {
    /// The path without links.
    path: Inside,
    fd: Arc<OwnedFd>,
}

/// The file that is visible at a name.
enum Entry {
    /// This layer has hidden the file of the layers below.
    Hidden,
    Folder,
    Symlink(Vec<u8>),
    Other,
    /// This layer has no file there.
    Below(Below),
}

impl<'a> Tree<'a> {
    /// `root` is an empty folder, `lower` are the layers below, topmost first.
    pub(crate) fn new(
        root: &Path,
        contents: &Path,
        lower: &[&Path],
        reserve: ReserveSpace<'a>,
        omitted: &'a mut Omissions,
    ) -> io::Result<Self> {
        let root = rustix::fs::openat(CWD, root, OPEN_FOLDER, Mode::empty())?;
        let contents = rustix::fs::openat(CWD, contents, OPEN_FOLDER, Mode::empty())?;
        let lower = Lower::open(lower)?;
        let merged = lower.root()?;
        let (root, folders) = (Arc::new(root), BTreeMap::new());
        let devices = BTreeSet::new();
        let mut tree = Self {
            root,
            contents,
            lower,
            folders,
            folder_names: 0,
            devices,
            look_ups: 0,
            last: None,
            reserve,
            omitted,
        };
        let attributes = match merged.first() {
            Some(top) => tree.lower.folder(*top, &Inside::root()).and_then(|top| Attributes::of(top.as_fd())),
            None => Ok(Attributes { mode: 0o755, ..Attributes::default() }),
        };
        let applied = attributes.and_then(|attributes| {
            apply(tree.root.as_fd(), &attributes, tree.omitted)?;
            tree.remember(Inside::root(), Folder { mtime: attributes.mtime, lower: merged })
        });
        match applied {
            Ok(()) => Ok(tree),
            Err(Refusal::Entry(reason)) => Err(io::Error::other(reason)),
            Err(Refusal::System(error) | Refusal::NoSpace(error)) => Err(error),
        }
    }

    pub(crate) fn step(&mut self, Step { path, action }: &Step) -> Outcome<()> {
        match action {
            Action::Folder(attributes) => self.folder(path, attributes),
            Action::File(number) => self.file(path, *number),
            Action::Symlink { target, attributes } => {
                let (parent, name) = self.clear(path)?;
                rustix::fs::symlinkat(target.as_slice(), &*parent.fd, name)?;
                apply_at(parent.fd.as_fd(), name, attributes, self.omitted)
            }
            Action::HardLink(target) => self.hard_link(path, target),
            Action::Fifo(attributes) => {
                let (parent, name) = self.clear(path)?;
                make_fifo(&parent.fd, name, attributes, self.omitted)
            }
            Action::Nothing => self.leave_out(path),
            Action::Whiteout => self.whiteout(path),
            Action::Opaque => {
                let folder = self.resolve(path, true)?;
                self.opaque(&folder)
            }
        }
    }

    /// Makes a folder with all of its attributes but the time, which making its entries would
    /// change.
    fn folder(&mut self, path: &Inside, attributes: &Attributes) -> Outcome<()> {
        let place = if path.is_root() {
            Place { path: Inside::root(), fd: self.root.clone() }
        } else {
            let (parent, name) = path.split();
            let parent = self.resolve(&parent, true)?;
            let at = parent.path.join(name)?;
            self.forget(&parent);
            match self.seen(&parent, name)? {
                Entry::Folder => {}
                Entry::Below(Below::Folder(lower)) => self.make_folder(&parent, name, lower, attributes.mtime)?,
                Entry::Below(_) => self.make_folder(&parent, name, Vec::new(), attributes.mtime)?,
                Entry::Hidden | Entry::Symlink(_) | Entry::Other => {
                    self.remove(&parent, name)?;
                    self.make_folder(&parent, name, Vec::new(), attributes.mtime)?;
                    self.separate(&parent, name)?;
                }
            }
            self.open(at)?
        };
        if let Some(folder) = self.folders.get_mut(&place.path) {
            folder.mtime = attributes.mtime;
        }
        apply(place.fd.as_fd(), attributes, self.omitted)
    }

    fn file(&mut self, path: &Inside, number: u64) -> Outcome<()> {
        let (parent, name) = path.split();
        let parent = self.resolve(&parent, true)?;
        self.forget(&parent);
        let place = || {
            let number = number.to_string();
            rustix::fs::renameat_with(&self.contents, number, &*parent.fd, name, RenameFlags::NOREPLACE)
        };
        match place() {
            Err(Errno::EXIST) => {}
            result => return Ok(result?),
        }
        self.remove(&parent, name)?;
        let number = number.to_string();
        Ok(rustix::fs::renameat_with(&self.contents, number, &*parent.fd, name, RenameFlags::NOREPLACE)?)
    }

    /// Makes a hard link as `link` in the image would: the file of a layer below is copied up
    /// first.
    fn hard_link(&mut self, path: &Inside, target: &Inside) -> Outcome<()> {
        let no_file = |what: &str| format!("it is a hard link to `{}`, which {what}", target.as_path().display());
        let (folder, target_name) = target.split();
        let folder = self.resolve(&folder, false)?;
        let (parent, name) = path.split();
        let parent = self.resolve(&parent, true)?;
        if folder.path.join(target_name)? == parent.path.join(name)? {
            return wrong("it is a hard link to itself");
        }
        match self.seen(&folder, target_name)? {
            Entry::Symlink(_) | Entry::Other => {}
            Entry::Below(Below::Symlink(layer, _) | Below::Other(layer)) => {
                self.copy_up(&folder, target_name, layer)?
            }
            Entry::Folder | Entry::Below(Below::Folder(_)) => return wrong(no_file("is no file")),
            // The target is a device that was left out.
            Entry::Hidden | Entry::Below(Below::Nothing) if self.devices.contains(&folder.path.join(target_name)?) => {
                self.omitted.device(path.as_path().as_os_str().as_encoded_bytes());
                return self.leave_out(path);
            }
            Entry::Hidden | Entry::Below(Below::Nothing) => {
                return wrong(no_file("neither this layer nor those below it have"));
            }
        }
        let (parent, name) = self.clear(path)?;
        match rustix::fs::linkat(&*folder.fd, target_name, &*parent.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => wrong(no_file("it replaces")),
            Err(Errno::MLINK) => wrong(no_file("has too many links")),
            result => Ok(result?),
        }
    }

    /// Leaves no file at the path, as a device node would have replaced it.
    fn leave_out(&mut self, path: &Inside) -> Outcome<()> {
        let (parent, name) = self.clear(path)?;
        self.hide(&parent, name)?;
        let place = parent.path.join(name)?;
        self.count_name(place.len())?;
        self.devices.insert(place);
        Ok(())
    }

    /// Hides the file of the layers below. If this layer itself has a file there, that stays, and
    /// hides the one below.
    fn whiteout(&mut self, path: &Inside) -> Outcome<()> {
        let (parent, name) = path.split();
        let parent = self.resolve(&parent, true)?;
        match self.seen(&parent, name)? {
            Entry::Folder => {
                let folder = self.open(parent.path.join(name)?)?;
                self.opaque(&folder)
            }
            Entry::Below(_) => self.hide(&parent, name),
            Entry::Hidden | Entry::Symlink(_) | Entry::Other => Ok(()),
        }
    }

    /// Hides the file of layers below, where this layer has none: overlayfs takes a device 0/0 as
    /// the mark.
    fn hide(&mut self, parent: &Place, name: &[u8]) -> Outcome<()> {
        match self.seen(parent, name)? {
            Entry::Below(Below::Nothing) => Ok(()),
            Entry::Below(_) => {
                rustix::fs::mknodat(&*parent.fd, name, FileType::CharacterDevice, Mode::empty(), 0)?;
                rustix::fs::utimensat(&*parent.fd, name, &times((0, 0)), AtFlags::SYMLINK_NOFOLLOW)?;
                self.last = None;
                Ok(())
            }
            Entry::Hidden | Entry::Folder | Entry::Symlink(_) | Entry::Other => Ok(()),
        }
    }

    /// Hides the content that layers below have in this folder.
    fn opaque(&mut self, folder: &Place) -> Outcome<()> {
        if !self.merges(folder) {
            return Ok(());
        }
        rustix::fs::fsetxattr(&*folder.fd, OPAQUE, b"y", XattrFlags::empty())?;
        let below = self.folders.range_mut(folder.path.clone()..).take_while(|(path, _)| path.is_in(&folder.path));
        below.for_each(|(_, folder)| folder.lower = Vec::new());
        self.last = None;
        Ok(())
    }

    /// Whether layers below may have entries in this folder.
    fn merges(&self, folder: &Place) -> bool {
        self.folders.get(&folder.path).is_some_and(|folder| !folder.lower.is_empty())
    }

    /// Keeps a new folder apart from a folder of a layer below that has meanwhile been replaced.
    fn separate(&mut self, parent: &Place, name: &[u8]) -> Outcome<()> {
        if !self.merges(parent) {
            return Ok(());
        }
        let fd = rustix::fs::openat(&*parent.fd, name, OPEN_FOLDER, Mode::empty())?;
        Ok(rustix::fs::fsetxattr(&fd, OPAQUE, b"y", XattrFlags::empty())?)
    }

    /// Sets the times of folders.
    pub(crate) fn finish(self) -> Outcome<()> {
        for (path, folder) in &self.folders {
            let fd = open_beneath(self.root.as_fd(), path)?;
            rustix::fs::futimens(&fd, &times(folder.mtime))?;
        }
        Ok(())
    }

    /// The parent of a path and the name in it, after the file of this layer there has been
    /// removed.
    fn clear<'p>(&mut self, path: &'p Inside) -> Outcome<(Place, &'p [u8])> {
        if path.is_root() {
            return wrong("it would replace the root of the image; expected a folder");
        }
        let (parent, _) = path.split();
        let name = path.names().next_back().unwrap_or_default();
        let parent = self.resolve(&parent, true)?;
        self.forget(&parent);
        if stat(parent.fd.as_fd(), name)?.is_some() {
            self.remove(&parent, name)?;
        }
        Ok((parent, name))
    }

    /// Forgets the parent that was used last: a new entry in this folder may hide a link of a layer
    /// below, through which that parent was found.
    fn forget(&mut self, folder: &Place) {
        if self.merges(folder) {
            self.last = None;
        }
    }

    /// Removes the file of this layer at a name; a folder with all of its content.
    fn remove(&mut self, parent: &Place, name: &[u8]) -> Outcome<()> {
        let path = parent.path.join(name)?;
        self.last = None;
        match rustix::fs::unlinkat(&*parent.fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            result => return Ok(result?),
        }
        remove_tree(parent.fd.as_fd(), name)?;
        let gone = self.folders.range(path.clone()..).map(|(at, _)| at).take_while(|at| at.is_in(&path));
        let gone: Vec<Inside> = gone.cloned().collect();
        for at in gone {
            self.folder_names -= at.len();
            self.folders.remove(&at);
        }
        Ok(())
    }

    /// Makes a folder at a name at which this layer has nothing.
    fn make_folder(&mut self, parent: &Place, name: &[u8], lower: Vec<u16>, mtime: (i64, u32)) -> Outcome<()> {
        let path = parent.path.join(name)?;
        rustix::fs::mkdirat(&*parent.fd, name, Mode::from_raw_mode(0o755))?;
        let fd = rustix::fs::openat(&*parent.fd, name, OPEN_FOLDER, Mode::empty())?;
        // The process's umask may have cleared some bits.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755))?;
        self.remember(path, Folder { mtime, lower })
    }

    /// Makes a folder that the archive has no entry for: with the attributes that it has in the layers below.
    fn imply_folder(&mut self, parent: &Place, name: &[u8], lower: Vec<u16>) -> Outcome<()> {
        (self.reserve)(Space { bytes: INODE + BLOCK, files: 1 }).map_err(Refusal::NoSpace)?;
        let path = parent.path.join(name)?;
        let Some(top) = lower.first() else { return self.make_folder(parent, name, lower, (0, 0)) };
        let attributes = Attributes::of(self.lower.folder(*top, &path)?.as_fd())?;
        self.make_folder(parent, name, lower, attributes.mtime)?;
        apply(self.open(path)?.fd.as_fd(), &attributes, self.omitted)
    }

    fn remember(&mut self, path: Inside, folder: Folder) -> Outcome<()> {
        self.count_name(path.len())?;
        self.folders.insert(path, folder);
        Ok(())
    }

    fn count_look_ups(&mut self, count: usize) -> Outcome<()> {
        self.look_ups += count;
        if self.look_ups > MAX_LOOK_UPS {
            return wrong(format!("the layer needs more than {MAX_LOOK_UPS} look-ups of links and of layers below"));
        }
        Ok(())
    }

    fn count_name(&mut self, length: usize) -> Outcome<()> {
        self.folder_names += length;
        if self.folder_names > MAX_FOLDER_NAMES {
            return wrong(format!(
                "the names of this layer's folders are longer than {MAX_FOLDER_NAMES} bytes together"
            ));
        }
        Ok(())
    }

    /// Finds a folder as written, following links, and makes it present in this layer. If
    /// `make`, missing folders are made.
    fn resolve(&mut self, path: &Inside, make: bool) -> Outcome<Place> {
        if let Some((last, place)) = &self.last
            && last == path
        {
            return Ok(place.clone());
        }
        let mut todo: Vec<Vec<u8>> = path.names().rev().map(<[u8]>::to_vec).collect();
        let (mut at, mut names, mut links) = (Inside::root(), 0, 0);
        while let Some(name) = todo.pop() {
            names += 1;
            if names > MAX_NAMES {
                return wrong(format!("with its links followed, its path has more than {MAX_NAMES} names"));
            }
            match &*name {
                b"" | b"." => continue,
                _ if name.starts_with(b".wh.") => return wrong("it is below a whiteout (`.wh.`)"),
                // The parent of the root is the root.
                b".." => {
                    at = at.split().0;
                    continue;
                }
                _ => {}
            }
            let next = at.join(&name)?;
            if self.folders.contains_key(&next) {
                at = next;
                continue;
            }
            let Some(target) = self.enter(at.clone(), &name, make)? else {
                at = next;
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return wrong(format!("its path goes through more than {MAX_LINKS} symbolic links"));
            }
            if target.starts_with(b"/") {
                at = Inside::root();
            }
            self.count_look_ups(target.iter().filter(|byte| **byte == b'/').count() + 1)?;
            todo.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
        }
        let place = self.open(at)?;
        self.last = Some((path.clone(), place.clone()));
        Ok(place)
    }

    /// Makes a folder present in this layer that is not in it yet. Returns the target of a symbolic
    /// link that is there instead.
    fn enter(&mut self, folder: Inside, name: &[u8], make: bool) -> Outcome<Option<Vec<u8>>> {
        let parent = self.open(folder)?;
        let shown = |parent: &Place| parent.path.join(name).map(|path| path.as_path().display().to_string());
        let seen = self.seen(&parent, name)?;
        match seen {
            Entry::Folder => {}
            Entry::Symlink(target) | Entry::Below(Below::Symlink(_, target)) => return Ok(Some(target)),
            Entry::Below(Below::Folder(lower)) => self.imply_folder(&parent, name, lower)?,
            Entry::Other | Entry::Below(Below::Other(_)) => {
                return wrong(format!("it is below `{}`, which is no folder", shown(&parent)?));
            }
            Entry::Hidden | Entry::Below(Below::Nothing) if !make => {
                return wrong(format!("it leads through `{}`, which the image does not have", shown(&parent)?));
            }
            Entry::Hidden => {
                self.remove(&parent, name)?;
                self.imply_folder(&parent, name, Vec::new())?;
                self.separate(&parent, name)?;
            }
            Entry::Below(Below::Nothing) => self.imply_folder(&parent, name, Vec::new())?,
        }
        Ok(None)
    }

    fn open(&self, path: Inside) -> Outcome<Place> {
        let fd = Arc::new(open_beneath(self.root.as_fd(), &path)?);
        Ok(Place { path, fd })
    }

    fn seen(&mut self, folder: &Place, name: &[u8]) -> Outcome<Entry> {
        let Some(stat) = stat(folder.fd.as_fd(), name)? else {
            self.count_look_ups(self.folders.get(&folder.path).map_or(0, |folder| folder.lower.len()))?;
            let lower = self.folders.get(&folder.path).map(|folder| &*folder.lower).unwrap_or_default();
            return Ok(Entry::Below(self.lower.look_up(&folder.path, lower, name)?));
        };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Entry::Folder,
            FileType::Symlink => Entry::Symlink(rustix::fs::readlinkat(&*folder.fd, name, Vec::new())?.into_bytes()),
            _ if is_whiteout(&stat) => Entry::Hidden,
            _ => Entry::Other,
        })
    }

    /// Copies a file, a link or a FIFO of a layer below to the same place in this one.
    fn copy_up(&mut self, parent: &Place, name: &[u8], layer: u16) -> Outcome<()> {
        let from = self.lower.folder(layer, &parent.path)?;
        let Some(stat) = stat(from.as_fd(), name)? else { return Err(Errno::NOENT.into()) };
        let bytes = u64::try_from(stat.st_size).unwrap_or_default();
        let space = Space { bytes: INODE + bytes.next_multiple_of(BLOCK), files: 1 };
        (self.reserve)(space).map_err(Refusal::NoSpace)?;
        let attributes = Attributes {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            xattrs: Vec::new(),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, &*parent.fd, name)?;
                apply_at(parent.fd.as_fd(), name, &attributes, self.omitted)
            }
            FileType::Fifo => make_fifo(&parent.fd, name, &attributes, self.omitted),
            FileType::RegularFile => {
                let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut from = File::from(rustix::fs::openat(&from, name, read, Mode::empty())?);
                let mut to = File::from(rustix::fs::openat(&*parent.fd, name, MAKE_FILE, Mode::from_raw_mode(0o600))?);
                if rustix::fs::ioctl_ficlone(&to, &from).is_err() {
                    io::copy(&mut from, &mut to)?;
                }
                apply(to.as_fd(), &Attributes::of(from.as_fd())?, self.omitted)
            }
            _ => wrong("it is a hard link to what is no file"),
        }
    }
}

fn make_fifo(parent: &OwnedFd, name: &[u8], attributes: &Attributes, omitted: &mut Omissions) -> Outcome<()> {
    rustix::fs::mknodat(parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    apply_at(parent.as_fd(), name, attributes, omitted)?;
    // A FIFO is not executed, so a new owner does not clear bits of its mode, as it does with
    // files.
    Ok(rustix::fs::chmodat(parent, name, Mode::from_raw_mode(attributes.mode), AtFlags::empty())?)
}
