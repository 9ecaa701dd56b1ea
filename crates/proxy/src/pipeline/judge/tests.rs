//! Tests the judge with real programs, on every engine.

mod again;
mod hostile;
mod limits;
mod memory;
mod replay;
mod tokens;

use super::*;
use crate::testing;
use crate::testing::{SigningKey, sign};
use http::{Request, Response};
use leno_model::FunctionConfig;
use leno_policy::outcome::{Denial, HeaderEdit, Take, Window};
use leno_policy::spec::{
    Action, Algorithm, AuthorizationRule, Breaker, Counts, HeaderRule, Issuer, Key, KeyId, KeyPart, QuotaAlgorithm,
    RateLimit, ResponseHeaderRule, TokenSource,
};
use leno_sandbox::Engine;
use leno_telemetry::Telemetry;
use leno_telemetry::exchange::ExchangeRecord;
use leno_telemetry::recorder::Recorder;
use leno_telemetry::ring::Explanation;
use std::sync::{Barrier, OnceLock};

/// All engines. No test is skipped silently: if an engine is not available, the tests fail and say
/// why.
fn engines() -> &'static [Engine] {
    static ENGINES: OnceLock<[Engine; 3]> = OnceLock::new();
    ENGINES.get_or_init(|| [Engine::inline(), Engine::wasm().unwrap(), Engine::microvm().unwrap()])
}

/// A worker's judge, and the sinks that it records to.
struct Bench {
    telemetry: Telemetry,
    recorder: Rc<Recorder>,
    policy_state: Arc<PolicyState>,
    judge: Judge,
    entry: Arc<FunctionEntry>,
    direction: TrafficDirection,
    identity: Option<&'static str>,
    target: Option<&'static str>,
}

impl Bench {
    fn new(engine: &Engine, config: FunctionConfig) -> Self {
        let (telemetry, policy_state) = (Telemetry::quiet("td.example"), PolicyState::new());
        let random = Rc::new(Random::from_system().unwrap());
        Self {
            recorder: Recorder::new(&telemetry),
            judge: Judge::new(policy_state.clone(), random),
            entry: Arc::new(FunctionEntry::load(engine, config)),
            telemetry,
            policy_state,
            direction: TrafficDirection::Gateway,
            identity: None,
            target: Some("shop/orders"),
        }
    }

    fn record(&self, head: &request::Parts) -> Record {
        Record::new(&self.recorder, self.direction, &self.peer(), Protocol::Http1, head, "req-1")
    }

    fn peer(&self) -> Peer {
        Peer { identity: self.identity.map(Arc::from), address: ([192, 0, 2, 1], 4711).into() }
    }

    fn judge(&self, head: request::Parts, record: &Record) -> Judgement {
        let target: Option<FunctionId> = self.target.map(|target| target.parse().unwrap());
        let input = JudgeInput {
            entry: &self.entry,
            direction: self.direction,
            peer: &self.peer(),
            target: target.as_ref(),
            protocol: Protocol::Http1,
            scheme: "http",
            port: 80,
            parent: None,
            endpoints: 1,
            bodiless: true,
        };
        at_once(self.judge.request(input, Box::new(head), record))
    }

    /// A request as it is judged.
    fn evaluation<'a>(
        &'a self,
        state: &'a FunctionState,
        target: &'a FunctionId,
        peer: &'a Peer,
        record: &'a Record,
    ) -> Evaluation<'a> {
        Evaluation {
            input: JudgeInput {
                entry: &self.entry,
                direction: self.direction,
                peer,
                target: Some(target),
                protocol: Protocol::Http1,
                scheme: "http",
                port: 80,
                parent: None,
                endpoints: 1,
                bodiless: true,
            },
            program: &self.entry.inbound,
            state,
            signatures: &self.policy_state.tokens.signatures,
            hasher: &self.policy_state.tokens.hasher,
            target: Some(state),
            record,
            span: None,
            span_edits: Vec::new(),
            runs: Runs::default(),
        }
    }

    /// Judges a request. Returns the judgement and the record.
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

fn permitted(judgement: Judgement) -> (Box<request::Parts>, Permit) {
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
    AuthorizationRule { name: name.into(), action, from: Vec::new(), to: Vec::new(), when: Vec::new(), audit: false }
}

/// A function that allows all callers.
fn open_config() -> FunctionConfig {
    let mut config = testing::config("shop/orders");
    config.inbound.authorization.push(rule("p/authorization/all", Action::Allow));
    config
}

