//! Recorded requests are judged again as they would have been judged by the other program, or not
//! at all.

use super::*;
use crate::pipeline::judge::replay::{Records, ReplayReport, replay};
use leno_model::CandidatePrograms;
use leno_policy::spec::{Condition, ConditionKey, Matches, Operation, PathMatch, Source, StringMatch};

fn replayed(engine: &Engine, bench: &Bench, candidate: &FunctionConfig) -> ReplayReport {
    let records = Records::of(&bench.telemetry.ring);
    let until = Instant::now() + Duration::from_secs(600);
    replay(engine, &CandidatePrograms::of(candidate), &bench.entry, &records, until).unwrap()
}

fn header_rule(header: &str, value: &str) -> AuthorizationRule {
    let values = Matches { any: vec![StringMatch::Exact(value.into())], none: vec![] };
    let when = vec![Condition { key: ConditionKey::Header(header.into()), values }];
    AuthorizationRule { when, ..rule(&format!("p/authorization/{header}"), Action::Allow) }
}

fn only(rules: Vec<AuthorizationRule>) -> FunctionConfig {
    let mut config = testing::config("shop/orders");
    config.inbound.authorization = rules;
    config
}

fn path_rule(path: &str) -> AuthorizationRule {
    let paths = Matches { any: vec![PathMatch::Text(StringMatch::Prefix(path.into()))], none: vec![] };
    let to = vec![Operation { paths, ..Operation::default() }];
    AuthorizationRule { to, ..rule("p/authorization/paths", Action::Allow) }
}

fn query_rule(name: &str, value: &str) -> AuthorizationRule {
    let values = Matches { any: vec![StringMatch::Exact(value.into())], none: vec![] };
    let when = vec![Condition { key: ConditionKey::Query(name.into()), values }];
    AuthorizationRule { when, ..rule("p/authorization/query", Action::Allow) }
}

fn claim_rule(value: &str) -> AuthorizationRule {
    let values = Matches { any: vec![StringMatch::Exact(value.into())], none: vec![] };
    let when = vec![Condition { key: ConditionKey::Claim(vec!["sub".into()]), values }];
    AuthorizationRule { when, ..rule("p/authorization/claim", Action::Allow) }
}

fn namespace_rule(namespace: &str) -> AuthorizationRule {
    let namespaces = Matches { any: vec![StringMatch::Exact(namespace.into())], none: vec![] };
    let from = vec![Source { namespaces, ..Source::default() }];
    AuthorizationRule { from, ..rule("p/authorization/namespaces", Action::Allow) }
}

/// Programs of many kinds; those with authentication take tokens of this key.
fn programs(key: &SigningKey) -> Vec<FunctionConfig> {
    let authenticated = |rules: Vec<AuthorizationRule>| {
        let mut config = token_config(key);
        config.inbound.authorization = rules;
        config
    };
    let optional = |rules| {
        let mut config = authenticated(rules);
        config.inbound.authentication[0].required = false;
        config
    };
    let by_cookie_and_query = || {
        let mut config = authenticated(vec![rule("p/authorization/all", Action::Allow)]);
        config.inbound.authentication[0].sources =
            vec![TokenSource::Cookie("session".into()), TokenSource::Query("token".into())];
        config
    };
    let audited = AuthorizationRule { audit: true, ..rule("p/authorization/audited", Action::Deny) };
    let mut no_protocol = open_config();
    no_protocol.inbound.sidecar.protocols = vec![Protocol::Grpc];
    let mut no_port = open_config();
    no_port.inbound.sidecar.ports = vec![443];
    let mut limited = open_config();
    limited.inbound.rate_limits = vec![limit(1000, vec![KeyPart::Header("x-team".into())])];
    vec![
        open_config(),
        only(vec![]),
        only(vec![path_rule("/orders")]),
        only(vec![path_rule("/other"), header_rule("x-team", "blue")]),
        only(vec![header_rule("x-other", "1"), rule("p/authorization/deny", Action::Deny)]),
        only(vec![query_rule("page", "1")]),
        only(vec![namespace_rule("shop")]),
        only(vec![audited, path_rule("/orders")]),
        authenticated(vec![rule("p/authorization/all", Action::Allow)]),
        authenticated(vec![claim_rule("ann")]),
        optional(vec![claim_rule("bob"), path_rule("/public")]),
        by_cookie_and_query(),
        no_protocol,
        no_port,
        limited,
    ]
}

