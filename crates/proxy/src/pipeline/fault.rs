//! Faults that policies inject into permitted requests: first the delay, then the answer in place of
//! the back end's.

use crate::pipeline::exchange::Exchange;
use crate::pipeline::judge::Permit;
use crate::state::routes::faults::Fault;
use leno_http::failure::Failure;
use leno_telemetry::exchange::FaultRecord;
use std::time::Duration;
use tokio::time::Instant;

impl Exchange {
    /// Carries out the fault of a permitted request. Nothing of it acts once it has ended.
    ///
    /// # Errors
    /// The request does not go on: the fault answers, or the request's time is over.
    pub(super) async fn inject(&self, fault: &Fault, permit: &Permit) -> Result<(), Failure> {
        let mut noted = FaultRecord {
            name: fault.name.clone(),
            until: fault.until,
            delay: Duration::ZERO,
            is_undelayed: false,
            is_aborted: false,
        };
        let delayed = self.delay(fault, permit, &mut noted).await;
        if delayed.is_ok() && fault.abort.is_some() && !fault.left().is_zero() {
            noted.is_aborted = true;
            self.record.metrics().fault("abort", &fault.route, &fault.name);
        }
        let aborted = noted.is_aborted;
        self.record.fault(noted);
        delayed?;
        match &fault.abort {
            Some(failure) if aborted => Err(Failure::Injected(failure.clone())),
            _ => Ok(()),
        }
    }

    async fn delay(&self, fault: &Fault, permit: &Permit, noted: &mut FaultRecord) -> Result<(), Failure> {
        let pause = fault.delay.min(fault.left());
        if pause.is_zero() {
            return Ok(());
        }
        let Some(_place) = self.worker.node.delays.take(fault.namespace()) else {
            self.record.metrics().fault("undelayed", &fault.route, &fault.name);
            noted.is_undelayed = true;
            return Ok(());
        };
        self.record.metrics().fault("delay", &fault.route, &fault.name);
        // The client may leave before the delay is over.
        noted.delay = pause;
        self.record.fault(noted.clone());
        let started = Instant::now();
        let end = started + pause;
        let over = self.deadline(permit).filter(|(at, _)| *at < end);
        tokio::time::sleep_until(over.map_or(end, |(at, _)| at)).await;
        noted.delay = started.elapsed();
        over.map_or(Ok(()), |(_, limit)| Err(Failure::Timeout(limit)))
    }
}
