//! Reports the end of an attempt to outlier detection and retries. They learn it from the
//! response's head, or from the status of the gRPC call, which may come after the head.

use super::{Forward, Reply, breaker};
use crate::pipeline::judge::Permit;
use crate::pipeline::retry;
use crate::pipeline::route::Upstream;
use crate::state::health::Attempt;
use http::StatusCode;
use leno_http::body::grpc_status;
use leno_http::failure::Failure;
use leno_http::{head, outcome};
use leno_policy::spec::{Breaker, Outlier, Protocol, Retry};
use leno_telemetry::record::Record;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for the frame after the head of a gRPC call that may be tried again. A server
/// that refuses a call writes both at once.
const FIRST_FRAME: Duration = Duration::from_millis(20);

/// An attempt at an endpoint, whose end the outlier detection does not know yet.
#[derive(Debug)]
pub(crate) struct PendingReport {
    endpoint: SocketAddr,
    name: Arc<str>,
    outlier: Outlier,
    /// How many endpoints are known.
    endpoints: u32,
}

impl Forward<'_> {
    /// The status of a gRPC call whose response has a head and no message. Read only if the plan
    /// may want another attempt because of it.
    pub(super) async fn early_grpc_status(&self, retry: &Retry, result: &mut Result<Reply, Failure>) -> Option<u8> {
        let reply = result.as_mut().ok().filter(|_| self.exchange.protocol == Protocol::Grpc)?;
        if reply.failure().is_some() || !retry::looks_at_responses(retry) || !reply.is_grpc() {
            return None;
        }
        let status = match grpc_status(reply.response.headers()) {
            Some(status) => status,
            None => {
                let first = reply.response.body_mut().first_trailers();
                tokio::time::timeout(FIRST_FRAME, first).await.ok()?.and_then(grpc_status)?
            }
        };
        if let Some(pending) = reply.guard.unreported.take() {
            let attempt = Attempt::Status(outcome::status(200, Some(status)));
            pending.report(attempt, self.permit, &self.exchange.record);
        }
        Some(status)
    }

    /// Reports the end of an attempt to the outlier detection, or leaves that to the guard of the
    /// response.
    pub(super) fn report(&self, result: &mut Result<Reply, Failure>) {
        let Some(pending) = self.endpoint.get().and_then(|endpoint| self.pending_report(endpoint)) else { return };
        let is_grpc = self.exchange.protocol == Protocol::Grpc;
        match result {
            Err(failure) => {
                let attempt = Attempt::failed(failure);
                attempt.into_iter().for_each(|it| pending.report(it, self.permit, &self.exchange.record));
            }
            Ok(reply) => match grpc_status(reply.response.headers()).filter(|_| is_grpc) {
                None if is_grpc && reply.is_grpc() && !reply.response.body().is_over() => {
                    reply.guard.unreported = RefCell::new(Some(Box::new(pending)));
                }
                grpc => {
                    let status = outcome::status(reply.response.status().as_u16(), grpc);
                    pending.report(Attempt::Status(status), self.permit, &self.exchange.record);
                }
            },
        }
    }

    /// Reports to the outlier detection that this endpoint could not be reached.
    pub(super) fn report_unreachable(&self, endpoint: SocketAddr) {
        if let Some(pending) = self.pending_report(endpoint) {
            pending.report(Attempt::LocalFailure, self.permit, &self.exchange.record);
        }
    }

    /// The pending report about the attempt at this endpoint; `None`: there is no outlier
    /// detection.
    fn pending_report(&self, endpoint: SocketAddr) -> Option<PendingReport> {
        let node = &self.exchange.worker.node;
        let of = |breaker: Option<&Breaker>| -> Option<Outlier> { breaker?.outlier };
        let (name, outlier, endpoints) = match self.upstream {
            Upstream::Instance(entry) => (&entry.name, of(breaker(entry))?, node.instances.count(&entry.config.id)),
            Upstream::Egress(entry, external) => (&entry.name, of(breaker(entry))?, external.known()),
            Upstream::Remote(callee) => {
                let known = node.endpoints.of(&callee.id).map_or(0, |known| known.len());
                (&callee.name, of(self.permit.terms().breaker.as_ref())?, known)
            }
            Upstream::LocalDelivery(_) | Upstream::NotACallee => return None,
        };
        Some(PendingReport { endpoint, name: name.clone(), outlier, endpoints })
    }
}

impl PendingReport {
    /// Reports the end of the attempt to the outlier detection.
    pub(crate) fn report(&self, attempt: Attempt, permit: &Permit, record: &Record) {
        if permit.target.report(self.endpoint, attempt, &self.outlier, self.endpoints, Instant::now()) {
            record.metrics().ejection(&self.name);
        }
    }
}

impl Attempt {
    /// An attempt that failed, or whose response broke off; `None`: its upstream is not to blame.
    pub(crate) fn failed(failure: &Failure) -> Option<Self> {
        match failure {
            Failure::ClientGone | Failure::SlowClient(_) | Failure::Overflow | Failure::Bound(_) => None,
            Failure::NoMemory(_) | Failure::TooLong(_) | Failure::Closed { .. } | Failure::Ended { .. } => None,
            _ => Some(Self::LocalFailure),
        }
    }
}

impl Reply {
    /// Whether it is the response of a gRPC call.
    fn is_grpc(&self) -> bool {
        self.response.status() == StatusCode::OK && head::is_grpc(self.response.headers())
    }
}
