//! The judge with real programs, on every engine, with real signatures.

use super::*;
use crate::record::{Observed, Recorder};
use crate::ring::Explanation;
use crate::telemetry::Telemetry;
use crate::testing::{self, SigningKey, sign};
use http::{Request, Response};
use leno_config::Slice;
use leno_policy::outcome::{Denial, Plan, Take, TracePlan};
use leno_policy::spec::{
    Action, Algorithm, AuthorizationRule, Breaker, HeaderRule, Issuer, Key, KeyId, KeyPart, QuotaAlgorithm, RateLimit,
    ResponseHeaderRule, TokenSource,
};
use leno_sandbox::Engine;
use std::sync::{Barrier, OnceLock};

/// All engines. There is no silent skipping: where one cannot be had, the tests fail and say why.
fn engines() -> &'static [Engine] {
    static ENGINES: OnceLock<[Engine; 3]> = OnceLock::new();
    ENGINES.get_or_init(|| [Engine::inline(), Engine::wasm().unwrap(), Engine::microvm().unwrap()])
}

/// A worker with its judge, and the sinks it records to.
struct Bench {
    telemetry: Telemetry,
    recorder: Rc<Recorder>,
    ledger: Arc<Ledger>,
    judge: Judge,
    entry: Arc<FunctionEntry>,
    entrance: Entrance,
    identity: Option<&'static str>,
    target: Option<&'static str>,
}

impl Bench {
    fn new(engine: &Engine, slice: Slice) -> Self {
        let (telemetry, ledger) = (Telemetry::quiet("td.example"), Ledger::new());
        let random = Rc::new(Random::from_system().unwrap());
        Self {
            recorder: Recorder::new(&telemetry),
            judge: Judge::new(ledger.clone(), random),
            entry: Arc::new(FunctionEntry::load(engine, slice)),
            telemetry,
            ledger,
            entrance: Entrance::Gateway,
            identity: None,
            target: Some("shop/orders"),
        }
    }

    fn record(&self, head: &request::Parts) -> Record {
        Record::new(&self.recorder, self.entrance, &self.peer(), Protocol::Http1, head, "req-1")
    }

    fn peer(&self) -> Peer {
        Peer { identity: self.identity.map(Arc::from), address: ([192, 0, 2, 1], 4711).into() }
    }

    fn judge(&self, head: request::Parts, record: &Record) -> Judgement {
        let target: Option<FunctionId> = self.target.map(|target| target.parse().unwrap());
        let ask = Ask {
            entry: &self.entry,
            entrance: self.entrance,
            peer: &self.peer(),
            target: target.as_ref(),
            protocol: Protocol::Http1,
            scheme: "http",
            port: 80,
            parent: None,
            endpoints: 1,
        };
        self.judge.request(ask, head, record)
    }

    /// Judges, and tells how it was recorded.
    fn ask(&self, request: http::request::Builder) -> (Judgement, Explanation) {
        let (head, ()) = request.body(()).unwrap().into_parts();
        let record = self.record(&head);
        let judgement = self.judge(head, &record);
        drop(record);
        (judgement, self.telemetry.ring.latest(1).remove(0))
    }
}

fn get(path: &str) -> http::request::Builder {
    Request::get(path).header("host", "orders.example")
}

fn with_token(token: &str) -> http::request::Builder {
    get("/orders").header("authorization", format!("Bearer {token}"))
}

