//! SPIFFE IDs.
//!
//! Source: the SPIFFE standard *The SPIFFE Identity and Verifiable Identity Document*, sections 2.1
//! to 2.3.

use crate::function_id::{FunctionId, is_label};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const SCHEME: &str = "spiffe://";
const MAX_ID: usize = 2048;
const MAX_TRUST_DOMAIN: usize = 255;
/// Names with this suffix exist only in Leno's certificates and TLS handshakes. `internal` is
/// reserved for private use.
const SERVER_NAME_SUFFIX: &str = ".leno.internal";
/// The namespace of the control plane and the gateways.
const SYSTEM: &str = "leno-system";
/// The namespace of nodes.
const NODES: &str = "leno-nodes";

/// The name of a trust domain: lower-case letters, digits, `.`, `-` and `_`, 1 to 255 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TrustDomain(Arc<str>);

/// `spiffe://<trust domain>/<path>`. Without a path it names the trust domain itself, and no
/// workload.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpiffeId {
    text: Arc<str>,
    /// End of the trust domain in `text`.
    path: usize,
}

/// A text is not a SPIFFE ID or trust domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a SPIFFE ID: {reason}")]
pub struct BadSpiffeId {
    text: String,
    reason: &'static str,
}

impl TrustDomain {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The trust domain's own ID, which its authority carries.
    pub fn id(&self) -> SpiffeId {
        let text: Arc<str> = format!("{SCHEME}{}", self.0).into();
        SpiffeId { path: text.len(), text }
    }
}

impl FromStr for TrustDomain {
    type Err = BadSpiffeId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        check_trust_domain(text).map_err(|reason| bad(text, reason))?;
        Ok(Self(text.into()))
    }
}

impl SpiffeId {
    /// Leno's form: `spiffe://<trust domain>/ns/<namespace>/sa/<name>`.
    pub fn function(trust_domain: &TrustDomain, namespace: &str, name: &str) -> Result<Self, BadSpiffeId> {
        let id: Self = format!("{SCHEME}{trust_domain}/ns/{namespace}/sa/{name}").parse()?;
        // A slash inside a label would have shifted the segments.
        if id.namespace() == Some(namespace) && id.name() == Some(name) {
            Ok(id)
        } else {
            Err(bad(id.as_str(), "a namespace or name holds a `/`"))
        }
    }

    /// The identity of a function. Its namespace and name are DNS labels, so they are segments of
    /// paths.
    pub fn of_function(trust_domain: &TrustDomain, id: &FunctionId) -> Self {
        let text = format!("{SCHEME}{trust_domain}/ns/{}/sa/{}", id.namespace, id.name);
        Self { path: SCHEME.len() + trust_domain.0.len(), text: text.into() }
    }

    /// The identity with which a node joins the control plane: `spiffe://<trust
    /// domain>/ns/leno-nodes/sa/<name>`.
    pub fn node(trust_domain: &TrustDomain, name: &str) -> Result<Self, BadSpiffeId> {
        Self::function(trust_domain, NODES, name)
    }

    /// The identity of the control plane: `spiffe://<trust domain>/ns/leno-system/sa/control`.
    pub fn control(trust_domain: &TrustDomain) -> Result<Self, BadSpiffeId> {
        Self::function(trust_domain, SYSTEM, "control")
    }

    /// The identity with which gateways call functions: `spiffe://<trust
    /// domain>/ns/leno-system/sa/gateway`.
    pub fn gateway(trust_domain: &TrustDomain) -> Result<Self, BadSpiffeId> {
        Self::function(trust_domain, SYSTEM, "gateway")
    }

    /// The node's name; `None`: it is not a node's identity.
    pub fn node_name(&self) -> Option<&str> {
        self.function_path().and_then(|(namespace, name)| (namespace == NODES).then_some(name))
    }

    /// Whether it is the identity with which gateways call functions.
    pub fn is_gateway(&self) -> bool {
        self.function_path() == Some((SYSTEM, "gateway"))
    }

    /// Whether it is in a namespace of the mesh itself, so that no function can have it.
    pub fn is_reserved(&self) -> bool {
        self.namespace().is_some_and(|namespace| [SYSTEM, NODES].contains(&namespace))
    }

