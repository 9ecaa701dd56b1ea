//! A program that uses every field and every variant.

use leno_policy::regex::Regex;
use leno_policy::spec::{
    AccessLog, Action, Algorithm, AuthorizationRule, Authorizer, Breaker, Cidr, Condition, ConditionKey, Counts,
    Direction, HeaderRule, Issuer, Key, KeyId, KeyPart, LabelMatch, Matches, Operation, Outlier, PathMatch,
    PrincipalMatch, ProgramSpec, Protocol, QuotaAlgorithm, RateLimit, ResponseHeaderRule, Retry, RetryOn, Segment,
    Sidecar, Source, StringMatch, Target, TokenSource, Tracing,
};
use regex_automata::Anchored;
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::start;
use regex_automata::{MatchKind, dfa::Automaton};

pub(super) fn inbound() -> ProgramSpec {
    ProgramSpec {
        function: "shop/checkout".to_owned(),
        direction: Direction::Inbound,
        sidecar: Sidecar {
            name: "p/sidecar".to_owned(),
            ports: vec![80, 8443],
            protocols: vec![Protocol::Http1, Protocol::Http2, Protocol::Grpc, Protocol::WebSocket],
            request_headers: header_rules(),
            response_headers: vec![ResponseHeaderRule { statuses: vec![(500, 599)], edits: header_rules() }],
            judge_each_request: false,
        },
        authentication: vec![issuer()],
        authorization: vec![rule("p/authorization/allow", Action::Allow), rule("p/authorization/deny", Action::Deny)],
        audit_default: true,
        rate_limits: vec![token_bucket(), fixed_window()],
        authorizers: vec![Authorizer {
            name: "p/externalAuthorization/opa".to_owned(),
            only: vec![operation()],
            headers: vec!["x-user".to_owned()],
            audit: true,
        }],
        tracing: Tracing { name: "p/tracing".to_owned(), enabled: true, sampling_per_10k: 100, accept_b3: true },
        access_log: AccessLog {
            name: "p/accessLog".to_owned(),
            enabled: true,
            statuses: vec![(400, 599)],
            request_headers: vec!["user-agent".to_owned()],
        },
        targets: vec![target("shop/checkout")],
    }
}

pub(super) fn outbound() -> ProgramSpec {
    ProgramSpec {
        function: "shop/checkout".to_owned(),
        direction: Direction::Outbound,
        sidecar: Sidecar::default(),
        authentication: Vec::new(),
        authorization: Vec::new(),
        audit_default: false,
        rate_limits: Vec::new(),
        authorizers: Vec::new(),
        tracing: Tracing { name: String::new(), enabled: false, sampling_per_10k: 0, accept_b3: false },
        access_log: AccessLog {
            name: String::new(),
            enabled: false,
            statuses: Vec::new(),
            request_headers: Vec::new(),
        },
        targets: vec![target("shop/stock")],
    }
}

fn header_rules() -> Vec<HeaderRule> {
    vec![
        HeaderRule::Set("x-a".to_owned(), "1".to_owned()),
        HeaderRule::Append("x-b".to_owned(), String::new()),
        HeaderRule::Remove("server".to_owned()),
    ]
}

fn issuer() -> Issuer {
    let algorithms = vec![
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::ES512,
        Algorithm::EdDSA,
    ];
    Issuer {
        name: "p/authentication/idp".to_owned(),
        issuer: "https://idp.example".to_owned(),
        audiences: vec!["shop".to_owned()],
        keys: vec![Key { kid: Some("k1".to_owned()), algorithms, id: KeyId([0xab; 32]) }],
        keys_pending: true,
        sources: vec![
            TokenSource::Header { name: "authorization".to_owned(), prefix: "Bearer ".to_owned() },
            TokenSource::Query("access_token".to_owned()),
            TokenSource::Cookie("session".to_owned()),
        ],
        clock_skew_ms: 60_000,
        forward: true,
        required: true,
        preflight: true,
        require_expiration: true,
        space_delimited_claims: vec![vec!["groups".to_owned()]],
        claims_to_headers: vec![(vec!["sub".to_owned()], "x-subject".to_owned())],
    }
}

fn rule(name: &str, action: Action) -> AuthorizationRule {
    let keys = [
        ConditionKey::Header("x-tenant".to_owned()),
        ConditionKey::Query("page".to_owned()),
        ConditionKey::Claim(vec!["realm_access".to_owned(), "roles".to_owned()]),
        ConditionKey::Audience,
    ];
    AuthorizationRule {
        name: name.to_owned(),
        action,
        from: vec![source()],
        to: vec![operation()],
        when: keys.into_iter().map(|key| Condition { key, values: texts() }).collect(),
        audit: true,
    }
}

