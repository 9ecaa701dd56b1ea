//! A normal path is normal, and has one meaning.
#![no_main]

use leno_policy::path;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (raw, _) = path::split(text);
    let Ok(normal) = path::normalise(raw) else { return };
    assert_eq!(path::normalise(&normal).as_deref(), Ok(&*normal));
    assert!(normal == "*" || normal.starts_with('/'));
    assert!(!normal.contains("//") && normal.split('/').all(|segment| segment != "." && segment != ".."));
});
