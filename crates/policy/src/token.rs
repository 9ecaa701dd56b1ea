//! Places of tokens in a request head, and their removal. The runtime uses [`locate`] too, so both
//! use the same token.

use crate::input::Header;
use crate::path;
use crate::spec::TokenSource;
use alloc::string::String;
use alloc::vec::Vec;

/// Longest token that is looked at, in bytes.
pub const MAX_TOKEN: usize = 16 * 1024;

/// A token in a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestToken<'a> {
    /// Index of the source in the argument of [`locate`].
    pub source: usize,
    /// The token as it stands there; empty if it is not even text.
    pub token: &'a str,
}

/// The token of each source that has one, in the order of the sources. After a source's token comes
/// the first token of that source that differs from the first of all. So there is at most one token
/// for each source and one that contradicts, however many a client sends: a request has one token
/// or is refused. A header without the source's prefix holds no token (other schemes have other
/// uses), and neither does an empty parameter or cookie.
pub fn locate<'a>(sources: &[TokenSource], headers: &[Header<'a>], path_and_query: &'a str) -> Vec<RequestToken<'a>> {
    let mut found: Vec<RequestToken<'a>> = Vec::new();
    for (source, place) in sources.iter().enumerate() {
        if contradicting(&found).is_some() {
            break;
        }
        let mut push = |token: &'a str| {
            let same = found.last().is_some_and(|last| last.source == source && last.token == token);
            if !same && contradicting(&found).is_none() {
                found.push(RequestToken { source, token });
            }
        };
        match place {
            TokenSource::Header { name, prefix } => {
                values(headers, name).filter_map(|value| after_prefix(name, prefix, value)).for_each(&mut push);
            }
            TokenSource::Query(name) => {
                let query = path::split(path_and_query).1.unwrap_or_default();
                let parameters = query.split('&').map(split_pair);
                parameters
                    .filter(|(key, value)| is_named(key, name) && !value.is_empty())
                    .for_each(|(_, value)| push(value));
            }
            TokenSource::Cookie(name) => {
                for value in values(headers, "cookie").filter_map(|value| core::str::from_utf8(value).ok()) {
                    let cookies = cookies(value).map(split_pair);
                    cookies.filter(|(key, value)| key == name && !value.is_empty()).for_each(|(_, value)| push(value));
                }
            }
        }
    }
    found
}

/// A token that differs from the first.
pub fn contradicting<'f, 'a>(located: &'f [RequestToken<'a>]) -> Option<&'f RequestToken<'a>> {
    let (last, first) = (located.last()?, located.first()?);
    (last.token != first.token).then_some(last)
}

/// The query without one parameter.
pub fn without_parameter(query: &str, name: &str) -> String {
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_named(split_pair(pair).0, name)).collect();
    kept.join("&")
}

/// The `cookie` header without some cookies, all its fields joined into one; `None` if nothing is
/// left. A field that is not text cannot be split and is left out.
pub fn without_cookies(headers: &[Header<'_>], names: &[&str]) -> Option<String> {
    let fields = values(headers, "cookie").filter_map(|value| core::str::from_utf8(value).ok());
    let kept: Vec<&str> = fields.flat_map(cookies).filter(|cookie| !names.contains(&split_pair(cookie).0)).collect();
    (!kept.is_empty()).then(|| kept.join("; "))
}

fn values<'a>(headers: &[Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| header.name == name).map(|header| header.value)
}

/// The scheme of `authorization` is case-insensitive, and any number of spaces may follow it (RFC
/// 9110, 11.4).
fn after_prefix<'a>(name: &str, prefix: &str, value: &'a [u8]) -> Option<&'a str> {
    let (head, token) = value.split_at_checked(prefix.len())?;
    let here =
        if name == "authorization" { head.eq_ignore_ascii_case(prefix.as_bytes()) } else { head == prefix.as_bytes() };
    // Bytes that are not text are a bad token rather than none, so that they cannot pass where
    // tokens are optional.
    here.then(|| core::str::from_utf8(token).unwrap_or_default().trim_matches([' ', '\t']))
}

/// Name and value of `name=value`.
fn split_pair(pair: &str) -> (&str, &str) {
    pair.split_once('=').unwrap_or((pair, ""))
}

/// Whether a parameter has this name, which may be percent-encoded, as functions will decode it.
fn is_named(key: &str, name: &str) -> bool {
    if !key.contains(['%', '+']) {
        return key == name;
    }
    let mut bytes = key.bytes();
    let mut next = || match bytes.next()? {
        b'+' => Some(b' '),
        b'%' => {
            let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
            u8::try_from(digit()? * 16 + digit()?).ok()
        }
        byte => Some(byte),
    };
    name.bytes().all(|byte| next() == Some(byte)) && next().is_none()
}

/// The cookies of a `cookie` field (RFC 6265, 4.2.1).
fn cookies(value: &str) -> impl Iterator<Item = &str> {
    value.split(';').map(|cookie| cookie.trim_matches([' ', '\t'])).filter(|cookie| !cookie.is_empty())
}

#[cfg(test)]
mod tests;
