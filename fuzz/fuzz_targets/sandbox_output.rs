//! Output of a guest.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| leno_sandbox::fuzzing::output(bytes));
