//! The paths for which servers may take a path that they get as received.
//!
//! A normalised path means the same to every server. A path that is forwarded as received does not:
//! one server decodes `%2F` before it splits the path, another one after that, a third merges
//! slashes. The mesh does not know which of them reads the path, so it judges all paths that
//! servers could make of it.

use super::{Ambiguous, decode, normalise, unreserved, without_parameters};
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// Most readings of a path. One with more is refused.
pub const MAX_READINGS: usize = 32;
/// Most bytes of all readings of a path but the first. One with more is refused.
pub const MAX_READINGS_BYTES: usize = 16 * 1024;

/// The readings of a path. A request is allowed only if it is under each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings<'a> {
    /// The path that is forwarded, with its escapes in upper case, as rules have them.
    pub path: Cow<'a, str>,
    /// Other paths for which servers may take it.
    pub others: Vec<String>,
    /// A normalised path with the characters decoded that may stand in a segment (`/@a` for
    /// `/%40a`), without parameters first. Most servers read it so, and rules may be written either
    /// way. Deny rules, limits and authorizers look at it; a rule that allows need not name it.
    pub decoded: Vec<String>,
}

/// A step that some servers take and others do not. `None`: it changes nothing.
type Step = fn(&str) -> Result<Option<String>, Ambiguous>;

/// The steps, each for itself.
const STEPS: [Step; 9] = [
    |path| spell(path, unreserved),
    |path| spell(path, in_segment),
    |path| Ok(replace(path, is_escape_of(b'/'))),
    |path| Ok(replace(path, is_escape_of(b'\\'))),
    |path| Ok(decode_twice(path)),
    |path| Ok(cut_parameters(path, false)),
    |path| Ok(cut_parameters(path, true)),
    |path| Ok(merge_slashes(path)),
    resolve_dots,
];

impl<'a> Readings<'a> {
    /// The path normalised. Some servers drop the parameters of its segments (`;x`), so it may have two readings.
    pub fn normal(path: &'a str) -> Result<Self, Ambiguous> {
        let path = normalise(path)?;
        let others = without_parameters(&path).into_iter().collect();
        // Most paths have no escapes, and nothing to decode.
        let decoded = if path.contains('%') { spell(&path, in_segment)? } else { None };
        let decoded = decoded.map(|decoded| without_parameters(&decoded).into_iter().chain([decoded]).collect());
        Ok(Self { path, others, decoded: decoded.unwrap_or_default() })
    }

    /// The path as received, and all paths that servers make of it by any of these steps, in any
    /// order:
    ///
    /// - decode unreserved characters (`%61`);
    /// - decode all characters that may stand in a segment (`%2B`, `%40`, `%3B`);
    /// - take `%2F` for a slash;
    /// - take `%5C` for a slash;
    /// - decode twice (`%252F`);
    /// - drop the parameters of segments, also those that begin with `%3B`;
    /// - merge slashes;
    /// - resolve dot segments.
    ///
    /// Every step makes a path shorter, so the search ends. Control characters, bytes that may not
    /// be raw, and `..` above the root are refused in all readings.
    pub fn as_received(path: &'a str) -> Result<Self, Ambiguous> {
        if path == "*" {
            return Ok(Self { path: Cow::Borrowed(path), others: Vec::new(), decoded: Vec::new() });
        }
        if !path.starts_with('/') {
            return Err(Ambiguous::NotAbsolute);
        }
        let mut readings = Self { path: upper(path)?, others: Vec::new(), decoded: Vec::new() };
        let (mut next, mut bytes) = (0, 0);
        loop {
            let Some(reading) = readings.iter().nth(next) else { return Ok(readings) };
            let made: Result<Vec<_>, _> = STEPS.iter().map(|step| step(reading)).collect();
            for made in made?.into_iter().flatten() {
                let made = upper(&made)?.into_owned();
                if readings.iter().any(|reading| reading == made) {
                    continue;
                }
                bytes += made.len();
                readings.others.push(made);
                if readings.others.len() >= MAX_READINGS || bytes > MAX_READINGS_BYTES {
                    return Err(Ambiguous::TooManyReadings);
                }
            }
            next += 1;
        }
    }

