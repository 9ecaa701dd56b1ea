//! Texts of container runtimes, of other network plug-ins and of the agent, as Leno's CNI plug-in
//! reads them: a decision or an error, and other plug-ins' parts of a file stay as they are.
#![no_main]

use leno_cni::install::{list_of, single_of, with_entry, without_entry};
use leno_cni::plugin::{Configuration, PodName, addresses};
use leno_cni::protocol::{CniRequest, CniResponse, Message};
use libfuzzer_sys::fuzz_target;

const ENTRY: &str = r#"{"type":"leno-cni","leno":{}}"#;

fuzz_target!(|text: &str| {
    let _ = PodName::read(text);
    if let Ok(request) = CniRequest::from_line(text.as_bytes()) {
        let line = request.to_line().expect("a request is a line");
        assert_eq!(CniRequest::from_line(&line).expect("its own line"), request);
    }
    let _ = CniResponse::from_line(text.as_bytes());
    if let Ok(configuration) = Configuration::read(text.as_bytes())
        && let Ok(previous) = configuration.previous()
    {
        assert!(text.contains(previous));
        let _ = addresses(previous);
    }
    if let Ok(Some(added)) = with_entry(text, ENTRY) {
        assert!(matches!(with_entry(&added, ENTRY), Ok(None)));
        let left = without_entry(&added).expect("a list").expect("it has the entry");
        if without_entry(text).expect("a list").is_none() {
            assert_eq!(left, text);
        }
        let _ = single_of(&left);
    }
    if let Ok(list) = list_of(text, ENTRY) {
        let left = without_entry(&list).expect("a list").expect("it has the entry");
        assert_eq!(single_of(&left).expect("a list").expect("one plug-in").trim(), text.trim());
    }
});
