//! Any request at a program with all parsers enabled. An allowed request is forwarded with a
//! normal path, and without its tokens.
#![no_main]

use leno_policy::input::{Header, Peer, RequestInput};
use leno_policy::outcome::{HeaderEdit, Output, Verdict};
use leno_policy::program::Program;
use leno_policy::spec::{
    AccessLog, Action, Algorithm, AuthorizationRule, Condition, ConditionKey, Counts, Direction, Issuer, Key, KeyId,
    KeyPart, Matches, Operation, ProgramSpec, Protocol, QuotaAlgorithm, RateLimit, Sidecar, StringMatch, Target,
    TokenSource, Tracing,
};
use leno_policy::{path, token};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::new(spec()));

fuzz_target!(|data: (&str, &str, &str, Vec<(u8, &[u8])>, bool)| {
    let (method, authority, target, fields, verified) = data;
    let headers =
        fields.iter().map(|(name, value)| Header { name: NAMES[usize::from(*name) % NAMES.len()], value }).collect();
    let input = RequestInput {
        now_ms: 1_700_000_000_000,
        peer: Peer { identity: None, address: Some([127, 0, 0, 1].into()) },
        target: "shop/orders",
        port: 80,
        protocol: Protocol::Http1,
        method,
        authority,
        path: target,
        headers,
        verified: Some(KeyId([1; 32])).filter(|_| verified),
    };
    if let Output::Decided(decision) = PROGRAM.judge(&input) {
        if !matches!(decision.verdict, Verdict::Allow { .. }) {
            assert_eq!(decision.request_edits, []);
            return;
        }
        let forwarded = decision.path.as_deref().unwrap_or(target);
        let (path, _) = path::split(forwarded);
        assert_eq!(path::normalise(path).as_deref(), Ok(path));
        let removed = |name: &str| decision.request_edits.contains(&HeaderEdit::Remove(name.to_owned()));
        let rest: Vec<Header<'_>> =
            input.headers.into_iter().filter(|header| !removed(header.name) && header.name != "cookie").collect();
        assert_eq!(token::locate(&sources(), &rest, forwarded), [], "the token is gone");
    }
});

const NAMES: [&str; 5] = ["authorization", "cookie", "x-team", "x-user", "x_user"];

fn sources() -> Vec<TokenSource> {
    let bearer = TokenSource::Header { name: "authorization".to_owned(), prefix: "Bearer ".to_owned() };
    vec![bearer, TokenSource::Query("t".to_owned()), TokenSource::Cookie("c".to_owned())]
}

fn spec() -> ProgramSpec {
    let issuer = Issuer {
        name: "i".to_owned(),
        issuer: "i".to_owned(),
        audiences: Vec::new(),
        keys: vec![Key { kid: None, algorithms: vec![Algorithm::ES256], id: KeyId([1; 32]) }],
        sources: sources(),
        clock_skew_ms: 0,
        forward: false,
        required: false,
        preflight: false,
        require_expiration: false,
        keys_pending: false,
        space_delimited_claims: vec![],
        claims_to_headers: vec![(vec!["sub".to_owned()], "x-user".to_owned())],
    };
    let limit = RateLimit {
        name: "l".to_owned(),
        counts: Counts::Requests,
        only: Some(Operation {
            methods: Matches { any: vec![StringMatch::Exact("LIMITED".to_owned())], none: Vec::new() },
            ..Operation::default()
        }),
        from: vec![],
        except: vec![],
        audit: false,
        key: vec![KeyPart::Header("x-team".to_owned()), KeyPart::Path, KeyPart::Claim(vec!["sub".to_owned()])],
        algorithm: QuotaAlgorithm::FixedWindow { requests: 1, period_ms: 1_000 },
    };
    let rule = |name: &str, action, when| AuthorizationRule {
        name: name.to_owned(),
        action,
        from: vec![],
        to: vec![],
        when,
        audit: false,
    };
    let values = Matches { any: vec![StringMatch::Exact("1".to_owned())], none: Vec::new() };
    let debug = Condition { key: ConditionKey::Query("d".to_owned()), values };
    ProgramSpec {
        function: "shop/orders".to_owned(),
        direction: Direction::Inbound,
        sidecar: Sidecar::default(),
        authentication: vec![issuer],
        authorization: vec![rule("debug", Action::Deny, vec![debug]), rule("all", Action::Allow, vec![])],
        audit_default: false,
        authorizers: vec![],
        rate_limits: vec![limit],
        tracing: Tracing { name: "t".to_owned(), enabled: true, sampling_per_10k: 1, accept_b3: true },
        access_log: AccessLog { name: String::new(), enabled: true, statuses: vec![], request_headers: vec![] },
        targets: vec![Target {
            function: "shop/orders".to_owned(),
            timeout_ms: 0,
            retry: None,
            breaker: None,
            as_received: false,
        }],
    }
}