const KEY: KeyId = KeyId([0xab; 32]);

/// A function that requires a token signed with this key.
fn token_config(key: &SigningKey) -> FunctionConfig {
    let mut config = open_config();
    config.keys = vec![key.verification_key(KEY)];
    config.inbound.authentication.push(Issuer {
        name: "p/authentication/login".into(),
        issuer: "https://login.example".into(),
        audiences: Vec::new(),
        keys: vec![Key { kid: None, algorithms: vec![key.algorithm()], id: KEY }],
        sources: vec![TokenSource::Header { name: "authorization".into(), prefix: "Bearer ".into() }],
        clock_skew_ms: 0,
        forward: false,
        required: true,
        preflight: false,
        require_expiration: false,
        keys_pending: false,
        space_delimited_claims: vec![],
        claims_to_headers: vec![(vec!["sub".into()], "x-user".into())],
    });
    config
}

const CLAIMS: &str = r#"{"iss":"https://login.example","sub":"ann","exp":4102444800}"#;

fn limit(requests: u32, key: Vec<KeyPart>) -> RateLimit {
    let algorithm = QuotaAlgorithm::FixedWindow { requests, period_ms: 1 << 40 };
    RateLimit {
        name: format!("p/rateLimits/{requests}"),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key,
        algorithm,
    }
}

#[test]
fn a_permitted_request_goes_on_edited() {
    for engine in engines() {
        let mut config = open_config();
        config.inbound.sidecar.request_headers.push(HeaderRule::Set("x-mesh".into(), "leno".into()));
        let bench = Bench::new(engine, config);
        let (judgement, told) = bench.ask(get("/a/../orders/%7e?x=1").header("x-mesh", "forged"));
        let (head, permit) = permitted(judgement);
        assert_eq!(head.uri, "/orders/~?x=1");
        assert_eq!(head.headers["x-mesh"], "leno");
        assert_eq!(permit.direction, TrafficDirection::Gateway);
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
    let bench = Bench::new(&engines()[0], open_config());
    let (judgement, _) = bench.ask(Request::get("https://orders.example:8443//orders?x"));
    assert_eq!(permitted(judgement).0.uri, "https://orders.example:8443/orders?x");
}

#[test]
fn what_nothing_allows_is_denied_and_the_record_says_why() {
    for engine in engines() {
        let bench = Bench::new(engine, testing::config("shop/orders"));
        let (judgement, told) = bench.ask(get("/"));
        assert_eq!(denied(judgement).status, 403);
        let judgement = told.judgement.unwrap();
        assert_eq!((&*judgement.verdict, judgement.default), ("deny", true));
        assert_eq!(judgement.policy.as_deref(), Some("authorization"));
        assert!(!judgement.clause.is_empty());
    }
}

#[test]
fn a_function_calls_only_its_callees() {
    for engine in engines() {
        let mut config = open_config();
        config.outbound.targets = vec![testing::target("shop/inventory")];
        let bench = Bench {
            direction: TrafficDirection::Outbound,
            target: Some("shop/inventory"),
            ..Bench::new(engine, config)
        };
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
        let mut config = open_config();
        config.inbound.rate_limits = vec![limit(7, Vec::new())];
        config.inbound.sidecar.response_headers = vec![ResponseHeaderRule {
            statuses: vec![(500, 599)],
            edits: vec![HeaderRule::Remove("server".into()), HeaderRule::Set("x-error".into(), "yes".into())],
        }];
        let bench = Bench::new(engine, config);
        for (status, edited) in [(200, false), (503, true)] {
            let (head, ()) = get("/").body(()).unwrap().into_parts();
            let record = bench.record(&head);
            let (_, permit) = permitted(bench.judge(head, &record));
            let response = Response::builder().status(status).header("server", "apache").body(()).unwrap();
            let (mut head, ()) = response.into_parts();
            bench.judge.response(&permit, &mut head, &record).unwrap();
            assert_eq!(head.headers.contains_key("x-error"), edited, "{status}");
            assert_eq!(head.headers.contains_key("server"), !edited, "{status}");
            assert_eq!(head.headers["ratelimit-limit"], "7", "what the request's decision said holds too");
        }
    }
}

/// Polls the future once: judging waits only for a quota store.
fn at_once<T>(judging: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(judging).poll(&mut context) {
        std::task::Poll::Ready(judgement) => judgement,
        std::task::Poll::Pending => panic!("the judge waits"),
    }
}
