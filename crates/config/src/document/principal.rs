//! Users.

use leno_model::TEXT_OR_MORE;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;

/// A user: `*`, a text that begins with a configured issuer, or issuer and subject apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestPrincipal {
    /// `*`, `issuer/subject` or `issuer/*`.
    Text(String),
    /// Each half: `abc`, `abc*`, `*abc`, or `*`, which is also what it is if it is left out.
    Parts {
        /// `iss` of the token.
        issuer: String,
        /// `sub` of the token.
        subject: String,
    },
}

/// As it is written with names.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    #[serde(default = "any")]
    issuer: String,
    #[serde(default = "any")]
    subject: String,
}

fn any() -> String {
    "*".to_owned()
}

impl Serialize for RequestPrincipal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Parts { issuer, subject } => {
                Parts { issuer: issuer.clone(), subject: subject.clone() }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for RequestPrincipal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Principal;
        impl<'de> de::Visitor<'de> for Principal {
            type Value = RequestPrincipal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a user: a text, or {issuer: …, subject: …}")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(RequestPrincipal::Text(text.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let Parts { issuer, subject } = Parts::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(RequestPrincipal::Parts { issuer, subject })
            }
        }
        deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Principal)
    }
}

impl JsonSchema for RequestPrincipal {
    fn schema_name() -> Cow<'static, str> {
        "RequestPrincipal".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let half = |description: &str| json_schema!({ "description": description, "type": "string", "minLength": 1, "default": "*" });
        json_schema!({
            "description": "A user: `*`, `issuer/subject` with an issuer that an `authentication` section names, or both apart.",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                {
                    "type": "object",
                    "properties": {
                        "issuer": half("`iss` of the token: `abc`, `abc*`, `*abc`, or `*`."),
                        "subject": half("`sub` of the token: `abc`, `abc*`, `*abc`, or `*`.")
                    },
                    "additionalProperties": false
                }
            ]
        })
    }
}
