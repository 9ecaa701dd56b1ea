//! The changes that a layer makes to the image below it, in the order of its archive. They are kept
//! on the disk until the layers below are there: a layer may have a million entries, and a slow
//! layer below may keep it waiting.

use crate::attributes::Attributes;
use crate::path::Inside;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// How long a step may be, in bytes: the largest size of a parsed entry, encoded.
const MAX_STEP: u32 = 4 << 20;

/// One entry of the archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) path: Inside,
    pub(crate) action: Action,
}

/// The change at the path.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Action {
    Folder(Attributes),
    /// A file, which has been written under this number and has its attributes.
    File(u64),
    Symlink {
        target: Vec<u8>,
        attributes: Attributes,
    },
    HardLink(Inside),
    Fifo(Attributes),
    /// No file remains there: the entry is left out.
    Nothing,
    /// Hides the file of the layers below.
    Whiteout,
    /// Hides the content that layers below have in this folder.
    Opaque,
}

pub(crate) struct StepWriter(BufWriter<File>);

impl StepWriter {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(BufWriter::new(File::create_new(path)?)))
    }

    /// Writes a step. Returns the number of bytes that it takes.
    pub(crate) fn write(&mut self, step: &Step) -> io::Result<u64> {
        let bytes = postcard::to_allocvec(step).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= MAX_STEP);
        let length = length.ok_or(io::ErrorKind::FileTooLarge)?;
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(&bytes)?;
        Ok(u64::from(length) + 4)
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}

pub(crate) struct StepReader {
    file: BufReader<File>,
    bytes: Vec<u8>,
}

impl StepReader {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufReader::new(File::open(path)?), bytes: Vec::new() })
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<Step>> {
        let mut length = [0; 4];
        if self.file.read(&mut length[..1])? == 0 {
            return Ok(None);
        }
        self.file.read_exact(&mut length[1..])?;
        let length = u32::from_le_bytes(length);
        if length > MAX_STEP {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.bytes.resize(length as usize, 0);
        self.file.read_exact(&mut self.bytes)?;
        postcard::from_bytes(&self.bytes).map(Some).map_err(io::Error::other)
    }
}
