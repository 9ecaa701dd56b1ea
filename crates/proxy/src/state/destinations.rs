//! The meanings of addresses that pods of this node call: Services with their endpoints, pods of the
//! mesh, or neither.
//!
//! The node subscribes to an address when a pod first calls it, and ends the subscription when no
//! pod has called it for some minutes. Calls of other addresses take the cluster's way.

mod choice;

pub use choice::NodePlace;
use choice::{less_busy, preferred};
use leno_model::{Destination, MeshPod, Service, ServiceEndpoint, ServiceName};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Maximum number of addresses to which a node subscribes, and those for pods of one namespace.
const MAX_CALLED: usize = 4096;
const MAX_OF_NAMESPACE: usize = 1024;
/// How long an address that makes room has to be unused, if its namespace has as many as it may have.
/// So a pod that calls ever more addresses asks the control plane about a hundred of them a second.
const UNUSED_FOR_ROOM: Duration = Duration::from_secs(10);
/// How long an address may be unused until its subscription ends.
const UNUSED: Duration = Duration::from_secs(300);
/// How long a connection waits for the first answer about its address.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Maximum number of clients whose endpoints are remembered for session affinity.
const MAX_AFFINITIES: usize = 65_536;

/// The control plane, as far as it answers about addresses.
pub trait AddressBook: Send + Sync {
    /// Asks for the meaning of an address. The answer and its changes come by [`Destinations::set`].
    fn subscribe(&self, address: IpAddr);

    /// Ends subscriptions.
    fn unsubscribe(&self, addresses: Vec<IpAddr>);

    /// Whether an answer may come soon.
    fn is_connected(&self) -> bool;
}

/// The meanings of addresses that pods of this node call.
#[derive(Default)]
pub struct Destinations {
    table: Mutex<Table>,
    /// Connections of pods, by their namespace.
    calls: Mutex<BTreeMap<(String, Transport), u64>>,
    here: OnceLock<NodePlace>,
    book: OnceLock<Box<dyn AddressBook>>,
}

#[derive(Default)]
struct Table {
    called: HashMap<IpAddr, Subscription>,
    /// Endpoints by address. They come before the Service.
    endpoints: HashMap<ServiceName, BTreeMap<IpAddr, Endpoint>>,
    affinities: HashMap<Affinity, (SocketAddr, Instant)>,
}

/// An address to which the node subscribes.
struct Subscription {
    meaning: watch::Sender<Meaning>,
    /// The namespace of the pod that called it first.
    namespace: String,
    asked: Instant,
    used: Instant,
}

#[derive(Clone)]
enum Meaning {
    Awaited,
    /// Neither a Service nor a pod of the mesh has the address.
    Other,
    Known(Arc<Destination>),
}

struct Endpoint {
    parts: Vec<ServiceEndpoint>,
    /// Open connections of this node's pods.
    open: Arc<AtomicUsize>,
}

/// A client of a port of a Service with session affinity.
#[derive(PartialEq, Eq, Hash)]
struct Affinity {
    service: ServiceName,
    port: u16,
    client: IpAddr,
}

/// How a connection reaches its callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// The cluster's way, to the address that was called.
    Cluster,
    /// To an endpoint outside of the mesh, or of a pod whose agent is away, in clear text.
    Clear,
    /// To a pod of this node.
    Local,
    /// To a pod of another node, in a tunnel.
    Hbone,
}

impl Transport {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Clear => "clear",
            Self::Local => "local",
            Self::Hbone => "hbone",
        }
    }
}

/// Where a call goes.
#[derive(Debug)]
pub(crate) enum Way {
    /// To the address that was called.
    Called,
    /// To an endpoint of a Service, or to a pod of the mesh.
    Endpoint(ChosenEndpoint),
    /// The Service has no endpoint, apart from those that were tried.
    NoEndpoint(ServiceName),
}

/// An endpoint for a connection.
#[derive(Debug)]
pub(crate) struct ChosenEndpoint {
    pub address: SocketAddr,
    /// `None`: the pod's own address was called.
    pub service: Option<ServiceName>,
    /// The pod of the mesh that has the address.
    pub pod: Option<MeshPod>,
    /// Whether the Service has other endpoints for this call.
    pub has_others: bool,
    /// Counts the connection until it is dropped.
    pub counted: Option<OpenToEndpoint>,
}

/// Counts a connection to an endpoint.
#[derive(Debug)]
pub(crate) struct OpenToEndpoint(Arc<AtomicUsize>);

impl Drop for OpenToEndpoint {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub called: SocketAddr,
    /// The pod's address.
    pub client: IpAddr,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// Endpoints that have refused the connection.
    pub tried: &'a [SocketAddr],
}

/// An address that pods of the node call, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalledAddress {
    /// The address.
    pub address: IpAddr,
    /// Its meaning; `None`: the control plane has not answered, or it is neither a Service nor a pod
    /// of the mesh.
    pub destination: Option<Arc<Destination>>,
    /// The endpoints of the Service, each with the open connections of this node's pods.
    pub endpoints: Vec<(IpAddr, ServiceEndpoint, usize)>,
}