fn permitted(judgement: Judgement) -> (request::Parts, Ruling) {
    match judgement {
        Judgement::Permitted(permitted) => permitted.into_parts(),
        Judgement::Denied(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn denied(judgement: Judgement) -> Refusal {
    match judgement {
        Judgement::Permitted(permitted) => panic!("permitted: {permitted:?}"),
        Judgement::Denied(refusal) => refusal,
    }
}

fn rule(name: &str, action: Action) -> AuthorizationRule {
    AuthorizationRule { name: name.into(), action, from: Vec::new(), to: Vec::new(), when: Vec::new() }
}

/// A function that lets everybody in.
fn open_slice() -> Slice {
    let mut slice = testing::slice("shop/orders");
    slice.inbound.authorization.push(rule("p/authorization/all", Action::Allow));
    slice
}

const KEY: KeyId = KeyId(0xabc);

/// A function that wants a token of this key.
fn token_slice(key: &SigningKey) -> Slice {
    let mut slice = open_slice();
    slice.keys = vec![key.verification_key(KEY)];
    slice.inbound.authentication.push(Issuer {
        name: "p/authentication/login".into(),
        issuer: "https://login.example".into(),
        audiences: Vec::new(),
        keys: vec![Key { kid: None, algorithms: vec![key.algorithm()], id: KEY }],
        sources: vec![TokenSource::Header { name: "authorization".into(), prefix: "Bearer ".into() }],
        clock_skew_ms: 0,
        forward: false,
        required: true,
        claims_to_headers: vec![(vec!["sub".into()], "x-user".into())],
    });
    slice
}

const CLAIMS: &str = r#"{"iss":"https://login.example","sub":"ann","exp":4102444800}"#;

fn limit(requests: u32, key: Vec<KeyPart>) -> RateLimit {
    let algorithm = QuotaAlgorithm::FixedWindow { requests, period_ms: 1 << 40 };
    RateLimit { name: format!("p/rateLimits/{requests}"), only: None, key, algorithm }
}

#[test]
fn a_permitted_request_goes_on_edited() {
    for engine in engines() {
        let mut slice = open_slice();
        slice.inbound.sidecar.request_headers.push(HeaderRule::Set("x-mesh".into(), "leno".into()));
        let bench = Bench::new(engine, slice);
        let (judgement, told) = bench.ask(get("/a/../orders/%7e?x=1").header("x-mesh", "forged"));
        let (head, ruling) = permitted(judgement);
        assert_eq!(head.uri, "/orders/~?x=1");
        assert_eq!(head.headers["x-mesh"], "leno");
        assert_eq!(ruling.entrance, Entrance::Gateway);
        let judgement = told.judgement.unwrap();
        assert_eq!((&*judgement.verdict, &*judgement.rule), ("allow", "p/authorization/all"));
        assert_eq!(judgement.engine, Some(engine.kind().to_string()));
        assert_eq!(judgement.runs, 1);
        assert!(judgement.path_changed);
        assert!(told.request_edits.contains(&"set x-mesh".to_owned()), "{:?}", told.request_edits);
        assert!(told.stages.judged_us.is_some());
    }
}

#[test]
fn http2_keeps_its_authority_when_the_path_changes() {
    let bench = Bench::new(&engines()[0], open_slice());
    let (judgement, _) = bench.ask(Request::get("https://orders.example:8443//orders?x"));
    assert_eq!(permitted(judgement).0.uri, "https://orders.example:8443/orders?x");
}

#[test]
fn what_nothing_allows_is_denied_and_the_record_says_why() {
    for engine in engines() {
        let bench = Bench::new(engine, testing::slice("shop/orders"));
        let (judgement, told) = bench.ask(get("/"));
        assert_eq!(denied(judgement).status, 403);
        let judgement = told.judgement.unwrap();
        assert_eq!((&*judgement.verdict, judgement.default), ("deny", true));
        assert_eq!(judgement.policy.as_deref(), Some("authorization"));
        assert!(!judgement.clause.is_empty());
    }
}

#[test]
fn a_signature_is_verified_once_and_remembered() {
    for engine in engines() {
        for algorithm in [Algorithm::RS256, Algorithm::PS256, Algorithm::ES256, Algorithm::ES384, Algorithm::EdDSA] {
            let key = SigningKey::generate(algorithm);
            let bench = Bench::new(engine, token_slice(&key));
            let token = sign(&key, CLAIMS);
            let results = ["good", "remembered", "remembered"].into_iter().zip([2, 1, 1]);
            for (result, runs) in results {
                let (judgement, told) = bench.ask(with_token(&token));
                let (head, _) = permitted(judgement);
                assert_eq!(head.headers["x-user"], "ann");
                assert!(!head.headers.contains_key("authorization"), "taken off");
                let judgement = told.judgement.unwrap();
                assert_eq!(judgement.runs, runs, "{algorithm:?} {result}");
                assert_eq!(judgement.principal.as_deref(), Some("https://login.example/ann"));
                let [check] = &told.signatures[..] else { panic!("{:?}", told.signatures) };
                assert_eq!((&*check.result, &*check.key), (result, "0000000000000abc"));
            }
        }
    }
}

#[test]
fn forged_and_missing_tokens_are_refused_and_never_remembered() {
    for engine in engines() {
        let (key, other) = (SigningKey::generate(Algorithm::ES256), SigningKey::generate(Algorithm::ES256));
        let bench = Bench::new(engine, token_slice(&key));
        for _ in 0..2 {
            let (judgement, told) = bench.ask(with_token(&sign(&other, CLAIMS)));
            let refusal = denied(judgement);
            assert_eq!(refusal.status, 401);
            assert!(refusal.headers.contains_key("www-authenticate"));
            assert_eq!(told.signatures[0].result, "mismatch");
            assert_eq!(told.judgement.unwrap().policy.as_deref(), Some("authentication"));
        }
        assert_eq!(denied(bench.ask(get("/orders")).0).status, 401);
        assert_eq!(bench.ledger.entries().1, 0);
    }
}

#[test]
fn a_remembered_signature_spares_nothing_but_the_signature() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::ES256);
        let bench = Bench::new(engine, token_slice(&key));
        let function = bench.ledger.function(&"shop/orders".parse().unwrap());
        let remember = |token: &str, key| {
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
            function.tokens.remember(digest.as_ref().try_into().unwrap(), key, Algorithm::ES256);
        };
        let expired = sign(&key, &CLAIMS.replace("4102444800", "1000000000"));
        let foreign = sign(&key, &CLAIMS.replace("login", "evil"));
        let good = sign(&key, CLAIMS);
        for token in [&expired, &foreign] {
            remember(token, KEY);
            assert_eq!(denied(bench.ask(with_token(token)).0).status, 401);
        }
        remember(&good, KeyId(0xdef));
        let (judgement, told) = bench.ask(with_token(&good));
        drop(permitted(judgement));
        assert_eq!(told.judgement.unwrap().runs, 2, "of a key that is none of the program's: verified anew");

        // The key set changes; the token is still remembered, but its key is trusted no more.
        remember(&good, KEY);
        let mut rotated = token_slice(&key);
        let fresh = SigningKey::generate(Algorithm::ES256);
        rotated.keys = vec![fresh.verification_key(KeyId(0xeee))];
        rotated.inbound.authentication[0].keys[0].id = KeyId(0xeee);
        let bench = Bench { entry: Arc::new(FunctionEntry::load(engine, rotated)), ..bench };
        assert_eq!(denied(bench.ask(with_token(&good)).0).status, 401);
    }
}

