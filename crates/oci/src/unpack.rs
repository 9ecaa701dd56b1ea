//! Unpacks a layer, which is an untrusted tar archive, in two parts.
//!
//! [`read`] runs while the archive arrives, and needs no other layer: it checks the entries, writes the contents of files, and keeps the rest as steps.
//! [`build`] runs when the archive is verified and the layers below are there, and applies the
//! steps one after another, as if the image were a folder.

use crate::archive::{Archive, Entry, printable};
use crate::attributes::{Attributes, Kind, Omissions, apply, kind};
use crate::path::{Inside, MAX_PATH};
use crate::refusal::{Failure, Outcome, Refusal, wrong};
use crate::space::{BLOCK, INODE, ReserveSpace, Space, blocks};
use crate::steps::{Action, Step, StepReader, StepWriter};
use crate::tree::Tree;
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;
use tar_core::EntryType;

/// How many bytes an archive may have after its end. Tools pad archives to 10 KiB.
const MAX_TRAILING: u64 = 16 << 20;
/// Targets of symbolic links up to this length, in bytes, are typically stored in the inode.
const MAX_INLINE_TARGET: usize = 59;
/// How many bytes are read at once.
const PIECE: usize = 128 << 10;

/// In the folder of a layer: the files of its archive, by number, until they are moved to their
/// places.
const CONTENTS: &str = "contents";
/// In the folder of a layer: its steps.
const STEPS: &str = "steps";
/// In the folder of a layer: the folder that overlayfs takes.
pub(crate) const ROOT: &str = "root";

/// Limits of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) entries: u64,
    /// The length of one file, holes included.
    pub(crate) file_bytes: u64,
}

/// Reads an archive into the empty folder `folder`.
pub(crate) fn read(
    archive: impl Read,
    folder: &Path,
    limits: Limits,
    reserve: ReserveSpace<'_>,
) -> Result<Omissions, Failure> {
    let write = |error| Failure::Write(".".to_owned(), error);
    let contents = folder.join(CONTENTS);
    std::fs::create_dir(&contents).map_err(write)?;
    let contents = File::open(&contents).map_err(write)?;
    let steps = StepWriter::create(&folder.join(STEPS)).map_err(write)?;
    let omitted = Omissions::default();
    let reader = Reader {
        archive: Archive::new(archive),
        contents,
        files: 0,
        steps,
        omitted,
        limits,
        reserve,
        piece: vec![0; PIECE],
    };
    reader.run()
}

/// Makes the layer from the files that [`read`] has left in `folder`, on top of the layers `lower`,
/// topmost first.
pub(crate) fn build(
    folder: &Path,
    lower: &[&Path],
    reserve: ReserveSpace<'_>,
    omitted: &mut Omissions,
) -> Result<(), Failure> {
    let write = |error| Failure::Write(".".to_owned(), error);
    let root = folder.join(ROOT);
    std::fs::create_dir(&root).map_err(write)?;
    let contents = folder.join(CONTENTS);
    let mut tree = Tree::new(&root, &contents, lower, reserve, omitted).map_err(write)?;
    let mut steps = StepReader::open(&folder.join(STEPS)).map_err(write)?;
    while let Some(step) = steps.next().map_err(write)? {
        tree.step(&step).map_err(|refusal| refused(refusal, step.path.as_path().as_os_str().as_encoded_bytes()))?;
    }
    tree.finish().map_err(|refusal| match refusal {
        Refusal::Entry(reason) => Failure::Layer(reason),
        Refusal::System(error) => Failure::Write("a folder".to_owned(), error),
        Refusal::NoSpace(error) => Failure::Read(error),
    })?;
    std::fs::remove_dir_all(&contents).and_then(|()| std::fs::remove_file(folder.join(STEPS))).map_err(write)
}

fn refused(refusal: Refusal, path: &[u8]) -> Failure {
    match refusal {
        Refusal::Entry(reason) => Failure::Layer(format!("entry `{}`: {reason}", printable(path))),
        Refusal::System(error) => Failure::Write(printable(path), error),
        Refusal::NoSpace(error) => Failure::Read(error),
    }
}

/// Reads the bytes after the end of an archive, which belong to its digest.
pub(crate) fn trailing(archive: &mut impl Read) -> Result<(), Failure> {
    let read = io::copy(&mut archive.take(MAX_TRAILING + 1), &mut io::sink()).map_err(Failure::Read)?;
    if read > MAX_TRAILING {
        return Err(Failure::Layer(format!("it has more than {MAX_TRAILING} bytes after the end of its archive")));
    }
    Ok(())
}

