//! Tokens are found at any place, and a token that is taken out of a query is removed from it.
#![no_main]

use leno_policy::input::Header;
use leno_policy::path;
use leno_policy::spec::TokenSource;
use leno_policy::token;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|head: (&[u8], &[u8], &str)| {
    let (authorization, cookie, target) = head;
    let sources = [
        TokenSource::Header { name: "authorization".to_owned(), prefix: "Bearer ".to_owned() },
        TokenSource::Query("t".to_owned()),
        TokenSource::Cookie("t".to_owned()),
    ];
    let headers = [Header { name: "authorization", value: authorization }, Header { name: "cookie", value: cookie }];
    for located in token::locate(&sources, &headers, target) {
        assert!(located.source < sources.len());
    }
    let (path, query) = path::split(target);
    let without = token::without_parameter(query.unwrap_or_default(), "t");
    assert!(token::locate(&sources[1..2], &[], &format!("{path}?{without}")).is_empty());
});
