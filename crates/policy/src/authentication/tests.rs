use crate::input::{Header, RequestInput};
use crate::outcome::{Denial, HeaderEdit, MAX_PRINCIPAL, Output, PolicyKind, SignatureWant, Verdict};
use crate::program::Program;
use crate::spec::{
    Algorithm, Condition, ConditionKey, Issuer, Key, KeyId, Matches, PrincipalMatch, ProgramSpec, Source, StringMatch,
    TokenSource,
};
use crate::testing::{self, NOW_MS, allowed, decide, denied, header, issuer, request, token};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

mod forwarding;
mod keys;
mod window;

const ES256: &str = r#"{"alg":"ES256","kid":"ec"}"#;
const CLAIMS: &str = r#"{"iss":"https://login.example","sub":"ann","aud":"shop","exp":1700000600}"#;
const VERIFIED: Option<KeyId> = Some(KeyId([2; 32]));

fn spec(issuers: Vec<Issuer>) -> ProgramSpec {
    ProgramSpec { authentication: issuers, ..testing::inbound() }
}

/// A request with this text as its bearer token.
fn bearing(authorization: &str) -> RequestInput<'_> {
    RequestInput { headers: vec![header("authorization", authorization)], ..request() }
}

/// The denial of a token; `Ok`: the token is good except for its
/// signature, which is not verified yet.
fn check_with(issuer: Issuer, header: &str, claims: &str) -> Result<SignatureWant, Denial> {
    let authorization = format!("Bearer {}", token(header, claims));
    check_text(issuer, &authorization)
}

fn check_text(issuer: Issuer, authorization: &str) -> Result<SignatureWant, Denial> {
    match Program::new(spec(vec![issuer])).judge(&bearing(authorization)) {
        Output::Unverified(want) => Ok(want),
        Output::Decided(decision) => match decision.verdict {
            Verdict::Deny(denial) => {
                assert_eq!((denial.status, denial.rule.as_str()), (401, "p/authentication/0"));
                let challenge = r#"Bearer realm="shop/orders", error="invalid_token""#.to_string();
                assert_eq!(denial.headers, [("www-authenticate".to_string(), challenge)]);
                Err(denial)
            }
            Verdict::Allow { rule } => panic!("allowed by {rule}"),
        },
        Output::Unreadable(reason) => panic!("{reason}"),
    }
}

fn check(header: &str, claims: &str) -> Result<SignatureWant, Denial> {
    check_with(issuer(), header, claims)
}

/// The clause of the claims' denial.
fn wrong(claims: &str) -> String {
    check(ES256, claims).unwrap_err().clause
}