    /// All readings.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        core::iter::once(&*self.path).chain(self.others.iter().map(String::as_str))
    }
}

/// Whether a byte may stand in a segment without an escape (`pchar` of RFC 3986).
fn in_segment(byte: u8) -> bool {
    unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte)
}

/// The same path with its escapes in upper case. Refuses characters that no path may have.
fn upper(path: &str) -> Result<Cow<'_, str>, Ambiguous> {
    decode(path, |_| Ok(false))
}

fn spell(path: &str, decodes: fn(u8) -> bool) -> Result<Option<String>, Ambiguous> {
    match decode(path, |value| Ok(decodes(value)))? {
        Cow::Owned(path) => Ok(Some(path)),
        Cow::Borrowed(_) => Ok(None),
    }
}

/// The byte that an escape at the beginning of a text stands for.
fn escape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn is_escape_of(byte: u8) -> impl Fn(&[u8]) -> Option<(char, usize)> {
    move |text| (escape(text) == Some(byte)).then_some(('/', 3))
}

/// `%25` before two hexadecimal digits is a percent sign, and begins an escape.
fn decode_twice(path: &str) -> Option<String> {
    replace(path, |text| {
        let [b'%', _, _, high, low, ..] = text else { return None };
        (escape(text) == Some(b'%') && high.is_ascii_hexdigit() && low.is_ascii_hexdigit()).then_some(('%', 3))
    })
}

/// Replaces each part of a path by a character. `part` finds a part at the beginning of a text, and
/// returns the character and the part's length in bytes.
fn replace(path: &str, part: impl Fn(&[u8]) -> Option<(char, usize)>) -> Option<String> {
    let mut out: Option<String> = None;
    let mut index = 0;
    while let Some(text) = path.as_bytes().get(index..).filter(|text| !text.is_empty()) {
        match part(text) {
            Some((character, length)) => {
                out.get_or_insert_with(|| String::from(path.get(..index).unwrap_or_default())).push(character);
                index += length;
            }
            None => {
                out.iter_mut().for_each(|out| out.push(char::from(text[0])));
                index += 1;
            }
        }
    }
    out
}

fn cut_parameters(path: &str, encoded: bool) -> Option<String> {
    let begins = |text: &[u8]| text.first() == Some(&b';') || (encoded && escape(text) == Some(b';'));
    let mut plain = String::with_capacity(path.len());
    let mut cuts = false;
    for (index, byte) in path.bytes().enumerate() {
        cuts = byte != b'/' && (cuts || begins(path.as_bytes().get(index..).unwrap_or_default()));
        if !cuts {
            plain.push(char::from(byte));
        }
    }
    (plain.len() < path.len()).then_some(plain)
}

fn merge_slashes(path: &str) -> Option<String> {
    if !path.contains("//") {
        return None;
    }
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    Some(merged)
}

/// As RFC 3986, 5.2.4, defines it: an empty segment is a segment.
fn resolve_dots(path: &str) -> Result<Option<String>, Ambiguous> {
    let inner = path.strip_prefix('/').unwrap_or(path);
    if !inner.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Ok(None);
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in inner.split('/') {
        match segment {
            "." => {}
            ".." => drop(kept.pop().ok_or(Ambiguous::AboveRoot)?),
            segment => kept.push(segment),
        }
    }
    if matches!(inner.rsplit('/').next(), Some("." | "..")) {
        kept.push("");
    }
    let mut out = String::with_capacity(path.len());
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    if kept.is_empty() {
        out.push('/');
    }
    Ok(Some(out))
}

#[cfg(test)]
mod tests;
