//! Which queries are of one look-up. Resolvers ask for the addresses of a name with a query for each
//! type of record, at once or one after the other.

use domain::base::iana::Rtype;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Types of records that one look-up asks for.
const TYPES: [Rtype; 4] = [Rtype::A, Rtype::AAAA, Rtype::HTTPS, Rtype::SVCB];
/// After this silence about a name, the next query begins another look-up. Resolvers wait some
/// seconds for an answer.
const SILENCE: Duration = Duration::from_secs(5);
/// Limit on the names of which queries are known.
const MOST: usize = 64;

/// The latest look-ups of an instance, by name.
#[derive(Debug, Default)]
pub(super) struct LookUps(HashMap<Box<str>, Queries>);

/// The queries about a name since the last silence.
#[derive(Debug)]
struct Queries {
    last: Instant,
    /// How many, by type.
    counts: [u32; TYPES.len()],
}

impl LookUps {
    /// Whether a query begins a look-up: it is not among the queries of one that has begun.
    pub(super) fn begins(&mut self, name: &str, record: Rtype, now: Instant) -> bool {
        let Some(index) = TYPES.iter().position(|known| *known == record) else { return true };
        let name = name.to_ascii_lowercase();
        if self.0.len() >= MOST && !self.0.contains_key(&*name) {
            self.forget_one(now);
        }
        let fresh = || Queries { last: now, counts: Default::default() };
        let queries = self.0.entry(name.into()).or_insert_with(fresh);
        if now.saturating_duration_since(queries.last) >= SILENCE {
            *queries = fresh();
        }
        queries.last = now;
        let known = queries.counts.into_iter().max().unwrap_or_default();
        queries.counts[index] += 1;
        queries.counts[index] > known
    }

    fn forget_one(&mut self, now: Instant) {
        self.0.retain(|_, queries| now.saturating_duration_since(queries.last) < SILENCE);
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, queries)| queries.last).map(|(name, _)| name.clone());
            oldest.map(|name| self.0.remove(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(queries: &[(&str, Rtype)]) -> usize {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        queries.iter().filter(|(name, record)| look_ups.begins(name, *record, now)).count()
    }

    #[test]
    fn queries_of_one_look_up_count_once() {
        use Rtype as T;
        assert_eq!(count(&[("a", T::A), ("a", T::AAAA)]), 1);
        assert_eq!(count(&[("a", T::AAAA), ("A", T::A), ("a", T::HTTPS), ("a", T::SVCB)]), 1);
        assert_eq!(count(&[("a", T::AAAA)]), 1);
        // Two look-ups, one after the other or at once.
        assert_eq!(count(&[("a", T::A), ("a", T::AAAA), ("a", T::A), ("a", T::AAAA)]), 2);
        assert_eq!(count(&[("a", T::A), ("a", T::A), ("a", T::AAAA), ("a", T::AAAA)]), 2);
        assert_eq!(count(&[("a", T::A), ("b", T::AAAA)]), 2);
        // No resolver asks for texts while it looks for an address.
        assert_eq!(count(&[("a", T::A), ("a", T::TXT), ("a", T::TXT)]), 3);
    }

    #[test]
    fn a_look_up_ends_with_a_silence() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        assert!(look_ups.begins("a", Rtype::A, now));
        assert!(!look_ups.begins("a", Rtype::AAAA, now + SILENCE / 2));
        assert!(look_ups.begins("a", Rtype::AAAA, now + 2 * SILENCE));
    }

    #[test]
    fn few_names_are_known() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        for number in 0..100 * MOST {
            assert!(look_ups.begins(&number.to_string(), Rtype::A, now));
        }
        assert_eq!(look_ups.0.len(), MOST);
        assert!(!look_ups.begins(&(100 * MOST - 1).to_string(), Rtype::AAAA, now));
    }
}
