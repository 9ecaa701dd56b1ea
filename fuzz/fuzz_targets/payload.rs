//! What the control plane delivers, of every kind, as a node decodes it.
#![no_main]

use leno_control::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let [kind, payload @ ..] = bytes {
        fuzzing::payload(*kind, payload);
    }
});
