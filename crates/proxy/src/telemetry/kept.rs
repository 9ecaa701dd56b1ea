//! How records are kept for `leno explain`: encoded, one after the other, in one buffer. A worker makes a record for each exchange; kept as they
//! are, thousands of them would be spread over megabytes, so that each new one meets memory that nobody has touched for long.

use super::observed::Observed;
use std::collections::VecDeque;

/// Bytes of the records that one worker keeps: some two thousand, each usually of a half to one kilobyte.
const CAPACITY: usize = 1536 * 1024;

/// Bytes that no record exceeds.
const LONGEST: usize = 192 * 1024;

/// The latest records, oldest first.
#[derive(Debug)]
pub(super) struct Kept {
    /// Grows up to [`CAPACITY`]. Then new records take the place of the oldest.
    bytes: Vec<u8>,
    /// Where each record is.
    places: VecDeque<Place>,
    /// How many there were, the forgotten ones included.
    pushed: u64,
    /// Where the next one goes, if there is room before the end.
    next: usize,
    /// Room for the record that is being encoded; empty before the first one.
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    end: usize,
}

impl Default for Kept {
    /// None. To be made before the exchanges begin whose records it is to keep: times before the first of them are not told apart.
    fn default() -> Self {
        moment::base();
        Self { bytes: Vec::new(), places: VecDeque::new(), pushed: 0, next: 0, scratch: Vec::new() }
    }
}

impl Kept {
    /// Adds a record. The oldest ones go when there is no room.
    pub(super) fn push(&mut self, observed: &Observed) {
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.is_empty() {
            // Zeroed by the system: only what records use takes memory.
            scratch = vec![0; LONGEST];
        }
        // Every text of a record is bounded, and every list: it fits.
        match postcard::to_slice(observed, &mut scratch) {
            Ok(record) => self.put(record),
            Err(error) => tracing::error!(%error, "a record is too long to be kept"),
        }
        self.scratch = scratch;
    }

    fn put(&mut self, record: &[u8]) {
        if self.next + record.len() > CAPACITY {
            self.forget_within(self.next, CAPACITY);
            self.next = 0;
        }
        let place = Place { start: self.next, end: self.next + record.len() };
        self.forget_within(place.start, place.end);
        if self.bytes.len() < place.end {
            self.bytes.resize(place.end, 0);
        }
        self.bytes[place.start..place.end].copy_from_slice(record);
        self.places.push_back(place);
        self.pushed += 1;
        self.next = place.end;
    }

    /// Forgets the records of this stretch, which are the oldest.
    fn forget_within(&mut self, start: usize, end: usize) {
        while self.places.front().is_some_and(|oldest| oldest.start < end && start < oldest.end) {
            self.places.pop_front();
        }
    }

    /// The records, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = Observed<Box<str>>> {
        self.places.iter().rev().filter_map(|place| postcard::from_bytes(&self.bytes[place.start..place.end]).ok())
    }

    /// The records after the first `seen` ones, oldest first, how many of them are forgotten, and how many there were in all. The records are still
    /// encoded ([`decoded`]): that takes longer than a worker should be kept waiting.
    pub(super) fn after(&self, seen: u64) -> (Vec<Box<[u8]>>, u64, u64) {
        let first = self.pushed - self.places.len() as u64;
        let skipped = usize::try_from(seen.saturating_sub(first)).unwrap_or(usize::MAX);
        let records = self.places.iter().skip(skipped).map(|place| self.bytes[place.start..place.end].into());
        (records.collect(), first.saturating_sub(seen), self.pushed)
    }

    /// The records of a request, in the order in which they were added.
    pub(super) fn of_request(&self, request_id: &str) -> impl Iterator<Item = Observed<Box<str>>> {
        let records = self.places.iter().map(|place| &self.bytes[place.start..place.end]);
        let is_wanted =
            move |record: &&[u8]| postcard::take_from_bytes::<&str>(record).is_ok_and(|(found, _)| found == request_id);
        records.filter(is_wanted).filter_map(|record| postcard::from_bytes(record).ok())
    }
}

/// A record as it was.
pub(crate) fn decoded(record: &[u8]) -> Option<Observed<Box<str>>> {
    postcard::from_bytes(record).ok()
}

/// A point in time of this process.
pub(super) mod moment {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    /// From when on nanoseconds are counted: when the first worker began to keep records.
    pub(super) fn base() -> Instant {
        static BASE: OnceLock<Instant> = OnceLock::new();
        *BASE.get_or_init(Instant::now)
    }

