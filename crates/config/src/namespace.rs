//! Bounds of namespaces, and the use that their documents make of them.

use leno_model::Engine;
use leno_model::NamespaceBounds;
use leno_model::Run;
use std::collections::BTreeMap;
use std::fmt;

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
    /// Bytes of its documents. A snapshot of files does not count them.
    pub document_bytes: u64,
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
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, used, bound } = self;
        write!(f, "its documents need {used} of `{field}`, and its quota is {bound}")
    }
}

impl NamespaceUse {
    /// The exceeded bounds of which more is used than before: a lowered quota refuses additions,
    /// not existing documents.
    pub fn overruns(&self, quota: &NamespaceQuota, before: &Self) -> Vec<Overrun> {
        let bound = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
        let NamespaceQuota { bounds, .. } = quota;
        let counted = [
            ("functions", self.functions, before.functions, quota.functions.into()),
            ("instances", self.instances, before.instances, bounds.instances().into()),
            ("cpu", self.cpu_millis, before.cpu_millis, bound(bounds.cpu_millis.map(Into::into))),
            ("memory", self.memory, before.memory, bound(bounds.memory)),
            ("pids", self.pids, before.pids, bounds.pids().into()),
            ("rules", self.rules, before.rules, quota.rules),
            ("secrets", self.secrets, before.secrets, quota.secrets.into()),
            ("secretBytes", self.secret_bytes, before.secret_bytes, quota.secret_bytes),
            ("documentBytes", self.document_bytes, before.document_bytes, quota.document_bytes),
        ];
        let over = counted.into_iter().filter(|(_, used, before, bound)| used > bound && used > before);
        over.map(|(field, used, _, bound)| Overrun { field, used, bound }).collect()
    }

    /// Adds the use of one function or job, or of one declared revision of a function.
    pub(crate) fn add(&mut self, run: &Run, min: u32, rules: u64) {
        self.functions += 1;
        self.rules = self.rules.saturating_add(rules);
        let (resources, instances) = match run {
            Run::Command(command) => (command.resources, min),
            Run::Job(job) => (job.process.resources, job.parallelism),
            Run::External(_) | Run::Wasm(_) | Run::Egress(_) => return,
        };
        self.instances += u64::from(instances);
        self.cpu_millis = self.cpu_millis.max(resources.cpu_millis.into());
        self.memory = self.memory.max(resources.memory);
        self.pids = self.pids.max(resources.pids.into());
    }
}

#[cfg(test)]
mod tests;
