//! `kind: StoredSecret`.

use super::value::{ApiVersion, Metadata};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use zeroize::Zeroizing;

/// Secrets that functions, jobs and External documents of the namespace name by key, in place of
/// files of nodes: `from: {secret: NAME, key: KEY}`. A control plane stores the values encrypted
/// and never shows them again. See [stored secrets](../secrets.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoredSecret {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `StoredSecret`.
    pub kind: StoredSecretKind,
    /// Its name. Only documents in the same namespace can name it.
    pub metadata: Metadata,
    /// Its values.
    pub spec: StoredSecretSpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StoredSecretKind {
    /// `StoredSecret`.
    StoredSecret,
}

/// The values of a StoredSecret, by key. A key has letters, digits, `-`, `_` and `.`, at most 253. A
/// value has at most 64 KiB, and all together have at most 512 KiB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StoredSecretSpec {
    /// Texts by key, as they are.
    pub string_data: BTreeMap<String, SecretText>,
    /// Values in base64 by key, for binary ones.
    pub data: BTreeMap<String, SecretText>,
    /// Stands for the values in the documents that a control plane shows. A document with this field
    /// cannot be applied.
    pub redacted: Option<BTreeMap<String, RedactedValue>>,
}

/// A value that a control plane does not show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedactedValue {
    /// Its size.
    pub bytes: u32,
    /// When it last changed, in seconds since 1970.
    pub changed: u64,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub Zeroizing<String>);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(secret)")
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl JsonSchema for SecretText {
    fn schema_name() -> Cow<'static, str> {
        "SecretText".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}
