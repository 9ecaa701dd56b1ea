//! Tokens and claims of requests that are forwarded.

use super::*;

/// Of an allowed request: the path to forward, and the edits.
fn forwarded(issuer: Issuer, input: &RequestInput<'_>) -> (Option<String>, Vec<HeaderEdit>) {
    let input = RequestInput { verified: VERIFIED, ..input.clone() };
    let decision = decide(spec(vec![issuer]), &input);
    assert!(matches!(decision.verdict, Verdict::Allow { .. }), "{:?}", decision.verdict);
    (decision.path, decision.request_edits)
}

fn remove(name: &str) -> HeaderEdit {
    HeaderEdit::Remove(name.to_string())
}

fn set(name: &str, value: &str) -> HeaderEdit {
    HeaderEdit::Set(name.to_string(), value.to_string())
}

#[test]
fn the_token_is_taken_out_where_it_was() {
    let good = token(ES256, CLAIMS);
    let sources = vec![testing::bearer(), TokenSource::Query("t".to_string()), TokenSource::Cookie("c".to_string())];
    let everywhere = |forward| Issuer { sources: sources.clone(), forward, ..issuer() };
    let authorization = format!("Bearer {good}");
    assert_eq!(forwarded(everywhere(false), &bearing(&authorization)), (None, vec![remove("authorization")]));
    assert_eq!(forwarded(everywhere(true), &bearing(&authorization)), (None, vec![]));

    for (path, expected) in [
        (format!("/a?t={good}"), "/a"),
        (format!("/a?x=1&t={good}&y=2"), "/a?x=1&y=2"),
        (format!("/a?%74={good}&y=2&t="), "/a?y=2"),
        (format!("/a//b?t={good}&q=\u{fc}"), "/a/b?q=%C3%BC"),
    ] {
        let input = RequestInput { path: &path, ..request() };
        assert_eq!(forwarded(everywhere(false), &input), (Some(expected.to_string()), vec![]), "{path:.10}");
    }
    let cookie = format!("a=\"1\"; c={good}; b=2");
    let input = RequestInput { headers: vec![header("cookie", &cookie)], ..request() };
    assert_eq!(forwarded(everywhere(false), &input), (None, vec![set("cookie", "a=\"1\"; b=2")]));
    let cookie = format!("c={good}");
    let input =
        RequestInput { headers: vec![header("cookie", &cookie), header("authorization", &authorization)], ..request() };
    assert_eq!(forwarded(everywhere(false), &input), (None, vec![remove("authorization"), remove("cookie")]));
}

fn claim(path: &str) -> Vec<String> {
    path.split('.').map(ToString::to_string).collect()
}

