//! What is delivered: resources, their names, their versions, and their payloads.
//!
//! Payloads are postcard: slices are full of byte strings and nested enumerations, which JSON would carry at several times the
//! size. The price is that both ends must be of the same release, which the stream's first message checks.

use crate::admission::Placement;
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use leno_config::{FunctionId, MeshSlice, ModuleHash, Slice};
use leno_identity::{CertificateDer, TrustBundle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

/// The name of a resource. The order is the one in which resources are sent: nothing comes before what it refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Subject {
    /// What every node needs.
    Mesh,
    /// The roots of the trust domain.
    Bundle,
    /// A module that slices name.
    Module(ModuleHash),
    /// What one function's sidecars and supervisor need. A subscription covers the modules that it names too.
    Slice(FunctionId),
    /// The other nodes on which a function can be reached.
    Endpoints(FunctionId),
    /// What a gateway needs: a subscription covers the slices and endpoints of the functions that outside traffic is let in to.
    Routes,
    /// What this node is for: a subscription covers the slices of the functions that it hosts and their callees' endpoints too.
    Hosted,
}

/// A resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Resource {
    /// What every node needs.
    Mesh(Box<MeshSlice>),
    /// The roots of the trust domain.
    Bundle(TrustBundle),
    /// A module that slices name; it has the hash by which it is called.
    Module(ModuleHash, Bytes),
    /// What one function's sidecars and supervisor need.
    Slice(Box<Slice>),
    /// The other nodes on which a function can be reached, in the order of their names.
    Endpoints(FunctionId, Vec<Endpoint>),
    /// The slices of all functions that the gateway offers were sent; by which hosts and paths it does is in them.
    Routes,
    /// What this node is for. The slices of all functions that it hosts were sent.
    Hosted(Placement),
}

/// A node that hosts a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name of the node.
    pub node: String,
    /// Its inbound listener: mutual TLS, the function chosen by the server name.
    pub address: SocketAddr,
    /// Instances that are ready there. With none, the node starts one for the first request.
    pub ready: u32,
}

/// A running copy of a function, as its node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// Unique on its node.
    pub id: u64,
    /// Where it is in its life.
    pub state: InstanceState,
    /// Where it listens.
    pub address: SocketAddr,
    /// Process; `None` where the node did not start it.
    pub pid: Option<u32>,
    /// Failed instances before it.
    pub restarts: u32,
    /// Since when it is in this state.
    pub since: SystemTime,
}

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Started, not ready yet.
    Starting,
    /// Gets requests.
    Ready,
    /// Gets no new requests; those it has may end.
    Draining,
    /// Was told to end.
    Stopping,
}

/// Names a content: the first half of its SHA-256. Versions therefore survive restarts of the control plane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version([u8; 16]);

/// A payload that is not what its kind says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload of {subject} cannot be read: {reason}")]
pub(crate) struct BadPayload {
    subject: Subject,
    reason: String,
}

/// A resource as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub version: Version,
    pub payload: Bytes,
}

/// How a [`TrustBundle`] is sent.
#[derive(Serialize, Deserialize)]
struct Roots {
    trust_domain: String,
    roots: Vec<Vec<u8>>,
}

impl Resource {
    /// Its name.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Mesh(_) => Subject::Mesh,
            Self::Bundle(_) => Subject::Bundle,
            Self::Module(hash, _) => Subject::Module(*hash),
            Self::Slice(slice) => Subject::Slice(slice.id.clone()),
            Self::Endpoints(function, _) => Subject::Endpoints(function.clone()),
            Self::Routes => Subject::Routes,
            Self::Hosted(_) => Subject::Hosted,
        }
    }

    pub(crate) fn decode(subject: &Subject, payload: &[u8]) -> Result<Self, BadPayload> {
        let bad = |reason: String| BadPayload { subject: subject.clone(), reason };
        Ok(match subject {
            Subject::Mesh => Self::Mesh(from_payload(payload).map_err(bad)?),
            Subject::Bundle => Self::Bundle(bundle(from_payload(payload).map_err(bad)?).map_err(bad)?),
            Subject::Module(hash) if ModuleHash::of(payload) == *hash => {
                Self::Module(*hash, Bytes::copy_from_slice(payload))
            }
            Subject::Module(_) => return Err(bad("it has another hash".to_owned())),
            Subject::Slice(id) => {
                let slice: Box<Slice> = from_payload(payload).map_err(bad)?;
                if slice.id != *id {
                    return Err(bad(format!("it is that of {}", slice.id)));
                }
                Self::Slice(slice)
            }
            Subject::Endpoints(id) => Self::Endpoints(id.clone(), from_payload(payload).map_err(bad)?),
            Subject::Routes => {
                from_payload::<()>(payload).map_err(bad)?;
                Self::Routes
            }
            Subject::Hosted => Self::Hosted(from_payload(payload).map_err(bad)?),
        })
    }
}

fn from_payload<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err("it is too long".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn bundle(sent: Roots) -> Result<TrustBundle, String> {
    let trust_domain = sent.trust_domain.parse().map_err(|error| format!("{error}"))?;
    TrustBundle::new(&trust_domain, sent.roots.into_iter().map(CertificateDer::from)).map_err(|error| error.to_string())
}

impl Content {
    /// Of whatever postcard can write; it refuses types that do not know their length, and there are none here.
    pub(crate) fn new(value: &impl Serialize) -> Result<Self, postcard::Error> {
        let payload = Bytes::from(postcard::to_allocvec(value)?);
        Ok(Self { version: Version::of(&payload), payload })
    }

    /// Of a module, which is sent as it is.
    pub(crate) fn of_module(module: &Arc<[u8]>) -> Self {
        let payload = Bytes::from_owner(module.clone());
        Self { version: Version::of(&payload), payload }
    }

    pub(crate) fn of_bundle(bundle: &TrustBundle) -> Result<Self, postcard::Error> {
        let roots = bundle.roots().map(|root| root.to_vec()).collect();
        Self::new(&Roots { trust_domain: bundle.trust_domain().to_string(), roots })
    }
}

impl Version {
    pub(crate) fn of(payload: &[u8]) -> Self {
        let hash = digest(&SHA256, payload);
        let mut version = [0; 16];
        version.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
        Self(version)
    }

    pub(crate) fn from_wire(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn to_wire(self) -> Bytes {
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
            Self::Slice(function) => write!(f, "the slice of {function}"),
            Self::Endpoints(function) => write!(f, "the endpoints of {function}"),
            Self::Routes => f.write_str("the gateway's part"),
            Self::Hosted => f.write_str("the node's part"),
        }
    }
}
