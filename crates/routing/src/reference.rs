//! A slow matcher that looks at each rule: tests and fuzz targets compare [`RouteTable`] with it.
//!
//! [`RouteTable`]: crate::RouteTable

use crate::{Entry, RequestParts};
use http::header::{COOKIE, HOST};
use leno_model::{FieldMatch, HttpRouteKind, PathPattern, Precedence, ValuePattern};
use leno_policy::host::normal_authority;
use regex_automata::nfa::thompson::{self, pikevm::Cache, pikevm::PikeVM};
use regex_automata::util::syntax;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The place of the rule that a request follows.
pub fn find<T>(
    precedence: Precedence,
    entries: &[Entry<T>],
    request: &RequestParts<'_>,
    admits: impl Fn(&T) -> bool,
) -> Option<usize> {
    let matching = entries.iter().enumerate().filter(|(_, entry)| matches(entry, request) && admits(&entry.value));
    match precedence {
        Precedence::First => matching.map(|(place, _)| place).next(),
        Precedence::MostSpecific => matching.min_by_key(|(place, entry)| rank(entry, *place)).map(|(place, _)| place),
    }
}

fn rank<T>(entry: &Entry<T>, place: usize) -> impl Ord {
    let Entry { route, kind, pattern, .. } = entry;
    let path = match (&pattern.path, kind) {
        (PathPattern::Exact(_), _) => (0, 0),
        (PathPattern::Regex(text), HttpRouteKind::Http) => (1, text.len()),
        (PathPattern::Literal(text), _) => (1, text.len()),
        (PathPattern::Prefix(text), _) if !text.is_empty() => (2, text.len()),
        (PathPattern::Regex(text), HttpRouteKind::Grpc) => (3, text.len()),
        (PathPattern::Prefix(_), _) => (4, 0),
    };
    let method = u8::from(pattern.method.is_empty());
    let conditions = (Reverse(firsts(&pattern.headers, true).count()), Reverse(firsts(&pattern.query, false).count()));
    (path.0, Reverse(path.1), method, conditions, route.clone(), place)
}

fn matches<T>(entry: &Entry<T>, request: &RequestParts<'_>) -> bool {
    let pattern = &entry.pattern;
    let path = match &pattern.path {
        PathPattern::Exact(text) => request.path == text,
        PathPattern::Prefix(text) => {
            text.is_empty() || request.path == text || request.path.starts_with(&format!("{text}/"))
        }
        PathPattern::Literal(text) => request.path.starts_with(text),
        PathPattern::Regex(text) => is_match(text, request.path.as_bytes()),
    };
    path && (pattern.method.is_empty() || pattern.method == request.method.as_str())
        && firsts(&pattern.headers, true).all(|field| {
            if field.name.eq_ignore_ascii_case(HOST.as_str()) {
                let host = normal_authority(request.authority);
                return host.is_some_and(|host| is_value(&field.value, host.as_bytes()));
            }
            let values: Vec<&[u8]> =
                request.headers.get_all(&field.name).iter().map(|value| value.as_bytes()).collect();
            let separator: &[u8] = if field.name.eq_ignore_ascii_case(COOKIE.as_str()) { b"; " } else { b"," };
            !values.is_empty() && is_value(&field.value, &values.join(separator))
        })
        && firsts(&pattern.query, false).all(|field| {
            let pairs = request.query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
            let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            let found = pairs.find(|(name, _)| decode(name) == field.name.as_bytes());
            found.is_some_and(|(_, value)| is_value(&field.value, &decode(value)))
        })
}

fn firsts(fields: &[FieldMatch], folds: bool) -> impl Iterator<Item = &FieldMatch> {
    fields.iter().enumerate().filter_map(move |(place, field)| {
        let same =
            |other: &FieldMatch| other.name == field.name || (folds && other.name.eq_ignore_ascii_case(&field.name));
        (!fields[..place].iter().any(same)).then_some(field)
    })
}

fn is_value(pattern: &ValuePattern, value: &[u8]) -> bool {
    match pattern {
        ValuePattern::Exact(text) => value == text.as_bytes(),
        ValuePattern::Regex(text) => is_match(text, value),
    }
}

/// Whether a regular expression matches a whole text.
pub fn is_match(pattern: &str, text: &[u8]) -> bool {
    thread_local! {
        static MACHINES: RefCell<HashMap<String, (PikeVM, Cache)>> = RefCell::default();
    }
    MACHINES.with_borrow_mut(|machines| {
        if machines.len() > 1000 {
            machines.clear();
        }
        let (machine, cache) = machines.entry(pattern.to_owned()).or_insert_with(|| {
            let machine = PikeVM::builder()
                .syntax(syntax::Config::new().unicode(false).utf8(false))
                .thompson(thompson::Config::new().utf8(false))
                .build(&format!(r"\A(?:{pattern})\z"))
                .expect("a checked pattern");
            let cache = machine.create_cache();
            (machine, cache)
        });
        machine.is_match(cache, text)
    })
}

fn decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let escape = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escape = escape.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let escape = escape.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, escape) {
            (b'%', Some(value)) => {
                decoded.push(value);
                rest = &after[2..];
            }
            (b'+', _) => {
                decoded.push(b' ');
                rest = after;
            }
            (byte, _) => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    decoded
}
