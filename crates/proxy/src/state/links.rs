//! The shared-memory links of instances, and the chains that they belong to.

use crate::state::shards::Shards;
use arc_swap::ArcSwap;
pub use leno_shm::large_pages;
use leno_shm::{Domain, Link, Statistics, Violation};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt;
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
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        type Count = fn(&Statistics) -> u64;
        let families: [(&str, &str, Count); 5] = [
            ("leno_chain_handed_over", "Bodies that an instance was shown where they are.", Statistics::handed_over),
            (
                "leno_chain_shared_bytes",
                "Bytes of bodies that instances were shown where they are.",
                Statistics::bytes_shared,
            ),
            (
                "leno_chain_copied_in_bytes",
                "Bytes of bodies that were copied into a chain's memory.",
                Statistics::bytes_copied_in,
            ),
            (
                "leno_chain_copied_out_bytes",
                "Bytes of bodies that were copied out of a chain's memory.",
                Statistics::bytes_copied_out,
            ),
            (
                "leno_chain_heads",
                "Heads that were copied from an instance of a chain, or for one.",
                Statistics::heads_copied,
            ),
        ];
        for (name, help, count) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for chain in &self.0 {
                let labels = [("chain", chain.name())];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&count(chain.statistics()), None)?;
            }
        }
        let help = "What instances of a chain said on their links and must not say.";
        let mut family = encoder.encode_descriptor("leno_chain_violations", help, None, MetricType::Counter)?;
        for chain in &self.0 {
            for violation in Violation::ALL {
                let labels = [("chain", chain.name()), ("kind", violation.name())];
                let count = chain.statistics().violations().get(violation);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }
}
