//! Programs that did not load, heads that do not fit, and decisions of a compromised sandbox.

use super::*;
use crate::state::function::ProgramError;
use leno_policy::spec::{Condition, ConditionKey, Matches, StringMatch};

#[test]
fn a_program_that_is_not_loaded_denies() {
    let mut entry = FunctionEntry::load(&engines()[0], open_config());
    entry.inbound.image = Err(ProgramError::Encoding(postcard::Error::SerializeBufferFull));
    let bench = Bench { entry: Arc::new(entry), ..Bench::new(&engines()[0], open_config()) };
    let (judgement, told) = bench.ask(get("/"));
    assert_eq!(denied(judgement).status, 503);
    let judgement = told.judgement.unwrap();
    assert_eq!(judgement.verdict, "error");
    assert!(judgement.clause.contains("serialize buffer is full"), "{}", judgement.clause);
    let text = bench.telemetry.exposition(bench.policy_state.entries()).finish();
    let fault = r#"leno_sandbox_faults_total{function="shop/orders",direction="inbound",fault="not_loaded"} 1"#;
    assert!(text.contains(fault), "{text}");
}

#[test]
fn a_head_that_no_sandbox_takes_is_refused() {
    for engine in engines() {
        let mut config = open_config();
        config.inbound.sidecar.request_headers = vec![HeaderRule::Remove("x-large".into())];
        let bench = Bench::new(engine, config);
        let large = "x".repeat(70_000);
        let (judgement, told) = bench.ask(get("/").header("x-large", &large));
        assert_eq!(denied(judgement).status, 431);
        assert_eq!(told.judgement.unwrap().verdict, "error");
        drop(permitted(bench.ask(get("/").header("x-other", large)).0));
        drop(permitted(bench.ask(get("/")).0));
    }
}

/// A program that compares each field `x-a` with thousands of texts. Its deadline is too short for
/// many such fields.
fn slow_config() -> FunctionConfig {
    let mut config = open_config();
    let any = (0..200).map(|number| StringMatch::Suffix(format!("-{number}"))).collect();
    let slow = Condition { key: ConditionKey::Header("x-a".into()), values: Matches { any, none: Vec::new() } };
    config.inbound.authorization = (0..50)
        .map(|_| AuthorizationRule { when: vec![slow.clone()], ..rule("p/authorization/slow", Action::Deny) })
        .chain(config.inbound.authorization)
        .collect();
    config.deadline = Duration::from_micros(600);
    config
}

#[test]
fn a_program_that_misses_its_deadlines_gets_a_short_one() {
    for engine in &engines()[1..] {
        let bench = Bench::new(engine, slow_config());
        let other = Bench::new(engine, open_config());
        let (class, own) = (bench.entry.class, bench.entry.config.deadline);
        let shortened = || bench.judge.deadline_budgets.deadline(class, own, Instant::now()) < own;
        assert!(!shortened());
        let long = || (0..2000).fold(get("/"), |request, _| request.header("x-a", "b"));
        for _ in 0..10_000 {
            if shortened() {
                break;
            }
            let (judgement, told) = bench.ask(long());
            assert_eq!(denied(judgement).status, 500);
            let clause = told.judgement.unwrap().clause;
            assert!(clause.contains("ran past its deadline"), "{clause}");
        }
        assert!(shortened());
        drop(permitted(other.ask(long()).0));
    }
}

#[test]
fn however_many_tokens_are_sent_none_costs_a_digest() {
    let key = SigningKey::generate(Algorithm::ES256);
    for engine in engines() {
        let bench = Bench::new(engine, token_config(&key));
        let token = sign(&key, CLAIMS);
        let mut many = get("/orders");
        for number in 0..100 {
            many = many.header("authorization", format!("Bearer {token}{}", number % 2));
        }
        let (judgement, told) = bench.ask(many);
        assert_eq!(denied(judgement).status, 401);
        assert!(told.judgement.unwrap().clause.contains("more than one token"));
        assert!(told.signatures.is_empty(), "{:?}", told.signatures);
        let twice = with_token(&token).header("authorization", format!("Bearer {token}"));
        let (judgement, told) = bench.ask(twice);
        drop(permitted(judgement));
        assert_eq!(told.signatures.len(), 1, "one text, one token: {:?}", told.signatures);
    }
}

#[test]
fn exchanges_without_a_verdict_are_logged_as_the_policy_says() {
    for enabled in [true, false] {
        let mut config = open_config();
        config.inbound.access_log.enabled = enabled;
        let mut entry = FunctionEntry::load(&engines()[0], config);
        entry.inbound.image = Err(ProgramError::Encoding(postcard::Error::SerializeBufferFull));
        let bench = Bench { entry: Arc::new(entry), ..Bench::new(&engines()[0], open_config()) };
        let (head, ()) = get("/").body(()).unwrap().into_parts();
        let record = bench.record(&head);
        drop(denied(bench.judge(head, &record)));
        assert_eq!(record.take().program.map(|program| program.access_log.enabled), Some(enabled));
    }
}

