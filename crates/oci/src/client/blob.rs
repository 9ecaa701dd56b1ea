//! A blob as it arrives. If the connection breaks, the download resumes with a range request. A
//! download that is too slow is given up, so that a slow registry does not hold resources of the
//! node for long.

use super::coding::{Coding, Decoder};
use super::retry::is_passing;
use super::{Access, Client, Endpoint, Request, refusal, unreachable, without_query};
use crate::registries::Registries;
use crate::{Digest, Error, Result};
use bytes::Bytes;
use leno_namespaces::Rate;
use reqwest::header::{CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use url::Url;

/// How often in a row a download may break off without progress.
const MAX_TRIES: u32 = 4;
/// The same for a mirror: another endpoint can be asked after it.
const MAX_MIRROR_TRIES: u32 = 2;
/// How many bytes count as progress.
const ADVANCE: u64 = 64 << 10;
/// How long to wait before the second try; each further wait is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The receiver of a blob has gone, so the rest is not needed.
pub(crate) struct ReceiverGone;

/// A blob that is being downloaded.
struct Download<'a> {
    client: &'a Client,
    endpoint: &'a Endpoint,
    url: Url,
    size: u64,
    /// The number of bytes of the blob that have arrived.
    offset: u64,
    /// The registry compresses the blob once more, so it has to be fetched from its beginning.
    is_encoded: bool,
    pace: Pace,
    to: Sender<Bytes>,
    rate: Option<&'a Rate>,
}

impl Client {
    /// Downloads a blob of `size` bytes, and sends it in pieces to `to`. The receiver verifies the
    /// digest.
    pub(crate) async fn blob(
        &self,
        endpoint: &Endpoint,
        digest: Digest,
        size: u64,
        (to, rate): (Sender<Bytes>, Option<&Rate>),
    ) -> Result<std::result::Result<(), ReceiverGone>> {
        let url = endpoint.url(&format!("blobs/{digest}"))?;
        let (pace, is_encoded) = (Pace::default(), false);
        let mut download = Download { client: self, endpoint, url, size, offset: 0, is_encoded, pace, to, rate };
        let (mut tries, mut advanced_at) = (0, 0);
        loop {
            let error = match download.part().await? {
                End::Complete => return Ok(Ok(())),
                End::Abandoned => return Ok(Err(ReceiverGone)),
                End::Broken(error) => error,
            };
            if download.offset >= advanced_at + ADVANCE {
                (tries, advanced_at) = (0, download.offset);
            }
            tries += 1;
            let busy = self.settings.registries.busy_timeout;
            let wanted = is_passing(&error, busy).map_or(Duration::ZERO, |(_, wanted)| wanted);
            let most = if endpoint.is_mirror { MAX_MIRROR_TRIES } else { MAX_TRIES };
            if tries == most || wanted > busy || (endpoint.is_mirror && !wanted.is_zero()) {
                return Err(error);
            }
            tracing::debug!(%digest, offset = download.offset, %error, "a download broke off and goes on");
            tokio::time::sleep(wanted.max(FIRST_PAUSE * 2u32.pow(tries - 1))).await;
        }
    }
}

