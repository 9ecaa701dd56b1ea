//! Counters and in-flight slots that many requests take at once.

use super::*;

#[test]
fn limits_count_whether_a_sandbox_ran_or_not() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::EdDSA);
        let mut config = token_config(&key);
        let parts = vec![KeyPart::Claim(vec!["sub".into()]), KeyPart::Path, KeyPart::Method, KeyPart::Address];
        config.inbound.rate_limits = vec![limit(3, parts), limit(5, vec![KeyPart::Header("x-team".into())])];
        let bench = Bench::new(engine, config);
        let token = sign(&key, CLAIMS);
        let mut runs = Vec::new();
        for remaining in [2, 1, 0] {
            let (judgement, told) = bench.ask(with_token(&token));
            drop(permitted(judgement));
            runs.push(told.judgement.unwrap().runs);
            assert_eq!(told.quotas[0].remaining, Some(remaining));
        }
        assert_eq!(runs, [2, 0, 0], "the first verifies the signature");
        let (judgement, told) = bench.ask(with_token(&token));
        let refusal = denied(judgement);
        assert_eq!(refusal.status, 429);
        assert!(refusal.headers.contains_key("retry-after"));
        assert_eq!(refusal.headers["ratelimit-remaining"], "0");
        let judgement = told.judgement.unwrap();
        assert_eq!((&*judgement.rule, judgement.runs), ("p/rateLimits/3", 0));
        assert_eq!(told.response.flag.as_deref(), Some("RL"));
        // Another subject has its own counter. The wider limit has two left.
        let bob = sign(&key, &CLAIMS.replace("ann", "bob"));
        let (judgement, told) = bench.ask(with_token(&bob));
        drop(permitted(judgement));
        let left: Vec<_> = told.quotas.iter().map(|quota| quota.remaining).collect();
        assert_eq!(left, [Some(2), Some(1)]);
    }
}

#[test]
fn a_denied_request_takes_nothing() {
    for engine in engines() {
        let mut config = open_config();
        config.inbound.authorization = vec![rule("p/authorization/none", Action::Deny)];
        config.inbound.rate_limits = vec![limit(3, Vec::new())];
        let bench = Bench::new(engine, config);
        assert_eq!(denied(bench.ask(get("/")).0).status, 403);
        assert_eq!(bench.policy_state.entries().counters, 0);
    }
}

#[test]
fn workers_cannot_admit_more_than_the_limit_together() {
    const THREADS: usize = 4;
    let mut config = open_config();
    config.inbound.rate_limits = vec![limit(50, Vec::new()), limit(1000, vec![KeyPart::Path])];
    for engine in engines() {
        let bench = Bench::new(engine, config.clone());
        let (policy_state, entry, barrier) = (&bench.policy_state, &bench.entry, Barrier::new(THREADS));
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Bench::new(&Engine::inline(), open_config());
                        mine.judge = Judge::new(policy_state.clone(), Rc::new(Random::from_system().unwrap()));
                        mine.entry = entry.clone();
                        barrier.wait();
                        (0..40).filter(|_| matches!(mine.ask(get("/")).0, Judgement::Permitted(_))).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 50);
        let wide =
            bench.policy_state.limits.function(&"shop/orders".parse().unwrap()).read("p/rateLimits/1000", "1:/;").state;
        assert_eq!(wide.used, 50, "the refused gave back what they had taken from the other counter");
    }
}

fn guarded(max_requests: u32) -> FunctionConfig {
    let mut config = open_config();
    config.inbound.targets[0].breaker = Some(Breaker {
        name: "p/circuitBreaker".into(),
        max_connections: 9,
        max_pending: 9,
        max_requests,
        outlier: None,
    });
    config
}

#[test]
fn a_slot_in_flight_is_held_as_long_as_the_ruling() {
    for engine in engines() {
        let bench = Bench::new(engine, guarded(2));
        let one = permitted(bench.ask(get("/")).0);
        let _two = permitted(bench.ask(get("/")).0);
        let (judgement, told) = bench.ask(get("/"));
        assert_eq!(denied(judgement).status, 503);
        assert_eq!(told.judgement.unwrap().rule, "p/circuitBreaker");
        assert_eq!(told.response.flag.as_deref(), Some("UO"));
        drop(one);
        drop(permitted(bench.ask(get("/")).0));
        // An inbound request is not counted, because the caller's sidecar has counted it.
        let bench =
            Bench { direction: TrafficDirection::Inbound, identity: Some("spiffe://td.example/ns/a/sa/b"), ..bench };
        let _three = permitted(bench.ask(get("/")).0);
        let _four = permitted(bench.ask(get("/")).0);
        assert_eq!(bench.policy_state.health.get(&"shop/orders".parse().unwrap()).load(1, Instant::now()).requests, 1);
    }
}

