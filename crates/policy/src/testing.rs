//! Fixtures that the tests of several modules share: a program without policies, and a plain
//! request.

use crate::input::{Header, Peer, RequestInput};
use crate::outcome::{Decision, Denial, Output, Verdict};
use crate::program::Program;
use crate::spec::{
    AccessLog, Action, Algorithm, AuthorizationRule, Direction, Issuer, Key, KeyId, ProgramSpec, Protocol, Sidecar,
    Target, TokenSource, Tracing,
};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use core::net::{IpAddr, Ipv4Addr};

pub(crate) const NOW_MS: u64 = 1_700_000_000_000;

pub(crate) fn request() -> RequestInput<'static> {
    RequestInput {
        now_ms: NOW_MS,
        peer: Peer { identity: None, address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)) },
        target: "shop/orders",
        port: 80,
        protocol: Protocol::Http1,
        method: "GET",
        authority: "shop.example",
        path: "/",
        headers: Vec::new(),
        verified: None,
    }
}

/// Allows everything.
pub(crate) fn inbound() -> ProgramSpec {
    ProgramSpec {
        function: "shop/orders".to_string(),
        direction: Direction::Inbound,
        sidecar: Sidecar::default(),
        authentication: Vec::new(),
        authorization: vec![rule("all")],
        audit_default: false,
        authorizers: Vec::new(),
        rate_limits: Vec::new(),
        tracing: Tracing { name: String::new(), enabled: false, sampling_per_10k: 0, accept_b3: false },
        access_log: AccessLog { name: String::new(), enabled: true, statuses: Vec::new(), request_headers: Vec::new() },
        targets: vec![target("shop/orders")],
    }
}

pub(crate) fn target(function: &str) -> Target {
    Target { function: function.to_string(), timeout_ms: 5_000, retry: None, breaker: None, as_received: false }
}

/// Allows everything.
pub(crate) fn rule(name: &str) -> AuthorizationRule {
    AuthorizationRule {
        name: name.to_string(),
        action: Action::Allow,
        from: Vec::new(),
        to: Vec::new(),
        when: Vec::new(),
        audit: false,
    }
}

/// With the keys `rsa` (1), `ec` (2) and `ed` (3), looking for a bearer token.
pub(crate) fn issuer() -> Issuer {
    let key = |kid: &str, algorithms: &[Algorithm], id| Key {
        kid: Some(kid.to_string()),
        algorithms: algorithms.to_vec(),
        id: KeyId([id; 32]),
    };
    Issuer {
        name: "p/authentication/0".to_string(),
        issuer: "https://login.example".to_string(),
        audiences: vec!["shop".to_string()],
        keys: vec![
            key("rsa", &[Algorithm::RS256, Algorithm::PS256], 1),
            key("ec", &[Algorithm::ES256], 2),
            key("ed", &[Algorithm::EdDSA], 3),
        ],
        sources: vec![bearer()],
        clock_skew_ms: 60_000,
        forward: false,
        required: true,
        preflight: false,
        require_expiration: false,
        keys_pending: false,
        space_delimited_claims: vec![],
        claims_to_headers: Vec::new(),
    }
}

pub(crate) fn bearer() -> TokenSource {
    TokenSource::Header { name: "authorization".to_string(), prefix: "Bearer ".to_string() }
}

/// A token with a header and claims as given, and something in place of the signature.
pub(crate) fn token(header: &str, claims: &str) -> String {
    // As long as a signature by ES256.
    let signature = URL_SAFE_NO_PAD.encode([7; 64]);
    format!("{}.{}.{signature}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
}

pub(crate) fn header<'a>(name: &'a str, value: &'a str) -> Header<'a> {
    Header { name, value: value.as_bytes() }
}

pub(crate) fn decide(spec: ProgramSpec, input: &RequestInput<'_>) -> Decision {
    match Program::new(spec).judge(input) {
        Output::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

/// The rule that allowed.
pub(crate) fn allowed(spec: ProgramSpec, input: &RequestInput<'_>) -> String {
    match decide(spec, input).verdict {
        Verdict::Allow { rule } => rule,
        Verdict::Deny(denial) => panic!("{denial:?}"),
    }
}

pub(crate) fn denied(spec: ProgramSpec, input: &RequestInput<'_>) -> Denial {
    match decide(spec, input).verdict {
        Verdict::Allow { rule } => panic!("allowed by {rule}"),
        Verdict::Deny(denial) => denial,
    }
}
