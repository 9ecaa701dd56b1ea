//! Places for connections, limited in total and for each source, so that one source cannot exclude
//! the others.
//!
//! When no place is left, the source that has the most gives one to a source that has fewer.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Places that connections take while they are open, or for a part of that time. `K` names a
/// source.
#[derive(Debug)]
pub struct Places<K: Eq + Hash + Clone = IpAddr> {
    limit: usize,
    limit_of_source: usize,
    taken: Mutex<Occupancy<K>>,
}

#[derive(Debug)]
struct Occupancy<K> {
    next: u64,
    /// The places of each source, in the order in which they were taken.
    by_source: HashMap<K, BTreeMap<u64, Arc<Tenure>>>,
    all: usize,
}

/// How a place is used.
#[derive(Debug)]
struct Tenure {
    /// Woken when the place is given to another connection.
    ended: Notify,
    use_: Mutex<Use>,
}

#[derive(Debug)]
struct Use {
    /// Requests that are being answered.
    open: usize,
    /// When the last request began or ended.
    changed: Instant,
}

/// A place of a connection. It is free again when this is dropped.
#[derive(Debug)]
pub struct Place<K: Eq + Hash + Clone = IpAddr> {
    places: Arc<Places<K>>,
    source: K,
    number: u64,
    tenure: Arc<Tenure>,
}

/// A request of a connection. It ends when this is dropped.
#[derive(Debug)]
pub struct OpenRequest(Arc<Tenure>);

/// Begins requests of a connection.
#[derive(Clone, Debug)]
pub struct Requests(Arc<Tenure>);

impl<K: Eq + Hash + Clone> Places<K> {
    /// At most `limit` places in total, and `limit_of_source` for one source.
    pub fn new(limit: usize, limit_of_source: usize) -> Arc<Self> {
        let taken = Mutex::new(Occupancy { next: 0, by_source: HashMap::new(), all: 0 });
        Arc::new(Self { limit, limit_of_source, taken })
    }

    /// Takes a place for a connection of this source; `None`: there is none for it. A connection
    /// without requests gives way: one of the same source, or, where no place is left, one of the
    /// source that has the most, even with open requests.
    pub fn take(self: &Arc<Self>, source: K) -> Option<Place<K>> {
        let mut taken = self.taken();
        let own = taken.by_source.get(&source).map_or(0, BTreeMap::len);
        if own >= self.limit_of_source {
            let idlest = taken.by_source.get(&source).and_then(idlest)?;
            taken.end(&source, idlest);
        } else if taken.all >= self.limit {
            let (largest, places) = taken.by_source.iter().max_by_key(|(_, places)| places.len())?;
            if places.len() <= own + 1 {
                return None;
            }
            let number = idlest(places).or_else(|| places.keys().next().copied())?;
            let largest = largest.clone();
            taken.end(&largest, number);
        }
        let number = taken.next;
        taken.next += 1;
        taken.all += 1;
        let use_ = Mutex::new(Use { open: 0, changed: Instant::now() });
        let tenure = Arc::new(Tenure { ended: Notify::new(), use_ });
        taken.by_source.entry(source.clone()).or_default().insert(number, tenure.clone());
        Some(Place { places: self.clone(), source, number, tenure })
    }

    fn taken(&self) -> MutexGuard<'_, Occupancy<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place that has been without a request for longest.
fn idlest(places: &BTreeMap<u64, Arc<Tenure>>) -> Option<u64> {
    let idle = places.iter().filter(|(_, tenure)| tenure.used().open == 0);
    idle.min_by_key(|(_, tenure)| tenure.used().changed).map(|(number, _)| *number)
}

impl<K: Eq + Hash + Clone> Occupancy<K> {
    /// Frees a place. Returns whether it was taken.
    fn free(&mut self, source: &K, number: u64) -> Option<Arc<Tenure>> {
        let places = self.by_source.get_mut(source)?;
        let freed = places.remove(&number)?;
        if places.is_empty() {
            self.by_source.remove(source);
        }
        self.all -= 1;
        Some(freed)
    }

    fn end(&mut self, source: &K, number: u64) {
        if let Some(tenure) = self.free(source, number) {
            tenure.ended.notify_one();
        }
    }
}

impl Tenure {
    fn used(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Place<K> {
    /// Resolves when another connection has got the place. Then this connection has to end.
    pub async fn ended(&self) {
        self.tenure.ended.notified().await;
    }

    /// A handle that begins requests of the connection.
    pub fn requests(&self) -> Requests {
        Requests(self.tenure.clone())
    }

    /// Whether for this long no request has begun, made progress or ended.
    pub fn is_silent(&self, without: Duration, with: Duration) -> bool {
        let used = self.tenure.used();
        used.changed.elapsed() >= if used.open == 0 { without } else { with }
    }
}

impl<K: Eq + Hash + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        self.places.taken().free(&self.source, self.number);
    }
}

impl Requests {
    /// Begins a request.
    pub fn begin(&self) -> OpenRequest {
        let mut used = self.0.used();
        used.open += 1;
        used.changed = Instant::now();
        drop(used);
        OpenRequest(self.0.clone())
    }
}

impl OpenRequest {
    /// Notes progress: a part of the response has been sent.
    pub fn progress(&self) {
        self.0.used().changed = Instant::now();
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut used = self.0.used();
        used.open -= 1;
        used.changed = Instant::now();
    }
}

/// An IPv4 address, or the /64 network of an IPv6 address: a host with one address there has 2⁶⁴.
pub fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn address(text: &str) -> IpAddr {
        source(text.parse().unwrap())
    }

    fn has_ended<K: Eq + Hash + Clone>(place: &Place<K>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        matches!(std::pin::pin!(place.ended()).as_mut().poll(&mut context), Poll::Ready(()))
    }

    #[test]
    fn a_source_has_its_share_and_no_more() {
        let places = Places::new(3, 2);
        let first = places.take(address("2001:db8::1")).unwrap();
        let second = places.take(address("2001:db8::2")).unwrap();
        let _requests = [first.requests().begin(), second.requests().begin()];
        assert!(places.take(address("2001:db8::3")).is_none(), "the same network, and all its connections are in use");
        let other = places.take(address("2001:db8:0:1::1")).unwrap();
        let mapped = places.take(address("::ffff:192.0.2.1")).unwrap();
        assert_eq!(mapped.source, address("192.0.2.1"));
        assert!(has_ended(&first) && !has_ended(&second), "the source with most places has given one back");
        assert!(places.take(address("192.0.2.2")).is_none(), "no source has more than it would have");
        drop((first, second, other, mapped));
        assert!(
            places.taken().by_source.is_empty() && places.taken().all == 0,
            "nothing is kept of sources that have left"
        );
    }

    #[test]
    fn a_connection_without_requests_gives_way() {
        let places = Places::new(9, 2);
        let used = places.take("a").unwrap();
        let request = used.requests().begin();
        let idle = places.take("a").unwrap();
        let _third = places.take("a").unwrap();
        assert!(has_ended(&idle) && !has_ended(&used));
        assert!(!used.is_silent(Duration::ZERO, Duration::from_secs(3600)));
        let before = used.tenure.used().changed;
        request.progress();
        assert!(used.tenure.used().changed > before);
        drop(request);
        assert!(used.is_silent(Duration::ZERO, Duration::from_secs(3600)));
    }
}
