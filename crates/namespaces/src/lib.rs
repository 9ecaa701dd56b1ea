//! The bounds of each namespace on one node, and its present use of them.
//!
//! A [`Namespace`] is looked up once, when a function is loaded, and reached by pointer from then
//! on: a request or a connection costs an atomic counter, and no look-up.
#![forbid(unsafe_code)]

mod count;
mod log;
mod rate;
mod turns;

pub use count::{Count, Permit, Resource};
pub use log::{Importance, Log, Omission, Source};
pub use rate::Rate;
pub use turns::{Turn, Turns};

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// Namespaces without use are forgotten when there are more than this.
const MOST: usize = 1024;

/// Connections of a namespace that has no bound, where it is not known how many the node may have.
const CONNECTIONS: u64 = 1024;
/// A namespace may have so many connections, however few descriptors there are.
const LEAST_CONNECTIONS: u64 = 4;

/// Bytes of unpacked images of a namespace that has no bound, where the size of the node's store is not known.
const IMAGE_BYTES: u64 = 8 << 30;
/// A namespace without a bound may have so many bytes of unpacked images, however small the node's store is.
const LEAST_IMAGE_BYTES: u64 = 1 << 30;
/// Files of unpacked images of a namespace that has no bound.
const IMAGE_FILES: u64 = 500_000;

/// The bounds of one namespace on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Instances, those that start or end included.
    pub instances: u64,
    /// Connections that its instances have open to the node, and those that the node opens for it; `None`: an eighth of those that the node may have.
    pub connections: Option<u64>,
    /// Exchanges in progress to its functions, and of calls by its functions.
    pub open_requests: u64,
    /// Requests that wait for an instance of one of its functions.
    pub waiting_requests: u64,
    /// Bytes of images a second.
    pub pull_bytes_per_second: u64,
    /// Bytes of unpacked images; `None`: a quarter of the node's store, at least 1 GiB.
    pub image_bytes: Option<u64>,
    /// Files of unpacked images; `None`: 500,000, and at most a quarter of those that the store's file system has.
    pub image_files: Option<u64>,
    /// Bytes a second that its functions write to the node's log and access log, or cause there.
    pub log_bytes_per_second: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            instances: 500,
            connections: None,
            open_requests: 4096,
            waiting_requests: 1024,
            pull_bytes_per_second: u64::MAX,
            image_bytes: None,
            image_files: None,
            log_bytes_per_second: 1 << 20,
        }
    }
}

/// One namespace on this node.
#[derive(Debug)]
pub struct Namespace {
    name: Arc<str>,
    counts: [Count; Resource::ALL.len()],
    /// The log output that its functions write or cause.
    pub log: Log,
    /// The output of its instances, as the node reads it. Faster writers wait.
    pub output: Rate,
    /// Bytes of images.
    pub pulls: Rate,
}

