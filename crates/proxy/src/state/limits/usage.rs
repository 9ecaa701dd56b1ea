//! The counters that have the least left, for listings.

use super::{FunctionLimits, SHARDS};
use leno_policy::quota;
use leno_policy::spec::{KeyPart, RateLimit};
use std::hash::BuildHasher;

/// A counter of a rate limit on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterUse {
    /// Whose requests it counts: `address 10.0.0.1, header x-key #3fa91c02`. Values of claims and
    /// headers may be confidential, so a number stands for each. Empty: the limit has one counter.
    pub key: String,
    /// Requests that are left.
    pub left: u32,
    /// Requests that a fresh counter has.
    pub of: u32,
    /// Milliseconds until it is fresh again.
    pub fresh_in_ms: u64,
}

impl FunctionLimits {
    /// The counters of a limit that are in use, at most `most`, those with the least left first. None, if
    /// a store keeps them: then a node does not know their values.
    pub fn most_used(&self, limit: &RateLimit, now_ms: u64, most: usize) -> Vec<CounterUse> {
        let mut found: Vec<(u32, Box<str>, quota::TakeResult)> = Vec::new();
        for shard in 0..SHARDS {
            let shard = self.lock(shard);
            for (key, count) in
                shard.limits.iter().filter(|counters| counters.are_of(&limit.name)).flat_map(|all| all.own())
            {
                let state = quota::take(&count.algorithm, count.state, now_ms, 0);
                let place = found.partition_point(|(left, ..)| *left <= state.remaining);
                if state.state.used > 0 && place < most {
                    found.insert(place, (state.remaining, key.into(), state));
                    found.truncate(most);
                }
            }
        }
        let used = |(left, key, state): (u32, Box<str>, quota::TakeResult)| CounterUse {
            key: self.shown_key(&limit.key, &key),
            left,
            of: state.limit,
            fresh_in_ms: state.reset_ms,
        };
        found.into_iter().map(used).collect()
    }

    fn shown_key(&self, parts: &[KeyPart], key: &str) -> String {
        let values = quota::key_values(key);
        let shown = parts.iter().zip(values).map(|(part, value)| {
            let fingerprint = |value: &str| format!("#{:08x}", self.hasher.hash_one(value) as u32);
            let (name, value) = match part {
                KeyPart::Identity => ("identity".to_owned(), value.map(str::to_owned)),
                KeyPart::Path => ("path".to_owned(), value.map(str::to_owned)),
                KeyPart::Method => ("method".to_owned(), value.map(str::to_owned)),
                KeyPart::Address => ("address".to_owned(), value.map(str::to_owned)),
                KeyPart::Claim(path) => (format!("claim {}", path.join(".")), value.map(fingerprint)),
                KeyPart::Header(header) => (format!("header {header}"), value.map(fingerprint)),
            };
            format!("{name} {}", value.as_deref().unwrap_or("-"))
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Demand;
    use super::*;
    use leno_policy::spec::{Counts, QuotaAlgorithm};

    #[test]
    fn the_counters_with_the_least_left_are_told_and_no_header() {
        let limit = RateLimit {
            name: "p/rateLimits/l".to_owned(),
            counts: Counts::Requests,
            only: None,
            from: Vec::new(),
            except: Vec::new(),
            audit: false,
            key: vec![KeyPart::Address, KeyPart::Header("x-key".to_owned())],
            algorithm: QuotaAlgorithm::FixedWindow { requests: 10, period_ms: 60_000 },
        };
        let limits = FunctionLimits::default();
        for client in 1..=9_u32 {
            let key = format!("8:10.0.0.{client};6:secret;");
            limits.take(&[Demand { limit: &limit, key: &key, cost: client }], 60_000).unwrap();
        }
        let used = limits.most_used(&limit, 61_000, 3);
        assert_eq!(used.iter().map(|counter| counter.left).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(used[0].key.starts_with("address 10.0.0.9, header x-key #"), "{used:?}");
        assert!(!used[0].key.contains("secret"), "{used:?}");
        assert_eq!((used[0].of, used[0].fresh_in_ms), (10, 59_000));
        assert!(limits.most_used(&limit, 200_000, 3).is_empty(), "counters of a window that is over");
    }
}
