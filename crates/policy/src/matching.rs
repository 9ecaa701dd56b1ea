//! How one value meets one matcher.

use crate::spec::{Matches, PathMatch, PrincipalMatch, Segment, StringMatch};

/// Whether a text matches.
pub fn text(matcher: &StringMatch, value: &str) -> bool {
    match matcher {
        StringMatch::Exact(exact) => value == exact,
        StringMatch::Prefix(prefix) => value.starts_with(prefix.as_str()),
        StringMatch::Suffix(suffix) => value.ends_with(suffix.as_str()),
        StringMatch::Present => !value.is_empty(),
        StringMatch::Any => true,
        StringMatch::Regex(regex) => regex.matches(&[value.as_bytes()]),
    }
}

/// The same for bytes, which may not be text.
pub fn bytes(matcher: &StringMatch, value: &[u8]) -> bool {
    match matcher {
        StringMatch::Exact(exact) => value == exact.as_bytes(),
        StringMatch::Prefix(prefix) => value.starts_with(prefix.as_bytes()),
        StringMatch::Suffix(suffix) => value.ends_with(suffix.as_bytes()),
        StringMatch::Present => !value.is_empty(),
        StringMatch::Any => true,
        StringMatch::Regex(regex) => regex.matches(&[value]),
    }
}

/// Whether a normalised path matches. `query`: the query as sent, without the `?`, if there was
/// one.
pub fn path(matcher: &PathMatch, value: &str, query: Option<&str>) -> bool {
    match matcher {
        PathMatch::WithQuery(regex) => match query {
            Some(query) => regex.matches(&[value.as_bytes(), b"?", query.as_bytes()]),
            None => regex.matches(&[value.as_bytes()]),
        },
        PathMatch::Text(matcher) => text(matcher, value),
        PathMatch::Template(segments) => template(segments, value),
    }
}

fn template(segments: &[Segment], path: &str) -> bool {
    let Some(inner) = path.strip_prefix('/') else { return false };
    let mut parts = inner.split('/');
    for segment in segments {
        let matched = match segment {
            // The slash before it counts: other meshes match `/a/` and `/a/b` with `/a/{**}`, and not `/a`.
            Segment::Rest => return parts.next().is_some(),
            Segment::One(_) => parts.next().is_some_and(|part| !part.is_empty()),
            Segment::Literal(literal) => parts.next() == Some(literal),
        };
        if !matched {
            return false;
        }
    }
    parts.next().is_none()
}

/// Whether issuer and subject match, each by itself.
pub fn principal(matcher: &PrincipalMatch, (issuer, subject): (&str, &str)) -> bool {
    text(&matcher.issuer, issuer) && text(&matcher.subject, subject)
}

/// Compares a value that may be absent with a field's positive and negative matchers. An absent
/// value meets no matcher: positive ones miss, negative ones hold.
pub fn compare<T, V: Copy>(matches: &Matches<T>, value: Option<V>, meets: impl Fn(&T, V) -> bool) -> Clause {
    let meets_one = |list: &[T]| value.is_some_and(|value| list.iter().any(|matcher| meets(matcher, value)));
    decide(matches, meets_one)
}

/// The same for a field that decides whether it meets one of several matchers.
pub fn decide<T>(matches: &Matches<T>, meets_one: impl Fn(&[T]) -> bool) -> Clause {
    if matches.is_empty() {
        Clause::Unset
    } else if !matches.any.is_empty() && !meets_one(&matches.any) {
        Clause::Missed
    } else if !matches.none.is_empty() && meets_one(&matches.none) {
        Clause::Excluded
    } else {
        Clause::Holds
    }
}

/// The result of one field of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clause {
    /// The rule does not set it.
    Unset,
    /// It holds.
    Holds,
    /// It has positive matchers, and none was met.
    Missed,
    /// A negative matcher was met.
    Excluded,
}

