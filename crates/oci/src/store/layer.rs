//! Turns a blob into a folder: it is decompressed, parsed and verified in one pass, and built on
//! top of the layers below it when these are there.

use super::shares::Reservation;
use crate::attributes::Omissions;
use crate::decompress::decompress;
use crate::digest::Hasher;
use crate::manifest::Blob;
use crate::progress::LayerProgress;
use crate::refusal::Failure;
use crate::unpack::{self, Limits};
use crate::{Digest, Error, Result};
use bytes::{Buf, Bytes};
use std::io::{self, BufReader, Read};
use std::path::Path;
use tokio::sync::mpsc::Receiver;

/// How many bytes of a blob that is refused are still read, to tell whether it is the right blob.
const MAX_REST: u64 = 64 << 20;

/// Reads `blob`, whose archive has to be `diff_id`, into the empty folder `folder`. Blocks.
///
/// An error of kind [`io::ErrorKind::BrokenPipe`] of `source` means that the download ended,
/// and reports the cause.
pub(crate) fn read(
    source: impl Read,
    blob: Blob,
    diff_id: Digest,
    folder: &Path,
    limits: Limits,
    reservation: &mut Reservation,
    progress: &LayerProgress,
) -> Result<Omissions> {
    let wrong = |reason: String| Error::Layer { layer: blob.digest, reason };
    let mut compressed = DigestReader::new(source, blob.size, Some(progress));
    let outcome = read_archive(&mut compressed, folder, limits, reservation);
    if outcome.is_ok() || compressed.left <= MAX_REST && !matches!(outcome, Err(Failure::Write(..))) {
        // If the blob is not even the right one, that is the error to report, rather than the fault
        // of its archive.
        let rest = io::copy(&mut compressed, &mut io::sink());
        if let Err(error) = rest {
            return Err(read_error(error, blob));
        }
        let found = compressed.hasher.finish();
        if found != blob.digest {
            return Err(wrong(format!(
                "its content has the digest {found}; the registry or the layout holds something else under its name"
            )));
        }
        if compressed.left > 0 {
            return Err(wrong(format!(
                "it is {} bytes shorter than the {} of its manifest",
                compressed.left, blob.size
            )));
        }
    }
    let (omitted, found) = outcome.map_err(|failure| error_of(failure, blob))?;
    if found != diff_id {
        return Err(wrong(format!("unpacked it has the digest {found}; the image's configuration says {diff_id}")));
    }
    Ok(omitted)
}

/// Makes the layer in `folder` from the files that [`read`] has left there. Blocks.
pub(crate) fn build(
    folder: &Path,
    blob: Blob,
    lower: &[&Path],
    reservation: &mut Reservation,
    omitted: &mut Omissions,
) -> Result<()> {
    unpack::build(folder, lower, &mut |space| reservation.take(space).map_err(io::Error::other), omitted)
        .map_err(|failure| error_of(failure, blob))
}

fn read_archive(
    compressed: &mut DigestReader<'_, impl Read>,
    folder: &Path,
    limits: Limits,
    reservation: &mut Reservation,
) -> std::result::Result<(Omissions, Digest), Failure> {
    let blob = BufReader::with_capacity(64 << 10, compressed);
    let archive = decompress(blob).map_err(Failure::Read)?;
    let mut archive = DigestReader::new(archive, limits.file_bytes, None);
    let omitted =
        unpack::read(&mut archive, folder, limits, &mut |space| reservation.take(space).map_err(io::Error::other))?;
    unpack::trailing(&mut archive)?;
    Ok((omitted, archive.hasher.finish()))
}

fn error_of(failure: Failure, blob: Blob) -> Error {
    let wrong = |reason: String| Error::Layer { layer: blob.digest, reason };
    match failure {
        Failure::Layer(reason) => wrong(reason),
        Failure::Read(error) => read_error(error, blob),
        Failure::Write(entry, error) => wrong(format!("entry `{entry}` cannot be written: {error}")),
    }
}

fn read_error(error: io::Error, blob: Blob) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::Layer { layer: blob.digest, reason: format!("it cannot be unpacked: {error}") },
    }
}

/// Reads at most the expected length, and computes the digest.
struct DigestReader<'a, R> {
    source: R,
    hasher: Hasher,
    most: u64,
    left: u64,
    progress: Option<&'a LayerProgress>,
}

impl<'a, R> DigestReader<'a, R> {
    fn new(source: R, most: u64, progress: Option<&'a LayerProgress>) -> Self {
        Self { source, hasher: Hasher::default(), most, left: most, progress }
    }
}

impl<R: Read> Read for DigestReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(into)?;
        let Some(left) = self.left.checked_sub(count as u64) else {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {} bytes", self.most)));
        };
        self.left = left;
        self.hasher.update(&into[..count]);
        if let Some(progress) = self.progress {
            progress.at(self.most - left);
        }
        Ok(count)
    }
}

/// The bytes of a download, as they arrive.
pub(crate) struct DownloadReader {
    from: Receiver<Bytes>,
    piece: Bytes,
    left: u64,
}

impl DownloadReader {
    pub(crate) fn new(from: Receiver<Bytes>, size: u64) -> Self {
        Self { from, piece: Bytes::new(), left: size }
    }
}

impl Read for DownloadReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.from.blocking_recv() {
                Some(piece) => self.piece = piece,
                None if self.left == 0 => return Ok(0),
                None => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the download ended")),
            }
        }
        let count = into.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut into[..count]);
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}