    /// The whole ID.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its trust domain.
    pub fn trust_domain(&self) -> &str {
        &self.text[SCHEME.len()..self.path]
    }

    /// The path with its leading slash, or an empty text.
    pub fn path(&self) -> &str {
        &self.text[self.path..]
    }

    /// The namespace, if the path is `/ns/<namespace>/sa/<name>`.
    pub fn namespace(&self) -> Option<&str> {
        self.function_path().map(|(namespace, _)| namespace)
    }

    /// The name, if the path is `/ns/<namespace>/sa/<name>`.
    pub fn name(&self) -> Option<&str> {
        self.function_path().map(|(_, name)| name)
    }

    /// The name (SNI) with which a client asks for this identity in a TLS handshake:
    /// `<name>.<namespace>.leno.internal`. `None`: the path is not a function's, or its labels are
    /// not DNS labels. The name selects a certificate; it proves nothing.
    pub fn server_name(&self) -> Option<String> {
        let (namespace, name) = self.function_path()?;
        (is_label(namespace) && is_label(name)).then(|| format!("{name}.{namespace}{SERVER_NAME_SUFFIX}"))
    }

    fn function_path(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.path().strip_prefix("/ns/")?.split_once("/sa/")?;
        (!namespace.contains('/') && !name.contains('/')).then_some((namespace, name))
    }
}

/// Namespace and name of the function in a TLS server name; the reverse of
/// [`SpiffeId::server_name`].
pub fn function_of_server_name(server_name: &str) -> Option<(&str, &str)> {
    let (name, namespace) = server_name.strip_suffix(SERVER_NAME_SUFFIX)?.split_once('.')?;
    (is_label(namespace) && is_label(name)).then_some((namespace, name))
}

impl FromStr for SpiffeId {
    type Err = BadSpiffeId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_ID {
            return Err(bad(&text.chars().take(64).collect::<String>(), "it is longer than 2048 bytes"));
        }
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad(text, "it does not begin with `spiffe://`"))?;
        let (trust_domain, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        check_trust_domain(trust_domain).map_err(|reason| bad(text, reason))?;
        check_path(path).map_err(|reason| bad(text, reason))?;
        Ok(Self { path: SCHEME.len() + trust_domain.len(), text: text.into() })
    }
}

fn check_trust_domain(text: &str) -> Result<(), &'static str> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    if text.is_empty() {
        Err("the trust domain is empty")
    } else if text.len() > MAX_TRUST_DOMAIN {
        Err("the trust domain is longer than 255 bytes")
    } else if !text.bytes().all(allowed) {
        Err("a trust domain holds lower-case letters, digits, `.`, `-` and `_` only")
    } else {
        Ok(())
    }
}

fn check_path(path: &str) -> Result<(), &'static str> {
    let Some(segments) = path.strip_prefix('/') else { return Ok(()) };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    for segment in segments.split('/') {
        if segment.is_empty() {
            return Err("the path has an empty segment or ends with `/`");
        }
        if segment == "." || segment == ".." {
            return Err("the path has a `.` or `..` segment");
        }
        if !segment.bytes().all(allowed) {
            return Err("a path holds letters, digits, `.`, `-` and `_` only");
        }
    }
    Ok(())
}

fn bad(text: &str, reason: &'static str) -> BadSpiffeId {
    BadSpiffeId { text: text.to_owned(), reason }
}

impl From<&SpiffeId> for Arc<str> {
    fn from(id: &SpiffeId) -> Self {
        id.text.clone()
    }
}

