//! Lists of header fields from user-written modules: for any bytes, the result is a list that is
//! encoded and decoded as the same one, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The file itself, because the crate around it depends on a compiler.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/sandbox/src/extension/headers.rs"]
mod headers;

fuzz_target!(|flat: &[u8]| {
    if let Ok(list) = headers::Headers::decode(flat) {
        assert!(list.len() <= 256);
        assert_eq!(headers::Headers::decode(&list.encode()).as_ref(), Ok(&list));
        if !flat.is_empty() {
            assert_eq!(list.encode().len(), flat.len());
        }
    }
});
