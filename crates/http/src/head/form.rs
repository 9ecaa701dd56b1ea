//! The form of a head, where the HTTP library is lenient.

use super::{HeadError, is_authority};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request;

/// Checks a CONNECT without a protocol: it names a host and port, and has no content (RFC 9110,
/// 9.3.6).
pub fn check_connect(head: &request::Parts) -> Result<(), HeadError> {
    let uri = &head.uri;
    let is_authority_form = uri.scheme().is_none() && uri.path_and_query().is_none_or(|path| path.as_str().is_empty());
    let authority = uri.authority().filter(|_| is_authority_form).ok_or(HeadError::Target)?;
    if !is_authority(authority.as_str().as_bytes()) {
        return Err(HeadError::Authority);
    }
    let is_content = |length: &HeaderValue| length.as_bytes().iter().any(|byte| *byte != b'0');
    let has_length = head.headers.get_all(header::CONTENT_LENGTH).iter().any(is_content);
    if has_length || head.headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(HeadError::ConnectContent);
    }
    Ok(())
}

/// Bytes of these fields, as they are over HTTP/1.1.
#[inline]
pub fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Bytes of these fields, as HTTP/2 counts them (RFC 9113, 6.5.2).
#[inline]
pub fn list_size(headers: &HeaderMap) -> usize {
    size(headers) + (32 - 4) * headers.len()
}

/// Checks the names of an HTTP/2 head's fields.
#[inline]
pub fn check_names(headers: &HeaderMap) -> Result<(), HeadError> {
    if headers.keys().all(is_token) { Ok(()) } else { Err(HeadError::FieldName) }
}

/// The HTTP/2 library accepts one byte in names that no token has (RFC 9110, 5.6.2).
pub(super) fn is_token(name: &HeaderName) -> bool {
    !name.as_str().as_bytes().contains(&b'"')
}
