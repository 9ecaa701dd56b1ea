//! The entry point of a target in `fuzz/`. It panics if a property does not hold.

use crate::output;
use http::{HeaderName, HeaderValue};
use leno_policy::outcome::{Denial, HeaderEdit, MAX_CLAUSE, MAX_RULE, Output, Verdict};

/// Decodes the output of a guest: an accepted output is encoded and decoded as the same one, and
/// contains nothing that the proxy would have to refuse.
pub fn output(bytes: &[u8]) {
    let Ok(output) = output::decode(bytes) else { return };
    let encoded = postcard::to_allocvec(&output).expect("an output that was read is written");
    assert!(encoded.len() <= bytes.len());
    assert_eq!(output::decode(&encoded).as_ref(), Ok(&output));
    match &output {
        Output::Decided(decision) => {
            for verdict in [Some(&decision.verdict), decision.audit.as_ref()].into_iter().flatten() {
                match verdict {
                    Verdict::Allow { rule } => assert!(rule.len() <= MAX_RULE),
                    Verdict::Deny(found) => denial(found),
                }
            }
            assert!(decision.takes.len() <= MOST && decision.asks.len() <= MOST);
            edits(&decision.request_edits);
            if let Some(path) = &decision.path {
                assert!(path == "*" || path.starts_with('/'));
                assert!(path.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
        Output::Unverified(signature) => {
            assert!(signature.keys.len() <= MOST && signature.failure.len() <= MOST);
            denial(&signature.denial);
        }
        Output::Unreadable(reason) => assert!(reason.len() <= MAX_CLAUSE),
    }
}

const MOST: usize = 512;

fn denial(denial: &Denial) {
    assert!((400..600).contains(&denial.status));
    assert!(denial.rule.len() <= MAX_RULE && denial.clause.len() <= MAX_CLAUSE && denial.headers.len() <= MOST);
    denial.headers.iter().for_each(|(name, value)| field(name, value));
}

fn edits(edits: &[HeaderEdit]) {
    assert!(edits.len() <= MOST);
    for edit in edits {
        match edit {
            HeaderEdit::Set(name, value) | HeaderEdit::Append(name, value) => field(name, value),
            HeaderEdit::Remove(name) => field(name, ""),
        }
    }
}

/// The `http` crate accepts both, and the name is in lower case already.
fn field(name: &str, value: &str) {
    let parsed = HeaderName::from_bytes(name.as_bytes()).expect("a field name");
    assert_eq!(parsed.as_str(), name);
    assert!(HeaderValue::from_str(value).is_ok() || HeaderValue::from_bytes(value.as_bytes()).is_ok());
    let framing = ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];
    assert!(!framing.contains(&name));
}
