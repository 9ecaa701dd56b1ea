//! Content codings. Each request asks for none. Some intermediate servers compress all the same,
//! while digests are of the bytes without that coding.

use super::without_query;
use crate::decompress::decompress;
use crate::{Error, Result};
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;
use std::io::{self, Read, Write};

/// How many bytes are decoded at once: they may become a thousand times as many.
const PIECE: usize = 4 << 10;

/// How an answer is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Identity,
    Gzip,
    /// In the format of zlib.
    Deflate,
    Zstd,
}

impl Coding {
    pub(super) fn of(response: &Response) -> Result<Self> {
        let values = response.headers().get_all(CONTENT_ENCODING).iter();
        let codings: Vec<String> = values
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .map(|coding| String::from_utf8_lossy(coding).trim().to_ascii_lowercase())
            .filter(|coding| !matches!(coding.as_str(), "" | "identity"))
            .collect();
        let [coding] = &codings[..] else {
            return if codings.is_empty() { Ok(Self::Identity) } else { Err(refused(response, &codings.join(", "))) };
        };
        match coding.as_str() {
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "deflate" => Ok(Self::Deflate),
            "zstd" => Ok(Self::Zstd),
            other => Err(refused(response, other)),
        }
    }

    /// A whole answer, decoded, if it is no longer than `limit`.
    pub(super) fn decode(self, bytes: Vec<u8>, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let mut decoder: Box<dyn Read + '_> = match self {
            Self::Identity => return Ok(Some(bytes)),
            Self::Deflate => Box::new(flate2::read::ZlibDecoder::new(&bytes[..])),
            // If the header is wrong, and the bytes are not compressed, they are used as they are.
            Self::Gzip | Self::Zstd => decompress(&bytes[..])?,
        };
        let mut decoded = Vec::new();
        (&mut decoder).take(limit as u64 + 1).read_to_end(&mut decoded)?;
        Ok((decoded.len() <= limit).then_some(decoded))
    }
}

fn refused(response: &Response, coding: &str) -> Error {
    let coding: String = coding.chars().filter(|c| !c.is_control()).take(100).collect();
    let reason = format!(
        "it sends `Content-Encoding: {coding}`, though it was asked for none; expected identity, gzip, deflate or zstd"
    );
    Error::Answer { url: without_query(response.url()), status: None, reason, retry_after: None }
}

/// Decodes a blob while it arrives.
pub(super) enum Decoder {
    Gzip(MultiGzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl Decoder {
    /// `None`: a coding that can be decoded only as a whole.
    pub(super) fn new(coding: Coding) -> Option<Self> {
        match coding {
            Coding::Gzip => Some(Self::Gzip(MultiGzDecoder::new(Vec::new()))),
            Coding::Deflate => Some(Self::Deflate(ZlibDecoder::new(Vec::new()))),
            Coding::Identity | Coding::Zstd => None,
        }
    }

    /// Takes a piece from the front of `encoded`, and returns the decoded bytes.
    pub(super) fn next(&mut self, encoded: &mut bytes::Bytes) -> io::Result<Vec<u8>> {
        let piece = encoded.split_to(encoded.len().min(PIECE));
        let decoded = match self {
            Self::Gzip(decoder) => {
                decoder.write_all(&piece)?;
                decoder.flush()?;
                decoder.get_mut()
            }
            Self::Deflate(decoder) => {
                decoder.write_all(&piece)?;
                decoder.flush()?;
                decoder.get_mut()
            }
        };
        Ok(std::mem::take(decoded))
    }
}
