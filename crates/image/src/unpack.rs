//! Unpacks a layer, which is a tar archive that nobody has to trust.

use crate::tree::{Attributes, Inside, Outcome, Refusal, Tree, apply, wrong};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{AddAssign, SubAssign};
use std::path::Path;
use tar_core::parse::{Limits as ParserLimits, ParseEvent, ParsedEntry, Parser};
use tar_core::{EntryType, PaxExtensions, SparseEntry};

/// How long the extensions of one entry may be (long names, extended attributes), in bytes.
const MAX_EXTENSIONS: u32 = 1 << 20;
/// How many pieces a sparse file may have.
const MAX_SPARSE_PIECES: usize = 100_000;
/// What a file takes on the disk besides its content, in bytes; as a rule.
const INODE: u64 = 512;
/// In what pieces files take space on the disk, in bytes.
const BLOCK: u64 = 4096;
/// Targets of symbolic links up to this length are in the inode, in bytes; as a rule.
const MAX_INLINE_TARGET: usize = 59;
/// How much is read at once, in bytes.
const PIECE: usize = 128 << 10;

/// Room on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) bytes: u64,
    /// Inodes: files, folders, links and whiteouts.
    pub(crate) files: u64,
}

impl Space {
    /// Applies `operation` to the bytes of both, and to the files of both.
    pub(crate) fn zip(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        Self { bytes: operation(self.bytes, other.bytes), files: operation(self.files, other.files) }
    }

    pub(crate) fn fits(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.files <= limit.files
    }
}

impl AddAssign for Space {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_add);
    }
}

impl SubAssign for Space {
    fn sub_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_sub);
    }
}

/// What a layer may be at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) entries: u64,
    /// Of one file, holes included.
    pub(crate) file_bytes: u64,
}

/// Why a layer is not unpacked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The archive is wrong. Names the entry.
    Layer(String),
    /// The archive cannot be read, or there is no room for it.
    Read(io::Error),
    /// An entry cannot be written.
    Write(String, io::Error),
}

/// What an unpacked layer leaves to do.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// Folders that the archive has no entry for, outermost first: their attributes are those of the layers below.
    pub(crate) implied: Vec<Inside>,
}

/// Unpacks an archive into the empty folder `root`. Asks `room` for space on the disk before it uses it; for folders that the archive only implies, after
/// the entry that implies them.
pub(crate) fn unpack(
    archive: impl Read,
    root: &Path,
    limits: Limits,
    room: &mut dyn FnMut(Space) -> io::Result<()>,
) -> Result<Unpacked, Failure> {
    let tree = Tree::new(root).map_err(|error| Failure::Write(".".to_owned(), error))?;
    Unpacker { archive: Archive::new(archive), tree, limits, room, piece: vec![0; PIECE] }.run()
}

