use super::{RequestToken, contradicting, locate, without_cookies, without_parameter};
use crate::input::Header;
use crate::spec::TokenSource;
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn bearer() -> TokenSource {
    TokenSource::Header { name: "authorization".to_owned(), prefix: "Bearer ".to_owned() }
}

fn header<'a>(name: &'a str, value: &'a str) -> Header<'a> {
    Header { name, value: value.as_bytes() }
}

fn found<'a>(source: &TokenSource, headers: &[Header<'a>], path: &'a str) -> Vec<&'a str> {
    locate(core::slice::from_ref(source), headers, path).into_iter().map(|located| located.token).collect()
}

#[test]
fn headers() {
    for (value, tokens) in [
        ("Bearer abc", vec!["abc"]),
        ("bearer abc", vec!["abc"]),
        ("BEARER   abc ", vec!["abc"]),
        ("Bearer\tabc", vec![]),
        ("Bearer", vec![]),
        ("Basic abc", vec![]),
        ("Bearerabc", vec![]),
        ("", vec![]),
        ("Bearer a, Bearer b", vec!["a, Bearer b"]),
    ] {
        assert_eq!(found(&bearer(), &[header("authorization", value)], "/"), tokens, "{value}");
    }
    let plain = TokenSource::Header { name: "x-token".to_owned(), prefix: String::new() };
    assert_eq!(found(&plain, &[header("x-token", "abc")], "/"), ["abc"]);
    let prefixed = TokenSource::Header { name: "x-token".to_owned(), prefix: "jwt:".to_owned() };
    assert_eq!(found(&prefixed, &[header("x-token", "jwt:abc")], "/"), ["abc"]);
    assert_eq!(found(&prefixed, &[header("x-token", "JWT:abc")], "/"), [""; 0], "only schemes have no case");
    let two = [header("authorization", "Bearer a"), header("authorization", "Bearer b")];
    assert_eq!(found(&bearer(), &two, "/"), ["a", "b"]);
}

#[test]
fn a_token_that_is_not_text_is_a_bad_token() {
    let headers = [Header { name: "authorization", value: b"Bearer \xff" }];
    assert_eq!(locate(&[bearer()], &headers, "/"), [RequestToken { source: 0, token: "" }]);
}

#[test]
fn parameters() {
    let source = TokenSource::Query("access_token".to_owned());
    for (path, tokens) in [
        ("/?access_token=abc", vec!["abc"]),
        ("/?a=b&access_token=abc&c", vec!["abc"]),
        ("/?access_token=a&access_token=b", vec!["a", "b"]),
        ("/?access%5ftoken=abc", vec!["abc"]),
        ("/?%61ccess_token=a", vec!["a"]),
        ("/?access%token=abc", vec![]),
        ("/?access_token=", vec![]),
        ("/?access_token", vec![]),
        ("/?Access_Token=abc", vec![]),
        ("/?xaccess_token=abc", vec![]),
        ("/access_token=abc", vec![]),
        ("/", vec![]),
    ] {
        assert_eq!(found(&source, &[], path), tokens, "{path}");
    }
    for (query, rest) in [
        ("access_token=abc", ""),
        ("a=b&access_token=abc&c", "a=b&c"),
        ("access_token=a&x&access_token=b&access_token", "x"),
        ("access%5Ftoken=a&y=access_token", "y=access_token"),
    ] {
        assert_eq!(without_parameter(query, "access_token"), rest, "{query}");
    }
}

#[test]
fn cookies() {
    let source = TokenSource::Cookie("session".to_owned());
    let headers = [header("cookie", "a=\"1\"; session=abc;b=2"), header("cookie", "session=def; session=; c")];
    assert_eq!(found(&source, &headers, "/"), ["abc", "def"]);
    assert_eq!(without_cookies(&headers, &["session"]).as_deref(), Some("a=\"1\"; b=2; c"), "others stay as they are");
    assert_eq!(without_cookies(&headers, &["session", "a", "b", "c"]), None);
    assert_eq!(found(&source, &[header("cookie", "Session=abc")], "/"), [""; 0]);
}

#[test]
fn however_many_tokens_are_sent_few_are_located() {
    let sources = [bearer(), TokenSource::Cookie("s".to_owned()), TokenSource::Query("t".to_owned())];
    let (same, different) = ("s=a;".repeat(1000), alloc::format!("s=a;{}", "s=b;s=c;".repeat(1000)));
    let query = alloc::format!("/?{}", "t=a&".repeat(1000));
    let all = [header("authorization", "Bearer a"), header("cookie", &same)];
    let located = locate(&sources, &all, &query);
    let numbers: Vec<_> = located.iter().map(|one| (one.source, one.token)).collect();
    assert_eq!(numbers, [(0, "a"), (1, "a"), (2, "a")], "each source that has it once");
    assert_eq!(contradicting(&located), None);
    let located = locate(&sources, &[header("cookie", &different)], &query);
    let numbers: Vec<_> = located.iter().map(|one| (one.source, one.token)).collect();
    assert_eq!(numbers, [(1, "a"), (1, "b")], "nothing after the first that contradicts");
    assert_eq!(contradicting(&located), Some(&RequestToken { source: 1, token: "b" }));
}

#[test]
fn sources_are_numbered_in_their_order() {
    let sources = [TokenSource::Cookie("s".to_owned()), bearer(), TokenSource::Query("t".to_owned())];
    let headers = [header("authorization", "Bearer b"), header("cookie", "s=a")];
    let located: Vec<_> = locate(&sources, &headers, "/?t=c").into_iter().map(|one| (one.source, one.token)).collect();
    assert_eq!(located, [(0, "a"), (1, "b")], "the third says nothing that the second has not said");
    let located: Vec<_> =
        locate(&sources, &headers[..1], "/?t=b").into_iter().map(|one| (one.source, one.token)).collect();
    assert_eq!(located, [(1, "b"), (2, "b")]);
}

proptest! {
    #[test]
    fn what_is_taken_out_is_gone(query in "[a-z%5f_=&+]{0,40}", cookie in "[a-c=; \"]{0,40}") {
        let source = TokenSource::Query("a_f".to_owned());
        let rest = alloc::format!("/?{}", without_parameter(&query, "a_f"));
        prop_assert!(found(&source, &[], &rest).is_empty());
        let headers = [header("cookie", &cookie)];
        if let Some(rest) = without_cookies(&headers, &["a"]) {
            prop_assert!(found(&TokenSource::Cookie("a".to_owned()), &[header("cookie", &rest)], "/").is_empty());
        }
    }

    #[test]
    fn never_panics(value in prop::collection::vec(any::<u8>(), 0..64), path in any::<String>()) {
        let headers = [Header { name: "authorization", value: &value }, Header { name: "cookie", value: &value }];
        let sources = [bearer(), TokenSource::Cookie("a".to_owned()), TokenSource::Query("a".to_owned())];
        locate(&sources, &headers, &path);
        without_cookies(&headers, &["a"]);
        without_parameter(&path, "a");
    }
}
