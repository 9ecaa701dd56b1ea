//! Which connections a node takes, and which it closes for them.
//!
//! A connection costs a file descriptor, and most of those that are open at one time do nothing. So there are bounds, and when one is
//! reached, the oldest connection that has asked nothing yet is closed for the new one; if there is none, the one that was opened first of
//! those that ask nothing now. A new connection is refused only if all others are at work.

use crate::http::activity::Activity;
use crate::http::peer::TrafficDirection;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// So many of the oldest connections are looked at for one that asks nothing now.
const LOOK: usize = 1024;
/// Once in this time the log says that a bound is reached.
const COMPLAINTS: Duration = Duration::from_secs(10);

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From one address; `usize::MAX`: any number.
    pub address: usize,
    /// In one direction.
    pub direction: usize,
    /// In all directions of the node together.
    pub node: usize,
}

/// The connections that clients have open at a node.
#[derive(Debug, Default)]
pub struct Admission(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    numbers: u64,
    /// By age.
    entries: BTreeMap<u64, Entry>,
    /// By direction: those of which it is not known that they ever asked something.
    silent: [BTreeSet<u64>; DIRECTIONS.len()],
    open: [usize; DIRECTIONS.len()],
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    overflows: BTreeMap<(&'static str, &'static str), Overflow>,
    /// When the log was last told, and how many overflows there were since.
    complained: Option<Instant>,
    since: Overflow,
}

#[derive(Clone, Copy, Debug, Default)]
struct Overflow {
    closed: u64,
    refused: u64,
}

const DIRECTIONS: [(TrafficDirection, &str); 3] = [
    (TrafficDirection::Gateway, "gateway"),
    (TrafficDirection::Outbound, "outbound"),
    (TrafficDirection::Inbound, "inbound"),
];

#[derive(Debug)]
struct Entry {
    direction: usize,
    address: IpAddr,
    place: Arc<Place>,
}

/// What a connection's task has of it.
#[derive(Debug)]
struct Place {
    activity: Arc<Activity>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A connection that was admitted, as long as this lives.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    number: u64,
    place: Arc<Place>,
}

impl Admission {
    /// Takes a connection in, for which another may be closed. `None`: there is no room.
    pub fn admit(
        self: &Arc<Self>,
        direction: TrafficDirection,
        address: IpAddr,
        activity: &Arc<Activity>,
        bounds: Bounds,
    ) -> Option<Admitted> {
        let address = network(address);
        let direction = index(direction);
        let mut table = self.lock();
        let fits = table.make_room_for(direction, address, bounds);
        fits.then(|| {
            let place = Arc::new(Place {
                activity: activity.clone(),
                closing: AtomicBool::new(false),
                waker: Mutex::default(),
            });
            let number = table.place(Entry { direction, address, place: place.clone() });
            Admitted { admission: self.clone(), number, place }
        })
    }

    /// Closes a connection because the process has no descriptors left.
    pub fn shed(&self) {
        let mut table = self.lock();
        let closed = table.close_one(None);
        table.overflowed(0, "descriptors", closed);
    }

