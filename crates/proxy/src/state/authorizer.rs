//! External authorizers of a function, and the cached answers of each.

use super::recent::{KeyedHasher, Recent};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use leno_http::edits::Edit;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the largest answer that is cached.
const LARGEST_REMEMBERED: usize = 2048;

/// An authorizer of one function. A change of the function's configuration replaces it by one with
/// an empty cache.
#[derive(Debug)]
pub(crate) struct Authorizer {
    /// Its definition.
    pub spec: leno_model::Authorizer,
    /// Answers, and when they expire: at most 4096 of each authorizer, less than 10 MB.
    remembered: Recent<(Instant, Arc<Answer>), 256>,
    hasher: KeyedHasher,
}

/// The validated answer of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The request may go on, with these edits.
    Allows(Vec<Edit>),
    /// The request must not go on.
    Refuses(AuthorizerRefusal),
}

/// A refusal, as the client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizerRefusal {
    /// 3xx, 4xx or 5xx.
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The authorizer's own explanation, for the record; often empty.
    pub details: Box<str>,
}

impl Authorizer {
    pub(super) fn new(spec: &leno_model::Authorizer) -> Self {
        Self { spec: spec.clone(), remembered: Recent::default(), hasher: KeyedHasher::default() }
    }

    /// The key of a question in the cache. Equal questions have equal bytes.
    pub(crate) fn key(&self, question: &[u8]) -> u128 {
        self.hasher.hash(question)
    }

    /// The cached answer to an equal question, if it has not expired.
    pub(crate) fn look_up(&self, key: u128, now: Instant) -> Option<Arc<Answer>> {
        self.remembered.look_up(key).filter(|(until, _)| now < *until).map(|(_, answer)| answer)
    }

    /// Caches an answer, unless it is large.
    pub(crate) fn remember(&self, key: u128, answer: &Answer, now: Instant) {
        let until = self.spec.cache.as_ref().and_then(|cache| now.checked_add(cache.ttl));
        if let Some(until) = until.filter(|_| answer.size() <= LARGEST_REMEMBERED) {
            self.remembered.insert(key, (until, Arc::new(answer.clone())));
        }
    }
}

impl Answer {
    fn size(&self) -> usize {
        match self {
            Self::Allows(edits) => edits.iter().map(Edit::size).sum(),
            Self::Refuses(AuthorizerRefusal { headers, body, details, .. }) => {
                let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
                fields.sum::<usize>() + body.len() + details.len()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_model::{AuthorizerCache, AuthorizerProtocol};
    use std::time::Duration;

    #[test]
    fn answers_are_forgotten_and_large_ones_not_remembered() {
        let authorizer = Authorizer::new(&leno_model::Authorizer {
            name: "p/externalAuthorization/a".to_owned(),
            authority: "a.b".to_owned(),
            protocol: AuthorizerProtocol::Http,
            path_prefix: String::new(),
            timeout: Duration::from_secs(1),
            status_on_error: 503,
            shown: None,
            upstream_headers: Vec::new(),
            raw_headers: false,
            client_headers: Vec::new(),
            cache: Some(AuthorizerCache { ttl: Duration::from_secs(10), key: Vec::new() }),
            audit: false,
        });
        let refused = |length| {
            Answer::Refuses(AuthorizerRefusal {
                status: StatusCode::FORBIDDEN,
                headers: HeaderMap::new(),
                body: vec![b'a'; length].into(),
                details: "".into(),
            })
        };
        let now = Instant::now();
        authorizer.remember(1, &refused(10), now);
        authorizer.remember(2, &refused(LARGEST_REMEMBERED + 1), now);
        let almost = now + Duration::from_millis(9_999);
        assert_eq!(authorizer.look_up(1, almost).as_deref(), Some(&refused(10)));
        assert_eq!(authorizer.look_up(1, now + Duration::from_secs(10)), None);
        assert_eq!(authorizer.look_up(2, now), None);
        assert_eq!(authorizer.look_up(3, now), None);
    }
}
