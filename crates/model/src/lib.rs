//! The types of a checked mesh: names, identities and configurations.
//!
//! The control plane compiles documents to a [`FunctionConfig`] for each function and one
//! [`MeshConfig`], and delivers them to nodes. The types are plain data; only
//! [`secret_values`] reads files.
#![forbid(unsafe_code)]

mod authorizer;
mod bounds;
mod candidate;
mod chain_link;
mod container;
mod destination;
pub mod egress;
mod fault;
mod function;
pub mod function_id;
mod grpc_status;
mod http_route;
mod instance_state;
mod locality;
mod mesh;
mod output;
pub mod pod;
pub mod revision;
mod route;
mod run;
mod secret;
pub mod size;
pub mod special_address;
mod spiffe;
mod stored_secret;
mod stream_route;
pub mod variables;

pub use authorizer::{Authorizer, AuthorizerCache, AuthorizerProtocol};
pub use bounds::NamespaceBounds;
pub use candidate::CandidatePrograms;
pub use chain_link::ChainLink;
pub use container::{
    Container, HostVolume, ImageRegistry, Images, PersistentVolume, Pull, RegistryCredentials, Volume,
};
pub use destination::{
    BadServiceName, Destination, EndpointPort, MeshPod, Service, ServiceEndpoint, ServiceName, ServicePort,
    TrafficDistribution,
};
pub use egress::{CertificateName, Credential, CredentialForm, Egress, EgressPort, EgressProtocol, EgressTls};
pub use fault::{Fault, FaultAbort, FieldValues};
pub use function::{Callee, Engine, Expose, Extension, FunctionConfig, JwksFetch, PublicKey, VerificationKey};
pub use function_id::{BadFunctionId, FunctionId};
pub use grpc_status::GRPC_STATUSES;
pub use http_route::{
    AttachedRoute, Attachment, Backend, BackendTarget, CallRoute, Cors, FieldMatch, GatewayRoutes, HeaderModifier,
    HttpRoute, HttpRouteKind, Mirror, PathChange, PathPattern, Precedence, Redirect, Rewrite, RouteAuthorizer,
    RouteFilter, RouteListener, RouteMatch, RouteRetry, RouteRule, RouteTimeouts, ValuePattern,
};
pub use instance_state::InstanceState;
/// The folders of nodes that [`NamespaceBounds`] lists.
pub use leno_files::{HostFolder, Owner};
pub use locality::{Distance, Locality};
pub use mesh::{
    AccessLogSink, Accounts, AdminListener, CertificateFiles, ExtensionInstances, GatewayTls, Limits, MeshConfig,
    PortRange, RedisQuotas, RedisTransport, STREAM_LIFETIME, TCP_KEEP_ALIVE, TrustedProxies, UpstreamLimits,
};
pub use output::{Output, OutputLine, OutputMark, OutputQuery, OutputStream};
pub use pod::{BadPodUid, Pod, PodMode, PodPort, PodProbe, PodRefusal, PodUid, Pods, ProbeKind};
pub use revision::{Latency, Plan, Revision, Revisions, Rollout, Split, TAG_HEADER, Target, Template};
pub use route::Route;
pub use run::{
    AppProtocol, BadHash, Command, IN_NODE, Isolation, Job, Liveness, Metric, ModuleHash, ModuleUrl, Port,
    PortProtocol, Process, Readiness, Resources, Run, Scale, Wasm,
};
pub use secret::{Secret, SecretReader, SecretSource, SecretValue, TEXT_OR_MORE, secret_values};
pub use spiffe::{BadSpiffeId, SpiffeId, TrustDomain, function_of_server_name};
pub use stored_secret::{SecretBytes, SecretValues, StoredKey, StoredSecrets};
pub use stream_route::{StreamBackend, StreamListener, StreamRoute, StreamTls};
