//! Normal form of a path, so that rules match the same path that the node forwards (RFC 3986,
//! 6.2.2).

mod readings;

pub use readings::{MAX_READINGS, MAX_READINGS_BYTES, Readings};

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// Why a path is refused: different servers read it differently, so no rule about it could be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguous {
    /// Does not begin with `/` (and is not the `*` of OPTIONS).
    NotAbsolute,
    /// `%` without two hexadecimal digits.
    BadEscape,
    /// `%2F` or `%5C`: some servers decode it to a separator.
    EncodedSeparator,
    /// A backslash: some servers take it for a separator.
    Backslash,
    /// A control character, raw or encoded (`%00`).
    Control,
    /// A byte outside of ASCII, or a character that RFC 3986 does not allow raw.
    Raw,
    /// `..` leads above the root.
    AboveRoot,
    /// A dot segment with path parameters (`/..;/`): some servers drop the parameters and then resolve it.
    DotParameters,
    /// A segment of nothing but path parameters (`/;x/`): some servers drop them, and then the segment.
    OnlyParameters,
    /// `#`: fragments are not sent in requests.
    Fragment,
    /// In a query that rules look at, `%` without two hexadecimal digits.
    BadQueryEscape,
    /// In a query that rules look at, an encoded null byte.
    QueryNull,
    /// `*` with another method than OPTIONS (RFC 9110, 7.1).
    Asterisk,
    /// It would be forwarded as it came, and servers could read it in more ways than are judged.
    TooManyReadings,
    /// It would be forwarded as it came, and another reading of it is exposed by another function
    /// or by none.
    AnotherReading,
}

impl Ambiguous {
    /// The reason in words, for a clause.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotAbsolute => "the path does not begin with `/`",
            Self::BadEscape => "the path has a `%` that is not followed by two hexadecimal digits",
            Self::EncodedSeparator => "the path has an encoded separator (`%2F` or `%5C`)",
            Self::Backslash => "the path has a backslash",
            Self::Control => "the path has a control character",
            Self::Raw => "the path has a character that must be percent-encoded",
            Self::AboveRoot => "the path has a `..` that leads above the root",
            Self::DotParameters => "the path has a dot segment with parameters (`..;`)",
            Self::OnlyParameters => "the path has a segment of parameters only (`/;`)",
            Self::Fragment => "the path has a fragment (`#`)",
            Self::BadQueryEscape => "the query has a `%` that is not followed by two hexadecimal digits",
            Self::QueryNull => "the query has an encoded null byte (`%00`)",
            Self::Asterisk => "only OPTIONS can ask for `*`",
            Self::TooManyReadings => "the path can be read in too many ways",
            Self::AnotherReading => "the path leads elsewhere if it is read in another way",
        }
    }
}

/// Splits a request target into path and query (without `?`).
pub fn split(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

/// Normalises a path (no query): escapes of unreserved characters are decoded, other escapes are upper case, dot segments are
/// resolved, empty segments dropped. Borrowed when it was normal already.
pub fn normalise(path: &str) -> Result<Cow<'_, str>, Ambiguous> {
    if path == "*" {
        return Ok(Cow::Borrowed(path));
    }
    if !path.starts_with('/') {
        return Err(Ambiguous::NotAbsolute);
    }
    let decoded = decode(path, |value| match value {
        b'/' | b'\\' => Err(Ambiguous::EncodedSeparator),
        value => Ok(unreserved(value)),
    })?;
    resolve(decoded)
}

/// Checks a query: it is passed on unchanged, but must not be mistaken for another part of the
/// target.
pub fn check_query(query: &str) -> Result<(), Ambiguous> {
    match query.bytes().find(|byte| matches!(byte, b'#' | 0..=0x20 | 0x7f)) {
        Some(b'#') => Err(Ambiguous::Fragment),
        Some(_) => Err(Ambiguous::Control),
        None => Ok(()),
    }
}

