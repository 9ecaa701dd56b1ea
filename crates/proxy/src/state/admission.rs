//! Decides which connections a node admits, and which ones it closes to make place for them.
//!
//! A connection costs a file descriptor, and most open connections are idle. So the node limits
//! their number. When a limit is reached, the node closes the oldest connection that has never sent
//! a request, to make place for the new one. If there is none, it closes the oldest connection that
//! is idle now. It refuses a new connection only if all others are busy.
//!
//! Connections of instances count for their namespace. If the namespace is at its bound, only its
//! own connections are closed. If the node itself is full, the namespace with the most connections
//! gives one up. A part of the node's connections is reserved for the gateway, whatever instances
//! do.

mod heads;

use leno_http::activity::Activity;
use leno_http::peer::TrafficDirection;
use leno_namespaces::{Namespace, Permit, Resource};
use leno_policy::quota::client_network;
use leno_telemetry::exposition::{Collector, Exposition};
use leno_telemetry::families;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

impl Bounds {
    /// How many connections of instances and of other nodes there may be together.
    fn inside(&self) -> usize {
        self.node - self.node / 4
    }
}

/// The peer that a connection counts for.
#[derive(Clone, Copy, Debug)]
pub enum Holder<'a> {
    /// A client at this address.
    Address(IpAddr),
    /// An instance of this name, or a function of another node, in this namespace.
    Instance(&'a str, &'a Arc<Namespace>),
}

/// Which bound refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// That of one client address.
    Address,
    /// That of one traffic direction.
    Listener,
    /// That of the node.
    Descriptors,
    /// That of one instance.
    Instance,
    /// That of a namespace.
    Namespace,
    /// That of the bytes of unfinished heads.
    Heads,
}

impl AdmissionError {
    fn label(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Listener => "listener",
            Self::Descriptors => "descriptors",
            Self::Instance => "instance",
            Self::Namespace => "namespace",
            Self::Heads => "heads",
        }
    }

    /// Why an instance's connection is refused.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Instance => {
                "the instance has three quarters of the `connections` of its namespace on this node, and all are at work"
            }
            Self::Namespace => "the namespace has all of its `connections` on this node, and none is idle",
            Self::Address | Self::Listener | Self::Descriptors | Self::Heads => {
                "the node has no room for another connection"
            }
        }
    }
}

/// The client connections that are open at a node.
#[derive(Debug, Default)]
pub struct Admission {
    table: Mutex<Table>,
    /// Bytes of unfinished heads.
    held: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    numbers: u64,
    /// By number, and so by age.
    entries: BTreeMap<u64, Entry>,
    /// By direction: connections that are not known to have sent a request.
    silent: [BTreeSet<u64>; DIRECTIONS.len()],
    open: [usize; DIRECTIONS.len()],
    by_key: HashMap<Key, BTreeSet<u64>>,
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

const GATEWAY: usize = 0;
const DIRECTIONS: [(TrafficDirection, &str); 3] = [
    (TrafficDirection::Gateway, "gateway"),
    (TrafficDirection::Outbound, "outbound"),
    (TrafficDirection::Inbound, "inbound"),
];

/// The groups in which connections are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Address(IpAddr),
    Instance(Box<str>),
    Namespace(Arc<str>),
}

#[derive(Debug)]
struct Entry {
    direction: usize,
    keys: Vec<Key>,
    /// Counts the connection for its namespace.
    permit: Option<Permit>,
    shared: Arc<SharedEntry>,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.shared.activity.is_idle()
    }
}

/// State that an entry shares with its connection's task.
#[derive(Debug)]
struct SharedEntry {
    activity: Arc<Activity>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// An admitted connection. It counts until this and each [`Attribution`] of it are dropped.
#[derive(Debug)]
pub struct AdmissionGuard {
    place: Arc<Place>,
    shared: Arc<SharedEntry>,
}

/// Assigns an admitted connection to a namespace later. A tunnel that outlives the connection's
/// task holds one.
#[derive(Clone, Debug)]
pub struct Attribution(Arc<Place>);

/// A connection's place in the table.
#[derive(Debug)]
struct Place {
    admission: Arc<Admission>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.lock().forget(self.number);
    }
}

