//! Metrics of the control plane.

use crate::jobs;
use leno_control::{Counters, JobStatus, NodeStatus, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;

/// The status at one moment.
#[derive(Debug)]
pub(crate) struct Scrape {
    jobs: Vec<JobStatus>,
    /// Counters of the streams to nodes.
    nodes: Vec<(String, Counters)>,
    unacknowledged: AcknowledgementDelays,
}

/// For how long, in seconds, nodes have left configuration unacknowledged.
#[derive(Debug)]
pub(crate) struct AcknowledgementDelays(Vec<(String, u64)>);

impl Scrape {
    pub(crate) fn of(control: Status) -> Self {
        let unacknowledged = AcknowledgementDelays::of(&control.nodes);
        let nodes = control.nodes.into_iter().map(|node| (node.name, node.counters)).collect();
        Self { jobs: control.jobs, nodes, unacknowledged }
    }

    fn counter(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        value: fn(&Counters) -> u64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (node, counters) in &self.nodes {
            let labels = [("node", node.as_str())];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(counters), None)?;
        }
        Ok(())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        jobs::encode(&self.jobs, &mut encoder)?;
        let encoder = &mut encoder;
        self.counter(encoder, "leno_control_streams", "Streams that the node has opened.", |of| of.streams)?;
        let help = "Messages with configuration that were sent to the node.";
        self.counter(encoder, "leno_control_messages", help, |of| of.messages)?;
        let help = "Bytes of these messages, before HTTP/2 framing.";
        self.counter(encoder, "leno_control_bytes", help, |of| of.bytes)?;
        self.counter(encoder, "leno_control_resources", "Resources in these messages.", |of| of.resources)?;
        self.counter(encoder, "leno_control_removals", "Removals in these messages.", |of| of.removals)?;
        self.counter(encoder, "leno_control_acks", "Answers of the node.", |of| of.acks)?;
        self.counter(encoder, "leno_control_rejections", "Resources that the node refused.", |of| of.rejections)?;
        let help = "Reports of the node on instances and jobs.";
        self.counter(encoder, "leno_control_reports", help, |of| of.reports)?;
        let help = "Subscriptions and reports of the node that were refused, because they concern nothing of its own.";
        self.counter(encoder, "leno_control_refused", help, |of| of.refused)?;
        self.unacknowledged.write(encoder)
    }
}

impl AcknowledgementDelays {
    pub(crate) fn of(nodes: &[NodeStatus]) -> Self {
        Self(nodes.iter().map(|node| (node.name.clone(), node.unacknowledged_seconds)).collect())
    }

    fn write(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "For how long the node has left configuration unacknowledged";
        let unit = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor("leno_node_unacknowledged", help, unit, MetricType::Gauge)?;
        for (node, seconds) in &self.0 {
            family.encode_family(&[("node", node.as_str())])?.encode_gauge(seconds)?;
        }
        Ok(())
    }
}

impl Collector for AcknowledgementDelays {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.write(&mut encoder)
    }
}
