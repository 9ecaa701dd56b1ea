//! YAML text -> a tree with positions -> typed documents.
//!
//! Only the plain part of YAML is accepted: no aliases, no tags, no directives, text keys, no key
//! twice. The type of a field decides the meaning of a plain scalar, so `no`, `1.10` and `0123`
//! stay unchanged in text fields.

mod tree;

pub(crate) use tree::{SyntaxError, documents, documents_with_aliases};

/// A position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

/// A value with its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its position.
    pub mark: Mark,
    /// The value.
    pub value: Value,
}

/// A value of a document.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text, number, boolean or null.
    Scalar {
        /// As it is written, without quotes.
        text: String,
        /// Neither quoted nor a block scalar: may be a number, a boolean or null.
        plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order written. No key appears twice.
    Map(Vec<(Key, Node)>),
}

/// The key of a mapping.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its position.
    pub mark: Mark,
    /// Its text.
    pub text: String,
}

impl Node {
    /// Whether both have the same content, at any position.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        match (&self.value, &other.value) {
            (Value::Scalar { text, plain }, Value::Scalar { text: other, plain: other_plain }) => {
                (text, plain) == (other, other_plain)
            }
            (Value::List(nodes), Value::List(others)) => {
                nodes.len() == others.len() && nodes.iter().zip(others).all(|(node, other)| node.says_the_same(other))
            }
            (Value::Map(entries), Value::Map(others)) => {
                let same = |((key, node), (other_key, other)): (&(Key, Self), &(Key, Self))| {
                    key.text == other_key.text && node.says_the_same(other)
                };
                entries.len() == others.len() && entries.iter().zip(others).all(same)
            }
            _ => false,
        }
    }

    /// Whether it is neither a list nor a mapping.
    pub fn is_scalar(&self) -> bool {
        matches!(self.value, Value::Scalar { .. })
    }

    /// No value is written: `key:`, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The text of a scalar that is not null.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// A field of a mapping.
    pub fn get(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| key.text == name).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The kind of the value, for messages.
    pub fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, .. } if text.chars().count() > 40 => {
                format!("\"{}…\"", text.chars().take(40).collect::<String>().escape_debug())
            }
            Value::Scalar { text, .. } => format!("\"{}\"", text.escape_debug()),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}