/// A normalised path as seen by a server that drops the parameters of segments (`;x`); `None` if
/// there are none. A server that decodes first sees a `;` in `%3B` too.
pub fn without_parameters(path: &str) -> Option<String> {
    if !path.contains(';') && !path.contains("%3B") {
        return None;
    }
    let mut plain = String::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 {
            plain.push('/');
        }
        plain.push_str(name_of(segment));
    }
    Some(plain)
}

/// The part of a segment before its parameters. Escapes are upper case by now.
fn name_of(segment: &str) -> &str {
    let begins = |(index, byte): &(usize, u8)| {
        *byte == b';' || (*byte == b'%' && segment.get(*index..).is_some_and(|rest| rest.starts_with("%3B")))
    };
    match segment.bytes().enumerate().find(begins) {
        Some((index, _)) => segment.get(..index).unwrap_or_default(),
        None => segment,
    }
}

/// `-`, `.`, `_`, `~`, letters and digits mean the same encoded or not.
fn unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Decodes the escapes for which `decodes` is true, and writes others in upper case. Refuses
/// characters that no path may have.
fn decode(path: &str, decodes: impl Fn(u8) -> Result<bool, Ambiguous>) -> Result<Cow<'_, str>, Ambiguous> {
    let bytes = path.as_bytes();
    let mut out: Option<String> = None;
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        match byte {
            b'%' => {
                let digit = |offset: usize| bytes.get(index + offset).and_then(|b| char::from(*b).to_digit(16));
                let (Some(high), Some(low)) = (digit(1), digit(2)) else { return Err(Ambiguous::BadEscape) };
                let value = u8::try_from(high * 16 + low).unwrap_or_default();
                if value.is_ascii_control() {
                    return Err(Ambiguous::Control);
                }
                let is_decoded = decodes(value)?;
                let upper = |b: u8| b.is_ascii_digit() || b.is_ascii_uppercase();
                let normal = !is_decoded && upper(bytes[index + 1]) && upper(bytes[index + 2]);
                if !normal && out.is_none() {
                    out = Some(String::from(&path[..index]));
                }
                if let Some(out) = &mut out {
                    if is_decoded {
                        out.push(char::from(value));
                    } else {
                        out.push('%');
                        out.push(char::from(bytes[index + 1].to_ascii_uppercase()));
                        out.push(char::from(bytes[index + 2].to_ascii_uppercase()));
                    }
                }
                index += 3;
            }
            b'\\' => return Err(Ambiguous::Backslash),
            b'#' => return Err(Ambiguous::Fragment),
            0..=0x1f | 0x7f => return Err(Ambiguous::Control),
            b' ' | b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80.. => return Err(Ambiguous::Raw),
            _ => {
                if let Some(out) = &mut out {
                    out.push(char::from(byte));
                }
                index += 1;
            }
        }
    }
    Ok(out.map_or(Cow::Borrowed(path), Cow::Owned))
}

fn resolve(path: Cow<'_, str>) -> Result<Cow<'_, str>, Ambiguous> {
    let inner = &path[1..];
    let dots = |segment: &str| segment == "." || segment == "..";
    let mut plain = true;
    let mut segments = inner.split('/').peekable();
    while let Some(segment) = segments.next() {
        let name = name_of(segment);
        match name {
            "." | ".." if name.len() < segment.len() => return Err(Ambiguous::DotParameters),
            "" if name.len() < segment.len() => return Err(Ambiguous::OnlyParameters),
            _ => {}
        }
        plain &= !dots(segment) && (!segment.is_empty() || segments.peek().is_none());
    }
    if plain {
        return Ok(path);
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in inner.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop().ok_or(Ambiguous::AboveRoot)?;
            }
            segment => kept.push(segment),
        }
    }
    // `/a/`, `/a/.` and `/a/b/..` name the folder, not the file.
    let folder = matches!(inner.rsplit('/').next(), Some("" | "." | ".."));
    let mut out = String::with_capacity(path.len());
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    if folder || kept.is_empty() {
        out.push('/');
    }
    Ok(Cow::Owned(out))
}

#[cfg(test)]
mod tests;
