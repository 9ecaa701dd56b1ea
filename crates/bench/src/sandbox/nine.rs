//! The program and the request of the measurements: all nine policies, and a head of one KiB that
//! they allow. As from the proxy, a program gets the parts of the head that it declares.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_policy::input::{Header, Peer, RequestInput};
use leno_policy::needs::Needs;
use leno_policy::spec::{
    AccessLog, Action, Algorithm, AuthorizationRule, Breaker, Condition, ConditionKey, Counts, Direction, HeaderRule,
    Issuer, Key, KeyId, KeyPart, Matches, Operation, Outlier, PathMatch, ProgramSpec, Protocol, QuotaAlgorithm,
    RateLimit, Retry, RetryOn, Segment, Sidecar, Source, StringMatch, Target, TokenSource, Tracing,
};
use std::net::{IpAddr, Ipv4Addr};

const NOW_MS: u64 = 1_790_000_000_000;
const FRONTEND: &str = "spiffe://orders.example/ns/orders/sa/frontend-api";
const PATH: &str = "/orders/8c6f1e0a/items?expand=prices&currency=EUR";
/// Where the request came from.
pub(super) const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SUBJECT: &str = "3f6b8d1c-0c7e-4c3a-9a51-7b1f60d2e6aa";
const KEY: KeyId = KeyId([0x1f; 32]);

/// No policies at all: the floor.
pub(super) fn empty(function: &str) -> ProgramSpec {
    ProgramSpec {
        function: function.into(),
        direction: Direction::Inbound,
        sidecar: Sidecar::default(),
        authentication: vec![],
        authorization: vec![],
        audit_default: false,
        authorizers: vec![],
        rate_limits: vec![],
        tracing: Tracing { name: String::new(), enabled: false, sampling_per_10k: 0, accept_b3: false },
        access_log: AccessLog { name: String::new(), enabled: false, statuses: vec![], request_headers: vec![] },
        targets: vec![Target {
            function: function.into(),
            timeout_ms: 0,
            retry: None,
            breaker: None,
            as_received: false,
        }],
    }
}

/// All nine policies, as a function with a public API would have them. (Mutual TLS is the identity
/// that rules ask for.)
pub(super) fn program(function: &str) -> ProgramSpec {
    let per_user = vec![KeyPart::Claim(vec!["sub".into()])];
    ProgramSpec {
        sidecar: Sidecar {
            name: "orders/sidecar".into(),
            ports: vec![80, 443],
            protocols: vec![Protocol::Http1, Protocol::Http2, Protocol::Grpc],
            request_headers: vec![
                HeaderRule::Set("x-mesh".into(), "leno".into()),
                HeaderRule::Remove("x-internal".into()),
            ],
            response_headers: vec![],
            judge_each_request: false,
        },
        authentication: vec![issuer()],
        authorization: rules(),
        audit_default: false,
        authorizers: vec![],
        rate_limits: vec![RateLimit {
            counts: Counts::Requests,
            name: "orders/rateLimits/per-user".into(),
            only: None,
            from: vec![],
            except: vec![],
            audit: false,
            key: per_user,
            algorithm: QuotaAlgorithm::TokenBucket { requests: 100, period_ms: 1000, burst: 200 },
        }],
        tracing: Tracing { name: "orders/tracing".into(), enabled: true, sampling_per_10k: 10_000, accept_b3: true },
        access_log: AccessLog {
            name: "orders/accessLog".into(),
            enabled: true,
            statuses: vec![],
            request_headers: vec!["user-agent".into()],
        },
        targets: vec![Target {
            function: function.into(),
            timeout_ms: 5000,
            retry: Some(retry()),
            breaker: Some(Breaker {
                name: "orders/circuitBreaker".into(),
                max_connections: 100,
                max_pending: 100,
                max_requests: 1000,
                outlier: Some(Outlier {
                    consecutive_5xx: 5,
                    consecutive_gateway: 3,
                    interval_ms: 10_000,
                    base_ejection_ms: 30_000,
                    max_ejection_percent: 50,
                }),
            }),
            as_received: false,
        }],
        ..empty(function)
    }
}

fn issuer() -> Issuer {
    Issuer {
        name: "orders/authentication/login".into(),
        issuer: "https://login.orders.example".into(),
        audiences: vec!["orders".into()],
        keys: vec![
            Key { kid: Some("2026-05".into()), algorithms: vec![Algorithm::ES256], id: KeyId([1; 32]) },
            Key { kid: Some("2026-06".into()), algorithms: vec![Algorithm::ES256], id: KEY },
        ],
        sources: vec![TokenSource::Header { name: "authorization".into(), prefix: "Bearer ".into() }],
        clock_skew_ms: 60_000,
        forward: false,
        required: true,
        preflight: false,
        require_expiration: false,
        keys_pending: false,
        space_delimited_claims: vec![],
        claims_to_headers: vec![(vec!["sub".into()], "x-user".into())],
    }
}

