//! A normal path is normal, and has one meaning. The readings of a path that is forwarded as
//! received have no others, and the normal path is among them.
#![no_main]

use leno_policy::path::{self, Readings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (raw, _) = path::split(text);
    if let Ok(readings) = Readings::as_received(raw) {
        for reading in readings.iter() {
            let again = Readings::as_received(reading).expect("a reading is a path");
            assert!(again.iter().all(|other| readings.iter().any(|reading| reading == other)));
        }
        if let Ok(normal) = path::normalise(raw) {
            assert!(readings.iter().any(|reading| *reading == *normal));
        }
    }
    let Ok(normal) = path::normalise(raw) else { return };
    assert_eq!(path::normalise(&normal).as_deref(), Ok(&*normal));
    assert!(normal == "*" || normal.starts_with('/'));
    assert!(!normal.contains("//") && normal.split('/').all(|segment| segment != "." && segment != ".."));
});
