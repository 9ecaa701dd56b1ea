//! Names of claims.

use leno_model::TEXT_OR_MORE;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;

/// A claim. A text is the name of one claim, dots included: `sub`, `https://shop.example/roles`. A
/// list leads into objects: `[realm_access, roles]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Vec<String>);

impl Serialize for ClaimPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ClaimPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Path;
        impl<'de> de::Visitor<'de> for Path {
            type Value = Vec<String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a claim's name")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(vec![text.to_owned()])
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Self::Value, A::Error> {
                let mut path = Vec::new();
                while let Some(name) = names.next_element()? {
                    path.push(name);
                }
                Ok(path)
            }
        }
        let path = deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Path)?;
        if path.is_empty() || path.iter().any(String::is_empty) {
            return Err(de::Error::custom(
                "a claim's name is empty; expected a name such as sub, or a list that leads into an object: [realm_access, roles]",
            ));
        }
        Ok(Self(path))
    }
}

impl JsonSchema for ClaimPath {
    fn schema_name() -> Cow<'static, str> {
        "ClaimPath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A claim. A text is the name of one claim, dots included: `sub`, `https://shop.example/roles`. A list leads into objects: `[realm_access, roles]`.",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1 }
            ]
        })
    }
}
