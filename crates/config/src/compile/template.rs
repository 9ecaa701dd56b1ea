//! Paths in conditions: text matches and templates. They are compared with normalised paths, so
//! they must be normalised themselves, or they would never match. Only functions that get paths as
//! received see encoded separators ([`encoded_separator`]).

use super::forms::Form;
use super::{regex, text};
use crate::document::TextMatch;
use crate::problem::Scope;
use leno_policy::path::{Ambiguous, normalise};
use leno_policy::spec::{Matches, PathMatch, Segment, StringMatch};

/// `/orders`, `/static/*`, `*.css`, `*`, `/orders/{id}`, `/files/{**}`, or a regular expression.
pub(crate) fn path(scope: &Scope<'_>, matched: &TextMatch) -> Option<PathMatch> {
    match matched {
        TextMatch::Text(text) => written(scope, text),
        TextMatch::Regex { regex, with_query } => {
            let place = scope.field("regex");
            let form = if *with_query { Form::PathWithQuery } else { Form::Path };
            let compiled = Box::new(regex::regex(&place, regex, form)?);
            Some(if *with_query {
                PathMatch::WithQuery(compiled)
            } else {
                PathMatch::Text(StringMatch::Regex(compiled))
            })
        }
    }
}

fn written(scope: &Scope<'_>, text: &str) -> Option<PathMatch> {
    if let Some((message, fix)) = foreign(text) {
        scope.problem(format!("`{}` {message}", text.escape_debug()), fix);
        return None;
    }
    if text.contains(['{', '}']) {
        return template(scope, text).map(PathMatch::Template);
    }
    let matched = text::string(scope, text)?;
    let (body, from_start): (&String, bool) = match &matched {
        StringMatch::Present | StringMatch::Any | StringMatch::Regex(_) => return Some(PathMatch::Text(matched)),
        StringMatch::Suffix(body) => (body, false),
        StringMatch::Exact(body) | StringMatch::Prefix(body) => (body, true),
    };
    if from_start && !body.starts_with('/') {
        not_absolute(scope, text);
        return None;
    }
    // The open part is filled in, so that `/a/.*` is not mistaken for a dot segment.
    let sample = match &matched {
        StringMatch::Prefix(_) => format!("{body}x"),
        StringMatch::Suffix(_) if !body.starts_with('/') => format!("/x{body}"),
        _ => body.clone(),
    };
    is_normal(scope, text, &without_separators(&sample)).then_some(PathMatch::Text(matched))
}

fn not_absolute(scope: &Scope<'_>, text: &str) {
    // Of an address, the part after the host.
    let path = text.split_once("://").map_or(text, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    scope.problem(format!("the path `{}` does not begin with `/`", text.escape_debug()), format!("write /{path}"));
}

/// Patterns in the syntax of other projects, which would be compared letter by letter here and
/// never match.
fn foreign(text: &str) -> Option<(&'static str, String)> {
    let regular =
        text.contains(['^', '[', ']', '|', '\\']) || [".*", ".+", "(?"].iter().any(|part| text.contains(part));
    if regular || (text.len() > 1 && text.ends_with('$')) {
        let fix = "write {regex: \"…\"} for one; paths are texts with `*` at one end, or templates: `/orders/*`, `*.css`, `/orders/{id}`, `/files/{**}`";
        return Some(("looks like a regular expression", fix.to_owned()));
    }
    if !text.starts_with('/') || text.contains('{') {
        return None;
    }
    let with = |segment: &dyn Fn(&str) -> String| text.split('/').map(segment).collect::<Vec<_>>().join("/");
    if text.split('/').any(|segment| segment.starts_with(':')) {
        let mended = with(&|part| part.strip_prefix(':').map_or(part.to_owned(), |name| format!("{{{name}}}")));
        return Some(("has a variable in a foreign form", format!("write {mended}")));
    }
    let inner = text.strip_suffix('*').unwrap_or(text).contains('*');
    if inner && text.split('/').all(|part| !part.contains('*') || matches!(part, "*" | "**")) {
        let mended = with(&|part| if part.contains('*') { format!("{{{part}}}") } else { part.to_owned() });
        return Some(("has a `*` that is not its first or last character", format!("write {mended}")));
    }
    None
}

/// A prefix of whole segments, as the gateway uses it; normalised, without a slash at the end.
pub(super) fn prefix(scope: &Scope<'_>, text: &str) -> Option<String> {
    // A pattern's beginning: everything below it is included.
    let (begin, pattern) = text.split_once(['*', '{']).map_or((text, false), |(begin, _)| (begin, true));
    let begin = begin.trim_matches('/');
    if !text.starts_with('/') {
        let message = format!("the path `{}` does not begin with `/`", text.escape_debug());
        scope.problem(message, format!("write /{begin}"));
        return None;
    }
    if pattern {
        let message = format!("`{}` is a pattern, and everything below a path is included", text.escape_debug());
        scope.problem(message, format!("write /{begin}"));
        return None;
    }
    is_normal(scope, text, text)
        .then(|| if text == "/" { text.to_owned() } else { text.trim_end_matches('/').to_owned() })
}

fn template(scope: &Scope<'_>, text: &str) -> Option<Vec<Segment>> {
    let Some(rest) = text.strip_prefix('/') else {
        not_absolute(scope, text);
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
            Some(name) if name == "*" || is_variable(name) => segments.push(Segment::One(name.to_owned())),
            None if !part.contains(['{', '}', '*']) => segments.push(Segment::Literal(part.to_owned())),
            _ => {
                let fix = "a segment is a text, `{name}`, `{*}` or, at the end, `{**}`";
                scope.problem(format!("`{}` has a bad segment `{}`", text.escape_debug(), part.escape_debug()), fix);
                return None;
            }
        }
    }
    // `x` stands for the variables, which are whole segments.
    let literal: String = segments
        .iter()
        .map(|segment| if let Segment::Literal(text) = segment { format!("/{text}") } else { "/x".to_owned() })
        .collect();
    is_normal(scope, text, &without_separators(&literal)).then_some(segments)
}

