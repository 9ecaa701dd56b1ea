//! A blob as it arrives. Where the connection breaks, it goes on with a range. One that hardly comes at all is given up, so that a slow registry holds
//! nothing of the node for long.

use super::{Access, Client, Endpoint, Request, refusal, unreachable, without_query};
use crate::registries::Registries;
use crate::{Digest, Error, Result};
use bytes::Bytes;
use leno_namespaces::Rate;
use reqwest::header::{CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Method, StatusCode};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;

/// How often in a row a download may break off without getting on.
const MAX_TRIES: u32 = 4;
/// How many bytes count as getting on.
const ADVANCE: u64 = 64 << 10;
/// How long to wait before the second try; each further wait is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Nobody wants the rest any more.
pub(crate) struct Abandoned;

impl Client {
    /// Sends a blob, which has `size` bytes, in pieces to `to`. Whoever receives them verifies the digest.
    pub(crate) async fn blob(
        &self,
        endpoint: &Endpoint,
        digest: Digest,
        size: u64,
        (to, rate): (Sender<Bytes>, Option<&Rate>),
    ) -> Result<std::result::Result<(), Abandoned>> {
        let mut offset = 0;
        let mut pace = Pace::default();
        let (mut tries, mut advanced_at) = (0, 0);
        loop {
            let error = match self.part(endpoint, (digest, size), &mut offset, &mut pace, (&to, rate)).await {
                Ok(End::Complete) => return Ok(Ok(())),
                Ok(End::Abandoned) => return Ok(Err(Abandoned)),
                Ok(End::Broken(error)) => error,
                Err(error) => return Err(error),
            };
            if offset >= advanced_at + ADVANCE {
                (tries, advanced_at) = (0, offset);
            }
            tries += 1;
            if tries == MAX_TRIES {
                return Err(error);
            }
            tracing::debug!(%digest, offset, %error, "a download broke off and goes on");
            tokio::time::sleep(FIRST_PAUSE * 2u32.pow(tries - 1)).await;
        }
    }

    /// One request for what follows `offset`.
    async fn part(
        &self,
        endpoint: &Endpoint,
        (digest, size): (Digest, u64),
        offset: &mut u64,
        pace: &mut Pace,
        (to, rate): (&Sender<Bytes>, Option<&Rate>),
    ) -> Result<End> {
        let url = endpoint.url(&format!("blobs/{digest}"))?;
        let mut request = Request::new(Method::GET, url.clone());
        if *offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            request.headers.insert(RANGE, range.unwrap_or_else(|_| HeaderValue::from_static("bytes=0-")));
        }
        let mut response = match self.whole(&url, self.send(endpoint, Access::Pull, &request)).await {
            Ok(response) => response,
            Err(error @ Error::Unreachable { .. }) => return Ok(End::Broken(error)),
            Err(error) => return Err(error),
        };
        let wrong = |reason: String| Error::Answer { url: without_query(&url), status: None, reason };
        // A registry that knows no ranges begins again; what is here already is passed over.
        let mut skip = match response.status() {
            StatusCode::OK => *offset,
            StatusCode::PARTIAL_CONTENT if *offset > 0 => {
                let range =
                    response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
                if !range.strip_prefix("bytes ").is_some_and(|range| range.starts_with(&format!("{offset}-"))) {
                    return Err(wrong(format!(
                        "asked for what follows byte {offset}, it sends `Content-Range: {range}`"
                    )));
                }
                0
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Ok(End::Broken(refusal(response).await));
            }
            _ => return Err(refusal(response).await),
        };
        if let Some(length) = response.content_length()
            && length + (*offset - skip) != size
        {
            return Err(wrong(format!("the blob has {} bytes; its manifest says {size}", length + (*offset - skip))));
        }
        loop {
            let (before, chunk) = (Instant::now(), response.chunk().await);
            let length = chunk.as_ref().ok().and_then(|chunk| Some(chunk.as_ref()?.len() as u64)).unwrap_or_default();
            if pace.is_slow(before.elapsed(), length, self) {
                let (least, time) = (self.settings.registries.least_rate, self.settings.registries.slow_timeout);
                return Err(wrong(format!("less than {least} bytes a second came for {time:?}; it is given up")));
            }
            let mut chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) if *offset == size => return Ok(End::Complete),
                Ok(None) => return Ok(End::Broken(wrong(format!("the blob ends after {offset} of {size} bytes")))),
                Err(_) if *offset == size => return Ok(End::Complete),
                Err(error) => return Ok(End::Broken(unreachable(&url, error))),
            };
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            // No more than the chunk has.
            drop(chunk.split_to(skipped as usize));
            if chunk.len() as u64 > size - *offset {
                return Err(wrong(format!("the blob is longer than the {size} bytes that its manifest says")));
            }
            *offset += chunk.len() as u64;
            if let Some(rate) = rate {
                tokio::time::sleep(rate.owe(length, Instant::now())).await;
            }
            if !chunk.is_empty() && to.send(chunk).await.is_err() {
                return Ok(End::Abandoned);
            }
        }
    }
}

/// How fast a registry sends, over the time that was spent on waiting for it.
#[derive(Default)]
struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Notes that so many bytes have come after so long. Returns whether too few have come for too long.
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