#[test]
fn what_one_function_verified_another_verifies_again() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let bench = Bench::new(&engines()[0], token_slice(&key));
    let token = sign(&key, CLAIMS);
    drop(permitted(bench.ask(with_token(&token)).0));
    let mut other = token_slice(&key);
    other.id = "shop/invoices".parse().unwrap();
    other.inbound.targets[0].function = "shop/invoices".into();
    let entry = Arc::new(FunctionEntry::load(&engines()[0], other));
    let bench = Bench { entry, target: Some("shop/invoices"), ..bench };
    assert_eq!(bench.ask(with_token(&token)).1.judgement.unwrap().runs, 2);
}

#[test]
fn limits_count_and_their_keys_are_foreseen() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::EdDSA);
        let mut slice = token_slice(&key);
        let parts = vec![KeyPart::Claim(vec!["sub".into()]), KeyPart::Path, KeyPart::Method, KeyPart::Address];
        slice.inbound.rate_limits = vec![limit(3, parts), limit(5, vec![KeyPart::Header("x-team".into())])];
        let bench = Bench::new(engine, slice);
        let token = sign(&key, CLAIMS);
        let mut runs = Vec::new();
        for remaining in [2, 1, 0] {
            let (judgement, told) = bench.ask(with_token(&token));
            drop(permitted(judgement));
            runs.push(told.judgement.unwrap().runs);
            assert_eq!(told.quotas[0].remaining, Some(remaining));
        }
        assert_eq!(runs[1..], [1, 1], "claims are known from the second request on");
        let (judgement, told) = bench.ask(with_token(&token));
        let refusal = denied(judgement);
        assert_eq!(refusal.status, 429);
        assert!(refusal.headers.contains_key("retry-after"));
        assert_eq!(refusal.headers["ratelimit-remaining"], "0");
        let judgement = told.judgement.unwrap();
        assert_eq!((&*judgement.rule, judgement.runs), ("p/rateLimits/3", 1));
        assert_eq!(told.response.flag.as_deref(), Some("RL"));
        // Another subject has a counter of its own; the wider limit has two left.
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
        let mut slice = open_slice();
        slice.inbound.authorization = vec![rule("p/authorization/none", Action::Deny)];
        slice.inbound.rate_limits = vec![limit(3, Vec::new())];
        let bench = Bench::new(engine, slice);
        assert_eq!(denied(bench.ask(get("/")).0).status, 403);
        assert_eq!(bench.ledger.entries().0, 0);
    }
}

