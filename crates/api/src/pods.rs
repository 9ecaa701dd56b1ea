//! The pods of a node, in `/pods` and `/metrics`.

use leno_model::PodMode;
use leno_node::{PodState, PodStatus, Pods};
use leno_telemetry::exposition::{Collector, Exposition};
use leno_telemetry::families;
use std::collections::BTreeMap;

/// Counts of pods.
pub(crate) struct Scrape {
    pods: Vec<PodStatus>,
    is_list_current: bool,
}

impl Scrape {
    pub(crate) fn of(pods: &Pods) -> Self {
        Self { pods: pods.status(), is_list_current: pods.is_list_current() }
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        let mut counts: BTreeMap<(&str, PodMode, PodState), usize> = BTreeMap::new();
        for pod in &self.pods {
            *counts.entry((&pod.function.namespace, pod.mode, pod.state)).or_default() += 1;
        }
        let counts = counts.iter().map(|((namespace, mode, state), count)| {
            ([(*namespace).to_owned(), mode.to_string(), state.name().to_owned()], *count)
        });
        exposition.family(&families::PODS).samples(counts);
        let dropped = self.pods.iter().flat_map(|pod| {
            let of_reason = |(reason, count): &(&str, u64)| {
                ([pod.pod.clone(), pod.function.to_string(), (*reason).to_owned()], *count)
            };
            pod.dropped.iter().map(of_reason)
        });
        exposition.family(&families::PODS_DROPPED).samples(dropped);
        exposition.family(&families::ENFORCED_LIST).samples([([""; 0], u64::from(self.is_list_current))]);
    }
}
