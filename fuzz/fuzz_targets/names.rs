//! DNS queries of a jail.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|question: &[u8]| leno_proxy::fuzzing::name(question));
