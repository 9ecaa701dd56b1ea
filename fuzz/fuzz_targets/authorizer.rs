//! Any bytes as the answer of an external authorizer: either the answer is invalid, or the edits
//! from it may be applied to a message, and are only those that the policy names.
#![no_main]

use leno_model::{Authorizer, AuthorizerProtocol};
use leno_http::edits;
use leno_policy::reserved::is_reserved;
use libfuzzer_sys::fuzz_target;
use state::authorizer::Answer;
use std::time::Duration;

// The files themselves, because the crate around them depends on a compiler. They refer to its
// other parts by these few types.
mod state {
    pub(crate) mod authorizer {
        /// As in `crates/proxy/src/state/authorizer.rs`.
        pub(crate) enum Answer {
            Allows(Vec<leno_http::edits::Edit>),
            Refuses(Refused),
        }

        pub(crate) struct Refused {
            pub status: http::StatusCode,
            pub headers: http::HeaderMap,
            pub body: bytes::Bytes,
            pub details: Box<str>,
        }
    }
}
#[allow(dead_code)]
#[path = "../../crates/proxy/src/pipeline/authorize/answer.rs"]
mod answer;
#[allow(dead_code)]
#[path = "../../crates/proxy/src/pipeline/authorize/envoy.rs"]
mod envoy;

fuzz_target!(|bytes: &[u8]| {
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
        match answer::of_grpc(&spec, &[], body) {
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
});