fn requests(key: &SigningKey) -> Vec<http::request::Builder> {
    let other = SigningKey::generate(Algorithm::ES256);
    let (ann, forged) = (sign(key, CLAIMS), sign(&other, CLAIMS));
    let old = sign(key, r#"{"iss":"https://login.example","sub":"ann","exp":1}"#);
    let stranger = sign(key, r#"{"iss":"https://else.example","sub":"ann"}"#);
    vec![
        get("/orders/7"),
        get("/orders/7").header("x-team", "blue").header("x-other", "1"),
        get("/orders/7").header("x-team", "red").header("x-team", "blue"),
        get("/other"),
        get("/public/a"),
        get("/a/../orders/%7e"),
        get("/a/%2e%2e%2f/b"),
        get("/orders?page=1"),
        get("/orders?page=2"),
        get("/orders?page=1;page=2"),
        get("/orders?%zz"),
        with_token(&ann),
        with_token(&forged),
        with_token(&old),
        with_token(&stranger),
        with_token("opaque"),
        with_token(&ann).header("authorization", format!("Bearer {forged}")),
        get("/orders").header("authorization", "Basic YTpi"),
        get("/orders").header("cookie", format!("a=b; session={ann}; c=d")),
        get(&format!("/orders?page=1&token={ann}")),
        Request::options("/orders").header("host", "orders.example").header("origin", "https://a.example"),
        Request::get("/orders").header("host", "not a host"),
        get(&format!("/orders/{}", "x".repeat(2000))),
    ]
}

/// A program's verdict on a request: whether it allows it, and the rule.
fn decided(bench: &Bench, request: http::request::Builder) -> (bool, String) {
    let judgement = bench.ask(request).1.judgement.unwrap();
    (judgement.verdict == "allow", judgement.rule)
}

/// The records of every program, judged by every other program. A replay must give the verdict that
/// the other program would have given.
#[test]
fn a_replay_says_what_the_candidate_would_have_said_or_nothing() {
    let engine = &engines()[0];
    let key = SigningKey::generate(Algorithm::ES256);
    let count = requests(&key).len();
    let (mut judged, mut denied, mut allowed, mut pairs) = (0, 0, 0, 0);
    for (first, before) in programs(&key).into_iter().enumerate() {
        for (second, after) in programs(&key).into_iter().enumerate() {
            for (number, (one, other)) in requests(&key).into_iter().zip(requests(&key)).enumerate() {
                // ECDSA signatures differ each time, so the tokens of the two lists differ. The
                // verdicts do not.
                let bench = Bench {
                    identity: Some("spiffe://td.example/ns/shop/sa/web"),
                    ..Bench::new(engine, before.clone())
                };
                let candidate = Bench { identity: bench.identity, ..Bench::new(engine, after.clone()) };
                let (was, would) = (decided(&bench, one), decided(&candidate, other));
                let replayed = replayed(engine, &bench, &after);
                let of = format!(
                    "request {number}, recorded by program {first}, replayed by program {second}: {replayed:?}"
                );
                assert_eq!(replayed.judged + replayed.unjudged.values().sum::<u64>(), 1, "{of}");
                pairs += 1;
                if first == second && number < count - 1 && !replayed.unjudged.is_empty() {
                    // If a program replays its own records, only the inputs that are never recorded
                    // are missing.
                    let reasons: Vec<&String> = replayed.unjudged.keys().collect();
                    assert!(
                        reasons.iter().all(|reason| reason.contains("its token was not kept")
                            || reason.contains("its query was not kept")),
                        "{of}"
                    );
                }
                if replayed.judged == 0 {
                    continue;
                }
                judged += 1;
                denied += replayed.newly_denied;
                allowed += replayed.newly_allowed;
                let expected = (u64::from(was.0 && !would.0), u64::from(!was.0 && would.0));
                assert_eq!((replayed.newly_denied, replayed.newly_allowed), expected, "{was:?} {would:?} {of}");
                if let Some(example) = replayed.examples.first() {
                    assert_eq!((example.before.allowed, &example.before.rule), (was.0, &was.1), "{of}");
                    assert_eq!((example.after.allowed, &example.after.rule), (would.0, &would.1), "{of}");
                }
            }
        }
    }
    assert!(judged > pairs / 2 && denied > 200 && allowed > 200, "{judged} of {pairs}, {denied}, {allowed}");
}

#[test]
fn counts_and_examples_are_of_this_function_on_every_engine() {
    for engine in engines() {
        let bench = Bench::new(engine, open_config());
        for path in ["/orders/1", "/orders/2", "/admin/1", "/admin/2", "/admin/3"] {
            drop(permitted(bench.ask(get(path)).0));
        }
        let found = replayed(engine, &bench, &only(vec![path_rule("/orders")]));
        assert_eq!((found.judged, found.newly_denied, found.newly_allowed), (5, 3, 0));
        assert!(found.unjudged.is_empty() && found.left_out.is_empty());
        let example = &found.examples[0];
        assert_eq!((&*example.method, &*example.path, &*example.caller), ("GET", "/admin/3", "192.0.2.1"));
        assert_eq!((example.direction, &*example.request_id), ("gateway", "req-1"));
        assert_eq!(example.after.policy.as_deref(), Some("authorization"));
        assert!(example.after.clause.contains("/admin/3"), "{}", example.after.clause);
        let mut other = open_config();
        other.id = "shop/other".parse().unwrap();
        assert_eq!(replayed(engine, &bench, &other).judged, 0);
    }
}

#[test]
fn calls_of_the_function_are_judged_by_its_outbound_program() {
    let engine = &engines()[0];
    let mut config = open_config();
    config.outbound.targets = vec![testing::target("shop/inventory"), testing::target("shop/stock")];
    let bench = Bench {
        direction: TrafficDirection::Outbound,
        target: Some("shop/stock"),
        ..Bench::new(engine, config.clone())
    };
    let (head, ()) = get("/").body(()).unwrap().into_parts();
    let record = bench.record(&head);
    record.routed(&"shop/stock".into());
    drop(permitted(bench.judge(head, &record)));
    drop(record);
    config.outbound.targets.remove(1);
    let found = replayed(engine, &bench, &config);
    assert_eq!((found.judged, found.newly_denied), (1, 1));
    assert_eq!(found.examples[0].callee.as_deref(), Some("shop/stock"));
}

#[test]
fn what_depends_on_state_is_left_out_and_said() {
    let engine = &engines()[0];
    let mut config = open_config();
    config.inbound.rate_limits = vec![limit(2, Vec::new())];
    let bench = Bench::new(engine, config.clone());
    drop(permitted(bench.ask(get("/orders")).0));
    for _ in 0..3 {
        assert_eq!(replayed(engine, &bench, &config).judged, 1);
    }
    drop(permitted(bench.ask(get("/orders")).0));
    assert_eq!(denied(bench.ask(get("/orders")).0).status, 429, "replays have taken nothing");
    let found = replayed(engine, &bench, &config);
    assert_eq!((found.judged, found.newly_denied, found.newly_allowed), (2, 0, 0));
    assert_eq!(found.unjudged, [("rateLimits refused it, and that is not replayed".to_owned(), 1)].into());
    assert_eq!(found.left_out, ["rate limits"]);
    // A request that the replayed policies refuse is refused as before.
    let found = replayed(engine, &bench, &only(vec![]));
    assert_eq!((found.judged, found.newly_denied, found.newly_allowed), (3, 2, 0));
}

#[test]
fn what_was_not_kept_is_said_and_not_guessed() {
    let engine = &engines()[0];
    let bench = Bench::new(engine, open_config());
    drop(permitted(
        bench.ask(get("/orders?page=1").header("x-team", "blue").header("authorization", "Bearer a.b.c")).0,
    ));
    let key = SigningKey::generate(Algorithm::ES256);
    let reason = |candidate: &FunctionConfig| {
        replayed(engine, &bench, candidate).unjudged.into_keys().next().unwrap_or_default()
    };
    assert_eq!(reason(&only(vec![header_rule("x-team", "blue")])), "the value of its header x-team was not kept");
    assert_eq!(reason(&only(vec![query_rule("page", "1")])), "its query was not kept");
    assert_eq!(reason(&token_config(&key)), "nobody looked for a token in its header authorization when it was made");
    // The record shows that a field was not sent.
    assert_eq!(replayed(engine, &bench, &only(vec![header_rule("x-none", "1")])).newly_denied, 1);
}

#[test]
fn a_token_that_was_verified_is_known_by_its_key() {
    let engine = &engines()[0];
    let (key, other) = (SigningKey::generate(Algorithm::ES256), SigningKey::generate(Algorithm::ES256));
    let bench = Bench::new(engine, token_config(&key));
    drop(permitted(bench.ask(with_token(&sign(&key, CLAIMS))).0));
    let mut rotated = token_config(&other);
    rotated.inbound.authentication[0].keys[0].id = KeyId([7; 32]);
    let found = replayed(engine, &bench, &rotated);
    assert_eq!((found.judged, found.newly_denied), (1, 1), "{found:?}");
    assert!(found.examples[0].after.clause.contains("signature is not valid"));
    let mut fetched = token_config(&key);
    fetched.inbound.authentication[0].keys.clear();
    fetched.inbound.authentication[0].keys_pending = true;
    let found = replayed(engine, &bench, &fetched);
    assert_eq!(
        found.unjudged.into_keys().collect::<Vec<_>>(),
        ["this node has not fetched the key set of its token's issuer"]
    );
}

#[test]
fn requests_for_which_there_is_no_time_are_counted() {
    let engine = &engines()[0];
    let bench = Bench::new(engine, open_config());
    drop(permitted(bench.ask(get("/orders")).0));
    let records = Records::of(&bench.telemetry.ring);
    let found = replay(engine, &CandidatePrograms::of(&open_config()), &bench.entry, &records, Instant::now()).unwrap();
    assert_eq!((found.judged, found.skipped), (0, 1));
}
