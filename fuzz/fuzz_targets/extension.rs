//! Lists of header fields from user-written modules: for any bytes, the result is a list that is
//! encoded and decoded as the same one, or an error.
#![no_main]

use leno_sandbox::extension::Headers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|flat: &[u8]| {
    if let Ok(list) = Headers::decode(flat) {
        assert!(list.len() <= 256);
        assert_eq!(Headers::decode(&list.encode()).as_ref(), Ok(&list));
        if !flat.is_empty() {
            assert_eq!(list.encode().len(), flat.len());
        }
    }
});
