//! The recent records of a worker for `leno explain`, encoded one after the other in segments. As
//! structures, thousands of records would be spread over megabytes, and each new one would meet
//! cold memory.
//!
//! Each segment has records of one namespace. At the limit, the largest namespace loses its oldest
//! segment, so a namespace with very many requests replaces its own records.

use super::exchange::ExchangeRecord;
use super::record_encoding::moment;
use leno_http::peer::TrafficDirection;
use leno_namespaces::Namespaces;
use std::collections::VecDeque;

/// Bytes of the records that one worker keeps: some two thousand, each usually of a half to one
/// kilobyte.
const CAPACITY: usize = 1536 * 1024;

/// Bytes of one segment, unless a record is longer.
const SEGMENT: usize = 16 * 1024;

/// Limit on the bytes of a record.
const LONGEST: usize = 192 * 1024;

/// The latest records of each namespace.
#[derive(Debug)]
pub(super) struct RecordRing {
    /// The namespaces that have records. No more than there are segments.
    shares: Vec<Share>,
    /// Bytes of all segments.
    size: usize,
    /// How many records there were, the forgotten ones included.
    pushed: u64,
    /// The segment that was forgotten last, for the next one.
    spare: Segment,
    /// Buffer for the record being encoded; empty before the first one.
    scratch: Vec<u8>,
}

/// The records of one namespace.
#[derive(Debug)]
struct Share {
    namespace: Box<str>,
    /// Oldest first.
    segments: VecDeque<Segment>,
    size: usize,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// The number of a record, and where it ends. It begins where the one before ends.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    end: usize,
}

impl Segment {
    fn records(&self) -> impl DoubleEndedIterator<Item = (u64, &[u8])> {
        self.places.iter().enumerate().map(|(index, place)| {
            let start = index.checked_sub(1).map_or(0, |before| self.places[before].end);
            (place.number, &self.bytes[start..place.end])
        })
    }
}

impl Default for RecordRing {
    /// An empty ring. It must exist before the first exchange begins, because times before its
    /// creation are encoded as that moment.
    fn default() -> Self {
        moment::base();
        Self { shares: Vec::new(), size: 0, pushed: 0, spare: Segment::default(), scratch: Vec::new() }
    }
}

impl RecordRing {
    /// Adds a record.
    pub(super) fn push(&mut self, observed: &ExchangeRecord) {
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.is_empty() {
            // The system zeroes pages on demand, so only used pages take memory.
            scratch = vec![0; LONGEST];
        }
        // Every text and list of a record is bounded, so the record fits.
        match postcard::to_slice(observed, &mut scratch) {
            Ok(record) => self.put(namespace(observed), record),
            Err(error) => tracing::error!(%error, "a record is too long to be kept"),
        }
        self.scratch = scratch;
    }

    fn put(&mut self, namespace: &str, record: &[u8]) {
        let found = self.shares.iter().position(|share| *share.namespace == *namespace);
        let latest = found.and_then(|index| self.shares[index].segments.back_mut());
        let fits = |segment: &&mut Segment| segment.bytes.len() + record.len() <= segment.bytes.capacity();
        let place = |start: usize| Place { number: self.pushed, end: start + record.len() };
        match latest.filter(fits) {
            Some(segment) => {
                segment.places.push(place(segment.bytes.len()));
                segment.bytes.extend_from_slice(record);
            }
            None => {
                let place = place(0);
                self.begin_segment(namespace, record, place);
            }
        }
        self.pushed += 1;
    }

    fn begin_segment(&mut self, namespace: &str, record: &[u8], place: Place) {
        let size = record.len().max(SEGMENT);
        while self.size + size > CAPACITY {
            self.forget_segment(namespace);
        }
        let Segment { mut bytes, mut places } = std::mem::take(&mut self.spare);
        if bytes.capacity() != size {
            bytes = Vec::with_capacity(size);
        }
        bytes.extend_from_slice(record);
        places.push(place);
        let segment = Segment { bytes, places };
        let size = segment.bytes.capacity();
        self.size += size;
        match self.shares.iter_mut().find(|share| *share.namespace == *namespace) {
            Some(share) => {
                share.size += size;
                share.segments.push_back(segment);
            }
            None => self.shares.push(Share { namespace: namespace.into(), segments: [segment].into(), size }),
        }
    }

    /// Forgets the oldest segment of the namespace that has most; of several, of this one.
    fn forget_segment(&mut self, namespace: &str) {
        let rank = |share: &Share| (share.size, *share.namespace == *namespace);
        let largest = self.shares.iter().enumerate().max_by_key(|(_, share)| rank(share)).map(|(index, _)| index);
        let Some(index) = largest else { return };
        let share = &mut self.shares[index];
        if let Some(mut oldest) = share.segments.pop_front() {
            let size = oldest.bytes.capacity();
            share.size -= size;
            self.size -= size;
            oldest.bytes.clear();
            oldest.places.clear();
            self.spare = oldest;
        }
        if self.shares[index].segments.is_empty() {
            self.shares.swap_remove(index);
        }
    }

    /// The records from this number on, oldest first.
    fn since(&self, seen: u64) -> Vec<&[u8]> {
        let segments = self.shares.iter().flat_map(|share| &share.segments);
        let segments = segments.filter(|segment| segment.places.last().is_some_and(|place| place.number >= seen));
        let mut records: Vec<(u64, &[u8])> =
            segments.flat_map(Segment::records).filter(|(number, _)| *number >= seen).collect();
        records.sort_unstable_by_key(|(number, _)| *number);
        records.into_iter().map(|(_, record)| record).collect()
    }

