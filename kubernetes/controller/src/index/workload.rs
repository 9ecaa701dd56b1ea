//! Workloads: functions whose instances are pods.

use crate::index::function;
use crate::index::pod::Template;
use leno_model::{PodMode, PodPort};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A function of a cluster, as its pods describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The service account of its oldest pod. Pods that are only labelled as this function count after
    /// those of the workload itself.
    pub service_account: String,
    /// Other service accounts of its pods, as during a rollout that changes the account. Rules that
    /// name the function do not mean them.
    pub other_accounts: Vec<String>,
    /// The strictest mode of its pods.
    pub mode: PodMode,
    /// The TCP ports of all its pods.
    pub ports: Vec<PodPort>,
    /// The labels that all its pods share.
    pub labels: BTreeMap<String, String>,
}

/// The pods of a function, counted by their shared part.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// By template, and whether the mode is `enforced`: how many were made at a time.
    counts: HashMap<(Arc<Template>, bool), BTreeMap<u64, usize>>,
    published: Option<Workload>,
}

impl Members {
    pub(crate) fn add(&mut self, template: &Arc<Template>, mode: PodMode, created: u64) {
        let times = self.counts.entry((template.clone(), mode == PodMode::Enforced)).or_default();
        *times.entry(created).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, template: &Arc<Template>, mode: PodMode, created: u64) {
        let key = (template.clone(), mode == PodMode::Enforced);
        let Some(times) = self.counts.get_mut(&key) else { return };
        if let Some(count) = times.get_mut(&created) {
            *count -= 1;
            if *count == 0 {
                times.remove(&created);
            }
        }
        if times.is_empty() {
            self.counts.remove(&key);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The workload, if it differs from the last that this function has returned.
    pub(crate) fn changed(&mut self) -> Option<Option<Workload>> {
        let workload = self.workload();
        if workload == self.published {
            return None;
        }
        self.published.clone_from(&workload);
        Some(workload)
    }

    fn workload(&self) -> Option<Workload> {
        // A label must not give a function the account of another workload.
        let mut accounts: BTreeMap<&str, (bool, u64)> = BTreeMap::new();
        let mut ports = BTreeSet::new();
        for ((template, _), times) in &self.counts {
            let Some((first, _)) = times.first_key_value() else { continue };
            let age = (function::is_labelled(&template.labels), *first);
            let oldest = accounts.entry(&template.account).or_insert(age);
            *oldest = age.min(*oldest);
            ports.extend(template.ports.iter().map(|port| (port.number, port.name.clone())));
        }
        let (account, _) = accounts.iter().min_by_key(|(_, age)| **age)?;
        let mut ports: Vec<PodPort> = ports.into_iter().map(|(number, name)| PodPort { name, number }).collect();
        // Pods may name a port differently: the first name counts, and none if a pod has none.
        ports.dedup_by_key(|port| port.number);
        let mut templates = self.counts.keys().map(|(template, _)| template);
        let mut labels = templates.next()?.labels.clone();
        for template in templates {
            labels.retain(|name, value| template.labels.get(name) == Some(value));
        }
        let enforced = self.counts.keys().any(|(_, enforced)| *enforced);
        Some(Workload {
            service_account: (*account).to_owned(),
            other_accounts: accounts
                .keys()
                .filter(|other| *other != account)
                .map(|other| (*other).to_owned())
                .collect(),
            mode: if enforced { PodMode::Enforced } else { PodMode::Permissive },
            ports,
            labels,
        })
    }
}
