//! How long a decision on a token holds.

use super::*;
use crate::outcome::Window;
use proptest::prelude::*;

const MINUTE: u64 = 60_000;

/// The verdict on a token with these claims besides issuer and audience, and its window.
fn judged(issuers: Vec<Issuer>, more: &str) -> (Verdict, Window) {
    let authorization = format!("Bearer {}", token(ES256, &claims(more)));
    let decision = decide(spec(issuers), &RequestInput { verified: VERIFIED, ..bearing(&authorization) });
    assert!(decision.window.contains(NOW_MS), "{:?}", decision.window);
    (decision.verdict, decision.window)
}

#[test]
fn a_decision_holds_until_a_date_of_its_token_comes() {
    let now = NOW_MS / 1000;
    let window = |from_ms, until_ms| Window { from_ms, until_ms };
    let until = |until_ms| window(0, until_ms);
    let from = |from_ms| window(from_ms, u64::MAX);
    for (more, good, expected) in [
        (String::new(), true, Window::ALWAYS),
        (format!(r#","exp":{}"#, now + 60), true, until(NOW_MS + 2 * MINUTE)),
        (format!(r#","exp":{}"#, now - 59), true, until(NOW_MS + 1_000)),
        (format!(r#","exp":{}"#, now - 60), false, from(NOW_MS)),
        (format!(r#","nbf":{}"#, now + 60), true, from(NOW_MS)),
        (format!(r#","nbf":{}"#, now + 61), false, until(NOW_MS + 1_000)),
        (format!(r#","iat":{}"#, now), true, from(NOW_MS - MINUTE)),
        (format!(r#","iat":{}"#, now + 120), false, until(NOW_MS + MINUTE)),
        (format!(r#","nbf":{},"iat":{}"#, now - 60, now), true, from(NOW_MS - MINUTE)),
        (format!(r#","iat":{},"exp":{}"#, now - 60, now + 60), true, window(NOW_MS - 2 * MINUTE, NOW_MS + 2 * MINUTE)),
        // No other claim can make it good again.
        (format!(r#","exp":{},"nbf":{}"#, now - 600, now + 600), false, from(NOW_MS - 9 * MINUTE)),
    ] {
        let (verdict, window) = judged(vec![issuer()], &more);
        assert_eq!((matches!(verdict, Verdict::Allow { .. }), window), (good, expected), "{more}");
    }
    let optional = Issuer { required: false, ..issuer() };
    assert_eq!(decide(spec(vec![optional]), &request()).window, Window::ALWAYS, "without a token");
}

#[test]
fn a_policy_that_refused_the_token_may_accept_it_later() {
    let now = NOW_MS / 1000;
    let strict = || Issuer { clock_skew_ms: 0, ..issuer() };
    let other = Issuer { audiences: vec!["other".to_string()], ..issuer() };
    let soon = format!(r#","nbf":{}"#, now + 30);
    let (verdict, window) = judged(vec![strict(), issuer()], &soon);
    assert!(matches!(verdict, Verdict::Allow { .. }), "the second allows more skew: {verdict:?}");
    assert_eq!(window, Window { from_ms: NOW_MS - MINUTE / 2, until_ms: NOW_MS + MINUTE / 2 });
    let (verdict, window) = judged(vec![strict(), other], &soon);
    assert!(matches!(verdict, Verdict::Deny(_)), "{verdict:?}");
    assert_eq!(window, Window { from_ms: NOW_MS - MINUTE / 2, until_ms: NOW_MS + MINUTE / 2 });
}

#[test]
fn only_a_window_that_ends_has_an_end() {
    assert_eq!(Window::ALWAYS.end_ms(), None);
    let window = Window { from_ms: 5, until_ms: 7 };
    assert_eq!(window.end_ms(), Some(7));
    assert_eq!([4, 5, 6, 7].map(|now_ms| window.contains(now_ms)), [false, true, true, false]);
}

/// Policies that may accept the token, or that of another issuer.
fn policy() -> impl Strategy<Value = Issuer> {
    let skew = prop::sample::select(vec![0, 1, 5_000, MINUTE, 10 * MINUTE, u64::MAX]);
    let iss = prop::sample::select(vec!["https://login.example", "https://login.example", "https://other.example"]);
    (skew, iss, "(shop|other)", any::<[bool; 4]>(), 1u8..=3).prop_map(
        |(clock_skew_ms, iss, audience, [required, preflight, require_expiration, keys_pending], key)| Issuer {
            issuer: iss.to_string(),
            audiences: vec![audience],
            keys: vec![Key { id: KeyId([key; 32]), ..issuer().keys[1].clone() }],
            clock_skew_ms,
            required,
            preflight,
            require_expiration,
            keys_pending,
            ..issuer()
        },
    )
}

/// A date of a token near the present, in seconds.
fn date() -> impl Strategy<Value = Option<u64>> {
    let now = NOW_MS / 1000;
    prop::option::of(prop_oneof![now - 700..now + 700, now - 2..now + 3, Just(0), Just(253_402_300_799)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_request_gets_the_same_decision_at_every_time_in_the_window(
        policies in prop::collection::vec(policy(), 1..4),
        dates in [date(), date(), date()],
        key in prop::option::of(1u8..=3),
        now_ms in prop_oneof![NOW_MS - 700_000..NOW_MS + 700_000, NOW_MS - 2..NOW_MS + 3, Just(0)],
        instants in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let dates = ["exp", "nbf", "iat"].iter().zip(dates).filter_map(|(name, date)| Some((name, date?)));
        let more: String = dates.map(|(name, date)| format!(r#","{name}":{date}"#)).collect();
        let authorization = format!("Bearer {}", token(ES256, &claims(&more)));
        let program = Program::new(spec(policies));
        let at = |now_ms| {
            let verified = key.map(|key| KeyId([key; 32]));
            program.judge(&RequestInput { now_ms, verified, ..bearing(&authorization) })
        };
        if let Output::Decided(decision) = at(now_ms) {
            let window = decision.window;
            prop_assert!(window.contains(now_ms), "{window:?}");
            // Times near the present, and both ends.
            let (first, last) = (window.from_ms, window.until_ms - 1);
            let near = first.max(now_ms.saturating_sub(1_000_000))..last.min(now_ms + 1_000_000) + 1;
            let length = usize::try_from(near.end - near.start).unwrap();
            let inside = instants.iter().map(|instant| near.start + instant.index(length) as u64);
            for then in inside.chain([first, last]) {
                prop_assert_eq!(at(then), Output::Decided(decision.clone()), "at {}, as at {}", then, now_ms);
            }
        }
    }
}
