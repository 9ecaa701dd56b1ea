//! Which connections a node admits, and which ones it closes for them.
//!
//! A connection costs a file descriptor, and most open connections are idle. So there are limits. When one is reached, the oldest
//! connection that has never sent a request is closed for the new one. If there is none, the oldest connection that is idle now is closed.
//! A new connection is refused only if all others are busy.

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

/// How many of the oldest connections are searched for an idle one.
const MAX_SCANNED: usize = 1024;
/// Log messages about reached limits are at least this far apart.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From one client address; `usize::MAX`: no limit.
    pub address: usize,
    /// In one traffic direction.
    pub direction: usize,
    /// In all directions of the node together.
    pub node: usize,
}

/// The client connections that are open at a node.
#[derive(Debug, Default)]
pub struct Admission(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    numbers: u64,
    /// By number, and so by age.
    entries: BTreeMap<u64, Entry>,
    /// By direction: connections that have sent no request, as far as is known.
    silent: [BTreeSet<u64>; DIRECTIONS.len()],
    open: [usize; DIRECTIONS.len()],
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
    overflows: BTreeMap<(&'static str, &'static str), Overflow>,
    /// When an overflow was last logged, and (in `since`) how many there were after that.
    last_logged: Option<Instant>,
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
    shared: Arc<SharedEntry>,
}

/// What an entry shares with its connection's task.
#[derive(Debug)]
struct SharedEntry {
    activity: Arc<Activity>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// An admitted connection, which counts until this is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    number: u64,
    shared: Arc<SharedEntry>,
}

impl Admission {
    /// Admits a connection, for which another may be closed. `None`: there is no room.
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
            let shared = Arc::new(SharedEntry {
                activity: activity.clone(),
                closing: AtomicBool::new(false),
                waker: Mutex::default(),
            });
            let number = table.insert(Entry { direction, address, shared: shared.clone() });
            Admitted { admission: self.clone(), number, shared }
        })
    }

    /// Closes a connection because the process has no file descriptors left.
    pub fn shed(&self) {
        let mut table = self.lock();
        let closed = table.close_one(None);
        table.overflowed(0, "descriptors", closed);
    }

    /// The counts, for `/metrics`.
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
            // Closing one connection also makes room under the other limits.
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

    fn insert(&mut self, entry: Entry) -> u64 {
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

    /// Closes the oldest connection of an address that has sent no request, or else the oldest idle one. Returns whether one was closed.
    fn close_one_of(&mut self, address: IpAddr) -> bool {
        let candidates = || {
            let numbers = self.by_address.get(&address).into_iter().flatten().take(MAX_SCANNED);
            numbers.filter_map(|number| Some((*number, &self.entries.get(number)?.shared.activity)))
        };
        let silent = candidates().find(|(_, activity)| !activity.has_begun());
        let found = silent.or_else(|| candidates().find(|(_, activity)| activity.is_idle())).map(|(number, _)| number);
        found.is_some_and(|number| self.close(number))
    }

    /// Like [`Table::close_one_of`], for one direction or for all.
    fn close_one(&mut self, direction: Option<usize>) -> bool {
        let wanted = |of: usize| direction.is_none_or(|wanted| wanted == of);
        loop {
            let oldest =
                (0..DIRECTIONS.len()).filter(|of| wanted(*of)).filter_map(|of| self.silent[of].first().copied());
            let Some(number) = oldest.min() else { break };
            let Some(entry) = self.entries.get(&number) else { break };
            if !entry.shared.activity.has_begun() {
                return self.close(number);
            }
            // It has sent a request meanwhile. From now on it can only be closed as an idle connection.
            self.silent[entry.direction].remove(&number);
        }
        let entries = self.entries.iter().filter(|(_, entry)| wanted(entry.direction)).take(MAX_SCANNED);
        let idle = entries.into_iter().find(|(_, entry)| entry.shared.activity.is_idle()).map(|(number, _)| *number);
        idle.is_some_and(|number| self.close(number))
    }

    fn close(&mut self, number: u64) -> bool {
        let Some(entry) = self.forget(number) else { return false };
        entry.shared.closing.store(true, Ordering::Release);
        let waker = entry.shared.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn overflowed(&mut self, direction: usize, bound: &'static str, closed: bool) {
        let overflow = self.overflows.entry((DIRECTIONS[direction].1, bound)).or_default();
        for count in [overflow, &mut self.since] {
            *(if closed { &mut count.closed } else { &mut count.refused }) += 1;
        }
        if self.last_logged.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            self.last_logged = Some(Instant::now());
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
    /// Runs a connection's task until it ends, or until the connection is closed for another one.
    pub async fn serve(self, connection: impl Future<Output = ()>) {
        let mut connection = pin!(connection);
        let mut registered = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut registered, true) {
                self.register(cx);
            }
            // A request that began after the connection was chosen may end first.
            if self.shared.closing.load(Ordering::Acquire) && self.shared.activity.is_idle() {
                return Poll::Ready(());
            }
            connection.as_mut().poll(cx)
        })
        .await;
    }

    fn register(&self, cx: &Context<'_>) {
        *self.shared.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
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

/// Whoever has one IPv6 address has its whole /64, so the /64 counts as one address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The counts at one moment.
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
        admitted.shared.closing.load(Ordering::Relaxed)
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
