//! The share of the control plane's time that one node has, or one machine that wants to join.
//!
//! The control plane applies reports of nodes under the lock that changes of documents and other
//! nodes need. Each node has a small part of the time: after a burst it waits, and the others do
//! not.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A node's time: a burst, and then this part of all time.
const TIME: Rate = Rate { burst: 1.0, per_second: 0.1 };
/// Rate of a node's new streams.
const HELLOS: Rate = Rate { burst: 16.0, per_second: 1.0 };
/// Maximum number of streams of a node that wait for its first message.
const MAX_GREETINGS: usize = 4;
/// Rate of requests to join from one address.
const JOINS: Rate = Rate { burst: 32.0, per_second: 4.0 };
/// Maximum number of remembered sources. Sources that have used nothing are forgotten first.
const MAX_SOURCES: usize = 65_536;

#[derive(Clone, Copy)]
struct Rate {
    burst: f64,
    per_second: f64,
}

/// The rest of a rate, and since when it has been that.
#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// Buckets of one rate by source.
struct Buckets<K> {
    rate: Rate,
    by_source: Mutex<HashMap<K, Bucket>>,
}

/// The shares of nodes, and of machines that want to join.
pub(crate) struct Shares {
    time: Buckets<Arc<str>>,
    hellos: Buckets<Arc<str>>,
    joins: Buckets<IpAddr>,
    greetings: Arc<Mutex<HashMap<Arc<str>, usize>>>,
}

/// A stream that waits for its first message, until this is dropped.
#[derive(Debug)]
pub(crate) struct Greets {
    greetings: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    node: Arc<str>,
}

impl Bucket {
    fn now(self, rate: Rate, now: Instant) -> Self {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * rate.per_second;
        Self { left: (self.left + more).min(rate.burst), at: now }
    }
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    fn new(rate: Rate) -> Self {
        Self { rate, by_source: Mutex::default() }
    }

    /// Takes an amount. If there is not enough, returns when there will be.
    fn take(&self, source: &K, amount: f64, now: Instant) -> Result<(), Duration> {
        self.with(source, now, |bucket, rate| {
            if bucket.left >= amount {
                bucket.left -= amount;
                return Ok(());
            }
            Err(Duration::from_secs_f64((amount - bucket.left) / rate.per_second))
        })
    }

    fn with<T>(&self, source: &K, now: Instant, change: impl FnOnce(&mut Bucket, Rate) -> T) -> T {
        let mut by_source = lock(&self.by_source);
        if by_source.len() >= MAX_SOURCES && !by_source.contains_key(source) {
            by_source.retain(|_, bucket| bucket.now(self.rate, now).left < self.rate.burst);
        }
        let bucket = by_source.entry(source.clone()).or_insert(Bucket { left: self.rate.burst, at: now });
        *bucket = bucket.now(self.rate, now);
        change(bucket, self.rate)
    }
}

impl Default for Shares {
    fn default() -> Self {
        let (time, hellos, joins) = (Buckets::new(TIME), Buckets::new(HELLOS), Buckets::new(JOINS));
        Self { time, hellos, joins, greetings: Arc::default() }
    }
}

impl Shares {
    /// Waits until a node has time left.
    pub(crate) async fn turn(&self, node: &Arc<str>) {
        while let Err(wait) = self.time.take(node, 0.0, Instant::now()) {
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
    }

    /// Charges a node's time, which may become negative.
    pub(crate) fn charge(&self, node: &Arc<str>, took: Duration) {
        self.time.with(node, Instant::now(), |bucket, _| bucket.left -= took.as_secs_f64());
    }

    /// Begins a stream of a node. If it may not begin now, returns the time to wait.
    pub(crate) fn greet(&self, node: &Arc<str>) -> Result<Greets, Duration> {
        self.hellos.take(node, 1.0, Instant::now())?;
        let mut greetings = lock(&self.greetings);
        let awaited = greetings.entry(node.clone()).or_default();
        if *awaited >= MAX_GREETINGS {
            return Err(Duration::from_secs(1));
        }
        *awaited += 1;
        Ok(Greets { greetings: self.greetings.clone(), node: node.clone() })
    }

    /// Admits a request to join from an address. If it may not join now, returns the time to wait.
    pub(crate) fn join(&self, from: IpAddr) -> Result<(), Duration> {
        self.joins.take(&crate::places::source(from), 1.0, Instant::now())
    }
}

impl Drop for Greets {
    fn drop(&mut self) {
        let mut greetings = lock(&self.greetings);
        if let Some(awaited) = greetings.get_mut(&self.node) {
            *awaited -= 1;
            if *awaited == 0 {
                greetings.remove(&self.node);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_has_taken_much_waits_and_others_do_not() {
        let (buckets, now) = (Buckets::new(Rate { burst: 2.0, per_second: 1.0 }), Instant::now());
        assert_eq!([1, 2, 3].map(|_| buckets.take(&"a", 1.0, now)), [Ok(()), Ok(()), Err(Duration::from_secs(1))]);
        assert_eq!(buckets.take(&"b", 1.0, now), Ok(()));
        buckets.with(&"a", now, |bucket, _| bucket.left -= 3.0);
        assert_eq!(buckets.take(&"a", 0.0, now), Err(Duration::from_secs(3)));
        assert_eq!(buckets.take(&"a", 1.0, now + Duration::from_secs(4)), Ok(()));
        assert!(buckets.take(&"a", 3.0, now + Duration::from_secs(3600)).is_err(), "no more than the burst is saved");
    }

    #[test]
    fn streams_without_a_first_message_are_few() {
        let (shares, node) = (Shares::default(), Arc::from("one"));
        let held: Vec<_> = (0..MAX_GREETINGS).map(|_| shares.greet(&node).unwrap()).collect();
        assert!(shares.greet(&node).is_err());
        assert!(shares.greet(&Arc::from("two")).is_ok(), "another node");
        drop(held);
        assert!(lock(&shares.greetings).is_empty());
        assert!(shares.greet(&node).is_ok());
    }
}
