//! The tar archive in a blob: plain, gzip or zstd, as its first bytes show. (Media types are wrong
//! often enough.)

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, Read};

/// How large the window of a zstd frame may be, in bytes: that of `zstd --ultra -22`, which every
/// decoder has to support.
const MAX_WINDOW: u64 = 128 << 20;

pub(crate) fn decompress<'a>(mut blob: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = blob.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(blob)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(Zstd::new(blob)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => return Err(unknown("xz")),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => return Err(unknown("bzip2")),
        _ => Box::new(blob),
    })
}

fn unknown(format: &str) -> io::Error {
    let reason =
        format!("it is compressed with {format}; expected a tar archive, plain or compressed with gzip or zstd");
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Frames one after another; skippable frames are skipped.
struct Zstd<R> {
    blob: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(blob: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Self { blob, decoder, in_frame: false }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let broken = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        loop {
            if self.in_frame {
                while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                    let one = BlockDecodingStrategy::UptoBlocks(1);
                    self.decoder.decode_blocks(&mut self.blob, one).map_err(|error| broken(&error))?;
                }
                if self.decoder.can_collect() > 0 {
                    return self.decoder.read(into);
                }
                self.in_frame = false;
            }
            if self.blob.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.decoder.init(&mut self.blob) {
                Ok(()) => self.in_frame = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.blob).take(length.into()), &mut io::sink())?;
                    if skipped != u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(broken(&error)),
            }
        }
    }
}
