//! The tar archive of a layer, entry by entry.

use crate::refusal::Failure;
use std::io::{self, Read};
use tar_core::parse::{Limits as ParserLimits, ParseEvent, ParsedEntry, Parser};
use tar_core::{EntryType, PaxExtensions, SparseEntry};

/// How long the extensions of one entry may be (long names, extended attributes), in bytes.
const MAX_EXTENSIONS: u32 = 1 << 20;
/// How many pieces a sparse file may have.
const MAX_SPARSE_PIECES: usize = 100_000;

/// An entry, read and not yet checked.
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: EntryType,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) mtime: (u64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of its headers with their extensions, and of preceding headers that describe no entry.
    pub(crate) header: u64,
    /// Length of its content in the archive.
    pub(crate) size: u64,
    /// Where the content belongs, and how long the file is.
    pub(crate) sparse: Option<(Vec<SparseEntry>, u64)>,
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
            header: 0,
            size: entry.size,
            sparse,
        }
    }
}

/// The nanoseconds of a time such as `1700000000.25`.
fn nanoseconds(pax: &[u8]) -> u32 {
    let time = PaxExtensions::new(pax).flatten().filter(|extension| extension.key_bytes() == b"mtime").last();
    let Some(fraction) = time.and_then(|time| time.value_bytes().split(|byte| *byte == b'.').nth(1)) else { return 0 };
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    digits.fold(0, |all, digit| all * 10 + if digit.is_ascii_digit() { u32::from(digit - b'0') } else { 0 })
}

/// The name as messages show it.
pub(crate) fn printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(&name[..name.len().min(200)]);
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Entry after entry of an archive.
pub(crate) struct Archive<R> {
    source: R,
    parser: Parser,
    /// Bytes that have been read and not parsed yet.
    ahead: Vec<u8>,
    /// Bytes of headers since the last entry.
    header: u64,
    /// Unread bytes of the current entry's content.
    content: u64,
    padding: u64,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(source: R) -> Self {
        let mut parser = Parser::new(ParserLimits {
            max_metadata_size: MAX_EXTENSIONS,
            max_path_len: Some(4096),
            max_sparse_entries: MAX_SPARSE_PIECES,
            ..ParserLimits::default()
        });
        // A fuzzer cannot produce valid checksums.
        parser.set_verify_checksums(!cfg!(fuzzing));
        Self { source, parser, ahead: Vec::new(), header: 0, content: 0, padding: 0 }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Failure> {
        self.skip().map_err(Failure::Read)?;
        loop {
            let (consumed, entry) = match self.parser.parse(&self.ahead) {
                Ok(ParseEvent::NeedData { min_bytes }) => {
                    if self.fill(min_bytes).map_err(Failure::Read)? {
                        continue;
                    }
                    // Some tools leave out one block of the end, or both.
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
                // Other implementations ignore global extensions too; a reader that applied them
                // would see another image.
                Ok(ParseEvent::GlobalExtensions { consumed, .. }) => (consumed, None),
                Ok(ParseEvent::End { .. }) => return Ok(None),
                Err(error) => return Err(Failure::Layer(format!("its archive is broken: {error}"))),
            };
            self.ahead.drain(..consumed);
            self.header += consumed as u64;
            if let Some(mut entry) = entry {
                entry.header = std::mem::take(&mut self.header);
                let padded = entry.size.checked_next_multiple_of(512);
                let padded = padded.ok_or_else(|| Failure::Layer("an entry is longer than any archive".to_owned()))?;
                (self.content, self.padding) = (entry.size, padded - entry.size);
                return Ok(Some(entry));
            }
        }
    }

    /// Reads until `bytes` bytes are ahead. `false`: the archive ends before.
    fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        let missing = bytes.saturating_sub(self.ahead.len()) as u64;
        let read = (&mut self.source).take(missing).read_to_end(&mut self.ahead)?;
        Ok(read as u64 == missing && missing > 0)
    }

    /// Reads some of the content; at least a byte.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
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
