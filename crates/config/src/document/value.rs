//! Parts that several kinds share.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Version of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// The only one so far.
    #[serde(rename = "leno.dev/v1alpha1")]
    V1Alpha1,
}

/// Name of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// A DNS label: `a-z`, `0-9` and `-`, at most 63 characters. Unique for its kind in its
    /// namespace.
    pub name: String,
    /// A DNS label.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// For policies to select functions by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// An IP address with a port: `127.0.0.1:8080`, `[::1]:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Address(pub SocketAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address = text.parse().map_err(|_| {
            de::Error::custom(format!(
                "\"{}\" is not an address with a port; expected an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080",
                text.chars().take(60).collect::<String>()
            ))
        })?;
        Ok(Self(address))
    }
}

/// Where operators ask: `unix:/run/leno/admin.sock`, or an IP address with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// TCP.
    Address(Address),
}

impl<'de> Deserialize<'de> for AdminAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Socket(path.into()));
        }
        let address = text.parse().map_err(|_| {
            de::Error::custom(format!(
                "\"{}\" is neither a socket nor an address; expected unix:PATH, or an IP address of this machine and a port, such as 127.0.0.1:15000",
                text.chars().take(60).collect::<String>()
            ))
        })?;
        Ok(Self::Address(Address(address)))
    }
}

impl Serialize for AdminAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Socket(path) => serializer.collect_str(&format_args!("unix:{}", path.display())),
            Self::Address(address) => address.serialize(serializer),
        }
    }
}

impl JsonSchema for AdminAddress {
    fn schema_name() -> Cow<'static, str> {
        "AdminAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(unix:.+|(\\[[0-9a-fA-F:.]+\\]|[0-9.]+):[0-9]+)$" })
    }
}

impl JsonSchema for Address {
    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(\\[[0-9a-fA-F:.]+\\]|[0-9.]+):[0-9]+$" })
    }
}
