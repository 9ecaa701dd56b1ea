//! Parts that several kinds share.

use leno_model::PortRange;
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

/// A port, or a range of them: `8443`, `9000-9010`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports(pub PortRange);

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        let port = |text: &str| text.trim().parse().ok();
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self(PortRange { first, last })),
            _ => Err(de::Error::custom(format!(
                "\"{}\" is neither a port nor a range of ports; expected 1 to 65535, such as 8443 or 9000-9010",
                text.chars().take(60).collect::<String>()
            ))),
        }
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(PortRange { first, last }) = self;
        match first == last {
            true => serializer.collect_str(first),
            false => serializer.collect_str(&format_args!("{first}-{last}")),
        }
    }
}

impl JsonSchema for Ports {
    fn schema_name() -> Cow<'static, str> {
        "Ports".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": 65535 },
                { "type": "string", "pattern": "^[0-9]{1,5}( *- *[0-9]{1,5})?$" }
            ]
        })
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