impl Download<'_> {
    fn wrong(&self, reason: String) -> Error {
        Error::Answer { url: without_query(&self.url), status: None, reason, retry_after: None }
    }

    /// One request for the bytes from `offset` on.
    async fn part(&mut self) -> Result<End> {
        let mut request = Request::new(Method::GET, self.url.clone());
        if self.offset > 0 && !self.is_encoded {
            let range = HeaderValue::try_from(format!("bytes={}-", self.offset));
            request.headers.insert(RANGE, range.unwrap_or_else(|_| HeaderValue::from_static("bytes=0-")));
        }
        let answer = self.client.whole(&self.url, self.client.send(self.endpoint, Access::Pull, &request));
        let response = match answer.await {
            Ok(response) => response,
            Err(error @ Error::Unreachable { .. }) => return Ok(End::Broken(error)),
            Err(error) if is_passing(&error, Duration::ZERO).is_some() => return Ok(End::Broken(error)),
            Err(error) => return Err(error),
        };
        // A registry without support for ranges sends the blob from its beginning; the bytes that
        // have already arrived are skipped.
        let skip = match response.status() {
            StatusCode::OK => self.offset,
            StatusCode::PARTIAL_CONTENT if self.offset > 0 => {
                let range =
                    response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
                let asked = format!("{}-", self.offset);
                if !range.strip_prefix("bytes ").is_some_and(|range| range.starts_with(&asked)) {
                    let offset = self.offset;
                    let reason = format!("asked for what follows byte {offset}, it sends `Content-Range: {range}`");
                    return Err(self.wrong(reason));
                }
                0
            }
            _ => {
                let error = refusal(response).await;
                return if is_passing(&error, Duration::ZERO).is_some() { Ok(End::Broken(error)) } else { Err(error) };
            }
        };
        let decoder = self.decoder(&response, skip)?;
        self.content(response, skip, decoder).await
    }

    /// The decoder of the body, if it is encoded.
    fn decoder(&mut self, response: &Response, skip: u64) -> Result<Option<Decoder>> {
        let (coding, from) = (Coding::of(response)?, self.offset - skip);
        let length = response.content_length();
        // File servers often name the coding of the blob itself as that of the answer. The length
        // shows this: it is that of the blob.
        if coding == Coding::Identity || length == Some(self.size - from) {
            return match length {
                Some(length) if length + from != self.size => {
                    let (length, size) = (length + from, self.size);
                    Err(self.wrong(format!("the blob has {length} bytes; its manifest says {size}")))
                }
                _ => Ok(None),
            };
        }
        let decoder = Decoder::new(coding).filter(|_| from == 0);
        self.is_encoded = decoder.is_some();
        let reason = || format!("it sends a part of a blob, or a whole one, with the coding {coding:?}; expected none");
        decoder.map(Some).ok_or_else(|| self.wrong(reason()))
    }

    async fn content(&mut self, mut response: Response, mut skip: u64, mut decoder: Option<Decoder>) -> Result<End> {
        loop {
            let (before, chunk) = (Instant::now(), response.chunk().await);
            let length = chunk.as_ref().ok().and_then(|chunk| Some(chunk.as_ref()?.len() as u64)).unwrap_or_default();
            if self.pace.is_slow(before.elapsed(), length, self.client) {
                let Registries { least_rate, slow_timeout, .. } = &self.client.settings.registries;
                let reason = format!("less than {least_rate} bytes a second came for {slow_timeout:?}; it is given up");
                return Err(self.wrong(reason));
            }
            let mut chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) | Err(_) if self.offset == self.size => return Ok(End::Complete),
                Ok(None) => {
                    let (offset, size) = (self.offset, self.size);
                    return Ok(End::Broken(self.wrong(format!("the blob ends after {offset} of {size} bytes"))));
                }
                Err(error) => return Ok(End::Broken(unreachable(&self.url, error))),
            };
            if let Some(rate) = self.rate {
                tokio::time::sleep(rate.owe(length, Instant::now())).await;
            }
            while !chunk.is_empty() {
                let piece = match &mut decoder {
                    None => std::mem::take(&mut chunk),
                    Some(decoder) => {
                        let decoded = decoder.next(&mut chunk);
                        decoded.map_err(|error| self.wrong(format!("its coding is broken: {error}")))?.into()
                    }
                };
                if !self.piece(piece, &mut skip).await? {
                    return Ok(End::Abandoned);
                }
            }
        }
    }

    /// Sends a piece of the blob on. Returns whether the receiver still wants more.
    async fn piece(&mut self, mut piece: Bytes, skip: &mut u64) -> Result<bool> {
        let skipped = (*skip).min(piece.len() as u64);
        *skip -= skipped;
        // At most the length of the piece.
        drop(piece.split_to(skipped as usize));
        if piece.len() as u64 > self.size - self.offset {
            let size = self.size;
            return Err(self.wrong(format!("the blob is longer than the {size} bytes that its manifest says")));
        }
        self.offset += piece.len() as u64;
        Ok(piece.is_empty() || self.to.send(piece).await.is_ok())
    }
}

/// How fast a registry sends, over the time that was spent on waiting for it.
#[derive(Default)]
struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Records that `bytes` bytes arrived after waiting for `waited`. Returns whether the rate has
    /// been too low for too long.
    fn is_slow(&mut self, waited: Duration, bytes: u64, client: &Client) -> bool {
        let Registries { least_rate, slow_timeout, .. } = &client.settings.registries;
        self.waited += waited;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited < *slow_timeout {
            return false;
        }
        let Self { waited, bytes } = std::mem::take(self);
        u128::from(bytes) * 1000 < u128::from(*least_rate) * waited.as_millis()
    }
}

enum End {
    Complete,
    Abandoned,
    Broken(Error),
}