fn source() -> Source {
    let principal =
        PrincipalMatch { issuer: StringMatch::Exact("https://idp.example".to_owned()), subject: StringMatch::Any };
    let block = |address: &str, prefix| Cidr { address: address.parse().unwrap(), prefix };
    Source {
        identities: texts(),
        labels: Some(LabelMatch {
            selector: "app=web".to_owned(),
            identities: vec!["spiffe://orders.example/ns/shop/sa/web".to_owned()],
        }),
        namespaces: Matches { any: vec![StringMatch::Exact("shop".to_owned())], none: Vec::new() },
        request_principals: Matches { any: vec![principal], none: Vec::new() },
        addresses: Matches { any: vec![block("10.0.0.0", 8)], none: vec![block("fd00::", 0)] },
    }
}

fn operation() -> Operation {
    let template = vec![Segment::Literal("orders".to_owned()), Segment::One("id".to_owned()), Segment::Rest];
    let paths = vec![
        PathMatch::Text(StringMatch::Prefix("/orders".to_owned())),
        PathMatch::Template(template),
        PathMatch::WithQuery(Box::new(regex())),
    ];
    Operation {
        methods: Matches { any: vec![StringMatch::Exact("GET".to_owned())], none: Vec::new() },
        hosts: Matches { any: Vec::new(), none: vec![StringMatch::Suffix(".internal".to_owned())] },
        ports: Matches { any: vec![80, 443], none: vec![0] },
        paths: Matches { any: paths, none: Vec::new() },
    }
}

/// Every kind of match.
fn texts() -> Matches<StringMatch> {
    let any = vec![
        StringMatch::Exact("a".to_owned()),
        StringMatch::Prefix("b".to_owned()),
        StringMatch::Suffix("c".to_owned()),
        StringMatch::Present,
        StringMatch::Any,
    ];
    Matches { any, none: vec![StringMatch::Regex(Box::new(regex()))] }
}

/// `x`, with the settings of `leno-config`.
fn regex() -> Regex {
    let dfa = dense::Builder::new()
        .configure(dense::Config::new().start_kind(StartKind::Anchored).match_kind(MatchKind::All).minimize(true))
        .thompson(thompson::Config::new().utf8(false))
        .build("x")
        .unwrap();
    assert!(dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).is_ok());
    let (bytes, padding) = dfa.to_bytes_little_endian();
    Regex::new("x".to_owned(), &bytes[padding..]).unwrap()
}

fn token_bucket() -> RateLimit {
    RateLimit {
        name: "p/rateLimits/per-client".to_owned(),
        counts: Counts::Requests,
        only: Some(operation()),
        from: vec![source()],
        except: vec![source()],
        audit: true,
        key: vec![
            KeyPart::Identity,
            KeyPart::Claim(vec!["sub".to_owned()]),
            KeyPart::Header("x-tenant".to_owned()),
            KeyPart::Path,
            KeyPart::Method,
            KeyPart::Address,
        ],
        algorithm: QuotaAlgorithm::TokenBucket { requests: 100, period_ms: 60_000, burst: 200 },
    }
}

fn fixed_window() -> RateLimit {
    RateLimit {
        name: "p/rateLimits/failures".to_owned(),
        counts: Counts::AuthenticationFailures,
        only: None,
        from: Vec::new(),
        except: Vec::new(),
        audit: false,
        key: Vec::new(),
        algorithm: QuotaAlgorithm::FixedWindow { requests: 10, period_ms: 1000 },
    }
}

fn target(function: &str) -> Target {
    let retry = Retry {
        name: "p/retry".to_owned(),
        attempts: 3,
        per_try_timeout_ms: 250,
        backoff_base_ms: 25,
        backoff_max_ms: 250,
        on: vec![
            RetryOn::ConnectFailure,
            RetryOn::RefusedStream,
            RetryOn::Reset,
            RetryOn::Timeout,
            RetryOn::ServerError,
            RetryOn::GatewayError,
            RetryOn::Status(429),
            RetryOn::Grpc(14),
        ],
        non_idempotent: true,
        budget_percent: 20,
        budget_min: 3,
    };
    let outlier = Outlier {
        consecutive_5xx: 5,
        consecutive_gateway: 3,
        interval_ms: 10_000,
        base_ejection_ms: 30_000,
        max_ejection_percent: 10,
    };
    let breaker = Breaker {
        name: "p/circuitBreaker".to_owned(),
        max_connections: 100,
        max_pending: 50,
        max_requests: 200,
        outlier: Some(outlier),
    };
    Target {
        function: function.to_owned(),
        timeout_ms: 15_000,
        retry: Some(retry),
        breaker: Some(breaker),
        as_received: false,
    }
}
