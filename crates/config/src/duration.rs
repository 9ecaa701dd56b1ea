//! Durations as people write them: `250ms`, `1m30s`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// A span of time; in documents numbers with units, largest unit first: `us`, `ms`, `s`, `m`, `h`, `d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub std::time::Duration);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a duration; expected whole numbers with units, such as 250ms, 30s or 1m30s")]
pub struct BadDuration(String);

const UNITS: [(&str, u64); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

impl Duration {
    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }

    /// Milliseconds, if it is a whole number of them.
    pub fn whole_millis(self) -> Option<u64> {
        let whole = self.0.subsec_micros().is_multiple_of(1_000);
        u64::try_from(self.0.as_millis()).ok().filter(|_| whole)
    }

    fn parse(text: &str) -> Option<Self> {
        let (mut rest, mut micros, mut units) = (text, 0u64, UNITS.iter());
        if text == "0" {
            return Some(Self::default());
        }
        while !rest.is_empty() {
            let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
            let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
            // The iterator of units keeps their order and allows each only once.
            let (_, factor) = units.find(|(name, _)| *name == unit)?;
            micros = micros.checked_add(number.parse::<u64>().ok()?.checked_mul(*factor)?)?;
            rest = tail;
        }
        (!text.is_empty()).then_some(Self(std::time::Duration::from_micros(micros)))
    }
}

impl FromStr for Duration {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        Self::parse(text).ok_or_else(|| BadDuration(text.chars().take(40).collect()))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in UNITS {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // The largest unit first, each at most once.
        let pattern = "^(0|([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?([0-9]+us)?)$";
        json_schema!({ "anyOf": [{ "type": "string", "minLength": 1, "pattern": pattern }, { "const": 0 }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_people_write() {
        for (text, micros) in [
            ("250ms", 250_000),
            ("1m30s", 90_000_000),
            ("50us", 50),
            ("1d", 86_400_000_000),
            ("0s", 0),
            ("1s500ms", 1_500_000),
        ] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.0.as_micros(), micros, "{text}");
            assert_eq!(duration.to_string(), text);
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in
            ["", "5", "ms", "1.5s", "-1s", "1s1m", "1s1s", "1 s", "1S", "99999999999999999999s", "9999999999999d", "١s"]
        {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }

    #[test]
    fn knows_whether_milliseconds_are_enough() {
        assert_eq!("1s".parse::<Duration>().unwrap().whole_millis(), Some(1_000));
        assert_eq!("1500us".parse::<Duration>().unwrap().whole_millis(), None);
    }
}