    pub(super) fn since_base(moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(base()).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn at(nanoseconds: u64) -> Instant {
        base() + Duration::from_nanos(nanoseconds)
    }

    pub(in super::super) fn serialize<S: Serializer>(moment: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
        since_base(*moment).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Instant, D::Error> {
        u64::deserialize(deserializer).map(at)
    }
}

/// Points in time that may not have come.
pub(super) mod moments {
    use super::moment;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Instant;

    type Moments = [Option<Instant>; 4];

    pub(in super::super) fn serialize<S: Serializer>(moments: &Moments, serializer: S) -> Result<S::Ok, S::Error> {
        moments.map(|moment| moment.map(moment::since_base)).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Moments, D::Error> {
        <[Option<u64>; 4]>::deserialize(deserializer).map(|moments| moments.map(|moment| moment.map(moment::at)))
    }
}

/// The name of a header field.
pub(super) mod name {
    use http::HeaderName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(in super::super) fn serialize<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
        name.as_str().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
        <&str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A text that many records share.
pub(super) mod shared {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(in super::super) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        (**text).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        <&str>::deserialize(deserializer).map(Arc::from)
    }
}

/// A text that many records share, or none.
pub(super) mod shared_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    type Text = Option<Arc<str>>;

    pub(in super::super) fn serialize<S: Serializer>(text: &Text, serializer: S) -> Result<S::Ok, S::Error> {
        text.as_deref().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        Ok(<Option<&str>>::deserialize(deserializer)?.map(Arc::from))
    }
}

/// Places that many records share.
pub(super) mod sources {
    use leno_policy::spec::TokenSource;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(in super::super) fn serialize<S: Serializer>(
        sources: &Arc<[TokenSource]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (**sources).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[TokenSource]>, D::Error> {
        Vec::deserialize(deserializer).map(Arc::from)
    }
}

/// The other end of a connection.
pub(super) mod peer {
    use crate::http::peer::Peer;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::net::SocketAddr;
    use std::sync::Arc;

    pub(in super::super) fn serialize<S: Serializer>(peer: &Peer, serializer: S) -> Result<S::Ok, S::Error> {
        (peer.identity.as_deref(), peer.address).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Peer, D::Error> {
        let (identity, address): (Option<&str>, SocketAddr) = Deserialize::deserialize(deserializer)?;
        Ok(Peer { identity: identity.map(Arc::from), address })
    }
}

/// The label of a revision, without its statistics.
pub(super) mod revision {
    use crate::telemetry::stats::RevisionLabel;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    type Label = Option<Arc<RevisionLabel>>;

    pub(in super::super) fn serialize<S: Serializer>(label: &Label, serializer: S) -> Result<S::Ok, S::Error> {
        label.as_ref().map(|label| (label.number, &*label.name)).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
        let label: Option<(u32, &str)> = Option::deserialize(deserializer)?;
        let label = label.map(|(number, name)| RevisionLabel { number, name: name.into(), stats: Default::default() });
        Ok(label.map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observed;

    fn record(number: usize, length: usize) -> Observed {
        let rule = "x".repeat(length);
        let mut observed = Observed { request_id: number.to_string().into(), ..observed() };
        observed.failure = Some(rule.into());
        observed
    }

    #[test]
    fn the_latest_are_kept_whatever_their_lengths() {
        let mut kept = Kept::default();
        for number in 0..10_000 {
            kept.push(&record(number, number * 37 % 5000));
            let mut all = kept.newest_first().map(|found| found.request_id.parse::<usize>().unwrap());
            assert_eq!(all.next(), Some(number));
            if number % 500 == 0 {
                let all: Vec<usize> = all.collect();
                assert!(all.iter().copied().eq((number - all.len()..number).rev()), "without a gap: {all:?}");
            }
        }
        assert!(kept.places.len() > 300 && kept.bytes.len() <= CAPACITY, "{}", kept.places.len());
        assert!(
            kept.places
                .iter()
                .zip(kept.places.iter().skip(1))
                .all(|(one, next)| one.end <= next.start || next.start == 0)
        );
    }

    #[test]
    fn who_has_seen_some_gets_the_others_and_is_told_what_is_forgotten() {
        let mut kept = Kept::default();
        let numbers = |(found, missed, pushed): (Vec<Box<[u8]>>, u64, u64)| {
            let numbers = found.iter().map(|record| decoded(record).unwrap().request_id.parse::<u64>().unwrap());
            (numbers.collect::<Vec<_>>(), missed, pushed)
        };
        for number in 0..5 {
            kept.push(&record(number, 10));
        }
        assert_eq!(numbers(kept.after(3)), (vec![3, 4], 0, 5));
        assert_eq!(numbers(kept.after(5)), (vec![], 0, 5));
        assert_eq!(numbers(kept.after(9)), (vec![], 0, 5), "of another time of this node");
        for number in 5..5000 {
            kept.push(&record(number, 1000));
        }
        let (found, missed, pushed) = numbers(kept.after(5));
        assert_eq!(pushed, 5000);
        assert!(missed > 0);
        assert!(found.iter().copied().eq(5 + missed..5000));
    }

    #[test]
    fn a_record_is_read_as_it_was() {
        let mut kept = Kept::default();
        let observed = observed();
        kept.push(&observed);
        let found = kept.of_request("req-1").next().unwrap();
        assert_eq!(postcard::to_allocvec(&found).unwrap(), postcard::to_allocvec(&observed).unwrap());
        assert_eq!((found.started, found.ended, found.stages), (observed.started, observed.ended, observed.stages));
        assert!(kept.of_request("req-2").next().is_none());
    }
}