    /// The records, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = ExchangeRecord<Box<str>>> {
        self.since(0).into_iter().rev().filter_map(|record| postcard::from_bytes(record).ok())
    }

    /// The records after the first `seen` ones, oldest first, how many of them are forgotten, and
    /// how many there were in all. The records are still encoded ([`ExchangeRecord::decode`]): that
    /// takes longer than a worker should be kept waiting.
    pub(super) fn after(&self, seen: u64) -> (Vec<Box<[u8]>>, u64, u64) {
        let records: Vec<Box<[u8]>> = self.since(seen).into_iter().map(Into::into).collect();
        let forgotten = self.pushed.saturating_sub(seen).saturating_sub(records.len() as u64);
        (records, forgotten, self.pushed)
    }

    /// The records of a request, in the order in which they were added.
    pub(super) fn of_request(&self, request_id: &str) -> impl Iterator<Item = ExchangeRecord<Box<str>>> {
        let is_wanted =
            move |record: &&[u8]| postcard::take_from_bytes::<&str>(record).is_ok_and(|(found, _)| found == request_id);
        self.since(0).into_iter().filter(is_wanted).filter_map(|record| postcard::from_bytes(record).ok())
    }
}

/// The namespace whose share a record takes: that of the function that judged, or of a caller that
/// a function of another namespace has refused.
fn namespace(observed: &ExchangeRecord) -> &str {
    let own = observed.namespace.as_ref().map_or(Namespaces::NONE, |own| own.name());
    if observed.direction == TrafficDirection::Inbound && observed.verdict() != "allow" {
        return observed.source().map_or(own, |(caller, _)| caller);
    }
    own
}

impl ExchangeRecord<Box<str>> {
    /// Decodes a record of the ring.
    pub fn decode(record: &[u8]) -> Option<Self> {
        postcard::from_bytes(record).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observed;

    fn record(number: usize, length: usize) -> ExchangeRecord {
        let rule = "x".repeat(length);
        let mut observed = ExchangeRecord { request_id: number.to_string().into(), ..observed() };
        observed.failure = Some(rule.into());
        observed
    }

    #[test]
    fn the_latest_are_kept_whatever_their_lengths() {
        let mut kept = RecordRing::default();
        for number in 0..10_000 {
            kept.push(&record(number, number * 37 % 5000));
            let mut all = kept.newest_first().map(|found| found.request_id.parse::<usize>().unwrap());
            assert_eq!(all.next(), Some(number));
            if number % 500 == 0 {
                let all: Vec<usize> = all.collect();
                assert!(all.iter().copied().eq((number - all.len()..number).rev()), "without a gap: {all:?}");
            }
        }
        let count = kept.newest_first().count();
        assert!(count > 300 && kept.size <= CAPACITY, "{count}");
    }

    #[test]
    fn a_namespace_with_very_many_requests_pushes_out_its_own() {
        let (namespaces, mut kept) = (Namespaces::default(), RecordRing::default());
        let of = |name: &str, number: usize| ExchangeRecord {
            namespace: Some(namespaces.of(name)),
            direction: TrafficDirection::Outbound,
            ..record(number, 500)
        };
        let count = |kept: &RecordRing, name: &str| {
            let share = kept.shares.iter().find(|share| *share.namespace == *name);
            share.map_or(0, |share| share.segments.iter().map(|segment| segment.places.len()).sum())
        };
        (0..100).for_each(|number| kept.push(&of("shop", number)));
        (100..20_000).for_each(|number| kept.push(&of("hostile", number)));
        assert_eq!(count(&kept, "shop"), 100);
        assert!(kept.of_request("7").next().is_some() && kept.of_request("107").next().is_none());
        let (records, missed, pushed) = kept.after(0);
        assert_eq!((records.len() as u64 + missed, pushed), (20_000, 20_000), "what is forgotten is counted");
        // A namespace that comes later gets the same share.
        (0..20_000).for_each(|number| kept.push(&of("late", number)));
        let [late, hostile] = ["late", "hostile"].map(|name| count(&kept, name));
        assert!(late.abs_diff(hostile) < late / 10 && count(&kept, "shop") == 100, "{late} {hostile}");
        // More namespaces than there is room for: the memory stays bounded.
        (0..1000).for_each(|number| kept.push(&of(&format!("n{number}"), number)));
        assert!(kept.size <= CAPACITY && kept.shares.len() <= CAPACITY / SEGMENT);
    }

    #[test]
    fn refused_calls_take_the_callers_share() {
        let namespaces = Namespaces::default();
        let identity = Some("spiffe://td/ns/hostile/sa/flood".into());
        let refused = ExchangeRecord {
            namespace: Some(namespaces.of("shop")),
            direction: TrafficDirection::Inbound,
            peer: leno_http::peer::Peer { identity, ..observed().peer },
            ..observed()
        };
        assert_eq!((refused.verdict(), namespace(&refused)), ("deny", "hostile"));
        assert_eq!(namespace(&ExchangeRecord { direction: TrafficDirection::Gateway, ..refused }), "shop");
    }

    #[test]
    fn who_has_seen_some_gets_the_others_and_is_reported_what_is_forgotten() {
        let mut kept = RecordRing::default();
        let numbers = |(found, missed, pushed): (Vec<Box<[u8]>>, u64, u64)| {
            let numbers =
                found.iter().map(|record| ExchangeRecord::decode(record).unwrap().request_id.parse::<u64>().unwrap());
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
        let mut kept = RecordRing::default();
        let observed = observed();
        kept.push(&observed);
        let found = kept.of_request("req-1").next().unwrap();
        assert_eq!(postcard::to_allocvec(&found).unwrap(), postcard::to_allocvec(&observed).unwrap());
        assert_eq!((found.started, found.ended, found.stages), (observed.started, observed.ended, observed.stages));
        assert!(kept.of_request("req-2").next().is_none());
    }
}
