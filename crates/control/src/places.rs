//! Places for connections: bounded in all, and for each source, so that one machine cannot keep the others out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places that connections take while they are open, or for a part of that.
#[derive(Debug)]
pub struct Places {
    limit: usize,
    limit_of_source: usize,
    taken: Mutex<Taken>,
    /// Woken when a place becomes free.
    freed: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// A place of a connection. It is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    source: IpAddr,
}

impl Places {
    /// This many in all, and of them so many for one source.
    pub fn new(limit: usize, limit_of_source: usize) -> Arc<Self> {
        Arc::new(Self { limit, limit_of_source, taken: Mutex::default(), freed: tokio::sync::Notify::new() })
    }

    /// Waits until a place is free. Only one task may wait at a time.
    pub async fn wait(&self) {
        while self.taken().all >= self.limit {
            self.freed.notified().await;
        }
    }

    /// A place for a connection from this address; `None`: there is none, or its source has enough of them.
    pub fn take(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let source = source(from);
        let mut taken = self.taken();
        let of_source = taken.by_source.get(&source).copied().unwrap_or_default();
        if taken.all >= self.limit || of_source >= self.limit_of_source {
            return None;
        }
        taken.all += 1;
        taken.by_source.insert(source, of_source + 1);
        Some(Place { places: self.clone(), source })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(of_source) = taken.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                taken.by_source.remove(&self.source);
            }
        }
        drop(taken);
        self.places.freed.notify_one();
    }
}

/// An IPv4 address, or the network of an IPv6 address: whoever has one address there has 2⁶⁴.
fn source(from: IpAddr) -> IpAddr {
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

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_has_its_share_and_no_more() {
        let places = Places::new(3, 2);
        let first = places.take(address("2001:db8::1")).unwrap();
        let _second = places.take(address("2001:db8::2")).unwrap();
        assert!(places.take(address("2001:db8::3")).is_none(), "the same network");
        let other = places.take(address("2001:db8:0:1::1")).unwrap();
        assert!(places.take(address("192.0.2.1")).is_none(), "no place is left");
        drop((first, other));
        assert!(places.take(address("2001:db8::3")).is_some());
        let mapped = places.take(address("::ffff:192.0.2.1")).unwrap();
        assert_eq!(mapped.source, address("192.0.2.1"));
        drop((_second, mapped));
        assert!(places.taken().by_source.is_empty(), "nothing is kept of sources that have left");
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_a_free_place() {
        let places = Places::new(1, 1);
        let place = places.take(address("192.0.2.1")).unwrap();
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.wait().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(place);
        waiting.await.unwrap();
    }
}