impl Clause {
    /// Whether it keeps its rule from matching.
    pub fn fails(self) -> bool {
        matches!(self, Self::Missed | Self::Excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::{Clause, bytes, compare, template, text};
    use crate::spec::{Cidr, Matches, Segment, StringMatch};
    use alloc::string::String;

    fn inside(block: &str, prefix: u8, address: &str) -> bool {
        Cidr { address: block.parse().unwrap(), prefix }.contains(address.parse().unwrap())
    }

    #[test]
    fn blocks() {
        assert!(inside("10.0.0.0", 8, "10.255.1.2"));
        assert!(!inside("10.0.0.0", 8, "11.0.0.1"));
        assert!(inside("0.0.0.0", 0, "11.0.0.1"));
        assert!(!inside("0.0.0.0", 0, "::1"));
        assert!(inside("::", 0, "fe80::1"));
        assert!(inside("10.0.0.1", 32, "::ffff:10.0.0.1"));
        assert!(inside("::ffff:10.0.0.0", 104, "10.1.2.3"));
        assert!(!inside("10.0.0.1", 32, "10.0.0.2"));
        assert!(inside("2001:db8::", 32, "2001:db8:1::1"));
        assert!(!inside("2001:db8::", 32, "2001:db9::"));
        assert!(inside("::1", 128, "::1"));
        assert!(!inside("::", 0, "::ffff:10.0.0.1"), "a mapped address is an IPv4 address");
        assert!(inside("10.0.0.0", 255, "10.0.0.0"), "too long a prefix is the longest");
        assert!(!inside("10.0.0.0", 255, "10.0.0.1"));
    }

    #[test]
    fn templates() {
        let orders = [Segment::Literal(String::from("orders")), Segment::One(String::from("id"))];
        assert!(template(&orders, "/orders/7"));
        for path in ["/orders", "/orders/", "/orders/7/x", "/orders/7/", "/other/7", "/Orders/7", "*", ""] {
            assert!(!template(&orders, path), "{path}");
        }
        let files = [Segment::Literal(String::from("files")), Segment::Rest];
        for path in ["/files/", "/files/a", "/files/a/b"] {
            assert!(template(&files, path), "{path}");
        }
        for path in ["/files", "/file", "/filesystem/a"] {
            assert!(!template(&files, path), "{path}");
        }
        assert!(template(&[Segment::Rest], "/"));
    }

    #[test]
    fn texts() {
        let all = |value: &str| {
            let own = String::from("ab");
            [
                StringMatch::Exact(own.clone()),
                StringMatch::Prefix(own.clone()),
                StringMatch::Suffix(own),
                StringMatch::Present,
            ]
            .map(|matcher| {
                assert_eq!(text(&matcher, value), bytes(&matcher, value.as_bytes()));
                text(&matcher, value)
            })
        };
        assert_eq!(all("ab"), [true, true, true, true]);
        assert_eq!(all("abc"), [false, true, false, true]);
        assert_eq!(all("cab"), [false, false, true, true]);
        assert_eq!(all("AB"), [false, false, false, true]);
        assert_eq!(all(""), [false; 4]);
    }

    #[test]
    fn positive_and_negative() {
        let field = |any: &[u16], none: &[u16]| Matches { any: any.to_vec(), none: none.to_vec() };
        let same = |matcher: &u16, value: u16| *matcher == value;
        for (any, none, value, expected) in [
            (&[][..], &[][..], Some(1), Clause::Unset),
            (&[], &[], None, Clause::Unset),
            (&[1], &[], Some(1), Clause::Holds),
            (&[1], &[], Some(2), Clause::Missed),
            (&[1], &[], None, Clause::Missed),
            (&[], &[1], Some(1), Clause::Excluded),
            (&[], &[1], Some(2), Clause::Holds),
            (&[], &[1], None, Clause::Holds),
            (&[1, 2], &[2], Some(2), Clause::Excluded),
            (&[1, 2], &[2], Some(1), Clause::Holds),
            (&[1, 2], &[2], None, Clause::Missed),
        ] {
            assert_eq!(compare(&field(any, none), value, same), expected, "{any:?} {none:?} {value:?}");
        }
    }
}