/// The content of one file of an archive, of which nothing is unpacked; `None`: it is not in it.
pub(crate) fn find(archive: impl Read, name: &str, most: usize) -> Result<Option<Vec<u8>>, Failure> {
    let mut archive = Archive::new(archive);
    let wanted = Inside::new(name.as_bytes()).ok();
    while let Some(entry) = archive.next()? {
        let path = match Inside::new(&entry.path) {
            Ok(path) => path,
            Err(Refusal::Entry(reason)) => {
                return Err(Failure::Layer(format!("entry `{}`: {reason}", printable(&entry.path))));
            }
            Err(Refusal::System(error)) => return Err(Failure::Read(error)),
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

struct Unpacker<'a, R> {
    archive: Archive<R>,
    tree: Tree,
    limits: Limits,
    room: &'a mut dyn FnMut(Space) -> io::Result<()>,
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

impl<R: Read> Unpacker<'_, R> {
    fn run(mut self) -> Result<Unpacked, Failure> {
        let mut entries = 0;
        while let Some(entry) = self.archive.next()? {
            entries += 1;
            if entries > self.limits.entries {
                return Err(Failure::Layer(format!("it has more than {} entries", self.limits.entries)));
            }
            self.entry(&entry).map_err(|stop| match stop {
                Stop::Entry(Refusal::Entry(reason)) => {
                    Failure::Layer(format!("entry `{}`: {reason}", printable(&entry.path)))
                }
                Stop::Entry(Refusal::System(error)) => Failure::Write(printable(&entry.path), error),
                Stop::Read(error) => Failure::Read(error),
            })?;
            let implied = self.tree.take_implied_count();
            if implied > 0 {
                self.take(implied * (INODE + BLOCK), implied).map_err(Failure::Read)?;
            }
        }
        let implied = self.tree.finish().map_err(|refusal| match refusal {
            Refusal::Entry(reason) => Failure::Layer(reason),
            Refusal::System(error) => Failure::Write("a folder".to_owned(), error),
        })?;
        Ok(Unpacked { implied })
    }

    fn take(&mut self, bytes: u64, files: u64) -> io::Result<()> {
        (self.room)(Space { bytes, files })
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Stop> {
        let path = Inside::new(&entry.path)?;
        self.take(INODE, 1).map_err(Stop::Read)?;
        match mark(&path)? {
            Mark::None => {}
            Mark::Skipped => return Ok(()),
            Mark::Whiteout(hidden) => return Ok(self.tree.whiteout(&hidden)?),
            Mark::Opaque(folder) => return Ok(self.tree.opaque(&folder)?),
        }
        let attributes = entry.attributes()?;
        let beside: u64 = attributes.xattrs.iter().map(|(key, value)| blocks(key.count_bytes() + value.len())).sum();
        if beside > 0 {
            self.take(beside, 0).map_err(Stop::Read)?;
        }
        // As others read it: old archives mark a folder by nothing but a slash.
        let is_folder =
            entry.kind == EntryType::Directory || (entry.kind == EntryType::Regular && entry.path.ends_with(b"/"));
        if entry.size > 0 && (is_folder || matches!(entry.kind, EntryType::Symlink | EntryType::Link)) {
            return Ok(wrong("it has content, though it is no file")?);
        }
        match entry.kind {
            _ if is_folder => {
                self.take(BLOCK, 0).map_err(Stop::Read)?;
                Ok(self.tree.folder(&path, &attributes)?)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GnuSparse => self.file(&path, entry, &attributes),
            EntryType::Symlink => {
                if entry.link.len() > MAX_INLINE_TARGET {
                    self.take(blocks(entry.link.len()), 0).map_err(Stop::Read)?;
                }
                Ok(self.tree.symlink(&path, &entry.link, &attributes)?)
            }
            EntryType::Link => Ok(self.tree.hard_link(&path, &Inside::new(&entry.link)?)?),
            EntryType::Char | EntryType::Block => Ok(wrong("it is a device; images with devices are refused")?),
            EntryType::Fifo => Ok(wrong("it is a FIFO; images with FIFOs are refused")?),
            other => Ok(wrong(format!("it has the type {:?}, which is not supported", char::from(other.to_byte())))?),
        }
    }

    fn file(&mut self, path: &Inside, entry: &Entry, attributes: &Attributes) -> Result<(), Stop> {
        let length = entry.sparse.as_ref().map_or(entry.size, |(_, length)| *length);
        if length > self.limits.file_bytes {
            let reason = format!("it has {length} bytes; the limit of an image is {}", self.limits.file_bytes);
            return Ok(wrong(reason)?);
        }
        let mut file = self.tree.file(path)?;
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
        Ok(apply(&file, attributes)?)
    }

    fn content(&mut self, file: &mut File, mut length: u64) -> Result<(), Stop> {
        while length > 0 {
            let most = usize::try_from(length).unwrap_or(usize::MAX).min(PIECE);
            let count = self.archive.read(&mut self.piece[..most]).map_err(Stop::Read)?;
            self.take((count as u64).next_multiple_of(BLOCK), 0).map_err(Stop::Read)?;
            file.write_all(&self.piece[..count])?;
            length -= count as u64;
        }
        Ok(())
    }
}

/// What an entry says about layers below.
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
        Some(hidden) => Ok(Mark::Whiteout(parent.join(hidden))),
    }
}

/// An entry, read and not yet checked.
struct Entry {
    path: Vec<u8>,
    kind: EntryType,
    link: Vec<u8>,
    mode: u32,
    owner: (u64, u64),
    mtime: (u64, u32),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of the content in the archive.
    size: u64,
    /// Where the content belongs, and how long the file is.
    sparse: Option<(Vec<SparseEntry>, u64)>,
}

impl Entry {
    fn new(entry: &ParsedEntry<'_>, sparse: Option<(Vec<SparseEntry>, u64)>) -> Self {
        Self {
            path: entry.path.to_vec(),
            kind: entry.entry_type,
            link: entry.link_target.as_deref().unwrap_or_default().to_vec(),
            mode: entry.mode,
            owner: (entry.uid, entry.gid),
            mtime: (entry.mtime, entry.pax.map_or(0, nanoseconds)),
            xattrs: entry.xattrs.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect(),
            size: entry.size,
            sparse,
        }
    }

    fn attributes(&self) -> Outcome<Attributes> {
        let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        let (Some(uid), Some(gid)) = (id(self.owner.0), id(self.owner.1)) else {
            return wrong(format!("its owner {}:{} is beyond what Linux has", self.owner.0, self.owner.1));
        };
        let Ok(seconds) = i64::try_from(self.mtime.0) else { return wrong("its time is beyond what Linux has") };
        let mut xattrs = Vec::new();
        for (key, value) in &self.xattrs {
            match xattr(key) {
                Xattr::Kept => {
                    let Ok(key) = CString::new(key.clone()) else {
                        return wrong("an extended attribute has a zero byte in its name");
                    };
                    xattrs.push((key, value.clone()));
                }
                Xattr::Skipped => {}
                Xattr::Refused => {
                    let kept = "kept are `user.`, `security.capability` and POSIX access control lists";
                    return wrong(format!("its extended attribute `{}` is refused; {kept}", printable(key)));
                }
            }
        }
        Ok(Attributes { uid, gid, mode: self.mode & 0o7777, mtime: (seconds, self.mtime.1), xattrs })
    }
}

enum Xattr {
    Kept,
    Skipped,
    Refused,
}

fn xattr(key: &[u8]) -> Xattr {
    match key {
        b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default" => Xattr::Kept,
        // They speak to overlayfs: a layer could have other folders than its own appear.
        _ if key.starts_with(b"user.overlay.") => Xattr::Refused,
        _ if key.starts_with(b"user.") => Xattr::Kept,
        // Labels and signatures of the machine that the image was made on mean nothing here.
        b"security.selinux" | b"security.ima" | b"security.evm" => Xattr::Skipped,
        _ => Xattr::Refused,
    }
}

/// Of a time such as `1700000000.25`.
fn nanoseconds(pax: &[u8]) -> u32 {
    let time = PaxExtensions::new(pax).flatten().filter(|extension| extension.key_bytes() == b"mtime").last();
    let Some(fraction) = time.and_then(|time| time.value_bytes().split(|byte| *byte == b'.').nth(1)) else { return 0 };
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    digits.fold(0, |all, digit| all * 10 + if digit.is_ascii_digit() { u32::from(digit - b'0') } else { 0 })
}

/// Bytes on the disk of something that has blocks for itself.
fn blocks(length: usize) -> u64 {
    (length as u64).next_multiple_of(BLOCK)
}

/// For messages.
fn printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(&name[..name.len().min(200)]);
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Entry after entry of an archive.
struct Archive<R> {
    source: R,
    parser: Parser,
    /// Read, and not used yet.
    ahead: Vec<u8>,
    /// Of the current entry, what has not been read.
    content: u64,
    padding: u64,
}

impl<R: Read> Archive<R> {
    fn new(source: R) -> Self {
        let mut parser = Parser::new(ParserLimits {
            max_metadata_size: MAX_EXTENSIONS,
            max_path_len: Some(4096),
            max_sparse_entries: MAX_SPARSE_PIECES,
            ..ParserLimits::default()
        });
        // A fuzzer does not find out how checksums are computed.
        parser.set_verify_checksums(!cfg!(fuzzing));
        Self { source, parser, ahead: Vec::new(), content: 0, padding: 0 }
    }

    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        self.skip().map_err(Failure::Read)?;
        loop {
            let (consumed, entry) = match self.parser.parse(&self.ahead) {
                Ok(ParseEvent::NeedData { min_bytes }) => {
                    if self.fill(min_bytes).map_err(Failure::Read)? {
                        continue;
                    }
                    // Some leave out one block of the end, or both.
                    let whole = self.ahead.iter().all(|byte| *byte == 0) && self.ahead.len().is_multiple_of(512);
                    return if whole {
                        Ok(None)
                    } else {
                        Err(Failure::Layer("its archive ends within an entry".to_owned()))
                    };
                }
                Ok(ParseEvent::Entry { consumed, entry }) => (consumed, Some(Entry::new(&entry, None))),
                Ok(ParseEvent::SparseEntry { consumed, entry, sparse_map, real_size }) => {
                    (consumed, Some(Entry::new(&entry, Some((sparse_map, real_size)))))
                }
                // Others ignore global extensions too; who did not would see another image.
                Ok(ParseEvent::GlobalExtensions { consumed, .. }) => (consumed, None),
                Ok(ParseEvent::End { .. }) => return Ok(None),
                Err(error) => return Err(Failure::Layer(format!("its archive is broken: {error}"))),
            };
            self.ahead.drain(..consumed);
            if let Some(entry) = entry {
                let padded = entry.size.checked_next_multiple_of(512);
                let padded = padded.ok_or_else(|| Failure::Layer("an entry is longer than any archive".to_owned()))?;
                (self.content, self.padding) = (entry.size, padded - entry.size);
                return Ok(Some(entry));
            }
        }
    }

    /// Reads until so much is ahead. `false`: the archive ends before.
    fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        let missing = bytes.saturating_sub(self.ahead.len()) as u64;
        let read = (&mut self.source).take(missing).read_to_end(&mut self.ahead)?;
        Ok(read as u64 == missing && missing > 0)
    }

    /// Some of the content; at least a byte.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.content).unwrap_or(usize::MAX).min(into.len());
        let count = self.raw(&mut into[..most])?;
        self.content -= count as u64;
        Ok(count)
    }

    fn skip(&mut self) -> io::Result<()> {
        let mut left = self.content + self.padding;
        let mut nowhere = [0; 4096];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(nowhere.len());
            left -= self.raw(&mut nowhere[..most])? as u64;
        }
        (self.content, self.padding) = (0, 0);
        Ok(())
    }

    fn raw(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = if self.ahead.is_empty() {
            self.source.read(into)?
        } else {
            let count = self.ahead.len().min(into.len());
            into[..count].copy_from_slice(&self.ahead[..count]);
            self.ahead.drain(..count);
            count
        };
        if count == 0 && !into.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends within an entry"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