#[test]
fn slots_are_never_oversubscribed() {
    const THREADS: usize = 4;
    let bench = Bench::new(&engines()[0], guarded(3));
    let (policy_state, entry, barrier) = (&bench.policy_state, &bench.entry, Barrier::new(THREADS));
    for _ in 0..20 {
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Bench::new(&Engine::inline(), open_config());
                        mine.judge = Judge::new(policy_state.clone(), Rc::new(Random::from_system().unwrap()));
                        mine.entry = entry.clone();
                        barrier.wait();
                        let judgement = mine.ask(get("/")).0;
                        barrier.wait();
                        usize::from(matches!(judgement, Judgement::Permitted(_)))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 3);
    }
}

#[test]
fn failures_of_authentication_are_limited_and_nothing_else_is() {
    for engine in engines() {
        let (key, other) = (SigningKey::generate(Algorithm::ES256), SigningKey::generate(Algorithm::ES256));
        let mut config = token_config(&key);
        let failures = RateLimit { counts: Counts::AuthenticationFailures, ..limit(3, vec![KeyPart::Address]) };
        config.inbound.rate_limits = vec![limit(100, Vec::new()), failures];
        let bench = Bench::new(engine, config);
        let good = sign(&key, CLAIMS);
        for _ in 0..5 {
            drop(permitted(bench.ask(with_token(&good)).0));
        }
        // First a forged signature, which the runtime finds. Then expired claims, which the program
        // refuses. Then no token at all.
        let expired = sign(&key, &CLAIMS.replace("4102444800", "1000000000"));
        let bad = [with_token(&sign(&other, CLAIMS)), with_token(&expired), get("/orders")];
        for (request, left) in bad.into_iter().zip([2, 1, 0]) {
            let (judgement, told) = bench.ask(request);
            assert_eq!(denied(judgement).status, 401);
            assert_eq!((&*told.quotas[0].limit, told.quotas[0].remaining), ("p/rateLimits/3", Some(left)));
        }
        for request in [with_token(&sign(&other, CLAIMS)), with_token(&expired), get("/orders")] {
            let (judgement, told) = bench.ask(request);
            let refusal = denied(judgement);
            assert_eq!(refusal.status, 429);
            assert!(refusal.headers.contains_key("retry-after") && !refusal.headers.contains_key("www-authenticate"));
            let judgement = told.judgement.unwrap();
            assert_eq!((judgement.policy.as_deref(), &*judgement.rule), (Some("rateLimits"), "p/rateLimits/3"));
            assert_eq!(told.response.flag.as_deref(), Some("RL"));
        }
        drop(permitted(bench.ask(with_token(&good)).0));
        let state = bench.policy_state.function(&"shop/orders".parse().unwrap());
        assert_eq!(state.limits.read("p/rateLimits/100", "").state.used, 6, "a failure is no request");
    }
}

#[test]
fn a_limit_without_capacity_says_so_and_goes_on() {
    let mut config = open_config();
    config.inbound.rate_limits = vec![limit(2, vec![KeyPart::Header("x-team".into())])];
    let bench = Bench::new(&Engine::inline(), config);
    let from = |team: &str| bench.ask(get("/").header("x-team", team));
    let function = bench.policy_state.function(&"shop/orders".parse().unwrap());
    let limit = &bench.entry.config.inbound.rate_limits[0];
    let now_ms = u64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let mut number = 0;
    // Flood until the shared counter of "late" has one request left.
    let held = loop {
        let held = function.limits.read(&limit.name, "4:late;");
        if held.shared && held.state.used > 0 {
            break held;
        }
        let key = format!("{number};");
        let _ = function.limits.take(&[crate::state::limits::Demand { limit, key: &key, cost: 1 }], now_ms);
        number += 1;
    };
    assert_eq!(held.state.used, 1);
    let (judgement, told) = from("late");
    drop(permitted(judgement));
    assert_eq!((told.quotas[0].remaining, told.quotas[0].shared), (Some(0), true));
    let (judgement, told) = from("late");
    let refusal = denied(judgement);
    assert_eq!(refusal.status, 429);
    let wait: u64 = refusal.headers["retry-after"].to_str().unwrap().parse().unwrap();
    let over = ((1 << 40) - now_ms % (1 << 40)).div_ceil(1000);
    assert!(over.abs_diff(wait) < 3600, "when the window is over: {wait}, {over}");
    assert_eq!((told.quotas[0].remaining, told.quotas[0].shared), (None, true));
    let text = bench.telemetry.exposition(bench.policy_state.entries()).finish();
    for line in [
        r#"leno_rate_limit_overflow_total{function="shop/orders",limit="p/rateLimits/2"} 2"#,
        r#"leno_rate_limit_counters{function="shop/orders",limit="p/rateLimits/2"} "#,
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
