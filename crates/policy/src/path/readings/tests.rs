use super::{MAX_READINGS, MAX_READINGS_BYTES, Readings};
use crate::path::{Ambiguous, normalise, without_parameters};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use proptest::prelude::*;

fn of(path: &str) -> Vec<String> {
    Readings::as_received(path).unwrap_or_else(|reason| panic!("{path}: {reason:?}")).iter().map(String::from).collect()
}

#[test]
fn readings_of_paths_that_programs_send() {
    for (path, readings) in [
        ("/", vec!["/"]),
        ("*", vec!["*"]),
        ("/orders/7", vec!["/orders/7"]),
        ("/a/b/", vec!["/a/b/"]),
        ("/a.b/c..d/.well-known", vec!["/a.b/c..d/.well-known"]),
        ("/caf%C3%A9/a%20b", vec!["/caf%C3%A9/a%20b"]),
        ("/caf%c3%a9", vec!["/caf%C3%A9"]),
        ("/100%25", vec!["/100%25"]),
        // npm, GitLab, RabbitMQ.
        ("/@scope%2Fname", vec!["/@scope%2Fname", "/@scope/name"]),
        ("/@scope%2fname", vec!["/@scope%2Fname", "/@scope/name"]),
        (
            "/projects/group%2Fproject/issues",
            vec!["/projects/group%2Fproject/issues", "/projects/group/project/issues"],
        ),
        ("/api/queues/%2F/name", vec!["/api/queues/%2F/name", "/api/queues///name", "/api/queues/name"]),
        // Keys of S3.
        ("/bucket/a//b.txt", vec!["/bucket/a//b.txt", "/bucket/a/b.txt"]),
        ("/bucket/a%2Bb", vec!["/bucket/a%2Bb", "/bucket/a+b"]),
        ("/bucket/a%7Eb", vec!["/bucket/a%7Eb", "/bucket/a~b"]),
        // Harbor encodes repositories twice.
        ("/repositories/a%252Fb", vec!["/repositories/a%252Fb", "/repositories/a%2Fb", "/repositories/a/b"]),
        // Dot segments, however they are written.
        ("/a/./b", vec!["/a/./b", "/a/b"]),
        ("/a/x/../b", vec!["/a/x/../b", "/a/b"]),
        ("/a/x/%2e%2E/b", vec!["/a/x/%2E%2E/b", "/a/x/../b", "/a/b"]),
        ("/a/x/..", vec!["/a/x/..", "/a/"]),
        ("/a/..", vec!["/a/..", "/"]),
        ("/a//../b", vec!["/a//../b", "/a/../b", "/a/b", "/b"]),
        // Parameters, also such as create a dot segment when they are dropped.
        ("/a;x/b", vec!["/a;x/b", "/a/b"]),
        ("/a/;x/b", vec!["/a/;x/b", "/a//b", "/a/b"]),
        ("/a/x/..;y/b", vec!["/a/x/..;y/b", "/a/x/../b", "/a/b"]),
        ("/a%5Cb", vec!["/a%5Cb", "/a/b"]),
    ] {
        assert_eq!(of(path), readings, "{path}");
    }
}

/// Readings that need several steps together.
#[test]
fn steps_meet_in_any_order() {
    for (path, reading) in [
        ("/public/%2e%2e%2fadmin", "/admin"),
        ("/public/..%2Fadmin", "/admin"),
        ("/public/..%5Cadmin", "/admin"),
        ("/public/%252e%252e%252fadmin", "/admin"),
        ("/public/..%3Bx/admin", "/admin"),
        ("/public/..;%2Fadmin", "/admin"),
        ("/public/..;%2Fadmin", "/public/../admin"),
        ("/public/a%3Bx%2Fb/c", "/public/a/b/c"),
        ("/public/a%3Bx%2Fb/c", "/public/a/c"),
        ("/public//..%2F/admin", "/admin"),
        ("/public/%2561dmin", "/public/admin"),
        ("/%61dmin;x//a%2F.%2Fb", "/admin/a/b"),
    ] {
        let readings = of(path);
        assert!(readings.iter().any(|other| other == reading), "{path}: {readings:#?}");
    }
}

#[test]
fn paths_that_stay_refused() {
    for (path, reason) in [
        ("", Ambiguous::NotAbsolute),
        ("a", Ambiguous::NotAbsolute),
        ("/%zz", Ambiguous::BadEscape),
        ("/%2", Ambiguous::BadEscape),
        ("/%u002f", Ambiguous::BadEscape),
        ("/a\\b", Ambiguous::Backslash),
        ("/a%00", Ambiguous::Control),
        ("/a%0d%0a", Ambiguous::Control),
        ("/a%2500", Ambiguous::Control),
        ("/a%252500", Ambiguous::Control),
        ("/a b", Ambiguous::Raw),
        ("/\u{fc}", Ambiguous::Raw),
        ("/a#b", Ambiguous::Fragment),
        ("/..", Ambiguous::AboveRoot),
        ("/a/../../b", Ambiguous::AboveRoot),
        ("/%2e%2e/a", Ambiguous::AboveRoot),
        ("/a/..%2f..%2fb", Ambiguous::AboveRoot),
        ("/a/..%5c../b", Ambiguous::AboveRoot),
        ("/..;/a", Ambiguous::AboveRoot),
        ("/a//../../b", Ambiguous::AboveRoot),
        ("/%252e%252e/a", Ambiguous::AboveRoot),
    ] {
        assert_eq!(Readings::as_received(path), Err(reason), "{path}");
    }
}

