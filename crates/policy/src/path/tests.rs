use super::{Ambiguous, check_query, normalise, split, without_parameters};
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use proptest::prelude::*;

#[test]
fn normal_forms() {
    for (path, normal) in [
        ("/", "/"),
        ("*", "*"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("//", "/"),
        ("//a///b//", "/a/b/"),
        ("/.", "/"),
        ("/./", "/"),
        ("/a/.", "/a/"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/a/b/../", "/a/"),
        ("/a/b/../..", "/"),
        ("/a/..", "/"),
        ("/a//../b", "/b"),
        ("/%2e/a", "/a"),
        ("/a/%2E%2e/b", "/b"),
        ("/a/.%2e/b", "/b"),
        ("/%61%7e%5F%2D%30", "/a~_-0"),
        ("/%c3%bc", "/%C3%BC"),
        ("/a%20b", "/a%20b"),
        ("/a%3fb%23c", "/a%3Fb%23c"),
        ("/%252e%252e/", "/%252e%252e/"),
        ("/...", "/..."),
        ("/..a/.b", "/..a/.b"),
        ("/a;x=1/b", "/a;x=1/b"),
        ("/a%3b", "/a%3B"),
        ("/!$&'()*+,=:@", "/!$&'()*+,=:@"),
    ] {
        assert_eq!(normalise(path).as_deref(), Ok(normal), "{path}");
    }
}

#[test]
fn a_normal_path_is_not_copied() {
    assert!(matches!(normalise("/orders/7%2C8/"), Ok(Cow::Borrowed(_))));
}

#[test]
fn ambiguous_ones() {
    for (path, reason) in [
        ("", Ambiguous::NotAbsolute),
        ("a", Ambiguous::NotAbsolute),
        ("**", Ambiguous::NotAbsolute),
        ("http://x/", Ambiguous::NotAbsolute),
        ("/%", Ambiguous::BadEscape),
        ("/%2", Ambiguous::BadEscape),
        ("/%2/", Ambiguous::BadEscape),
        ("/%zz", Ambiguous::BadEscape),
        ("/%+1", Ambiguous::BadEscape),
        ("/%u002e", Ambiguous::BadEscape),
        ("/a%2fb", Ambiguous::EncodedSeparator),
        ("/a%2Fb", Ambiguous::EncodedSeparator),
        ("/a%5cb", Ambiguous::EncodedSeparator),
        ("/a\\b", Ambiguous::Backslash),
        ("/a%00", Ambiguous::Control),
        ("/a%0d%0a", Ambiguous::Control),
        ("/a%7F", Ambiguous::Control),
        ("/a\0", Ambiguous::Control),
        ("/a\tb", Ambiguous::Control),
        ("/a b", Ambiguous::Raw),
        ("/\u{fc}", Ambiguous::Raw),
        ("/a|b", Ambiguous::Raw),
        ("/..", Ambiguous::AboveRoot),
        ("/../a", Ambiguous::AboveRoot),
        ("/a/../../b", Ambiguous::AboveRoot),
        ("/%2e%2e/a", Ambiguous::AboveRoot),
        ("/a/..;/b", Ambiguous::DotParameters),
        ("/a/..;x=1/b", Ambiguous::DotParameters),
        ("/a/.;/b", Ambiguous::DotParameters),
        ("/a/%2e%2e;/b", Ambiguous::DotParameters),
        ("/a/;/b", Ambiguous::OnlyParameters),
        ("/a/;x", Ambiguous::OnlyParameters),
        ("/a#b", Ambiguous::Fragment),
    ] {
        assert_eq!(normalise(path), Err(reason), "{path}");
    }
}

#[test]
fn parameters() {
    assert_eq!(without_parameters("/a/b"), None);
    assert_eq!(without_parameters("/a;x=1/b;y;z/").as_deref(), Some("/a/b/"));
    let normal = normalise("/a%3bx=1/b%3By;z/%2561%253B").unwrap();
    assert_eq!(without_parameters(&normal).as_deref(), Some("/a/b/%2561%253B"));
}

#[test]
fn queries() {
    assert_eq!(split("/a?b?c"), ("/a", Some("b?c")));
    assert_eq!(split("/a?"), ("/a", Some("")));
    assert_eq!(split("/a"), ("/a", None));
    for query in ["", "a=b&c=%zz", "a=/../b", "\u{fc}"] {
        assert_eq!(check_query(query), Ok(()), "{query}");
    }
    assert_eq!(check_query("a#b"), Err(Ambiguous::Fragment));
    for query in ["a b", "a\0", "a\r\n"] {
        assert_eq!(check_query(query), Err(Ambiguous::Control), "{query}");
    }
}

/// A slower way to the same result: decode escapes of unreserved characters, then remove dot
/// segments as RFC 3986, 5.2.4 does it.
fn reference(path: &str) -> String {
    let mut decoded = String::new();
    let mut rest = path;
    while let Some(character) = rest.chars().next() {
        if character == '%' {
            let value = u8::from_str_radix(&rest[1..3], 16).unwrap();
            if value.is_ascii_alphanumeric() || b"-._~".contains(&value) {
                decoded.push(char::from(value));
            } else {
                decoded.push_str(&rest[..3].to_ascii_uppercase());
            }
            rest = &rest[3..];
        } else {
            decoded.push(character);
            rest = &rest[1..];
        }
    }
    while decoded.contains("//") {
        decoded = decoded.replace("//", "/");
    }
    let (mut input, mut output) = (decoded.as_str(), Vec::new());
    while !input.is_empty() {
        if let Some(rest) = input.strip_prefix("/./") {
            input = &input[input.len() - rest.len() - 1..];
        } else if input == "/." {
            input = "/";
        } else if let Some(rest) = input.strip_prefix("/../") {
            input = &input[input.len() - rest.len() - 1..];
            output.pop();
        } else if input == "/.." {
            input = "/";
            output.pop();
        } else {
            let end = input[1..].find('/').map_or(input.len(), |index| index + 1);
            output.push(&input[..end]);
            input = &input[end..];
        }
    }
    output.concat()
}

const TRICKY: &str = r"/(/|\.|%2e|%2E|a|%61|;|%3b|%25|%20|B|~){0,12}";

proptest! {
    #[test]
    fn is_idempotent_and_resolved(path in TRICKY) {
        if let Ok(normal) = normalise(&path) {
            prop_assert_eq!(normalise(&normal), Ok(normal.clone()));
            prop_assert!(normal.starts_with('/') && !normal.contains("//"));
            prop_assert!(normal.split('/').all(|segment| segment != "." && segment != ".."));
        }
    }

    #[test]
    fn agrees_with_the_rfc(path in TRICKY) {
        if let Ok(normal) = normalise(&path) {
            prop_assert_eq!(&*normal, reference(&path));
        }
    }

    /// However the unreserved characters of a path are encoded, it is the same path.
    #[test]
    fn encoding_does_not_matter(path in r"/[a-c./~_-]{0,16}", upper in any::<bool>(), mask in any::<u32>()) {
        let encoded: String = path
            .bytes()
            .enumerate()
            .map(|(index, byte)| match (byte, mask >> index & 1) {
                (b'/', _) | (_, 0) => String::from(char::from(byte)),
                _ if upper => alloc::format!("%{byte:02X}"),
                _ => alloc::format!("%{byte:02x}"),
            })
            .collect();
        prop_assert_eq!(normalise(&encoded), normalise(&path));
    }

    #[test]
    fn never_panics(path in any::<String>()) {
        if let Ok(normal) = normalise(&path) {
            prop_assert_eq!(normalise(&normal), Ok(normal.clone()));
        }
        let _ = (split(&path), check_query(&path), without_parameters(&path));
    }
}
