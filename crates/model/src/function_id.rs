//! Function names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A function's name: `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FunctionId {
    /// DNS label.
    pub namespace: String,
    /// DNS label.
    pub name: String,
}

/// A text is not a function name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a function name: expected `namespace/name`, each a DNS label (a-z, 0-9 and `-`, at most 63 characters)"
)]
pub struct BadFunctionId(String);

impl FunctionId {
    /// # Errors
    /// One of the two is not a DNS label.
    pub fn new(namespace: &str, name: &str) -> Result<Self, BadFunctionId> {
        if is_label(namespace) && is_label(name) {
            Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
        } else {
            Err(BadFunctionId(format!("{namespace}/{name}")))
        }
    }
}

impl FunctionId {
    /// The function with this SPIFFE ID, in any trust domain; `None`: the ID names no function.
    pub fn of_identity(identity: &str) -> Option<Self> {
        let (_, path) = identity.strip_prefix("spiffe://")?.split_once("/ns/")?;
        let (namespace, name) = path.split_once("/sa/")?;
        Self::new(namespace, name).ok()
    }

    /// The name, among rules, of the permissive mode of its pods.
    pub fn permissive_rule(&self) -> String {
        format!("{self}/permissive")
    }

    /// The name, among rules, of the list of functions that this one may call.
    pub fn callees_rule(&self) -> String {
        format!("{self}/callees")
    }
}

/// Whether a text is a DNS label as Kubernetes requires it (RFC 1123, lower case).
pub fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    text.len() <= 63
        && alphanumeric(text.bytes().next())
        && alphanumeric(text.bytes().next_back())
        && text.bytes().all(|byte| byte == b'-' || alphanumeric(Some(byte)))
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for FunctionId {
    type Err = BadFunctionId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').ok_or_else(|| BadFunctionId(text.to_owned()))?;
        Self::new(namespace, name)
    }
}

impl TryFrom<String> for FunctionId {
    type Error = BadFunctionId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<FunctionId> for String {
    fn from(id: FunctionId) -> Self {
        id.to_string()
    }
}