#[test]
fn workers_cannot_admit_more_than_the_limit_together() {
    const THREADS: usize = 4;
    let mut slice = open_slice();
    slice.inbound.rate_limits = vec![limit(50, Vec::new()), limit(1000, vec![KeyPart::Path])];
    for engine in engines() {
        let bench = Bench::new(engine, slice.clone());
        let (ledger, entry, barrier) = (&bench.ledger, &bench.entry, Barrier::new(THREADS));
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Bench::new(&Engine::inline(), open_slice());
                        mine.judge = Judge::new(ledger.clone(), Rc::new(Random::from_system().unwrap()));
                        mine.entry = entry.clone();
                        barrier.wait();
                        (0..40).filter(|_| matches!(mine.ask(get("/")).0, Judgement::Permitted(_))).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 50);
        let wide = bench.ledger.function(&"shop/orders".parse().unwrap()).quotas.read("p/rateLimits/1000", "1:/;");
        assert_eq!(wide.used, 50, "the refused gave back what they had taken from the other counter");
    }
}

fn guarded(max_requests: u32) -> Slice {
    let mut slice = open_slice();
    slice.inbound.targets[0].breaker = Some(Breaker {
        name: "p/circuitBreaker".into(),
        max_connections: 9,
        max_pending: 9,
        max_requests,
        outlier: None,
    });
    slice
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
        // A request that a caller's sidecar sends was counted there.
        let bench = Bench { entrance: Entrance::Inbound, identity: Some("spiffe://td.example/ns/a/sa/b"), ..bench };
        let _three = permitted(bench.ask(get("/")).0);
        let _four = permitted(bench.ask(get("/")).0);
        assert_eq!(bench.ledger.target(&"shop/orders".parse().unwrap()).load(1, Instant::now()).requests, 1);
    }
}

