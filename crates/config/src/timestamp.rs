//! Moments, as documents write them (RFC 3339).

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

/// A moment: a date, a time and an offset, such as `2026-11-28T12:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(jiff::Timestamp);

/// Why a text is not a moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a moment; expected date, time and offset (RFC 3339), such as 2026-11-28T12:00:00Z")]
pub struct BadTimestamp(String);

impl Timestamp {
    /// The present moment.
    pub fn now() -> Self {
        Self(jiff::Timestamp::now())
    }

    /// The moment that comes this long after it; the last one that there is if it is out of range.
    pub fn after(self, time: std::time::Duration) -> Self {
        Self(self.0.checked_add(time).unwrap_or(jiff::Timestamp::MAX))
    }

    /// The same moment without a fraction of a second.
    pub fn seconds(self) -> Self {
        Self(jiff::Timestamp::from_second(self.0.as_second()).unwrap_or(self.0))
    }

    /// Milliseconds since 1970; 0 before it.
    pub fn unix_ms(self) -> u64 {
        u64::try_from(self.0.as_millisecond()).unwrap_or_default()
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX))
    }
}

impl FromStr for Timestamp {
    type Err = BadTimestamp;

    /// Reads RFC 3339 alone: the parser of the library also knows short forms and names of zones.
    fn from_str(text: &str) -> Result<Self, BadTimestamp> {
        let bytes = text.as_bytes();
        let marks = [(4, "-"), (7, "-"), (10, "Tt"), (13, ":"), (16, ":")];
        let has = |(at, mark): (usize, &str)| bytes.get(at).is_some_and(|byte| mark.as_bytes().contains(byte));
        let parsed = (marks.into_iter().all(has) && !bytes.contains(&b'[')).then(|| text.parse().ok()).flatten();
        parsed.map(Self).ok_or_else(|| BadTimestamp(text.chars().take(40).collect()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn moments_are_those_of_rfc_3339() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.5z", 1500),
            ("2026-11-28t12:00:00+01:30", 1_795_861_800_000),
            ("1960-01-01T00:00:00Z", 0),
        ] {
            assert_eq!(text.parse::<Timestamp>().map(Timestamp::unix_ms), Ok(ms), "{text}");
        }
        for text in [
            "",
            "tomorrow",
            "2026-11-28",
            "2026-11-28T12:00:00",
            "2026-11-28T12:00Z",
            "2026-11-28 12:00:00Z",
            "20261128T120000Z",
            "2026-11-28T12:00:00Z[UTC]",
            "2026-13-28T12:00:00Z",
            "2026-11-28T25:00:00Z",
            "24h",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_moment_is_read_as_it_is_written(ms in 0..253_000_000_000_000u64) {
            let moment = Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
            prop_assert_eq!(moment.unix_ms(), ms);
            prop_assert_eq!(moment.to_string().parse(), Ok(moment));
        }

        #[test]
        fn no_text_is_a_panic(text in "[0-9TtZz:.+ \\[-]{0,40}") {
            let _ = text.parse::<Timestamp>();
        }
    }
}
