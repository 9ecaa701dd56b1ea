//! Entry points of the targets in `fuzz/`. Each function panics if a property does not hold.

use crate::l4::hello::Hello;
use crate::l4::opening::classify;
use crate::listener::names::answer::reply;
use crate::pipeline::authorize::answer;
use crate::state::authorizer::Answer;
use domain::base::Message;
use leno_http::edits;
use leno_model::{Authorizer, AuthorizerProtocol};
use leno_policy::reserved::is_reserved;
use std::net::Ipv4Addr;
use std::time::Duration;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);

/// Reads the answer of an external authorizer: either the answer is invalid, or the edits from it
/// may be applied to a message, and are only those that the policy names.
pub fn authorizer(bytes: &[u8]) {
    let spec = Authorizer {
        name: String::new(),
        authority: String::new(),
        protocol: AuthorizerProtocol::Grpc,
        path_prefix: String::new(),
        timeout: Duration::from_secs(1),
        status_on_error: 503,
        shown: None,
        upstream_headers: vec!["x-user".to_owned()],
        client_headers: vec!["location".to_owned()],
        cache: None,
        audit: false,
        raw_headers: false,
    };
    // The bytes as they are, and in a frame, so that most get as far as the message.
    let framed = [&[0][..], &u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes(), bytes].concat();
    for body in [bytes, &framed] {
        match answer::of_grpc(&spec, answer::Names::Listed(&spec.upstream_headers), &[], body) {
            Ok(Answer::Allows(edits)) => {
                for edit in edits {
                    match edit {
                        edits::Edit::Set(name, _) | edits::Edit::Append(name, _) => assert_eq!(name, "x-user"),
                        edits::Edit::Remove(name) => assert!(!is_reserved(name.as_str())),
                    }
                }
            }
            Ok(Answer::Refuses(refused)) => {
                assert!((300..=599).contains(&refused.status.as_u16()));
                assert!(refused.headers.keys().all(|name| name == "location" || name == "content-type"));
                assert!(refused.body.len() <= body.len() && !refused.details.chars().any(char::is_control));
            }
            Err(_) => {}
        }
    }
}

/// Answers a DNS query of a jail: the answer is for that query, and only names of callees have an
/// address.
pub fn name(question: &[u8]) {
    let Some(denied) = reply(question, |_, _| None) else {
        assert!(
            reply(question, |_, _| Some(ADDRESS)).is_none(),
            "who is asked does not decide whether it is a question"
        );
        return;
    };
    let id = Message::from_octets(question).unwrap().header().id();
    for (answer, most) in [(denied, 0), (reply(question, |_, _| Some(ADDRESS)).unwrap(), 1)] {
        let answer = Message::from_octets(&answer).unwrap();
        assert_eq!((answer.header().id(), answer.header().qr()), (id, true));
        assert!(answer.header_counts().ancount() <= most);
    }
}

/// Reads the hello of a TLS client, whole and in two pieces: both find the same server name, which is
/// a host as rules compare it.
pub fn hello(bytes: &[u8]) {
    let whole = Hello::default().take(bytes);
    let (one, other) = bytes.split_at(bytes.first().map_or(0, |first| usize::from(*first) % bytes.len()));
    let mut hello = Hello::default();
    let parted = match hello.take(one) {
        Ok(None) => hello.take(other),
        settled => settled,
    };
    if let (Ok(Some(whole)), Ok(Some(parted))) = (&whole, &parted) {
        assert_eq!(whole, parted);
    }
    if let Ok(Some(Some(name))) = whole {
        assert_eq!(leno_policy::host::of_authority(&name).as_deref(), Some(&*name));
    }
}

/// Reads the beginning of a connection to a pod: bytes that come later change no decision, so a
/// request in pieces is taken for no other protocol.
pub fn opening(bytes: &[u8]) {
    let whole = classify(bytes);
    for length in 0..bytes.len().min(256) {
        let (start, _) = bytes.split_at(length);
        if let Some(decided) = classify(start) {
            assert_eq!(whole, Some(decided), "after {length} bytes");
            return;
        }
    }
}
