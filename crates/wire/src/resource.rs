//! Resources, which the control plane delivers: their names, versions and payloads.
//!
//! Payloads are encoded so that nodes and control planes of different releases read the same in
//! them, or refuse them: see [`crate::encoding`].

use crate::encoding::{EncodingError, Observe, from_bytes_observed, to_bytes};
use crate::load::{Bounds, Lease};
use crate::placement::Placement;
use crate::secrets;
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use leno_identity::{BadSpiffeId, CertificateDer, TrustBundle};
use leno_model::{
    Destination, FunctionConfig, FunctionId, GatewayRoutes, InstanceState, Locality, MeshConfig, ModuleHash, Pod,
    PodUid, Route, SecretValues, ServiceEndpoint, ServiceName,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// The SHA-256 of a module.
pub fn module_hash(module: &[u8]) -> ModuleHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, module).as_ref());
    hash.into()
}

/// The name of a resource. Resources are sent in this order, so that each comes after those that it
/// refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Subject {
    /// Mesh-wide settings, which every node needs.
    Mesh,
    /// The root certificates of the trust domain.
    Bundle,
    /// How many instances of a function the node may have, and must. Only for nodes with
    /// [`Placement::Scheduled`].
    Scale(FunctionId),
    /// The node's shares of a function's rate limits. Only for nodes whose placement
    /// [shares limits](Placement::shares_limits).
    Quota(FunctionId),
    /// The stored secrets that a function's documents name. Only for nodes that host the function.
    Secrets(FunctionId),
    /// The stored secrets with the certificates of listeners. Only for gateways.
    Certificates,
    /// A WebAssembly module that function configurations name.
    Module(ModuleHash),
    /// The configuration of one function's sidecars and supervisor. A subscription also covers the
    /// modules that the function configuration names.
    FunctionConfig(FunctionId),
    /// A gateway's route to an exposed function that its node does not host.
    Route(FunctionId),
    /// The other nodes on which a function can be reached.
    Endpoints(FunctionId),
    /// The namespaces whose pods enforce their policies. Only for nodes with [`Placement::Pods`].
    EnforcedNamespaces,
    /// A pod of the node. Only for nodes with [`Placement::Pods`].
    Pod(PodUid),
    /// An endpoint of a Service, by its address. Only for nodes with [`Placement::Pods`].
    ServiceEndpoint(ServiceName, IpAddr),
    /// The meaning of an address that pods of the node call. A subscription also covers the endpoints of
    /// the Service that has the address, those of the same address family. Only for nodes with
    /// [`Placement::Pods`].
    Destination(IpAddr),
    /// The routes of all gateways. A subscription covers the endpoints of all functions that are
    /// exposed or that a route leads to, and the routes to those that the node does not host.
    Routes,
    /// The node's placement. A subscription also covers the function configurations of the
    /// functions that the node hosts, the endpoints of their callees, and the node's pods.
    Hosted,
}

/// A decoded resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Resource {
    /// Mesh-wide settings, which every node needs.
    Mesh(Box<MeshConfig>),
    /// The root certificates of the trust domain.
    Bundle(TrustBundle),
    /// How many instances of each revision of a function the node may have, and must.
    Scale(FunctionId, Vec<Bounds>),
    /// The node's shares of a function's rate limits.
    Quota(FunctionId, Lease),
    /// The stored secrets that a function's documents name.
    Secrets(FunctionId, Arc<SecretValues>),
    /// The stored secrets with the certificates of listeners. `secret` of each key is
    /// `namespace/name`.
    Certificates(Arc<SecretValues>),
    /// A WebAssembly module that function configurations name, with its hash.
    Module(ModuleHash, Bytes),
    /// The configuration of one function's sidecars and supervisor.
    FunctionConfig(Box<FunctionConfig>),
    /// A gateway's route to an exposed function that its node does not host.
    Route(Box<Route>),
    /// The other nodes on which a function can be reached, sorted by name.
    Endpoints(FunctionId, Vec<Endpoint>),
    /// The namespaces whose pods enforce their policies, also those without pods on the node.
    EnforcedNamespaces(BTreeSet<String>),
    /// A pod of the node.
    Pod(Box<Pod>),
    /// An endpoint of a Service. More than one: slices give its address different ports.
    ServiceEndpoint(ServiceName, IpAddr, Vec<ServiceEndpoint>),
    /// The meaning of an address.
    Destination(IpAddr, Box<Destination>),
    /// The listeners and routes of Gateway documents. It also tells that the routes to all exposed
    /// functions were sent: as routes, or in the function configurations of functions that the node
    /// hosts.
    Routes(Box<GatewayRoutes>),
    /// The node's placement. It also tells that the function configurations of all functions that
    /// the node hosts were sent, and its pods.
    Hosted(Placement),
}

