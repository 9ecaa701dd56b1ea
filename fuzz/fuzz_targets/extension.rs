//! Lists of header fields as user-written modules hand them over: whatever the bytes, the result is a list that is written and read
//! as the same one, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The file itself, because the crate around it brings a compiler along.
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
