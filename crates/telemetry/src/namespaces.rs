//! The resource use of namespaces, as metrics.

use super::exposition::{Collector, Exposition};
use super::families;
use leno_namespaces::{Namespaces, ResourceUse, Source, Usage};
use std::sync::Arc;

/// The use at one moment.
#[derive(Debug)]
pub(super) struct Scrape {
    usage: Vec<Usage>,
    omitted: Vec<OmittedLines>,
}

/// Lines of a namespace omitted from a log.
#[derive(Debug)]
struct OmittedLines {
    namespace: Arc<str>,
    source: Source,
    lines: u64,
    bytes: u64,
}

impl Scrape {
    pub(super) fn of(namespaces: &Namespaces) -> Self {
        let of_one = |namespace: &Arc<leno_namespaces::Namespace>| {
            let name = namespace.name().clone();
            let omitted = |(source, lines, bytes)| OmittedLines { namespace: name.clone(), source, lines, bytes };
            namespace.log.totals().map(omitted)
        };
        let omitted = namespaces.all().iter().flat_map(of_one).filter(|omitted| omitted.lines > 0).collect();
        Self { usage: namespaces.usage(), omitted }
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        let used = || {
            let of =
                |usage: &'_ Usage| resources(usage).map(|(resource, used)| (usage.namespace.clone(), resource, used));
            self.usage.iter().flat_map(of)
        };
        let labels = |namespace: Arc<str>, resource: &'static str| [namespace, resource.into()];
        exposition
            .family(&families::NAMESPACE_USED)
            .samples(used().map(|(namespace, resource, of)| (labels(namespace, resource), of.used)));
        exposition
            .family(&families::NAMESPACE_BOUND)
            .samples(used().map(|(namespace, resource, of)| (labels(namespace, resource), of.bound)));
        let refused = used().filter(|(_, _, of)| of.refused > 0);
        exposition
            .family(&families::NAMESPACE_REFUSED)
            .samples(refused.map(|(namespace, resource, of)| (labels(namespace, resource), of.refused)));
        let omitted = |value: fn(&OmittedLines) -> u64| {
            self.omitted.iter().map(move |omitted| ([&*omitted.namespace, omitted.source.name()], value(omitted)))
        };
        exposition.family(&families::LOG_LINES_DROPPED).samples(omitted(|omitted| omitted.lines));
        exposition.family(&families::LOG_BYTES_DROPPED).samples(omitted(|omitted| omitted.bytes));
    }
}

/// The counted resources, by the names of the fields that bound them.
fn resources(usage: &Usage) -> [(&'static str, ResourceUse); 7] {
    [
        ("instances", usage.instances),
        ("connections", usage.connections),
        ("open_requests", usage.open_requests),
        ("waiting_requests", usage.waiting_requests),
        ("image_bytes", usage.image_bytes),
        ("image_files", usage.image_files),
        ("pull_bytes_per_second", usage.pull_bytes_per_second),
    ]
}
