//! The protocol of a connection to a pod is the same, however its bytes arrive.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| leno_proxy::fuzzing::opening(bytes));