impl Destinations {
    /// Sets the place of this node, and its control plane. A second call changes nothing.
    pub fn begin(&self, here: NodePlace, book: Box<dyn AddressBook>) {
        let _ = self.here.set(here);
        let _ = self.book.set(book);
    }

    /// Sets the meaning of an address; `None`: neither a Service nor a pod of the mesh has it. Returns
    /// whether the node has not asked for it, so that it has to subscribe: a process before this one did.
    pub fn set(&self, address: IpAddr, destination: Option<Destination>) -> bool {
        let mut table = self.lock();
        let meaning = destination.map_or(Meaning::Other, |destination| Meaning::Known(Arc::new(destination)));
        if let Some(called) = table.called.get(&address) {
            called.meaning.send_replace(meaning);
            return false;
        }
        let Meaning::Known(_) = &meaning else { return false };
        let (meaning, now) = (watch::Sender::new(meaning), Instant::now());
        table.called.insert(address, Subscription { meaning, namespace: String::new(), asked: now, used: now });
        true
    }

    /// Sets an endpoint of a Service; no parts: it is gone.
    pub fn set_endpoint(&self, service: ServiceName, address: IpAddr, parts: Vec<ServiceEndpoint>) {
        let mut table = self.lock();
        if parts.is_empty() {
            if let Some(endpoints) = table.endpoints.get_mut(&service) {
                endpoints.remove(&address);
                if endpoints.is_empty() {
                    table.endpoints.remove(&service);
                }
            }
            return;
        }
        let endpoints = table.endpoints.entry(service).or_default();
        let endpoint = endpoints.entry(address).or_insert_with(|| Endpoint { parts: Vec::new(), open: Arc::default() });
        endpoint.parts = parts;
    }

    /// Ends the subscriptions to addresses that no pod has called for some minutes.
    pub fn end_unused(&self) {
        self.end_unused_at(Instant::now());
    }

    fn end_unused_at(&self, now: Instant) {
        let mut table = self.lock();
        table.affinities.retain(|_, (_, until)| *until > now);
        let is_unused = |called: &Subscription| now.saturating_duration_since(called.used) >= UNUSED;
        let unused: Vec<_> =
            table.called.extract_if(|_, called| is_unused(called)).map(|(address, _)| address).collect();
        drop(table);
        if let Some(book) = self.book.get().filter(|_| !unused.is_empty()) {
            book.unsubscribe(unused);
        }
    }

    /// All addresses to which the node subscribes.
    pub fn list(&self) -> Vec<CalledAddress> {
        let table = self.lock();
        let of = |(address, called): (&IpAddr, &Subscription)| {
            let destination = match &*called.meaning.borrow() {
                Meaning::Known(destination) => Some(destination.clone()),
                Meaning::Awaited | Meaning::Other => None,
            };
            let endpoints = match destination.as_deref() {
                Some(Destination::Service(service)) => table.endpoints.get(&service.name),
                _ => None,
            };
            let endpoints = endpoints.into_iter().flatten().filter(|(it, _)| it.is_ipv4() == address.is_ipv4());
            let endpoints = endpoints.flat_map(|(address, endpoint)| {
                let open = endpoint.open.load(Ordering::Relaxed);
                endpoint.parts.iter().map(move |part| (*address, part.clone(), open))
            });
            CalledAddress { address: *address, endpoints: endpoints.collect(), destination }
        };
        let mut all: Vec<_> = table.called.iter().map(of).collect();
        all.sort_by_key(|called| called.address);
        all
    }

    /// Where a call goes. `below`: a random number below another one.
    pub(crate) async fn find(&self, call: Call<'_>, below: impl FnMut(u64) -> u64) -> Way {
        match self.meaning(call.called.ip(), call.namespace).await.as_deref() {
            None => Way::Called,
            Some(Destination::Pod(pod)) => match call.tried {
                [] => Way::Endpoint(ChosenEndpoint {
                    address: call.called,
                    service: None,
                    pod: Some(pod.clone()),
                    has_others: false,
                    counted: None,
                }),
                _ => Way::Called,
            },
            Some(Destination::Service(service)) => match self.choose(service, call, below) {
                // The cluster may know better than a control plane that is away.
                Way::NoEndpoint(_) if !self.is_followed() => Way::Called,
                way => way,
            },
        }
    }

    fn is_followed(&self) -> bool {
        self.book.get().is_some_and(|book| book.is_connected())
    }