#[test]
fn readings_are_bounded() {
    let nested = |times: usize| format!("/a%{}2Fb", "25".repeat(times));
    assert_eq!(of(&nested(MAX_READINGS - 3)).len(), MAX_READINGS - 1);
    assert_eq!(Readings::as_received(&nested(MAX_READINGS)), Err(Ambiguous::TooManyReadings));
    let long = |bytes: usize| format!("//{}", "a".repeat(bytes));
    assert_eq!(of(&long(MAX_READINGS_BYTES - 1)).len(), 2);
    assert_eq!(Readings::as_received(&long(MAX_READINGS_BYTES)), Err(Ambiguous::TooManyReadings));
    let plain = format!("/{}", "a".repeat(3 * MAX_READINGS_BYTES));
    assert_eq!(of(&plain).len(), 1, "a path without another reading may be as long as a head");
}

const TRICKY: &str = r"/(/|\.|%2e|%2F|%2f|%5C|%252F|%2561|%25|a|%61|;|%3b|%2B|%20|B|~){0,8}";

proptest! {
    #[test]
    fn the_first_reading_is_the_path_as_it_came(path in TRICKY) {
        if let Ok(readings) = Readings::as_received(&path) {
            prop_assert_eq!(&*readings.path, normal_case(&path));
            prop_assert!(readings.others.len() < MAX_READINGS);
            let all: Vec<&str> = readings.iter().collect();
            prop_assert!((1..all.len()).all(|index| !all[..index].contains(&all[index])), "{:?}", all);
        }
    }

    /// The path that the mesh sends to all other functions is one of the readings.
    #[test]
    fn the_normal_path_is_a_reading(path in TRICKY) {
        if let (Ok(normal), Ok(readings)) = (normalise(&path), Readings::as_received(&path)) {
            prop_assert!(readings.iter().any(|reading| *reading == *normal), "{}: {:?}", normal, readings);
            if let Some(plain) = without_parameters(&normal) {
                prop_assert!(readings.iter().any(|reading| *reading == plain), "{}: {:?}", plain, readings);
            }
        }
    }

    /// If a proxy normalises and forwards one of the readings, the next server reads no path that
    /// was not judged.
    #[test]
    fn readings_of_readings_are_readings(path in TRICKY) {
        if let Ok(readings) = Readings::as_received(&path) {
            for reading in readings.iter() {
                let again = Readings::as_received(reading);
                prop_assert!(again.is_ok(), "{}: {:?}", reading, again);
                for other in again.iter().flat_map(Readings::iter) {
                    prop_assert!(readings.iter().any(|reading| reading == other), "{} of {}", other, reading);
                }
            }
        }
    }

    /// The steps of servers, implemented in another way.
    #[test]
    fn servers_read_nothing_else(path in TRICKY, order in Just(vec![0, 1, 2, 3, 4]).prop_shuffle(), steps in 0..6usize) {
        if let Ok(readings) = Readings::as_received(&path) {
            let mut read = path.clone();
            for step in order.into_iter().take(steps) {
                read = match step {
                    0 => decoded(&read),
                    1 => decoded(&read),
                    2 => read.split('/').map(|part| part.split(';').next().unwrap()).collect::<Vec<_>>().join("/"),
                    3 => merged(&read),
                    _ => resolved(&read),
                };
            }
            prop_assert!(readings.iter().any(|reading| same(reading, &read)), "{} of {}: {:#?}", read, path, readings);
        }
    }

    #[test]
    fn never_panics(path in any::<String>()) {
        let _ = Readings::as_received(&path);
        let _ = Readings::as_received(&format!("/{path}"));
    }
}

/// Decodes every escape; those that a path cannot have as they are stay escapes.
fn decoded(path: &str) -> String {
    let hex = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    let (mut out, mut rest) = (String::new(), path);
    while let Some(character) = rest.chars().next() {
        match rest.get(1..3).and_then(hex).filter(|_| character == '%') {
            Some(value) if value == b' ' || value > 0x7f => out.push_str(&format!("%{value:02X}")),
            Some(b'%') => out.push('\u{1}'),
            Some(b'\\') => out.push_str("%5C"),
            Some(value) => out.push(char::from(value)),
            None => out.push(character),
        }
        rest = if character == '%' && rest.len() >= 3 { &rest[3..] } else { &rest[1..] };
    }
    // A percent sign that begins an escape now is one for the next step.
    while let Some(index) = out.find('\u{1}') {
        let begins = out.get(index + 1..index + 3).and_then(hex).is_some();
        out.replace_range(index..=index, if begins { "%" } else { "%25" });
    }
    out
}

fn merged(path: &str) -> String {
    let mut merged = path.to_string();
    while merged.contains("//") {
        merged = merged.replace("//", "/");
    }
    merged
}

fn resolved(path: &str) -> String {
    let (mut input, mut output) = (path, Vec::new());
    while !input.is_empty() {
        if let Some(rest) = input.strip_prefix("/./").or_else(|| input.strip_prefix("/../")) {
            if input.starts_with("/../") {
                output.pop();
            }
            input = &input[input.len() - rest.len() - 1..];
        } else if input == "/." || input == "/.." {
            if input == "/.." {
                output.pop();
            }
            input = "/";
        } else {
            let end = input[1..].find('/').map_or(input.len(), |index| index + 1);
            output.push(&input[..end]);
            input = &input[end..];
        }
    }
    output.concat()
}

/// Whether two paths differ in the case of their escapes at most.
fn same(one: &str, other: &str) -> bool {
    one == other || normal_case(one) == normal_case(other)
}

fn normal_case(path: &str) -> String {
    let mut out = String::new();
    let mut left = 0;
    for character in path.chars() {
        left = if character == '%' { 3 } else { left - usize::from(left > 0) };
        out.push(if left > 0 { character.to_ascii_uppercase() } else { character });
    }
    out
}
