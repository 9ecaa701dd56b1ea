//! A PROXY header is told by its own bytes alone, whatever follows it.
#![no_main]

// The file itself, because the crate around it brings a compiler along.
#[allow(dead_code)]
#[path = "../../crates/proxy/src/listener/proxy_protocol/header.rs"]
mod header;

use header::{Header, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Header::Complete { length, source }) = parse(bytes) else { return };
    assert_eq!(parse(&bytes[..length]), Ok(Header::Complete { length, source }));
    for shorter in 1..length {
        assert_eq!(parse(&bytes[..shorter]), Ok(Header::Incomplete));
    }
});