/// The content of one file of an archive, without unpacking the archive; `None`: the file is not in
/// it.
pub(crate) fn find(archive: impl Read, name: &str, most: usize, limits: Limits) -> Result<Option<Vec<u8>>, Failure> {
    let mut archive = Archive::new(archive.take(limits.file_bytes));
    let wanted = Inside::new(name.as_bytes()).ok();
    let mut entries = 0;
    while let Some(entry) = archive.next()? {
        entries += 1;
        if entries > limits.entries {
            return Err(Failure::Layer(format!("it has more than {} entries", limits.entries)));
        }
        let path = match Inside::new(&entry.path) {
            Ok(path) => path,
            Err(refusal) => return Err(refused(refusal, &entry.path)),
        };
        if Some(path) != wanted || entry.kind != EntryType::Regular {
            continue;
        }
        let Some(length) = usize::try_from(entry.size).ok().filter(|length| *length <= most) else {
            return Err(Failure::Layer(format!("its `{name}` is longer than {most} bytes")));
        };
        let mut content = vec![0; length];
        let mut done = 0;
        while done < length {
            done += archive.read(&mut content[done..]).map_err(Failure::Read)?;
        }
        return Ok(Some(content));
    }
    Ok(None)
}

struct Reader<'a, R> {
    archive: Archive<R>,
    contents: File,
    /// The number of files written.
    files: u64,
    steps: StepWriter,
    omitted: Omissions,
    limits: Limits,
    reserve: ReserveSpace<'a>,
    piece: Vec<u8>,
}

enum Stop {
    Entry(Refusal),
    Read(io::Error),
}

impl<E: Into<Refusal>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Entry(error.into())
    }
}

