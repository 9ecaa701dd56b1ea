//! Where tokens are in a request head, and how they are taken out of it again. The runtime uses [`locate`] too, so both
//! count tokens in the same order.

use crate::input::Header;
use crate::path;
use crate::spec::TokenSource;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Longest token that is looked at, in bytes.
pub const MAX_TOKEN: usize = 16 * 1024;

/// A token in a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located<'a> {
    /// Index of the source in the argument of [`locate`].
    pub source: usize,
    /// The token as it stands there.
    pub token: &'a str,
}

/// All tokens, by source in the order given, and within a source in the order of the head. A header without the
/// source's prefix holds no token.
pub fn locate<'a>(sources: &[TokenSource], headers: &[Header<'a>], path_and_query: &'a str) -> Vec<Located<'a>> {
    let mut found = Vec::new();
    for (source, place) in sources.iter().enumerate() {
        let mut push = |token: &'a str| found.push(Located { source, token });
        match place {
            TokenSource::Header { name, prefix } => {
                values(headers, name).filter_map(|value| after_prefix(name, prefix, value)).for_each(&mut push);
            }
            TokenSource::Query(name) => {
                let query = path::split(path_and_query).1.unwrap_or_default();
                pairs(query, '&').filter(|(key, _)| key == name).for_each(|(_, value)| push(value));
            }
            TokenSource::Cookie(name) => {
                for value in values(headers, "cookie") {
                    cookies(value).filter(|(key, _)| key == name).for_each(|(_, value)| push(value));
                }
            }
        }
    }
    found
}

/// The query without one parameter.
pub fn without_parameter(query: &str, name: &str) -> String {
    let kept: Vec<&str> = query.split('&').filter(|pair| pair.split('=').next() != Some(name)).collect();
    kept.join("&")
}

/// The `cookie` header without one cookie; `None` if nothing is left.
pub fn without_cookie(headers: &[Header<'_>], name: &str) -> Option<String> {
    let kept: Vec<String> = values(headers, "cookie")
        .flat_map(cookies)
        .filter(|(key, _)| *key != name)
        .map(|(key, value)| if value.is_empty() { key.to_string() } else { format!("{key}={value}") })
        .collect();
    (!kept.is_empty()).then(|| kept.join("; "))
}

/// Values that are text; a token is always ASCII.
fn values<'a>(headers: &[Header<'a>], name: &str) -> impl Iterator<Item = &'a str> {
    headers
        .iter()
        .filter(move |header| header.name == name)
        .filter_map(|header| core::str::from_utf8(header.value).ok())
}

/// The scheme of `authorization` has no case, and any number of spaces after it (RFC 9110, 11.4).
fn after_prefix<'a>(name: &str, prefix: &str, value: &'a str) -> Option<&'a str> {
    let head = value.get(..prefix.len())?;
    let same = if name == "authorization" { head.eq_ignore_ascii_case(prefix) } else { head == prefix };
    same.then(|| value[prefix.len()..].trim_matches([' ', '\t']))
}

fn pairs(text: &str, separator: char) -> impl Iterator<Item = (&str, &str)> {
    text.split(separator).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn cookies(value: &str) -> impl Iterator<Item = (&str, &str)> {
    pairs(value, ';')
        .map(|(name, value)| (name.trim_matches(' '), value.trim_matches(' ').trim_matches('"')))
        .filter(|(name, _)| !name.is_empty())
}
