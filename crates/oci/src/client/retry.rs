//! Repeats requests that a registry could not answer at the moment.

use super::{Client, Endpoint};
use crate::{Error, Result};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use std::time::{Duration, Instant, SystemTime};

/// How long to wait before the second try; each further wait is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// How long requests to a registry are repeated if the connection cannot be established, or is
/// lost.
const LOST_TIMEOUT: Duration = Duration::from_secs(3);

/// When the registry wants the request to be repeated, in seconds or as a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// How long requests are repeated after this error, within `busy`, and how long the registry wants
/// to be left alone.
pub(super) fn is_passing(error: &Error, busy: Duration) -> Option<(Duration, Duration)> {
    match error {
        Error::Answer { status: Some(408 | 425 | 429 | 500 | 502 | 503 | 504), retry_after, .. } => {
            Some((busy, retry_after.unwrap_or_default()))
        }
        Error::Unreachable { is_lost: true, .. } => Some((busy.min(LOST_TIMEOUT), Duration::ZERO)),
        _ => None,
    }
}

/// Whether a connection could not be established, or ended before its answer. The name was found,
/// and its address is allowed.
pub(super) fn is_lost(error: &reqwest::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if let Some(BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof) = kind {
            return true;
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// How long one request is repeated.
pub(super) struct RetryBudget {
    begin: Instant,
    pause: Duration,
    /// Requests to mirrors are not repeated: another endpoint can be asked after them.
    is_mirror: bool,
    busy_timeout: Duration,
}

impl RetryBudget {
    pub(super) fn new(client: &Client, endpoint: &Endpoint) -> Self {
        let busy_timeout = client.settings.registries.busy_timeout;
        Self { begin: Instant::now(), pause: FIRST_PAUSE, is_mirror: endpoint.is_mirror, busy_timeout }
    }

    /// Waits until it is time to repeat the request. Returns the error if that is not worth it.
    pub(super) async fn wait(&mut self, error: Error) -> Result<()> {
        let Some((limit, wanted)) = is_passing(&error, self.busy_timeout).filter(|_| !self.is_mirror) else {
            return Err(error);
        };
        let wait = wanted.max(self.pause);
        if self.begin.elapsed().saturating_add(wait) > limit {
            return Err(error);
        }
        tracing::info!(%error, "the registry is asked again in {wait:?}");
        tokio::time::sleep(wait).await;
        self.pause *= 2;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_says_in_seconds_or_by_a_date_when_to_ask_again() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(read(" 0 "), Some(Duration::ZERO));
        assert_eq!(read("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(read(&later).is_some_and(|wait| wait > Duration::from_secs(90) && wait <= Duration::from_secs(100)));
        for nonsense in ["", "-1", "soon", "1.5", "99999999999999999999999", "1, 2"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
        assert_eq!(read("18446744073709551615"), Some(Duration::from_secs(u64::MAX)));
    }
}
