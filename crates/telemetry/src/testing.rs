//! Records and programs for tests.

use crate::exchange::{
    AttemptResult, EditedHeader, ExchangeRecord, JudgementRecord, RateLimitCheck, RecordedVerdict, SignatureCheck, Try,
};
use crate::request_line::RequestLine;
use http::Request;
use http::header::HeaderName;
use leno_http::peer::{Peer, TrafficDirection};
use leno_policy::engine::EngineKind;
use leno_policy::outcome::PolicyKind;
use leno_policy::spec::{AccessLog, Algorithm, Direction, KeyId, ProgramSpec, Protocol, Sidecar, Tracing};
use leno_policy::trace::{TraceContext, TracePlan};
use std::time::{Duration, Instant, SystemTime};

/// A denied exchange, with all fields of a record.
pub(crate) fn observed() -> ExchangeRecord {
    let request = Request::post("/orders/7?access_token=secret-token").header("host", "shop.example:8080");
    let (head, ()) = request.body(()).unwrap().into_parts();
    let started = Instant::now();
    let after = |ms| started + Duration::from_millis(ms);
    ExchangeRecord {
        request_id: "req-1".into(),
        node: None,
        direction: TrafficDirection::Gateway,
        peer: Peer { identity: None, address: ([192, 0, 2, 7], 4711).into() },
        protocol: Protocol::Http1,
        scheme: "https",
        request_line: RequestLine::of(&head),
        target: Some("orders/order-service".into()),
        revision: None,
        started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        started,
        stages: [Some(after(1)), Some(after(2)), Some(after(3)), Some(after(13))],
        ended: after(20),
        judged: Some(JudgementRecord {
            function: "orders/order-service".into(),
            engine: Some(EngineKind::Wasm),
            remembered: false,
            runs: 2,
            run_time: Duration::from_micros(9),
            time: Duration::from_micros(210),
            verdict: RecordedVerdict::Deny {
                policy: PolicyKind::Authorization,
                rule: "orders/authorization/from-frontend".into(),
                default: true,
                clause: "from.identities: nothing matches".into(),
            },
            audit: None,
            principal: Some("https://login.example/ann".into()),
            path_changed: false,
            as_received: false,
        }),
        inputs: None,
        route: None,
        fault: None,
        signatures: vec![SignatureCheck {
            key: KeyId([0xab; 32]),
            algorithm: Algorithm::ES256,
            remembered: false,
            error: None,
        }],
        authorizers: Vec::new(),
        extensions: Vec::new(),
        rate_limit_checks: vec![RateLimitCheck {
            limit: "orders/rateLimits/per-user".into(),
            remaining: Some(4),
            shared: false,
        }],
        request_edits: vec![EditedHeader { how: "set", name: HeaderName::from_static("x-user") }],
        response_edits: vec![EditedHeader { how: "append", name: HeaderName::from_static("ratelimit-limit") }],
        trace: Some(TracePlan {
            context: TraceContext {
                trace_id: 0x0af7651916cd43dd8448eb211c80319c,
                span_id: 0xb7ad6b7169203331,
                sampled: true,
            },
            parent_span: Some(0x00f067aa0ba902b7),
        }),
        program: None,
        namespace: None,
        logged_headers: vec![(HeaderName::from_static("user-agent"), "curl/8".into())],
        attempts: vec![
            Try { endpoint: Some(([127, 0, 0, 1], 9001).into()), result: AttemptResult::Failed("UF"), ended: after(5) },
            Try { endpoint: Some(([127, 0, 0, 1], 9002).into()), result: AttemptResult::Status(403), ended: after(13) },
        ],
        status: 403,
        grpc_status: None,
        flag: None,
        failure: None,
        bytes_in: 12,
        bytes_out: 345,
        upgraded: false,
    }
}

/// The inbound program of a function without any policy.
pub(crate) fn program(function: &str) -> ProgramSpec {
    ProgramSpec {
        function: function.to_owned(),
        direction: Direction::Inbound,
        sidecar: Sidecar::default(),
        authentication: Vec::new(),
        authorization: Vec::new(),
        audit_default: false,
        authorizers: Vec::new(),
        rate_limits: Vec::new(),
        tracing: Tracing { name: String::new(), enabled: true, sampling_per_10k: 10_000, accept_b3: true },
        access_log: AccessLog { name: String::new(), enabled: true, statuses: Vec::new(), request_headers: Vec::new() },
        targets: Vec::new(),
    }
}