    /// What was counted, for `/metrics`.
    pub fn scrape(&self) -> Scrape {
        let table = self.lock();
        Scrape { open: table.open, overflows: table.overflows.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn make_room_for(&mut self, direction: usize, address: IpAddr, bounds: Bounds) -> bool {
        let of_address = self.by_address.get(&address).map_or(0, BTreeSet::len);
        if of_address >= bounds.address {
            let closed = self.close_one_of(address);
            self.overflowed(direction, "address", closed);
            // Whatever other bound is reached too, one has gone.
            return closed;
        }
        if self.open[direction] >= bounds.direction {
            let closed = self.close_one(Some(direction));
            self.overflowed(direction, "listener", closed);
            return closed;
        }
        if self.entries.len() >= bounds.node {
            let closed = self.close_one(None);
            self.overflowed(direction, "descriptors", closed);
            return closed;
        }
        true
    }

    fn place(&mut self, entry: Entry) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        self.silent[entry.direction].insert(number);
        self.open[entry.direction] += 1;
        self.by_address.entry(entry.address).or_default().insert(number);
        self.entries.insert(number, entry);
        number
    }

    fn forget(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.silent[entry.direction].remove(&number);
        self.open[entry.direction] -= 1;
        if let Some(of_address) = self.by_address.get_mut(&entry.address) {
            of_address.remove(&number);
            if of_address.is_empty() {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }

    /// Closes the oldest silent connection of an address, or else the oldest idle one.
    fn close_one_of(&mut self, address: IpAddr) -> bool {
        let seats = || {
            let numbers = self.by_address.get(&address).into_iter().flatten().take(LOOK);
            numbers.filter_map(|number| Some((*number, &self.entries.get(number)?.place.activity)))
        };
        let silent = seats().find(|(_, activity)| !activity.has_begun());
        let found = silent.or_else(|| seats().find(|(_, activity)| activity.is_idle())).map(|(number, _)| number);
        found.is_some_and(|number| self.close(number))
    }

    /// The same, of one direction, or of all.
    fn close_one(&mut self, direction: Option<usize>) -> bool {
        let wanted = |of: usize| direction.is_none_or(|wanted| wanted == of);
        loop {
            let oldest =
                (0..DIRECTIONS.len()).filter(|of| wanted(*of)).filter_map(|of| self.silent[of].first().copied());
            let Some(number) = oldest.min() else { break };
            let Some(entry) = self.entries.get(&number) else { break };
            if !entry.place.activity.has_begun() {
                return self.close(number);
            }
            // It has asked something since: it is not looked at again, but as one of those that may be idle.
            self.silent[entry.direction].remove(&number);
        }
        let entries = self.entries.iter().filter(|(_, entry)| wanted(entry.direction)).take(LOOK);
        let idle = entries.into_iter().find(|(_, entry)| entry.place.activity.is_idle()).map(|(number, _)| *number);
        idle.is_some_and(|number| self.close(number))
    }

    fn close(&mut self, number: u64) -> bool {
        let Some(entry) = self.forget(number) else { return false };
        entry.place.closing.store(true, Ordering::Release);
        let waker = entry.place.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn overflowed(&mut self, direction: usize, bound: &'static str, closed: bool) {
        let overflow = self.overflows.entry((DIRECTIONS[direction].1, bound)).or_default();
        for count in [overflow, &mut self.since] {
            *(if closed { &mut count.closed } else { &mut count.refused }) += 1;
        }
        if self.complained.is_none_or(|last| last.elapsed() > COMPLAINTS) {
            self.complained = Some(Instant::now());
            let Overflow { closed, refused } = std::mem::take(&mut self.since);
            tracing::warn!(
                listener = DIRECTIONS[direction].1,
                bound,
                open = self.entries.len(),
                closed,
                refused,
                "there are too many connections: the oldest that ask nothing are closed for new ones"
            );
        }
    }
}

impl Admitted {
    /// Runs a connection's task to its end, or until the connection is closed for another one.
    pub async fn serve(self, connection: impl Future<Output = ()>) {
        let mut connection = pin!(connection);
        let mut registered = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut registered, true) {
                self.register(cx);
            }
            // What has begun since it was chosen may end.
            if self.place.closing.load(Ordering::Acquire) && self.place.activity.is_idle() {
                return Poll::Ready(());
            }
            connection.as_mut().poll(cx)
        })
        .await;
    }

    fn register(&self, cx: &Context<'_>) {
        *self.place.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.lock().forget(self.number);
    }
}

fn index(direction: TrafficDirection) -> usize {
    DIRECTIONS.iter().position(|(other, _)| *other == direction).unwrap_or_default()
}

/// Whoever has one IPv6 address has all of its /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// What was counted until one moment.
#[derive(Debug)]
pub struct Scrape {
    open: [usize; DIRECTIONS.len()],
    overflows: BTreeMap<(&'static str, &'static str), Overflow>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Connections that clients have open.";
        let mut family = encoder.encode_descriptor("leno_connections", help, None, MetricType::Gauge)?;
        for ((_, listener), open) in DIRECTIONS.iter().zip(self.open) {
            let open = i64::try_from(open).unwrap_or(i64::MAX);
            family.encode_family(&[("listener", *listener)])?.encode_gauge(&open)?;
        }
        let closed: fn(&Overflow) -> u64 = |overflow| overflow.closed;
        let refused: fn(&Overflow) -> u64 = |overflow| overflow.refused;
        for (name, help, of) in [
            ("leno_connections_closed", "Idle connections that were closed for new ones.", closed),
            ("leno_connections_refused", "Connections that were refused because all others were at work.", refused),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for ((listener, bound), overflow) in &self.overflows {
                let labels = [("listener", *listener), ("bound", *bound)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&of(overflow), None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { address: 3, direction: 5, node: 7 };

    fn admit(admission: &Arc<Admission>, direction: TrafficDirection, host: u8) -> Option<(Admitted, Arc<Activity>)> {
        let activity = Activity::new();
        Some((admission.admit(direction, [192, 0, 2, host].into(), &activity, BOUNDS)?, activity))
    }

    fn is_closed(admitted: &Admitted) -> bool {
        admitted.place.closing.load(Ordering::Relaxed)
    }

    #[test]
    fn the_oldest_silent_one_is_closed_first_then_the_oldest_idle_one() {
        let admission = Arc::new(Admission::default());
        let of_one = |_| admit(&admission, TrafficDirection::Gateway, 1).unwrap();
        let [busy, idle, silent] = std::array::from_fn(of_one);
        let working = busy.1.begin();
        drop(idle.1.begin());
        let fourth = of_one(0);
        assert_eq!([&busy, &idle, &silent].map(|(admitted, _)| is_closed(admitted)), [false, false, true]);
        let _too = fourth.1.begin();
        let fifth = of_one(0);
        assert!(is_closed(&idle.0));
        let _three = fifth.1.begin();
        assert!(admit(&admission, TrafficDirection::Gateway, 1).is_none(), "all of this address are at work");
        assert!(admit(&admission, TrafficDirection::Gateway, 2).is_some(), "another address is another matter");
        drop(working);
        assert!(admit(&admission, TrafficDirection::Gateway, 1).is_some());
        assert!(is_closed(&busy.0));
    }

    #[test]
    fn each_entrance_has_its_bound_and_the_node_has_one() {
        let admission = Arc::new(Admission::default());
        let gateway: Vec<_> = (0..5).map(|host| admit(&admission, TrafficDirection::Gateway, host).unwrap()).collect();
        let outbound: Vec<_> = (0..2).map(|_| admit(&admission, TrafficDirection::Outbound, 1).unwrap()).collect();
        let _more = admit(&admission, TrafficDirection::Gateway, 9).unwrap();
        assert!(is_closed(&gateway[0].0), "the oldest at the gateway");
        let _more = admit(&admission, TrafficDirection::Outbound, 2).unwrap();
        assert!(is_closed(&gateway[1].0) && !is_closed(&outbound[0].0), "the oldest of all");
        drop((gateway, outbound));
        assert_eq!(admission.lock().entries.len(), 2);
        let mut text = String::new();
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(admission.scrape()));
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("leno_connections_closed_total{listener=\"gateway\",bound=\"listener\"} 1"), "{text}");
        assert!(
            text.contains("leno_connections_closed_total{listener=\"outbound\",bound=\"descriptors\"} 1"),
            "{text}"
        );
        assert!(text.contains("leno_connections{listener=\"gateway\"} 1"), "{text}");
    }

    #[test]
    fn who_has_one_address_of_a_network_has_them_all() {
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8:1:2:3::4"), address("2001:db8:1:2::"));
        assert_ne!(address("2001:db8:1:2::"), address("2001:db8:1:3::"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
    }
}
