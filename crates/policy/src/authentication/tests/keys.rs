//! Which keys may have made a token.

use super::*;
use crate::authentication::{KEYS_PENDING, UNKNOWN_KEY};

#[test]
fn keys_are_chosen_by_name_and_algorithm() {
    let by = |header: &str| {
        let checked = check(header, CLAIMS).map_err(|denial| denial.clause);
        checked.map(|want| (want.keys[0].0[0], want.algorithm))
    };
    assert_eq!(by(r#"{"alg":"RS256","kid":"rsa"}"#), Ok((1, Algorithm::RS256)));
    assert_eq!(by(r#"{"alg":"PS256","kid":"rsa"}"#), Ok((1, Algorithm::PS256)));
    assert_eq!(by(r#"{"alg":"EdDSA","kid":"ed"}"#), Ok((3, Algorithm::EdDSA)));
    assert_eq!(by(r#"{"alg":"Ed25519","kid":"ed"}"#), Ok((3, Algorithm::EdDSA)), "RFC 9864");
    for header in [r#"{"alg":"RS384","kid":"rsa"}"#, r#"{"alg":"RS256","kid":"ec"}"#, r#"{"alg":"ES384","kid":"ec"}"#] {
        assert_eq!(by(header), Err("alg: the key may not be used with the token's algorithm".to_string()), "{header}");
    }
    for kid in ["", "EC", "ec ", "../ec"] {
        assert_eq!(by(&format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#)), Err(UNKNOWN_KEY.to_string()), "{kid}");
    }
    for kid in ["1", "null", "[\"ec\"]"] {
        assert_eq!(
            by(&format!(r#"{{"alg":"ES256","kid":{kid}}}"#)),
            Err("kid: the token's is not a string".to_string())
        );
    }
}

#[test]
fn tokens_without_a_key_name() {
    let header = r#"{"alg":"ES256"}"#;
    assert_eq!(check(header, CLAIMS).unwrap().keys, [KeyId([2; 32])], "one key is left by the algorithm");
    let none = check(r#"{"alg":"ES384"}"#, CLAIMS).unwrap_err().clause;
    assert_eq!(none, "alg: no key of the issuer may be used with the token's algorithm");
    let mut several = issuer();
    several.keys = (1..=8).map(|id| Key { id: KeyId([id; 32]), ..several.keys[1].clone() }).collect();
    let all: Vec<KeyId> = (1..=8).map(|id| KeyId([id; 32])).collect();
    assert_eq!(check_with(several.clone(), header, CLAIMS).unwrap().keys, all, "all that may be it");
    let authorization = format!("Bearer {}", token(header, CLAIMS));
    for id in [1, 8] {
        let input = RequestInput { verified: Some(KeyId([id; 32])), ..bearing(&authorization) };
        assert_eq!(allowed(spec(vec![several.clone()]), &input), "all", "one of them made it");
    }
    several.keys.push(Key { id: KeyId([9; 32]), ..several.keys[0].clone() });
    let too_many = check_with(several, header, CLAIMS).unwrap_err().clause;
    assert_eq!(too_many, "kid: the token names no key, and more than 8 may be used with its algorithm");
    let mut nameless = issuer();
    nameless.keys[1].kid = None;
    assert_eq!(
        check_with(nameless, ES256, CLAIMS).unwrap().keys,
        [KeyId([2; 32])],
        "a key without a name may have any"
    );
    assert_eq!(check_with(Issuer { keys: vec![], ..issuer() }, ES256, CLAIMS).unwrap_err().clause, UNKNOWN_KEY);
}

#[test]
fn a_token_satisfies_one_of_its_issuers_policies_with_key_and_audience_together() {
    let with_key = |id, aud: &str| Issuer {
        keys: vec![Key { id: KeyId([id; 32]), kid: None, algorithms: vec![Algorithm::ES256] }],
        audiences: vec![aud.to_string()],
        ..issuer()
    };
    let both = spec(vec![with_key(1, "shop"), with_key(2, "admin")]);
    let judge = |aud: &str, verified| {
        let authorization = format!("Bearer {}", token(ES256, &CLAIMS.replace(r#""shop""#, aud)));
        Program::new(both.clone()).judge(&RequestInput { verified, ..bearing(&authorization) })
    };
    let wanted = |aud: &str| match judge(aud, None) {
        Output::Unverified(want) => want.keys,
        other => panic!("{other:?}"),
    };
    assert_eq!(wanted(r#""shop""#), [KeyId([1; 32])]);
    assert_eq!(wanted(r#""admin""#), [KeyId([2; 32])]);
    assert_eq!(wanted(r#"["admin","shop"]"#), [KeyId([1; 32]), KeyId([2; 32])], "either may have made it");
    for (aud, key, good) in [
        (r#""shop""#, 1, true),
        (r#""shop""#, 2, false),
        (r#""admin""#, 1, false),
        (r#""admin""#, 2, true),
        (r#"["admin","shop"]"#, 2, true),
    ] {
        let allowed = match judge(aud, Some(KeyId([key; 32]))) {
            Output::Decided(decision) => matches!(decision.verdict, Verdict::Allow { .. }),
            _ => false,
        };
        assert_eq!(allowed, good, "{aud} by {key}");
    }
}

#[test]
fn until_its_keys_are_there_a_token_is_neither_good_nor_bad() {
    let pending = || Issuer { keys: vec![], keys_pending: true, ..issuer() };
    let bearing_claims = |claims: &str| format!("Bearer {}", token(ES256, claims));
    let authorization = bearing_claims(CLAIMS);
    let denial = denied(spec(vec![pending()]), &bearing(&authorization));
    assert_eq!((denial.status, denial.policy, denial.clause.as_str()), (503, PolicyKind::Authentication, KEYS_PENDING));
    assert_eq!(denial.headers, [("retry-after".to_string(), "1".to_string())]);
    // A token that no key could make valid is refused at once.
    for claims in [CLAIMS.replace("shop", "other"), CLAIMS.replace("1700000600", "1"), CLAIMS.replace("login", "evil")]
    {
        let authorization = bearing_claims(&claims);
        assert_eq!(denied(spec(vec![pending()]), &bearing(&authorization)).status, 401, "{claims}");
    }
    assert_eq!(denied(spec(vec![pending()]), &request()).status, 401, "no token");
    // Another policy's keys may have made the token; if they have not, the missing keys may have.
    let both = spec(vec![issuer(), pending()]);
    match Program::new(both.clone()).judge(&bearing(&authorization)) {
        Output::Unverified(want) => assert_eq!(want.denial.status, 503),
        other => panic!("{other:?}"),
    }
    assert_eq!(allowed(both, &RequestInput { verified: VERIFIED, ..bearing(&authorization) }), "all");
    let fetched = Issuer { keys_pending: false, ..pending() };
    assert_eq!(denied(spec(vec![fetched]), &bearing(&authorization)).status, 401, "a set without keys is a set");
}