    async fn meaning(&self, address: IpAddr, namespace: &str) -> Option<Arc<Destination>> {
        let book = self.book.get()?;
        let now = Instant::now();
        let (mut meaning, until) = {
            let mut table = self.lock();
            if let Some(called) = table.called.get_mut(&address) {
                called.used = now;
                (called.meaning.subscribe(), called.asked + FIRST_ANSWER)
            } else {
                let unsubscribed = table.make_room(namespace, now)?;
                let (sender, meaning) = watch::channel(Meaning::Awaited);
                let called = Subscription { meaning: sender, namespace: namespace.to_owned(), asked: now, used: now };
                table.called.insert(address, called);
                drop(table);
                if let Some(unsubscribed) = unsubscribed {
                    book.unsubscribe(vec![unsubscribed]);
                }
                book.subscribe(address);
                (meaning, now + FIRST_ANSWER)
            }
        };
        let is_known = |meaning: &Meaning| !matches!(meaning, Meaning::Awaited);
        if !is_known(&meaning.borrow()) {
            if !book.is_connected() {
                return None;
            }
            let _ = tokio::time::timeout_at(until.into(), meaning.wait_for(is_known)).await;
        }
        match &*meaning.borrow() {
            Meaning::Known(destination) => Some(destination.clone()),
            Meaning::Awaited | Meaning::Other => None,
        }
    }

    /// How connections reach a pod of the mesh, or something else; `None`: that.
    pub fn transport(&self, pod: Option<&MeshPod>) -> Transport {
        match (pod, self.here.get()) {
            (Some(pod), Some(here)) if pod.node == here.node => Transport::Local,
            (Some(_), Some(_)) => Transport::Hbone,
            _ => Transport::Clear,
        }
    }

    /// Counts a connection that a pod of this namespace has opened.
    pub(crate) fn count(&self, namespace: &str, transport: Transport) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry((namespace.to_owned(), transport)).or_default() += 1;
    }

    /// The connections of pods, by their namespace and transport.
    pub fn calls(&self) -> BTreeMap<(String, Transport), u64> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn choose(&self, service: &Service, call: Call<'_>, below: impl FnMut(u64) -> u64) -> Way {
        let Some(port) = service.ports.iter().find(|port| port.number == call.called.port()) else {
            // Nothing is known of this port of the Service's address.
            return Way::Called;
        };
        let here = self.here.get_or_init(NodePlace::default);
        let mut table = self.lock();
        let Table { endpoints, affinities, .. } = &mut *table;
        let mut all = Vec::new();
        let endpoints = endpoints.get(&service.name);
        for (address, endpoint) in endpoints.into_iter().flatten() {
            if address.is_ipv4() != call.called.is_ipv4() {
                continue;
            }
            for part in &endpoint.parts {
                for target in part.ports.iter().filter(|target| target.name == port.name) {
                    let address = SocketAddr::new(*address, target.number);
                    if !call.tried.contains(&address) {
                        all.push((address, part, &endpoint.open));
                    }
                }
            }
        }
        let mut candidates = preferred(service, here, all, |(_, part, _)| *part);
        let now = Instant::now();
        let affinity = service.affinity.map(|time| {
            let (service, port) = (service.name.clone(), port.number);
            (Affinity { service, port, client: call.client }, now.checked_add(time).unwrap_or(now))
        });
        let kept = affinity.as_ref().and_then(|(client, _)| affinities.get(client)).filter(|(_, until)| *until > now);
        let kept = kept.and_then(|(kept, _)| candidates.iter().position(|(address, ..)| address == kept));
        let open: Vec<usize> = candidates.iter().map(|(.., open)| open.load(Ordering::Relaxed)).collect();
        let Some(index) = kept.or_else(|| less_busy(&open, below)) else {
            return Way::NoEndpoint(service.name.clone());
        };
        let has_others = candidates.len() > 1;
        let (address, part, open) = candidates.swap_remove(index);
        open.fetch_add(1, Ordering::Relaxed);
        if let Some((client, until)) = affinity
            && (affinities.len() < MAX_AFFINITIES || affinities.contains_key(&client))
        {
            affinities.insert(client, (address, until));
        }
        Way::Endpoint(ChosenEndpoint {
            address,
            service: Some(service.name.clone()),
            pod: part.pod.clone(),
            has_others,
            counted: Some(OpenToEndpoint(open.clone())),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Makes room for an address of a namespace's pod. The longest unused one that means neither a
    /// Service nor a pod of the mesh goes, and is returned. A namespace beyond its share gives up its
    /// own. `None`: there is no room.
    fn make_room(&mut self, namespace: &str, now: Instant) -> Option<Option<IpAddr>> {
        let of_namespace = self.called.values().filter(|called| called.namespace == namespace).count();
        let has_share = of_namespace < MAX_OF_NAMESPACE;
        if has_share && self.called.len() < MAX_CALLED {
            return Some(None);
        }
        let is_old = |called: &Subscription| now.saturating_duration_since(called.used) >= UNUSED_FOR_ROOM;
        let others = self.called.iter().filter(|(_, called)| {
            matches!(*called.meaning.borrow(), Meaning::Other)
                && (has_share || called.namespace == namespace && is_old(called))
        });
        let (address, _) = others.min_by_key(|(_, called)| called.used)?;
        let address = *address;
        self.called.remove(&address);
        Some(Some(address))
    }
}

impl std::fmt::Debug for Destinations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Destinations").field("called", &self.lock().called.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
