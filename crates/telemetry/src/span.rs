//! Exports spans to a trace back end: OTLP over HTTP, as protobuf. Off unless the mesh names an
//! endpoint.
//!
//! The program has chosen the IDs, and the callee has them in its `traceparent`. A completed record
//! becomes a span with these IDs, if it is sampled. Workers encode spans; a thread puts them
//! together and sends them in batches. Attributes follow OpenTelemetry's semantic conventions for
//! HTTP and RPC. Leno's own attributes begin with `leno.`.

mod attributes;
mod collector;
mod protobuf;
mod queued;

use crate::exchange::ExchangeRecord;
use attributes::Span;
use collector::Collector;
use leno_runtime::batch::{BatchBuffer, BatchExporter, Bounds};
use protobuf::{attribute, bytes, nested, text};
use queued::QueuedSpan;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Spans in one request to the back end.
const BATCH: usize = 512;
/// Bytes that a span takes, more or less.
const TYPICAL_SPAN: usize = 768;
/// In bytes.
const BOUNDS: Bounds =
    Bounds { capacity: 8192 * TYPICAL_SPAN, enough: BATCH * TYPICAL_SPAN, pause: Duration::from_millis(500) };

/// A node's span exporter.
#[derive(Debug)]
pub struct Spans {
    exporter: BatchExporter<u8>,
    unsent: Arc<AtomicU64>,
}

/// One worker's end of the exporter.
#[derive(Debug)]
pub struct Sender(BatchBuffer<u8>);

impl Spans {
    /// Starts exporting to an OTLP/HTTP endpoint such as `http://127.0.0.1:4318`. If the back end
    /// is away, spans are lost, and nothing else is affected.
    pub fn start(endpoint: &str) -> io::Result<Self> {
        let unsent = Arc::new(AtomicU64::new(0));
        let collector = Collector::new(endpoint)?;
        let mut export = Export { collector, unsent: unsent.clone(), broken: false };
        let exporter = BatchExporter::start("span-export", BOUNDS, move |queued| export.send(queued))?;
        Ok(Self { exporter, unsent })
    }

    /// The end for one worker.
    pub fn sender(&self) -> Sender {
        Sender(self.exporter.buffer())
    }

    /// Number of spans that were lost.
    pub fn dropped(&self) -> u64 {
        self.exporter.dropped() + self.unsent.load(Ordering::Relaxed)
    }

    /// Waits until all spans so far are sent or could not be, for some seconds at most.
    pub fn flush(&self) {
        let _ = self.exporter.flush();
    }
}

impl Sender {
    /// Queues a completed exchange, if it is sampled.
    pub fn send(&self, observed: &ExchangeRecord) {
        if let Some(span) = Span::of(observed).filter(Span::is_sampled) {
            self.0.append(|queue| queued::append(queue, &span));
        }
    }
}

/// The state of the exporter's thread.
struct Export {
    collector: Collector,
    unsent: Arc<AtomicU64>,
    broken: bool,
}

impl Export {
    /// Sends spans in batches.
    fn send(&mut self, queue: &[u8]) {
        let spans: Vec<QueuedSpan<'_>> = queued::read(queue).collect();
        for batch in spans.chunks(BATCH) {
            let result = self.collector.post(message(batch));
            if let Err(error) = &result {
                self.unsent.fetch_add(batch.len() as u64, Ordering::Relaxed);
                if !self.broken {
                    tracing::warn!(%error, "spans cannot be exported; they are lost until they can");
                }
            }
            self.broken = result.is_err();
        }
    }
}

/// Encodes an `ExportTraceServiceRequest`. Spans are grouped by service, which is their resource.
fn message(batch: &[QueuedSpan<'_>]) -> Vec<u8> {
    let mut services: BTreeMap<(&str, &str), Vec<&[u8]>> = BTreeMap::new();
    for QueuedSpan { service, span } in batch {
        services.entry(*service).or_default().push(span);
    }
    let mut out = Vec::with_capacity(batch.iter().map(|queued| queued.span.len()).sum::<usize>() + TYPICAL_SPAN);
    for ((namespace, name), spans) in services {
        nested(&mut out, 1, |out| {
            nested(out, 1, |resource| {
                attribute(resource, 1, "service.name", name.into());
                attribute(resource, 1, "service.namespace", namespace.into());
            });
            nested(out, 2, |out| {
                nested(out, 1, |scope| {
                    text(scope, 1, &["leno"]);
                    text(scope, 2, &[env!("CARGO_PKG_VERSION")]);
                });
                spans.iter().for_each(|span| bytes(out, 2, span));
            });
        });
    }
    out
}

#[cfg(test)]
mod tests;