/// A node that hosts a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name of the node.
    pub node: String,
    /// The node's inbound listener: mutual TLS, where the TLS server name selects the function.
    pub address: SocketAddr,
    /// Number of ready instances on the node. If there is none, the node starts one for the first
    /// request.
    pub ready: u32,
    /// Where the node is.
    #[serde(default)]
    pub locality: Locality,
}

/// An instance of a function, as its node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// Unique on the node.
    pub id: u64,
    /// Lifecycle state.
    pub state: InstanceState,
    /// Address on which the instance listens.
    pub address: SocketAddr,
    /// Process ID; `None`: the node did not start the instance.
    pub pid: Option<u32>,
    /// Number of instances that failed before this one.
    pub restarts: u32,
    /// When the instance entered this state.
    pub since: SystemTime,
}

/// Identifies a payload: the first 16 bytes of its SHA-256. So versions survive restarts of the
/// control plane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version([u8; 16]);

/// A payload that cannot be decoded as its subject's kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject} cannot be read: {reason}")]
pub struct BadPayload {
    subject: Subject,
    reason: String,
}

/// An encoded resource and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Identifies the payload.
    pub version: Version,
    /// The encoded resource.
    pub payload: Bytes,
}

/// The encoded form of a [`TrustBundle`], with certificates in DER.
#[derive(Serialize, Deserialize)]
struct Roots {
    trust_domain: String,
    roots: Vec<Vec<u8>>,
}

impl Resource {
    /// The name of the resource.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Mesh(_) => Subject::Mesh,
            Self::Bundle(_) => Subject::Bundle,
            Self::Module(hash, _) => Subject::Module(*hash),
            Self::Scale(function, _) => Subject::Scale(function.clone()),
            Self::Quota(function, _) => Subject::Quota(function.clone()),
            Self::Secrets(function, _) => Subject::Secrets(function.clone()),
            Self::Certificates(_) => Subject::Certificates,
            Self::FunctionConfig(config) => Subject::FunctionConfig(config.id.clone()),
            Self::Route(route) => Subject::Route(route.id.clone()),
            Self::Endpoints(function, _) => Subject::Endpoints(function.clone()),
            Self::EnforcedNamespaces(_) => Subject::EnforcedNamespaces,
            Self::Pod(pod) => Subject::Pod(pod.uid.clone()),
            Self::ServiceEndpoint(service, address, _) => Subject::ServiceEndpoint(service.clone(), *address),
            Self::Destination(address, _) => Subject::Destination(*address),
            Self::Routes(_) => Subject::Routes,
            Self::Hosted(_) => Subject::Hosted,
        }
    }

    /// Decodes the payload of a resource.
    pub fn decode(subject: &Subject, payload: &[u8]) -> Result<Self, BadPayload> {
        Self::decode_observed(subject, payload, |_, _, _| {})
    }

    /// Decodes the payload of a resource, observed as by [`from_bytes_observed`].
    pub fn decode_observed(subject: &Subject, payload: &[u8], observe: Observe) -> Result<Self, BadPayload> {
        let bad = |reason: String| BadPayload { subject: subject.clone(), reason };
        let unread = |error: EncodingError| bad(error.to_string());
        Ok(match subject {
            Subject::Mesh => Self::Mesh(from_bytes_observed(payload, observe).map_err(unread)?),
            Subject::Bundle => {
                let Roots { trust_domain, roots } = from_bytes_observed(payload, observe).map_err(unread)?;
                let trust_domain = trust_domain.parse().map_err(|error: BadSpiffeId| bad(error.to_string()))?;
                let roots = roots.into_iter().map(CertificateDer::from);
                Self::Bundle(TrustBundle::new(&trust_domain, roots).map_err(|error| bad(error.to_string()))?)
            }
            Subject::Module(hash) if module_hash(payload) == *hash => {
                Self::Module(*hash, Bytes::copy_from_slice(payload))
            }
            Subject::Module(_) => return Err(bad("it has another hash".to_owned())),
            Subject::FunctionConfig(id) => {
                let config: Box<FunctionConfig> = from_bytes_observed(payload, observe).map_err(unread)?;
                if config.id != *id {
                    return Err(bad(format!("it is that of {}", config.id)));
                }
                Self::FunctionConfig(config)
            }
            Subject::Route(id) => {
                let route: Box<Route> = from_bytes_observed(payload, observe).map_err(unread)?;
                if route.id != *id {
                    return Err(bad(format!("it is that of {}", route.id)));
                }
                Self::Route(route)
            }
            Subject::Scale(id) => Self::Scale(id.clone(), from_bytes_observed(payload, observe).map_err(unread)?),
            Subject::Quota(id) => Self::Quota(id.clone(), from_bytes_observed(payload, observe).map_err(unread)?),
            Subject::Secrets(id) => {
                Self::Secrets(id.clone(), Arc::new(secrets::decode(payload, observe).map_err(unread)?))
            }
            Subject::Certificates => Self::Certificates(Arc::new(secrets::decode(payload, observe).map_err(unread)?)),
            Subject::Endpoints(id) => {
                Self::Endpoints(id.clone(), from_bytes_observed(payload, observe).map_err(unread)?)
            }
            Subject::EnforcedNamespaces => {
                Self::EnforcedNamespaces(from_bytes_observed(payload, observe).map_err(unread)?)
            }
            Subject::Pod(uid) => {
                let pod: Box<Pod> = from_bytes_observed(payload, observe).map_err(unread)?;
                if pod.uid != *uid {
                    return Err(bad(format!("it is the pod {}", pod.uid)));
                }
                Self::Pod(pod)
            }
            Subject::ServiceEndpoint(service, address) => {
                Self::ServiceEndpoint(service.clone(), *address, from_bytes_observed(payload, observe).map_err(unread)?)
            }
            Subject::Destination(address) => {
                Self::Destination(*address, from_bytes_observed(payload, observe).map_err(unread)?)
            }
            Subject::Routes => {
                let routes: Option<_> = from_bytes_observed(payload, observe).map_err(unread)?;
                Self::Routes(routes.unwrap_or_default())
            }
            Subject::Hosted => Self::Hosted(from_bytes_observed(payload, observe).map_err(unread)?),
        })
    }
}

