//! Amounts of memory as people write them: `8Mi`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// An amount of memory in bytes; in documents a whole number with a unit: `Ki`, `Mi` or `Gi`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why a text is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not an amount of memory; expected a whole number of Ki, Mi or Gi, such as 512Ki or 8Mi")]
pub struct BadSize(String);

const UNITS: [(&str, u64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];

impl Size {
    /// So many MiB.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }
}

impl FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let parsed = UNITS.iter().find_map(|(unit, bytes)| {
            let number = text.strip_suffix(unit).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
            number.parse::<u64>().ok()?.checked_mul(*bytes)
        });
        parsed.map(Self).ok_or_else(|| BadSize(text.chars().take(40).collect()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in [("64Ki", 65_536), ("8Mi", 8 << 20), ("1536Ki", 1536 << 10), ("32Gi", 32 << 30)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!("1024Ki".parse::<Size>().unwrap().to_string(), "1Mi");
        for bad in
            ["", "8", "8M", "8MiB", "Mi", "-1Mi", "1.5Mi", "8 Mi", "99999999999999999999Mi", "18446744073709551615Ki"]
        {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
