use super::{MAX_PART, QuotaState, Subject, exhausted, key_values, limit_headers, render_key, take, tightest};
use crate::input::RequestInput;
use crate::outcome::{HeaderEdit, Output, PolicyKind, Take, Verdict};
use crate::program::Program;
use crate::spec::{
    ClaimPath, Counts, Issuer, KeyId, KeyPart, Matches, Operation, PathMatch, ProgramSpec, QuotaAlgorithm, RateLimit,
    StringMatch, Target,
};
use crate::testing::{self, NOW_MS, decide, denied, header, request, token};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const BUCKET: QuotaAlgorithm = QuotaAlgorithm::TokenBucket { requests: 10, period_ms: 1_000, burst: 20 };
const WINDOW: QuotaAlgorithm = QuotaAlgorithm::FixedWindow { requests: 3, period_ms: 1_000 };

#[test]
fn a_bucket() {
    let mut state = QuotaState::default();
    for left in (0..20).rev() {
        let taken = take(&BUCKET, state, NOW_MS, 1);
        assert_eq!((taken.allowed, taken.remaining, taken.limit), (true, left, 20));
        state = taken.state;
    }
    let refused = take(&BUCKET, state, NOW_MS, 1);
    assert_eq!((refused.allowed, refused.remaining, refused.retry_after_ms, refused.reset_ms), (false, 0, 100, 2_000));
    assert_eq!(refused.state, state, "a refusal costs nothing");
    assert!(!take(&BUCKET, state, NOW_MS + 99, 1).allowed);
    let refilled = take(&BUCKET, state, NOW_MS + 100, 1);
    assert_eq!((refilled.allowed, refilled.remaining), (true, 0));
    assert_eq!(take(&BUCKET, state, NOW_MS + 2_000, 1).remaining, 19, "full again");
    assert_eq!(take(&BUCKET, state, NOW_MS + 1_000_000, 1).remaining, 19, "and not fuller");
    assert_eq!(take(&BUCKET, state, NOW_MS + 1_000, 0).remaining, 10, "looking costs nothing");
    assert_eq!(take(&BUCKET, state, NOW_MS + 2_000, 0).state.used, 0, "nothing to remember");
    assert!(!take(&BUCKET, QuotaState::default(), NOW_MS, 21).allowed, "more than it can hold");
}

#[test]
fn a_window() {
    let mut state = QuotaState::default();
    for left in [2, 1, 0] {
        let taken = take(&WINDOW, state, NOW_MS + 400, 1);
        assert_eq!((taken.allowed, taken.remaining, taken.limit, taken.reset_ms), (true, left, 3, 600));
        state = taken.state;
    }
    let refused = take(&WINDOW, state, NOW_MS + 999, 1);
    assert_eq!((refused.allowed, refused.retry_after_ms, refused.state), (false, 1, state));
    assert!(take(&WINDOW, state, NOW_MS + 1_000, 1).allowed);
    assert_eq!(take(&WINDOW, state, NOW_MS + 1_000, 0).state.used, 0, "nothing to remember");
    assert!(!take(&WINDOW, QuotaState::default(), NOW_MS, 4).allowed);
}

#[test]
fn a_clock_that_steps_back() {
    for algorithm in [BUCKET, WINDOW] {
        let mut state = QuotaState::default();
        while take(&algorithm, state, NOW_MS, 1).allowed {
            state = take(&algorithm, state, NOW_MS, 1).state;
        }
        assert!(!take(&algorithm, state, NOW_MS - 500, 1).allowed, "a little refills nothing");
        assert!(take(&algorithm, state, NOW_MS - 3_600_000, 1).allowed, "an hour does not block for an hour");
        assert!(take(&algorithm, state, 0, 1).allowed);
    }
}

