//! The documents as users write them. Their comments are the reference pages, their defaults the documented defaults.

mod authentication;
mod authorization;
mod callee_rules;
mod chain;
mod claim;
mod confine;
mod extension;
mod external;
mod external_authorization;
mod fault;
mod function;
mod image;
mod instance;
mod job;
mod label;
mod mesh;
mod namespace_quota;
mod observe;
mod paths;
mod policy;
mod principal;
mod quotas;
mod rate_limit;
mod resilience;
mod revisions;
mod rollout;
mod scale;
mod sidecar;
mod stored_secret;
mod text;
mod value;
mod wasm;

pub use authentication::{Authentication, ClaimToHeader, Issuer, Jwks, TokenLocation};
pub use authorization::{Action, Authorization, AuthorizationRule, Condition, Mode, Operation, Source};
pub use callee_rules::{CalleeRule, CalleeRules, CalleeSelector, FunctionSelector};
pub use chain::{Chain, ChainKind, ChainMember, ChainSpec};
pub use claim::ClaimPath;
pub use confine::{Resources, Secret, SecretAs};
pub use extension::{Direction, Extension, FailMode, Phase};
pub use external::{
    EgressNodes, External, ExternalCredential, ExternalKind, ExternalPort, ExternalSpec, ExternalTimeouts, ExternalTls,
    MeshEgress,
};
pub use external_authorization::{Authorizer, AuthorizerCache};
pub use fault::{Fault, FaultAbort, FaultCondition, GrpcStatus};
pub use function::{Expose, Function, FunctionKind, FunctionSpec, FunctionTimeouts, Port};
pub use image::{ImageRegistry, Images, Volume, VolumeAccess};
pub use instance::{ExternalInstances, Liveness, Readiness};
pub use job::{Job, JobKind, JobSpec};
pub(crate) use label::LabelSelector;
pub use label::{LabelExpression, LabelOperator, Labels};
pub use mesh::{
    AccessLogFormat, AccountChoice, EngineChoice, Gateway, GatewayCertificate, GatewayHttps, Instances, Listeners,
    Mesh, MeshAccessLog, MeshKind, MeshLimits, MeshMetadata, MeshSpec, MeshTracing, Mtls, ProxyProtocol, SameNode,
    TrustedProxies,
};
pub use namespace_quota::{HostPath, NamespaceLimits, NamespaceQuota, NamespaceQuotaKind, NamespaceQuotaMetadata};
pub use observe::{AccessLog, Tracing};
pub use paths::{Paths, SendPaths};
pub use policy::{Policy, PolicyKind, PolicySpec};
pub use principal::RequestPrincipal;
pub use quotas::{Quotas, RedisQuotas, RedisTls};
pub use rate_limit::{Algorithm, Counts, KeyPart, RateLimit, RateLimitOverride};
pub use resilience::{Backoff, CircuitBreaker, OutlierDetection, Retry, RetryBudget};
pub use revisions::{NamedRevision, RevisionTimeouts};
pub use rollout::{MaxLatency, Rollout, TrafficTarget};
pub use scale::Scale;
pub use sidecar::{HeaderEdits, Protocol, ResponseHeaderEdits, Sidecar};
pub use stored_secret::{RedactedValue, SecretText, StoredSecret, StoredSecretKind, StoredSecretSpec};
pub use text::TextMatch;
pub use value::{Address, AdminAddress, ApiVersion, Metadata, Ports};
pub use wasm::Wasm;
