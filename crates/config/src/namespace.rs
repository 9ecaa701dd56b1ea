//! Bounds of namespaces, and the use that their documents make of them.

use crate::document_id::DocumentId;
use crate::problem::Problem;
use leno_model::Engine;
use leno_model::NamespaceBounds;
use leno_model::Run;
use std::collections::BTreeMap;
use std::fmt;

/// Most documents that a report of one exceeded bound names.
const MOST_NAMED: usize = 3;

/// All bounds of a namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceQuota {
    /// Functions, jobs and External documents.
    pub functions: u32,
    /// Bytes of its documents at a control plane.
    pub document_bytes: u64,
    /// Rules of policies, each once for every function that it applies to.
    pub rules: u64,
    /// Values of stored secrets.
    pub secrets: u32,
    /// Bytes of all values of stored secrets.
    pub secret_bytes: u64,
    /// Documents of the Gateway API.
    pub routes: u32,
    /// Matches of the rules of routes, each once for every hostname and parent.
    pub route_matches: u64,
    /// Its only hosts at gateways; `None`: any that no other namespace has.
    pub hosts: Option<Vec<String>>,
    /// Engines of its functions; `None`: any.
    pub engines: Option<Vec<Engine>>,
    /// The bounds that nodes enforce. `instances` also bounds the instances that documents request.
    pub bounds: NamespaceBounds,
}

impl Default for NamespaceQuota {
    fn default() -> Self {
        Self {
            functions: 1000,
            document_bytes: 4 << 20,
            rules: 100_000,
            secrets: 200,
            secret_bytes: 1 << 20,
            routes: 2000,
            route_matches: 20_000,
            hosts: None,
            engines: None,
            bounds: NamespaceBounds::default(),
        }
    }
}

/// The quotas of all namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Namespaces {
    pub defaults: NamespaceQuota,
    pub given: BTreeMap<String, NamespaceQuota>,
}

impl Namespaces {
    pub(crate) fn of(&self, namespace: &str) -> &NamespaceQuota {
        self.given.get(namespace).unwrap_or(&self.defaults)
    }
}

/// The use that the documents of a namespace make of its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUse {
    /// Functions, jobs and External documents.
    pub functions: u64,
    /// Instances that run without any request: `scale.min` of functions, `parallelism` of jobs.
    pub instances: u64,
    /// Thousandths of a core of its largest instance.
    pub cpu_millis: u64,
    /// Bytes of memory of its largest instance.
    pub memory: u64,
    /// Processes of its largest instance.
    pub pids: u64,
    /// Rules of policies, each once for every function that it applies to.
    pub rules: u64,
    /// Values of its stored secrets.
    pub secrets: u64,
    /// Bytes of these values.
    pub secret_bytes: u64,
    /// Documents of the Gateway API.
    pub routes: u64,
    /// Matches of the rules of routes, each once for every hostname and parent.
    pub route_matches: u64,
    /// Bytes of its documents. A snapshot of files does not count them.
    pub document_bytes: u64,
}

/// The share of some documents in the use of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseShare {
    /// The documents that cause it together: one, or a function and a policy that applies to it.
    pub documents: Vec<DocumentId>,
    /// The share.
    pub used: NamespaceUse,
}

/// A bound of a namespace that its documents exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The field of the quota.
    pub field: &'static str,
    /// The use.
    pub used: u64,
    /// The bound.
    pub bound: u64,
    /// The use that is permitted nevertheless, because it was so before; else the bound.
    permitted: u64,
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, used, bound, .. } = self;
        write!(f, "its documents need {used} of `{field}`, and its quota is {bound}")
    }
}

impl Overrun {
    /// A problem for each of the first documents beyond the bound: the document with which the use
    /// exceeds it, and those after it. `order`: the place of a document among all; `None`: it is not
    /// one of them. `place`: a problem there without text.
    pub fn problems<K: Ord>(
        &self,
        namespace: &str,
        shares: impl IntoIterator<Item = UseShare>,
        order: impl Fn(&DocumentId) -> Option<K>,
        place: impl Fn(K) -> Problem,
    ) -> Vec<Problem> {
        let beyond = self.beyond(shares, order);
        let all = match beyond.len() {
            0 | 1 => String::new(),
            count => format!(" ({count} documents exceed it)"),
        };
        let message = format!("the namespace `{namespace}`: {self}{all}");
        let fix = format!("remove some, or have `{}` of its NamespaceQuota document raised", self.field);
        let problem = |key| Problem { message: message.clone(), fix: fix.clone(), ..place(key) };
        beyond.into_iter().take(MOST_NAMED).map(problem).collect()
    }

