//! Spans for a trace back end: OTLP over HTTP, protobuf. Off unless the mesh names an endpoint.
//!
//! The ids are the program's (the callee already has them in its `traceparent`); here a finished record becomes a span with those
//! ids, if it is sampled. Workers only set the facts aside; a thread makes spans of them and sends them in batches. Attributes follow
//! OpenTelemetry's semantic conventions for HTTP and RPC; what is Leno's own is under `leno.`.

mod attributes;

use crate::outbox::{Bounds, Outbox, Slot};
use crate::peer::Entrance;
use crate::record::{Observed, Ruled, policy_name};
use http::{Method, Uri};
use leno_policy::outcome::TracePlan;
use leno_policy::spec::Protocol;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, SystemTime};

/// Spans of one request to the back end.
const BATCH: usize = 512;
const BOUNDS: Bounds = Bounds { capacity: 8192, enough: BATCH, pause: Duration::from_millis(500) };
/// Per request to the back end.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A node's span exporter.
#[derive(Debug)]
pub struct Spans {
    outbox: Outbox<Finished>,
    unsent: Arc<AtomicU64>,
}

/// One worker's way to the exporter.
#[derive(Debug)]
pub struct Sender(Slot<Finished>);

/// What a span is made of.
#[derive(Debug)]
struct Finished {
    plan: TracePlan,
    entrance: Entrance,
    protocol: Protocol,
    method: Method,
    uri: Uri,
    authority: Box<str>,
    identity: Option<Arc<str>>,
    address: SocketAddr,
    target: Option<Arc<str>>,
    request_id: Box<str>,
    started_at: SystemTime,
    duration: Duration,
    status: u16,
    grpc_status: Option<u8>,
    flag: Option<&'static str>,
    attempts: usize,
    bytes_in: u64,
    bytes_out: u64,
    verdict: &'static str,
    policy: Option<&'static str>,
    rule: Box<str>,
    engine: Option<&'static str>,
    judge: Option<Duration>,
}

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
        let unsent = Arc::new(AtomicU64::new(0));
        let mut export = Export { exporter, unsent: unsent.clone(), broken: false };
        let outbox = Outbox::start("span-export", BOUNDS, move |spans| export.send(spans))?;
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
    pub fn send(&self, observed: &Observed) {
        if let Some(plan) = observed.trace.as_ref().filter(|plan| plan.context.sampled) {
            self.0.append(|spans| spans.push(Finished::new(plan, observed)));
        }
    }
}

impl Finished {
    fn new(plan: &TracePlan, observed: &Observed) -> Self {
        let judged = observed.judged.as_ref();
        let (policy, rule) = match judged.map(|judged| &judged.verdict) {
            Some(Ruled::Allow { rule }) => (None, rule.clone()),
            Some(Ruled::Deny { policy, rule, .. }) => (Some(policy_name(*policy)), rule.clone()),
            Some(Ruled::Extension { rule, .. }) => (Some(crate::record::EXTENSIONS), rule.clone()),
            Some(Ruled::Fault { .. }) | None => (None, Box::default()),
        };
        Self {
            plan: plan.clone(),
            entrance: observed.entrance,
            protocol: observed.protocol,
            method: observed.method.clone(),
            uri: observed.uri.clone(),
            authority: observed.authority().into(),
            identity: observed.peer.identity.clone(),
            address: observed.peer.address,
            target: observed.target.clone(),
            request_id: observed.request_id.clone(),
            started_at: observed.started_at,
            duration: observed.duration(),
            status: observed.status,
            grpc_status: observed.grpc_status,
            flag: observed.flag,
            attempts: observed.attempts.len(),
            bytes_in: observed.bytes_in,
            bytes_out: observed.bytes_out,
            verdict: observed.verdict(),
            policy,
            rule,
            engine: judged.and_then(|judged| judged.engine).map(crate::metrics::engine_name),
            judge: judged.map(|judged| judged.time),
        }
    }
}

/// The thread's side.
struct Export {
    exporter: opentelemetry_otlp::SpanExporter,
    unsent: Arc<AtomicU64>,
    broken: bool,
}

impl Export {
    /// Sends spans, a batch at a time.
    fn send(&mut self, finished: &mut Vec<Finished>) {
        while !finished.is_empty() {
            let batch = finished.drain(..finished.len().min(BATCH));
            // Those of one service together: the service is a property of the whole message.
            let mut services: BTreeMap<(String, String), Vec<SpanData>> = BTreeMap::new();
            for finished in batch {
                services.entry(finished.service()).or_default().push(finished.span());
            }
            for ((namespace, name), spans) in services {
                let namespace = opentelemetry::KeyValue::new("service.namespace", namespace);
                let resource = Resource::builder_empty().with_service_name(name).with_attribute(namespace).build();
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