fn claims(more: &str) -> String {
    format!(r#"{{"iss":"https://login.example","aud":"shop"{more}}}"#)
}

#[test]
fn a_good_token_needs_its_signature_verified_and_nothing_else() {
    let want = check(ES256, CLAIMS).unwrap();
    assert_eq!((want.keys, want.algorithm), (vec![KeyId([2; 32])], Algorithm::ES256));
    assert_eq!((want.denial.status, want.denial.clause.as_str()), (401, "the token's signature is not valid"));
    let authorization = format!("Bearer {}", token(ES256, CLAIMS));
    let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
    let decision = decide(spec(vec![issuer()]), &input);
    assert_eq!(decision.verdict, Verdict::Allow { rule: "all".to_string() });
    assert_eq!(decision.principal.as_deref(), Some("https://login.example/ann"));
}

#[test]
fn a_signature_by_another_key_does_not_count() {
    let authorization = format!("Bearer {}", token(ES256, CLAIMS));
    for verified in [None, Some(KeyId([1; 32]))] {
        let input = RequestInput { verified, ..bearing(&authorization) };
        assert!(
            matches!(Program::new(spec(vec![issuer()])).judge(&input), Output::Unverified(_)),
            "{:?}",
            input.verified
        );
    }
}

#[test]
fn a_verified_signature_replaces_no_other_check() {
    for (header, claims) in [
        (ES256, claims(r#","exp":1699999000"#)),
        (ES256, CLAIMS.replace("shop", "other")),
        (ES256, CLAIMS.replace("login", "evil")),
        (r#"{"alg":"ES256","kid":"ed"}"#, CLAIMS.to_string()),
        (r#"{"alg":"none","kid":"ec"}"#, CLAIMS.to_string()),
    ] {
        let authorization = format!("Bearer {}", token(header, &claims));
        let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
        assert_eq!(denied(spec(vec![issuer()]), &input).status, 401, "{header} {claims}");
    }
}

#[test]
fn without_a_token() {
    let denial = denied(spec(vec![issuer()]), &request());
    assert_eq!((denial.status, denial.clause.as_str()), (401, "the request has no token"));
    let challenge = r#"Bearer realm="shop/orders""#.to_string();
    assert_eq!(denial.headers, [("www-authenticate".to_string(), challenge)], "no error code, RFC 6750, 3.1");
    let optional = || Issuer { required: false, ..issuer() };
    let decision = decide(spec(vec![optional()]), &request());
    assert_eq!((decision.principal, decision.verdict), (None, Verdict::Allow { rule: "all".to_string() }));
    assert_eq!(denied(spec(vec![optional(), issuer()]), &request()).status, 401, "one that requires it is enough");
    assert_eq!(allowed(spec(vec![optional()]), &bearing("Basic abc")), "all", "another scheme is no token");
    assert_eq!(denied(spec(vec![optional()]), &bearing("Bearer abc")).status, 401, "a bad token is never no token");
}

#[test]
fn forms_that_are_no_jwt() {
    let good = token(ES256, CLAIMS);
    let (head, rest) = good.split_once('.').unwrap();
    let (body, signature) = rest.split_once('.').unwrap();
    let not_compact = "the token is not a JWT in compact form";
    for text in [
        "abc".to_string(),
        "..".to_string(),
        format!("{head}.{body}"),
        format!("{head}.{body}."),
        format!("{head}.{body}.{signature}.x"),
        format!("{head}.{body}.{signature}.x.y"),
        format!("{head}.{body}.a=="),
        format!("{head}.{body}.a"),
        format!("{head}.{body}.a+/b"),
        format!("{good},{good}"),
        format!("{head}.{body}.{}", "a".repeat(16 * 1024)),
    ] {
        assert_eq!(check_text(issuer(), &format!("Bearer {text}")).unwrap_err().clause, not_compact, "{text:.40}");
    }
    for text in [
        format!("{head}=.{body}.{signature}"),
        format!(".{body}.{signature}"),
        format!("{head}!.{body}.{signature}"),
        format!("{}.{body}.{signature}", "e30".to_string() + "A"),
        // The last character has bits that belong to no byte.
        format!("e31.{body}.{signature}"),
        format!("W10.{body}.{signature}"),
    ] {
        let clause = check_text(issuer(), &format!("Bearer {text}")).unwrap_err().clause;
        assert_eq!(clause, "the token's header is not one JSON object without duplicates", "{text:.40}");
    }
    let bad_claims = "the token's claims are not one JSON object without duplicates";
    for text in
        [format!("{head}..{signature}"), format!("{head}.{body}=.{signature}"), format!("{head}.W10.{signature}")]
    {
        assert_eq!(check_text(issuer(), &format!("Bearer {text}")).unwrap_err().clause, bad_claims, "{text:.60}");
    }
}

#[test]
fn headers_of_tokens() {
    let no_algorithm =
        "alg: matches none of [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA, Ed25519]";
    for header in [
        r#"{"kid":"ec"}"#,
        r#"{"alg":"none","kid":"ec"}"#,
        r#"{"alg":"None","kid":"ec"}"#,
        r#"{"alg":"HS256","kid":"ec"}"#,
        r#"{"alg":"es256","kid":"ec"}"#,
        r#"{"alg":"ES256K","kid":"ec"}"#,
        r#"{"alg":"ES256 ","kid":"ec"}"#,
        r#"{"alg":"Ed448","kid":"ed"}"#,
        r#"{"alg":"ESP256","kid":"ec"}"#,
        r#"{"alg":["ES256"],"kid":"ec"}"#,
        r#"{"alg":null,"kid":"ec"}"#,
        r#"{"ALG":"ES256","kid":"ec"}"#,
    ] {
        assert_eq!(check(header, CLAIMS).unwrap_err().clause, no_algorithm, "{header}");
    }
    let duplicates = "the token's header is not one JSON object without duplicates";
    for header in [
        r#"{"alg":"ES256","alg":"none","kid":"ec"}"#,
        r#"{"alg":"ES256","kid":"ec","kid":"ec"}"#,
        r#"{"alg":"ES256","\u0061lg":"none","kid":"ec"}"#,
    ] {
        assert_eq!(check(header, CLAIMS).unwrap_err().clause, duplicates, "{header}");
    }
    for header in [r#"{"alg":"ES256","kid":"ec","crit":["exp"],"exp":1}"#, r#"{"alg":"ES256","kid":"ec","crit":[]}"#] {
        assert!(check(header, CLAIMS).unwrap_err().clause.starts_with("crit:"), "{header}");
    }
    assert!(check(r#"{"alg":"ES256","kid":"ec","b64":false}"#, CLAIMS).unwrap_err().clause.starts_with("b64:"));
    for header in [
        r#"{"typ":"JWT","alg":"ES256","kid":"ec"}"#,
        r#"{"typ":"none","cty":"JWT","alg":"ES256","kid":"ec","jku":"https://evil.example","jwk":{},"x5u":1}"#,
        r#"{"\u0061lg":"ES\u0032\u00356","kid":"ec"}"#,
    ] {
        assert_eq!(check(header, CLAIMS).unwrap().keys, [KeyId([2; 32])], "{header}");
    }
}

#[test]
fn issuers_are_chosen_by_their_exact_name() {
    let unknown = "iss: matches none of [https://login.example]";
    for iss in [
        r#""iss":"https://login.example/""#,
        r#""iss":"https://LOGIN.example""#,
        r#""iss":"""#,
        r#""iss":["https://login.example"]"#,
        r#""iss":null"#,
        r#""sub":"ann""#,
    ] {
        assert_eq!(wrong(&format!(r#"{{{iss},"aud":"shop"}}"#)), unknown, "{iss}");
    }
    let other =
        Issuer { issuer: "https://other.example".to_string(), name: "p/authentication/1".to_string(), ..issuer() };
    let authorization = format!("Bearer {}", token(ES256, &CLAIMS.replace("login", "other")));
    let expired =
        denied(spec(vec![issuer(), other.clone()]), &bearing(&authorization.replace("Bearer", "bearer")).now(u64::MAX));
    assert_eq!(expired.rule, "p/authentication/1", "the chosen one speaks");
    let in_cookie = Issuer { sources: vec![TokenSource::Cookie("t".to_string())], ..other };
    let denial = denied(spec(vec![issuer(), in_cookie]), &bearing(&authorization));
    assert_eq!(denial.clause, unknown, "an issuer that does not look there is none");
}

impl RequestInput<'_> {
    fn now(mut self, now_ms: u64) -> Self {
        self.now_ms = now_ms;
        self
    }
}

#[test]
fn one_issuer_may_be_named_by_several_policies() {
    let second = Issuer { audiences: vec!["other".to_string()], name: "q/authentication/0".to_string(), ..issuer() };
    for (aud, good) in [("shop", true), ("other", true), ("third", false)] {
        let authorization = format!("Bearer {}", token(ES256, &CLAIMS.replace("shop", aud)));
        let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
        let verdict = decide(spec(vec![issuer(), second.clone()]), &input).verdict;
        assert_eq!(matches!(verdict, Verdict::Allow { .. }), good, "{aud}");
    }
}

#[test]
fn an_expiration_may_be_required() {
    let strict = Issuer { require_expiration: true, ..issuer() };
    let none = check_with(strict.clone(), ES256, &claims("")).unwrap_err().clause;
    assert_eq!(none, "exp: the token has none, and it is required");
    assert!(check_with(strict, ES256, &claims(&format!(r#","exp":{}"#, NOW_MS / 1000 + 1))).is_ok());
}

#[test]
fn audiences() {
    for aud in [r#""shop""#, r#"["shop"]"#, r#"["a","shop"]"#] {
        let claims = format!(r#"{{"iss":"https://login.example","aud":{aud}}}"#);
        assert!(check(ES256, &claims).is_ok(), "{aud}");
    }
    for aud in [r#""Shop""#, r#""shop ""#, r#""shop,other""#, "[]", r#"["a"]"#] {
        let claims = format!(r#"{{"iss":"https://login.example","aud":{aud}}}"#);
        assert_eq!(wrong(&claims), "aud: matches none of [shop]", "{aud}");
    }
    for aud in ["1", "null", r#"["shop",1]"#, r#"{"shop":1}"#, r#"[["shop"]]"#] {
        let claims = format!(r#"{{"iss":"https://login.example","aud":{aud}}}"#);
        assert_eq!(wrong(&claims), "aud: neither a string nor a list of strings", "{aud}");
    }
    let absent = r#"{"iss":"https://login.example"}"#;
    assert_eq!(wrong(absent), "aud: matches none of [shop]");
    assert!(check_with(Issuer { audiences: vec![], ..issuer() }, ES256, absent).is_ok());
}

#[test]
fn dates() {
    let now = NOW_MS / 1000;
    assert!(check(ES256, &claims("")).is_ok(), "dates may be absent");
    for (more, good) in [
        (format!(r#","exp":{}"#, now + 1), true),
        (format!(r#","exp":{}"#, now - 59), true),
        (format!(r#","exp":{}.5"#, now - 60), true),
        (format!(r#","exp":{}"#, now - 60), false),
        (r#","exp":0"#.to_string(), false),
        (format!(r#","nbf":{}"#, now + 60), true),
        (format!(r#","nbf":{}"#, now + 61), false),
        (format!(r#","iat":{}"#, now + 60), true),
        (format!(r#","iat":{}"#, now + 61), false),
        (r#","iat":0,"nbf":0"#.to_string(), true),
        (r#","exp":253402300799"#.to_string(), true),
        (r#","exp":1.7000009e9"#.to_string(), true),
    ] {
        assert_eq!(check(ES256, &claims(&more)).is_ok(), good, "{more}");
    }
    for name in ["exp", "nbf", "iat"] {
        for bad in ["-1", "\"1700000600\"", "null", "true", "253402300800", "1e300", "[1]", "{}"] {
            let clause = wrong(&claims(&format!(r#","{name}":{bad}"#)));
            assert_eq!(clause, format!("{name}: not a date (seconds since 1970)"), "{bad}");
        }
        let twice = claims(&format!(r#","{name}":1700000600,"{name}":9999999999"#));
        assert_eq!(wrong(&twice), "the token's claims are not one JSON object without duplicates");
    }
    let strict = Issuer { clock_skew_ms: 0, ..issuer() };
    assert!(check_with(strict.clone(), ES256, &claims(&format!(r#","exp":{now}"#))).is_err());
    assert!(check_with(strict, ES256, &claims(&format!(r#","exp":{now}.001,"nbf":{now}"#))).is_ok());
    let forever = Issuer { clock_skew_ms: u64::MAX, ..issuer() };
    assert!(check_with(forever, ES256, &claims(r#","exp":1,"nbf":253402300799"#)).is_ok(), "no overflow");
}

#[test]
fn subjects() {
    for sub in ["1", "null", "[]"] {
        assert_eq!(wrong(&claims(&format!(r#","sub":{sub}"#))), "sub: not a string", "{sub}");
    }
    let authorization = format!("Bearer {}", token(ES256, &claims("")));
    let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
    assert_eq!(decide(spec(vec![issuer()]), &input).principal, None, "half a principal is none");
}

#[test]
fn hostile_json() {
    let deep = format!(r#","x":{}{}"#, "[".repeat(2_000), "]".repeat(2_000));
    let wide: Vec<String> = (0..1_000).map(|index| format!(r#""m{index}":0"#)).collect();
    for more in [deep, format!(",{}", wide.join(",")), r#","x":"\ud800""#.to_string(), ",".to_string()] {
        assert_eq!(
            wrong(&claims(&more)),
            "the token's claims are not one JSON object without duplicates",
            "{more:.40}"
        );
    }
}

#[test]
fn long_claims_are_not_read_for_nobody() {
    // The payloads are no JSON, but no check has reached them.
    let claims = "{".repeat(9000);
    let unknown = r#"{"alg":"ES256","kid":"other"}"#;
    assert_eq!(check(unknown, &claims).unwrap_err().clause, super::UNKNOWN_KEY);
    let mismatch = r#"{"alg":"ES256","kid":"rsa"}"#;
    assert_eq!(check(mismatch, &claims).unwrap_err().clause, "alg: the key may not be used with the token's algorithm");
    assert_eq!(check(r#"{"alg":"none"}"#, &claims).unwrap_err().clause, super::NO_ALGORITHM);
    for (header, signatures) in [
        (ES256, &[84, 87, 128, 342][..]),
        (r#"{"alg":"RS256","kid":"rsa"}"#, &[86, 340, 1367]),
        (r#"{"alg":"EdDSA","kid":"ed"}"#, &[84, 88]),
    ] {
        let token = token(header, &claims);
        let signed = token.rsplit_once('.').unwrap().0;
        for length in signatures {
            let text = format!("Bearer {signed}.{}", "A".repeat(*length));
            assert_eq!(
                check_text(issuer(), &text).unwrap_err().clause,
                "the token's signature is not valid",
                "{length}"
            );
        }
    }
    let all_there = "the token's claims are not one JSON object without duplicates";
    assert_eq!(check(ES256, &claims).unwrap_err().clause, all_there);
}

#[test]
fn several_tokens() {
    let (good, other) = (format!("Bearer {}", token(ES256, CLAIMS)), format!("Bearer {}", token(ES256, &claims(""))));
    let with = |headers: Vec<Header<'_>>| {
        let input = RequestInput { headers, verified: VERIFIED, ..request() };
        decide(spec(vec![issuer()]), &input).verdict
    };
    assert!(matches!(
        with(vec![header("authorization", &good), header("authorization", &good)]),
        Verdict::Allow { .. }
    ));
    match with(vec![header("authorization", &good), header("authorization", &other)]) {
        Verdict::Deny(denial) => {
            assert_eq!((denial.status, denial.clause.as_str()), (401, "the request has more than one token"))
        }
        Verdict::Allow { rule } => panic!("allowed by {rule}"),
    }
}

#[test]
fn a_long_subject_is_cut_where_it_is_reported() {
    let claims = claims(&format!(r#","sub":"{}""#, "ä".repeat(2000)));
    let authorization = format!("Bearer {}", token(ES256, &claims));
    let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
    let decision = decide(spec(vec![issuer()]), &input);
    assert!(matches!(decision.verdict, Verdict::Allow { .. }), "{:?}", decision.verdict);
    let principal = decision.principal.unwrap();
    assert!(principal.len() <= MAX_PRINCIPAL && principal.ends_with("ä…"), "{principal}");
}

#[test]
fn a_preflight_needs_no_token_where_the_policy_says_so() {
    let preflight = || RequestInput {
        method: "OPTIONS",
        headers: vec![header("origin", "https://shop.example"), header("access-control-request-method", "PUT")],
        ..request()
    };
    let with = |name, value| {
        let mut input = preflight();
        input.headers.push(header(name, value));
        input
    };
    let lenient = || Issuer { preflight: true, ..issuer() };
    assert_eq!(allowed(spec(vec![lenient()]), &preflight()), "all");
    assert_eq!(denied(spec(vec![issuer()]), &preflight()).status, 401);
    // A stricter issuer has the last word.
    let strict =
        Issuer { name: "p/authentication/1".to_string(), issuer: "https://other.example".to_string(), ..issuer() };
    assert_eq!(denied(spec(vec![lenient(), strict]), &preflight()).status, 401);
    let nearly = [
        RequestInput { method: "GET", ..preflight() },
        RequestInput { headers: preflight().headers.split_off(1), ..preflight() },
        RequestInput { headers: preflight().headers[..1].to_vec(), ..preflight() },
        with("cookie", "a=b"),
        with("authorization", "Bearer x"),
    ];
    for input in &nearly {
        assert_eq!(denied(spec(vec![lenient()]), input).status, 401, "{input:?}");
    }
    let forbidden = ProgramSpec { authorization: Vec::new(), ..spec(vec![lenient()]) };
    assert_eq!(denied(forbidden, &preflight()).status, 403, "authorization decides as ever");
}
