//! The resources that an exchange holds until it ends.

use crate::pipeline::judge::Permit;
use crate::pipeline::open::Registration;
use crate::pipeline::upstream::UpstreamGuard;
use crate::state::health::Attempt;
use leno_http::activity::{Activity, Busy};
use leno_http::body::{Body, CloseReason, Guard};
use leno_http::failure::Failure;
use leno_http::outcome;
use leno_telemetry::record::Record;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Held until the last byte of the response is gone: the record, the circuit breaker's slots, the
/// instance and the connection. Dropping it ends the exchange.
#[derive(Debug)]
pub(super) struct ExchangeGuard {
    /// Written when the last clone is dropped.
    pub record: Record,
    /// Holds the slots of the circuit breaker.
    pub permit: Option<Permit>,
    /// The instance and the connection that this request occupies.
    pub upstream: UpstreamGuard,
    /// Its place among the open exchanges.
    pub open: Option<Registration>,
    /// The deadline of the exchange, and how long the exchange may take in all.
    pub deadline: Option<(Instant, Duration)>,
    /// Marks the client's connection as busy.
    busy: Option<Busy>,
    /// The response is that of a gRPC call.
    pub is_grpc: bool,
    timer: Option<Pin<Box<Sleep>>>,
    /// The guard of the callee's exchange, if the request was delivered locally.
    inner: Option<Box<dyn Guard>>,
}

impl ExchangeGuard {
    /// A guard that holds only the record so far.
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            permit: None,
            upstream: UpstreamGuard::default(),
            open: None,
            deadline: None,
            busy: None,
            is_grpc: false,
            timer: None,
            inner: None,
        }
    }

    /// Attaches the guard to the body. A guard that the body already has becomes the inner one.
    pub(super) fn keep_with(mut self, mut body: Body) -> Body {
        self.inner = body.take_guard();
        if let Some(inner) = &self.inner {
            self.deadline = [self.deadline, inner.deadline()].into_iter().flatten().min();
        }
        body.keep(Box::new(self))
    }

    /// Reports the end of the attempt to the outlier detection, unless that was done before.
    fn report(&self, attempt: Option<Attempt>) {
        if let (Some(unreported), Some(permit)) = (self.upstream.unreported.take(), &self.permit)
            && let Some(attempt) = attempt
        {
            unreported.report(attempt, permit, &self.record);
        }
    }
}

impl Guard for ExchangeGuard {
    fn request_bytes(&self, bytes: u64) {
        self.record.request_bytes(bytes);
        if let Some(inner) = &self.inner {
            inner.request_bytes(bytes);
        }
    }

    fn response_bytes(&self, bytes: u64) {
        self.upstream.heard();
        self.record.response_bytes(bytes);
        if let Some(inner) = &self.inner {
            inner.response_bytes(bytes);
        }
    }

    fn grpc_status(&self, status: u8) {
        self.record.grpc_status(status);
        self.report(Some(Attempt::Status(outcome::status(200, Some(status)))));
        if let Some(inner) = &self.inner {
            inner.grpc_status(status);
        }
    }

    fn failure(&self, failure: &Failure) {
        self.record.failure(failure);
        self.report(Attempt::failed(failure));
        if let Some(inner) = &self.inner {
            inner.failure(failure);
        }
    }

    fn closed(&self) -> Option<&Rc<CloseReason>> {
        let own = self.open.as_ref().and_then(Registration::closed);
        own.or_else(|| self.inner.as_ref()?.closed())
    }

    fn wake_when_closed(&self, waker: &Waker) {
        if let Some(open) = &self.open {
            open.wake_when_closed(waker);
        }
        if let Some(inner) = &self.inner {
            inner.wake_when_closed(waker);
        }
    }

    fn sent_on(&self, connection: &Arc<Activity>) {
        if let Some(open) = &self.open {
            open.occupies(connection);
        }
        if let Some(inner) = &self.inner {
            inner.sent_on(connection);
        }
    }

    fn occupy(&mut self, busy: Busy) {
        self.sent_on(busy.connection());
        self.busy = Some(busy);
    }

    fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    fn deadline(&self) -> Option<(Instant, Duration)> {
        self.deadline
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Option<Duration> {
        let (at, limit) = self.deadline?;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        timer.as_mut().poll(cx).is_ready().then_some(limit)
    }
}