fn rules() -> Vec<AuthorizationRule> {
    let exact = |text: &str| StringMatch::Exact(text.into());
    let any = |values: Vec<StringMatch>| Matches { any: values, none: vec![] };
    let rule = |name: &str, action, paths, methods: &[&str], role: &str| AuthorizationRule {
        name: format!("orders/authorization/{name}"),
        action,
        from: vec![Source { identities: any(vec![exact(FRONTEND)]), ..Source::default() }],
        to: vec![Operation {
            methods: any(methods.iter().map(|method| exact(method)).collect()),
            paths: Matches { any: paths, none: vec![] },
            ..Operation::default()
        }],
        when: vec![Condition {
            key: ConditionKey::Claim(vec!["realm_access".into(), "roles".into()]),
            values: any(vec![exact(role)]),
        }],
        audit: false,
    };
    let template = vec![Segment::Literal("orders".into()), Segment::One("id".into()), Segment::Literal("items".into())];
    let prefix = |text: &str| PathMatch::Text(StringMatch::Prefix(text.into()));
    vec![
        rule("no-administration", Action::Deny, vec![prefix("/admin")], &["GET", "POST"], "customer"),
        rule("read", Action::Allow, vec![prefix("/orders")], &["GET", "HEAD"], "customer"),
        rule("write", Action::Allow, vec![PathMatch::Template(template)], &["POST", "PUT"], "customer"),
    ]
}

fn retry() -> Retry {
    Retry {
        name: "orders/retry".into(),
        attempts: 2,
        per_try_timeout_ms: 1000,
        backoff_base_ms: 25,
        backoff_max_ms: 250,
        on: vec![RetryOn::ConnectFailure, RetryOn::RefusedStream, RetryOn::Reset, RetryOn::Status(503)],
        non_idempotent: false,
        budget_percent: 20,
        budget_min: 3,
    }
}

/// The owner of the data that the input borrows.
pub(super) struct Request {
    authorization: String,
    needs: Needs,
}

impl Request {
    pub(super) fn new() -> Self {
        let header = r#"{"alg":"ES256","kid":"2026-06","typ":"JWT"}"#;
        let seconds = NOW_MS / 1000;
        let claims = format!(
            r#"{{"iss":"https://login.orders.example","sub":"{SUBJECT}","aud":["orders"],"iat":{},"exp":{},"azp":"orders-frontend","email":"customer@example.org","realm_access":{{"roles":["customer"]}}}}"#,
            seconds - 60,
            seconds + 3600
        );
        // The input marks the token as verified, so any signature will do.
        let parts = [header.as_bytes(), claims.as_bytes(), &[0x5a; 64]].map(|part| URL_SAFE_NO_PAD.encode(part));
        Self { authorization: format!("Bearer {}", parts.join(".")), needs: Needs::of(&program("")) }
    }

    /// All header fields.
    pub(super) fn headers(&self) -> Vec<Header<'_>> {
        [
            ("accept", "application/json"),
            ("accept-encoding", "gzip, br"),
            ("authorization", &self.authorization),
            ("content-length", "312"),
            ("content-type", "application/json"),
            ("cookie", "theme=dark; consent=necessary; cart=5d0c8a4e-5a0c-4c55-9f0e-3a7a6f1d2b3c"),
            ("referer", "https://shop.orders.example/cart/checkout"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("user-agent", "orders-frontend/4.2 (linux; x86_64)"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-proto", "https"),
            ("x-request-id", "f9f2d0a4-6a1e-4f0e-8a25-1a6f6fb4a1c7"),
        ]
        .map(|(name, value)| Header { name, value: value.as_bytes() })
        .into()
    }

    /// The input of the program with all nine policies.
    pub(super) fn input(&self) -> RequestInput<'_> {
        let mut headers = self.headers();
        headers.retain(|header| self.needs.gives(header.name));
        RequestInput { method: "POST", path: PATH, headers, verified: Some(KEY), ..bare_request() }
    }
}

/// The smallest request.
pub(super) fn bare_request() -> RequestInput<'static> {
    RequestInput {
        now_ms: NOW_MS,
        peer: Peer { identity: Some(FRONTEND), address: None },
        target: "orders/order-service",
        port: 80,
        protocol: Protocol::Http1,
        method: "GET",
        authority: "order-service.orders",
        path: "/",
        headers: vec![],
        verified: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_policy::outcome::{Output, Verdict};
    use leno_policy::program::Program;

    #[test]
    fn the_head_has_about_one_kib_and_is_allowed_by_the_last_rule() {
        let request = Request::new();
        let input = request.input();
        let head: usize = request.headers().iter().map(|header| header.name.len() + header.value.len() + 4).sum();
        assert!((900..1100).contains(&(head + input.path.len())), "{head}");
        let program = Program::new(program("orders/order-service"));
        assert_eq!(program.needs(), &request.needs);
        let Output::Decided(decision) = program.judge(&input) else { panic!() };
        assert_eq!(decision.verdict, Verdict::Allow { rule: "orders/authorization/write".into() });
        assert!(decision.target == Some(0) && decision.takes.len() == 1 && decision.principal.is_some());
    }
}
