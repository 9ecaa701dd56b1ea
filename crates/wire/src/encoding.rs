//! The encoding of payloads and of stored values, which nodes and control planes of different
//! releases share.
//!
//! It is [MessagePack](https://msgpack.org) with the names of fields and variants:
//!
//! - A struct is a map. A field whose value is zero (`None`, `false`, 0, an empty text, list or
//!   map, or a struct of nothing else) is left out, and a field that is missing is zero.
//!   Enumerations are never left out.
//! - A variant without content is its name; any other is a map with one entry.
//! - A list of bytes is a byte string.
//! - A field, a variant or a rest of the input that the reader does not know is an error. Nothing
//!   is ever ignored: it may be a restriction.
//!
//! So a new field may be added to any type if its zero value means the earlier behaviour. Readers
//! of an older release accept every value that does not use it, and refuse those that do. Values
//! that do not use it have the same bytes, hence the same version, in both releases. Types must not
//! use `flatten`, `tag`, `untagged`, hash maps, or defaults other than zero. See
//! docs/decisions/0020-payloads.md.

mod decode;
mod encode;

use rmp::Marker;
use serde::{Serialize, de, ser};
use std::fmt;

pub use decode::{Observe, from_bytes, from_bytes_observed};

/// Why a value cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodingError {
    /// The path of the field, for example `inbound.authorization[2]`. Empty: the value itself.
    path: String,
    reason: String,
}

/// Encodes a value. Equal values have equal bytes.
pub fn to_bytes(value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, EncodingError> {
    let mut encoder = encode::Encoder::default();
    value.serialize(&mut encoder)?;
    Ok(encoder.out)
}

impl EncodingError {
    fn new(reason: impl Into<String>) -> Self {
        Self { path: String::new(), reason: reason.into() }
    }

    /// The same error, seen from the struct with this field.
    fn in_field(mut self, field: &str) -> Self {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{field}{separator}{}", self.path);
        self
    }

    /// The same error, seen from the list with this element.
    fn in_element(mut self, index: usize) -> Self {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("[{index}]{separator}{}", self.path);
        self
    }
}

impl fmt::Display for EncodingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for EncodingError {}

impl ser::Error for EncodingError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::new(reason.to_string())
    }
}

impl de::Error for EncodingError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::new(reason.to_string())
    }
}

/// Whether an encoded value is one that a struct leaves out.
fn is_zero(encoded: &[u8]) -> bool {
    let Some((marker, content)) = encoded.split_first() else { return false };
    match Marker::from_u8(*marker) {
        Marker::Null
        | Marker::False
        | Marker::FixPos(0)
        | Marker::FixStr(0)
        | Marker::FixArray(0)
        | Marker::FixMap(0) => true,
        Marker::Bin8 | Marker::F32 | Marker::F64 => content.iter().all(|byte| *byte == 0),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
