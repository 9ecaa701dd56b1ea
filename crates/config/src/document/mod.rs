//! The documents as users write them. Their comments are the reference pages, their defaults the documented defaults.

mod function;
mod mesh;
mod policy;
mod value;

pub use function::{Expose, External, Function, FunctionKind, FunctionSpec, FunctionTimeouts, Readiness, Scale};
pub use mesh::{
    AccessLogFormat, EngineChoice, Gateway, GatewayHttps, Listeners, Mesh, MeshAccessLog, MeshKind, MeshLimits,
    MeshMetadata, MeshSpec, MeshTracing, Mtls, SameNode,
};
pub use policy::{
    AccessLog, Action, Algorithm, Authentication, Authorization, AuthorizationRule, Backoff, CircuitBreaker, ClaimPath,
    ClaimToHeader, Condition, HeaderEdits, Issuer, Jwks, KeyPart, Operation, OutlierDetection, Policy, PolicyKind,
    PolicySpec, Protocol, RateLimit, ResponseHeaderEdits, Retry, RetryBudget, Sidecar, Source, TokenLocation, Tracing,
};
pub use value::{Address, ApiVersion, Metadata};
