//! Metrics of the control plane.

use crate::jobs;
use leno_control::{JobStatus, NodeStatus, Status};
use leno_telemetry::exposition::{Collector, Exposition, Family, Number};
use leno_telemetry::families;

/// The status at one moment.
#[derive(Debug)]
pub(crate) struct Scrape {
    jobs: Vec<JobStatus>,
    nodes: Vec<NodeStatus>,
}

impl Scrape {
    pub(crate) fn of(control: Status) -> Self {
        Self { jobs: control.jobs, nodes: control.nodes }
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        jobs::collect(&self.jobs, exposition);
        type Value = fn(&NodeStatus) -> Number;
        let of_nodes: [(&'static Family<1>, Value); 12] = [
            (&families::NODE_CONNECTED, |node| node.connected.into()),
            (&families::NODE_UNACKNOWLEDGED, |node| node.unacknowledged_seconds.into()),
            (&families::NODE_REJECTED, |node| node.rejected.len().into()),
            (&families::CONTROL_STREAMS, |node| node.counters.streams.into()),
            (&families::CONTROL_MESSAGES, |node| node.counters.messages.into()),
            (&families::CONTROL_BYTES, |node| node.counters.bytes.into()),
            (&families::CONTROL_RESOURCES, |node| node.counters.resources.into()),
            (&families::CONTROL_REMOVALS, |node| node.counters.removals.into()),
            (&families::CONTROL_ACKS, |node| node.counters.acks.into()),
            (&families::CONTROL_REJECTIONS, |node| node.counters.rejections.into()),
            (&families::CONTROL_REPORTS, |node| node.counters.reports.into()),
            (&families::CONTROL_REFUSED, |node| node.counters.refused.into()),
        ];
        for (family, value) in of_nodes {
            exposition.family(family).samples(self.nodes.iter().map(|node| ([&node.name], value(node))));
        }
    }
}
