//! The parts of a request that routes look at.

use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderName, Method};
use leno_policy::host::normal_authority;
use std::borrow::Cow;

/// A request, as far as routes look at it.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'r> {
    /// The host, with a port if the client names one; empty: it names none.
    pub authority: &'r str,
    /// The normalised path.
    pub path: &'r str,
    /// The query, without `?`.
    pub query: Option<&'r str>,
    /// The method.
    pub method: &'r Method,
    /// The header fields.
    pub headers: &'r HeaderMap,
}

impl<'r> RequestParts<'r> {
    /// The value of a header field; of `host` in the form in which hosts are compared. Several fields of one name are one list (RFC 9110, 5.2), and
    /// those of cookies one cookie string (RFC 9113, 8.2.3).
    pub(crate) fn header(&self, name: &HeaderName) -> Option<Cow<'r, [u8]>> {
        // Over HTTP/2 it is in no field.
        if *name == HOST {
            return Some(match normal_authority(self.authority)? {
                Cow::Borrowed(authority) => Cow::Borrowed(authority.as_bytes()),
                Cow::Owned(authority) => Cow::Owned(authority.into_bytes()),
            });
        }
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?.as_bytes();
        let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
        let separator: &[u8] = if *name == COOKIE { b"; " } else { b"," };
        let mut joined = first.to_vec();
        for value in std::iter::once(second).chain(values) {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(value.as_bytes());
        }
        Some(Cow::Owned(joined))
    }

    /// Names and values of the query's parameters, decoded as forms are (WHATWG URL, 5.1): a broken
    /// escape stays as it is.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (Cow<'r, [u8]>, Cow<'r, [u8]>)> {
        self.query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
    }
}

fn decode(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(bytes);
    }
    let digit = |at: usize| bytes.get(at).and_then(|digit| char::from(*digit).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escape = if *byte == b'%' { digit(at + 1).zip(digit(at + 2)) } else { None };
        decoded.push(match (byte, escape) {
            (_, Some((high, low))) => u8::try_from(high * 16 + low).unwrap_or_default(),
            (b'+', None) => b' ',
            (byte, None) => *byte,
        });
        at += if escape.is_some() { 3 } else { 1 };
    }
    Cow::Owned(decoded)
}