impl Namespace {
    fn new(name: &str, bounds: &Bounds) -> Arc<Self> {
        let namespace = Self {
            name: name.into(),
            counts: Default::default(),
            log: Log::default(),
            output: Rate::default(),
            pulls: Rate::default(),
        };
        namespace.set(bounds);
        Arc::new(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Puts bounds into force. Use beyond them stays until it ends.
    pub fn set(&self, bounds: &Bounds) {
        let Bounds {
            instances,
            connections,
            open_requests,
            waiting_requests,
            pull_bytes_per_second,
            image_bytes,
            image_files,
            log_bytes_per_second,
        } = *bounds;
        self.count(Resource::Instances).set_bound(instances);
        self.count(Resource::Connections).set_bound(connections.unwrap_or(CONNECTIONS));
        self.count(Resource::OpenRequests).set_bound(open_requests);
        self.count(Resource::WaitingRequests).set_bound(waiting_requests);
        self.count(Resource::ImageBytes).set_bound(image_bytes.unwrap_or(IMAGE_BYTES));
        self.count(Resource::ImageFiles).set_bound(image_files.unwrap_or(IMAGE_FILES));
        self.pulls.set(pull_bytes_per_second, pull_bytes_per_second);
        self.log.set(log_bytes_per_second);
        let output = log_bytes_per_second.saturating_mul(OUTPUT_FACTOR).max(LEAST_OUTPUT);
        self.output.set(output, output);
    }

    /// The use of a resource, and its bound.
    pub fn count(&self, resource: Resource) -> &Count {
        &self.counts[resource as usize]
    }

    /// Takes one unit of a resource until the permit is dropped. `None`: the bound is reached, and
    /// the refusal is counted.
    pub fn take(self: &Arc<Self>, resource: Resource) -> Option<Permit> {
        self.count(resource).take().then(|| Permit::new(self.clone(), resource))
    }

    /// Takes one unit of a resource, even beyond the bound, in place of a unit that is about to be
    /// returned.
    pub fn take_anyway(self: &Arc<Self>, resource: Resource) -> Permit {
        self.count(resource).take_anyway();
        Permit::new(self.clone(), resource)
    }

    /// Why more of a resource is refused.
    pub fn refusal(&self, resource: Resource) -> String {
        let (name, bound) = (&self.name, self.count(resource).bound());
        format!("namespace {name} has all that its bound `{}` allows on this node: {bound}", resource.name())
    }

    /// The present use.
    pub fn usage(&self, now: Instant) -> Usage {
        let count = |resource| {
            let count = self.count(resource);
            ResourceUse { used: count.used(), bound: count.bound(), refused: count.refused() }
        };
        let rate = |rate: &Rate, refused| ResourceUse { used: rate.recent(now), bound: rate.per_second(), refused };
        Usage {
            namespace: self.name.clone(),
            instances: count(Resource::Instances),
            connections: count(Resource::Connections),
            open_requests: count(Resource::OpenRequests),
            waiting_requests: count(Resource::WaitingRequests),
            image_bytes: count(Resource::ImageBytes),
            image_files: count(Resource::ImageFiles),
            pull_bytes_per_second: rate(&self.pulls, 0),
            log_bytes_per_second: rate(self.log.rate(), self.log.totals().iter().map(|(_, _, bytes)| bytes).sum()),
        }
    }
}

/// Output is read so much faster than it is logged, for the lines that `leno logs` shows.
const OUTPUT_FACTOR: u64 = 8;
/// Output is read at least so fast, in bytes a second.
const LEAST_OUTPUT: u64 = 1 << 20;

/// The use of one resource beside its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUse {
    /// In use now; of a rate, in the latest second.
    pub used: u64,
    /// The bound.
    pub bound: u64,
    /// Refused because of the bound, so far; bytes that were left out of the logs.
    pub refused: u64,
}

/// The use that a namespace makes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its name.
    pub namespace: Arc<str>,
    /// See [`Bounds::instances`].
    pub instances: ResourceUse,
    /// See [`Bounds::connections`].
    pub connections: ResourceUse,
    /// See [`Bounds::open_requests`].
    pub open_requests: ResourceUse,
    /// See [`Bounds::waiting_requests`].
    pub waiting_requests: ResourceUse,
    /// See [`Bounds::image_bytes`].
    pub image_bytes: ResourceUse,
    /// See [`Bounds::image_files`].
    pub image_files: ResourceUse,
    /// See [`Bounds::pull_bytes_per_second`].
    pub pull_bytes_per_second: ResourceUse,
    /// See [`Bounds::log_bytes_per_second`].
    pub log_bytes_per_second: ResourceUse,
}

/// All namespaces of a node.
#[derive(Debug, Default)]
pub struct Namespaces {
    all: RwLock<BTreeMap<Arc<str>, Arc<Namespace>>>,
    /// How many connections the node may have; 0: that is not known.
    connections: AtomicU64,
    /// How many bytes and files the node's image store may have; 0: that is not known.
    images: [AtomicU64; 2],
}

impl Namespaces {
    /// The name under which the node counts usage that belongs to no namespace.
    pub const NONE: &str = "-";