impl Content {
    /// Encodes a value. Fails, for example, for a path that is not UTF-8.
    pub fn new(value: &impl Serialize) -> Result<Self, EncodingError> {
        let payload = Bytes::from(to_bytes(value)?);
        Ok(Self { version: Version::of(&payload), payload })
    }

    /// A module, whose payload is not encoded.
    pub fn of_module(module: &Arc<[u8]>) -> Self {
        let payload = Bytes::from_owner(module.clone());
        Self { version: Version::of(&payload), payload }
    }

    /// Encodes the root certificates of a trust domain.
    pub fn of_bundle(bundle: &TrustBundle) -> Result<Self, EncodingError> {
        let roots = bundle.roots().map(|root| root.to_vec()).collect();
        Self::new(&Roots { trust_domain: bundle.trust_domain().to_string(), roots })
    }

    /// Encodes the routes of gateways. Without any, there is only the marker that older nodes know.
    pub fn of_routes(routes: &GatewayRoutes) -> Result<Self, EncodingError> {
        Self::new(&(!routes.is_empty()).then_some(routes))
    }

    /// Encodes the stored secrets of a function, or those with the certificates of listeners.
    pub fn of_secrets(values: &SecretValues) -> Result<Self, EncodingError> {
        let payload = secrets::encode(values)?;
        Ok(Self { version: Version::of(&payload), payload: Bytes::from_owner(payload) })
    }

    /// A copy of the payload. One with secrets is overwritten when it is dropped.
    pub fn copy_payload(&self, subject: &Subject) -> Bytes {
        match subject {
            Subject::Secrets(_) | Subject::Certificates => Bytes::from_owner(Zeroizing::new(self.payload.to_vec())),
            _ => Bytes::copy_from_slice(&self.payload),
        }
    }
}

impl Version {
    /// The version of a payload.
    pub fn of(payload: &[u8]) -> Self {
        let hash = digest(&SHA256, payload);
        let mut version = [0; 16];
        version.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
        Self(version)
    }

    /// Decodes a version; `None`: it has another length.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Encodes the version.
    pub fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mesh => f.write_str("the mesh"),
            Self::Bundle => f.write_str("the trust bundle"),
            Self::Module(hash) => write!(f, "the module {hash}"),
            Self::Scale(function) => write!(f, "the bounds of {function}"),
            Self::Quota(function) => write!(f, "the shares of {function}"),
            Self::Secrets(function) => write!(f, "the stored secrets of {function}"),
            Self::FunctionConfig(function) => write!(f, "the configuration of {function}"),
            Self::Route(function) => write!(f, "the route to {function}"),
            Self::Certificates => f.write_str("the certificates of listeners"),
            Self::Endpoints(function) => write!(f, "the endpoints of {function}"),
            Self::EnforcedNamespaces => f.write_str("the enforced namespaces"),
            Self::Pod(uid) => write!(f, "the pod {uid}"),
            Self::ServiceEndpoint(service, address) => write!(f, "the endpoint {address} of {service}"),
            Self::Destination(address) => write!(f, "the destination {address}"),
            Self::Routes => f.write_str("the gateway's part"),
            Self::Hosted => f.write_str("the node's part"),
        }
    }
}
