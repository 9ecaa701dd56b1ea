//! The user that an image's configuration names, and the image's `/etc/passwd` and `/etc/group`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| leno_jail::fuzzing::user(text));
