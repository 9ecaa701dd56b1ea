//! Spans for a trace back end: OTLP over HTTP, protobuf. Off unless the mesh names an endpoint.
//!
//! The ids are the program's (the callee already has them in its `traceparent`); here a finished record becomes a span with those
//! ids, if it is sampled. Workers only set the record aside; a thread makes spans of them and sends them in batches. Attributes follow
//! OpenTelemetry's semantic conventions for HTTP and RPC; what is Leno's own is under `leno.`.

mod attributes;

use crate::outbox::{Bounds, Outbox, Slot};
use crate::record::Observed;
use attributes::Span;
use opentelemetry::InstrumentationScope;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Spans of one request to the back end.
const BATCH: usize = 512;
const BOUNDS: Bounds = Bounds { capacity: 8192, enough: BATCH, pause: Duration::from_millis(500) };
/// Per request to the back end.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A node's span exporter.
#[derive(Debug)]
pub struct Spans {
    outbox: Outbox<Arc<Observed>>,
    unsent: Arc<AtomicU64>,
}

/// One worker's way to the exporter.
#[derive(Debug)]
pub struct Sender(Slot<Arc<Observed>>);

impl Spans {
    /// Starts exporting to an OTLP/HTTP endpoint, such as `http://127.0.0.1:4318`. A back end that is away costs spans, nothing else.
    pub fn start(endpoint: &str) -> io::Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        let endpoint = match endpoint.ends_with("/v1/traces") {
            true => endpoint.to_owned(),
            false => format!("{endpoint}/v1/traces"),
        };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(&endpoint)
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_timeout(TIMEOUT)
            .build();
        let exporter = exporter.map_err(|error| io::Error::other(format!("tracing.otlp {endpoint}: {error}")))?;
        let scope = InstrumentationScope::builder("leno").with_version(env!("CARGO_PKG_VERSION")).build();
        let unsent = Arc::new(AtomicU64::new(0));
        let mut export = Export { exporter, scope, unsent: unsent.clone(), broken: false };
        let outbox = Outbox::start("span-export", BOUNDS, move |records| export.send(records))?;
        Ok(Self { outbox, unsent })
    }

    /// For one worker.
    pub fn sender(&self) -> Sender {
        Sender(self.outbox.slot())
    }

    /// Spans that were lost.
    pub fn dropped(&self) -> u64 {
        self.outbox.dropped() + self.unsent.load(Ordering::Relaxed)
    }

    /// Waits until all spans so far are sent, or could not be, or some seconds have passed.
    pub fn flush(&self) {
        let _ = self.outbox.flush();
    }
}

impl Sender {
    /// Sets a finished exchange aside, if it is sampled.
    pub fn send(&self, observed: &Arc<Observed>) {
        if observed.trace.as_ref().is_some_and(|plan| plan.context.sampled) {
            self.0.append(|records| records.push(observed.clone()));
        }
    }
}

/// The thread's side.
struct Export {
    exporter: opentelemetry_otlp::SpanExporter,
    scope: InstrumentationScope,
    unsent: Arc<AtomicU64>,
    broken: bool,
}

impl Export {
    /// Sends spans, a batch at a time.
    fn send(&mut self, records: &mut [Arc<Observed>]) {
        for batch in records.chunks(BATCH) {
            // Those of one service together: the service is a property of the whole message.
            let mut services: BTreeMap<(&str, &str), Vec<SpanData>> = BTreeMap::new();
            for span in batch.iter().filter_map(|observed| Span::of(observed)) {
                services.entry(span.service()).or_default().push(span.data(&self.scope));
            }
            for ((namespace, name), spans) in services {
                let namespace = opentelemetry::KeyValue::new("service.namespace", namespace.to_owned());
                let resource =
                    Resource::builder_empty().with_service_name(name.to_owned()).with_attribute(namespace).build();
                self.exporter.set_resource(&resource);
                self.send_batch(spans);
            }
        }
    }

    fn send_batch(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let result = wait(self.exporter.export(batch));
        if let Err(error) = &result {
            self.unsent.fetch_add(count, Ordering::Relaxed);
            if !self.broken {
                tracing::warn!(%error, "spans cannot be exported; they are lost until they can");
            }
        }
        self.broken = result.is_err();
    }
}

/// Runs a future on this thread. The exporter's blocks by itself; within an async runtime it would refuse to.
fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests;
