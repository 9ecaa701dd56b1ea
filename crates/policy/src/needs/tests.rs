use super::Needs;
use crate::input::{Header, Peer, RequestInput};
use crate::outcome::{Output, Verdict};
use crate::program::Program;
use crate::spec::{
    Action, AuthorizationRule, Authorizer, Cidr, Condition, ConditionKey, Counts, HeaderRule, Issuer, KeyId, KeyPart,
    Matches, ProgramSpec, QuotaAlgorithm, RateLimit, Sidecar, Source, StringMatch, TokenSource,
};
use crate::testing::{self, header, request, token};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

#[test]
fn a_program_is_given_the_fields_that_it_declares_and_their_twins() {
    let needs = Needs::of(&testing::inbound());
    assert!(!needs.address && needs.tokens.is_empty());
    assert!(["", "host", "authorization", "cookie", "x-user"].iter().all(|name| !needs.gives(name)));

    let long = "x".repeat(300);
    let edits = ["x-user", &long].map(|name| HeaderRule::Remove(name.to_string())).to_vec();
    let sidecar = Sidecar { request_headers: edits, ..Sidecar::default() };
    let issuer = Issuer { sources: vec![testing::bearer()], ..testing::issuer() };
    let needs = Needs::of(&ProgramSpec { sidecar, authentication: vec![issuer], ..testing::inbound() });
    for (name, given) in [
        ("x-user", true),
        ("x_user", true),
        ("x-usex", false),
        ("x-users", false),
        ("authorization", true),
        ("cookie", false),
        (long.as_str(), true),
        (&long[1..], false),
    ] {
        assert_eq!(needs.gives(name), given, "{name:.20}");
    }
}

#[test]
fn a_program_is_given_the_address_if_a_source_or_a_key_names_it() {
    let block = Cidr { address: "10.0.0.0".parse().unwrap(), prefix: 8 };
    let inside = || Source { addresses: Matches { any: vec![], none: vec![block] }, ..Source::default() };
    let mut rule = testing::inbound();
    rule.authorization[0].from = vec![Source::default(), inside()];
    let limited = |limit| ProgramSpec { rate_limits: vec![limit], ..testing::inbound() };
    for (spec, given) in [
        (rule, true),
        (limited(limit(vec![KeyPart::Path], vec![], vec![inside()])), true),
        (limited(limit(vec![KeyPart::Path], vec![inside()], vec![])), true),
        (limited(limit(vec![KeyPart::Path, KeyPart::Address], vec![], vec![])), true),
        (limited(limit(vec![KeyPart::Path, KeyPart::Identity], vec![Source::default()], vec![])), false),
    ] {
        assert_eq!(Needs::of(&spec).address, given, "{spec:?}");
    }
}

fn limit(key: Vec<KeyPart>, from: Vec<Source>, except: Vec<Source>) -> RateLimit {
    RateLimit {
        name: "l".to_string(),
        counts: Counts::Requests,
        only: None,
        from,
        except,
        audit: false,
        key,
        algorithm: QuotaAlgorithm::FixedWindow { requests: 1, period_ms: 1_000 },
    }
}

/// Names that programs and requests share. Some are alike to a function.
const NAMES: [&str; 12] = [
    "authorization",
    "cookie",
    "origin",
    "access-control-request-method",
    "access_control_request_method",
    "x-token",
    "x_token",
    "x-user",
    "x_user",
    "x-role",
    "x_role",
    "x-other",
];

fn name() -> impl Strategy<Value = String> {
    select(&NAMES[..]).prop_map(ToString::to_string)
}

/// Text that rules look for, and that requests send.
fn text() -> impl Strategy<Value = String> {
    "(ann|bob|)"
}

fn matches<T: core::fmt::Debug + Clone>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Matches<T>> {
    let some = prop::collection::vec(one, 0..2);
    (some, any::<bool>()).prop_map(|(some, positive)| match positive {
        true => Matches { any: some, none: vec![] },
        false => Matches { any: vec![], none: some },
    })
}

fn source() -> impl Strategy<Value = Source> {
    let block = select(vec!["10.0.0.0", "127.0.0.0", "::"])
        .prop_map(|address| Cidr { address: address.parse().unwrap(), prefix: 8 });
    matches(block).prop_map(|addresses| Source { addresses, ..Source::default() })
}

fn sources() -> impl Strategy<Value = Vec<Source>> {
    prop::collection::vec(source(), 0..2)
}

fn rule() -> impl Strategy<Value = AuthorizationRule> {
    let key = prop_oneof![
        4 => name().prop_map(ConditionKey::Header),
        1 => Just(ConditionKey::Claim(vec!["sub".to_string()])),
        1 => Just(ConditionKey::Query("q".to_string())),
    ];
    let value = prop_oneof![text().prop_map(StringMatch::Exact), Just(StringMatch::Present), Just(StringMatch::Any)];
    let condition = (key, matches(value)).prop_map(|(key, values)| Condition { key, values });
    let action = prop_oneof![3 => Just(Action::Allow), 1 => Just(Action::Deny)];
    (action, sources(), prop::collection::vec(condition, 0..2), any::<bool>())
        .prop_map(|(action, from, when, audit)| AuthorizationRule { action, from, when, audit, ..testing::rule("r") })
}

