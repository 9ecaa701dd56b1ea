//! Bounds of namespaces, and what their documents need of them.

use crate::bounds::NamespaceBounds;
use crate::run::{Isolation, Run};
use crate::slice::{Engine, Slice};
use crate::special::{single, unlisted_metadata};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

impl Slice {
    /// The slice as it is delivered: without restrictions that its function cannot run into. Nodes of the release before do not know these, and would refuse it.
    pub fn for_delivery(&self) -> Cow<'_, Self> {
        let (no_files, no_fetches) = (!names_files(self), !fetches(self));
        let is_isolated = self.weaker_isolation().is_none();
        let no_metadata = self.unlisted_metadata().is_none();
        let NamespaceBounds { files, egress, metadata, isolation, .. } = &self.bounds;
        if (no_files && files.is_some())
            || (no_fetches && egress.is_some())
            || (no_metadata && metadata.is_some())
            || (is_isolated && isolation.is_some())
        {
            let mut slice = self.clone();
            slice.bounds.isolation.take_if(|_| is_isolated);
            slice.bounds.files.take_if(|_| no_files);
            slice.bounds.egress.take_if(|_| no_fetches);
            slice.bounds.metadata.take_if(|_| no_metadata);
            return Cow::Owned(slice);
        }
        Cow::Borrowed(self)
    }

    /// The isolation of a revision that is weaker than its namespace may have, and the least that it may have.
    pub fn weaker_isolation(&self) -> Option<(Isolation, Isolation)> {
        let least = self.bounds.isolation?;
        let isolations = self.all_revisions().filter_map(|revision| match revision.template.run {
            Run::Command(command) => Some(command.isolation),
            Run::Job(job) => Some(job.process.isolation),
            Run::External(_) | Run::Wasm(_) | Run::Egress(_) => None,
        });
        isolations.into_iter().find(|isolation| isolation.is_weaker_than(least)).map(|isolation| (isolation, least))
    }

    /// The first address of metadata services that a revision names and that its namespace may not name.
    pub fn unlisted_metadata(&self) -> Option<IpAddr> {
        let listed = self.bounds.metadata.as_deref()?;
        let named = self.all_revisions().flat_map(|revision| match revision.template.run {
            Run::External(addresses) => {
                addresses.into_iter().map(|address| single(address.ip().to_canonical())).collect()
            }
            Run::Egress(egress) => [egress.addresses, egress.resolves_to].concat(),
            Run::Command(_) | Run::Wasm(_) | Run::Job(_) => Vec::new(),
        });
        let mut unlisted = named.filter(|block| unlisted_metadata(listed, *block).is_some());
        unlisted.next().map(|block| block.address)
    }
}

/// Whether the node opens files for the function that its documents name.
fn names_files(slice: &Slice) -> bool {
    let run = |run: &Run| match run {
        Run::Command(command) => {
            let files = !command.secrets.is_empty() || !command.read_only_paths.is_empty();
            files || command.container.is_some() || command.directory.parent().is_some()
        }
        Run::Job(job) => {
            let files = !job.process.secrets.is_empty() || !job.process.read_only_paths.is_empty();
            files || job.process.container.is_some() || job.process.directory.parent().is_some()
        }
        Run::Wasm(wasm) => !wasm.secrets.is_empty(),
        Run::Egress(egress) => {
            let tls = egress.tls.ca_file.is_some() || egress.tls.certificate.is_some();
            tls || !egress.credentials.is_empty()
        }
        Run::External(_) => false,
    };
    slice.all_revisions().any(|revision| run(&revision.template.run))
        || slice.jwks.iter().any(|fetch| fetch.ca_file.is_some())
        || slice.modules().any(|(_, url)| url.is_some_and(|url| url.ca_file.is_some()))
}

/// Whether nodes fetch something for the function from where its documents say.
fn fetches(slice: &Slice) -> bool {
    !slice.jwks.is_empty()
        || slice.modules().any(|(_, url)| url.is_some())
        || slice.all_revisions().any(|revision| revision.template.run.container().is_some())
}

/// All bounds of a namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceQuota {
    /// Functions, jobs and External documents.
    pub functions: u32,
    /// Bytes of its documents at a control plane.
    pub document_bytes: u64,
    /// Rules of policies, each once for every function that it applies to.
    pub rules: u64,
    /// Its hosts at gateways, and no others; `None`: any that no other namespace has.
    pub hosts: Option<Vec<String>>,
    /// Engines of its functions; `None`: any.
    pub engines: Option<Vec<Engine>>,
    /// The bounds that nodes enforce. `instances` also bounds what documents ask for.
    pub bounds: NamespaceBounds,
}

impl Default for NamespaceQuota {
    fn default() -> Self {
        Self {
            functions: 1000,
            document_bytes: 4 << 20,
            rules: 100_000,
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
    /// The bounds that are exceeded, and by more than before: a quota that is lowered refuses what is added, not what is there.
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
            ("documentBytes", self.document_bytes, before.document_bytes, quota.document_bytes),
        ];
        let over = counted.into_iter().filter(|(_, used, before, bound)| used > bound && used > before);
        over.map(|(field, used, _, bound)| Overrun { field, used, bound }).collect()
    }

    /// Adds what one function or job needs.
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