/// A path without encoded separators, for checks of the rest.
fn without_separators(path: &str) -> String {
    SEPARATORS.iter().fold(path.to_owned(), |path, separator| path.replace(separator, "%20"))
}

/// Encoded separators, which only a path as received may have.
const SEPARATORS: [&str; 2] = ["%2F", "%5C"];

/// One of these texts that only a path as received can match.
pub(super) fn encoded_separator(paths: &Matches<PathMatch>) -> Option<&str> {
    let texts = paths.any.iter().chain(&paths.none).flat_map(|path| match path {
        PathMatch::Text(StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text)) => {
            vec![text.as_str()]
        }
        PathMatch::Template(segments) => segments
            .iter()
            .filter_map(|segment| if let Segment::Literal(text) = segment { Some(text.as_str()) } else { None })
            .collect(),
        PathMatch::Text(_) | PathMatch::WithQuery(_) => Vec::new(),
    });
    texts.into_iter().find(|text| SEPARATORS.iter().any(|separator| text.contains(separator)))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Reports text that is not normalised: `sample` is the text, or a path that it stands for.
fn is_normal(scope: &Scope<'_>, text: &str, sample: &str) -> bool {
    let shown = text.escape_debug();
    if sample.contains(['?', '#']) {
        scope.problem(
            format!("the path `{shown}` has a query or fragment"),
            "paths are compared without them; leave it out",
        );
        return false;
    }
    let fix = || mended(text).map(|mended| format!("write {mended}")).unwrap_or_default();
    match normalise(sample) {
        Ok(normal) if normal == sample => return true,
        Ok(_) => scope.problem(format!("the path `{shown}` is not normalised and can never match"), fix()),
        Err(Ambiguous::Raw) => scope.problem(format!("in `{shown}`: {}", Ambiguous::Raw.words()), fix()),
        Err(Ambiguous::EncodedSeparator) if !SEPARATORS.iter().any(|separator| sample.contains(separator)) => {
            let fix = "write %2F and %5C in upper case, for functions with `paths: {send: asReceived}`; requests to others are refused";
            scope.problem(format!("in `{shown}`: {}", Ambiguous::EncodedSeparator.words()), fix);
        }
        Err(reason) => {
            let fix = "requests with such paths are refused; a percent sign itself is written %25";
            scope.problem(format!("in `{shown}`: {}", reason.words()), fix);
        }
    }
    false
}

/// The corrected text, if there is one.
pub(super) fn mended(text: &str) -> Option<String> {
    // Variables are not valid in a path; while the rest is normalised, a text that occurs in no
    // path replaces them.
    let stand_in = |index: usize| format!("~~{index}~~");
    let mut path = String::new();
    for (index, part) in text.trim_start_matches('/').split('/').enumerate() {
        path.push('/');
        if part.starts_with('{') { path.push_str(&stand_in(index)) } else { path.push_str(&escaped(part)) }
    }
    let mut path = normalise(&path).ok()?.into_owned();
    for (index, part) in text.trim_start_matches('/').split('/').enumerate() {
        path = path.replace(&stand_in(index), part);
    }
    Some(if text.starts_with('/') { path } else { path.trim_start_matches('/').to_owned() })
}

/// Percent-encodes characters that may not be raw in a path.
fn escaped(part: &str) -> String {
    let mut escaped = String::new();
    for byte in part.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>^`{|}".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
