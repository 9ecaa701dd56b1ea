//! Paths in conditions: text matches and templates. They are compared with normalised paths, so they must be normalised themselves,
//! or they would never match.

use super::text;
use crate::problem::Scope;
use leno_policy::spec::{PathMatch, Segment, StringMatch};

/// `/orders`, `/static/*`, `*.css`, `*`, `/orders/{id}`, `/files/{**}`.
pub(super) fn path(scope: &Scope<'_>, text: &str) -> Option<PathMatch> {
    if text.contains(['{', '}']) {
        return template(scope, text).map(PathMatch::Template);
    }
    let matched = text::string(scope, text)?;
    let (body, from_start) = match &matched {
        StringMatch::Present => return Some(PathMatch::Text(matched)),
        StringMatch::Suffix(body) => (body, false),
        StringMatch::Exact(body) | StringMatch::Prefix(body) => (body, true),
    };
    if from_start && !body.starts_with('/') {
        scope.problem(format!("the path `{}` does not begin with `/`", text.escape_debug()), format!("write /{text}"));
        return None;
    }
    // Only what is complete can be checked for dot segments: `/a/.*` is `/a/` and whatever begins with a dot.
    let whole = matches!(matched, StringMatch::Exact(_));
    is_normal(scope, text, body, whole).then_some(PathMatch::Text(matched))
}

/// A prefix by whole segments, as the gateway uses it; normalised, without a slash at the end.
pub(super) fn prefix(scope: &Scope<'_>, text: &str) -> Option<String> {
    if !text.starts_with('/') {
        scope.problem(format!("the path `{}` does not begin with `/`", text.escape_debug()), format!("write /{text}"));
        return None;
    }
    if text.contains(['*', '{']) {
        scope.problem(
            format!("`{}` is a pattern", text.escape_debug()),
            "write the path up to there; everything below it is included",
        );
        return None;
    }
    is_normal(scope, text, text, true)
        .then(|| if text == "/" { text.to_owned() } else { text.trim_end_matches('/').to_owned() })
}

fn template(scope: &Scope<'_>, text: &str) -> Option<Vec<Segment>> {
    let Some(rest) = text.strip_prefix('/') else {
        scope.problem(format!("the path `{}` does not begin with `/`", text.escape_debug()), format!("write /{text}"));
        return None;
    };
    let mut segments = Vec::new();
    let mut parts = rest.split('/').peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some("**") if last => segments.push(Segment::Rest),
            Some("**") => {
                scope.problem(
                    format!("`{}` has `{{**}}` before its end", text.escape_debug()),
                    "it can only be the last segment",
                );
                return None;
            }
            Some(name) if name == "*" || is_variable(name) => segments.push(Segment::One),
            None if !part.contains(['{', '}', '*']) => segments.push(Segment::Literal(part.to_owned())),
            _ => {
                let fix = "a segment is a text, `{name}`, `{*}` or, at the end, `{**}`";
                scope.problem(format!("`{}` has a bad segment `{}`", text.escape_debug(), part.escape_debug()), fix);
                return None;
            }
        }
    }
    // `x` stands for the variables: they are segments of their own.
    let literal: String = segments
        .iter()
        .map(|segment| if let Segment::Literal(text) = segment { format!("/{text}") } else { "/x".to_owned() })
        .collect();
    is_normal(scope, text, &literal, true).then_some(segments)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Reports what is not normalised.
fn is_normal(scope: &Scope<'_>, text: &str, literal: &str, whole: bool) -> bool {
    let shown = text.escape_debug();
    if literal.contains(['?', '#']) {
        scope.problem(
            format!("the path `{shown}` has a query or fragment"),
            "paths are compared without them; leave it out",
        );
        return false;
    }
    if literal.contains("//") {
        scope.problem(format!("the path `{shown}` has an empty segment and can never match"), "write one `/`");
        return false;
    }
    if whole && literal.split('/').any(|segment| matches!(segment, "." | "..")) {
        scope.problem(
            format!("the path `{shown}` has a dot segment and can never match"),
            "write the path that it stands for",
        );
        return false;
    }
    match encoded(literal) {
        Err(reason) => {
            scope.problem(format!("the path `{shown}` {reason}"), "a percent sign itself is written %25");
            false
        }
        Ok(normal) if normal != literal => {
            scope.problem(
                format!("the path `{shown}` is not normalised and can never match"),
                format!("write {}", mended(text)),
            );
            false
        }
        Ok(_) => true,
    }
}

/// The text as it should be written.
fn mended(text: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { part.to_owned() } else { encoded(part).unwrap_or_default() };
    text.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Percent-encoding as it is in normalised paths (RFC 3986, 6.2.2): upper case, and only where it is needed.
fn encoded(path: &str) -> Result<String, &'static str> {
    let mut bytes = path.bytes();
    let mut normal = String::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        let (byte, escaped) = match byte {
            b'%' => {
                let digits =
                    [bytes.next(), bytes.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
                let [Some(high), Some(low)] = digits else { return Err("has a `%` without two hexadecimal digits") };
                (u8::try_from(high * 16 + low).unwrap_or_default(), true)
            }
            byte => (byte, false),
        };
        if escaped && (byte < 0x20 || matches!(byte, b'/' | b'\\' | 0x7f)) {
            return Err("has an encoded slash, backslash or control character; such requests are refused");
        }
        let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let plain = unreserved || (!escaped && b"/!$&'()*+,;=:@".contains(&byte));
        if plain {
            normal.push(char::from(byte));
        } else {
            normal.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(normal)
}
