//! Documents of a request: each is kept separately, and a kept document is read as the one that was
//! checked.
#![no_main]

use leno_config::Document;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    let Ok(documents) = Document::read(Path::new("fuzz.yaml"), text) else { return };
    for document in documents {
        let again = Document::restore(document.id(), document.text()).unwrap();
        assert_eq!((again.id(), again.text(), again.reach()), (document.id(), document.text(), document.reach()));
    }
});
