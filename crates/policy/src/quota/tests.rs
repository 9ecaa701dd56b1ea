use super::{MAX_PART, Subject, key_values, render_key, take};
use crate::input::{QuotaEntry, QuotaState, RequestInput};
use crate::outcome::{HeaderEdit, Outcome, PolicyKind, Take, Verdict};
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
        address: "::ffff:10.0.0.1".parse().unwrap(),
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
            address: address.parse().unwrap(),
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

fn used(limit: u16, key: &str, used: u64) -> QuotaEntry<'_> {
    QuotaEntry { limit, key, state: QuotaState { used, at_ms: NOW_MS - NOW_MS % 60_000 } }
}

#[test]
fn counters_that_were_not_foreseen_are_asked_for() {
    let spec = spec(vec![limit("a", vec![], 1), limit("b", vec![KeyPart::Method], 1)]);
    let input = RequestInput { quotas: vec![used(0, "", 0), used(1, "wrong", 0)], ..request() };
    match Program::new(spec).judge(&input) {
        Outcome::Wants(wants) => {
            assert_eq!(wants.signature, None);
            assert_eq!(wants.quotas, [(1, "3:GET;".to_string())]);
        }
        Outcome::Decided(decision) => panic!("{decision:?}"),
    }
}

#[test]
fn all_limits_are_taken_from_and_the_tightest_is_reported() {
    let spec = spec(vec![limit("a", vec![], 10), limit("b", vec![], 3)]);
    let input = RequestInput { quotas: vec![used(0, "", 5), used(1, "", 0)], ..request() };
    let decision = decide(spec, &input);
    let take = |limit| Take { limit, key: String::new(), cost: 1 };
    assert_eq!(decision.takes, [take(0), take(1)]);
    let reported: Vec<_> = decision
        .response_edits
        .iter()
        .map(|edit| match edit {
            HeaderEdit::Set(name, value) => (name.as_str(), value.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    let reset = (60_000 - NOW_MS % 60_000).div_ceil(1000).to_string();
    assert_eq!(reported, [("ratelimit-limit", "3"), ("ratelimit-remaining", "2"), ("ratelimit-reset", reset.as_str())]);
}

#[test]
fn an_exhausted_limit_refuses() {
    let spec = spec(vec![limit("a", vec![], 10), limit("b", vec![], 3)]);
    let input = RequestInput { quotas: vec![used(0, "", 5), used(1, "", 3)], ..request() };
    let decision = decide(spec, &input);
    assert_eq!(decision.takes, [], "what is refused costs nothing");
    assert!(decision.response_edits.contains(&HeaderEdit::Set("ratelimit-remaining".to_string(), "0".to_string())));
    let Verdict::Deny(denial) = decision.verdict else { panic!("{:?}", decision.verdict) };
    assert_eq!((denial.status, denial.policy, denial.rule.as_str()), (429, PolicyKind::RateLimit, "b"));
    let wait = (60_000 - NOW_MS % 60_000).div_ceil(1000).to_string();
    assert_eq!(denial.headers, [("retry-after".to_string(), wait)]);
}

#[test]
fn limits_for_some_requests() {
    let posts = Operation {
        methods: Matches { any: vec![StringMatch::Exact("POST".to_string())], none: vec![] },
        ..Operation::default()
    };
    let only = |only| spec(vec![RateLimit { only: Some(only), ..limit("a", vec![], 0) }]);
    assert_eq!(decide(only(posts.clone()), &request()).takes, []);
    let input = RequestInput { method: "POST", quotas: vec![used(0, "", 0)], ..request() };
    assert_eq!(denied(only(posts), &input).rule, "a");
    let login = Operation {
        paths: Matches { any: vec![PathMatch::Text(StringMatch::Exact("/login".to_string()))], none: vec![] },
        ..Operation::default()
    };
    for path in ["/login", "/login;x=1", "/%6cogin?x", "//login"] {
        let input = RequestInput { path, quotas: vec![used(0, "", 0)], ..request() };
        assert_eq!(denied(only(login.clone()), &input).rule, "a", "{path}");
    }
}

#[test]
fn one_path_has_one_counter() {
    let program = Program::new(spec(vec![limit("a", vec![KeyPart::Path], 1)]));
    let spellings = [
        ("6:/login;", &["/login", "/login;x=1", "/login;y?z", "/%6Cogin", "//./login"][..]),
        ("4:/@a:;", &["/@a:", "/%40a%3A", "/@a%3a;x", "/%40a:%3Bx"][..]),
    ];
    for (counter, paths) in spellings {
        for path in paths {
            match program.judge(&RequestInput { path, ..request() }) {
                Outcome::Wants(wants) => assert_eq!(wants.quotas, [(0, counter.to_string())], "{path}"),
                Outcome::Decided(decision) => panic!("{decision:?}"),
            }
        }
    }
}

/// If paths are forwarded as received, a server may take one for any of its readings.
#[test]
fn a_request_takes_from_the_counters_of_all_readings_of_its_path() {
    let target = Target { as_received: true, ..testing::target("shop/orders") };
    let as_received = |limits| ProgramSpec { targets: vec![target.clone()], ..spec(limits) };
    let wanted = |limits, path| match Program::new(as_received(limits)).judge(&RequestInput { path, ..request() }) {
        Outcome::Wants(wants) => wants.quotas.into_iter().map(|(_, key)| key).collect::<Vec<_>>(),
        Outcome::Decided(decision) => panic!("{decision:?}"),
    };
    let by_path = || vec![limit("a", vec![KeyPart::Path], 1)];
    assert_eq!(wanted(by_path(), "/a/b"), ["4:/a/b;"]);
    assert_eq!(wanted(by_path(), "/a%2fb"), ["4:/a/b;"]);
    assert_eq!(wanted(by_path(), "/a//b%2Fc"), ["7:/a//b/c;", "8:/a/b%2Fc;", "6:/a/b/c;"]);
    assert_eq!(wanted(vec![limit("a", vec![], 1)], "/a//b%2Fc"), [""], "once");
    let long = format!("//{}%2F", "a".repeat(MAX_PART));
    assert_eq!(wanted(by_path(), &long), ["+;"], "what is too long has one counter");
    let login = StringMatch::Exact("/login/x".to_string());
    let paths = Matches { any: vec![PathMatch::Text(login)], none: vec![] };
    let only = RateLimit { only: Some(Operation { paths, ..Operation::default() }), ..limit("a", vec![], 1) };
    assert_eq!(wanted(vec![only], "/login%2Fx"), [""]);

    let used_up = [used(0, "4:/a/b;", 1)];
    let denial = denied(as_received(by_path()), &RequestInput { path: "/a%2fb", quotas: used_up.into(), ..request() });
    assert_eq!(denial.policy, PolicyKind::RateLimit, "none of them may be exhausted");
    let many = (0..64).map(|_| limit("a", vec![KeyPart::Path], 1)).collect();
    let denial = denied(as_received(many), &RequestInput { path: "/a//b%2Fc", ..request() });
    assert_eq!((denial.status, denial.clause.as_str()), (400, "the path can be read in too many ways"));
}

#[test]
fn a_signature_and_the_counters_behind_it_are_asked_for_at_once() {
    let sub = KeyPart::Claim(vec!["sub".to_string()]);
    let mut spec = spec(vec![limit("a", vec![sub], 1), limit("b", vec![], 1)]);
    spec.authentication = vec![Issuer { audiences: vec![], ..testing::issuer() }];
    let authorization =
        format!("Bearer {}", token(r#"{"alg":"ES256","kid":"ec"}"#, r#"{"iss":"https://login.example","sub":"ann"}"#));
    let mut input = RequestInput {
        headers: vec![header("authorization", &authorization)],
        quotas: vec![used(1, "", 0)],
        ..request()
    };
    let program = Program::new(spec);
    match program.judge(&input) {
        Outcome::Wants(wants) => {
            assert_eq!(wants.signature.map(|want| want.keys), Some(vec![KeyId([2; 32])]));
            assert_eq!(wants.quotas, [(0, "3:ann;".to_string())]);
        }
        Outcome::Decided(decision) => panic!("{decision:?}"),
    }
    input.verified = Some(KeyId([2; 32]));
    input.quotas.push(used(0, "3:ann;", 0));
    match program.judge(&input) {
        Outcome::Decided(decision) => {
            assert_eq!(decision.takes.len(), 2);
            assert_eq!(decision.facts, [Some("ann".to_string())]);
        }
        Outcome::Wants(wants) => panic!("{wants:?}"),
    }
}
