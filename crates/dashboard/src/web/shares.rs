//! Fair shares of bounded tables among tenants.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// Most streams, and most of one tenant.
const STREAMS: usize = 64;
const OF_TENANT: usize = 32;

/// The least recently used entry of the tenant that has most entries, and how many it has. An entry
/// has a key, a tenant and the time of its last use.
pub(super) fn largest_share<'a, K: Copy>(
    entries: impl IntoIterator<Item = (K, &'a str, Instant)>,
) -> Option<(K, usize)> {
    let mut tenants: BTreeMap<&str, (usize, Instant, K)> = BTreeMap::new();
    for (key, tenant, used) in entries {
        let (count, earliest, of) = tenants.entry(tenant).or_insert((0, used, key));
        *count += 1;
        if used < *earliest {
            (*earliest, *of) = (used, key);
        }
    }
    let largest = tenants.into_values().max_by_key(|(count, earliest, _)| (*count, Reverse(*earliest)));
    largest.map(|(count, _, key)| (key, count))
}

/// The open streams of events.
#[derive(Default)]
pub(super) struct Streams(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// The number of the next stream.
    next: u64,
    streams: BTreeMap<u64, Stream>,
}

struct Stream {
    tenant: String,
    began: Instant,
    /// Its drop ends the stream.
    _end: oneshot::Sender<()>,
}

/// An open stream's place among the others.
pub(super) struct StreamPlace {
    streams: Arc<Streams>,
    number: u64,
    ended: oneshot::Receiver<()>,
}

impl Streams {
    /// A place for another stream of a tenant; `None`: the tenant has its share. If there are too
    /// many streams, the oldest one of the tenant with the most ends.
    pub(super) fn open(self: &Arc<Self>, tenant: &str) -> Option<StreamPlace> {
        let mut open = self.lock();
        let own = open.streams.values().filter(|stream| stream.tenant == tenant).count();
        if own >= OF_TENANT {
            return None;
        }
        if open.streams.len() >= STREAMS {
            let all = open.streams.iter().map(|(number, stream)| (*number, &*stream.tenant, stream.began));
            let (oldest, most) = largest_share(all)?;
            // The page of an ended stream opens another one, which must not end a further one in turn.
            if own > 0 && own + 1 >= most {
                return None;
            }
            open.streams.remove(&oldest);
        }
        let number = open.next;
        open.next += 1;
        let (end, ended) = oneshot::channel();
        open.streams.insert(number, Stream { tenant: tenant.to_owned(), began: Instant::now(), _end: end });
        Some(StreamPlace { streams: self.clone(), number, ended })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamPlace {
    /// Waits until a stream of another tenant takes the place.
    pub(super) async fn lost(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.ended).await;
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.streams.lock().streams.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn is_lost(place: &mut StreamPlace) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[test]
    fn streams_of_one_tenant_leave_room_for_those_of_others() {
        let streams = Arc::new(Streams::default());
        let mut first: Vec<_> = (0..OF_TENANT).filter_map(|_| streams.open("a")).collect();
        assert!(first.len() == OF_TENANT && streams.open("a").is_none());
        let mut second: Vec<_> = (0..STREAMS - OF_TENANT).filter_map(|_| streams.open("b")).collect();
        // The table is full.
        let mut admin = streams.open("token 1").unwrap();
        let lost: Vec<bool> = first.iter_mut().map(is_lost).collect();
        assert!(lost[0] && !lost[1..].contains(&true), "the oldest one alone: {lost:?}");
        assert!(!second.iter_mut().any(is_lost) && !is_lost(&mut admin));
        drop(first.remove(0));
        assert!(streams.open("a").is_none(), "no further stream ends for the page that opens another one");
        drop(second.pop());
        assert!(streams.open("a").is_some(), "a closed stream leaves its place");
    }

    #[test]
    fn a_tenant_without_a_stream_always_gets_one() {
        let streams = Arc::new(Streams::default());
        let places: Vec<_> = (0..3 * STREAMS).map(|tenant| streams.open(&tenant.to_string())).collect();
        assert!(places.iter().all(Option::is_some) && streams.lock().streams.len() == STREAMS);
        assert!(streams.open(&(3 * STREAMS - 1).to_string()).is_none());
    }
}
