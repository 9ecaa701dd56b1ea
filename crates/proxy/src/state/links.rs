//! The shared-memory links of instances, and the chains that they belong to.

use crate::state::shards::Shards;
use arc_swap::ArcSwap;
pub use leno_shm::large_pages;
use leno_shm::{Domain, Link, Statistics, Violation};
use leno_telemetry::exposition::{Collector, Exposition, Family};
use leno_telemetry::families;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open links, and all chains that have, or had, instances here.
#[derive(Debug, Default)]
pub struct Links {
    /// By the instance's name, as in [`crate::state::instances::Lease::instance`].
    open: ArcSwap<Shards<Arc<str>, Link>>,
    /// Serialises changes of `open`.
    changing: Mutex<()>,
    /// By name. They are few: each is a Chain document.
    chains: Mutex<BTreeMap<String, Domain>>,
}

impl Links {
    /// The chain of this name, `namespace/name`. Instances of one chain may read each other's
    /// memory.
    pub fn chain(&self, name: &str) -> Domain {
        self.chains().entry(name.to_owned()).or_insert_with(|| Domain::new(name)).clone()
    }

    /// Registers the link of an instance. From now on, requests reach the instance by this link.
    pub fn insert(&self, instance: &str, link: Link) {
        self.change(|open| drop(open.insert(instance.into(), link)));
    }

    /// Removes a link that has ended.
    pub fn remove(&self, instance: &str) {
        self.change(|open| drop(open.remove(instance)));
    }

    /// The link of an instance. `None`: it has ended, or the instance has none.
    pub(crate) fn get(&self, instance: &str) -> Option<Link> {
        self.open.load().get(instance).cloned()
    }

    /// The counters of each chain, for metrics.
    pub fn scrape(&self) -> Scrape {
        Scrape(self.chains().values().cloned().collect())
    }

    fn change(&self, change: impl FnOnce(&mut Shards<Arc<str>, Link>)) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = Shards::clone(&self.open.load());
        change(&mut open);
        self.open.store(Arc::new(open));
    }

    fn chains(&self) -> MutexGuard<'_, BTreeMap<String, Domain>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of all chains.
#[derive(Debug)]
pub struct Scrape(Vec<Domain>);

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        type Count = fn(&Statistics) -> u64;
        let counters: [(&'static Family<1>, Count); 5] = [
            (&families::CHAIN_HANDED_OVER, Statistics::handed_over),
            (&families::CHAIN_SHARED_BYTES, Statistics::bytes_shared),
            (&families::CHAIN_COPIED_IN, Statistics::bytes_copied_in),
            (&families::CHAIN_COPIED_OUT, Statistics::bytes_copied_out),
            (&families::CHAIN_HEADS, Statistics::heads_copied),
        ];
        for (family, count) in counters {
            let samples = self.0.iter().map(|chain| ([chain.name()], count(chain.statistics())));
            exposition.family(family).samples(samples);
        }
        exposition.family(&families::CHAIN_VIOLATIONS).samples(self.0.iter().flat_map(|chain| {
            let violations = chain.statistics().violations();
            Violation::ALL.map(|kind| ([chain.name(), kind.name()], violations.get(kind)))
        }));
    }
}