#[test]
fn extremes_do_not_overflow() {
    let most = u32::MAX;
    for algorithm in [
        QuotaAlgorithm::TokenBucket { requests: most, period_ms: 1, burst: most },
        QuotaAlgorithm::TokenBucket { requests: 1, period_ms: u64::MAX, burst: most },
        QuotaAlgorithm::TokenBucket { requests: 0, period_ms: 0, burst: 0 },
        QuotaAlgorithm::FixedWindow { requests: most, period_ms: u64::MAX },
        QuotaAlgorithm::FixedWindow { requests: 0, period_ms: 0 },
    ] {
        for used in [0, 1, u64::MAX] {
            for at_ms in [0, NOW_MS, u64::MAX] {
                for now_ms in [0, NOW_MS, u64::MAX] {
                    for cost in [0, 1, most] {
                        let taken = take(&algorithm, QuotaState { used, at_ms }, now_ms, cost);
                        assert!(taken.remaining <= taken.limit, "{algorithm:?} {taken:?}");
                        assert!(taken.allowed || taken.retry_after_ms > 0, "{algorithm:?} {taken:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    /// However requests are spread, a bucket admits at most the burst and the refill since, and
    /// hardly less.
    #[test]
    fn a_bucket_admits_what_it_should(
        requests in 1u32..2_000,
        period_ms in 1u64..100_000,
        burst in 1u32..50,
        pauses in prop::collection::vec(0u64..2_000, 1..300),
    ) {
        let algorithm = QuotaAlgorithm::TokenBucket { requests, period_ms, burst };
        let (mut state, mut now, mut admitted) = (QuotaState::default(), NOW_MS, 0u64);
        for pause in &pauses {
            now += pause;
            let taken = take(&algorithm, state, now, 1);
            if taken.allowed {
                admitted += 1;
                state = taken.state;
            } else {
                prop_assert!(!take(&algorithm, state, now + taken.retry_after_ms - 1, 1).allowed);
                prop_assert!(take(&algorithm, state, now + taken.retry_after_ms, 1).allowed);
            }
        }
        let refilled = u128::from(now - NOW_MS) * u128::from(requests) / u128::from(period_ms);
        prop_assert!(u128::from(admitted) <= u128::from(burst) + refilled);
    }

    /// Under steady demand a bucket gives at least 99.8 % of its refill.
    #[test]
    fn a_bucket_loses_hardly_anything(requests in 1u32..5_000, period_ms in 1u64..10_000, pause in 1u64..50) {
        let algorithm = QuotaAlgorithm::TokenBucket { requests, period_ms, burst: 1 };
        let (mut state, mut now, mut admitted) = (take(&algorithm, QuotaState::default(), NOW_MS, 1).state, NOW_MS, 0u64);
        for _ in 0..2_000 {
            now += pause;
            let taken = take(&algorithm, state, now, 1);
            if taken.allowed {
                admitted += 1;
                state = taken.state;
            }
        }
        // A bucket of one cannot save up between two requests.
        let each = (u128::from(period_ms) * 1_000).div_ceil(u128::from(requests) * u128::from(pause));
        let expected = 2_000_000 / each.max(1_000).next_multiple_of(1_000) - 1;
        prop_assert!(u128::from(admitted) * 1_002 / 1_000 + 1 >= expected, "{admitted} of {expected}");
    }

    #[test]
    fn a_window_never_admits_more_than_its_limit(
        requests in 0u32..20,
        period_ms in 1u64..5_000,
        pauses in prop::collection::vec(0u64..500, 1..300),
    ) {
        let algorithm = QuotaAlgorithm::FixedWindow { requests, period_ms };
        let (mut state, mut now) = (QuotaState::default(), NOW_MS);
        let (mut window, mut admitted) = (0, 0u32);
        for pause in &pauses {
            now += pause;
            if now / period_ms != window {
                (window, admitted) = (now / period_ms, 0);
            }
            let taken = take(&algorithm, state, now, 1);
            prop_assert_eq!(taken.allowed, admitted < requests);
            if taken.allowed {
                admitted += 1;
                state = taken.state;
            }
        }
    }
}

fn key_of(parts: &[KeyPart], header: Option<&[u8]>, claim: Option<&str>, path: &str) -> String {
    let subject = Subject {
        identity: Some("spiffe://td/ns/a/sa/b"),
        address: Some("::ffff:10.0.0.1".parse().unwrap()),
        method: "GET",
        path,
        header: &|_| header,
        claim: &|_: &ClaimPath| claim.map(|text| Cow::Owned(text.to_string())),
    };
    render_key(parts, &subject)
}

#[test]
fn a_key_gives_its_values_back() {
    let parts = [KeyPart::Method, KeyPart::Header("a".to_string()), KeyPart::Path, KeyPart::Claim(Vec::new())];
    let values = |key: &str| key_values(key).map(|value| value.map(ToString::to_string)).collect::<Vec<_>>();
    let own = |value: &str| Some(value.to_string());
    let long = "a".repeat(MAX_PART + 1);
    let key = key_of(&parts, Some(b"1:x;-;"), None, &long);
    assert_eq!(values(&key), [own("GET"), own("1:x;-;"), None, None]);
    assert_eq!(values(&key_of(&parts, Some(b"\xff"), Some("x"), "/é")), [own("GET"), own("ff"), own("/é"), own("x")]);
    for broken in ["5:abc;", "x", "1:é;", "99999999999999999999999:a;", ":;"] {
        assert_eq!(values(broken), [], "{broken}");
    }
}

#[test]
fn who_has_one_address_of_a_network_has_them_all() {
    let key = |address: &str| {
        let subject = Subject {
            identity: None,
            address: Some(address.parse().unwrap()),
            method: "GET",
            path: "/",
            header: &|_| None,
            claim: &|_: &ClaimPath| None,
        };
        render_key(&[KeyPart::Address], &subject)
    };
    for other in ["2001:db8:1:2::", "2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"] {
        assert_eq!(key("2001:db8:1:2:3::4"), key(other));
    }
    assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    assert_ne!(key("::1"), key("127.0.0.1"));
}

#[test]
fn keys() {
    let all = [
        KeyPart::Identity,
        KeyPart::Method,
        KeyPart::Path,
        KeyPart::Address,
        KeyPart::Header("h".to_string()),
        KeyPart::Claim(vec!["c".to_string()]),
    ];
    let key = key_of(&all, Some(b"x"), None, "/a");
    assert_eq!(key, "21:spiffe://td/ns/a/sa/b;3:GET;2:/a;8:10.0.0.1;1:x;-;");
    assert_eq!(key_of(&[], None, None, "/"), "");
    let header = [KeyPart::Header("h".to_string())];
    let long = "a".repeat(MAX_PART + 1);
    assert_eq!(key_of(&header, Some(long.as_bytes()), None, "/"), "+;", "long ones share a counter");
    assert_ne!(key_of(&header, Some(b"\xff"), None, "/"), key_of(&header, Some("\u{fffd}".as_bytes()), None, "/"));
    assert_ne!(key_of(&header, Some(b"\xff"), None, "/"), key_of(&header, Some(b"xff"), None, "/"));
}

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::of(prop_oneof![
        "[0-9:;+x-]{0,6}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..6)
    ])
}

proptest! {
    #[test]
    fn keys_are_equal_only_if_all_parts_are(
        one in (value(), prop::option::of("[0-9:;+x-]{0,6}"), "/[0-9:;]{0,3}"),
        other in (value(), prop::option::of("[0-9:;+x-]{0,6}"), "/[0-9:;]{0,3}"),
    ) {
        let parts = [KeyPart::Header("h".to_string()), KeyPart::Claim(vec!["c".to_string()]), KeyPart::Path];
        let key = |(header, claim, path): &(Option<Vec<u8>>, Option<String>, String)| {
            key_of(&parts, header.as_deref(), claim.as_deref(), path)
        };
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }
}

fn limit(name: &str, key: Vec<KeyPart>, requests: u32) -> RateLimit {
    let algorithm = QuotaAlgorithm::FixedWindow { requests, period_ms: 60_000 };
    RateLimit {
        name: name.to_string(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key,
        algorithm,
    }
}

fn spec(limits: Vec<RateLimit>) -> ProgramSpec {
    ProgramSpec { rate_limits: limits, ..testing::inbound() }
}

/// The counters that the request takes from.
fn takes(spec: ProgramSpec, input: &RequestInput<'_>) -> Vec<(u16, String)> {
    let decision = decide(spec, input);
    assert!(matches!(decision.verdict, Verdict::Allow { .. }), "{:?}", decision.verdict);
    assert!(decision.takes.iter().all(|take| take.cost == 1));
    decision.takes.into_iter().map(|take| (take.limit, take.key)).collect()
}

/// Takes from a fixed window of so many requests a minute of which so many are used.
fn take_of(requests: u32, used: u64) -> super::TakeResult {
    let state = QuotaState { used, at_ms: NOW_MS - NOW_MS % 60_000 };
    take(&limit("", vec![], requests).algorithm, state, NOW_MS, 1)
}

#[test]
fn a_request_takes_from_the_counters_of_all_limits() {
    let limits = vec![limit("a", vec![], 0), limit("b", vec![KeyPart::Method], 1)];
    let expected = [(0, String::new()), (1, "3:GET;".to_string())];
    assert_eq!(takes(spec(limits), &request()), expected, "whatever is left of them");
}

#[test]
fn the_tightest_counter_is_reported() {
    let taken = [take_of(10, 5), take_of(3, 0), take_of(7, 1)];
    let tightest = tightest(taken.into_iter()).unwrap();
    assert_eq!(tightest, taken[1]);
    let set = |name: &str, value: &str| HeaderEdit::Set(name.to_string(), value.to_string());
    let reset = (60_000 - NOW_MS % 60_000).div_ceil(1000).to_string();
    let expected = [set("ratelimit-limit", "3"), set("ratelimit-remaining", "2"), set("ratelimit-reset", &reset)];
    assert_eq!(limit_headers(&tightest), expected);
    assert_eq!(super::tightest(core::iter::empty()), None);
}

#[test]
fn an_exhausted_counter_refuses() {
    let taken = take_of(3, 3);
    assert!(!taken.allowed);
    assert!(limit_headers(&taken).contains(&HeaderEdit::Set("ratelimit-remaining".to_string(), "0".to_string())));
    let denial = exhausted("b", &taken);
    assert_eq!((denial.status, denial.policy, denial.rule.as_str()), (429, PolicyKind::RateLimit, "b"));
    assert_eq!(denial.clause, "all 3 requests are used");
    let wait = (60_000 - NOW_MS % 60_000).div_ceil(1000).to_string();
    assert_eq!(denial.headers, [("retry-after".to_string(), wait)]);
    assert_eq!(exhausted("b", &take_of(0, 0)).clause, "this node has no share of the limit");
}

#[test]
fn a_refused_request_takes_from_no_counter_of_requests() {
    let limits = vec![limit("a", vec![], 1)];
    let forbidden = ProgramSpec { authorization: vec![], ..spec(limits.clone()) };
    assert_eq!(decide(forbidden, &request()).takes, []);
    let anonymous = ProgramSpec { authentication: vec![testing::issuer()], ..spec(limits) };
    assert_eq!(decide(anonymous, &request()).takes, []);
}

#[test]
fn limits_for_some_requests() {
    let posts = Operation {
        methods: Matches { any: vec![StringMatch::Exact("POST".to_string())], none: vec![] },
        ..Operation::default()
    };
    let only = |only| spec(vec![RateLimit { only: Some(only), ..limit("a", vec![], 0) }]);
    assert_eq!(takes(only(posts.clone()), &request()), []);
    let taken = [(0, String::new())];
    assert_eq!(takes(only(posts), &RequestInput { method: "POST", ..request() }), taken);
    let login = Operation {
        paths: Matches { any: vec![PathMatch::Text(StringMatch::Exact("/login".to_string()))], none: vec![] },
        ..Operation::default()
    };
    for path in ["/login", "/login;x=1", "/%6cogin?x", "//login"] {
        assert_eq!(takes(only(login.clone()), &RequestInput { path, ..request() }), taken, "{path}");
    }
}

#[test]
fn one_path_has_one_counter() {
    let spec = spec(vec![limit("a", vec![KeyPart::Path], 1)]);
    let spellings = [
        ("6:/login;", &["/login", "/login;x=1", "/login;y?z", "/%6Cogin", "//./login"][..]),
        ("4:/@a:;", &["/@a:", "/%40a%3A", "/@a%3a;x", "/%40a:%3Bx"][..]),
    ];
    for (counter, paths) in spellings {
        for path in paths {
            let input = RequestInput { path, ..request() };
            assert_eq!(takes(spec.clone(), &input), [(0, counter.to_string())], "{path}");
        }
    }
}

/// If paths are forwarded as received, a server may take one for any of its readings.
#[test]
fn a_request_takes_from_the_counters_of_all_readings_of_its_path() {
    let target = Target { as_received: true, ..testing::target("shop/orders") };
    let as_received = |limits| ProgramSpec { targets: vec![target.clone()], ..spec(limits) };
    let keys = |limits, path| {
        let takes = takes(as_received(limits), &RequestInput { path, ..request() });
        takes.into_iter().map(|(_, key)| key).collect::<Vec<_>>()
    };
    let by_path = || vec![limit("a", vec![KeyPart::Path], 1)];
    assert_eq!(keys(by_path(), "/a/b"), ["4:/a/b;"]);
    assert_eq!(keys(by_path(), "/a%2fb"), ["4:/a/b;"]);
    assert_eq!(keys(by_path(), "/a//b%2Fc"), ["7:/a//b/c;", "8:/a/b%2Fc;", "6:/a/b/c;"]);
    assert_eq!(keys(vec![limit("a", vec![], 1)], "/a//b%2Fc"), [""], "once");
    let long = format!("//{}%2F", "a".repeat(MAX_PART));
    assert_eq!(keys(by_path(), &long), ["+;"], "what is too long has one counter");
    let login = StringMatch::Exact("/login/x".to_string());
    let paths = Matches { any: vec![PathMatch::Text(login)], none: vec![] };
    let only = RateLimit { only: Some(Operation { paths, ..Operation::default() }), ..limit("a", vec![], 1) };
    assert_eq!(keys(vec![only], "/login%2Fx"), [""]);

    let many = (0..64).map(|_| limit("a", vec![KeyPart::Path], 1)).collect();
    let denial = denied(as_received(many), &RequestInput { path: "/a//b%2Fc", ..request() });
    assert_eq!((denial.status, denial.clause.as_str()), (400, "the path can be read in too many ways"));
}

const CLAIMS: &str = r#"{"iss":"https://login.example","sub":"ann","aud":"shop"}"#;

#[test]
fn a_claim_counts_once_its_token_is_verified() {
    let sub = KeyPart::Claim(vec!["sub".to_string()]);
    let mut spec = spec(vec![limit("a", vec![sub], 1), limit("b", vec![], 1)]);
    spec.authentication = vec![testing::issuer()];
    let authorization = format!("Bearer {}", token(r#"{"alg":"ES256","kid":"ec"}"#, CLAIMS));
    let input = RequestInput { headers: vec![header("authorization", &authorization)], ..request() };
    match Program::new(spec.clone()).judge(&input) {
        Output::Unverified(want) => assert_eq!((want.keys, want.failure), (vec![KeyId([2; 32])], vec![])),
        other => panic!("{other:?}"),
    }
    let verified = RequestInput { verified: Some(KeyId([2; 32])), ..input };
    assert_eq!(takes(spec, &verified), [(0, "3:ann;".to_string()), (1, String::new())]);
}

/// No claim of a refused token counts, and no request that authentication passes.
#[test]
fn a_request_that_authentication_refuses_takes_from_the_counters_of_failures() {
    let failures = |key| RateLimit { counts: Counts::AuthenticationFailures, ..limit("f", key, 1) };
    let sub = KeyPart::Claim(vec!["sub".to_string()]);
    let limits = vec![limit("a", vec![], 1), failures(vec![KeyPart::Address]), failures(vec![sub])];
    let with = |issuer| ProgramSpec { authentication: vec![issuer], ..spec(limits.clone()) };
    let failed = ["9:127.0.0.1;", "-;"].map(ToString::to_string);
    let failed = [1, 2].map(|limit| Take { limit, key: failed[usize::from(limit) - 1].clone(), cost: 1 });
    assert_eq!(decide(with(testing::issuer()), &request()).takes, failed);

    let authorization = format!("Bearer {}", token(r#"{"alg":"ES256","kid":"ec"}"#, CLAIMS));
    let input = RequestInput { headers: vec![header("authorization", &authorization)], ..request() };
    match Program::new(with(testing::issuer())).judge(&input) {
        Output::Unverified(want) => assert_eq!(want.failure, failed, "if the signature is wrong"),
        other => panic!("{other:?}"),
    }
    let verified = RequestInput { verified: Some(KeyId([2; 32])), ..input.clone() };
    assert_eq!(takes(with(testing::issuer()), &verified), [(0, String::new())]);
    // The client has not failed if the issuer's keys are missing, or if it may not do it.
    let pending = Issuer { keys: vec![], keys_pending: true, ..testing::issuer() };
    let forbidden = ProgramSpec { authorization: vec![], ..with(testing::issuer()) };
    for (spec, input, status) in [(with(pending), input, 503), (forbidden, verified, 403)] {
        assert_eq!(denied(spec.clone(), &input).status, status);
        assert_eq!(decide(spec, &input).takes, [], "{status}");
    }
}
