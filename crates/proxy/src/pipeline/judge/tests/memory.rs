//! Decisions that are remembered.

use super::*;
use leno_policy::spec::{Condition, ConditionKey, Matches, Operation, PathMatch, Segment, Source, StringMatch};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn exactly(text: &str) -> Matches<StringMatch> {
    Matches { any: vec![StringMatch::Exact(text.into())], none: vec![] }
}

/// Allows GET of orders to one caller, and everything to a team.
fn some_rules() -> FunctionConfig {
    let mut config = testing::config("shop/orders");
    let path = PathMatch::Template(vec![Segment::Literal("orders".into()), Segment::Rest]);
    let paths = Matches { any: vec![path], none: vec![] };
    let operation = Operation { methods: exactly("GET"), paths, ..Operation::default() };
    let source = Source { identities: exactly("spiffe://td.example/ns/shop/sa/web"), ..Source::default() };
    let mut reads = rule("p/authorization/reads", Action::Allow);
    (reads.from, reads.to) = (vec![source], vec![operation]);
    let mut team = rule("p/authorization/team", Action::Allow);
    team.when = vec![Condition { key: ConditionKey::Header("x-team".into()), values: exactly("red") }];
    config.inbound.authorization = vec![reads, team];
    config
}

/// Runs, whether the decision was remembered, and the verdict.
fn told(bench: &Bench, request: http::request::Builder) -> (u8, bool, String) {
    let (_, told) = bench.ask(request);
    let judgement = told.judgement.unwrap();
    (judgement.runs, judgement.remembered, format!("{} {} {}", judgement.verdict, judgement.rule, judgement.clause))
}

#[test]
fn an_equal_request_is_judged_once() {
    for engine in engines() {
        let web = Some("spiffe://td.example/ns/shop/sa/web");
        let bench = Bench { identity: web, ..Bench::new(engine, some_rules()) };
        let (runs, remembered, verdict) = told(&bench, get("/orders/1"));
        assert_eq!((runs, remembered), (1, false));
        // Fields that no policy looks at make no difference.
        for request in [get("/orders/1"), get("/orders/1").header("x-request-id", "7").header("traceparent", "x")] {
            assert_eq!(told(&bench, request), (0, true, verdict.clone()));
        }
        let different = [
            get("/orders/2"),
            get("/orders/1?a=b"),
            Request::delete("/orders/1").header("host", "orders.example"),
            Request::get("/orders/1").header("host", "orders.example:80"),
            get("/orders/1").header("x-team", "red"),
            get("/orders/1").header("x_team", "red"),
        ];
        for request in different {
            assert_eq!(told(&bench, request).0, 1);
        }
        let (runs, remembered, verdict) = told(&Bench { identity: None, ..bench }, get("/orders/1"));
        assert_eq!((runs, remembered), (1, false));
        assert!(verdict.starts_with("deny p/authorization/reads from.identities"), "{verdict}");
    }
}

#[test]
fn a_refusal_is_remembered_with_its_reason() {
    for engine in engines() {
        let bench = Bench::new(engine, some_rules());
        let (_, _, verdict) = told(&bench, get("/orders/1"));
        assert_eq!(told(&bench, get("/orders/1")), (0, true, verdict));
        assert_eq!(denied(bench.ask(get("/orders/1")).0).status, 403);
    }
}

#[test]
fn a_change_of_the_configuration_forgets_everything() {
    for engine in engines() {
        let bench = Bench::new(engine, some_rules());
        let red = || get("/").header("x-team", "red");
        drop(permitted(bench.ask(red()).0));
        assert_eq!(told(&bench, red()).0, 0);
        let mut closed = some_rules();
        closed.inbound.authorization.pop();
        let bench = Bench { entry: Arc::new(FunctionEntry::load(engine, closed)), ..bench };
        let (runs, _, verdict) = told(&bench, red());
        assert!(runs == 1 && verdict.starts_with("deny"), "{verdict}");
    }
}

#[test]
fn a_token_that_is_not_verified_is_never_remembered() {
    let (key, other) = (SigningKey::generate(Algorithm::EdDSA), SigningKey::generate(Algorithm::EdDSA));
    let bench = Bench::new(&engines()[0], token_config(&key));
    let (good, forged) = (sign(&key, CLAIMS), sign(&other, CLAIMS));
    for _ in 0..3 {
        let (judgement, told) = bench.ask(with_token(&forged));
        assert_eq!(denied(judgement).status, 401);
        assert_eq!((told.judgement.unwrap().runs, &*told.signatures[0].result), (1, "mismatch"));
    }
    for (runs, remembered) in [(2, false), (0, true), (0, true)] {
        let (judgement, told) = bench.ask(with_token(&good));
        let (head, _) = permitted(judgement);
        assert_eq!(head.headers["x-user"], "ann");
        let judgement = told.judgement.unwrap();
        assert_eq!((judgement.runs, judgement.remembered), (runs, remembered));
        assert_eq!(judgement.principal.as_deref(), Some("https://login.example/ann"));
    }
    // The same claims with a signature that one character spoils.
    let mut spoilt = good.into_bytes();
    let last = spoilt.len() - 2;
    spoilt[last] = if spoilt[last] == b'A' { b'B' } else { b'A' };
    let judgement = bench.ask(with_token(std::str::from_utf8(&spoilt).unwrap())).0;
    assert_eq!(denied(judgement).status, 401);
}

