//! The result for a PROXY header depends on its bytes alone, not on the bytes after it.
#![no_main]

use leno_http::proxy_header::{Header, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Header::Complete { length, source }) = parse(bytes) else { return };
    assert_eq!(parse(&bytes[..length]), Ok(Header::Complete { length, source }));
    for shorter in 1..length {
        assert_eq!(parse(&bytes[..shorter]), Ok(Header::Incomplete));
    }
});
