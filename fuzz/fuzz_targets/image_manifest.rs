//! Manifests, indexes and configurations of images.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| leno_oci::fuzzing::manifest(bytes));
