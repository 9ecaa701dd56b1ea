//! One record per exchange: what was asked, what was decided and by which rule, what came back, and how long each stage took.
//!
//! Denied or allowed, answered or broken off: every exchange has one, and when its last handle is dropped it is told once to the
//! metrics, the access log, the trace, and the ring that `leno explain` reads. Not at once, but when the task that dropped it has had its
//! turn: it has a response to send.

use super::asked::Asked;
use super::metrics;
use super::observed::{AttemptResult, Observed, Stage, Try};
use super::recorder::Recorder;
use super::stats::RevisionLabel;
use crate::http::body::Meter;
use crate::http::failure::Failure;
use crate::http::peer::{Peer, TrafficDirection};
use crate::runtime::clock::unix_ms;
use http::request;
use leno_policy::spec::Protocol;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// A handle to one exchange's record. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Record(Rc<Open>);

#[derive(Debug)]
struct Open {
    recorder: Rc<Recorder>,
    observed: RefCell<Option<Observed>>,
}

impl Record {
    /// Opens a record, with the clock read for both the record and the judge.
    pub fn new(
        recorder: &Rc<Recorder>,
        direction: TrafficDirection,
        peer: &Peer,
        protocol: Protocol,
        head: &request::Parts,
        request_id: &str,
    ) -> Self {
        let started = Instant::now();
        let observed = Observed {
            request_id: request_id.into(),
            direction,
            peer: peer.clone(),
            protocol,
            asked: Asked::of(head),
            target: None,
            revision: None,
            started_at: SystemTime::now(),
            started,
            stages: [None; 4],
            ended: started,
            judged: None,
            signatures: Vec::new(),
            takes: Vec::new(),
            extensions: Vec::new(),
            request_edits: Vec::new(),
            response_edits: Vec::new(),
            trace: None,
            program: None,
            logged_headers: Vec::new(),
            attempts: Vec::new(),
            status: 0,
            grpc_status: None,
            flag: None,
            failure: None,
            bytes_in: 0,
            bytes_out: 0,
            upgraded: false,
        };
        Self(Rc::new(Open { recorder: recorder.clone(), observed: RefCell::new(Some(observed)) }))
    }

    /// Notes that a stage is reached, the first time it is.
    pub fn stage(&self, stage: Stage) {
        self.note(|observed| {
            observed.stages[stage as usize].get_or_insert_with(Instant::now);
        });
    }

    /// The function that this is for: `namespace/name`.
    pub fn routed(&self, target: &Arc<str>) {
        self.note(|observed| observed.target = Some(target.clone()));
    }

    /// The path as it is judged and forwarded, where it was written otherwise.
    pub fn normalised(&self, path: &str) {
        self.note(|observed| observed.asked = observed.asked.with_path(path));
    }

    /// The revision that gets it.
    pub fn revision(&self, revision: &Arc<RevisionLabel>) {
        self.note(|observed| {
            observed.revision.get_or_insert_with(|| revision.clone());
        });
    }

    /// Status of the response, the proxy's own included.
    pub fn status(&self, status: u16) {
        self.note(|observed| observed.status = status);
    }

    /// Status of the gRPC call.
    pub fn grpc_status(&self, status: u8) {
        self.note(|observed| observed.grpc_status = Some(status));
    }

    /// More of the request's body came.
    pub fn request_bytes(&self, bytes: u64) {
        self.note(|observed| observed.bytes_in += bytes);
    }

    /// Counts a request's body here.
    pub fn meter(&self) -> Rc<dyn Meter> {
        self.0.clone()
    }

    /// More of the response's body went.
    pub fn response_bytes(&self, bytes: u64) {
        self.note(|observed| observed.bytes_out += bytes);
    }

    /// The exchange failed, or broke off; the first cause counts.
    pub fn failure(&self, failure: &Failure) {
        self.note(|observed| {
            if observed.failure.is_none() {
                observed.flag = Some(failure.flag());
                observed.failure = Some(failure.to_string().into());
            }
        });
    }

    /// A try is over, the first included.
    pub fn attempt(&self, endpoint: Option<SocketAddr>, result: AttemptResult) {
        let attempt = Try { endpoint, result, ended: Instant::now() };
        self.note(|observed| observed.attempts.push(attempt));
    }

    /// It became a WebSocket.
    pub fn upgraded(&self) {
        self.note(|observed| observed.upgraded = true);
    }

    /// The id that all hops of this request share.
    pub fn request_id(&self) -> Box<str> {
        self.note(|observed| observed.request_id.clone()).unwrap_or_default()
    }

    /// When it began: monotonic, and in milliseconds since the Unix epoch.
    pub fn started(&self) -> (Instant, u64) {
        let times = self.note(|observed| (observed.started, unix_ms(observed.started_at)));
        times.unwrap_or_else(|| (Instant::now(), unix_ms(SystemTime::now())))
    }

    /// This worker's metrics.
    pub fn metrics(&self) -> &metrics::Shard {
        self.0.recorder.metrics()
    }

    /// What is known so far; the record will not be told.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Observed {
        self.0.observed.borrow_mut().take().unwrap()
    }

    /// Lets the judge add what it knows. `None`: the record is being told already (only possible from within its own drop).
    pub(crate) fn note<R>(&self, note: impl FnOnce(&mut Observed) -> R) -> Option<R> {
        self.0.observed.borrow_mut().as_mut().map(note)
    }
}

impl Meter for Open {
    fn request_bytes(&self, bytes: u64) {
        if let Some(observed) = self.observed.borrow_mut().as_mut() {
            observed.bytes_in += bytes;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut observed) = self.observed.get_mut().take() {
            observed.ended = Instant::now();
            observed.bound();
            if observed.status == 0 && observed.flag.is_none() {
                // Nobody answered and nobody failed: the exchange's future was dropped, because its connection was.
                observed.flag = Some("DC");
            }
            self.recorder.finish(observed);
        }
    }
}

#[cfg(test)]
mod tests;