    /// The namespace of this name. A namespace without settings has the default bounds.
    pub fn of(&self, name: &str) -> Arc<Namespace> {
        if let Some(known) = self.all.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return known.clone();
        }
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, namespace| Arc::strong_count(namespace) > 1);
        }
        all.entry(name.into()).or_insert_with(|| Namespace::new(name, &self.within(Bounds::default()))).clone()
    }

    /// Puts the bounds of a namespace into force.
    pub fn set(&self, name: &str, bounds: Bounds) -> Arc<Namespace> {
        let namespace = self.of(name);
        namespace.set(&self.within(bounds));
        namespace
    }

    /// Sets how many connections the node may have, outgoing ones included. A namespace without a
    /// bound of connections gets an eighth, and none gets more than half.
    pub fn limit_connections(&self, all: u64) {
        self.connections.store(all, Relaxed);
    }

    /// Sets how many bytes and files the node's image store may have. A namespace without bounds of
    /// images gets a quarter.
    pub fn limit_images(&self, bytes: u64, files: u64) {
        self.images[0].store(bytes, Relaxed);
        self.images[1].store(files, Relaxed);
    }

    fn within(&self, bounds: Bounds) -> Bounds {
        let [bytes, files] = [&self.images[0], &self.images[1]].map(|all| all.load(Relaxed));
        let image_bytes = bounds.image_bytes.or((bytes > 0).then_some((bytes / 4).max(LEAST_IMAGE_BYTES)));
        let image_files = bounds.image_files.or((files > 0).then_some(IMAGE_FILES.min(files / 4)));
        let all = self.connections.load(Relaxed);
        let eighth = (all / 8).max(LEAST_CONNECTIONS);
        let connections = match all {
            0 => bounds.connections,
            _ => Some(bounds.connections.map_or(eighth, |bound| bound.min(all / 2))),
        };
        Bounds { connections, image_bytes, image_files, ..bounds }
    }

    /// All that are known, by name.
    pub fn all(&self) -> Vec<Arc<Namespace>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The present usage of each namespace.
    pub fn usage(&self) -> Vec<Usage> {
        let now = Instant::now();
        self.all().iter().map(|namespace| namespace.usage(now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_for_its_namespace_only_and_what_is_refused_is_counted() {
        let namespaces = Namespaces::default();
        let (demo, shop) = (namespaces.of("demo"), namespaces.of("shop"));
        demo.set(&Bounds { connections: Some(2), ..Bounds::default() });
        let held: Vec<_> = (0..5).map(|_| demo.take(Resource::Connections)).collect();
        assert_eq!(held.iter().flatten().count(), 2);
        assert!(shop.take(Resource::Connections).is_some());
        assert!(demo.take(Resource::OpenRequests).is_some(), "another resource is another matter");
        let usage = &namespaces.usage()[0];
        assert_eq!((&*usage.namespace, usage.connections), ("demo", ResourceUse { used: 2, bound: 2, refused: 3 }));
        drop(held);
        assert!(namespaces.of("demo").take(Resource::Connections).is_some());
    }

    #[test]
    fn a_smaller_bound_refuses_until_enough_has_ended() {
        let demo = Namespaces::default().of("demo");
        let mut held: Vec<_> = (0..3).filter_map(|_| demo.take(Resource::OpenRequests)).collect();
        demo.set(&Bounds { open_requests: 1, ..Bounds::default() });
        assert!(demo.take(Resource::OpenRequests).is_none());
        held.clear();
        assert!(demo.take(Resource::OpenRequests).is_some());
    }

    #[test]
    fn what_a_node_may_have_bounds_what_a_namespace_may() {
        let namespaces = Namespaces::default();
        namespaces.limit_connections(960);
        let bound = |connections| {
            let bounds = Bounds { connections, ..Bounds::default() };
            namespaces.set("demo", bounds).count(Resource::Connections).bound()
        };
        assert_eq!([None, Some(300), Some(5000), Some(1)].map(bound), [120, 300, 480, 1]);
        assert_eq!(namespaces.of("other").count(Resource::Connections).bound(), 120);
    }
}
