//! A parsed trace context is written, and parsed again, as the same.
#![no_main]

use leno_policy::trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(context) = trace::parse(bytes) {
        assert_eq!(trace::parse(trace::format(context).as_bytes()), Some(context));
    }
});
