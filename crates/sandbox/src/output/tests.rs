use super::*;
use leno_policy::outcome::{PolicyKind, SignatureWant, Take, Window};
use leno_policy::spec::{Algorithm, KeyId};

fn decision() -> Decision {
    Decision {
        verdict: Verdict::Allow { rule: "a/authorization/b".into() },
        path: None,
        request_edits: vec![],
        takes: vec![],
        principal: None,
        audit: None,
        window: Window::ALWAYS,
        target: None,
        asks: vec![],
    }
}

fn signature(denial: Denial) -> SignatureWant {
    SignatureWant { keys: vec![KeyId([1; 32])], algorithm: Algorithm::ES256, denial, failure: vec![] }
}

fn refusal(status: u16, headers: &[(&str, &str)]) -> Denial {
    Denial {
        status,
        policy: PolicyKind::Authorization,
        rule: String::new(),
        default: true,
        clause: String::new(),
        headers: headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
    }
}

fn check(output: &Output) -> Result<Output, OutputError> {
    decode(&postcard::to_stdvec(output).unwrap())
}

fn decided(change: impl FnOnce(&mut Decision)) -> Result<Output, OutputError> {
    let mut decision = decision();
    change(&mut decision);
    check(&Output::Decided(decision))
}

#[test]
fn what_is_sound_passes_unchanged() {
    let mut sound = decision();
    sound.path = Some("/a?b=c".into());
    sound.request_edits =
        vec![HeaderEdit::Set("x-user".into(), "käthe\t1".into()), HeaderEdit::Remove("cookie".into())];
    sound.verdict = Verdict::Deny(refusal(429, &[("retry-after", "3")]));
    let output = Output::Decided(sound);
    assert_eq!(check(&output), Ok(output));
}

#[test]
fn header_names_that_programs_may_not_touch() {
    for name in
        ["", "X-Upper", "a b", "a:b", ":path", "a\r\nb", "connection", "transfer-encoding", "content-length", "te", "ä"]
    {
        let edit = HeaderEdit::Set(name.into(), "1".into());
        let expected = Err(OutputError::HeaderName(name.into()));
        assert_eq!(decided(|decision| decision.request_edits = vec![edit]), expected, "{name:?} set");
        let removal = HeaderEdit::Remove(name.into());
        assert_eq!(decided(|decision| decision.request_edits = vec![removal]), expected, "{name:?} removed");
        let denial = refusal(403, &[(name, "1")]);
        let wants = Output::Unverified(signature(denial.clone()));
        assert_eq!(check(&wants), expected, "{name:?} for a wrong signature");
        assert_eq!(decided(|decision| decision.verdict = Verdict::Deny(denial)), expected, "{name:?} in a refusal");
    }
}

#[test]
fn header_values_cannot_end_their_line() {
    for value in ["a\r\nx-evil: 1", "a\nb", "a\0b", "a\x7fb", "\x1b[2J"] {
        let edit = HeaderEdit::Append("x-a".into(), value.into());
        let expected = Err(OutputError::HeaderValue("x-a".into()));
        assert_eq!(decided(|decision| decision.request_edits = vec![edit]), expected, "{value:?}");
    }
    let long = HeaderEdit::Set("x-a".into(), "v".repeat(MAX_VALUE + 1));
    assert!(decided(|decision| decision.request_edits = vec![long]).is_err());
}

#[test]
fn words_are_short() {
    let long = |most: usize| "w".repeat(most + 1);
    let rule = Verdict::Allow { rule: long(MAX_RULE) };
    assert_eq!(decided(|decision| decision.verdict = rule), Err(OutputError::TooLong("the rule's name")));
    let denials = [
        (Denial { rule: long(MAX_RULE), ..refusal(403, &[]) }, "the rule's name"),
        (Denial { clause: long(MAX_CLAUSE), ..refusal(403, &[]) }, "the clause"),
    ];
    for (denial, what) in denials {
        let verdict = Verdict::Deny(denial);
        let expected = Err(OutputError::TooLong(what));
        assert_eq!(decided(|decision| decision.audit = Some(verdict.clone())), expected, "audited");
        assert_eq!(decided(|decision| decision.verdict = verdict), expected);
    }
    let principal = Some(long(MAX_PRINCIPAL));
    assert_eq!(decided(|decision| decision.principal = principal), Err(OutputError::TooLong("the principal")));
    assert_eq!(check(&Output::Unreadable(long(MAX_CLAUSE))), Err(OutputError::TooLong("the reason")));
}

#[test]
fn paths_cannot_end_the_request_line() {
    for path in ["", "a", "/a b", "/a\r\n", "/ä", "http://x/"] {
        assert_eq!(decided(|decision| decision.path = Some(path.into())), Err(OutputError::Path), "{path:?}");
    }
}

#[test]
fn a_refusal_refuses() {
    for status in [0, 100, 200, 302, 399, 600, u16::MAX] {
        let denial = refusal(status, &[]);
        assert_eq!(
            decided(|decision| decision.verdict = Verdict::Deny(denial.clone())),
            Err(OutputError::Status(status))
        );
        assert_eq!(check(&Output::Unverified(signature(denial))), Err(OutputError::Status(status)));
    }
}

#[test]
fn floods_are_refused() {
    let edits = vec![HeaderEdit::Remove("a".into()); MAX_EDITS + 1];
    let takes = vec![Take { limit: 0, key: String::new(), cost: 1 }; MAX_EDITS + 1];
    let keys = vec![KeyId([1; 32]); MAX_EDITS + 1];
    let many = |what| Err(OutputError::TooMany(what));
    assert_eq!(decided(|decision| decision.request_edits = edits), many("header edits"));
    assert_eq!(decided(|decision| decision.takes = takes.clone()), many("counters"));
    assert_eq!(decided(|decision| decision.asks = vec![0; MAX_EDITS + 1]), many("authorizers"));
    let signature = || signature(refusal(401, &[]));
    assert_eq!(check(&Output::Unverified(SignatureWant { failure: takes, ..signature() })), many("counters"));
    assert_eq!(check(&Output::Unverified(SignatureWant { keys, ..signature() })), many("keys"));
}

#[test]
fn any_bytes_are_decoded_or_refused() {
    for sound in [Output::Decided(decision()), Output::Unverified(signature(refusal(401, &[])))] {
        let sound = postcard::to_stdvec(&sound).unwrap();
        for end in 0..sound.len() {
            assert!(decode(&sound[..end]).is_err(), "cut at {end}");
        }
        let mut longer = sound.clone();
        longer.push(0);
        assert_eq!(decode(&longer), Err(OutputError::Excess(1)));
        // Every byte is replaced by every value: false lengths, unknown variants, broken UTF-8.
        for at in 0..sound.len() {
            for value in 0..=255 {
                let mut bytes = sound.clone();
                bytes[at] = value;
                let _ = decode(&bytes);
            }
        }
    }
    // A list that claims more elements than could be encoded.
    let claims = [&[1u8][..], &[0xff; 9][..], &[1][..]].concat();
    assert!(decode(&claims).is_err());
}
