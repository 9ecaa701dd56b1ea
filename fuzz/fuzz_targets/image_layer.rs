//! Two layers of an image, one on top of the other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| leno_oci::fuzzing::layers(bytes));
