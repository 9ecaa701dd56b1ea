//! A copy of a request's head, kept as long as the request is open, so that it can be judged again.
//!
//! All fields are copied into one buffer. The original head is edited and forwarded, and its fields
//! are slices of a connection's read buffer, which would be kept whole.

use http::{HeaderMap, Method, request};
use leno_http::head;
use leno_policy::input::Header;
use leno_policy::needs::Needs;
use std::fmt;

/// Bytes of a length.
const LENGTH: usize = 4;

/// A request head as its program saw it.
#[derive(Default)]
pub(crate) struct RequestSnapshot {
    method: Method,
    /// Authority, path, then name and value of each field, each after its length. At most as long
    /// as the head, which the mesh limits.
    texts: Box<[u8]>,
}

impl RequestSnapshot {
    /// Copies a head.
    pub(crate) fn copy(head: &request::Parts) -> Self {
        let (authority, path) = (head::authority(head), path(head));
        let fields = head.headers.iter().map(|(name, value)| 2 * LENGTH + name.as_str().len() + value.len());
        let mut texts = Vec::with_capacity(2 * LENGTH + authority.len() + path.len() + fields.sum::<usize>());
        push(&mut texts, authority.as_bytes());
        push(&mut texts, path.as_bytes());
        for (name, value) in &head.headers {
            push(&mut texts, name.as_str().as_bytes());
            push(&mut texts, value.as_bytes());
        }
        Self { method: head.method.clone(), texts: texts.into_boxed_slice() }
    }

    pub(crate) fn method(&self) -> &str {
        self.method.as_str()
    }

    /// Host, and port if given.
    pub(crate) fn authority(&self) -> &str {
        self.texts().next().map(text).unwrap_or_default()
    }

    /// Path and query.
    pub(crate) fn path(&self) -> &str {
        self.texts().nth(1).map(text).unwrap_or_default()
    }

    /// The header fields.
    pub(crate) fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        let mut texts = self.texts().skip(2);
        let pair = move || Some((texts.next()?, texts.next()?));
        std::iter::from_fn(pair).map(|(name, value)| Header { name: text(name), value })
    }

    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.texts;
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk::<LENGTH>()?;
            let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = after;
            Some(text)
        })
    }
}

/// Path and query of a head, as programs see them.
pub(super) fn path(head: &request::Parts) -> &str {
    head.uri.path_and_query().map_or("/", |path| path.as_str())
}

/// The header fields. The `http` crate keeps names in lower case.
pub(super) fn header_fields(headers: &HeaderMap) -> impl Iterator<Item = Header<'_>> {
    headers.iter().map(|(name, value)| Header { name: name.as_str(), value: value.as_bytes() })
}

/// The header fields that a program is given.
pub(super) fn given_fields<'h>(needs: &Needs, headers: &'h HeaderMap) -> Vec<Header<'h>> {
    header_fields(headers).filter(|header| needs.gives(header.name)).collect()
}

fn push(texts: &mut Vec<u8>, text: &[u8]) {
    // No head is as long as that.
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    texts.extend_from_slice(&length.to_le_bytes());
    texts.extend_from_slice(text);
}

fn text(bytes: &[u8]) -> &str {
    // These bytes were text when they were copied.
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl fmt::Debug for RequestSnapshot {
    /// Fields may hold secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RequestSnapshot({})", self.method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};

    #[test]
    fn a_copy_says_what_the_head_says_and_keeps_nothing_of_its_buffer() {
        let buffer = bytes::Bytes::from_static(b"secret").slice(..).to_vec();
        let buffer = bytes::Bytes::from(buffer);
        let value = HeaderValue::from_maybe_shared(buffer.clone()).unwrap();
        let request = Request::put("/a?b=c").header("host", "shop:80").header("x-a", value).header("x-a", "");
        let (head, ()) =
            request.header("x-b", HeaderValue::from_bytes(b"\xff").unwrap()).body(()).unwrap().into_parts();
        let asked = RequestSnapshot::copy(&head);
        assert_eq!((asked.method(), asked.authority(), asked.path()), ("PUT", "shop:80", "/a?b=c"));
        assert!(asked.headers().eq(header_fields(&head.headers)));
        drop(head);
        assert!(buffer.is_unique());
        assert_eq!(asked.headers().count(), 4);
        assert_eq!(format!("{asked:?}"), "RequestSnapshot(PUT)");
    }

    #[test]
    fn a_head_may_be_almost_empty() {
        let (head, ()) = Request::get("*").body(()).unwrap().into_parts();
        let asked = RequestSnapshot::copy(&head);
        assert_eq!((asked.authority(), asked.path(), asked.headers().count()), ("", "*", 0));
    }
}
