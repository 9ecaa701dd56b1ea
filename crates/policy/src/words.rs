//! Rules in words, for clauses: names and configured values, and of the request only method, host
//! and path, cut and escaped.

use crate::spec::{Cidr, PathMatch, PrincipalMatch, Segment, StringMatch};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A value of the request, quoted, escaped and cut.
pub(crate) fn shown(value: &str) -> String {
    const MOST: usize = 120;
    let mut text = String::from("\"");
    for (count, character) in value.chars().enumerate() {
        if count == MOST {
            text.push('…');
            break;
        }
        text.extend(character.escape_debug());
    }
    text.push('"');
    text
}

/// Shortens a text to so many bytes, and marks the cut.
pub(crate) fn cut(text: &mut String, most: usize) {
    const CUT: char = '…';
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub(CUT.len_utf8())));
        text.push(CUT);
    }
}

/// `[a, b]`, cut.
pub(crate) fn list<T>(items: &[T], one: impl Fn(&T) -> String) -> String {
    const MOST: usize = 8;
    let mut shown: Vec<String> = items.iter().take(MOST).map(one).collect();
    if let Some(more) = items.len().checked_sub(MOST).filter(|more| *more > 0) {
        shown.push(format!("and {more} more"));
    }
    format!("[{}]", shown.join(", "))
}

/// As it is written in documents.
pub(crate) fn text(matcher: &StringMatch) -> String {
    match matcher {
        StringMatch::Exact(text) => format!("\"{text}\""),
        StringMatch::Prefix(text) => format!("\"{text}*\""),
        StringMatch::Suffix(text) => format!("\"*{text}\""),
        StringMatch::Present => "\"*\"".to_string(),
        StringMatch::Any => "present".to_string(),
        StringMatch::Regex(regex) => format!("{{regex: \"{}\"}}", regex.pattern()),
    }
}

/// As it is written in documents: `issuer/subject` where only one issuer is meant, otherwise both by name.
pub(crate) fn principal(matcher: &PrincipalMatch) -> String {
    match (&matcher.issuer, &matcher.subject) {
        (StringMatch::Present, StringMatch::Present) => "\"*\"".to_string(),
        (StringMatch::Exact(issuer), StringMatch::Exact(subject)) => format!("\"{issuer}/{subject}\""),
        (StringMatch::Exact(issuer), StringMatch::Prefix(subject)) => format!("\"{issuer}/{subject}*\""),
        (StringMatch::Exact(issuer), StringMatch::Present) => format!("\"{issuer}/*\""),
        (issuer, subject) => format!("{{issuer: {}, subject: {}}}", text(issuer), text(subject)),
    }
}

/// As it is written in documents.
pub(crate) fn path(matcher: &PathMatch) -> String {
    match matcher {
        PathMatch::Text(matcher) => text(matcher),
        PathMatch::WithQuery(regex) => format!("{{regex: \"{}\", withQuery: true}}", regex.pattern()),
        PathMatch::Template(segments) => {
            let part = |segment: &Segment| match segment {
                Segment::Literal(text) => text.clone(),
                Segment::One(name) => format!("{{{name}}}"),
                Segment::Rest => "{**}".to_string(),
            };
            let parts: Vec<String> = segments.iter().map(part).collect();
            format!("\"/{}\"", parts.join("/"))
        }
    }
}

/// `10.0.0.0/8`
pub(crate) fn cidr(block: &Cidr) -> String {
    format!("{}/{}", block.address, block.prefix)
}

#[cfg(test)]
mod tests {
    use super::{list, shown};
    use alloc::string::ToString;

    #[test]
    fn values_are_cut_and_escaped() {
        assert_eq!(shown("/a\"\n"), r#""/a\"\n""#);
        assert_eq!(shown(&"a".repeat(500)).chars().count(), 123);
        assert_eq!(list(&[1, 2], ToString::to_string), "[1, 2]");
        let many = [0; 10];
        assert_eq!(list(&many, ToString::to_string), "[0, 0, 0, 0, 0, 0, 0, 0, and 2 more]");
    }
}
