//! For any DNS query of a jail, the answer is for that query, and only names of callees have an
//! address.
#![no_main]

// The file itself, because the crate around it depends on a compiler.
#[allow(dead_code)]
#[path = "../../crates/proxy/src/listener/names/answer.rs"]
mod answer;

use answer::reply;
use domain::base::Message;
use libfuzzer_sys::fuzz_target;
use std::net::Ipv4Addr;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);

fuzz_target!(|question: &[u8]| {
    let Some(denied) = reply(question, |_| None) else {
        assert!(reply(question, |_| Some(ADDRESS)).is_none(), "who is asked does not decide whether it is a question");
        return;
    };
    let id = Message::from_octets(question).unwrap().header().id();
    for (answer, most) in [(denied, 0), (reply(question, |_| Some(ADDRESS)).unwrap(), 1)] {
        let answer = Message::from_octets(&answer).unwrap();
        assert_eq!((answer.header().id(), answer.header().qr()), (id, true));
        assert!(answer.header_counts().ancount() <= most);
    }
});
