//! Texts that are compared.

use leno_model::TEXT_OR_MORE;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;

/// What a text is compared with: `abc`, `abc*`, `*abc`, `*`, or `{regex: "v[0-9]+"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// As the field says.
    Text(String),
    /// A regular expression that the whole text has to match.
    Regex {
        /// The expression, in RE2's syntax.
        regex: String,
        /// Of paths: whether it is about path and query together.
        with_query: bool,
    },
}

/// As it is written with names.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Regex {
    regex: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    with_query: bool,
}

impl Serialize for TextMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Regex { regex, with_query } => {
                Regex { regex: regex.clone(), with_query: *with_query }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for TextMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Match;
        impl<'de> de::Visitor<'de> for Match {
            type Value = TextMatch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or {regex: …}")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                deserializer.deserialize_any(self)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextMatch::Text(text.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let Regex { regex, with_query } = Regex::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(TextMatch::Regex { regex, with_query })
            }
        }
        deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Match)
    }
}

impl JsonSchema for TextMatch {
    fn schema_name() -> Cow<'static, str> {
        "TextMatch".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`abc`, `abc*`, `*abc`, `*`, or a regular expression that the whole text has to match.",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                {
                    "type": "object",
                    "properties": {
                        "regex": {
                            "description": "A regular expression in RE2's syntax, of bytes: `\\w` is of ASCII, and a dot is any byte but a line's end.",
                            "type": "string", "minLength": 1, "maxLength": 1024
                        },
                        "withQuery": {
                            "description": "Of paths: whether the path is followed by `?` and the query as sent, if there is one.",
                            "type": "boolean", "default": false
                        }
                    },
                    "required": ["regex"],
                    "additionalProperties": false
                }
            ]
        })
    }
}
