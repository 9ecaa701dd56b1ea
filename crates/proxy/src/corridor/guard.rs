//! What lasts as long as an exchange.

use crate::corridor::judge::Ruling;
use crate::corridor::upstream::UpstreamGuard;
use crate::http::activity::Busy;
use crate::http::body::{Body, Guard};
use crate::http::failure::Failure;
use crate::telemetry::record::Record;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What an exchange keeps until its response's last byte is gone: its record, slots of the circuit breaker, the instance and the connection.
/// Dropping it is the end of the exchange.
#[derive(Debug)]
pub(super) struct ExchangeGuard {
    /// Written when the last clone is dropped.
    pub record: Record,
    /// Holds the slots of the circuit breaker.
    pub ruling: Option<Ruling>,
    /// The instance and the connection that are busy with this request.
    pub upstream: UpstreamGuard,
    /// The exchange must be over by then, and how long it may take in all.
    pub deadline: Option<(Instant, Duration)>,
    /// The client's connection is busy with it.
    busy: Option<Busy>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Of the exchange behind this one, when it was handed over on the same node.
    inner: Option<Box<dyn Guard>>,
}

impl ExchangeGuard {
    /// Of an exchange that keeps nothing but its record yet.
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            ruling: None,
            upstream: UpstreamGuard::default(),
            deadline: None,
            busy: None,
            timer: None,
            inner: None,
        }
    }

    /// Lets this body keep it, around what it keeps already.
    pub(super) fn keep_with(mut self, mut body: Body) -> Body {
        self.inner = body.take_guard();
        if let Some(inner) = &self.inner {
            self.deadline = [self.deadline, inner.deadline()].into_iter().flatten().min();
        }
        body.keep(Box::new(self))
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
        self.record.response_bytes(bytes);
        if let Some(inner) = &self.inner {
            inner.response_bytes(bytes);
        }
    }

    fn grpc_status(&self, status: u8) {
        self.record.grpc_status(status);
        if let Some(inner) = &self.inner {
            inner.grpc_status(status);
        }
    }

    fn failure(&self, failure: &Failure) {
        self.record.failure(failure);
        if let Some(inner) = &self.inner {
            inner.failure(failure);
        }
    }

    fn occupy(&mut self, busy: Busy) {
        self.busy = Some(busy);
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
