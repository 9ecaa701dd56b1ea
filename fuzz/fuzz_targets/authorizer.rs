//! Any bytes as the answer of an external authorizer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| leno_proxy::fuzzing::authorizer(bytes));