#[test]
fn slots_are_never_oversubscribed() {
    const THREADS: usize = 4;
    let bench = Bench::new(&engines()[0], guarded(3));
    let (ledger, entry, barrier) = (&bench.ledger, &bench.entry, Barrier::new(THREADS));
    for _ in 0..20 {
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Bench::new(&Engine::inline(), open_slice());
                        mine.judge = Judge::new(ledger.clone(), Rc::new(Random::from_system().unwrap()));
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
fn a_function_calls_only_its_callees() {
    for engine in engines() {
        let mut slice = open_slice();
        slice.outbound.targets = vec![testing::target("shop/inventory")];
        let bench = Bench { entrance: Entrance::Outbound, target: Some("shop/inventory"), ..Bench::new(engine, slice) };
        let (judgement, told) = bench.ask(get("/"));
        drop(permitted(judgement));
        assert_eq!(told.judgement.unwrap().function, "shop/orders");
        let bench = Bench { target: None, ..bench };
        let (judgement, told) = bench.ask(get("/"));
        assert_eq!(denied(judgement).status, 403);
        assert_eq!(told.judgement.unwrap().policy.as_deref(), Some("sidecar"));
        let bench = Bench { target: Some("shop/secrets"), ..bench };
        assert_eq!(denied(bench.ask(get("/")).0).status, 403);
    }
}

#[test]
fn responses_are_edited_by_status() {
    for engine in engines() {
        let mut slice = open_slice();
        slice.inbound.rate_limits = vec![limit(7, Vec::new())];
        slice.inbound.sidecar.response_headers = vec![ResponseHeaderRule {
            statuses: vec![(500, 599)],
            edits: vec![HeaderRule::Remove("server".into()), HeaderRule::Set("x-error".into(), "yes".into())],
        }];
        let bench = Bench::new(engine, slice);
        for (status, edited) in [(200, false), (503, true)] {
            let (head, ()) = get("/").body(()).unwrap().into_parts();
            let record = bench.record(&head);
            let (_, ruling) = permitted(bench.judge(head, &record));
            let response = Response::builder().status(status).header("server", "apache").body(()).unwrap();
            let (mut head, ()) = response.into_parts();
            bench.judge.response(&ruling, &mut head, &record).unwrap();
            assert_eq!(head.headers.contains_key("x-error"), edited, "{status}");
            assert_eq!(head.headers.contains_key("server"), !edited, "{status}");
            assert_eq!(head.headers["ratelimit-limit"], "7", "what the request's decision said holds too");
        }
    }
}

#[test]
fn a_program_that_is_not_loaded_denies() {
    let mut entry = FunctionEntry::load(&engines()[0], open_slice());
    entry.inbound.image = Err("the program cannot be decoded".into());
    let bench = Bench { entry: Arc::new(entry), ..Bench::new(&engines()[0], open_slice()) };
    let (judgement, told) = bench.ask(get("/"));
    assert_eq!(denied(judgement).status, 503);
    let judgement = told.judgement.unwrap();
    assert_eq!(judgement.verdict, "error");
    assert!(judgement.clause.contains("cannot be decoded"), "{}", judgement.clause);
    let text = bench.telemetry.metrics_text(&bench.ledger);
    let fault = r#"leno_sandbox_faults_total{function="shop/orders",direction="inbound",fault="not_loaded"} 1"#;
    assert!(text.contains(fault), "{text}");
}

#[test]
fn a_head_that_no_sandbox_takes_is_refused() {
    for engine in engines() {
        let bench = Bench::new(engine, open_slice());
        let (judgement, told) = bench.ask(get("/").header("x-large", "x".repeat(70_000)));
        assert_eq!(denied(judgement).status, 431);
        assert_eq!(told.judgement.unwrap().verdict, "error");
        drop(permitted(bench.ask(get("/")).0));
    }
}

#[test]
fn a_token_of_an_unknown_key_is_reported_once_for_functions_that_fetch_keys() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let mut slice = token_slice(&key);
    slice.inbound.authentication[0].keys[0].kid = Some("old".into());
    let token = testing::sign_as(&key, Some("new"), CLAIMS);
    let inline = Bench::new(&engines()[0], slice.clone());
    assert_eq!(denied(inline.ask(with_token(&token)).0).status, 401);
    assert!(inline.ledger.unknown_keys.take().is_empty(), "its keys are part of the configuration");
    slice.jwks.push(leno_config::slice::JwksFetch {
        issuer: 0,
        url: "https://login.example/keys".into(),
        ca_file: None,
        refresh: Duration::from_secs(300),
        timeout: Duration::from_secs(5),
    });
    let fetched = Bench::new(&engines()[0], slice);
    for _ in 0..2 {
        assert_eq!(denied(fetched.ask(with_token(&token)).0).status, 401);
    }
    assert_eq!(fetched.ledger.unknown_keys.take(), ["shop/orders".parse().unwrap()]);
    let expired = testing::sign_as(&key, Some("old"), &CLAIMS.replace("4102444800", "1"));
    assert_eq!(denied(fetched.ask(with_token(&expired)).0).status, 401);
    assert!(fetched.ledger.unknown_keys.take().is_empty());
}

/// Whatever a sandbox that fell into wrong hands may decide.
fn carry_out(change: impl FnOnce(&mut Decision)) -> (Result<Judgement, Trouble>, Observed) {
    let mut slice = open_slice();
    slice.inbound.rate_limits = vec![limit(3, Vec::new())];
    slice.inbound.access_log.request_headers = vec!["x-team".into()];
    let bench = Bench::new(&engines()[0], slice);
    let (head, ()) = get("/").header("x-team", "a").header("authorization", "secret").body(()).unwrap().into_parts();
    let mut decision = Decision {
        verdict: Verdict::Allow { rule: "r".into() },
        path: None,
        request_edits: Vec::new(),
        response_edits: Vec::new(),
        takes: Vec::new(),
        principal: None,
        facts: Vec::new(),
        plan: Plan::default(),
    };
    change(&mut decision);
    let record = bench.record(&head);
    let state = bench.judge.function(&bench.entry.slice.id);
    let target: FunctionId = "shop/orders".parse().unwrap();
    let peer = bench.peer();
    let mut asked = Asked {
        ask: Ask {
            entry: &bench.entry,
            entrance: Entrance::Gateway,
            peer: &peer,
            target: Some(&target),
            protocol: Protocol::Http1,
            scheme: "http",
            port: 80,
            parent: None,
            endpoints: 1,
        },
        program: &bench.entry.inbound,
        state: &state,
        target: Some(&state),
        record: &record,
        runs: Runs::default(),
    };
    let judgement = asked.carry_out(decision, head, 1_700_000_000_000);
    asked.conclude(Instant::now());
    let observed = record.take();
    (judgement, observed)
}

fn bad(change: impl FnOnce(&mut Decision)) -> BadOutput {
    match carry_out(change).0 {
        Err(Trouble::BadOutput(bad)) => bad,
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
    let trace = |trace_id, span_id| {
        Some(TracePlan { context: TraceContext { trace_id, span_id, sampled: true }, parent_span: None })
    };
    let take = |limit| Take { limit, key: String::new(), cost: 1 };
    assert_eq!(bad(|decision| decision.path = Some("/a b".into())), BadOutput::Path);
    assert_eq!(bad(|decision| decision.path = Some("http://evil/".into())), BadOutput::Path);
    assert!(matches!(bad(|d| d.request_edits = set("x-a", "a\r\nb: c")), BadOutput::HeaderValue(_)));
    assert!(matches!(bad(|d| d.request_edits = set("content-length", "0")), BadOutput::ForbiddenHeader(_)));
    assert!(matches!(bad(|d| d.response_edits = set("transfer-encoding", "chunked")), BadOutput::ForbiddenHeader(_)));
    assert_eq!(bad(|d| d.request_edits = set(":path", "/")), BadOutput::HeaderName);
    assert!(matches!(
        bad(|d| d.request_edits = vec![HeaderEdit::Remove("x-a".into()); 257]),
        BadOutput::TooMany { .. }
    ));
    assert!(matches!(bad(|d| d.takes = vec![take(1)]), BadOutput::Index { what: "rate limit", index: 1, count: 1 }));
    assert!(matches!(bad(|d| d.takes = vec![take(0); 65]), BadOutput::TooMany { what: "takes", .. }));
    assert_eq!(bad(|d| d.plan.trace = trace(0, 1)), BadOutput::TraceContext);
    assert_eq!(bad(|d| d.plan.trace = trace(1, 0)), BadOutput::TraceContext);
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
fn a_program_cannot_have_secrets_logged() {
    let (_, observed) = carry_out(|decision| {
        decision.plan.log.enabled = true;
        decision.plan.log.request_headers = vec!["authorization".into(), "x-team".into()];
    });
    let logged: Vec<_> =
        observed.logged_headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(logged, [("x-team", &b"a"[..])]);
}

#[test]
fn a_decision_that_takes_more_than_there_is_is_refused_by_the_ledger() {
    let (judgement, observed) = carry_out(|decision| {
        decision.takes = vec![Take { limit: 0, key: String::new(), cost: 4 }];
    });
    let refusal = denied(judgement.unwrap());
    assert_eq!(refusal.status, 429);
    assert!(refusal.headers.contains_key("retry-after"));
    assert_eq!(observed.takes[0].remaining, None);
}

#[test]
fn exchanges_without_a_verdict_are_logged_as_the_policy_says() {
    for enabled in [true, false] {
        let mut slice = open_slice();
        slice.inbound.access_log.enabled = enabled;
        let mut entry = FunctionEntry::load(&engines()[0], slice);
        entry.inbound.image = Err("gone".into());
        let bench = Bench { entry: Arc::new(entry), ..Bench::new(&engines()[0], open_slice()) };
        let (head, ()) = get("/").body(()).unwrap().into_parts();
        let record = bench.record(&head);
        drop(denied(bench.judge(head, &record)));
        assert_eq!(record.take().log.map(|plan| plan.enabled), Some(enabled));
    }
}
