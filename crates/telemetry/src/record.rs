//! One record per exchange: the request, the verdict and the rule that decided, the response, and
//! the time of each stage.
//!
//! Every exchange has a record, whether it was denied, allowed, answered or broken off. When the
//! last handle to the record is dropped, it is reported once to metrics, access log, traces, and
//! the ring that `leno explain` reads. That happens after the turn of the task that dropped it,
//! because this task has a response to send.

use super::exchange::{AttemptResult, ExchangeRecord, FaultRecord, RouteRecord, Stage, Try};
use super::metrics;
use super::recorder::Recorder;
use super::request_line::RequestLine;
use super::stats::RevisionLabel;
use http::request;
use leno_http::body::Meter;
use leno_http::failure::Failure;
use leno_http::peer::{Peer, TrafficDirection};
use leno_namespaces::{Namespace, Permit};
use leno_policy::spec::Protocol;
use leno_runtime::clock::unix_ms;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Instant, SystemTime};

/// A handle to the record of one exchange. Clones share the record.
#[derive(Clone, Debug)]
pub struct Record(Rc<Open>);

#[derive(Debug)]
struct Open {
    recorder: Rc<Recorder>,
    observed: RefCell<Option<ExchangeRecord>>,
    /// No more of the request's body is passed on.
    closed: Cell<bool>,
    /// The instance of this node that handles the request.
    instance: Cell<Option<SocketAddr>>,
    /// Counts the exchange for its namespace.
    permit: RefCell<Option<Permit>>,
    /// The task that forwards the request's body, while it waits for more of it.
    upload: RefCell<Option<Waker>>,
}

impl Record {
    /// Opens a record. It reads the clock for both itself and the judge.
    pub fn new(
        recorder: &Rc<Recorder>,
        direction: TrafficDirection,
        peer: &Peer,
        protocol: Protocol,
        head: &request::Parts,
        request_id: &str,
    ) -> Self {
        let started = Instant::now();
        let observed = ExchangeRecord {
            request_id: request_id.into(),
            direction,
            peer: peer.clone(),
            protocol,
            scheme: "http",
            request_line: RequestLine::of(head),
            route: None,
            fault: None,
            target: None,
            revision: None,
            started_at: SystemTime::now(),
            started,
            stages: [None; 4],
            ended: started,
            judged: None,
            inputs: None,
            signatures: Vec::new(),
            rate_limit_checks: Vec::new(),
            authorizers: Vec::new(),
            extensions: Vec::new(),
            request_edits: Vec::new(),
            response_edits: Vec::new(),
            trace: None,
            program: None,
            namespace: None,
            logged_headers: Vec::new(),
            attempts: Vec::new(),
            node: None,
            status: 0,
            grpc_status: None,
            flag: None,
            failure: None,
            bytes_in: 0,
            bytes_out: 0,
            upgraded: false,
        };
        Self(Rc::new(Open {
            recorder: recorder.clone(),
            observed: RefCell::new(Some(observed)),
            closed: Cell::new(false),
            instance: Cell::default(),
            permit: RefCell::default(),
            upload: RefCell::default(),
        }))
    }

    /// Notes the scheme that the client used.
    pub fn scheme(&self, scheme: &'static str) {
        self.note(|observed| observed.scheme = scheme);
    }

    /// Notes when a stage is reached for the first time.
    pub fn stage(&self, stage: Stage) {
        self.note(|observed| {
            observed.stages[stage as usize].get_or_insert_with(Instant::now);
        });
    }

    /// Notes which instance of this node handles the request.
    pub fn handled_by(&self, instance: SocketAddr) {
        self.0.instance.set(Some(instance));
    }

    /// The instance of this node that handles the request.
    pub fn instance(&self) -> Option<SocketAddr> {
        self.0.instance.get()
    }

    /// Notes the callee: `namespace/name`.
    pub fn routed(&self, target: &Arc<str>) {
        self.note(|observed| observed.target = Some(target.clone()));
    }

    /// Notes the namespace that its line counts for.
    pub fn namespace(&self, namespace: Option<&Arc<Namespace>>) {
        if let Some(namespace) = namespace {
            self.note(|observed| observed.namespace = Some(namespace.clone()));
        }
    }

    /// Keeps the permit of this namespace until the exchange has ended; `None`: there is no permit.
    pub fn occupy(&self, namespace: &Arc<Namespace>, permit: Option<Permit>) -> Option<()> {
        self.note(|observed| {
            observed.namespace.get_or_insert_with(|| namespace.clone());
        });
        permit.map(|permit| drop(self.0.permit.replace(Some(permit))))
    }

    /// Notes the path as judged and forwarded, if the client wrote it differently.
    pub fn normalised(&self, path: &str) {
        self.note(|observed| observed.request_line = observed.request_line.with_path(path));
    }

    /// Notes the route that the request follows.
    pub fn followed(&self, route: RouteRecord) {
        self.note(|observed| observed.route = Some(Box::new(route)));
    }