impl Attribution {
    /// Counts the connection for an instance, which has proved that it opened the connection. Does
    /// nothing if the connection already has an owner.
    pub fn set(&self, name: &str, namespace: &Arc<Namespace>) -> Result<(), AdmissionError> {
        let Place { admission, number } = &*self.0;
        let mut table = admission.lock();
        let Some(entry) = table.entries.get(number) else { return Ok(()) };
        if entry.permit.is_some() {
            return Ok(());
        }
        let direction = entry.direction;
        let (keys, permit) = table.take(direction, name, namespace)?;
        table.attribute(*number, keys, permit);
        Ok(())
    }
}

impl Admission {
    /// Admits a connection, for which another may be closed.
    pub fn admit(
        self: &Arc<Self>,
        direction: TrafficDirection,
        holder: Holder<'_>,
        activity: &Arc<Activity>,
        bounds: Bounds,
    ) -> Result<AdmissionGuard, AdmissionError> {
        let direction = index(direction);
        let mut table = self.lock();
        let (keys, permit) = table.make_space_for(direction, holder, bounds)?;
        activity.count_heads(self.clone());
        let shared = Arc::new(SharedEntry {
            activity: activity.clone(),
            closing: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        let number = table.insert(direction, shared.clone());
        table.attribute(number, keys, permit);
        Ok(AdmissionGuard { place: Arc::new(Place { admission: self.clone(), number }), shared })
    }

    /// Closes an idle connection to make place for one that the node opens for this namespace.
    /// Returns whether there was one.
    pub fn close_one_of(&self, namespace: &Namespace) -> bool {
        self.lock().close_one_with(&Key::Namespace(namespace.name().clone()))
    }

    /// Closes a connection because the process has no file descriptors left: one of the namespace
    /// whose instance wants to connect, or else one that was accepted by the same listener.
    pub fn shed(&self, direction: TrafficDirection, namespace: Option<&Namespace>) {
        let direction = index(direction);
        let mut table = self.lock();
        let closed = match namespace {
            Some(namespace) => table.close_one_with(&Key::Namespace(namespace.name().clone())),
            None => table.close_one(direction),
        };
        table.overflowed(direction, AdmissionError::Descriptors, closed);
    }

    /// The counts, for `/metrics`.
    pub fn scrape(&self) -> Scrape {
        let table = self.lock();
        Scrape { open: table.open, held: self.held(), overflows: table.overflows.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn make_space_for(
        &mut self,
        direction: usize,
        holder: Holder<'_>,
        bounds: Bounds,
    ) -> Result<(Vec<Key>, Option<Permit>), AdmissionError> {
        let (keys, permit) = match holder {
            Holder::Instance(name, namespace) => self.take(direction, name, namespace)?,
            Holder::Address(address) => {
                let key = Key::Address(client_network(address));
                if self.number_of(&key) >= bounds.address {
                    let closed = self.close_one_with(&key);
                    self.made_space(direction, AdmissionError::Address, closed)?;
                }
                (vec![key], None)
            }
        };
        let namespace = permit.as_ref().map(|permit| permit.namespace().name());
        if self.open[direction] >= bounds.direction {
            let closed = self.close_fairly(direction, namespace);
            self.made_space(direction, AdmissionError::Listener, closed)?;
        }
        let inside = self.entries.len() - self.open[GATEWAY];
        if direction != GATEWAY && inside >= bounds.inside() {
            let closed = self.close_fairly(direction, namespace);
            self.made_space(direction, AdmissionError::Descriptors, closed)?;
        }
        if self.entries.len() >= bounds.node {
            // The side with more than its half gives one up.
            let gateway_has_most = 2 * self.open[GATEWAY] > self.entries.len();
            let closed = match (gateway_has_most, direction) {
                (true, _) => self.close_one(GATEWAY),
                (false, GATEWAY) => self.close_fairly(GATEWAY, None) || self.close_of_largest(None),
                (false, _) => self.close_fairly(direction, namespace),
            };
            self.made_space(direction, AdmissionError::Descriptors, closed)?;
        }
        Ok((keys, permit))
    }

    /// Counts a connection for a namespace. At a bound, closes an idle one of the instance or the
    /// namespace itself.
    fn take(
        &mut self,
        direction: usize,
        name: &str,
        namespace: &Arc<Namespace>,
    ) -> Result<(Vec<Key>, Option<Permit>), AdmissionError> {
        let (of_instance, of_namespace) = (Key::Instance(name.into()), Key::Namespace(namespace.name().clone()));
        let bound = usize::try_from(namespace.count(Resource::Connections).bound()).unwrap_or(usize::MAX);
        if self.number_of(&of_instance) >= bound - bound / 4 {
            let closed = self.close_one_with(&of_instance);
            self.made_space(direction, AdmissionError::Instance, closed)?;
        }
        let mut permit = namespace.take(Resource::Connections);
        if permit.is_none() {
            let closed = self.close_one_with(&of_namespace);
            self.made_space(direction, AdmissionError::Namespace, closed)?;
            permit = namespace.take(Resource::Connections);
        }
        let permit = permit.ok_or(AdmissionError::Namespace)?;
        Ok((vec![of_instance, of_namespace], Some(permit)))
    }

    fn made_space(&mut self, direction: usize, bound: AdmissionError, closed: bool) -> Result<(), AdmissionError> {
        self.overflowed(direction, bound, closed);
        if closed { Ok(()) } else { Err(bound) }
    }

    fn number_of(&self, key: &Key) -> usize {
        self.by_key.get(key).map_or(0, BTreeSet::len)
    }

    fn insert(&mut self, direction: usize, shared: Arc<SharedEntry>) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        self.silent[direction].insert(number);
        self.open[direction] += 1;
        self.entries.insert(number, Entry { direction, keys: Vec::new(), permit: None, shared });
        number
    }

    fn attribute(&mut self, number: u64, keys: Vec<Key>, permit: Option<Permit>) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        for key in keys {
            self.by_key.entry(key.clone()).or_default().insert(number);
            entry.keys.push(key);
        }
        entry.permit = permit;
    }

    fn forget(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.silent[entry.direction].remove(&number);
        self.open[entry.direction] -= 1;
        for key in &entry.keys {
            if let Some(numbers) = self.by_key.get_mut(key) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
        Some(entry)
    }

    /// Closes the oldest connection with this key that has sent no request, or else the oldest idle
    /// one. Returns whether one was closed.
    fn close_one_with(&mut self, key: &Key) -> bool {
        let candidates = || {
            let numbers = self.by_key.get(key).into_iter().flatten().take(MAX_SCANNED);
            numbers.filter_map(|number| Some((*number, self.entries.get(number)?)))
        };
        let silent = candidates().find(|(_, entry)| !entry.shared.activity.has_begun());
        let found = silent.or_else(|| candidates().find(|(_, entry)| entry.is_idle())).map(|(number, _)| number);
        found.is_some_and(|number| self.close(number))
    }

    /// Closes a connection in this direction for one of `namespace`, or of no namespace. A
    /// namespace gives one up only if it has more connections than this one.
    fn close_fairly(&mut self, direction: usize, namespace: Option<&Arc<str>>) -> bool {
        match namespace {
            Some(namespace) => self.close_of_largest(Some(namespace)),
            None => self.close_one(direction),
        }
    }

    /// Closes an idle connection of the namespace with the most connections, or of this one if no
    /// other has more.
    fn close_of_largest(&mut self, own: Option<&Arc<str>>) -> bool {
        let sizes = self.by_key.iter().filter_map(|(key, numbers)| match key {
            Key::Namespace(name) => Some((numbers.len(), name)),
            Key::Address(_) | Key::Instance(_) => None,
        });
        let largest = sizes.max().map(|(size, name)| (size, name.clone()));
        let own_key = own.map(|own| Key::Namespace(own.clone()));
        let own_size = own_key.as_ref().map_or(0, |key| self.number_of(key));
        match (largest, own_key) {
            (Some((size, name)), _) if size > own_size => self.close_one_with(&Key::Namespace(name)),
            (_, Some(key)) => self.close_one_with(&key),
            (_, None) => false,
        }
    }

    /// Like [`Table::close_one_with`], for a direction. Connections without a namespace go first.
    fn close_one(&mut self, direction: usize) -> bool {
        while let Some(number) = self.silent[direction].first().copied() {
            let Some(entry) = self.entries.get(&number) else { break };
            if !entry.shared.activity.has_begun() && entry.permit.is_none() {
                return self.close(number);
            }
            // The connection has sent a request meanwhile, or belongs to a namespace. From now on
            // it can only be closed as an idle connection.
            self.silent[direction].remove(&number);
        }
        let of_direction = |entry: &Entry| entry.direction == direction && entry.permit.is_none();
        let mut entries = self.entries.iter().filter(|(_, entry)| of_direction(entry)).take(MAX_SCANNED);
        let idle = entries.find(|(_, entry)| entry.is_idle()).map(|(number, _)| *number);
        match idle {
            Some(number) => self.close(number),
            None => direction != GATEWAY && self.close_of_largest(None),
        }
    }

    fn close(&mut self, number: u64) -> bool {
        let Some(entry) = self.forget(number) else { return false };
        entry.shared.closing.store(true, Ordering::Release);
        let waker = entry.shared.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn overflowed(&mut self, direction: usize, bound: AdmissionError, closed: bool) {
        let overflow = self.overflows.entry((DIRECTIONS[direction].1, bound.label())).or_default();
        for count in [overflow, &mut self.since] {
            *(if closed { &mut count.closed } else { &mut count.refused }) += 1;
        }
        if self.last_logged.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            self.last_logged = Some(Instant::now());
            let Overflow { closed, refused } = std::mem::take(&mut self.since);
            tracing::warn!(
                listener = DIRECTIONS[direction].1,
                bound = bound.label(),
                open = self.entries.len(),
                closed,
                refused,
                "there are too many connections: the oldest that ask nothing are closed for new ones"
            );
        }
    }
}

impl AdmissionGuard {
    /// Assigns the connection to a namespace later.
    pub fn attribution(&self) -> Attribution {
        Attribution(self.place.clone())
    }

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

fn index(direction: TrafficDirection) -> usize {
    DIRECTIONS.iter().position(|(other, _)| *other == direction).unwrap_or_default()
}

/// The counts at one moment.
#[derive(Debug)]
pub struct Scrape {
    open: [usize; DIRECTIONS.len()],
    held: usize,
    overflows: BTreeMap<(&'static str, &'static str), Overflow>,
}

impl Scrape {
    /// How many connections are open at this listener.
    pub fn open(&self, listener: &str) -> usize {
        DIRECTIONS.iter().zip(self.open).filter(|((_, name), _)| *name == listener).map(|(_, open)| open).sum()
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        let open = DIRECTIONS.iter().zip(self.open).map(|((_, listener), open)| ([*listener], open));
        exposition.family(&families::CONNECTIONS).samples(open);
        exposition.family(&families::UNFINISHED_HEADS).sample([""; 0], self.held);
        let overflows = |value: fn(&Overflow) -> u64| {
            self.overflows.iter().map(move |((listener, bound), overflow)| ([*listener, *bound], value(overflow)))
        };
        exposition.family(&families::CONNECTIONS_CLOSED).samples(overflows(|overflow| overflow.closed));
        exposition.family(&families::CONNECTIONS_REFUSED).samples(overflows(|overflow| overflow.refused));
    }
}

#[cfg(test)]
mod tests;
