//! Counts of connections without requests, by caller and callee, for `/metrics`. Both are functions
//! that the configuration names, and those that are gone are forgotten, so there are no more of
//! these than pairs of them.

use leno_model::FunctionId;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Caller and callee.
type Pair = (FunctionId, FunctionId);

/// Connections and bytes since the node started.
#[derive(Debug, Default)]
pub struct Connections(Mutex<BTreeMap<Pair, Totals>>);

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    opened: u64,
    closed: u64,
    refused: u64,
    sent: u64,
    received: u64,
}

impl Connections {
    /// A connection was opened.
    pub fn opened(&self, caller: &FunctionId, callee: &FunctionId) {
        self.change(caller, callee, |totals| totals.opened += 1);
    }

    /// A connection has ended; the bytes that came from the caller, and that went to it.
    pub fn closed(&self, caller: &FunctionId, callee: &FunctionId, [sent, received]: [u64; 2]) {
        self.change(caller, callee, |totals| {
            totals.closed += 1;
            totals.sent += sent;
            totals.received += received;
        });
    }

    /// A connection was refused, or there was no endpoint for it.
    pub fn refused(&self, caller: &FunctionId, callee: &FunctionId) {
        self.change(caller, callee, |totals| totals.refused += 1);
    }

    fn change(&self, caller: &FunctionId, callee: &FunctionId, change: impl FnOnce(&mut Totals)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry((caller.clone(), callee.clone())).or_default());
    }

    /// Forgets functions that were removed.
    pub fn retain(&self, keep: impl Fn(&FunctionId) -> bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(caller, callee), _| keep(caller) && keep(callee));
    }

    /// The counts, for `/metrics`.
    pub fn scrape(&self) -> Scrape {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Scrape(all.iter().map(|(pair, totals)| (pair.clone(), *totals)).collect())
    }
}

/// The counts at one moment.
#[derive(Debug)]
pub struct Scrape(Vec<(Pair, Totals)>);

impl Scrape {
    fn counter(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: fn(&Totals) -> u64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((caller, callee), totals) in &self.0 {
            let labels = [
                ("reporter", "source"),
                ("source_workload", caller.name.as_str()),
                ("source_workload_namespace", caller.namespace.as_str()),
                ("destination_workload", callee.name.as_str()),
                ("destination_workload_namespace", callee.namespace.as_str()),
            ];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(totals), None)?;
        }
        Ok(())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let opened = ("istio_tcp_connections_opened", "Connections without requests that were opened.");
        self.counter(encoder, opened, |totals| totals.opened)?;
        let closed = ("istio_tcp_connections_closed", "Those that have ended.");
        self.counter(encoder, closed, |totals| totals.closed)?;
        let sent = ("istio_tcp_received_bytes", "Bytes that came from callers, of those that have ended.");
        self.counter(encoder, sent, |totals| totals.sent)?;
        let received = ("istio_tcp_sent_bytes", "Bytes that went to callers, of those that have ended.");
        self.counter(encoder, received, |totals| totals.received)?;
        let refused = ("leno_tcp_connections_refused", "Connections that were not allowed, or that nobody took.");
        self.counter(encoder, refused, |totals| totals.refused)
    }
}
