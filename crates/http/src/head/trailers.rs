//! Removes fields from trailers that are only allowed in a head.

use super::form::is_token;
use super::trim_values;
use http::header::{self, HeaderMap, HeaderName};
use leno_policy::reserved::{is_reserved, is_same};

/// Removes fields from trailers whose names are no tokens, or that are only allowed in a head (RFC
/// 9110, 6.5.1): those that frame or route a message, that identify a client, that a cache or
/// decoder acts on, or that only the mesh may set. `claims` are fields that policies write from
/// claims.
pub fn clean_trailers<'a>(trailers: &mut HeaderMap, claims: impl Iterator<Item = &'a str> + Clone) {
    let only_in_heads = |name: &HeaderName| {
        let text = name.as_str();
        !is_token(name)
            || ONLY_IN_HEADS.contains(name)
            || ["keep-alive", "proxy-connection"].contains(&text)
            || is_reserved(text)
            || claims.clone().any(|claim| is_same(claim.as_bytes(), text.as_bytes()))
    };
    let unwanted: Vec<HeaderName> = trailers.keys().filter(|name| only_in_heads(name)).cloned().collect();
    for name in unwanted {
        trailers.remove(name);
    }
    trim_values(trailers);
}

const ONLY_IN_HEADS: [HeaderName; 37] = [
    header::AGE,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::EXPECT,
    header::EXPIRES,
    header::FORWARDED,
    header::HOST,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::LOCATION,
    header::MAX_FORWARDS,
    header::ORIGIN,
    header::PRAGMA,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::RETRY_AFTER,
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::VARY,
    header::WARNING,
    header::WWW_AUTHENTICATE,
];