#[test]
fn a_decision_ends_with_its_token() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let bench = Bench::new(&engines()[0], token_config(&key));
    let token = sign(&key, CLAIMS);
    let decide = |now_ms| {
        let (head, ()) = with_token(&token).body(()).unwrap().into_parts();
        let record = bench.record(&head);
        let (state, peer) = (bench.judge.function(&bench.entry.config.id), bench.peer());
        let target: FunctionId = "shop/orders".parse().unwrap();
        let mut evaluation = bench.evaluation(&state, &target, &peer, &record);
        let decision = evaluation.decide(&bench.judge, &head, now_ms).unwrap();
        let allowed = matches!(decision.verdict, crate::state::decisions::ValidVerdict::Allow { .. });
        (allowed, evaluation.runs.remembered)
    };
    const END: u64 = 4_102_444_800_000;
    assert_eq!(decide(END - 2), (true, false));
    assert_eq!(decide(END - 1), (true, true));
    assert_eq!(decide(END), (false, false));
    assert_eq!(decide(END + 1), (false, true));
    assert_eq!(decide(END - 1), (true, false), "the clock steps back");
}

#[test]
fn a_policy_may_ask_for_a_run_each_time() {
    for engine in engines() {
        let mut config = some_rules();
        config.inbound.sidecar.judge_each_request = true;
        let bench = Bench::new(engine, config);
        for _ in 0..3 {
            assert_eq!(told(&bench, get("/orders/1")).0, 1);
        }
    }
}

/// A request of few enough forms that many are equal.
fn request() -> impl Strategy<Value = (&'static str, String, Option<&'static str>, Vec<(&'static str, &'static str)>)> {
    let path = prop_oneof!["/(orders|a)(/[12])?(\\?x=[12])?", "/orders/\\.\\./[a%2f;]{0,3}"];
    let field = (
        prop::sample::select(vec!["x-team", "x_team", "x-user", "authorization", "b3", "x-other"]),
        prop::sample::select(vec!["red", "blue", "Bearer a.b.c"]),
    );
    (
        prop::sample::select(vec!["GET", "POST", "OPTIONS"]),
        path,
        prop::sample::select(vec![None, Some("spiffe://td.example/ns/shop/sa/web")]),
        prop::collection::vec(field, 0..3),
    )
}

/// Every remembered decision is that of a run: the same head goes on, with the same refusal, rule and
/// fields.
#[test]
fn a_remembered_decision_is_that_of_a_run() {
    let mut config = some_rules();
    let key = SigningKey::generate(Algorithm::EdDSA);
    config.inbound.authentication = token_config(&key).inbound.authentication;
    config.inbound.authentication[0].required = false;
    config.inbound.authentication[0].preflight = true;
    config.inbound.sidecar.request_headers = vec![HeaderRule::Set("x-user".into(), "mesh".into())];
    config.inbound.rate_limits = vec![limit(1_000_000, vec![KeyPart::Path, KeyPart::Header("x-team".into())])];
    // Spans are random.
    config.inbound.tracing.enabled = false;
    let mut anew = config.clone();
    anew.inbound.sidecar.judge_each_request = true;
    let (mut remembering, mut fresh) = (Bench::new(&Engine::inline(), config), Bench::new(&Engine::inline(), anew));
    let (mut runner, mut remembered) = (TestRunner::default(), 0);
    for _ in 0..2_000 {
        let (method, path, identity, fields) = request().new_tree(&mut runner).unwrap().current();
        (remembering.identity, fresh.identity) = (identity, identity);
        let shown = |bench: &Bench| {
            let builder = Request::builder().method(method).uri(&path).header("host", "orders.example");
            let builder = fields.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
            let (judgement, told) = bench.ask(builder);
            let outcome = match judgement {
                Judgement::Permitted(permitted) => format!("{:?}", permitted.into_parts().0),
                Judgement::Denied(refusal) => format!("{refusal:?}"),
            };
            let limits: Vec<_> = told.quotas.iter().map(|quota| (quota.limit.clone(), quota.remaining)).collect();
            let judged = told.judgement.unwrap();
            let shown = (outcome, judged.rule, judged.clause, judged.principal, limits, told.request_edits);
            (shown, judged.remembered)
        };
        let ((one, from_memory), (other, _)) = (shown(&remembering), shown(&fresh));
        assert_eq!(one, other, "{method} {path} {identity:?} {fields:?}");
        remembered += u32::from(from_memory);
    }
    assert!(remembered > 500, "{remembered} of 2000 were remembered");
}