fn policy() -> impl Strategy<Value = Issuer> {
    let places = vec![
        testing::bearer(),
        TokenSource::Header { name: "x-token".to_string(), prefix: String::new() },
        TokenSource::Query("t".to_string()),
        TokenSource::Cookie("c".to_string()),
    ];
    let copies = prop::collection::vec((Just(vec!["sub".to_string()]), name()), 0..2);
    (subsequence(places, 1..=2), copies, any::<[bool; 3]>()).prop_map(
        |(sources, claims_to_headers, [forward, required, preflight])| Issuer {
            sources,
            claims_to_headers,
            forward,
            required,
            preflight,
            ..testing::issuer()
        },
    )
}

fn rate_limit() -> impl Strategy<Value = RateLimit> {
    let part = prop_oneof![
        name().prop_map(KeyPart::Header),
        select(vec![KeyPart::Address, KeyPart::Path, KeyPart::Identity, KeyPart::Claim(vec!["sub".to_string()])]),
    ];
    (prop::collection::vec(part, 0..3), sources(), sources(), any::<bool>()).prop_map(
        |(key, from, except, failures)| {
            let counts = if failures { Counts::AuthenticationFailures } else { Counts::Requests };
            RateLimit { counts, ..limit(key, from, except) }
        },
    )
}

fn header_rule() -> impl Strategy<Value = HeaderRule> {
    prop_oneof![
        (name(), text()).prop_map(|(name, value)| HeaderRule::Set(name, value)),
        (name(), text()).prop_map(|(name, value)| HeaderRule::Append(name, value)),
        name().prop_map(HeaderRule::Remove),
    ]
}

fn spec() -> impl Strategy<Value = ProgramSpec> {
    let authorizer =
        name().prop_map(|name| Authorizer { name: "a".to_string(), only: vec![], headers: vec![name], audit: false });
    (
        prop::collection::vec(policy(), 0..3),
        prop::collection::vec(rule(), 0..3),
        any::<bool>(),
        prop::collection::vec(rate_limit(), 0..3),
        prop::collection::vec(authorizer, 0..2),
        prop::collection::vec(header_rule(), 0..3),
    )
        .prop_map(|(authentication, mut authorization, open, rate_limits, authorizers, request_headers)| {
            if open {
                authorization.push(testing::rule("all"));
            }
            let sidecar = Sidecar { request_headers, ..Sidecar::default() };
            ProgramSpec { authentication, authorization, rate_limits, authorizers, sidecar, ..testing::inbound() }
        })
}

/// A header value: one that rules look for, or a token.
fn value() -> impl Strategy<Value = String> {
    let claims = r#"{"iss":"https://login.example","sub":"ann","aud":"shop"}"#;
    let good = token(r#"{"alg":"ES256","kid":"ec"}"#, claims);
    let bearer = format!("Bearer {good}");
    let cookie = format!("a=b; c={good}");
    prop_oneof![text(), select(vec![good, bearer, cookie, "Bearer x".to_string(), "c=x".to_string()])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_program_looks_at_nothing_but_what_it_declares(
        spec in spec(),
        sent in prop::collection::vec((name(), value()), 0..8),
        (method, path) in (select(vec!["GET", "OPTIONS"]), select(vec!["/", "/a?q=ann", "/?t=x"])),
        address in select(vec!["10.1.2.3", "127.0.0.1", "192.0.2.1"]),
        verified in any::<bool>(),
    ) {
        let program = Program::new(spec);
        let headers: Vec<Header<'_>> = sent.iter().map(|(name, value)| header(name, value)).collect();
        let peer = Peer { identity: None, address: Some(address.parse().unwrap()) };
        let verified = verified.then_some(KeyId([2; 32]));
        let whole = RequestInput { method, path, headers, peer, verified, ..request() };
        let mut given = whole.clone();
        given.headers.retain(|header| program.needs().gives(header.name));
        given.peer.address = whole.peer.address.filter(|_| program.needs().address);
        prop_assert_eq!(program.judge(&given), program.judge(&whole));
    }
}

/// The test above compares decisions of every kind.
#[test]
fn its_programs_allow_refuse_and_ask() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut allowed, mut refused, mut asked) = (0, 0, 0);
    for _ in 0..500 {
        let spec = spec().new_tree(&mut runner).unwrap().current();
        let authorization = format!("Bearer {}", value().new_tree(&mut runner).unwrap().current());
        let input = RequestInput { headers: vec![header("authorization", &authorization)], ..request() };
        match Program::new(spec).judge(&input) {
            Output::Decided(decision) if matches!(decision.verdict, Verdict::Allow { .. }) => allowed += 1,
            Output::Decided(_) => refused += 1,
            Output::Unverified(_) => asked += 1,
            Output::Unreadable(reason) => panic!("{reason}"),
        }
    }
    assert!(allowed > 20 && refused > 20 && asked > 20, "{allowed} {refused} {asked}");
}
