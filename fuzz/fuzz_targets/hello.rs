//! The hello of a TLS client gives the same server name, however it arrives.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| leno_proxy::fuzzing::hello(bytes));
