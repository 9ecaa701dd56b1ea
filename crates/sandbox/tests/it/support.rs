//! Helpers of the tests: programs, inputs, engines.

pub(crate) mod misbehaving;

use leno_policy::input::{Header, Peer, RequestInput};
use leno_policy::spec::{AccessLog, Direction, ProgramSpec, Protocol, Sidecar, Target, Tracing};
use leno_sandbox::{Engine, Image};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Far longer than any sound run takes, even on a busy machine.
pub(crate) const AMPLE: Duration = Duration::from_secs(10);

/// The smallest program: it has no policies, and denies everything.
pub(crate) fn empty(function: &str) -> ProgramSpec {
    ProgramSpec {
        function: function.into(),
        direction: Direction::Inbound,
        sidecar: Sidecar::default(),
        authentication: vec![],
        authorization: vec![],
        audit_default: false,
        authorizers: Vec::new(),
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

/// A request for `path` with these headers.
pub(crate) fn request<'a>(path: &'a str, headers: &[(&'a str, &'a str)]) -> RequestInput<'a> {
    RequestInput {
        now_ms: 1_800_000_000_000,
        peer: Peer {
            identity: Some("spiffe://orders.example/ns/orders/sa/frontend"),
            address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        },
        target: "orders/a",
        port: 80,
        protocol: Protocol::Http1,
        method: "GET",
        authority: "orders.example",
        path,
        headers: headers.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect(),
        verified: None,
    }
}

/// Loads a program.
pub(crate) fn load(engine: &Engine, spec: &ProgramSpec) -> Image {
    engine.load(&leno_sandbox::encode(spec).unwrap()).unwrap()
}

/// All engines. These tests panic on a machine without `/dev/kvm`.
pub(crate) fn engines() -> [Engine; 3] {
    let microvm = Engine::microvm().expect("these tests need micro-VMs");
    [microvm, Engine::wasm().unwrap(), Engine::inline()]
}
