//! Pods of Kubernetes that the mesh captures.

use crate::function_id::FunctionId;
use crate::spiffe::{BadSpiffeId, SpiffeId, TrustDomain};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// The UID of a pod, a UUID in Kubernetes: 1 to 64 letters, digits and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodUid(Arc<str>);

/// A text is not the UID of a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the UID of a pod: expected 1 to 64 letters, digits and `-`")]
pub struct BadPodUid(String);

/// How connections to a pod are judged that no rule allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodMode {
    /// They are allowed, unless a policy of the function has rules that allow others.
    #[default]
    Permissive,
    /// They are refused.
    Enforced,
}

/// The protocol of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// A GET.
    Http,
    /// A GET over TLS.
    Https,
    /// A connection.
    Tcp,
    /// The health check of gRPC.
    Grpc,
}

/// A probe of the kubelet that arrives over the network. Probes by `exec` are not among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodProbe {
    /// Protocol.
    pub kind: ProbeKind,
    /// Port of the pod.
    pub port: u16,
    /// Path of a GET, with its query.
    #[serde(default)]
    pub path: Option<String>,
}

/// A TCP port that a container of a pod declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodPort {
    /// Its name, if it has one.
    #[serde(default)]
    pub name: Option<String>,
    /// Its number.
    pub number: u16,
}

/// The pods that run a function: the part that is the same for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pods {
    /// The name of the service account of its oldest pods, in its namespace. It is the identity that
    /// rules mean which name the function.
    pub service_account: String,
    /// Other service accounts of its pods, which such rules do not mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_accounts: Vec<String>,
    /// How connections to them are judged that no rule allows.
    #[serde(default)]
    pub mode: PodMode,
    /// The TCP ports that their containers declare.
    #[serde(default)]
    pub ports: Vec<PodPort>,
}

/// A pod of the mesh, as its node needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The function that it runs.
    pub function: FunctionId,
    /// The name of its service account, in its namespace. It is its identity, whatever the function's
    /// is; `None`: it has none.
    #[serde(default)]
    pub service_account: Option<String>,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The function's mode, or a stricter one.
    pub mode: PodMode,
    /// The TCP ports that its containers declare.
    #[serde(default)]
    pub ports: Vec<PodPort>,
    /// Its probes.
    #[serde(default)]
    pub probes: Vec<PodProbe>,
    /// Why the node does not capture it; `None`: the node captures it.
    #[serde(default)]
    pub refused: Option<PodRefusal>,
}

/// Why a pod is not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodRefusal {
    /// It has the network of its node.
    HostNetwork,
    /// It can change its network (`NET_ADMIN`), so it could end its capture.
    NetAdmin,
}

impl Pods {
    /// The SPIFFE ID of the service account. Fails if the account's name is no segment of a path.
    pub fn identity(&self, trust_domain: &TrustDomain, namespace: &str) -> Result<SpiffeId, BadSpiffeId> {
        SpiffeId::function(trust_domain, namespace, &self.service_account)
    }
}

impl Pod {
    /// The SPIFFE ID of its service account; `None`: it has none that the mesh knows.
    pub fn identity(&self, trust_domain: &TrustDomain) -> Option<SpiffeId> {
        let identity = SpiffeId::function(trust_domain, &self.namespace, self.service_account.as_deref()?);
        identity.ok().filter(|identity| !identity.is_reserved())
    }
}

impl PodUid {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PodUid {
    type Err = BadPodUid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(BadPodUid(text.chars().take(80).collect()))
        }
    }
}

impl TryFrom<String> for PodUid {
    type Error = BadPodUid;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PodUid> for String {
    fn from(uid: PodUid) -> Self {
        uid.0.to_string()
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PodMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permissive => "permissive",
            Self::Enforced => "enforced",
        })
    }
}

impl fmt::Display for PodRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostNetwork => "the pod has the network of its node",
            Self::NetAdmin => "the pod can change its network (NET_ADMIN)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_pods() {
        for good in ["7d0c1f5e-1c0b-4f39-9d2b-0f6f3f1d2a10", "a", &"f".repeat(64)] {
            assert_eq!(good.parse::<PodUid>().unwrap().as_str(), good);
        }
        for bad in ["", "a/b", "../x", "a b", "ä", &"f".repeat(65)] {
            assert!(bad.parse::<PodUid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_stricter_mode_is_the_greater_one() {
        assert_eq!(PodMode::Permissive.max(PodMode::Enforced), PodMode::Enforced);
        assert_eq!(PodMode::default(), PodMode::Permissive);
    }
}