    fn beyond<K: Ord>(
        &self,
        shares: impl IntoIterator<Item = UseShare>,
        order: impl Fn(&DocumentId) -> Option<K>,
    ) -> Vec<K> {
        let largest = NamespaceUse::LARGEST.contains(&self.field);
        let mut amounts: BTreeMap<K, u64> = BTreeMap::new();
        for UseShare { documents, used } in shares {
            // Of a function and its policy, the one that came later exceeds the bound.
            let last = documents.iter().filter_map(&order).max();
            let amount = used.amounts().into_iter().find(|(field, _)| *field == self.field).map_or(0, |(_, it)| it);
            if let Some(last) = last.filter(|_| amount > 0) {
                let sum = amounts.entry(last).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
        let mut sum = 0_u64;
        let is_beyond = |(key, amount)| {
            sum = if largest { amount } else { sum.saturating_add(amount) };
            (sum > self.permitted).then_some(key)
        };
        amounts.into_iter().filter_map(is_beyond).collect()
    }
}

impl NamespaceUse {
    /// The bounds of which each instance needs its own, and not all documents together.
    const LARGEST: [&str; 3] = ["cpu", "memory", "pids"];

    /// The exceeded bounds of which more is used than before: a lowered quota refuses additions,
    /// not existing documents.
    pub fn overruns(&self, quota: &NamespaceQuota, before: &Self) -> Vec<Overrun> {
        let bound = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
        let NamespaceQuota { bounds, .. } = quota;
        let bounds = [
            quota.functions.into(),
            bounds.instances().into(),
            bound(bounds.cpu_millis.map(Into::into)),
            bound(bounds.memory),
            bounds.pids().into(),
            quota.rules,
            quota.secrets.into(),
            quota.secret_bytes,
            quota.document_bytes,
            quota.routes.into(),
            quota.route_matches,
        ];
        let overrun = |(((field, used), (_, before)), bound): (((_, u64), (_, u64)), u64)| Overrun {
            field,
            used,
            bound,
            permitted: bound.max(before),
        };
        let all = self.amounts().into_iter().zip(before.amounts()).zip(bounds).map(overrun);
        all.filter(|overrun| overrun.used > overrun.permitted).collect()
    }

    /// The use of each field of a quota.
    fn amounts(&self) -> [(&'static str, u64); 11] {
        [
            ("functions", self.functions),
            ("instances", self.instances),
            ("cpu", self.cpu_millis),
            ("memory", self.memory),
            ("pids", self.pids),
            ("rules", self.rules),
            ("secrets", self.secrets),
            ("secretBytes", self.secret_bytes),
            ("documentBytes", self.document_bytes),
            ("routes", self.routes),
            ("routeMatches", self.route_matches),
        ]
    }

    /// The use of one function or job, or of one declared revision of a function, without rules.
    pub(crate) fn of_run(run: &Run, min: u32) -> Self {
        let alone = Self { functions: 1, ..Self::default() };
        let (resources, instances) = match run {
            Run::Command(command) => (command.resources, min),
            Run::Job(job) => (job.process.resources, job.parallelism),
            Run::External(_) | Run::Wasm(_) | Run::Egress(_) | Run::Pods(_) => return alone,
        };
        let (cpu_millis, memory, pids) = (resources.cpu_millis.into(), resources.memory, resources.pids.into());
        Self { instances: instances.into(), cpu_millis, memory, pids, ..alone }
    }

    /// Adds the use of further documents.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            functions,
            instances,
            cpu_millis,
            memory,
            pids,
            rules,
            secrets,
            secret_bytes,
            routes,
            route_matches,
            document_bytes,
        } = other;
        for (largest, other) in [(&mut self.cpu_millis, cpu_millis), (&mut self.memory, memory), (&mut self.pids, pids)]
        {
            *largest = (*largest).max(*other);
        }
        for (sum, other) in [
            (&mut self.functions, functions),
            (&mut self.instances, instances),
            (&mut self.rules, rules),
            (&mut self.secrets, secrets),
            (&mut self.secret_bytes, secret_bytes),
            (&mut self.routes, routes),
            (&mut self.route_matches, route_matches),
            (&mut self.document_bytes, document_bytes),
        ] {
            *sum = sum.saturating_add(*other);
        }
    }
}

#[cfg(test)]
mod tests;