/// Carries out any decision, as a compromised sandbox might make it.
fn carry_out(change: impl FnOnce(&mut Decision)) -> (Result<Judgement, JudgeError>, ExchangeRecord) {
    let mut config = open_config();
    config.inbound.rate_limits = vec![limit(3, Vec::new())];
    config.inbound.access_log.request_headers = vec!["x-team".into()];
    let bench = Bench::new(&engines()[0], config);
    let (head, ()) = get("/").header("x-team", "a").header("authorization", "secret").body(()).unwrap().into_parts();
    let mut decision = Decision {
        verdict: Verdict::Allow { rule: "r".into() },
        path: None,
        request_edits: Vec::new(),
        takes: Vec::new(),
        principal: None,
        audit: None,
        window: Window::ALWAYS,
        target: Some(0),
        asks: vec![],
    };
    change(&mut decision);
    let record = bench.record(&head);
    let state = bench.judge.function(&bench.entry.config.id);
    let target: FunctionId = "shop/orders".parse().unwrap();
    let peer = bench.peer();
    let mut evaluation = bench.evaluation(&state, &target, &peer, &record);
    evaluation.note_span([1; 4], &head).unwrap();
    let judgement = evaluation
        .validate(decision, None)
        .and_then(|decision| at_once(evaluation.carry_out(&decision, Box::new(head), 1_700_000_000_000)));
    evaluation.conclude(Instant::now());
    let observed = record.take();
    (judgement, observed)
}

fn bad(change: impl FnOnce(&mut Decision)) -> BadOutput {
    match carry_out(change).0 {
        Err(JudgeError::BadOutput(bad)) => bad,
        other => panic!("{other:?}"),
    }
}

fn denial(status: u16) -> Denial {
    Denial {
        status,
        policy: PolicyKind::Authorization,
        rule: String::new(),
        default: false,
        clause: String::new(),
        headers: Vec::new(),
    }
}

#[test]
fn invalid_decisions_are_not_carried_out() {
    assert!(matches!(carry_out(|_| {}).0, Ok(Judgement::Permitted(_))), "the decision is good before it is spoilt");
    let set = |name: &str, value: &str| vec![HeaderEdit::Set(name.into(), value.into())];
    let take = |limit| Take { limit, key: String::new(), cost: 1 };
    assert_eq!(bad(|decision| decision.path = Some("/a b".into())), BadOutput::Path);
    assert_eq!(bad(|decision| decision.path = Some("http://evil/".into())), BadOutput::Path);
    assert!(matches!(bad(|d| d.request_edits = set("x-a", "a\r\nb: c")), BadOutput::HeaderValue(_)));
    assert!(matches!(bad(|d| d.request_edits = set("content-length", "0")), BadOutput::ForbiddenHeader(_)));
    assert_eq!(bad(|d| d.request_edits = set(":path", "/")), BadOutput::HeaderName);
    assert!(matches!(
        bad(|d| d.request_edits = vec![HeaderEdit::Remove("x-a".into()); 257]),
        BadOutput::TooMany { .. }
    ));
    assert!(matches!(bad(|d| d.takes = vec![take(1)]), BadOutput::Index { what: "rate limit", index: 1, count: 1 }));
    assert!(matches!(bad(|d| d.takes = vec![take(0); 65]), BadOutput::TooMany { what: "takes", .. }));
    assert!(matches!(bad(|d| d.target = Some(1)), BadOutput::Index { what: "target", index: 1, count: 1 }));
    assert!(matches!(bad(|d| d.asks = vec![0]), BadOutput::TooMany { what: "questions", count: 1, most: 0 }));
    assert_eq!(bad(|d| d.verdict = Verdict::Deny(denial(200))), BadOutput::Status(200));
    assert!(matches!(
        bad(|d| {
            let headers = vec![("host".into(), "evil".into())];
            d.verdict = Verdict::Deny(Denial { headers, ..denial(403) });
        }),
        BadOutput::ForbiddenHeader(_)
    ));
}

#[test]
fn only_headers_that_are_named_are_logged() {
    let (_, observed) = carry_out(|_| {});
    let logged: Vec<_> = observed.logged_headers.iter().map(|(name, value)| (name.as_str(), &**value)).collect();
    assert_eq!(logged, [("x-team", "a")]);
}

#[test]
fn a_decision_that_takes_more_than_there_is_is_refused_by_the_ledger() {
    let (judgement, observed) = carry_out(|decision| {
        decision.takes = vec![Take { limit: 0, key: String::new(), cost: 4 }];
    });
    let refusal = denied(judgement.unwrap());
    assert_eq!(refusal.status, 429);
    assert!(refusal.headers.contains_key("retry-after"));
    assert_eq!(observed.rate_limit_checks[0].remaining, None);
}