    /// Notes the fault that is injected.
    pub fn fault(&self, fault: FaultRecord) {
        self.note(|observed| observed.fault = Some(Box::new(fault)));
    }

    /// Notes the back end of the route.
    pub fn backend(&self, backend: Option<Arc<str>>) {
        self.note(|observed| observed.route.iter_mut().for_each(|route| route.backend = backend.clone()));
    }

    /// Notes a host or a path that the route wrote.
    pub fn rewritten(&self, authority: Option<&str>, path: Option<&str>) {
        self.note(|observed| {
            if let Some(route) = &mut observed.route {
                route.authority = authority.map(Into::into).or(route.authority.take());
                route.path = path.map(Into::into).or(route.path.take());
            }
        });
    }

    /// Notes the revision that gets the request. The first one counts.
    pub fn revision(&self, revision: &Arc<RevisionLabel>) {
        self.note(|observed| {
            observed.revision.get_or_insert_with(|| revision.clone());
        });
    }

    /// Notes the status of the response, also if the proxy made it.
    pub fn status(&self, status: u16) {
        self.note(|observed| observed.status = status);
    }

    /// Notes the status of the gRPC call.
    pub fn grpc_status(&self, status: u8) {
        self.note(|observed| observed.grpc_status = Some(status));
    }

    /// Adds bytes of the request's body.
    pub fn request_bytes(&self, bytes: u64) {
        self.note(|observed| observed.bytes_in += bytes);
    }

    /// A meter that counts a request's body in this record.
    pub fn meter(&self) -> Rc<dyn Meter> {
        self.0.clone()
    }

    /// Adds bytes of the response's body.
    pub fn response_bytes(&self, bytes: u64) {
        self.note(|observed| observed.bytes_out += bytes);
    }

    /// Notes why the exchange failed or broke off. The first cause counts.
    pub fn failure(&self, failure: &Failure) {
        self.note(|observed| {
            if observed.failure.is_none() {
                observed.flag = Some(failure.flag());
                observed.failure = Some(failure.to_string().into());
            }
        });
    }

    /// The exchange is closed: no more of the request's body is passed on.
    pub fn close(&self) {
        self.0.closed.set(true);
        if let Some(upload) = self.0.upload.take() {
            upload.wake();
        }
    }

    /// Notes the target node of an attempt; `None`: this node.
    #[inline]
    pub fn node(&self, node: Option<Arc<str>>) {
        self.note(|observed| observed.node = node);
    }

    /// Notes an attempt that is over, the first one included.
    #[inline]
    pub fn attempt(&self, endpoint: Option<SocketAddr>, result: AttemptResult) {
        let attempt = Try { endpoint, result, ended: Instant::now() };
        self.note(|observed| observed.attempts.push(attempt));
    }

    /// Notes that the exchange became a WebSocket.
    pub fn upgraded(&self) {
        self.note(|observed| observed.upgraded = true);
    }

    /// The ID that all hops of this request share.
    #[inline]
    pub fn request_id(&self) -> Box<str> {
        self.note(|observed| observed.request_id.clone()).unwrap_or_default()
    }

    /// When it began: monotonic, and in milliseconds since the Unix epoch.
    #[inline]
    pub fn started(&self) -> (Instant, u64) {
        let times = self.note(|observed| (observed.started, unix_ms(observed.started_at)));
        times.unwrap_or_else(|| (Instant::now(), unix_ms(SystemTime::now())))
    }

    /// This worker's metrics.
    #[inline]
    pub fn metrics(&self) -> &metrics::Shard {
        self.0.recorder.metrics()
    }

    /// Takes the content. The record will not be reported. For tests.
    #[doc(hidden)]
    pub fn take(&self) -> ExchangeRecord {
        self.0.observed.borrow_mut().take().unwrap()
    }

    /// Changes the content; `None`: the record is already being reported.
    pub fn note<R>(&self, note: impl FnOnce(&mut ExchangeRecord) -> R) -> Option<R> {
        self.0.observed.borrow_mut().as_mut().map(note)
    }
}

impl Meter for Open {
    fn request_bytes(&self, bytes: u64) {
        if let Some(observed) = self.observed.borrow_mut().as_mut() {
            observed.bytes_in += bytes;
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.get()
    }

    fn wake_when_closed(&self, waker: &Waker) {
        let mut upload = self.upload.borrow_mut();
        match &mut *upload {
            Some(known) => known.clone_from(waker),
            None => *upload = Some(waker.clone()),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut observed) = self.observed.get_mut().take() {
            observed.ended = Instant::now();
            observed.bound();
            if observed.status == 0 && observed.flag.is_none() {
                // No response and no failure: the connection was dropped, and the exchange's future
                // with it.
                observed.flag = Some("DC");
            }
            self.recorder.finish(observed);
        }
    }
}

#[cfg(test)]
mod tests;
