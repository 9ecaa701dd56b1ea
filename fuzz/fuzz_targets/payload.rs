//! Payloads that the control plane delivers and stores, of every kind, as their readers decode
//! them. The seeds are the golden files.
#![no_main]

use leno_control::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::payload(bytes);
    fuzzing::stored(bytes);
});
