//! Messages between the control plane and a node, as their receiver decodes them.
#![no_main]

use leno_control::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::from_node(bytes);
    fuzzing::to_node(bytes);
});