impl<R: Read> Reader<'_, R> {
    fn run(mut self) -> Result<Omissions, Failure> {
        let mut entries = 0;
        while let Some(entry) = self.archive.next()? {
            entries += 1;
            if entries > self.limits.entries {
                return Err(Failure::Layer(format!("it has more than {} entries", self.limits.entries)));
            }
            self.entry(&entry).map_err(|stop| match stop {
                Stop::Entry(refusal) => refused(refusal, &entry.path),
                Stop::Read(error) => Failure::Read(error),
            })?;
        }
        self.steps.finish().map_err(|error| Failure::Write(".".to_owned(), error))?;
        Ok(self.omitted)
    }

    fn take(&mut self, bytes: u64, files: u64) -> Result<(), Stop> {
        if bytes == 0 && files == 0 { Ok(()) } else { (self.reserve)(Space { bytes, files }).map_err(Stop::Read) }
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Stop> {
        let path = Inside::new(&entry.path)?;
        // An inode typically takes as much as a header. Comments and the like are charged too: they
        // cost time, and steps.
        self.take(entry.header, 1)?;
        let (path, action) = match mark(&path)? {
            Mark::Skipped => return Ok(()),
            Mark::Whiteout(hidden) => (hidden, Action::Whiteout),
            Mark::Opaque(folder) => (folder, Action::Opaque),
            Mark::None => {
                let action = self.action(&path, entry)?;
                (path, action)
            }
        };
        let bytes = self.steps.write(&Step { path, action })?;
        // Until the layer is built, the step takes space as well.
        self.take(bytes.saturating_sub(INODE), 0)
    }

    fn action(&mut self, path: &Inside, entry: &Entry) -> Result<Action, Stop> {
        let attributes = self.attributes(entry)?;
        let beside = attributes.xattrs.iter().map(|(key, value)| blocks(key.count_bytes() + value.len())).sum();
        self.take(beside, 0)?;
        // As in other tools: old archives mark a folder by nothing but a slash.
        let is_folder =
            entry.kind == EntryType::Directory || (entry.kind == EntryType::Regular && entry.path.ends_with(b"/"));
        let is_file = matches!(entry.kind, EntryType::Regular | EntryType::Continuous | EntryType::GnuSparse);
        if entry.size > 0 && (is_folder || !is_file) {
            return Ok(wrong("it has content, though it is no file")?);
        }
        if path.is_root() && !is_folder {
            return Ok(wrong("it would replace the root of the image; expected a folder")?);
        }
        match entry.kind {
            _ if is_folder => {
                self.take(BLOCK, 0)?;
                Ok(Action::Folder(attributes))
            }
            _ if is_file => self.file(entry, &attributes),
            EntryType::Symlink => {
                let inline = entry.link.len() <= MAX_INLINE_TARGET;
                self.take(if inline { 0 } else { blocks(entry.link.len()) }, 0)?;
                Ok(symlink(&entry.link, attributes)?)
            }
            EntryType::Link => Ok(Action::HardLink(Inside::new(&entry.link)?)),
            EntryType::Fifo => Ok(Action::Fifo(attributes)),
            // A jail has a fixed set of devices. A file that the device node would replace is
            // removed all the same.
            EntryType::Char | EntryType::Block => {
                self.omitted.device(&entry.path);
                Ok(Action::Nothing)
            }
            other => Ok(wrong(format!("it has the type {:?}, which is not supported", char::from(other.to_byte())))?),
        }
    }

    fn attributes(&mut self, entry: &Entry) -> Outcome<Attributes> {
        let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        let (Some(uid), Some(gid)) = (id(entry.owner.0), id(entry.owner.1)) else {
            return wrong(format!("its owner {}:{} is beyond what Linux has", entry.owner.0, entry.owner.1));
        };
        let Ok(seconds) = i64::try_from(entry.mtime.0) else { return wrong("its time is beyond what Linux has") };
        let mut xattrs = Vec::new();
        for (key, value) in &entry.xattrs {
            match (kind(key), CString::new(key.clone())) {
                (Kind::Rights | Kind::User, Ok(key)) => xattrs.push((key, value.clone())),
                _ => self.omitted.attribute(key),
            }
        }
        Ok(Attributes { uid, gid, mode: entry.mode & 0o7777, mtime: (seconds, entry.mtime.1), xattrs })
    }

    fn file(&mut self, entry: &Entry, attributes: &Attributes) -> Result<Action, Stop> {
        let length = entry.sparse.as_ref().map_or(entry.size, |(_, length)| *length);
        if length > self.limits.file_bytes {
            let reason = format!("it has {length} bytes; the limit of an image is {}", self.limits.file_bytes);
            return Ok(wrong(reason)?);
        }
        let number = self.files;
        self.files += 1;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.contents, number.to_string(), flags, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(file);
        match &entry.sparse {
            None => self.content(&mut file, entry.size)?,
            Some((pieces, length)) => {
                let mut left = entry.size;
                for piece in pieces {
                    if piece.length > left || piece.offset.checked_add(piece.length).is_none_or(|end| end > *length) {
                        return Ok(wrong("its sparse map does not fit its content")?);
                    }
                    left -= piece.length;
                    file.seek(SeekFrom::Start(piece.offset))?;
                    self.content(&mut file, piece.length)?;
                }
                if left > 0 {
                    return Ok(wrong("its sparse map does not fit its content")?);
                }
                file.set_len(*length)?;
            }
        }
        apply(file.as_fd(), attributes, &mut self.omitted)?;
        Ok(Action::File(number))
    }

    fn content(&mut self, file: &mut File, mut length: u64) -> Result<(), Stop> {
        while length > 0 {
            let most = usize::try_from(length).unwrap_or(usize::MAX).min(PIECE);
            let count = self.archive.read(&mut self.piece[..most]).map_err(Stop::Read)?;
            self.take(blocks(count), 0)?;
            file.write_all(&self.piece[..count])?;
            length -= count as u64;
        }
        Ok(())
    }
}

fn symlink(target: &[u8], attributes: Attributes) -> Outcome<Action> {
    if target.is_empty() || target.contains(&0) || target.len() > MAX_PATH {
        return wrong(format!("its target is empty, longer than {MAX_PATH} bytes, or has a zero byte"));
    }
    Ok(Action::Symlink { target: target.to_owned(), attributes })
}

/// The meaning of an entry for the layers below.
enum Mark {
    None,
    /// Bookkeeping of aufs, which has to be ignored.
    Skipped,
    Whiteout(Inside),
    Opaque(Inside),
}

/// <https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>
fn mark(path: &Inside) -> Outcome<Mark> {
    if path.is_root() {
        return Ok(Mark::None);
    }
    let (parent, name) = path.split();
    if parent.names().any(|name| name.starts_with(b".wh..wh.")) {
        return Ok(Mark::Skipped);
    }
    if parent.names().any(|name| name.starts_with(b".wh.")) {
        return wrong("it is below a whiteout (`.wh.`)");
    }
    match name.strip_prefix(b".wh.") {
        None => Ok(Mark::None),
        Some(b".wh..opq") => Ok(Mark::Opaque(parent)),
        Some(hidden) if hidden.starts_with(b".wh.") => Ok(Mark::Skipped),
        Some(b"" | b"." | b"..") => wrong("it is a whiteout without a name"),
        Some(hidden) => Ok(Mark::Whiteout(parent.join(hidden)?)),
    }
}

#[cfg(test)]
mod tests;