#[test]
fn claims_become_headers_and_nobody_can_forge_them() {
    let copy = |path: &str, header: &str| (claim(path), header.to_string());
    let copying = Issuer {
        space_delimited_claims: vec![],
        claims_to_headers: vec![
            copy("sub", "x-sub"),
            copy("n.level", "x-level"),
            copy("n.staff", "x-staff"),
            copy("n.list", "x-list"),
            copy("absent", "x-absent"),
            copy("bad", "x-bad"),
        ],
        required: false,
        ..issuer()
    };
    let claims = claims(r#","sub":"ann","n":{"level":7,"staff":true,"list":["a"]},"bad":"a\r\nx-admin: 1""#);
    let authorization = format!("Bearer {}", token(ES256, &claims));
    let names = ["x-sub", "x-level", "x-staff", "x-list", "x-absent", "x-bad"];
    let mut headers: Vec<_> = names.iter().map(|name| header(name, "forged")).collect();
    headers.push(header("authorization", &authorization));
    let (_, edits) = forwarded(copying.clone(), &RequestInput { headers, ..request() });
    let expected = vec![
        remove("authorization"),
        set("x-sub", "ann"),
        set("x-level", "7"),
        set("x-staff", "true"),
        remove("x-list"),
        remove("x-absent"),
        remove("x-bad"),
    ];
    assert_eq!(edits, expected);
    let headers = names.iter().map(|name| header(name, "forged")).collect();
    let (_, edits) = forwarded(copying, &RequestInput { headers, ..request() });
    assert_eq!(edits, names.map(remove), "without a token too");
}

#[test]
fn values_that_are_no_header_values_are_left_out() {
    let copying = |value: &str| {
        let issuer = Issuer { claims_to_headers: vec![(claim("v"), "x".to_string())], ..issuer() };
        let authorization = format!("Bearer {}", token(ES256, &claims(&format!(r#","v":"{value}""#))));
        forwarded(issuer, &bearing(&authorization)).1.pop().unwrap()
    };
    assert_eq!(copying("Ann Müller"), set("x", "Ann Müller"));
    assert_eq!(copying(""), set("x", ""));
    for bad in [" a", "a ", r"a\u0000", r"a\tb", r"a\u007f", &"a".repeat(4097)] {
        assert_eq!(copying(bad), remove("x"), "{bad:.20}");
    }
}

#[test]
fn rules_see_what_the_function_will_see() {
    let copying =
        Issuer { claims_to_headers: vec![(claim("role"), "x-role".to_string())], required: false, ..issuer() };
    let condition = Condition {
        key: ConditionKey::Header("x-role".to_string()),
        values: Matches { any: vec![StringMatch::Exact("admin".to_string())], none: vec![] },
    };
    let mut spec = spec(vec![copying]);
    spec.authorization[0].when = vec![condition];
    let forged = RequestInput { headers: vec![header("x-role", "admin")], ..request() };
    assert_eq!(denied(spec.clone(), &forged).status, 403);
    let authorization = format!("Bearer {}", token(ES256, &claims(r#","role":"admin""#)));
    let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
    assert_eq!(allowed(spec, &input), "all");
}

#[test]
fn claims_in_rules() {
    let authorization = format!(
        "Bearer {}",
        token(
            ES256,
            &claims(r#","sub":"ann","realm_access":{"roles":["user","admin"]},"level":7,"scope":"read write""#)
        )
    );
    let input = RequestInput { verified: VERIFIED, ..bearing(&authorization) };
    let exact = |value: &str| Matches { any: vec![StringMatch::Exact(value.to_string())], none: vec![] };
    for (key, value, holds) in [
        (ConditionKey::Claim(claim("realm_access.roles")), "admin", true),
        (ConditionKey::Claim(claim("realm_access.roles")), "root", false),
        (ConditionKey::Claim(claim("level")), "7", true),
        (ConditionKey::Claim(claim("scope")), "write", true),
        (ConditionKey::Claim(claim("absent")), "x", false),
        (ConditionKey::Audience, "shop", true),
        (ConditionKey::Audience, "sho", false),
    ] {
        let mut spec = spec(vec![issuer()]);
        spec.authorization[0].when = vec![Condition { key: key.clone(), values: exact(value) }];
        let verdict = decide(spec, &input).verdict;
        assert_eq!(matches!(verdict, Verdict::Allow { .. }), holds, "{key:?} {value}");
    }
    let mut spec = spec(vec![issuer()]);
    let principals = |issuer: &str, subject: &str| {
        let [issuer, subject] = [issuer, subject].map(|text| StringMatch::Exact(text.to_string()));
        Matches { any: vec![PrincipalMatch { issuer, subject }], none: vec![] }
    };
    spec.authorization[0].from =
        vec![Source { request_principals: principals("https://login.example", "ann"), ..Source::default() }];
    assert_eq!(allowed(spec.clone(), &input), "all");
    spec.authorization[0].from[0].request_principals = principals("https://login.example", "bob");
    let denial = denied(spec, &input);
    assert_eq!(
        denial.clause, r#"from.requestPrincipals: the token's matches none of ["https://login.example/bob"]"#,
        "no claim in it"
    );
}
