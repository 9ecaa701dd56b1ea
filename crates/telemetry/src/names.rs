//! The names of things in metrics, logs, spans and explanations.

use leno_http::peer::TrafficDirection;
use leno_policy::engine::EngineKind;
use leno_policy::outcome::PolicyKind;
use leno_policy::spec::{Algorithm, Protocol};

/// Namespace and name in `spiffe://td/ns/<namespace>/sa/<name>`.
pub fn workload(identity: &str) -> Option<(&str, &str)> {
    let path = identity.strip_prefix("spiffe://")?.split_once('/')?.1;
    let (namespace, name) = path.strip_prefix("ns/")?.split_once("/sa/")?;
    (!namespace.contains('/') && !name.contains('/')).then_some((namespace, name))
}

/// The policy name of extensions, which are not among the nine policies.
pub const EXTENSIONS: &str = "extensions";

/// A policy's name in logs and metrics.
pub fn policy_name(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Authentication => "authentication",
        PolicyKind::Sidecar => "sidecar",
        PolicyKind::Authorization => "authorization",
        PolicyKind::RateLimit => "rateLimits",
        PolicyKind::ExternalAuthorization => "externalAuthorization",
        PolicyKind::Tracing => "tracing",
        PolicyKind::AccessLog => "accessLog",
        PolicyKind::MutualTls => "mutualTls",
        PolicyKind::Retry => "retry",
        PolicyKind::CircuitBreaker => "circuitBreaker",
    }
}

/// The name of a direction in logs and spans.
pub fn direction_name(direction: TrafficDirection) -> &'static str {
    match direction {
        TrafficDirection::Gateway => "gateway",
        TrafficDirection::Outbound => "outbound",
        TrafficDirection::Inbound => "inbound",
    }
}

/// The name of a protocol in logs and spans.
pub fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
        Protocol::Grpc => "grpc",
        Protocol::WebSocket => "websocket",
    }
}

/// The name of an engine, as in the configuration.
pub fn engine_name(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::Microvm => "microvm",
        EngineKind::Wasm => "wasm",
        EngineKind::Inline => "inline",
        EngineKind::Constant => "constant",
    }
}

/// The name of an algorithm, as in RFC 7518 and RFC 8037.
pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::RS256 => "RS256",
        Algorithm::RS384 => "RS384",
        Algorithm::RS512 => "RS512",
        Algorithm::PS256 => "PS256",
        Algorithm::PS384 => "PS384",
        Algorithm::PS512 => "PS512",
        Algorithm::ES256 => "ES256",
        Algorithm::ES384 => "ES384",
        Algorithm::ES512 => "ES512",
        Algorithm::EdDSA => "EdDSA",
    }
}

/// The namespace of the function for which a node has recorded an event of this kind, with this
/// target and source.
pub(crate) fn recorded_for<'a>(kind: &str, target: Option<&'a str>, source: &'a str) -> Option<&'a str> {
    match kind {
        "gateway" | "inbound" => target?.split_once('/').map(|(namespace, _)| namespace),
        _ => Some(namespace(source)),
    }
}

/// The namespace of a source: `namespace/name/number` is an instance.
pub(crate) fn namespace(source: &str) -> &str {
    workload(source).map_or_else(|| source.split('/').next().unwrap_or_default(), |(namespace, _)| namespace)
}