impl From<SpiffeId> for String {
    fn from(id: SpiffeId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for SpiffeId {
    type Error = BadSpiffeId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TrustDomain> for String {
    fn from(domain: TrustDomain) -> Self {
        domain.to_string()
    }
}

impl TryFrom<String> for TrustDomain {
    type Error = BadSpiffeId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_functions_identity() {
        let id: SpiffeId = "spiffe://orders.example/ns/orders/sa/order-service".parse().unwrap();
        assert_eq!(id.trust_domain(), "orders.example");
        assert_eq!(id.path(), "/ns/orders/sa/order-service");
        assert_eq!((id.namespace(), id.name()), (Some("orders"), Some("order-service")));
        assert_eq!(id.to_string(), "spiffe://orders.example/ns/orders/sa/order-service");
        let domain = "orders.example".parse().unwrap();
        assert_eq!(id, SpiffeId::function(&domain, "orders", "order-service").unwrap());
        assert_eq!(id, SpiffeId::of_function(&domain, &"orders/order-service".parse().unwrap()));
    }

    #[test]
    fn what_belongs_to_the_mesh_itself() {
        let domain = "d".parse().unwrap();
        let node = SpiffeId::node(&domain, "node-1.example").unwrap();
        assert_eq!(node.as_str(), "spiffe://d/ns/leno-nodes/sa/node-1.example");
        assert_eq!(node.node_name(), Some("node-1.example"));
        for id in [&node, &SpiffeId::control(&domain).unwrap(), &SpiffeId::gateway(&domain).unwrap()] {
            assert!(id.is_reserved(), "{id}");
        }
        assert!(SpiffeId::gateway(&domain).unwrap().is_gateway() && !SpiffeId::control(&domain).unwrap().is_gateway());
        let function = SpiffeId::function(&domain, "orders", "leno-nodes").unwrap();
        assert_eq!((function.node_name(), function.is_reserved()), (None, false));
        assert!(SpiffeId::node(&domain, "a/b").is_err());
    }

    #[test]
    fn what_the_standard_allows() {
        let longest_domain = format!("spiffe://{}/a", "d".repeat(255));
        let longest = format!("spiffe://d/{}", "p".repeat(2048 - "spiffe://d/".len()));
        for text in [
            "spiffe://d",
            "spiffe://d-1_2.example/a",
            "spiffe://d/A.b-c_9/...",
            "spiffe://d/.x",
            &longest_domain,
            &longest,
        ] {
            assert_eq!(text.parse::<SpiffeId>().map(|id| id.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_the_standard_refuses() {
        let long_domain = format!("spiffe://{}/a", "d".repeat(256));
        let long = format!("spiffe://d/{}", "p".repeat(2049 - "spiffe://d/".len()));
        for text in [
            "",
            "spiffe:",
            "spiffe://",
            "spiffe:///a",
            "SPIFFE://d/a",
            "https://d/a",
            "spiffe://D/a",
            "spiffe://d:80/a",
            "spiffe://user@d/a",
            "spiffe://d/",
            "spiffe://d/a/",
            "spiffe://d//a",
            "spiffe://d/./a",
            "spiffe://d/a/..",
            "spiffe://d/a?b=c",
            "spiffe://d/a#b",
            "spiffe://d/a%20b",
            "spiffe://d/ä",
            "spiffe://ä/a",
            "spiffe://d/a b",
            "spiffe://d/a\0",
            " spiffe://d/a",
            &long_domain,
            &long,
        ] {
            assert!(text.parse::<SpiffeId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_slash_cannot_move_a_function_into_another_namespace() {
        let domain: TrustDomain = "d".parse().unwrap();
        assert!(SpiffeId::function(&domain, "a/sa/b", "c").is_err());
        assert!(SpiffeId::function(&domain, "a", "b/sa/c").is_err());
        assert!(SpiffeId::function(&domain, "", "b").is_err());
        let deeper: SpiffeId = "spiffe://d/ns/a/sa/b/c".parse().unwrap();
        assert_eq!((deeper.namespace(), deeper.name(), deeper.server_name()), (None, None, None));
    }

    #[test]
    fn server_names_there_and_back() {
        let id: SpiffeId = "spiffe://d/ns/orders/sa/order-service".parse().unwrap();
        assert_eq!(id.server_name().as_deref(), Some("order-service.orders.leno.internal"));
        assert_eq!(function_of_server_name("order-service.orders.leno.internal"), Some(("orders", "order-service")));
        for other in [
            "orders.leno.internal",
            ".orders.leno.internal",
            "a.b.c.leno.internal",
            "a.b.example",
            "a.b.leno.internal.",
        ] {
            assert_eq!(function_of_server_name(other), None, "{other}");
        }
        assert_eq!("spiffe://d/ns/a/sa/B".parse::<SpiffeId>().unwrap().server_name(), None);
        assert_eq!("spiffe://d".parse::<SpiffeId>().unwrap().server_name(), None);
    }
}
